"""When a reader draws from which blocks of its lanes, and so in which order rows come; pure.

A reader has some blocks open at a time, as many as its memory has room for, and opens the next one
where one ends, of the lane whose turn it is. Each grain, which is a row or a few, has a time: those
of a block are spread evenly over the time that it is open, and rows come by their times. So the
order does not depend on how it is read, and how many rows a reader has taken says which.

At first blocks are open for times that differ, so that they do not all end at once; at the end the
last ones end together, so that the last rows are mixed as well as others.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arrow_format.arrays.selection import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.epochs.lanes import Lanes
    from arrow_format.model import Int64Array

TICKS = 1 << 4
"""Ticks of a row of a block that is open for an average time. What comes at one tick comes in the
order of the blocks."""

GRAINS_IN_A_BATCH = 128
"""Grains, of which a batch has so many at least: rows of a block that come together."""

MOST_IN_A_GRAIN = 8
"""Rows: more are put in order hardly faster."""

FEW_TICKS = 1 << 16
"""Of which NumPy sorts rows by their digits, in a sixth of the time."""

ROUND_ROWS = 1 << 8
"""Rows of each block that are drawn together: as few as pay for it."""

FEW_BLOCKS = 128
"""Of fewer open blocks, more rows of each are drawn together."""


class Round(NamedTuple):
    """Rows that are drawn together; arrays of the shape ``(num_blocks,)`` but the last."""

    blocks: Int64Array
    """Positions in the schedule."""
    first: Int64Array
    """First row of each, counted from the first that is to come of it."""
    end: Int64Array
    """Row of each behind the last one."""
    order: Int64Array
    """Positions among these rows, one block's behind the other's; shape ``(num_rows,)``."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The blocks of one reader, in the order in which it opens them.

    All arrays have the shape ``(num_blocks,)``.
    """

    block: Int64Array
    """Numbers of the blocks among all."""
    skipped: Int64Array
    """First rows of each that are not to come: they were taken before the schedule begins."""
    num_rows: Int64Array
    """Rows of each that are to come; 1 at least."""
    start: Int64Array
    """When it is opened, in ticks; ascending."""
    length: Int64Array
    """For how many ticks it is open."""
    grain: int = 1
    """Rows of a block that come together; its last ones may be fewer."""

    @property
    def num_grains(self) -> Int64Array:
        """Grains of each."""
        return -(-self.num_rows // self.grain)

    @property
    def total_rows(self) -> int:
        """Rows of all blocks."""
        return int(self.num_rows.sum())

    def among(self, of: slice) -> Schedule:
        """Return some adjacent blocks of it."""
        block, skipped, num_rows = self.block[of], self.skipped[of], self.num_rows[of]
        return Schedule(block, skipped, num_rows, self.start[of], self.length[of], self.grain)

    def until(self, tick: int) -> Int64Array:
        """Return how many rows of each block come at or before a tick."""
        passed = np.clip(tick + 1 - self.start, 0, self.length)
        # Of grain i the tick is start + (2 i + 1) length // (2 num_grains).
        count = -((self.length - 2 * passed * self.num_grains) // (2 * self.length))
        return np.clip(self.grain * count, 0, self.num_rows)

    def taken(self, num_rows: int) -> Int64Array:
        """Return how many rows of each block are among the first ``num_rows`` that come."""
        return self._cut(num_rows, -1, int((self.start + self.length).max(initial=0)))[0]

    def _cut(self, num_rows: int, low: int, high: int) -> tuple[Int64Array, int]:
        """Return what :meth:`taken` does, and the last tick at or before which no more rows come.

        It is ``low`` at least, and before ``high``.
        """
        while low + 1 < high:
            middle = (low + high) // 2
            if int(self.until(middle).sum()) <= num_rows:
                low = middle
            else:
                high = middle
        counts = self.until(low)
        left = num_rows - int(counts.sum())
        if left > 0:  # rows of one tick come in the order of their blocks
            more = self.until(high) - counts
            counts += np.clip(left - (np.cumsum(more) - more), 0, more)
        return counts, low

    def rounds(self, start: int, batch_size: int, most_rows: int) -> Iterator[Round]:
        """Yield what is drawn together, from the row ``start`` that comes on.

        That is :data:`ROUND_ROWS` of each open block, in whole batches, of ``most_rows`` unless one
        batch has more.
        """
        counts, total, tick = self.taken(start), self.total_rows, -1
        while start < total:
            begin = int(np.argmax(counts < self.num_rows))
            tick = max(tick, int(self.start[begin]) - 1)
            num_open = np.searchsorted(self.start, tick + 1, side="right") - begin
            num_rows = min(max(int(num_open), FEW_BLOCKS) * ROUND_ROWS, most_rows)
            num_rows = max(num_rows // batch_size, 1) * batch_size
            start, before = min(start + num_rows, total), int(counts[:begin].sum())
            ahead = 2 * TICKS * ROUND_ROWS
            while True:
                end = int(np.searchsorted(self.start, tick + ahead, side="right"))
                near = self.among(slice(begin, end))
                if before + int(near.until(tick + ahead).sum()) >= start:
                    break
                ahead *= 2
            after = counts.copy()
            after[begin:end], tick = near._cut(start - before, tick, tick + ahead)
            active = np.flatnonzero(after > counts)
            first, stop = counts[active], after[active]
            yield Round(active, first, stop, self._order(active, first, stop))
            counts = after

    def _order(self, blocks: Int64Array, first: Int64Array, end: Int64Array) -> Int64Array:
        """Return the positions of rows of blocks, one block's behind the other's, as they come."""
        from_grain, to_grain = first // self.grain, -(-end // self.grain)
        counts = to_grain - from_grain
        of = np.repeat(np.arange(len(blocks)), counts)
        number = ranges(from_grain, counts)
        block = blocks[of]
        ticks = (2 * number + 1) * self.length[block] // (2 * self.num_grains[block])
        ticks += self.start[block]
        ticks -= ticks.min()
        few = ticks if int(ticks.max()) >= FEW_TICKS else ticks.astype(np.uint16)
        order = np.argsort(few, kind="stable")
        begins = np.maximum(number * self.grain, first[of])
        sizes = np.minimum((number + 1) * self.grain, end[of]) - begins
        begins = np.cumsum(sizes) - sizes
        return ranges(begins[order], sizes[order])


def schedule(
    lanes: Lanes, order: Int64Array, taken: Int64Array, open_bytes: int, batch_size: int
) -> Schedule:
    """Return when a reader draws from the blocks of its lanes.

    Parameters
    ----------
    lanes
        All lanes.
    order
        The reader's, in the order in which it opens them.
    taken
        Rows of each lane that were taken before; shape ``(num_lanes,)``.
    open_bytes
        Bytes of the blocks that are open at a time, unless one alone has more.
    batch_size
        Rows of a batch.
    """
    grain = min(max(batch_size // GRAINS_IN_A_BATCH, 1), MOST_IN_A_GRAIN)
    done = lanes.taken_of_blocks(taken)
    left = lanes.num_rows - done
    blocks = [
        deque((lo + np.flatnonzero(left[lo:hi])).tolist())
        for lo, hi in zip(lanes.block_edges[order], lanes.block_edges[order + 1], strict=True)
    ]
    waiting = deque(filter(None, blocks))
    opened: list[int] = []
    starts: list[int] = []
    ends: list[tuple[int, int, deque[int]]] = []
    at, held_bytes = 0, 0
    lengths: dict[int, int] = {}
    while waiting or ends:
        first = len(opened)
        while waiting and (
            not held_bytes or held_bytes + lanes.num_bytes[waiting[0][0]] <= open_bytes
        ):
            lane = waiting.popleft()
            block = lane.popleft()
            held_bytes += int(lanes.num_bytes[block])
            opened.append(block)
            starts.append(at)
            lengths[block] = int(left[block]) * TICKS
            heapq.heappush(ends, (at + lengths[block], block, lane))
        if not first:  # they end one after the other, so that the next ones begin so
            few = len(opened)
            for i, block in enumerate(opened):
                lengths[block] = max(lengths[block] * (6 * few + 4 * i + 2) // (8 * few), 1)
            ends = [(lengths[block], block, lane) for _, block, lane in ends]
            heapq.heapify(ends)
        if ends:
            at, block, lane = heapq.heappop(ends)
            held_bytes -= int(lanes.num_bytes[block])
            if lane:
                waiting.append(lane)
    number = np.array(opened, np.int64)
    start = np.array(starts, np.int64)
    length = np.array([lengths[block] for block in opened], np.int64)
    rows = left[number]
    if len(number):
        _end_together(start, length, rows)
    return Schedule(number, done[number], rows, start, length, grain)


def one_by_one(lanes: Lanes, order: Int64Array, taken: Int64Array) -> Schedule:
    """Return a schedule that draws all rows of a block before those of the next; as schedule."""
    done = lanes.taken_of_blocks(taken)
    edges = lanes.block_edges
    number = ranges(edges[order], edges[order + 1] - edges[order])
    number = number[done[number] < lanes.num_rows[number]]
    rows = lanes.num_rows[number] - done[number]
    length = rows  # a tick for each: a lane may have as many rows as the shuffle
    return Schedule(number, done[number], rows, np.cumsum(length) - length, length)


def _end_together(start: Int64Array, length: Int64Array, num_rows: Int64Array) -> None:
    """Let the blocks that are open when the last one is opened end at one time."""
    last = int(start[-1])
    is_open = start + length > last
    rest = num_rows * (start + length - last) / length
    common = last + max(int(rest[is_open].sum() / is_open.sum() * TICKS), 1)
    length[is_open] = common - start[is_open]
