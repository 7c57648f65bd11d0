"""When a reader draws from which blocks: an order of all rows that can be cut anywhere."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format.epochs.lanes import deal, pieces_of, readers_lanes
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
        own = readers_lanes(NUM_LANES, reader, num_readers)
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
    own = readers_lanes(NUM_LANES, 0, 1)
    plan = schedule(lanes, own, np.zeros(NUM_LANES, np.int64), open_bytes, 1)
    sizes = lanes.num_bytes[plan.block]
    for at in plan.start:
        is_open = (plan.start <= at) & (at < plan.start + plan.length)
        assert sizes[is_open].sum() <= open_bytes or is_open.sum() == 1


def test_blocks_end_one_after_the_other_and_the_last_ones_together():
    rows = np.full(4_000, 100)
    lanes = deal(pieces_of(np.zeros_like(rows), rows, rows), 256, 5_000, 0, 0)
    plan = schedule(lanes, readers_lanes(256, 0, 1), np.zeros(256, np.int64), 80_000, 1)
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
