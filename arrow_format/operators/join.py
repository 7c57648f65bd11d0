"""The join of a range of subpartitions of two shuffles, within bounded memory.

Rows that join are in subpartitions of equal number, so small adjacent subpartitions are joined
together. The smaller side of such a group is kept in memory, the other is read in blocks.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.buffers import no_rows
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import OptionError
from arrow_format.keys.co_partitioning import has_broadcast_rows, is_broadcast
from arrow_format.keys.hash_passes import in_passes
from arrow_format.operators.hash_join import Indexed, join_blocks
from arrow_format.operators.inputs import batches_again
from arrow_format.operators.results import results_of
from arrow_format.read.chunk_plan import extent_of, group_adjacent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from arrow_format.keys.hash_passes import HashPass
    from arrow_format.model import Int64Array
    from arrow_format.operators.inputs import Input
    from arrow_format.operators.join_plan import JoinPlan
    from arrow_format.read.chunk_plan import Piece

    Ranges = Sequence[tuple[int, int]]
    Then = Callable[[BatchReader], Iterable[pa.RecordBatch]]

MAX_BLOCK_BYTES = 1 << 30
"""Of the side that is read in blocks: a batch holds at most 2 GiB of text."""

INDEX_ROW_BYTES = 200
"""Charged for a row of the side in memory in addition to its bytes. Measured: 40 where keys repeat,
120 to 300 where none does, by how full Arrow's hash table is."""

LOOKUP_ROW_BYTES = 40
"""Least that a row of a block takes: its key number, and the pairs of rows it gives."""


def join_range(
    left: Input,
    right: Input,
    plan: JoinPlan,
    subpartitions: Sequence[int] | None = None,
    piece: Piece | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield the rows of a join of two co-partitioned inputs, group after group.

    Memory holds the smaller side of one group, and as much of the other. A side that is too large,
    of one subpartition or broadcast, is joined in several passes, each over the keys of one residue
    of their hashes, and each reads both sides again. Rows of a key that has half of them are kept
    in memory however many they are. Where only some rows of a side are broadcast, every
    subpartition is a group: several together would repeat these rows.

    Adjacent subpartitions of which both sides have up to ``group_bytes`` raw bytes (by default what
    the options of both allow) are a group. ``subpartitions`` ascend; None means all. Of one it may
    be a ``piece``, of the larger side of those that the plan cuts; the other is read whole.
    """
    if group_bytes is None:
        group_bytes = left.options.working_set_bytes + right.options.working_set_bytes
    divided = right if is_broadcast(left) else left
    within = extent_of(subpartitions, divided.num_subpartitions)
    sides = (
        _Side(left, plan.left_columns, group_bytes, within),
        _Side(right, plan.right_columns, group_bytes, within),
    )
    if piece is not None:
        may_cut = [sides[number] for number in plan.cuts if sides[number].cut_bytes is not None]
        max(may_cut, key=_Side.num_bytes).cut(piece)
    max_index_bytes = group_bytes * 4 // 3
    for indexed, own_ranges, other_ranges in _groups(
        sides, group_bytes, max_index_bytes, within, subpartitions
    ):
        side, other = sides[indexed], sides[1 - indexed]
        read_other = other.batches(other_ranges)
        passes = in_passes(
            side.batches(own_ranges),
            [pair[indexed] for pair in plan.keys],
            max_bytes=max_index_bytes,
            row_bytes=INDEX_ROW_BYTES,
            num_rows=side.num_rows(own_ranges),
            nulls_are_equal=False,
        )
        other_keys = [pair[1 - indexed] for pair in plan.keys]
        for hash_pass, rows in passes:
            if not rows and not plan.keeps(left=indexed != 0):
                continue
            build = Indexed(joined_rows(rows, side.schema), plan, is_left=indexed == 0)
            blocks = other.blocks(read_other(), hash_pass.of(other_keys), build.batch)
            yield from join_blocks(build, other.schema, blocks, plan)
            del build, blocks  # before that of the next pass is made


def _groups(
    sides: tuple[_Side, _Side],
    group_bytes: int,
    max_index_bytes: int,
    within: range,
    subpartitions: Sequence[int] | None,
) -> Iterator[tuple[int, Ranges, Ranges]]:
    """Yield groups: which side to keep in memory (0 or 1), its ranges, those of the other."""
    grouped = partial(group_adjacent, subpartitions=subpartitions, origin=within.start)
    weights = np.sum([side.weights for side in sides if not side.is_broadcast], axis=0)
    broadcast = [number for number, side in enumerate(sides) if side.is_broadcast]
    if broadcast:
        yield broadcast[0], [(0, 1)], grouped(weights, group_bytes)
        return
    if any(side.has_broadcast_rows for side in sides):
        wanted = within if subpartitions is None else subpartitions
        groups = [(subpartition, subpartition + 1) for subpartition in wanted]
    else:
        smaller = np.minimum(sides[0].index_weights, sides[1].index_weights)
        weights = np.maximum(weights, smaller * group_bytes // max_index_bytes)
        groups = grouped(weights, group_bytes)
    for first, end in groups:
        rows = slice(first - within.start, end - within.start)
        sizes = [int(side.index_weights[rows].sum()) for side in sides]
        yield int(sizes[1] <= sizes[0]), [(first, end)], [(first, end)]


class _Side:
    """Reads one side of a join."""

    def __init__(self, rows: Input, columns: list[str], block_bytes: int, within: range) -> None:
        self._rows = rows
        self._columns = columns
        self._block_bytes = block_bytes
        self.is_broadcast = is_broadcast(rows)
        self.has_broadcast_rows = has_broadcast_rows(rows)
        own = range(1) if self.is_broadcast else within
        self._origin = own.start
        self.rows, self.weights = rows.weights(columns, within=own)
        self.schema = rows.schema_of(columns)
        self._piece: Piece | None = None

    @property
    def index_weights(self) -> Int64Array:
        """Bytes of each subpartition, kept in memory with an index of its keys."""
        return self.weights + INDEX_ROW_BYTES * self.rows

    @property
    def cut_bytes(self) -> pa.Int64Array | None:
        """Bytes that pieces share; None where it is not cut."""
        return self._rows.cut_bytes

    def num_bytes(self) -> int:
        """Return the bytes of its rows."""
        return int(self.weights.sum())

    def cut(self, piece: Piece) -> None:
        """Read a piece alone."""
        self._piece = piece
        self.rows, self.weights = (-(-each // piece.of) for each in (self.rows, self.weights))

    def num_rows(self, ranges: Ranges) -> int:
        """Return how many rows ranges have."""
        origin = self._origin
        return sum(int(self.rows[first - origin : end - origin].sum()) for first, end in ranges)

    def batches(self, ranges: Ranges) -> Callable[[], Iterator[pa.RecordBatch]]:
        """Return what reads ranges, the rows of their subpartitions in no particular order."""
        return batches_again(self._rows, ranges, self._columns, piece=self._piece)

    def blocks(
        self, batches: Iterator[pa.RecordBatch], hash_pass: HashPass, build: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a pass, in blocks no smaller than the side in memory (``build``).

        Arrow builds a hash table of the keys of that side again for each block.
        """
        size = min(max(build.nbytes, self._block_bytes), MAX_BLOCK_BYTES)
        return rebatched(
            map(hash_pass.rows_of, batches),
            min_rows=max(build.num_rows, size // LOOKUP_ROW_BYTES),
            max_bytes=size,
        )


def joined_rows(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Join batches, and empty the list; one column at a time is in memory twice."""
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


@dataclass(frozen=True)
class ThenOfGroup:
    """Calls the user's function with the joined rows of a group."""

    join: Callable[..., Generator[pa.RecordBatch]]
    joined: pa.Schema
    """Of the rows that the function reads."""
    then: Then
    schema: pa.Schema
    """Of its results."""
    paths: str
    """Of the shuffles, for messages."""

    def __call__(self, subpartitions: Sequence[int], *piece: Piece) -> Generator[pa.RecordBatch]:
        """Yield the results of the function."""
        with closing(self.join(subpartitions, *piece)) as batches:
            reader = BatchReader(self.joined, (conform(batch, self.joined) for batch in batches))
            where = f"subpartitions {subpartitions[0]} to {subpartitions[-1]} of {self.paths}"
            yield from results_of(
                lambda: self.then(reader), self.schema, caller="then of a join", where=where
            )
