"""The hash join of a side that is whole in memory with one that comes in blocks. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.row_sizes import row_sizes, runs_within
from arrow_format.arrays.selection import take, without_slices
from arrow_format.operators.key_index import NO_ROW, KeyIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.model import Int64Array
    from arrow_format.operators.join_plan import JoinPlan

PAIR_ROWS = 64 << 10
"""Most rows in one batch of the result."""

PAIR_BYTES = 16 << 20
"""Most bytes in one batch of the result, unless a single row has more."""


class Indexed:
    """The side in memory, with the index of its keys."""

    def __init__(self, batch: pa.RecordBatch, plan: JoinPlan, *, is_left: bool) -> None:
        self.batch = batch
        self.is_left = is_left
        self.index = KeyIndex([batch.column(pair[not is_left]) for pair in plan.keys])


def join_blocks(
    build: Indexed,
    schema: pa.Schema,
    blocks: Iterable[pa.RecordBatch],
    plan: JoinPlan,
    *,
    max_rows: int = PAIR_ROWS,
    max_bytes: int = PAIR_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a join, in no particular order; a semi join has each left row at most once.

    ``schema`` and ``blocks`` are of the other side; each block is freed before the next is asked
    for. Both sides have the columns that the plan names.
    """
    index = build.index
    keeps_build = plan.keeps(left=build.is_left)
    keeps_other = plan.keeps(left=not build.is_left)
    is_filter = plan.how in ("semi", "anti")
    is_matched = np.zeros(index.num_keys, np.bool_)
    joined = _Joined(build, schema, plan, max_bytes)
    for block in blocks:
        keys = index.look_up([block.column(pair[build.is_left]) for pair in plan.keys])
        if keeps_build or is_filter:
            is_matched[keys[keys != NO_ROW]] = True
        if not is_filter:
            other = joined.source(block)
            for rows, build_rows in index.pairs(keys, unmatched=keeps_other, max_pairs=max_rows):
                yield from joined.batches(other, rows, build_rows)
            del other
        elif not build.is_left:
            other = joined.source(block)
            wanted = (keys != NO_ROW) == (plan.how == "semi")
            for rows in _slices(np.flatnonzero(wanted), max_rows):
                yield from joined.batches(other, rows, None)
            del other
        del block, keys  # before the next block is made
    if keeps_build or (is_filter and build.is_left):
        row_is_matched = np.zeros(len(index.row_keys), np.bool_)
        known = index.row_keys != NO_ROW
        row_is_matched[known] = is_matched[index.row_keys[known]]
        wanted = row_is_matched == (plan.how == "semi")
        for rows in _slices(np.flatnonzero(wanted), max_rows):
            yield from joined.batches(None, None, rows)


def _slices(rows: NDArray[np.int64], max_rows: int) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(rows), max_rows):
        yield rows[first : first + max_rows]


class _Source:
    """A batch of one side, and the bytes that each of its rows adds to the result."""

    def __init__(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        self.batch = without_slices(batch)  # once, and not for each batch of the result
        self._sizes = row_sizes([batch.column(name) for name in names], batch.num_rows)
        self.widest = int(self._sizes.max(initial=0))
        self._sizes_or_zero: Int64Array | None = None

    def sizes(self, rows: NDArray[np.int64]) -> Int64Array:
        """Bytes of rows; zero for NO_ROW."""
        if self._sizes_or_zero is None:
            self._sizes_or_zero = np.append(self._sizes, 0)  # NO_ROW is -1: the last item
        return self._sizes_or_zero[rows]


class _TakenRows:
    """Rows of one side that go into the result; NO_ROW makes a row of nulls."""

    def __init__(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> None:
        self._batch = batch
        self.num_rows = len(rows)
        self._first = int(rows[0])
        # Each row of a foreign key has one match: then the rows of its side are a slice.
        self._is_slice = self._first != NO_ROW and bool((np.diff(rows) == 1).all())
        if not self._is_slice:
            missing = rows == NO_ROW
            self._rows = to_arrow(rows, mask=missing if missing.any() else None)

    def column(self, name: str) -> pa.Array:
        column = self._batch.column(name)
        if self._is_slice:
            return column.slice(self._first, self.num_rows)
        return take(column, self._rows)


class _Joined:
    """Makes batches of the result of pairs of rows."""

    def __init__(self, build: Indexed, schema: pa.Schema, plan: JoinPlan, max_bytes: int) -> None:
        schemas = (build.batch.schema, schema)
        self._left, self._right = schemas if build.is_left else schemas[::-1]
        self._build_is_left = build.is_left
        self._columns = plan.columns
        self._max_bytes = max_bytes
        lefts = [column.left for column in plan.columns if column.left is not None]
        rights = [column.right for column in plan.columns if column.right is not None]
        self._other_names = rights if build.is_left else lefts
        self._build = _Source(build.batch, lefts if build.is_left else rights)

    def source(self, block: pa.RecordBatch) -> _Source:
        return _Source(block, self._other_names)

    def batches(
        self,
        other: _Source | None,
        rows: NDArray[np.int64] | None,
        build_rows: NDArray[np.int64] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches of at most ``max_bytes``; a side without rows gives nulls."""
        sides = ((other, rows), (self._build, build_rows))
        taken = [(source, r) for source, r in sides if source is not None and r is not None]
        for first, end in self._cuts(taken):
            yield self._batch(
                *(
                    None
                    if source is None or numbers is None
                    else _TakenRows(source.batch, numbers[first:end])
                    for source, numbers in sides
                )
            )

    def _cuts(
        self, taken: Sequence[tuple[_Source, NDArray[np.int64]]]
    ) -> Iterator[tuple[int, int]]:
        num_rows = len(taken[0][1])
        if num_rows * sum(source.widest for source, _ in taken) <= self._max_bytes:
            yield 0, num_rows
            return
        ends = np.cumsum(np.sum([source.sizes(rows) for source, rows in taken], axis=0))
        yield from runs_within(ends, self._max_bytes)

    def _batch(self, other: _TakenRows | None, build: _TakenRows | None) -> pa.RecordBatch:
        left, right = (build, other) if self._build_is_left else (other, build)
        num_rows = (other or build).num_rows  # type: ignore[union-attr]
        arrays = []
        for column in self._columns:
            values = None
            if left is not None and column.left is not None:
                values = left.column(column.left)
            if (
                right is not None
                and column.right is not None
                and (values is None or values.null_count)
            ):
                right_values = right.column(column.right)
                if column.left is not None:  # keys may differ in the name of a time zone
                    right_values = right_values.cast(self._left.field(column.left).type)
                values = right_values if values is None else pc.coalesce(values, right_values)
            if values is None:
                field = (
                    self._right.field(column.right)
                    if column.left is None
                    else self._left.field(column.left)
                )
                values = pa.nulls(num_rows, field.type)
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self._columns])
