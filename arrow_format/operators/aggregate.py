"""The aggregation of a range of subpartitions of a shuffle, within bounded memory.

All rows of a group are in one subpartition. Small adjacent subpartitions are aggregated together, a
large one block by block where the functions allow it.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.conversion import canonical_floats
from arrow_format.operators.aggregate_functions import IN_ORDER
from arrow_format.operators.aggregation_plan import refuse_partial_filter
from arrow_format.operators.hash_passes import HashPass, in_passes
from arrow_format.read.plan import extent_of, group_adjacent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from arrow_format.operators.aggregation_plan import AggregationPlan
    from arrow_format.read.shuffle import Shuffle


MERGE_ROWS = 1 << 20
"""Partial results are merged from so many rows on, and then at twice what the merge left."""

GROUP_BYTES = 100
"""Charged for a row in addition to its bytes: Arrow's hash table and states, if it is a group."""


def aggregate_range(
    shuffle: Shuffle,
    plan: AggregationPlan,
    subpartitions: Sequence[int] | None = None,
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
    nevertheless.

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

    def read(first: int, end: int) -> Iterator[pa.RecordBatch]:
        runs = (
            shuffle.rows(range(first, end), plan.columns)
            if is_ordered
            else shuffle.reader(first, end, plan.columns)
        )
        # A generator's variable would keep each run until the next is read; map keeps none.
        return map(attrgetter("batch"), runs)

    weights = np.maximum(weights, GROUP_BYTES * rows)
    origin = within.start
    for first, end in group_adjacent(weights, group_bytes, subpartitions, origin=origin):
        num_rows = int(rows[first - origin : end - origin].sum())
        for table in aggregate_in_passes(
            partial(read, first, end), plan, block_bytes=2 * group_bytes, num_rows=num_rows
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
    merge_rows: int = MERGE_ROWS,
) -> Iterator[pa.Table]:
    """Aggregate rows, in several passes where they or the results take more than ``block_bytes``.

    ``read`` yields about ``num_rows`` rows with the columns of the plan; it is called for each
    pass. Partial results are merged from ``merge_rows`` on.
    """
    if not plan.can_merge:
        passes = in_passes(
            read, plan.keys, max_bytes=block_bytes, row_bytes=GROUP_BYTES, num_rows=num_rows
        )
        for _, batches in passes:
            if not batches:
                yield plan.schema.empty_table()
                continue
            groups = _grouped(batches, plan)
            batches.clear()
            table = plan.finish(groups)
            del groups
            yield table
            del table
        return
    block_rows = max(block_bytes // (2 * GROUP_BYTES), 1)
    waiting = [HashPass(tuple(plan.keys))]
    while waiting:
        hash_pass = waiting.pop()
        results = _PartialResults(plan, block_bytes // 2, merge_rows)
        rows_read = 0
        may_split = True
        was_merged = False
        for block in rebatched(read(), min_rows=block_rows, max_bytes=block_bytes):
            if was_merged and may_split and results.num_bytes > block_bytes // 2:
                times = 2 * results.num_bytes / block_bytes * min(max(num_rows / rows_read, 1), 2)
                keys = plan.keys_of(results.merged()).to_batches()
                smaller = hash_pass.split_where_it_helps(keys, times)
                if smaller:
                    waiting += smaller
                    break
                may_split = False
            rows_read += block.num_rows
            was_merged = results.add(hash_pass.rows_of(block))
            del block  # before the next one is made
        else:
            yield results.finished()
        del results


class _PartialResults:
    """Values kept of groups, one table per block of rows, merged from time to time."""

    def __init__(self, plan: AggregationPlan, max_bytes: int, merge_rows: int) -> None:
        self._plan = plan
        self._parts: list[pa.Table] = []
        self._max_bytes = self._next_bytes = max_bytes
        self._max_rows = self._next_rows = merge_rows
        self.num_bytes = 0
        """Of all parts, groups that are not merged yet counted repeatedly."""

    def add(self, block: pa.RecordBatch) -> bool:
        """Aggregate a block; return whether all parts were merged into one."""
        self._parts.append(_grouped([block], self._plan))
        self.num_bytes += _charged_bytes(self._parts[-1])
        num_rows = sum(part.num_rows for part in self._parts)
        if num_rows < self._next_rows and self.num_bytes < self._next_bytes:
            return False
        merged = self.merged()
        self.num_bytes = _charged_bytes(merged)
        self._next_bytes = max(self._max_bytes, 3 * self.num_bytes // 2)
        self._next_rows = max(self._max_rows, 2 * merged.num_rows)
        return True

    def merged(self) -> pa.Table:
        """Merge all parts, at least one, to one row per group."""
        if len(self._parts) > 1:
            self._parts = [self._plan.merge(pa.concat_tables(self._parts))]
        return self._parts[0]

    def finished(self) -> pa.Table:
        """Return the results, one row per group."""
        return self._plan.finish(self.merged()) if self._parts else self._plan.schema.empty_table()


def _charged_bytes(groups: pa.Table) -> int:
    return int(groups.nbytes) + GROUP_BYTES * int(groups.num_rows)


def _grouped(batches: Sequence[pa.RecordBatch], plan: AggregationPlan) -> pa.Table:
    """Return the values kept of each group of one batch or more."""
    names = batches[0].schema.names
    tables = []
    for batch in batches:
        columns = [
            canonical_floats(column) if name in plan.keys else column
            for name, column in zip(names, batch.columns, strict=True)
        ]
        tables.append(pa.table(columns, names=names))
    return plan.group(pa.concat_tables(tables))
