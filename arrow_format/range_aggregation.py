"""The aggregation of a range of subpartitions of a shuffle, within bounded memory.

A group of rows lies in one subpartition, so adjacent small subpartitions are aggregated together,
and a large one piece by piece where the functions allow.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.aggregation_plan import AggregationPlan, grouped
from arrow_format.batching import rebatched
from arrow_format.canonical_floats import canonical_floats
from arrow_format.read_plan import group_adjacent

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence

    from arrow_format.dataset import Shuffle


MERGE_ROWS = 1 << 20
"""Results over parts are merged when there are as many rows, and twice as many as last time."""

IN_ORDER = frozenset({"first", "last", "first_last", "list", "one"})
"""Functions whose result depends on the order of rows."""


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
        options allow. A subpartition of more is held
        whole if a function needs that (:data:`~arrow_format.aggregation_plan.MERGED_BY` has those
        that do not), otherwise as many bytes of it, and the results.

    Raises
    ------
    CorruptShuffleError
        A file is damaged or missing.
    """
    if group_bytes is None:
        group_bytes = shuffle.options.worked_on_bytes
    weights = shuffle.raw_bytes.to_numpy()
    ordered = bool(shuffle.sort_by) and any(one.function in IN_ORDER for one in plan.aggregations)
    for first, end in group_adjacent(weights, group_bytes, subpartitions):
        runs = (
            shuffle.rows(range(first, end), plan.columns)
            if ordered
            else shuffle.reader(first, end, plan.columns)
        )
        # A generator's variable would keep each run until the next is read; map keeps none.
        batches = map(attrgetter("batch"), runs)
        table = aggregate_blocks(batches, plan, block_bytes=2 * group_bytes)
        yield from table.to_batches()


def aggregate_blocks(
    batches: Iterable[pa.RecordBatch],
    plan: AggregationPlan,
    *,
    block_bytes: int,
    merge_rows: int = MERGE_ROWS,
) -> pa.Table:
    """Aggregate rows, of which no more than about ``block_bytes`` are held if the plan allows.

    Parameters
    ----------
    batches
        With the columns of the plan.
    plan
        How.
    block_bytes
        Raw bytes of the columns that are read.
    merge_rows
        Rows of results over parts that are merged into one.
    """
    parts: list[pa.Table] = []
    num_rows, next_merge = 0, merge_rows
    size = block_bytes if plan.can_merge else 1 << 62
    for block in rebatched(batches, min_rows=1 << 62, max_bytes=size):
        parts.append(_aggregated(_canonical(block, plan.keys), plan))
        del block  # before the next one is made
        num_rows += parts[-1].num_rows
        if num_rows >= next_merge and len(parts) > 1:
            parts = [_merged(parts, plan)]
            num_rows = parts[0].num_rows
            next_merge = max(merge_rows, 2 * num_rows)
    if not parts:
        return plan.schema.empty_table()
    return parts[0] if len(parts) == 1 else _merged(parts, plan)


def _canonical(block: pa.RecordBatch, keys: Sequence[str]) -> pa.Table:
    columns = [
        canonical_floats(column) if name in keys else column
        for name, column in zip(block.schema.names, block.columns, strict=True)
    ]
    return pa.table(columns, names=block.schema.names)


def _aggregated(table: pa.Table, plan: AggregationPlan) -> pa.Table:
    return grouped(table, plan.keys, plan.aggregations)


def _merged(parts: list[pa.Table], plan: AggregationPlan) -> pa.Table:
    again = tuple(
        replace(one, columns=(one.name,), function=one.merged_by or one.function)
        for one in plan.aggregations
    )
    return grouped(pa.concat_tables(parts), plan.keys, again)
