"""One write of a shuffle, from first check to commit: what Spark's tasks and one process share.

``begin_job`` on the driver, ``run_map_task`` for every map task, ``commit_job`` or ``abort_job``
on the driver. Nothing is visible to readers before the commit, and everything after it.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrow_types import data_schema, normalise
from arrow_format.commit_log import LOG_DIRECTORY, CommitLog, Snapshot
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    SchemaError,
    ShuffleError,
    ShuffleExistsError,
)
from arrow_format.log_entry import LogEntry, TotalsFile, encode_totals
from arrow_format.model import Int64Array, MapOutput, MapStatus, PartitionedFileMetadata
from arrow_format.options import WriteOptions, check_mode, check_num_subpartitions
from arrow_format.partitioned_file import PartitionedFileReader
from arrow_format.receipt import ShuffleReceipt
from arrow_format.result_partition import SortMergeResultPartition
from arrow_format.storage import Storage, open_storage
from arrow_format.totals import subpartition_totals
from arrow_format.widening import is_appendable, same_spark_type, widen, widen_spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from arrow_format.partitioner import Partitioner

MAP_OUTPUT_DIRECTORY = "map_outputs"


@dataclass(frozen=True, slots=True)
class ShuffleJob:
    """Everything a map task and the commit must agree on; travels to the tasks by pickle."""

    storage: Storage
    job_id: str
    shuffle_id: str
    data_schema: pa.Schema
    spark_schema: str | None
    num_subpartitions: int
    partitioner: Partitioner
    options: WriteOptions

    @property
    def directory(self) -> str:
        """Directory of the job's map outputs, relative to the shuffle."""
        return f"{MAP_OUTPUT_DIRECTORY}/{self.job_id}"


def begin_job(
    path: str,
    schema: pa.Schema,
    *,
    num_subpartitions: int,
    partitioner: Partitioner,
    options: WriteOptions | None = None,
    spark_schema: str | None = None,
) -> ShuffleJob:
    """Check what can be checked before any row moves, and name the job.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    schema
        Schema of the batches to come; what is stored is its
        :func:`~arrow_format.arrow_types.data_schema`.
    num_subpartitions
        1 to 1,000,000.
    partitioner
        Decides the subpartition of each row.
    options
        How to write; defaults when None.
    spark_schema
        Spark's JSON of the schema, kept for reading back through Spark.

    Raises
    ------
    OptionError, SchemaError
        Something does not fit; the message names it.
    """
    check_num_subpartitions(num_subpartitions)
    stored = data_schema(schema)
    partitioner.check(stored)
    return ShuffleJob(
        storage=open_storage(path),
        job_id=uuid.uuid4().hex,
        shuffle_id=uuid.uuid4().hex,
        data_schema=stored,
        spark_schema=spark_schema,
        num_subpartitions=num_subpartitions,
        partitioner=partitioner,
        options=options or WriteOptions(),
    )


def check_target(job: ShuffleJob, mode: str) -> Snapshot | None:
    """Check the path against the write mode; return the newest version there, if any.

    Raises
    ------
    ShuffleExistsError
        The path is a file, holds something that is no shuffle, or a shuffle where the mode wants
        none.
    SchemaError
        Mode append, and schema, partitioner or number of subpartitions differ.
    """
    check_mode(mode)
    storage = job.storage
    stat = storage.stat("")
    if stat is not None and not stat.is_directory:
        msg = f"{storage.root}: is a file; give a directory for the shuffle"
        raise ShuffleExistsError(msg)
    snapshot = CommitLog(storage).snapshot()
    if snapshot is None:
        foreign = set(storage.list("")) - {LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY}
        if foreign:
            msg = (
                f"{storage.root}: holds {min(foreign)!r} and is no shuffle; nothing was touched. "
                "Give a new or empty directory"
            )
            raise ShuffleExistsError(msg)
    elif mode == "errorifexists":
        msg = (
            f"{storage.root}: there is a shuffle already (version {snapshot.version}); choose "
            "another path, or mode append, overwrite or ignore"
        )
        raise ShuffleExistsError(msg)
    elif mode == "append":
        _check_appendable(job, snapshot)
    return snapshot


def _check_appendable(job: ShuffleJob, snapshot: Snapshot) -> None:
    there = snapshot.newest
    if not is_appendable(there.data_schema, job.data_schema):
        differing = [
            f"{name}: {_field(there.data_schema, name)} there, {_field(job.data_schema, name)} here"
            for name in dict.fromkeys([*there.data_schema.names, *job.data_schema.names])
            if _field(there.data_schema, name) != _field(job.data_schema, name)
        ]
        found = "; ".join(differing) or "the columns stand in another order"
        msg = f"{job.storage.root}: cannot append rows of another schema: {found}"
        raise SchemaError(msg)
    if there.spark_schema and job.spark_schema:
        ours, theirs = json.loads(job.spark_schema), json.loads(there.spark_schema)
        if not same_spark_type(theirs, ours):
            msg = (
                f"{job.storage.root}: cannot append rows of other Spark types: {theirs['fields']} "
                f"there, {ours['fields']} here"
            )
            raise SchemaError(msg)
    if there.num_subpartitions != job.num_subpartitions:
        msg = (
            f"{job.storage.root}: has {there.num_subpartitions} subpartitions; cannot append with "
            f"{job.num_subpartitions}"
        )
        raise SchemaError(msg)
    if dict(there.partitioner) != job.partitioner.describe():
        msg = (
            f"{job.storage.root}: is partitioned by {dict(there.partitioner)}; cannot append rows "
            f"partitioned by {job.partitioner.describe()}"
        )
        raise SchemaError(msg)


def _field(schema: pa.Schema, name: str) -> str:
    index = schema.get_field_index(name)
    return "absent" if index < 0 else str(schema.field(index).type)


def open_target(job: ShuffleJob, mode: str) -> Snapshot | None:
    """Check the target and make the job's directory.

    So that a path that cannot be written fails here and not in every task; raises what
    :func:`check_target` raises, and StorageError.
    """
    snapshot = check_target(job, mode)
    if snapshot is None or mode != "ignore":
        job.storage.make_directory(job.directory, sync=job.options.sync)
    return snapshot


def run_map_task(
    job: ShuffleJob, map_task: int, attempt: int, batches: Iterable[pa.RecordBatch]
) -> MapStatus:
    """Write the rows of one attempt of a map task.

    Parameters
    ----------
    job
        From :func:`begin_job`.
    map_task
        Number of the task, from 0.
    attempt
        Which try this is; attempts never share a file.
    batches
        The rows. They are brought to the data schema here.

    Returns
    -------
    MapStatus
        For :func:`commit_job`. On an exception nothing of this attempt is left.
    """
    metadata = PartitionedFileMetadata(
        shuffle_id=job.shuffle_id,
        job_id=job.job_id,
        map_task=map_task,
        attempt=attempt,
        data_schema=job.data_schema,
        num_subpartitions=job.num_subpartitions,
        partitioner=job.partitioner.describe(),
    )
    assign = job.partitioner.bind(job.data_schema, job.num_subpartitions, map_task)
    with SortMergeResultPartition(job.storage, job.directory, metadata, job.options) as partition:
        for batch in batches:
            rows = normalise(batch, job.data_schema)
            ids = assign(rows)
            _check_assignment(job, ids, rows.num_rows)
            partition.emit(rows, ids)
        return partition.finish()


def _check_assignment(job: ShuffleJob, ids: npt.NDArray[Any], num_rows: int) -> None:
    """Refuse what a user's own partitioner may answer: rows would be lost or unreadable."""
    sound = ids.shape == (num_rows,) and ids.dtype.kind in "iu"
    if sound and (num_rows == 0 or (ids.min() >= 0 and ids.max() < job.num_subpartitions)):
        return
    msg = (
        f"partitioner {job.partitioner!r} gave {ids.dtype} values of shape {ids.shape} for "
        f"{num_rows} rows, from {ids.min(initial=0)} to {ids.max(initial=0)}; expected one whole "
        f"number per row, from 0 to {job.num_subpartitions - 1}"
    )
    raise OptionError(msg)


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
    if found != list(range(count)):
        missing = sorted(set(range(count)) - set(found))
        twice = sorted({task for task in found if found.count(task) > 1})
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
    job.storage.prune(MAP_OUTPUT_DIRECTORY, and_root=True)


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
