"""The aggregation of a range of subpartitions of a shuffle, within bounded memory.

All rows of a group are in one subpartition. Small adjacent subpartitions are aggregated together, a
large one block by block where the functions allow it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import BATCH_ROWS, JOINED_BYTES, rebatched
from arrow_format.keys.hash_passes import HashPass, charged_bytes, expected_growth, in_passes
from arrow_format.operators.aggregate_functions import IN_ORDER
from arrow_format.operators.aggregation_plan import refuse_partial_filter
from arrow_format.operators.inputs import batches_again
from arrow_format.read.chunk_plan import extent_of, group_adjacent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from arrow_format.operators.aggregation_plan import AggregationPlan
    from arrow_format.operators.inputs import Input
    from arrow_format.read.chunk_plan import Piece


GROUP_BYTES = 100
"""Charged for a row in addition to its bytes: the number of its group, and the tables that find it;
with PyArrow's functions, their states."""

LEAST_TIMES = 0.8
"""Part of the memory from which on groups are divided among several passes: with less room beside
them, they would be combined with few new rows again and again."""


def aggregate_range(
    shuffle: Input,
    plan: AggregationPlan,
    subpartitions: Sequence[int] | None = None,
    piece: Piece | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield one row per group of rows with equal keys; of the given subpartitions, or of all.

    Nulls form a group; so do NaN, and -0.0 with 0.0. Where a function depends on the order of rows,
    that is the order of the shuffle.

    Adjacent subpartitions of up to ``group_bytes`` raw bytes (by default what the shuffle's options
    allow) are aggregated together. A larger subpartition is read in several passes, each of some of
    its groups, where a function needs whole groups (a list, a set, distinct values, a standard
    deviation) or the results take more memory. A group that has half of the rows is kept in memory
    nevertheless. Of a ``piece`` of one subpartition, the values kept of each group are yielded, for
    :class:`GroupsOfPieces`.

    Raises ArithmeticOverflowError where a result is out of the range of its type, and OptionError
    where the shuffle is restricted by partial results of combined rows.
    """
    refuse_partial_filter(shuffle)
    if group_bytes is None:
        group_bytes = shuffle.options.working_set_bytes
    within = extent_of(subpartitions, shuffle.num_subpartitions)
    rows, weights = shuffle.weights(plan.columns, within=within)
    is_ordered = bool(shuffle.sort_by) and any(
        aggregation.function in IN_ORDER for aggregation in plan.aggregations
    )

    if piece is not None:
        rows, weights = (-(-each // piece.of) for each in (rows, weights))
    weights = np.maximum(weights, GROUP_BYTES * rows)
    origin = within.start
    for first, end in group_adjacent(weights, group_bytes, subpartitions, origin=origin):
        num_rows = int(rows[first - origin : end - origin].sum())
        for table in aggregate_in_passes(
            batches_again(shuffle, [(first, end)], plan.columns, ordered=is_ordered, piece=piece),
            plan,
            block_bytes=2 * group_bytes,
            num_rows=num_rows,
            finishes=piece is None,
        ):
            batches = table.to_batches()
            del table
            while batches:
                yield batches.pop(0)


def aggregate_in_passes(
    read: Callable[[], Iterable[pa.RecordBatch]],
    plan: AggregationPlan,
    *,
    block_bytes: int,
    num_rows: int,
    finishes: bool = True,
) -> Iterator[pa.Table]:
    """Aggregate rows, in several passes where they or the results take more than ``block_bytes``.

    ``read`` yields about ``num_rows`` rows with the columns of the plan; it is called for each
    pass. Unless it ``finishes``, what is kept of each group is yielded, by passes in an order that
    the rows decide.
    """
    result = _Groups.finished if finishes else _Groups.kept
    if not plan.can_merge:
        passes = in_passes(
            read, plan.keys, max_bytes=block_bytes, row_bytes=GROUP_BYTES, num_rows=num_rows
        )
        for _, batches in passes:
            groups = _Groups(plan, batches)
            del batches
            yield result(groups)
            del groups
        return
    waiting = [HashPass(tuple(plan.keys))]
    while waiting:
        found = _aggregate_pass(waiting.pop(), read, plan, block_bytes, num_rows)
        if isinstance(found, list):
            waiting += found
        else:
            yield result(found)
        del found


def _aggregate_pass(
    hash_pass: HashPass,
    read: Callable[[], Iterable[pa.RecordBatch]],
    plan: AggregationPlan,
    max_bytes: int,
    num_rows: int,
) -> _Groups | list[HashPass]:
    """Aggregate the rows of a pass; return passes to replace it where they have too many groups."""
    groups = _Groups(plan, [])
    rows_read = 0
    limit = max_bytes

    def taken(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal rows_read
        rows_read += batch.num_rows
        return hash_pass.rows_of(batch)

    rows = rebatched(map(taken, read()), min_rows=BATCH_ROWS, max_bytes=JOINED_BYTES)
    for batch in rows:
        groups.add(batch)
        del batch  # before the next one is made
        if groups.num_bytes <= limit:
            continue
        groups.combine()
        growth = expected_growth(groups.distinct_part, max(num_rows / rows_read, 1))
        times = groups.num_bytes * growth / max_bytes
        if times > LEAST_TIMES and limit == max_bytes:
            smaller = hash_pass.split_where_it_helps(groups.keys, times)
            if smaller:
                return smaller
        limit = max(max_bytes, groups.num_bytes * 3 // 2)
    return groups


class _Groups:
    """Rows, and the values kept of their groups once :meth:`combine` has made them of rows."""

    def __init__(self, plan: AggregationPlan, rows: list[pa.RecordBatch]) -> None:
        self._plan = plan
        self._rows = rows
        self._table: pa.Table | None = None
        self._num_combined = 0
        self.num_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep rows."""
        self._rows.append(batch)
        self.num_bytes += charged_bytes(batch, GROUP_BYTES)

    def combine(self) -> pa.Table:
        """Make one row for each group of all rows so far, of which there is one or more."""
        if self._rows:
            rows = pa.Table.from_batches(self._rows)
            self._rows.clear()
            self._num_combined += rows.num_rows
            table = self._plan.group(rows)
            del rows
            _release()
            if self._table is not None:
                tables = [self._table, table]
                self._table = None
                table = self._plan.merge(pa.concat_tables(tables))
                del tables
                _release()
            self._table = table
            self.num_bytes = int(table.nbytes) + GROUP_BYTES * int(table.num_rows)
        assert self._table is not None
        return self._table

    @property
    def distinct_part(self) -> float:
        """Groups of each row."""
        return int(self.combine().num_rows) / self._num_combined

    @property
    def keys(self) -> list[pa.RecordBatch]:
        """The key of each group."""
        batches: list[pa.RecordBatch] = self._plan.keys_of(self.combine()).to_batches()
        return batches

    def kept(self) -> pa.Table:
        """Return the values kept of each group, with which this is at its end."""
        table = self.combine() if self._rows or self._table is not None else None
        self._table = None
        return self._plan.kept_schema.empty_table() if table is None else table

    def finished(self) -> pa.Table:
        """Return the results, one row per group."""
        if not self._rows and self._table is None:
            return self._plan.schema.empty_table()
        table = self.combine()
        self._table = None
        result = self._plan.finish(table)
        del table
        _release()
        return result


@dataclass(frozen=True)
class GroupsOfPieces:
    """Makes the results of a subpartition of what was kept of the groups of its pieces."""

    plan: AggregationPlan

    @property
    def schema(self) -> pa.Schema:
        """Of what is kept."""
        return self.plan.kept_schema

    def num_bytes(self, kept: pa.RecordBatch) -> int:
        """Return the bytes that what is kept takes where it is merged."""
        return charged_bytes(kept, GROUP_BYTES)

    def merged(self, kept: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return what is kept of several pieces, in their order, as that of one."""
        batches: list[pa.RecordBatch] = self.plan.merge(pa.Table.from_batches(kept)).to_batches()
        return batches

    def finished(self, kept: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Return the results, one row per group; raises as :func:`aggregate_range`."""
        batches: list[pa.RecordBatch] = self.plan.finish(pa.Table.from_batches(kept)).to_batches()
        return batches


def _release() -> None:
    """Give back what was freed: Arrow's allocator keeps it for a while, in each thread."""
    pa.default_memory_pool().release_unused()
