"""Chunks dealt to lanes: each once, alike in every stretch of the epoch, evenly for any readers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.epochs.lanes import deal, pieces_of, readers_lanes, row_order

chunks = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40)), max_size=60)


def dealt(given, lanes=16, block_bytes=200, cut=1, seed=0, epoch=0):
    stratum, rows = np.array(given, np.int64).reshape(-1, 2).T
    pieces = pieces_of(stratum, rows, 8 * rows, cut)
    return pieces, deal(pieces, lanes, block_bytes, seed, epoch)


@given(chunks, st.integers(1, 40), st.integers(1, 900), st.integers(1, 5))
def test_each_row_is_in_one_block(given, lanes, block_bytes, cut):
    pieces, found = dealt(given, lanes, block_bytes, cut)
    assert found.num_lanes == lanes
    assert sorted(found.pieces.tolist()) == list(range(len(pieces)))
    of_blocks = [pieces.num_rows[found.block(i)].sum() for i in range(len(found.num_rows))]
    assert of_blocks == found.num_rows.tolist()
    assert all(of_blocks)
    assert found.lane_rows.sum() == sum(rows for _, rows in given)
    rows = [
        (int(chunk), int(first) + i)
        for chunk, first, count in zip(pieces.chunk, pieces.first_row, pieces.num_rows, strict=True)
        for i in range(count)
    ]
    assert sorted(rows) == [(c, i) for c, (_, count) in enumerate(given) for i in range(count)]


@given(chunks, st.data())
def test_rows_taken_of_lanes_are_those_of_blocks(given, data):
    _, found = dealt(given)
    taken = np.array([data.draw(st.integers(0, int(rows))) for rows in found.lane_rows], np.int64)
    of_blocks = found.taken_of_blocks(taken)
    assert found.taken_of_lanes(of_blocks).tolist() == taken.tolist()
    for lane in range(found.num_lanes):
        own = slice(found.block_edges[lane], found.block_edges[lane + 1])
        begun = np.flatnonzero(of_blocks[own] < found.num_rows[own])
        assert not of_blocks[own][begun[1:]].any(), "a block begins where the one before has ended"


@given(chunks, st.integers(0, 3), st.integers(0, 3))
def test_seed_and_epoch_decide(given, seed, epoch):
    _, one = dealt(given, seed=seed, epoch=epoch)
    _, same = dealt(given, seed=seed, epoch=epoch)
    assert one.pieces.tolist() == same.pieces.tolist()
    assert one.piece_edges.tolist() == same.piece_edges.tolist()


def test_orders_differ():
    given = [(0, 10)] * 400
    orders = {
        tuple(dealt(given, seed=s, epoch=e)[1].pieces.tolist()) for s in (0, 1) for e in (0, 1)
    }
    assert len(orders) == 4
    blocks = {
        tuple(row_order(50, s, e, b).tolist()) for s in (0, 1) for e in (0, 1) for b in (0, 1)
    }
    assert len(blocks) == 8
    assert sorted(row_order(50, 3, 4, 5).tolist()) == list(range(50))


@pytest.mark.parametrize("num_readers", [1, 2, 3, 5, 8, 16])
def test_readers_get_equally_many_rows(num_readers):
    rows = np.random.default_rng(1).integers(1_000, 5_000, 6_000)
    _, found = dealt(list(zip(np.zeros_like(rows), rows, strict=True)), 256, 1 << 20)
    each = [found.lane_rows[i::num_readers].sum() for i in range(num_readers)]
    assert (max(each) - min(each)) / np.mean(each) < 0.02


@pytest.mark.parametrize("num_readers", [1, 4, 16])
@pytest.mark.parametrize("by", ["stratum", "arrival"])
def test_what_is_open_has_some_of_each_part(num_readers, by):
    """Of 100 labels, which go with the strata or with arrival, about equally many chunks."""
    count = 12_800
    label = np.repeat(np.arange(100), count // 100)
    stratum = label if by == "stratum" else np.zeros_like(label)
    if by == "stratum":  # arrived in any order
        order = np.random.default_rng(2).permutation(count)
        label, stratum = label[order], stratum[order]
    pieces = pieces_of(stratum, np.full(count, 1_000), np.full(count, 1_000))
    found = deal(pieces, 256, 25_000, 7, 3)
    for reader in range(num_readers):
        own = readers_lanes(found, reader, num_readers, 16 * 25_000)
        assert sorted(own.tolist()) == list(range(reader, 256, num_readers))
        for first in range(0, len(own) - 15, 5):  # 16 blocks of 25 chunks, 4 of each label
            blocks = [found.block(found.block_edges[lane]) for lane in own[first : first + 16]]
            counts = np.bincount(label[pieces.chunk[np.concatenate(blocks)]], minlength=100)
            assert counts.std() < 1.3, "at random it is 2"
            assert counts.max() < 4 * counts.mean()
