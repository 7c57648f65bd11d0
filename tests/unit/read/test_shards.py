"""Sharing subpartitions and regions out: everything once, in order, and evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.read.estimates import Shard, cut_regions, plan_shards

BYTES = st.lists(st.integers(0, 1_000), min_size=1, max_size=40)


@given(BYTES, st.integers(1, 50))
def test_regions_are_cut_into_adjacent_parts_that_hold_each_once(region_bytes, parts):
    found = cut_regions(np.array(region_bytes), parts)
    assert [i for part in found for i in part] == list(range(len(region_bytes)))
    assert all(len(part) for part in found)
    assert len(found) <= parts


@given(st.integers(1, 60), st.integers(1, 30))
def test_equal_regions_are_cut_evenly(count, parts):
    sizes = [len(part) for part in cut_regions(np.full(count, 77), parts)]
    assert len(sizes) == min(count, parts)
    assert max(sizes) - min(sizes) <= 1


@given(BYTES, st.integers(1, 20))
def test_no_part_is_much_more_than_its_share(region_bytes, parts):
    sizes = np.maximum(region_bytes, 1)
    parts = min(parts, len(sizes))
    for part in cut_regions(np.array(region_bytes), parts):
        assert sizes[part.start : part.stop].sum() <= sizes.sum() / parts + sizes.max()


@given(BYTES, BYTES, st.integers(1, 400), st.data())
def test_each_subpartition_and_each_region_of_it_is_read_once(weights, region_bytes, most, draw):
    n = len(weights)
    wanted = sorted(draw.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    shards = plan_shards(np.array(weights), np.array(wanted), most, np.array(region_bytes))
    read = [
        (subpartition, region)
        for shard in shards
        for first, end in shard.ranges
        for subpartition in range(first, end)
        for region in shard.regions or range(len(region_bytes))
    ]
    assert read == [(s, region) for s in wanted for region in range(len(region_bytes))]
    for shard in shards:
        weight = sum(sum(weights[first:end]) for first, end in shard.ranges)
        assert weight <= most or sum(end - first for first, end in shard.ranges) == 1
        assert shard.regions is None or weight > most > 0


def test_a_large_subpartition_is_split_by_regions():
    weights, regions = np.array([10, 100, 10, 10]), np.full(8, 50)
    assert plan_shards(weights, np.arange(4), 30, regions) == [
        Shard(((0, 1),)),
        Shard(((1, 2),), range(2)),
        Shard(((1, 2),), range(2, 4)),
        Shard(((1, 2),), range(4, 6)),
        Shard(((1, 2),), range(6, 8)),
        Shard(((2, 4),)),
    ]
    assert plan_shards(weights, np.arange(4), 30) == [
        Shard(((0, 1),)),
        Shard(((1, 2),)),
        Shard(((2, 4),)),
    ]


@pytest.mark.parametrize("regions", [np.zeros(0, np.int64), np.zeros(1, np.int64)])
def test_what_has_no_regions_to_split_by(regions):
    assert plan_shards(np.array([100]), np.arange(1), 30, regions) == [Shard(((0, 1),))]
