"""The aggregation of a range of subpartitions of a shuffle, within bounded memory.

A group of rows lies in one subpartition, so adjacent small subpartitions are aggregated together,
and a large one piece by piece where the functions allow.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.buffers import to_numpy
from arrow_format.arrays.conversion import canonical_floats
from arrow_format.operators.aggregate_functions import IN_ORDER
from arrow_format.operators.hash_passes import HashPass, in_passes
from arrow_format.read.plan import group_adjacent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from arrow_format.operators.aggregation_plan import AggregationPlan
    from arrow_format.read.shuffle import Shuffle


MERGE_ROWS = 1 << 20
"""Results over parts are merged when there are as many rows, and twice as many as last time."""

GROUP_BYTES = 100
"""What a row counts beside its own bytes: Arrow's hash table and states, if it is a group."""


def aggregate_range(
    shuffle: Shuffle,
    plan: AggregationPlan,
    subpartitions: Sequence[int] | None = None,
    *,
    group_bytes: int | None = None,
) -> Generator[pa.RecordBatch]:
    """Yield one row per group of rows with equal keys.

    Nulls form a group; so do NaN, and -0.0 with 0.0. Where a function depends on the order of rows,
    that is the order of the shuffle.

    Parameters
    ----------
    shuffle
        What to aggregate.
    plan
        How; made for this shuffle.
    subpartitions
        Ascending without repetition; all when None.
    group_bytes
        Raw bytes of adjacent subpartitions that are held together; when None, what the shuffle's
        options allow. A subpartition of more is read in passes, each of some of its groups, where a
        function needs whole groups (a list, a set, distinct values, a standard deviation) or the
        results are more. A group that has half of the rows is held nevertheless.

    Raises
    ------
    ArithmeticOverflowError
        A result is outside of what its type holds; names the column and the group.
    CorruptShuffleError
        A file is damaged or missing.
    """
    if group_bytes is None:
        group_bytes = shuffle.options.working_set_bytes
    weights = to_numpy(shuffle.raw_bytes)
    rows = to_numpy(shuffle.subpartition_rows)
    ordered = bool(shuffle.sort_by) and any(one.function in IN_ORDER for one in plan.aggregations)

    def read(first: int, end: int) -> Iterator[pa.RecordBatch]:
        runs = (
            shuffle.rows(range(first, end), plan.columns)
            if ordered
            else shuffle.reader(first, end, plan.columns)
        )
        # A generator's variable would keep each run until the next is read; map keeps none.
        return map(attrgetter("batch"), runs)

    weights = np.maximum(weights, GROUP_BYTES * rows)
    for first, end in group_adjacent(weights, group_bytes, subpartitions):
        num_rows = int(rows[first:end].sum())
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
    """Aggregate rows, in passes where they or the results are more than may be held.

    Parameters
    ----------
    read
        Reads batches with the columns of the plan; called for each pass.
    plan
        How.
    block_bytes
        Raw bytes of rows, and of results, that are held.
    num_rows
        How many rows there are, about.
    merge_rows
        Rows of results over parts that are merged into one.
    """
    if not plan.can_merge:
        passes = in_passes(
            read, plan.keys, max_bytes=block_bytes, row_bytes=GROUP_BYTES, num_rows=num_rows
        )
        for _, held in passes:
            if not held:
                yield plan.schema.empty_table()
                continue
            kept = _grouped(held, plan)
            held.clear()
            table = plan.finish(kept)
            del kept
            yield table
            del table
        return
    block_rows = max(block_bytes // (2 * GROUP_BYTES), 1)
    waiting = [HashPass(tuple(plan.keys))]
    while waiting:
        one = waiting.pop()
        results = _Results(plan, block_bytes // 2, merge_rows)
        seen = 0
        may_split = True
        was_merged = False
        for block in rebatched(read(), min_rows=block_rows, max_bytes=block_bytes):
            if was_merged and may_split and results.num_bytes > block_bytes // 2:
                times = 2 * results.num_bytes / block_bytes * min(max(num_rows / seen, 1), 2)
                keys = plan.keys_of(results.kept()).to_batches()
                smaller = one.split_where_it_helps(keys, times)
                if smaller:
                    waiting += smaller
                    break
                may_split = False
            seen += block.num_rows
            was_merged = results.add(one.rows_of(block))
            del block  # before the next one is made
        else:
            yield results.finished()
        del results


class _Results:
    """What is kept of groups over parts of the rows, merged now and then."""

    def __init__(self, plan: AggregationPlan, max_bytes: int, merge_rows: int) -> None:
        self._plan = plan
        self._parts: list[pa.Table] = []
        self._max_bytes = self._next_bytes = max_bytes
        self._most_rows = self._next_rows = merge_rows
        self.num_bytes = 0
        """Of what is kept, that of equal keys not merged yet included."""

    def add(self, block: pa.RecordBatch) -> bool:
        """Aggregate some rows; True when all that is kept was merged into one."""
        self._parts.append(_grouped([block], self._plan))
        self.num_bytes += _held_bytes(self._parts[-1])
        num_rows = sum(part.num_rows for part in self._parts)
        if num_rows < self._next_rows and self.num_bytes < self._next_bytes:
            return False
        kept = self.kept()
        self.num_bytes = _held_bytes(kept)
        self._next_bytes = max(self._max_bytes, 3 * self.num_bytes // 2)
        self._next_rows = max(self._most_rows, 2 * kept.num_rows)
        return True

    def kept(self) -> pa.Table:
        """Merge all that is kept, once rows were added; one row per group."""
        if len(self._parts) > 1:
            self._parts = [self._plan.merge(pa.concat_tables(self._parts))]
        return self._parts[0]

    def finished(self) -> pa.Table:
        """Return the results, one row per group."""
        return self._plan.finish(self.kept()) if self._parts else self._plan.schema.empty_table()


def _held_bytes(kept: pa.Table) -> int:
    return int(kept.nbytes) + GROUP_BYTES * int(kept.num_rows)


def _grouped(batches: Sequence[pa.RecordBatch], plan: AggregationPlan) -> pa.Table:
    """Return what is kept of each group of some rows, one batch or more."""
    names = batches[0].schema.names
    canonical = [
        [
            canonical_floats(c) if name in plan.keys else c
            for name, c in zip(names, batch.columns, strict=True)
        ]
        for batch in batches
    ]
    tables = [pa.table(columns, names=names) for columns in canonical]
    return plan.group(pa.concat_tables(tables))
