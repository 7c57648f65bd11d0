"""Sharing subpartitions and pieces of them out: everything once, in order, and evenly."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.read.chunk_plan import ChunkRead, Piece, chunks_within
from arrow_format.read.estimates import MIN_PIECE_BYTES, Shard, plan_shards

BYTES = st.lists(st.integers(0, 1_000), min_size=1, max_size=40)
FILES = st.lists(
    st.tuples(st.integers(1, 1 << 50), st.lists(st.integers(1, 1 << 20), max_size=9)), max_size=12
)


def chunks_of(rows):
    return [ChunkRead(0, number, 0, count, 0, 0) for number, count in enumerate(rows)]


@given(FILES, st.integers(1, 30))
def test_each_chunk_is_in_one_piece_and_these_are_in_order(files, of):
    found = []
    for number in range(of):
        shares = Piece(number, of).shares([size for size, _ in files])
        for order, ((_, rows), share) in enumerate(zip(files, shares, strict=True)):
            own = [*chunks_within(chunks_of(rows), share)]
            assert not own or (share[0] < 1 and share[1] > 0), "a file that is not opened"
            found += [(order, chunk.chunk) for chunk in own]
    every = [(order, i) for order, (_, rows) in enumerate(files) for i in range(len(rows))]
    assert found == every


@given(st.integers(1, 400), st.integers(1, 30), st.integers(1, 4))
def test_equal_chunks_are_cut_evenly(count, of, num_files):
    """Of each file as many, but for one at either end."""
    counts = []
    for number in range(of):
        shares = Piece(number, of).shares([1_000] * num_files)
        own = [len([*chunks_within(chunks_of([7] * count), share)]) for share in shares]
        counts.append(sum(own))
    assert sum(counts) == count * num_files
    assert max(counts) - min(counts) <= 2


@given(BYTES, st.integers(1, 400), st.booleans(), st.data())
def test_each_subpartition_and_each_piece_of_it_is_read_once(weights, most, cuts, draw):
    weights, most = [weight * MIN_PIECE_BYTES for weight in weights], most * MIN_PIECE_BYTES
    n = len(weights)
    wanted = sorted(draw.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    shards = plan_shards(np.array(weights), np.array(wanted), most, cuts=cuts)
    read = [
        (subpartition, shard.piece or Piece(0, 1))
        for shard in shards
        for first, end in shard.ranges
        for subpartition in range(first, end)
    ]
    expected = []
    for one in wanted:
        of = max(-(-weights[one] // most), 1) if cuts else 1
        expected += [(one, Piece(number, of)) for number in range(of)]
    assert read == expected
    for shard in shards:
        weight = sum(sum(weights[first:end]) for first, end in shard.ranges)
        assert weight <= most or sum(end - first for first, end in shard.ranges) == 1
        assert shard.piece is None or weight > most > 0


def test_a_large_subpartition_is_cut():
    weights, most = np.array([10, 100, 10, 10]) * MIN_PIECE_BYTES, 30 * MIN_PIECE_BYTES
    assert plan_shards(weights, np.arange(4), most, cuts=True) == [
        Shard(((0, 1),)),
        *(Shard(((1, 2),), Piece(number, 4)) for number in range(4)),
        Shard(((2, 4),)),
    ]
    assert plan_shards(weights, np.arange(4), most) == [
        Shard(((0, 1),)),
        Shard(((1, 2),)),
        Shard(((2, 4),)),
    ]
    (one,) = plan_shards(np.array([MIN_PIECE_BYTES]), np.arange(1), 1, cuts=True)
    assert one.piece is None, "a piece of a few bytes would be empty"
