"""Rows of customers, of which some are to be deleted: written, and read per subpartition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format import HashPartitioner, WriteOptions, erasure_status, open_shuffle
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.model import BROADCAST
from tests.support.foreign_writer import written_by
from tests.support.small_shuffles import begin, collect, write_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from arrow_format import DeletionReceipt
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int32Array
    from arrow_format.storage.open import Place

N = 6
TINY = WriteOptions(sync=False, sort_buffer_bytes=16_384, chunk_bytes=300, statistics="all")
BY_KEY = HashPartitioner("k")


def some_for_all(ids: Int32Array, batch: pa.RecordBatch) -> Int32Array:
    """As by hash, but every fifth row is read by every subpartition."""
    ids[::5] = BROADCAST
    return ids


def rows(start: int, count: int = 400, num_keys: int = 40) -> pa.Table:
    """Rows of so many keys ``k``, with a number each, and a text that names the customer."""
    v = np.arange(start, start + count)
    return pa.table({"k": v % num_keys, "v": v, "s": [f"customer {i % num_keys}!" for i in v]})


def append(path: Place, start: int, *, options: WriteOptions = TINY, **how: Any) -> ShuffleReceipt:
    """Append 400 rows as one map output."""
    keys = None if "partitioner" in how else "k"
    return write_rows(path, rows(start), keys, n=N, options=options, **{"mode": "append", **how})


def append_tasks(
    path: Path,
    start: int,
    num_tasks: int = 3,
    partitioner: Partitioner | None = None,
    options: WriteOptions = TINY,
    sort_by: SortBy = (),
) -> ShuffleReceipt | None:
    """Append several map outputs by one job; by hash, some rows are for all subpartitions."""
    table = rows(start)
    job = begin(path, table.schema, N, partitioner or BY_KEY, options, sort_by=sort_by)
    if partitioner is None:
        job = written_by(job, some_for_all)
    open_target(job, "append")
    size = -(-len(table) // num_tasks)
    statuses = [
        run_map_task(job, i, 0, table.slice(i * size, size).to_batches(max_chunksize=50))
        for i in range(num_tasks)
    ]
    return commit_job(job, statuses, mode="append")


def contents(path: Place, version: int | None = None) -> list[pa.Table]:
    """Rows of each subpartition, in reading order."""
    shuffle = open_shuffle(path, version)
    return [shuffle.subpartition(i).read_all() for i in range(shuffle.num_subpartitions)]


def without(
    tables: Iterable[pa.Table], keys: Collection[object], column: str = "k"
) -> list[pa.Table]:
    """Rows of tables that have none of some keys."""
    return [
        table.filter(pa.array([k not in keys for k in table[column].to_pylist()], pa.bool_()))
        for table in tables
    ]


def status_after(
    place: Place, receipt: DeletionReceipt, times: int = 1, **how: Any
) -> DeletionReceipt:
    """Collect garbage, and ask what of a deletion is left."""
    collect(place, times, **how)
    return erasure_status(place, receipt)
