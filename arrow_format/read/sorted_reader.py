"""Reads a sorted shuffle by subpartition and sort keys: one step of its own after the readers.

The rows of a subpartition are sorted within each region only. Where they fit into memory together
they are sorted again; the regions of a larger subpartition are merged as they are read.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.gather import gathered
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import joined
from arrow_format.keys.merge_runs import merge_sorted, merging_bytes
from arrow_format.keys.spark_order import key_codes
from arrow_format.read.rows import HeldRuns, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader

    OpenReader = Callable[[int, int, Sequence[str]], SortMergeSubpartitionReader]


def sorted_rows(
    open_reader: OpenReader,
    first: int,
    end: int,
    sort_by: SortBy,
    columns: Sequence[str] | None,
    *,
    hold_bytes: int,
) -> Iterator[Rows]:
    """Yield the rows of subpartitions ``[first, end)`` by subpartition, then sort keys, stably.

    Ties come by version, map task, region and arrival. ``open_reader`` makes the reader of a range
    of subpartitions with the given columns. At most ``hold_bytes`` of rows are held to be sorted or
    merged, or 32 KiB for each region if that is more: a larger range is read subpartition by
    subpartition, and the regions of a larger subpartition are merged.
    """
    wanted = columns if columns is None else [columns] if isinstance(columns, str) else [*columns]
    if wanted is not None:
        columns = [*wanted, *(name for name, _ in sort_by if name not in wanted)]
    reader = open_reader(first, end, columns)  # type: ignore[arg-type]
    held = HeldRuns(hold_bytes)
    for run in reader:
        if not held.add(run):
            break
    else:
        if held.runs:
            yield _only(_sorted(held.runs, sort_by), wanted)
        return
    del held, run
    if end - first > 1:
        for number in range(first, end):
            yield from sorted_rows(
                open_reader, number, number + 1, sort_by, wanted, hold_bytes=hold_bytes
            )
        return
    runs = [
        map(attrgetter("batch"), run)
        for run in reader.runs(hold_bytes, merging_bytes(reader.schema, sort_by))
    ]
    for batch in merge_sorted(runs, sort_by, max_bytes=hold_bytes):
        yield _only(Rows(batch, np.full(batch.num_rows, first, np.int32)), wanted)


def _only(rows: Rows, columns: Sequence[str] | None) -> Rows:
    """Drop the sort keys that the consumer did not ask for."""
    return rows if columns is None else Rows(rows.batch.select(columns), rows.where)


def _sorted(runs: list[Rows], sort_by: SortBy) -> Rows:
    """Return all rows by subpartition and keys, stably; empties the list."""
    ids = np.concatenate([run.subpartitions for run in runs])
    batch = joined([run.batch for run in runs])
    runs.clear()
    codes = key_codes([batch[name] for name, _ in sort_by], [order for _, order in sort_by])
    order = sort_permutation(codes, ids)
    del codes
    rows = to_arrow(order)
    columns = [gathered(column, rows) for column in batch.columns]
    return Rows(pa.RecordBatch.from_arrays(columns, schema=batch.schema), ids[order])
