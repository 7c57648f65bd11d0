"""The read planner against models that walk row by row."""

from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.errors import OptionError
from arrow_format.format.chunk_table import ChunkPlaces
from arrow_format.format.codec_none import message_frames
from arrow_format.format.codec_zstd import ZstdCodec
from arrow_format.format.regions import PrefixSums, Region, RegionKind
from arrow_format.read.chunk_plan import (
    ChunkRead,
    bytes_to_read,
    check_subpartitions,
    chunks_of_ranges,
    extent_of,
    group_adjacent,
    merge_reads,
    plan_chunks,
    with_places,
)
from arrow_format.write.clustering import cluster, cut_chunks
from arrow_format.write.region_builder import RegionBuilder


def make_region(ids, n, first, target_rows, start):
    """A region of rows of 100 bytes, its chunks back to back from byte `start`."""
    found = cluster(np.array(ids, np.int32), n, first)
    firsts = cut_chunks(found, n, len(ids) * 100, target_rows * 100)
    lengths = np.diff(np.append(firsts, len(ids))) * 100
    offsets = start + np.concatenate([[0], np.cumsum((lengths + 7) // 8 * 8)[:-1]]).astype(np.int64)
    builder = RegionBuilder(RegionKind.UNICAST, n)
    builder.add(found, len(ids))
    for row, offset, length in zip(
        firsts.tolist(), offsets.tolist(), lengths.tolist(), strict=True
    ):
        builder.add_chunk((row, offset, message_frames(1, length, 0)))
    return builder.build()


@st.composite
def files(draw):
    n = draw(st.integers(1, 12))
    ids = st.lists(st.integers(0, n - 1), min_size=1, max_size=30)
    regions, start = [], 8
    for rows in draw(st.lists(ids, min_size=1, max_size=3)):
        made = make_region(rows, n, draw(st.integers(0, n - 1)), draw(st.integers(1, 9)), start)
        regions.append(replace(made, number=len(regions)))
        start = int(regions[-1].chunks.offset[-1] + regions[-1].chunks.length[-1] + 7) // 8 * 8
    first = draw(st.integers(0, n - 1))
    return n, regions, first, draw(st.integers(first + 1, n))


def rows_by_walking(region, n, first, end):
    """Rows of the region in `[first, end)`, from its definition."""
    ids = region.subpartitions_of_rows(0, region.num_rows, n).tolist()
    return [row for row, subpartition in enumerate(ids) if first <= subpartition < end]


@given(files())
def test_row_extents_are_one_run_or_two_at_the_ends(case):
    n, regions, first, end = case
    for region in regions:
        extents = region.row_extents(first, end, n)
        assert [row for lo, hi in extents for row in range(lo, hi)] == rows_by_walking(
            region, n, first, end
        )
        assert len(extents) <= 2
        if len(extents) == 2:
            assert first < region.first_subpartition < end
            assert extents[0][0] == 0
            assert extents[1][1] == region.num_rows


@given(files())
def test_subpartitions_of_any_rows(case):
    n, regions, *_ = case
    for region in regions:
        ids, counts = region.subpartition_rows(n)
        whole = [s for s, count in zip(ids, counts, strict=True) for _ in range(count)]
        for lo in range(region.num_rows):
            for hi in range(lo + 1, region.num_rows + 1):
                assert region.subpartitions_of_rows(lo, hi, n).tolist() == whole[lo:hi]


@given(files())
def test_a_plan_names_every_wanted_row_once(case):
    n, regions, first, end = case
    planned = list(plan_chunks(regions, first, end, n))
    found = []
    for read in planned:
        region = regions[read.region]
        bounds = region.chunks.row_edges
        assert read.offset == region.chunks.offset[read.chunk]
        assert read.length == region.chunks.length[read.chunk]
        assert 0 <= read.first_row < read.end_row <= np.diff(bounds)[read.chunk]
        found += [
            (read.region, int(bounds[read.chunk]) + row)
            for row in range(read.first_row, read.end_row)
        ]
    assert found == [
        (number, row)
        for number, region in enumerate(regions)
        for row in rows_by_walking(region, n, first, end)
    ]
    assert [read.offset for read in planned] == sorted(read.offset for read in planned)


def test_a_broadcast_region_is_wanted_whole_by_every_range():
    table = make_region([0] * 9, 1, 0, 4, 8).chunks
    none = PrefixSums(np.empty(0, np.uint8))
    region = Region(RegionKind.BROADCAST, 9, 0, None, none, table)
    for first, end in ((0, 1), (4, 5), (0, 5)):
        assert region.row_extents(first, end, 5) == ((0, 9),)
        assert sum(r.end_row - r.first_row for r in plan_chunks([region], first, end, 5)) == 9


def placed(lengths, wanted):
    """Where some frames of a chunk are, by the lengths of all."""
    numbers = sorted(wanted)
    offsets = [sum(lengths[:i]) for i in numbers]
    sums, raw = ([value] * len(numbers) for value in (7, 9))
    return ChunkPlaces(
        None,
        0,
        1,
        ZstdCodec.encoding,
        numbers,
        offsets,
        [lengths[i] for i in numbers],
        sums,
        raw,
        [],
    )


@st.composite
def cut_chunks_of(draw):
    """Chunks of a file, of some of which a few frames are wanted, with the lengths of all."""
    offset, chunks = 8, []
    lengths = st.lists(st.integers(1, 40), min_size=1, max_size=6)
    for number, frames in enumerate(draw(st.lists(lengths, min_size=1, max_size=12))):
        offset += draw(st.integers(0, 60))
        wanted = draw(st.sets(st.integers(0, len(frames) - 1)))
        chunk = ChunkRead(0, number, 0, 1, offset, sum(frames))
        chunks.append((with_places(chunk, placed(frames, wanted), draw(GAPS)), frames, wanted))
        offset += sum(frames)
    return chunks


GAPS = st.integers(0, 90)


@given(cut_chunks_of(), GAPS, st.integers(1, 300))
def test_merged_reads_have_what_is_wanted_and_keep_their_bounds(cases, max_gap, most):
    planned = [chunk for chunk, *_ in cases]
    reads = list(merge_reads(planned, max_gap_bytes=max_gap, max_read_bytes=most))
    assert [chunk for read in reads for chunk in read.chunks] == planned
    for read in reads:
        num_bytes = sum(length for _, length in read.ranges)
        assert read.num_bytes == num_bytes
        assert num_bytes <= most or sum(bool(chunk.ranges) for chunk in read.chunks) == 1
        for one, two in pairwise(read.ranges):
            assert two[0] - sum(one) > max_gap
        bytes_read = {byte for at, length in read.ranges for byte in range(at, at + length)}
        wanted = [[*range(at, at + length)] for chunk in read.chunks for at, length in chunk.ranges]
        assert bytes_read >= {byte for piece in wanted for byte in piece}
        # What is read besides lies between, and is little.
        ends = {end for start, *_, end in ([piece[0], *piece] for piece in wanted)}
        for start, length in read.ranges:
            assert start + length - 1 in ends
    # Neighbours stand apart because joining them would break a bound.
    for one, two in pairwise(reads):
        if one.ranges and two.ranges:
            gap = two.ranges[0][0] - sum(one.ranges[-1])
            more, _ = bytes_to_read(two.chunks[0], sum(one.ranges[-1]), max_gap)
            assert gap > max_gap or one.num_bytes + more > most


@given(cut_chunks_of(), GAPS)
def test_the_frames_of_a_chunk_are_read_alone_where_that_saves_a_gap(cases, max_gap):
    for chunk, frames, wanted in cases:
        whole = chunk._replace(pieces=None, places=None)
        edges = [chunk.offset, *(chunk.offset + end for end in accumulate(frames))]
        places = placed(frames, wanted)
        found = with_places(whole, places, max_gap)
        of_frames = {byte for i in wanted for byte in range(edges[i], edges[i + 1])}
        of_pieces = [byte for at, length in found.ranges for byte in range(at, at + length)]
        if found.pieces is None:
            assert found == whole._replace(places=places)
            ends = sorted([edges[0] - 1, *of_frames, edges[-1]])
            assert all(after - before - 1 <= max_gap for before, after in pairwise(ends))
            assert of_pieces == [*range(edges[0], edges[-1])]
        else:
            before = [sum(frames[j] for j in sorted(wanted) if j < i) for i in sorted(wanted)]
            assert found.places == places._replace(offset=before)
            assert of_pieces == sorted(of_frames)
            assert all(two[0] > sum(one) for one, two in pairwise(found.ranges))
            assert found.num_bytes == len(of_frames)


@pytest.mark.parametrize(
    ("max_gap", "most", "reads"),
    [(0, 1_000, 3), (8, 1_000, 2), (92, 1_000, 1), (91, 1_000, 2), (92, 399, 2), (92, 1, 4)],
)
def test_where_reads_part(max_gap, most, reads):
    chunks = [ChunkRead(0, i, 0, 1, at, 92) for i, at in enumerate([8, 100, 200, 384])]
    found = list(merge_reads(chunks, max_gap_bytes=max_gap, max_read_bytes=most))
    assert len(found) == reads


def test_nothing_wanted_reads_nothing():
    assert list(merge_reads([], max_gap_bytes=9, max_read_bytes=9)) == []
    region = make_region([0, 4, 4], 5, 0, 1, 8)
    assert list(plan_chunks([region], 1, 4, 5)) == []


@given(files(), st.data())
def test_several_ranges_are_the_chunks_of_each(case, data):
    n, regions, *_ = case
    edges = sorted(data.draw(st.sets(st.integers(0, n), min_size=2)))
    ranges = [*zip(edges[::2], edges[1::2], strict=False)]
    expected: dict[tuple[int, int], list[int]] = {}
    for first, end in ranges:
        for chunk in plan_chunks(regions, first, end, n):
            rows = expected.setdefault((chunk.region, chunk.chunk), [])
            rows += [chunk.first_row, chunk.end_row]
    found = list(chunks_of_ranges(regions, ranges, n))
    assert {(one.region, one.chunk): (one.first_row, one.end_row) for one in found} == {
        key: (min(rows), max(rows)) for key, rows in expected.items()
    }
    assert [chunk.offset for chunk in found] == sorted({chunk.offset for chunk in found})


@pytest.mark.parametrize("wanted", [range(-1, 4), range(5), range(4, -1, -1), range(10**12)])
def test_ranges_that_leave_the_shuffle_are_refused(wanted):
    with pytest.raises(OptionError, match=r"subpartition (-1|4|999999999999) is out of range"):
        check_subpartitions(wanted, 4)
    assert check_subpartitions(range(4), 4) == [0, 1, 2, 3]


def naive_groups(weights, most, wanted):
    groups = []
    for one in wanted:
        if groups and groups[-1][1] == one:
            first, end = groups[-1]
            if sum(weights[first : end + 1]) <= most:
                groups[-1] = (first, end + 1)
                continue
        groups.append((one, one + 1))
    return groups


@given(
    st.lists(st.integers(0, 5) | st.integers(0, 100), max_size=40),
    st.integers(0, 120),
    st.data(),
)
def test_group_adjacent_against_a_naive_model(weights, most, data):
    array = np.array(weights, np.int64)
    subset = st.sets(st.integers(0, len(weights) - 1)) if weights else st.just(set())
    wanted = sorted(data.draw(subset))
    assert group_adjacent(array, most, wanted) == naive_groups(weights, most, wanted)
    assert group_adjacent(array, most) == naive_groups(weights, most, range(len(weights)))
    among = extent_of(wanted, len(weights))
    within = array[among.start : among.stop]
    found = group_adjacent(within, most, wanted, origin=among.start)
    assert found == naive_groups(weights, most, wanted)
    found = group_adjacent(within, most, origin=among.start)
    assert found == naive_groups(weights, most, among)
    assert extent_of(None, 7) == range(7)
