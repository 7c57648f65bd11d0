"""Commits in a few lines, for tests of what reads the log or follows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import check_target, open_target
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.model import Transaction
from arrow_format.options import WriteOptions
from arrow_format.storage.open import open_storage
from tests.support.small_shuffles import N, begin, numbered, run, write_tasks

if TYPE_CHECKING:
    from datetime import timedelta
    from pathlib import Path

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.model import MapStatus
    from arrow_format.process_identity import ProcessIdentity
    from arrow_format.storage.open import Place

PENDING_SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


def log_of(place: Place) -> CommitLog:
    return CommitLog(open_storage(place))


def add(
    path: Path | str,
    start: int,
    *,
    mode: str = "append",
    n: int = N,
    batch: pa.RecordBatch | None = None,
) -> int:
    """Write a row per subpartition, whose `v` counts up from `start`; return the version."""
    return write_tasks(path, [[batch or numbered(range(n), start)]], n, mode=mode).version


def start_job(
    path: Path | str, start: int = 1000, **options: Any
) -> tuple[ShuffleJob, list[MapStatus]]:
    """Begin a job whose map task has ended, ready to commit."""
    job = begin(path, options=WriteOptions(sync=False, **options))
    open_target(job, "append")
    return job, [run(job, 0, range(N), start=start)]


def fence(path: Path | str, job_id: str = "lost") -> int:
    """Give a job up; return the number that this took."""
    log = log_of(path)
    assert log.give_up(job_id, after=0, sync=False)
    return log.newest_version()


def put(
    path: Path | str,
    rows: list[tuple[int, int]],
    *,
    batch: int | None = None,
    mode: str = "append",
    pending: bool = True,
    partitioner: Partitioner | None = None,
    schema: pa.Schema = PENDING_SCHEMA,
    owner: ProcessIdentity | None = None,
    interval: timedelta | None = None,
    **options: Any,
) -> ShuffleReceipt:
    """Commit rows (pairs of k and v) as pending, as a micro-batch of a query does."""
    partitioner = partitioner or HashPartitioner("k")
    job = begin(path, schema, 4, partitioner, WriteOptions(sync=False, **options), owner=owner)
    if pending:
        check_target(job, mode, pending=True)
    else:
        open_target(job, mode)
    columns = [list(column) for column in zip(*rows, strict=True)] or [[], []]
    batches = [pa.record_batch(columns, schema=schema)]
    return commit_job(
        job,
        [run_map_task(job, 0, 0, batches)],
        mode=mode,
        pending=pending,
        flush_interval=interval if pending else None,
        transaction=None if batch is None else Transaction("query", batch),
    )
