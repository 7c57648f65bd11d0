"""`cluster` is a stable sort by rank; `cut_chunks` keeps its promises about boundaries."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.write.clustering import (
    SPLIT_CHUNK_BYTES,
    Clustering,
    cluster,
    cut_chunks,
    in_runs,
    region_chunk_bytes,
)


@st.composite
def assignments(draw):
    n = draw(st.sampled_from([1, 2, 3, 7, 200, 65_536, 65_537, 200_000, 1_000_000]))
    ids = st.integers(0, n - 1) | st.sampled_from([0, n - 1, n // 2])
    return n, draw(st.lists(ids, max_size=60)), draw(st.integers(0, n - 1))


def check_cluster(ids, n, first):
    clustering = cluster(np.array(ids, np.int32), n, first)
    ranked = sorted(range(len(ids)), key=lambda row: (ids[row] - first) % n)
    permutation = (
        range(len(ids)) if clustering.permutation is None else clustering.permutation.tolist()
    )
    assert list(permutation) == ranked

    ranks = [(ids[row] - first) % n for row in ranked]
    present = sorted(set(ranks))
    assert clustering.first_subpartition == first
    assert (list(range(n)) if clustering.ranks is None else clustering.ranks.tolist()) == present
    assert clustering.row_offsets.tolist() == [*(ranks.index(rank) for rank in present), len(ids)]
    assert clustering.row_offsets.dtype == np.int32
    assert clustering.ranks is None or clustering.ranks.dtype == np.int32


@given(assignments())
def test_cluster_is_a_stable_sort_by_rank(case):
    n, ids, first = case
    check_cluster(ids, n, first)


@pytest.mark.slow
@pytest.mark.parametrize("n", [65_536, 65_537, 1_000_000])
def test_many_rows_on_both_sides_of_16_bits(n):
    ids = np.random.default_rng(n).integers(0, n, 5_000).tolist()
    # The same low half with different high halves is what a single radix pass mixes up.
    ids += [5, (5 + 65_536) % n, 5, (5 + 2 * 65_536) % n] * 10
    check_cluster(ids, n, 0)
    check_cluster(ids, n, n - 3)


@pytest.mark.parametrize(
    ("n", "rows"),
    [
        # Rank and row number in 32 bits exactly, and in one more: each way of sorting.
        (20_000, 1 << 17),
        (20_000, (1 << 17) + 1),
        (1 << 16, 1 << 16),
        (1 << 16, (1 << 16) + 1),
        (1_000_000, 1 << 12),
        (1_000_000, (1 << 12) + 1),
    ],
)
def test_many_rows_on_both_sides_of_32_bits(n, rows):
    ids = np.random.default_rng(rows).integers(0, n, rows).astype(np.int32)
    clustering = cluster(ids, n, n // 3)
    ranks = (ids.astype(np.int64) - n // 3) % n
    expected = np.argsort(ranks, kind="stable")
    assert np.array_equal(clustering.permutation, expected)
    assert np.array_equal(np.diff(clustering.row_offsets), np.unique(ranks, return_counts=True)[1])


@pytest.mark.parametrize("first", [0, 1])
def test_no_rows(first):
    clustering = cluster(np.empty(0, np.int32), 3, first)
    assert clustering.row_offsets.tolist() == [0]
    assert clustering.ranks is not None
    assert len(clustering.ranks) == 0
    assert cut_chunks(clustering, 3, 0, 100).tolist() == []


def test_rows_in_order_need_no_permutation():
    assert cluster(np.array([0, 0, 1, 4], np.int32), 5).permutation is None
    assert cluster(np.array([3, 4, 0, 0], np.int32), 5, 3).permutation is None
    assert cluster(np.array([1, 0], np.int32), 5).permutation is not None


def test_the_callers_ids_are_left_alone():
    ids = np.array([4, 0, 2, 2, 1], np.int32)
    cluster(ids, 5, 3)
    assert ids.tolist() == [4, 0, 2, 2, 1]


def test_all_subpartitions_present_are_not_listed():
    assert cluster(np.array([2, 0, 1, 0], np.int32), 3).ranks is None
    assert cluster(np.array([2, 0, 0], np.int32), 3).ranks.tolist() == [0, 2]


@st.composite
def regions(draw):
    """A clustering made from row counts, so that it may have millions of rows."""
    n = draw(st.sampled_from([1, 2, 5, 40, 70_000]))
    most = min(n, 30)
    present = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=most)))
    counts = draw(
        st.lists(
            st.integers(1, 5) | st.integers(1, 3_000) | st.integers(100_000, 3_000_000),
            min_size=len(present),
            max_size=len(present),
        )
    )
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    ranks = None if len(present) == n else np.array(present, np.int32)
    row_bytes = draw(st.sampled_from([0, 1, 7, 100, 5_000, 3 << 20]))
    row_bytes = min(row_bytes, (1 << 30) // int(offsets[-1]))  # regions end at 1 GiB
    chunk_bytes = draw(st.integers(1, 4 << 20))
    clustering = Clustering(draw(st.integers(0, n - 1)), None, ranks, offsets)
    return n, clustering, int(offsets[-1]) * row_bytes, chunk_bytes


@given(regions())
def test_laws_of_cut_chunks(case):
    n, clustering, num_bytes, chunk_bytes = case
    offsets = clustering.row_offsets.astype(np.int64)
    num_rows = int(offsets[-1])
    row_bytes = max(num_bytes / num_rows, 1 / 64)
    split_rows = max(int(max(SPLIT_CHUNK_BYTES, chunk_bytes) / row_bytes), 1)
    target_rows = max(int(np.ceil(chunk_bytes / row_bytes)), 1)

    firsts = cut_chunks(clustering, n, num_bytes, chunk_bytes)
    ends = np.append(firsts[1:], num_rows)

    # Every row is in exactly one chunk and no chunk is empty.
    assert firsts[0] == 0
    assert (np.diff(np.append(firsts, num_rows)) > 0).all()

    sizes = np.diff(offsets)
    large = sizes > split_rows
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        inside = int(np.searchsorted(offsets, first, side="right")) - 1
        last = int(np.searchsorted(offsets, end, side="left")) - 1
        if large[inside : last + 1].any():
            # A subpartition that is split shares no chunk, and its pieces are bounded and even.
            assert inside == last
            assert end - first <= split_rows
            pieces = -(-int(sizes[inside]) // split_rows)
            assert abs((end - first) - sizes[inside] / pieces) <= 1
        else:
            # Otherwise chunks begin and end at boundaries, past the target by less than one
            # subpartition: without the last one it would be below the target.
            assert first in offsets
            assert end in offsets
            assert int(offsets[last]) - first < target_rows

    # A chunk below the target ends where it must: at a wall or at the end.
    wrap = n - clustering.first_subpartition
    at = wrap if clustering.ranks is None else int(np.searchsorted(clustering.ranks, wrap))
    wrap_row = int(offsets[at]) if clustering.first_subpartition and at < len(offsets) else 0
    walls = {num_rows, wrap_row, *offsets[:-1][large].tolist(), *offsets[1:][large].tolist()}
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        assert not first < wrap_row < end
        alone = large[int(np.searchsorted(offsets, first, side="right")) - 1]
        assert alone or end - first >= target_rows or end in walls


def test_a_chunk_closes_at_the_first_boundary_past_the_target():
    clustering = cluster(np.repeat(np.arange(10, dtype=np.int32), 10), 10)
    assert cut_chunks(clustering, 10, 1_000, 300).tolist() == [0, 30, 60, 90]
    assert cut_chunks(clustering, 10, 1_000, 301).tolist() == [0, 40, 80]
    assert cut_chunks(clustering, 10, 1_000, 1).tolist() == list(range(0, 100, 10))
    assert cut_chunks(clustering, 10, 1_000, 1_000).tolist() == [0]


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [(0, 256), (4_096, 256), (4_128, 258), (8_000, 500), (16_384, 1_024), (1 << 30, 1_024)],
)
def test_chunks_of_a_small_region_are_smaller(num_bytes, expected):
    assert region_chunk_bytes(num_bytes, 1_024) == expected


def test_a_chunk_closes_at_a_byte_or_more():
    assert region_chunk_bytes(0, 1) == 1


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 20))
def test_runs_hold_all_chunks_in_order_and_are_as_long_as_they_may_be(lengths, max_rows):
    edges = np.cumsum([0, *lengths]).tolist()
    extents = [*itertools.pairwise(edges)]
    runs = [*in_runs(extents, max_rows)]
    assert [extent for run in runs for extent in run] == extents
    assert all(len(run) == 1 or run[-1][1] - run[0][0] <= max_rows for run in runs)
    for run, after in itertools.pairwise(runs):
        assert after[0][1] - run[0][0] > max_rows
