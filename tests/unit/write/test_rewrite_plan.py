"""Which regions become one, and which subpartitions fit into memory together."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.format import regions
from arrow_format.format.chunk_table import ChunkTable
from arrow_format.format.codec_none import message_frames
from arrow_format.format.regions import RegionKind
from arrow_format.format.totals import arrow_bytes, subpartition_arrow_bytes
from arrow_format.write.rewrite_plan import (
    RegionRun,
    RegionSlice,
    plan_fan_in,
    plan_runs,
    rewrite_ranges,
)


def region_of(counts, first=0, raw_bytes=None, kind=RegionKind.UNICAST):
    """A region of one chunk with so many rows of each rank."""
    counts = np.asarray(counts)
    num_rows = int(counts.sum())
    ranks = np.flatnonzero(counts)
    raw = num_rows * 10 if raw_bytes is None else raw_bytes
    table = ChunkTable.of([(0, 0, message_frames(1, raw, 0))], num_rows)
    return regions.region_of(kind, first, ranks, counts[ranks], table, len(counts))


def broadcast(num_rows):
    return region_of([num_rows], kind=RegionKind.BROADCAST)


ONE = region_of([1, 1])


def run(*slices):
    return RegionRun(tuple(RegionSlice(*piece) for piece in slices))


def test_all_regions_of_all_inputs_become_one():
    assert plan_runs([[ONE, ONE], [ONE], [], [ONE]], 100) == [run((0, 0, 2), (1, 0, 1), (3, 0, 1))]
    assert plan_runs([[], []], 100) == []


def test_no_row_moves_across_a_region_for_everyone():
    sources = [[ONE, broadcast(1), ONE], [ONE, broadcast(1), broadcast(2)]]
    assert plan_runs(sources, 100) == [
        run((0, 0, 1)),
        run((0, 1, 2)),
        run((0, 2, 3), (1, 0, 1)),
        run((1, 1, 2)),
        run((1, 2, 3)),
    ]


def test_more_regions_than_the_fan_in_make_even_runs():
    runs = plan_runs([[ONE] * 7, [ONE] * 3], 4)
    assert [planned.num_regions for planned in runs] == [4, 4, 2]
    assert runs[1] == run((0, 4, 7), (1, 0, 1))
    assert [planned.num_regions for planned in plan_runs([[ONE] * 9], 4)] == [3, 3, 3]


def test_a_run_has_rows_for_one_region():
    large = region_of([1 << 30, 0])
    assert [planned.num_regions for planned in plan_runs([[large, ONE, large, ONE, ONE]], 9)] == [
        2,
        3,
    ]


def ranges_of(regions, n, first=0, **how):
    how = {"max_bytes": 100, "row_overhead_bytes": 0} | how
    pairs = [(region, int(region.chunks.raw_length.sum())) for region in regions]
    return [(piece.first, piece.end) for piece in rewrite_ranges(pairs, n, first, **how)]


def test_ranges_fit_into_memory_and_ascend_by_rank():
    region = region_of([4, 4, 4, 0, 4, 4])
    assert ranges_of([region], 6) == [(0, 2), (2, 5), (5, 6)]
    assert ranges_of([region], 6, row_overhead_bytes=15) == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]
    assert ranges_of([region, region], 6) == [(0, 1), (1, 2), (2, 4), (4, 5), (5, 6)]


def test_ranges_of_a_rotated_region_never_go_round():
    region = region_of([1] * 6, first=4)
    assert ranges_of([region], 6, first=4) == [(4, 6), (0, 4)]


def test_a_subpartition_may_be_too_large_alone():
    assert ranges_of([region_of([1, 50, 1])], 3) == [(0, 1), (1, 2), (2, 3)]


def test_ranges_without_rows_are_left_out():
    assert ranges_of([region_of([0, 0, 20, 0, 0])], 5, max_bytes=10) == [(2, 3)]


@given(
    st.lists(st.lists(st.integers(0, 9), min_size=8, max_size=8).filter(any), min_size=1),
    st.integers(0, 7),
    st.integers(1, 500),
)
def test_every_row_is_in_one_range(counts, first, max_bytes):
    regions = [region_of(rows, i % 8) for i, rows in enumerate(counts)]
    pairs = [(region, int(region.chunks.raw_length.sum())) for region in regions]
    ranges = rewrite_ranges(pairs, 8, first, max_bytes=max_bytes, row_overhead_bytes=3)
    rows = np.zeros(8, np.int64)
    for region in regions:
        ids, more = region.subpartition_rows(8)
        rows[ids] += more
    covered = [i for piece in ranges for i in range(piece.first, piece.end)]
    assert len(set(covered)) == len(covered)
    assert set(np.flatnonzero(rows)) <= set(covered)
    ranks = [(piece.first - first) % 8 for piece in ranges]
    assert ranks == sorted(ranks)
    for piece in ranges:
        assert piece.num_bytes <= max_bytes or piece.end - piece.first == 1


def test_what_regions_take_in_arrow_sums_up():
    regions = [region_of([1, 2], raw_bytes=size) for size in (10, 1, 20)]
    assert sum(arrow_bytes(regions, 1_001)) == 1_001
    assert arrow_bytes(regions, 31) == [10, 1, 20]
    assert arrow_bytes([], 0) == []
    pairs = list(zip(regions, arrow_bytes(regions, 3_100), strict=True))
    sizes = subpartition_arrow_bytes(pairs, 2)
    assert abs(sizes.sum() - 3_100) < 400, "whole bytes of a chunk before it is scaled"
    assert sizes[1] > sizes[0]


PAIRS = [(region_of([50, 1]), 510)] * 99


def fan_in_of(max_bytes, pairs=PAIRS, max_fan_in=64, is_sorted=False):
    return plan_fan_in(pairs, 2, max_bytes=max_bytes, max_fan_in=max_fan_in, is_sorted=is_sorted)


def test_regions_are_joined_as_far_as_a_chunk_of_each_fits_into_memory():
    assert fan_in_of(510 * 20) == 20
    assert fan_in_of(510 * 80) == 64, "as the caller says"
    assert fan_in_of(510) == 8, "or there would be no end to it"
    assert fan_in_of(510, max_fan_in=3) == 3
    assert fan_in_of(10, pairs=[]) == 64


def test_sorted_subpartitions_that_are_too_large_take_twice_the_memory():
    assert fan_in_of(510 * 100, is_sorted=True) == 64, "no subpartition is too large"
    assert fan_in_of(510 * 20, is_sorted=True) == 10, "two chunks of 510 bytes for each"
    assert fan_in_of(10, is_sorted=True) == 2, "merging takes two"
