"""Rows of a sorted shuffle by subpartition and sort keys: sorted in memory, or merged from regions.

The rows of a subpartition stand in order within each region only. Where they fit into memory
together they are sorted again; of a larger subpartition the regions are merged as they are read.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.batching import Rows
from arrow_format.sort_permutation import sort_permutation
from arrow_format.sorted_merge import merge_sorted
from arrow_format.spark_order import key_codes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from arrow_format.log_entry import LogEntry
    from arrow_format.model import MapOutput, PartitionedFile
    from arrow_format.read_plan import ChunkRead
    from arrow_format.sort_order import SortBy
    from arrow_format.subpartition_reader import SortMergeSubpartitionReader

    OpenReader = Callable[[int, int, Sequence[str]], SortMergeSubpartitionReader]

AHEAD_BYTES = 16 << 20
"""Stored bytes that all runs of a merge together read ahead, unless one chunk of each is more."""


def sorted_rows(
    open_reader: OpenReader,
    first: int,
    end: int,
    sort_by: SortBy,
    columns: Sequence[str] | None,
    *,
    hold_bytes: int,
) -> Iterator[Rows]:
    """Rows of subpartitions ``[first, end)``, by subpartition and within one by its sort keys.

    Ties come by version, map task, region and arrival.

    Parameters
    ----------
    open_reader
        Makes the reader of a range of subpartitions with the columns named.
    first, end
        Range of subpartitions.
    sort_by
        The keys by which each region is sorted, at least one.
    columns
        Columns to deliver; all when None.
    hold_bytes
        Raw bytes that may be held to be sorted; what is more is read subpartition by subpartition,
        and a subpartition that is more is merged.
    """
    wanted = columns if columns is None else [columns] if isinstance(columns, str) else [*columns]
    if wanted is not None:
        columns = [*wanted, *(name for name, _ in sort_by if name not in wanted)]
    reader = open_reader(first, end, columns)  # type: ignore[arg-type]
    held: list[Rows] = []
    held_bytes = 0
    for run in reader:
        held.append(run)
        held_bytes += run.batch.nbytes
        if held_bytes > hold_bytes:
            break
    else:
        if held:
            yield _only(_sorted(held, sort_by), wanted)
        return
    del held, run
    if end - first > 1:
        for one in range(first, end):
            yield from sorted_rows(
                open_reader, one, one + 1, sort_by, wanted, hold_bytes=hold_bytes
            )
        return
    for batch in merge_sorted(_runs(reader), sort_by):
        yield _only(Rows(batch, np.full(batch.num_rows, first, np.int32)), wanted)


def _only(rows: Rows, columns: Sequence[str] | None) -> Rows:
    """Leave out the sort keys that were not asked for."""
    return rows if columns is None else Rows(rows.batch.select(columns), rows.subpartitions)


def _sorted(runs: list[Rows], sort_by: SortBy) -> Rows:
    """All rows by subpartition and keys, stably; takes the list over and empties it."""
    ids = np.concatenate([run.subpartitions for run in runs])
    batch = runs[0].batch if len(runs) == 1 else pa.concat_batches([run.batch for run in runs])
    runs.clear()
    codes = key_codes([batch[name] for name, _ in sort_by], [order for _, order in sort_by])
    order = sort_permutation(codes, ids)
    del codes
    return Rows(batch.take(pa.array(order)), ids[order])


def _runs(reader: SortMergeSubpartitionReader) -> list[Iterator[pa.RecordBatch]]:
    """Each region's rows as a run; of a run, no more than its share is read ahead."""
    plans = [
        (file, list(chunks))
        for file in reader.files()
        for _, chunks in groupby(reader.file_plan(*file), key=lambda chunk: chunk.region)
    ]
    share = AHEAD_BYTES // max(len(plans), 1)
    return [_run(reader, file, plan, share) for file, plan in plans]


def _run(
    reader: SortMergeSubpartitionReader,
    file: tuple[LogEntry, MapOutput, PartitionedFile],
    plan: Iterable[ChunkRead],
    ahead_bytes: int,
) -> Iterator[pa.RecordBatch]:
    for part in _parts(plan, ahead_bytes):
        for rows in reader.file_rows(*file, part):
            yield rows.batch


def _parts(plan: Iterable[ChunkRead], most_bytes: int) -> Iterator[list[ChunkRead]]:
    """Cut a plan into pieces of at most so many stored bytes, or one chunk."""
    part: list[ChunkRead] = []
    num_bytes = 0
    for chunk in plan:
        if part and num_bytes + chunk.length > most_bytes:
            yield part
            part, num_bytes = [], 0
        part.append(chunk)
        num_bytes += chunk.length
    if part:
        yield part
