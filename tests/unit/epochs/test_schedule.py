"""When a reader draws from which blocks: an order of all rows that can be cut anywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.epochs.lanes import deal, pieces_of, readers_lanes, row_order
from arrow_format.epochs.options import Epochs
from arrow_format.epochs.schedule import one_by_one, schedule

NUM_LANES = 8

lanes_of_chunks = st.builds(
    lambda rows, block_bytes: deal(
        pieces_of(np.zeros(len(rows), np.int64), np.array(rows, np.int64), 8 * np.array(rows)),
        NUM_LANES,
        block_bytes,
        0,
        0,
    ),
    st.lists(st.integers(1, 60), max_size=50),
    st.sampled_from([100, 400, 3_000]),
)


def drawn(plan, start, batch_size, most_rows=1 << 20):
    """The rows that come from one on, as (block, row), and how many of each round."""
    rows, sizes = [], []
    for one in plan.rounds(start, batch_size, most_rows):
        of = [
            (int(plan.block[at]), int(plan.skipped[at]) + row)
            for at, first, end in zip(one.blocks, one.first, one.end, strict=True)
            for row in range(first, end)
        ]
        rows += [of[i] for i in one.order]
        sizes.append(len(of))
    return rows, sizes


@given(lanes_of_chunks, st.integers(1, 4), st.data())
@settings(max_examples=60)
def test_all_rows_come_in_an_order_that_can_be_cut_anywhere(lanes, num_readers, data):
    taken = np.array([data.draw(st.integers(0, int(rows))) for rows in lanes.lane_rows], np.int64)
    done = lanes.taken_of_blocks(taken)
    for reader in range(num_readers):
        own = readers_lanes(lanes, reader, num_readers, 2_000)
        batch_size = data.draw(st.sampled_from([1, 300, 1_024]))
        plan = schedule(lanes, own, taken, 2_000, batch_size)
        whole, _ = drawn(plan, 0, 7)
        expected = [
            (block, row)
            for lane in own
            for block in range(lanes.block_edges[lane], lanes.block_edges[lane + 1])
            for row in range(done[block], lanes.num_rows[block])
        ]
        assert sorted(whole) == sorted(expected)
        for block in {block for block, _ in whole}:  # of each block in order, so that it can be cut
            of_block = [row for each, row in whole if each == block]
            assert of_block == sorted(of_block)
        start = data.draw(st.integers(0, len(whole)))
        counts = plan.taken(start)
        assert counts.sum() == start
        before = [block for block, _ in whole[:start]]
        assert counts.tolist() == [before.count(block) for block in plan.block]
        rest, sizes = drawn(plan, start, 5, most_rows=data.draw(st.integers(1, 40)))
        assert rest == whole[start:]
        assert all(size % 5 == 0 for size in sizes[:-1])


@given(lanes_of_chunks, st.sampled_from([500, 2_000, 10_000]))
def test_no_more_is_open_than_memory_has_room_for(lanes, open_bytes):
    own = readers_lanes(lanes, 0, 1, open_bytes)
    plan = schedule(lanes, own, np.zeros(NUM_LANES, np.int64), open_bytes, 1)
    sizes = lanes.num_bytes[plan.block]
    for at in plan.start:
        is_open = (plan.start <= at) & (at < plan.start + plan.length)
        assert sizes[is_open].sum() <= open_bytes or is_open.sum() == 1


def test_blocks_end_one_after_the_other_and_the_last_ones_together():
    rows = np.full(4_000, 100)
    lanes = deal(pieces_of(np.zeros_like(rows), rows, rows), 256, 5_000, 0, 0)
    plan = schedule(lanes, readers_lanes(lanes, 0, 1, 80_000), np.zeros(256, np.int64), 80_000, 1)
    ends = plan.start + plan.length
    assert len(plan.block) > 40
    assert len(np.unique(ends[:16])) == 16
    assert len(np.unique(ends[-10:])) == 1
    # Until the end rows come from many blocks.
    last = plan.num_rows - plan.taken(plan.total_rows - 2_000)
    assert np.count_nonzero(last) >= 10


def test_one_by_one_is_the_order_of_the_blocks():
    rows = np.array([5, 6, 7, 8])
    lanes = deal(pieces_of(np.zeros_like(rows), rows, rows), 4, 100, 0, 0)
    plan = one_by_one(lanes, np.arange(4), np.array([0, lanes.lane_rows[1], 1, 0]))
    whole, _ = drawn(plan, 0, 3)
    assert whole == [
        (block, row)
        for block, first in [(0, 0), (2, 1), (3, 0)]
        for row in range(first, lanes.num_rows[block])
    ]


@pytest.mark.parametrize(("kept_by", "most"), [("label", 1.06), ("id", 1.06)])
@pytest.mark.parametrize("num_readers", [1, 16])
def test_batches_of_twenty_times_the_memory_are_mixed(kept_by, most, num_readers):
    """OPERATORS 4, case e, by the orders alone: 100 labels, chunks of 512 KiB of one label each.

    From a source that is sorted by label. Chunks have fewer rows than they would, which says less
    about a batch, not more.
    """
    epochs = Epochs(1_024)
    num_chunks, rows = 20 * epochs.memory_bytes // (512 << 10), 400
    random = np.random.default_rng(5)
    label = np.sort(random.integers(0, 100, num_chunks))
    stratum = random.integers(0, 256, 100)[label] if kept_by == "label" else np.zeros_like(label)
    sizes = np.full(num_chunks, rows)
    pieces = pieces_of(stratum, sizes, np.full(num_chunks, 512 << 10))
    lanes = deal(pieces, 256, epochs.block_bytes, 3, 0)
    found = []
    for reader in range(0, num_readers, 5):
        own = readers_lanes(lanes, reader, num_readers, epochs.open_bytes)
        plan = schedule(lanes, own, np.zeros(256, np.int64), epochs.open_bytes, 1_024)
        blocks = {}
        for _, one in zip(range(12), plan.rounds(200_000, 1_024, 65_536), strict=False):
            labels = []
            for at, first, end in zip(one.blocks, one.first, one.end, strict=True):
                block = int(plan.block[at])
                if block not in blocks:
                    of_rows = np.repeat(label[pieces.chunk[lanes.block(block)]], rows)
                    blocks[block] = of_rows[row_order(len(of_rows), 3, 0, block)]
                labels.append(blocks[block][first:end])
            in_order = np.concatenate(labels)[one.order]
            found += [
                np.bincount(in_order[i : i + 1_024], minlength=100)
                for i in range(0, len(in_order) - 1_023, 1_024)
            ]
    shares = np.bincount(label, minlength=100) / num_chunks
    even = 1_024 * shares
    at_random = np.random.default_rng(1).multinomial(1_024, shares, 5_000)
    distance = np.abs(np.array(found) - even).sum(1).mean() / np.abs(at_random - even).sum(1).mean()
    assert distance < most
