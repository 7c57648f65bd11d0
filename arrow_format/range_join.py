"""The join of a range of subpartitions of two shuffles, within bounded memory.

Rows that join stand in subpartitions of equal number, so the join of adjacent subpartitions is the
join of all their rows: small ones are joined together. The smaller side of a group is held, the
other one comes in blocks.
"""

from __future__ import annotations

from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.batching import rebatched
from arrow_format.block_join import Indexed, join_blocks
from arrow_format.co_partitioning import has_broadcast_rows, is_broadcast
from arrow_format.read_plan import group_adjacent

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from arrow_format.dataset import Shuffle
    from arrow_format.join_plan import JoinPlan

MOST_BLOCK_BYTES = 1 << 30
"""Blocks of the side that is not held are no larger: a batch has room for 2 GiB of text."""


def join_range(
    left: Shuffle,
    right: Shuffle,
    plan: JoinPlan,
    subpartitions: Sequence[int] | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield the rows of a join of two co-partitioned shuffles, group after group.

    Memory holds the smaller side of one group, and as much of the other. A single subpartition is a
    group however large it is; of a broadcast shuffle all rows are held. Where only some rows of a
    side are broadcast, every subpartition is a group: several together would have them repeatedly.

    Parameters
    ----------
    left, right
        What to join.
    plan
        How; made for these two.
    subpartitions
        Ascending without repetition; all when None.
    group_bytes
        Raw bytes of both sides that adjacent subpartitions may have together; when None, what the
        options of both allow.

    Raises
    ------
    CorruptShuffleError
        A file is damaged or missing.
    """
    if group_bytes is None:
        group_bytes = left.options.worked_on_bytes + right.options.worked_on_bytes
    sides = (
        _Side(left, plan.left_columns, group_bytes),
        _Side(right, plan.right_columns, group_bytes),
    )
    whole = [number for number, side in enumerate(sides) if side.is_broadcast]
    weights = np.sum([side.weights for side in sides if not side.is_broadcast], axis=0)
    if whole:
        held = Indexed(sides[whole[0]].all_rows(), plan, is_left=whole[0] == 0)
        other = sides[1 - whole[0]]
        groups = group_adjacent(weights, group_bytes, subpartitions)
        yield from join_blocks(held, other.schema, other.blocks(groups, held.batch.nbytes), plan)
        return
    if has_broadcast_rows(left) or has_broadcast_rows(right):
        wanted = range(left.num_subpartitions) if subpartitions is None else subpartitions
        groups = [(one, one + 1) for one in wanted]
    else:
        groups = group_adjacent(weights, group_bytes, subpartitions)
    for first, end in groups:
        sizes = [int(side.weights[first:end].sum()) for side in sides]
        held_number = int(sizes[1] <= sizes[0])
        held_side, other = sides[held_number], sides[1 - held_number]
        held = Indexed(held_side.rows(first, end), plan, is_left=held_number == 0)
        yield from join_blocks(
            held, other.schema, other.blocks([(first, end)], held.batch.nbytes), plan
        )
        del held  # before that of the next group is made


class _Side:
    """Reads one shuffle of a join."""

    def __init__(self, shuffle: Shuffle, columns: list[str], block_bytes: int) -> None:
        self._shuffle = shuffle
        self._columns = columns
        self._block_bytes = block_bytes
        self.is_broadcast = is_broadcast(shuffle)
        self.weights = shuffle.raw_bytes.to_numpy()
        self.schema = shuffle.reader(0, 0, columns).schema

    def batches(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        """Batches of a range, its subpartitions in no particular order."""
        # A generator's variable would keep each run until the next is read; map keeps none.
        return map(attrgetter("batch"), self._shuffle.reader(first, end, self._columns))

    def blocks(self, ranges: Sequence[tuple[int, int]], least: int) -> Iterator[pa.RecordBatch]:
        """Rows of several ranges in blocks of at least so many bytes.

        Each block asks the table of keys of the side that is held to be made again, so it is worth
        having blocks no smaller than that.
        """
        size = min(max(least, self._block_bytes), MOST_BLOCK_BYTES)
        batches = chain.from_iterable(self.batches(first, end) for first, end in ranges)
        return rebatched(batches, min_rows=1 << 62, max_bytes=size)

    def rows(self, first: int, end: int) -> pa.RecordBatch:
        """All rows of a range."""
        return _whole(self.batches(first, end), self.schema)

    def all_rows(self) -> pa.RecordBatch:
        """All rows of a broadcast shuffle."""
        return self.rows(0, 1)


def _whole(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join batches column by column, so that one column at a time is there twice."""
    columns = [[pa.array([], field.type)] for field in schema]
    for batch in batches:
        for pieces, column in zip(columns, batch.columns, strict=True):
            pieces.append(column)
    batch = column = None
    arrays = []
    for pieces in columns:
        arrays.append(pa.concat_arrays(pieces))
        pieces.clear()
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
