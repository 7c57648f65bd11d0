"""Pieces of a version that is merged by subpartition: ranges, and their shares of the bytes."""

import numpy as np
import pytest

from arrow_format.errors import OptionError
from arrow_format.format.regions import RegionKind
from arrow_format.write.range_plan import Piece, plan_pieces

UNICAST, BROADCAST = RegionKind.UNICAST, RegionKind.BROADCAST


def test_pieces_have_all_bytes_each_what_its_rows_weigh():
    rows = np.array([0, 10, 10, 0, 20, 0], np.int64)
    regions = [(UNICAST, 300), (UNICAST, 500), (BROADCAST, 70)]
    assert plan_pieces(regions, rows, 10 * rows, 200) == (
        Piece(UNICAST, range(2), 1, 2, 200),
        Piece(UNICAST, range(2), 2, 3, 200),
        Piece(UNICAST, range(2), 4, 5, 400),
        Piece(BROADCAST, range(2, 3), 0, 1, 70),
    )


def test_a_subpartition_of_more_rows_than_a_region_has_is_refused():
    rows = np.array([1, 2**31 - 1], np.int64)
    assert len(plan_pieces([(UNICAST, 8)], rows, rows, 100)) == 2
    with pytest.raises(OptionError, match=r"subpartition 1 has 2,147,483,648 rows"):
        plan_pieces([(UNICAST, 8)], rows + 1, rows, 100)
