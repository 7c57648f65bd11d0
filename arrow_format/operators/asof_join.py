"""The as-of join of a range of subpartitions of shuffles, within bounded memory.

Some rows of the left are in memory, and those of each right are read in blocks: what a block has
for them is kept, as the first rows of the next. So it makes no difference how the rights lie in
files: whether they are sorted, or grew by days.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.buffers import no_rows, to_arrow
from arrow_format.arrays.row_sizes import row_sizes, runs_within
from arrow_format.arrays.selection import ascending, joined, take
from arrow_format.errors import SchemaError
from arrow_format.filters.expression import Column, Comparison, Literal, all_of
from arrow_format.filters.spark_rules import SPARK_DEFAULTS
from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.operators.asof_match import TimedRows, matches
from arrow_format.operators.hash_join import PAIR_BYTES, PAIR_ROWS
from arrow_format.operators.inputs import batches_again
from arrow_format.operators.join import MAX_BLOCK_BYTES
from arrow_format.operators.key_index import NO_ROW
from arrow_format.read.chunk_plan import extent_of, group_adjacent
from arrow_format.read.shuffle import Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from arrow_format.model import Int64Array
    from arrow_format.operators.asof_match import TimeRule
    from arrow_format.operators.asof_plan import AsOfPlan, AsOfSide
    from arrow_format.operators.inputs import Input
    from arrow_format.read.chunk_plan import Piece


ROW_BYTES = 80
"""Charged for a row in addition to its bytes: its numbers, its time, and the order of both."""

LEAST_LEFT_OUT = 1 / 8
"""Share of the times of a right that must be out of reach for its rows to be asked for theirs,
which takes a fifth of the time in which they are read and joined."""


def join_asof(
    left: Input,
    rights: Sequence[Input],
    plan: AsOfPlan,
    subpartitions: Sequence[int] | None = None,
    piece: Piece | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield each row of the left, with what the rights have as of its time.

    Rows of a subpartition come in their order. Adjacent subpartitions, of which the left and the
    largest right have up to ``group_bytes`` raw bytes together (by default what the options of all
    allow), are joined together; one of more is joined some rows of the left at a time, and for each
    part the rights are read again. ``subpartitions`` ascend; None means all. Of one it may be a
    ``piece`` of the left.
    """
    if group_bytes is None:
        group_bytes = sum(each.options.working_set_bytes for each in (left, *rights))
    within = extent_of(subpartitions, left.num_subpartitions)
    num_rows, num_bytes = left.weights(plan.left_columns, within=within)
    sides = [
        _Side(right, side, within, group_bytes)
        for right, side in zip(rights, plan.sides, strict=True)
    ]
    added = sum(side.row_bytes for side in sides)
    own = num_bytes + num_rows * (ROW_BYTES + added)
    # A broadcast one weighs the same in each.
    weights = own + reduce(np.maximum, [side.weights for side in sides], np.zeros_like(own))
    most_rows = group_bytes // 2 * int(num_rows.sum()) // max(int(own.sum()), 1)
    for group in group_adjacent(weights, group_bytes, subpartitions, origin=within.start):
        batches = batches_again(
            left, [group], plan.left_columns, ordered=bool(left.sort_by), piece=piece
        )
        for block in rebatched(batches(), min_rows=max(most_rows, 1), max_bytes=group_bytes // 4):
            parts = [block]
            del block  # before the next is read
            while parts:
                part = parts.pop()
                found = _found(sides, part, group)
                if found is not None:
                    yield from _joined(part, found, plan)
                    continue
                half = part.num_rows // 2
                parts += [part.slice(half), part.slice(0, half)]


def _found(
    sides: Sequence[_Side], block: pa.RecordBatch, group: tuple[int, int]
) -> list[_Found] | None:
    """Return what each side has for the rows of a block; None where that is too much for memory."""
    every = []
    for side in sides:
        found = side.found(block, group)
        if found is None:
            return None
        every.append(found)
    return every


@dataclass(frozen=True)
class _Found:
    """What a side has for the rows of a block."""

    batch: pa.RecordBatch
    """Rows of the side."""
    rows: Int64Array
    """The row of each row of the block, or NO_ROW."""


class _Side:
    """Finds the rows of one right."""

    def __init__(self, rows: Input, plan: AsOfSide, within: range, group_bytes: int) -> None:
        self._rows = rows
        self.plan = plan
        self._is_broadcast = is_broadcast(rows)
        columns = plan.read_columns
        own = range(1) if self._is_broadcast else within
        num_rows, num_bytes = rows.weights(columns, within=own)
        self.row_bytes = int(num_bytes.sum()) // max(int(num_rows.sum()), 1)
        """Average bytes of a row."""
        self.weights = num_bytes + ROW_BYTES * num_rows
        """Bytes of each subpartition; of all that are broadcast."""
        self._block_bytes = min(group_bytes // 4, MAX_BLOCK_BYTES)
        self._again: tuple[tuple[int, int], Callable[[], Iterator[Any]]] | None = None
        self._block_rows = max(group_bytes // (2 * (self.row_bytes + ROW_BYTES)), 1)
        # Rows of one key and time come in order where files have them so, or sort keys say it.
        asked = {plan.times[1], *(key for _, key in plan.keys)}
        self._ordered = any(name not in asked for name, _ in rows.sort_by)
        self._known = known_times(rows, plan.times[1], plan.compared_as)

    def found(self, block: pa.RecordBatch, group: tuple[int, int]) -> _Found | None:
        """Return the rows for those of a block, which is of a group of subpartitions.

        None where they are too much to be kept, unless the block has one row.
        """
        plan, schema = self.plan, self._rows.schema_of(self.plan.read_columns)
        lefts = TimedRows(
            [block.column(key) for key, _ in plan.keys],
            _times(block, plan.times[0], plan.compared_as),
        )
        found = _Found(
            pa.RecordBatch.from_arrays([no_rows(field.type) for field in schema], schema=schema),
            np.full(block.num_rows, NO_ROW, np.int64),
        )
        rows = self._within_reach(lefts)
        if rows is None:
            return found
        read = self._reading(rows, group)
        blocks = rebatched(read(), min_rows=self._block_rows, max_bytes=self._block_bytes)
        for rights in blocks:
            kept = take(found.batch, to_arrow(ascending(found.rows[found.rows != NO_ROW])))
            if kept.nbytes > self._block_bytes and block.num_rows > 1:
                return None
            # They come before those that are read later, so that ties are decided as in one block.
            found = self._of(lefts, joined([kept, rights]) if kept.num_rows else rights)
            del rights, kept  # before the next is read
        return found

    def _reading(self, rows: Input, group: tuple[int, int]) -> Callable[[], Iterator[Any]]:
        """Return what reads the rows of a group; those that are made are made once."""
        if self._again is not None and self._again[0] == group:
            return self._again[1]
        ranges = [(0, 1)] if self._is_broadcast else [group]
        read = batches_again(rows, ranges, self.plan.read_columns, ordered=self._ordered)
        if not isinstance(rows, Shuffle):
            self._again = group, read
        return read

    def _of(self, lefts: TimedRows, rights: pa.RecordBatch) -> _Found:
        """Return what some rows of the right have for those of the left."""
        plan = self.plan
        keys = [
            rights.column(key)
            if (column := rights.column(key)).type.equals(asked.type)
            else column.cast(asked.type)  # they may differ in the name of a time zone
            for (_, key), asked in zip(plan.keys, lefts.keys, strict=True)
        ]
        times = _times(rights, plan.times[1], plan.compared_as)
        ties = None if plan.ties is None else rights.column(plan.ties)
        return _Found(rights, matches(lefts, TimedRows(keys, times), plan.rule, ties))

    def _within_reach(self, lefts: TimedRows) -> Input | None:
        """Return the rows that any of the left can have by their times; None where none can."""
        known = lefts.known()
        times = lefts.values if known is None else lefts.values[known]
        if not len(times):
            return None
        if times.dtype != np.int64:
            return self._rows
        bounds = int(times.min()), int(times.max())
        return within_reach(self._rows, self.plan, *bounds, self._known)


def within_reach(
    rows: Input, side: AsOfSide, least: int, greatest: int, known: tuple[int, int] | None
) -> Input:
    """Return the rows of a right that any row of the left with a time in a range can have.

    ``least`` and ``greatest`` are times of the left as numbers, both included; ``known`` are those
    of the right, as :func:`known_times` has them. All rows where they are not stored, or nearly
    all can be reached.
    """
    first, last = _reach(side.rule, least, greatest)
    if known is not None:
        begin = known[0] if first is None else max(first, known[0])
        end = known[1] if last is None else min(last, known[1])
        if end - begin >= (known[1] - known[0]) * (1 - LEAST_LEFT_OUT):
            return rows
    conditions = [
        Comparison(operator, Column(side.times[1]), Literal(_time_of(time, side.compared_as)))
        for operator, time in ((">=", first), ("<=", last))
        if time is not None
    ]
    if not conditions or not isinstance(rows, Shuffle):
        return rows
    return rows.where(rows.bound(all_of(conditions), SPARK_DEFAULTS))


def reached_by(left: Input, rights: Sequence[Input], plan: AsOfPlan) -> list[Input]:
    """Return the rows of each right that rows of the left can have, by what logs know of times."""
    reached = []
    for right, side in zip(rights, plan.sides, strict=True):
        name, there = side.times
        asked = known_times(left, name, side.compared_as)
        if asked is not None:
            known = known_times(right, there, side.compared_as)
            right = within_reach(right, side, *asked, known)
        reached.append(right)
    return reached


def known_times(rows: Input, name: str, type_: pa.DataType) -> tuple[int, int] | None:
    """Return bounds of times as integers by the log; None where it has none, or not integers."""
    bounds = rows.logged_bounds(name) if isinstance(rows, Shuffle) else None
    if bounds is None or not bounds[0].is_valid or pt.is_floating(type_):
        return None
    try:
        batch = pa.record_batch({"": pa.array(bounds, bounds[0].type)})
        least, greatest = _times(batch, "", type_).to_pylist()
    except SchemaError:  # those in reach are not: it is said where rows are read
        return None
    return least, greatest


def _reach(rule: TimeRule, least: int, greatest: int) -> tuple[int | None, int | None]:
    """Return the least and the greatest time that any of some times can have; None for any."""
    tolerance = None if rule.tolerance is None else int(rule.tolerance)
    first = last = None
    if rule.direction == "forward":
        first = least
    elif tolerance is not None:
        first = least - tolerance
    if rule.direction == "backward":
        last = greatest
    elif tolerance is not None:
        last = greatest + tolerance
    return first, last


def _time_of(number: int, type_: pa.DataType) -> pa.Scalar:
    """Return a time by its number; the nearest that there is."""
    dtype = np.int32 if pt.is_date(type_) else np.int64
    limits = np.iinfo(dtype)
    values = np.array([min(max(number, limits.min), limits.max)], dtype)
    return to_arrow(values).view(type_)[0]


def _times(batch: pa.RecordBatch, name: str, type_: pa.DataType) -> pa.Array:
    """Return a column of times as integers or floats of 64 bits."""
    column = batch.column(name)
    try:
        if pt.is_timestamp(type_):
            if column.type.unit != type_.unit:
                column = column.cast(pa.timestamp(type_.unit, column.type.tz))
            return column.view(pa.int64())
        if pt.is_date(type_):
            return column.view(pa.int32()).cast(pa.int64())
        return column.cast(type_)
    except pa.ArrowInvalid as error:
        msg = (
            f"time: column {name!r} is {batch.schema.field(name).type} and is compared as {type_}, "
            f"which does not reach so far ({error}); write both sides in one unit"
        )
        raise SchemaError(msg) from error


def _joined(
    block: pa.RecordBatch, found: Sequence[_Found], plan: AsOfPlan
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the result for a block, in its order and in parts."""
    sizes = row_sizes([block.column(name) for _, name in plan.left], block.num_rows)
    for side, of_side in zip(plan.sides, found, strict=True):
        columns = [of_side.batch.column(name) for _, name in side.columns]
        # NO_ROW is -1: the last item.
        sizes = sizes + np.append(row_sizes(columns, of_side.batch.num_rows), 0)[of_side.rows]
    ends = np.cumsum(np.maximum(sizes, PAIR_BYTES // PAIR_ROWS))
    names = [name for columns in plan.columns for name, _ in columns]
    for start, stop in runs_within(ends, PAIR_BYTES):
        part = block.slice(start, stop - start)
        arrays = [part.column(column) for _, column in plan.left]
        for side, of_side in zip(plan.sides, found, strict=True):
            rows = of_side.rows[start:stop]
            indices = to_arrow(rows, mask=rows == NO_ROW)
            arrays += [take(of_side.batch.column(column), indices) for _, column in side.columns]
        yield pa.RecordBatch.from_arrays(arrays, names=names)
