"""The end of a job: its map outputs become a version, or everything it wrote is removed."""

from __future__ import annotations

import time
import uuid
import zlib
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.commit_log import LOG_DIRECTORY, CommitLog, Snapshot
from arrow_format.errors import (
    CorruptShuffleError,
    ShuffleError,
)
from arrow_format.job import MAP_OUTPUT_DIRECTORY, ShuffleJob
from arrow_format.log_entry import LogEntry, TotalsFile, encode_totals
from arrow_format.options import check_mode
from arrow_format.partitioned_file import PartitionedFileReader
from arrow_format.receipt import ShuffleReceipt
from arrow_format.target import check_target
from arrow_format.totals import subpartition_totals
from arrow_format.widening import widen, widen_spark_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.model import Int64Array, MapOutput, MapStatus
    from arrow_format.storage import Storage


def commit_job(
    job: ShuffleJob,
    statuses: Sequence[MapStatus],
    *,
    mode: str = "errorifexists",
    expected_map_outputs: int | None = None,
) -> ShuffleReceipt:
    """Publish the map outputs of a job as one version.

    Committing a job again gives the receipt of the first time.

    Parameters
    ----------
    job
        From :func:`begin_job`.
    statuses
        One per map task, numbered from 0 without gaps.
    mode
        errorifexists, overwrite, append or ignore; with ``ignore`` and a shuffle that is there,
        the job's files are removed and the receipt is that of the newest version found.
    expected_map_outputs
        How many there must be, when that is known.

    Raises
    ------
    ShuffleError
        A map task is missing, there twice, or of another job.
    ShuffleExistsError, SchemaError
        As :func:`check_target`; another writer may have been faster.
    """
    check_mode(mode)
    log = CommitLog(job.storage)
    earlier = log.find_job(job.job_id)
    if earlier is not None:
        return receipt_of(job.storage, earlier)
    outputs = _complete(job, statuses, expected_map_outputs)
    rows, sizes = _totals(job, statuses)
    commit_id = uuid.uuid4().hex
    totals = encode_totals(rows, sizes)
    totals_path = f"{LOG_DIRECTORY}/totals-{commit_id}.arrow"
    described = TotalsFile(totals_path, len(totals), zlib.crc32(totals))
    written = False

    def decide(newest: Snapshot | None) -> LogEntry | None:
        nonlocal written
        check_target(job, mode)
        if newest is not None and mode == "ignore":
            return None
        if not written:
            job.storage.put_if_absent(totals_path, totals, sync=job.options.sync)
            written = True
        schema, spark_schema = job.data_schema, job.spark_schema
        appends = newest is not None and mode == "append"
        if newest is not None and appends:
            schema = widen(newest.newest.data_schema, schema)
            spark_schema = widen_spark_schema(newest.newest.spark_schema, spark_schema)
        return LogEntry(
            version=0,
            operation="append" if appends else "overwrite",
            shuffle_id=newest.newest.shuffle_id if newest else job.shuffle_id,
            job_id=job.job_id,
            commit_id=commit_id,
            committed_at_ms=time.time_ns() // 1_000_000,
            data_schema=schema,
            spark_schema=spark_schema,
            num_subpartitions=job.num_subpartitions,
            partitioner=job.partitioner.describe(),
            map_outputs=outputs,
            totals=described,
        )

    try:
        entry = log.append(decide, sync=job.options.sync)
    except BaseException:
        # Unless the entry is there after all, the totals belong to nothing.
        if written and log.find_job(job.job_id) is None:
            job.storage.delete(totals_path)
        job.storage.prune(LOG_DIRECTORY, and_root=False)
        raise
    if entry is None:
        abort_job(job)
        newest = log.snapshot()
        if newest is None:
            msg = f"{job.storage.root}: the shuffle that was there is gone"
            raise CorruptShuffleError(msg)
        return receipt_of(job.storage, newest.newest)
    _remove_losers(job, outputs)
    return _receipt(job.storage, entry, rows, sizes)


def _complete(
    job: ShuffleJob, statuses: Sequence[MapStatus], expected: int | None
) -> tuple[MapOutput, ...]:
    """Return the map outputs by map task, or an error when the set is not whole."""
    outputs = sorted((status.output for status in statuses), key=lambda output: output.map_task)
    strange = [output for output in outputs if output.job_id != job.job_id]
    if strange:
        msg = (
            f"{job.storage.root}: map task {strange[0].map_task} is of job {strange[0].job_id}, "
            f"not of {job.job_id}; nothing was committed"
        )
        raise ShuffleError(msg)
    count = len(outputs) if expected is None else expected
    found = [output.map_task for output in outputs]
    times = Counter(found)
    if found != list(range(count)):
        missing = sorted(set(range(count)) - set(found))
        twice = sorted(task for task, count in times.items() if count > 1)
        msg = (
            f"{job.storage.root}: expected one map output of each of {count} map tasks, found "
            f"{len(found)} (missing: {missing[:5] or 'none'}, more than once: "
            f"{twice[:5] or 'none'}); nothing was committed"
        )
        raise ShuffleError(msg)
    return tuple(outputs)


def _totals(job: ShuffleJob, statuses: Sequence[MapStatus]) -> tuple[Int64Array, Int64Array]:
    """Rows and bytes per subpartition over all map outputs."""
    n = job.num_subpartitions
    rows, sizes = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for status in statuses:
        if status.subpartition_rows is not None and status.subpartition_bytes is not None:
            added = [(status.subpartition_rows, status.subpartition_bytes)]
        else:
            added = [
                subpartition_totals(
                    PartitionedFileReader(job.storage, file).regions, n, file.data_bytes
                )
                for file in status.output.files
            ]
        for more_rows, more_sizes in added:
            rows += more_rows
            sizes += more_sizes
    return rows, sizes


def _remove_losers(job: ShuffleJob, outputs: Sequence[MapOutput]) -> None:
    """Remove what failed attempts of this job left; one that still runs is harmless."""
    live = {
        path.rpartition("/")[2]
        for output in outputs
        for file in output.files
        for path in (file.data_path, file.index_path)
    }
    for name in job.storage.list(job.directory):
        if name not in live:
            job.storage.delete(f"{job.directory}/{name}")
    if not live:
        job.storage.prune(job.directory, and_root=False)


def abort_job(job: ShuffleJob) -> None:
    """Remove everything the job wrote, unless it was committed."""
    if CommitLog(job.storage).find_job(job.job_id) is not None:
        return
    job.storage.delete_tree(job.directory)
    job.storage.prune(MAP_OUTPUT_DIRECTORY, and_root=job.makes_root)


def _receipt(
    storage: Storage, entry: LogEntry, rows: Int64Array, sizes: Int64Array
) -> ShuffleReceipt:
    return ShuffleReceipt(
        path=storage.root,
        version=entry.version,
        num_rows=entry.num_rows,
        num_bytes=entry.num_bytes,
        num_map_outputs=len(entry.map_outputs),
        num_subpartitions=entry.num_subpartitions,
        subpartition_rows=pa.array(rows),
        subpartition_bytes=pa.array(sizes),
    )


def receipt_of(storage: Storage, entry: LogEntry) -> ShuffleReceipt:
    """Return the receipt of an entry that is in the log."""
    only = Snapshot((entry,))
    return _receipt(storage, entry, *CommitLog(storage).totals(only))
