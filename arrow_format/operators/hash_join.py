"""The join of two sides: one whole in memory, the other block by block. Pure."""

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
"""Rows of the result that are put together at a time."""

PAIR_BYTES = 16 << 20
"""Bytes of the result that are put together at a time; one row may be more."""


class Indexed:
    """The side that is held whole, with the index of its keys.

    Parameters
    ----------
    batch
        Its rows.
    plan
        The join.
    is_left
        Which side it is.
    """

    def __init__(self, batch: pa.RecordBatch, plan: JoinPlan, *, is_left: bool) -> None:
        self.batch = batch
        self.is_left = is_left
        self.index = KeyIndex([batch.column(pair[not is_left]) for pair in plan.keys])


def join_blocks(
    held: Indexed,
    schema: pa.Schema,
    blocks: Iterable[pa.RecordBatch],
    plan: JoinPlan,
    *,
    most: int = PAIR_ROWS,
    max_bytes: int = PAIR_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a join, in no particular order.

    Parameters
    ----------
    held
        The side that is held whole; both have the columns that the plan names.
    schema
        Of the other side.
    blocks
        The other side, in blocks of any size; each is let go before the next is asked for.
    plan
        The join. Of semi and anti, each row of the left comes at most once.
    most, max_bytes
        Rows of the result in one batch, and their bytes, about.
    """
    index = held.index
    keeps_held = plan.keeps(left=held.is_left)
    keeps_other = plan.keeps(left=not held.is_left)
    is_filter = plan.how in ("semi", "anti")
    met = np.zeros(index.num_keys, np.bool_)
    joined = _Joined(held, schema, plan, max_bytes)
    for block in blocks:
        keys = index.look_up([block.column(pair[held.is_left]) for pair in plan.keys])
        if keeps_held or is_filter:
            met[keys[keys != NO_ROW]] = True
        if not is_filter:
            other = joined.source(block)
            for rows, others in index.pairs(keys, unmatched=keeps_other, most=most):
                yield from joined.batches(other, rows, others)
            del other
        elif not held.is_left:
            other = joined.source(block)
            wanted = (keys != NO_ROW) == (plan.how == "semi")
            for rows in _pieces(np.flatnonzero(wanted), most):
                yield from joined.batches(other, rows, None)
            del other
        del block, keys  # before the next block is made
    if keeps_held or (is_filter and held.is_left):
        was_met = np.zeros(len(index.row_keys), np.bool_)
        known = index.row_keys != NO_ROW
        was_met[known] = met[index.row_keys[known]]
        for rows in _pieces(np.flatnonzero(was_met == (plan.how == "semi")), most):
            yield from joined.batches(None, None, rows)


def _pieces(rows: NDArray[np.int64], most: int) -> Iterator[NDArray[np.int64]]:
    for first in range(0, len(rows), most):
        yield rows[first : first + most]


class _Source:
    """A batch of one side, and what its rows take of the result."""

    def __init__(self, batch: pa.RecordBatch, names: Sequence[str]) -> None:
        self.batch = without_slices(batch)  # once, and not for each piece of the result
        sizes = row_sizes([batch.column(name) for name in names], batch.num_rows)
        self.widest = int(sizes.max(initial=0))
        self._sizes = sizes
        self._with_none: Int64Array | None = None

    def sizes(self, rows: NDArray[np.int64]) -> Int64Array:
        """Bytes of rows; none where it is NO_ROW."""
        if self._with_none is None:
            # NO_ROW is -1, the last of them.
            self._with_none = np.append(self._sizes, 0)
        return self._with_none[rows]


class _TakenRows:
    """Rows of one side that go into the result; NO_ROW makes a row of nulls."""

    def __init__(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> None:
        self._batch = batch
        self.num_rows = len(rows)
        self._first = int(rows[0])
        # A foreign key meets one row each: then the other side is a slice.
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
    """Puts rows of both sides together."""

    def __init__(self, held: Indexed, schema: pa.Schema, plan: JoinPlan, max_bytes: int) -> None:
        schemas = (held.batch.schema, schema)
        self._left, self._right = schemas if held.is_left else schemas[::-1]
        self._held_is_left = held.is_left
        self._columns = plan.columns
        self._max_bytes = max_bytes
        lefts = [column.left for column in plan.columns if column.left is not None]
        rights = [column.right for column in plan.columns if column.right is not None]
        self._other_names = rights if held.is_left else lefts
        self._held = _Source(held.batch, lefts if held.is_left else rights)

    def source(self, block: pa.RecordBatch) -> _Source:
        """Return a block of the other side as what rows are taken of."""
        return _Source(block, self._other_names)

    def batches(
        self,
        other: _Source | None,
        rows: NDArray[np.int64] | None,
        others: NDArray[np.int64] | None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of the result in batches that are no larger than they may be.

        Parameters
        ----------
        other
            A block of the other side; None where it gives no rows.
        rows, others
            Rows of that block, and of the side that is held; None where a side gives none.
        """
        taken = [
            (source, numbers)
            for source, numbers in ((other, rows), (self._held, others))
            if source is not None and numbers is not None
        ]
        for first, end in self._cuts(taken):
            sides = [
                None
                if source is None or numbers is None
                else _TakenRows(source.batch, numbers[first:end])
                for source, numbers in ((other, rows), (self._held, others))
            ]
            yield self._batch(*sides)

    def _cuts(
        self, taken: Sequence[tuple[_Source, NDArray[np.int64]]]
    ) -> Iterator[tuple[int, int]]:
        num_rows = len(taken[0][1])
        if num_rows * sum(source.widest for source, _ in taken) <= self._max_bytes:
            yield 0, num_rows
            return
        ends = np.cumsum(np.sum([source.sizes(rows) for source, rows in taken], axis=0))
        yield from runs_within(ends, self._max_bytes)

    def _batch(self, other: _TakenRows | None, held: _TakenRows | None) -> pa.RecordBatch:
        """One row for each pair; nulls in the place of a side that has none."""
        left, right = (held, other) if self._held_is_left else (other, held)
        num_rows = (other or held).num_rows  # type: ignore[union-attr]
        arrays = []
        for column in self._columns:
            values = None
            if left is not None and column.left is not None:
                values = left.column(column.left)
            if right is not None and column.right is not None and _has_nulls(values):
                found = right.column(column.right)
                if column.left is not None:  # keys may differ in the name of a time zone
                    found = found.cast(self._left.field(column.left).type)
                values = found if values is None else pc.coalesce(values, found)
            if values is None:
                field = (
                    self._right.field(column.right)
                    if column.left is None
                    else self._left.field(column.left)
                )
                values = pa.nulls(num_rows, field.type)
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self._columns])


def _has_nulls(values: pa.Array | None) -> bool:
    return values is None or values.null_count > 0
