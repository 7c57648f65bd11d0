"""Bytes of subpartitions that several writers shared out, each in its own way."""

import numpy as np
import pytest

from arrow_format.log.totals import without_negatives


@pytest.mark.parametrize(
    ("sizes", "shared"),
    [
        ([5, 0, 2], [5, 0, 2]),
        ([5, -3, 2], [2, 0, 2]),
        ([-3, 1, 1, 9], [0, 0, 0, 8]),
        ([-1, -1, 2], [0, 0, 0]),
        ([], []),
    ],
)
def test_bytes_below_nothing_are_taken_from_others(sizes, shared):
    given = np.array(sizes, np.int64)
    assert without_negatives(given).tolist() == shared
    assert given.tolist() == sizes
