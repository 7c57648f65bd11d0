"""The join of a range of subpartitions of two shuffles, within bounded memory.

Rows that join stand in subpartitions of equal number, so the join of adjacent subpartitions is the
join of all their rows: small ones are joined together. The smaller side of a group is held, the
other one comes in blocks.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.buffers import no_rows, to_numpy
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import has_broadcast_rows, is_broadcast
from arrow_format.operators.hash_join import Indexed, join_blocks
from arrow_format.operators.hash_passes import in_passes
from arrow_format.read.plan import group_adjacent

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from arrow_format.operators.hash_passes import HashPass
    from arrow_format.operators.join_plan import JoinPlan
    from arrow_format.read.shuffle import Shuffle

    Ranges = Sequence[tuple[int, int]]

MOST_BLOCK_BYTES = 1 << 30
"""Blocks of the side that is not held are no larger: a batch has room for 2 GiB of text."""

INDEX_ROW_BYTES = 200
"""What a row of the side that is held counts beside its own bytes. Measured: 40 where keys repeat,
120 to 300 where none does, by how full Arrow's hash table is."""

LOOKUP_ROW_BYTES = 40
"""What a row of a block counts at least: key numbers, and the pairs of rows they give."""


def join_range(
    left: Shuffle,
    right: Shuffle,
    plan: JoinPlan,
    subpartitions: Sequence[int] | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield the rows of a join of two co-partitioned shuffles, group after group.

    Memory holds the smaller side of one group, and as much of the other. A side that is too large,
    of one subpartition or broadcast, is joined in passes: rows whose keys have one residue of their
    hashes at a time, which reads both sides once more for each. Rows of a key that has half of them
    are held however many they are. Where only some rows of a side are broadcast, every subpartition
    is a group: several together would have them repeatedly.

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
        group_bytes = left.options.working_set_bytes + right.options.working_set_bytes
    sides = (
        _Side(left, plan.left_columns, group_bytes),
        _Side(right, plan.right_columns, group_bytes),
    )
    most_held_bytes = group_bytes * 4 // 3
    for held, held_ranges, other_ranges in _groups(
        sides, group_bytes, most_held_bytes, subpartitions
    ):
        keys = [[pair[held] for pair in plan.keys], [pair[1 - held] for pair in plan.keys]]
        passes = in_passes(
            partial(sides[held].batches, held_ranges),
            keys[0],
            max_bytes=most_held_bytes,
            row_bytes=INDEX_ROW_BYTES,
            num_rows=sides[held].num_rows(held_ranges),
            nulls_are_equal=False,
        )
        for one, rows in passes:
            if not rows and not plan.keeps(left=held != 0):
                continue
            indexed = Indexed(_whole(rows, sides[held].schema), plan, is_left=held == 0)
            other = sides[1 - held]
            blocks = other.blocks(other_ranges, one.of(keys[1]), indexed.batch)
            yield from join_blocks(indexed, other.schema, blocks, plan)
            del indexed, blocks  # before that of the next pass is made


def _groups(
    sides: tuple[_Side, _Side],
    group_bytes: int,
    most_held_bytes: int,
    subpartitions: Sequence[int] | None,
) -> Iterator[tuple[int, Ranges, Ranges]]:
    """Yield what is joined together: number of the side to hold, its ranges, those of the other."""
    weights = np.sum([side.weights for side in sides if not side.is_broadcast], axis=0)
    whole = [number for number, side in enumerate(sides) if side.is_broadcast]
    if whole:
        yield whole[0], [(0, 1)], group_adjacent(weights, group_bytes, subpartitions)
        return
    if any(side.has_broadcast_rows for side in sides):
        wanted = range(len(weights)) if subpartitions is None else subpartitions
        groups = [(one, one + 1) for one in wanted]
    else:
        held = np.minimum(sides[0].held_weights, sides[1].held_weights)
        weights = np.maximum(weights, held * group_bytes // most_held_bytes)
        groups = group_adjacent(weights, group_bytes, subpartitions)
    for first, end in groups:
        sizes = [int(side.held_weights[first:end].sum()) for side in sides]
        yield int(sizes[1] <= sizes[0]), [(first, end)], [(first, end)]


class _Side:
    """Reads one shuffle of a join."""

    def __init__(self, shuffle: Shuffle, columns: list[str], block_bytes: int) -> None:
        self._shuffle = shuffle
        self._columns = columns
        self._block_bytes = block_bytes
        self.is_broadcast = is_broadcast(shuffle)
        self.has_broadcast_rows = has_broadcast_rows(shuffle)
        self.weights = to_numpy(shuffle.raw_bytes)
        self.rows = to_numpy(shuffle.subpartition_rows)
        self.held_weights = self.weights + INDEX_ROW_BYTES * self.rows
        self.schema = shuffle.schema_of(columns)

    def num_rows(self, ranges: Ranges) -> int:
        """How many rows ranges have."""
        return sum(int(self.rows[first:end].sum()) for first, end in ranges)

    def batches(self, ranges: Ranges) -> Iterator[pa.RecordBatch]:
        """Batches of ranges, their subpartitions in no particular order."""
        runs = chain.from_iterable(
            self._shuffle.reader(first, end, self._columns) for first, end in ranges
        )
        # A generator's variable would keep each run until the next is read; map keeps none.
        return map(attrgetter("batch"), runs)

    def blocks(
        self, ranges: Ranges, one: HashPass, held: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a pass over ranges, in blocks no smaller than what is held of the other side.

        Each block asks the table of keys of the side that is held to be made again.
        """
        size = min(max(held.nbytes, self._block_bytes), MOST_BLOCK_BYTES)
        return rebatched(
            map(one.rows_of, self.batches(ranges)),
            min_rows=max(held.num_rows, size // LOOKUP_ROW_BYTES),
            max_bytes=size,
        )


def _whole(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join batches column by column, so that one column at a time is there twice; empties them."""
    columns = [
        [no_rows(field.type), *(batch.column(i) for batch in batches)]
        for i, field in enumerate(schema)
    ]
    batches.clear()
    arrays = []
    for name, pieces in zip(schema.names, columns, strict=True):
        try:
            arrays.append(pa.concat_arrays(pieces))
        except pa.ArrowInvalid as error:
            msg = (
                f"column {name!r} has more than 2 GiB of text, or 2**31 values in lists, in rows "
                f"that are joined together because they have one key ({error}); leave it out of "
                "the columns, or let Spark join"
            )
            raise OptionError(msg) from error
        pieces.clear()
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
