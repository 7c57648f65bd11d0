"""Parts of a region become its index record: each subpartition once, and no more than 32 bits."""

import numpy as np
import pytest

from arrow_format.errors import ShuffleError
from arrow_format.format.codec_none import message_frames
from arrow_format.format.regions import RegionKind
from arrow_format.write.clustering import Clustering, cluster
from arrow_format.write.region_builder import RegionBuilder

N = 10


def region_of(*parts, n=N):
    builder = RegionBuilder(RegionKind.UNICAST, n)
    for ids in parts:
        builder.add(cluster(np.array(ids, np.int32), n), len(ids))
    builder.add_chunk((0, 8, message_frames(1, 100, 0)))
    return builder.build()


def rows_of_one(num_rows):
    return Clustering(0, None, np.zeros(1, np.int32), np.array([0, num_rows], np.int32))


@pytest.mark.parametrize("n", [N, 3], ids=["listed", "all"])
def test_a_subpartition_that_continues_in_the_next_part_is_listed_once(n):
    region = region_of([0, 1, 1], [1, 1], [1, 2], n=n)
    ids, counts = region.subpartition_rows(n)
    assert (ids.tolist(), counts.tolist()) == ([0, 1, 2], [1, 5, 1])
    assert region.num_rows == 7


@pytest.mark.parametrize("ranks", [[1, 0], [1, 1]])
def test_subpartitions_of_a_part_that_do_not_ascend_are_refused(ranks):
    part = Clustering(0, None, np.array(ranks, np.int32), np.array([0, 1, 2], np.int32))
    with pytest.raises(ShuffleError, match="must be contiguous"):
        RegionBuilder(RegionKind.UNICAST, N).add(part, 2)


def test_a_part_that_goes_back_is_refused():
    with pytest.raises(ShuffleError, match="must be contiguous"):
        region_of([0, 2], [1, 2])


def test_a_region_has_less_than_2_to_the_31_rows():
    builder = RegionBuilder(RegionKind.UNICAST, N)
    builder.add(rows_of_one(2**31 - 2), 2**31 - 2)
    assert builder.add(rows_of_one(1), 1) == 2**31 - 2
    with pytest.raises(ShuffleError, match=r"a region of 2,147,483,648 rows; .* 2,147,483,647"):
        builder.add(rows_of_one(1), 1)
    assert builder.num_rows == 2**31 - 1
