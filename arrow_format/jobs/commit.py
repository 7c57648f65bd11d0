"""The commit of a job: its map outputs become a version, or are pending until a flush."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.schema_evolution import widen, widen_spark_schema
from arrow_format.errors import CorruptShuffleError, ShuffleError
from arrow_format.jobs.back_pressure import await_consumers
from arrow_format.jobs.cleanup import abort_job, clean_up, remove_losers
from arrow_format.jobs.decision import decide_commit, withdraw
from arrow_format.jobs.map_outputs import check_files, complete_outputs, total_subpartitions
from arrow_format.jobs.receipt import ShuffleReceipt
from arrow_format.jobs.target import check_fits_pending, check_mode_allows, is_added_to
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import LogEntry, TotalsFile
from arrow_format.log.names import totals_path
from arrow_format.log.pending import last_pending, pending_numbers
from arrow_format.log.record import PENDING, PENDING_OVERWRITE, Pending, entry_of
from arrow_format.log.result import ResultDescription, describe_result, released_error
from arrow_format.log.totals_file import encode_totals, put_totals
from arrow_format.log.transactions import find_transaction
from arrow_format.options import check_mode
from arrow_format.storage.open import ObjectNotFoundError, Storage
from arrow_format.write.counters import sum_counters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import Int64Array, MapOutput, MapStatus, Transaction


def commit_job(
    job: ShuffleJob,
    statuses: Sequence[MapStatus],
    *,
    mode: str = "errorifexists",
    expected_map_outputs: int | None = None,
    transaction: Transaction | None = None,
    pending: bool = False,
    flushes: tuple[int, ...] = (),
) -> ShuffleReceipt:
    """Publish the map outputs of a job as one version.

    Committing a job again returns the receipt of the first commit. So does committing a transaction
    again, in whatever job: that job's files are removed.

    Parameters
    ----------
    job, statuses
        From :func:`begin_job`; one status per map task, numbered from 0 without gaps.
    mode
        errorifexists, overwrite, append or ignore; with ``ignore`` and an existing shuffle, the
        job's files are removed and the receipt is that of the newest version.
    expected_map_outputs
        How many there must be, when that is known.
    transaction
        Where it, or a later one of the same application, is in the log already, the receipt is that
        of its commit.
    pending
        Commit as part of no version yet, see :mod:`arrow_format.log.pending`; the receipt has the
        number in the log in the place of a version.
    flushes
        Pending numbers of the log that this version publishes. If they are no longer pending,
        another process has published them: this job's files are removed and the newest version's
        receipt is returned.

    Raises
    ------
    ShuffleNotFoundError
        The job, or the transaction, was committed before, and that version has expired since.
    ShuffleError
        The map outputs are incomplete or of another job; the job was aborted, or another process is
        committing it; or readers would refuse the entry.
    CorruptShuffleError
        A file of a map output was removed or changed.
    ShuffleExistsError, SchemaError
        As :func:`check_target`; another writer may have been faster.
    BackPressureTimeoutError
        The consumers of a bounded result did not consume enough of it in time.
    ResultReleasedError
        What was to be flushed was released meanwhile.
    """
    check_mode(mode)
    log = CommitLog(job.storage)
    earlier = _committed_entry(job, log)
    if earlier is not None:
        return receipt_of(job.storage, earlier)
    before = None if transaction is None else find_transaction(log, transaction)
    if before is not None:
        with contextlib.suppress(ShuffleError):  # garbage collection removes what is left
            abort_job(job, failed=False)
        return receipt_of(job.storage, log.committed(before.version))
    outputs = complete_outputs(job, statuses, expected_map_outputs)
    rows, sizes = total_subpartitions(job, statuses)
    commit_id = uuid.uuid4().hex
    totals = encode_totals(rows, sizes)
    described = TotalsFile.of(totals_path(job.job_id, commit_id), totals)
    written = False

    def decide(newest: Snapshot | None) -> LogEntry | Pending | None:
        nonlocal before, written
        # Each time, since another job of the same transaction may have been faster. This lists the
        # log again, so it sees all that is before the number that is tried.
        before = None if transaction is None else find_transaction(log, transaction)
        if before is not None:
            return None
        if flushes and not log.read(partial(pending_numbers, log)).begins_with(flushes):
            return None
        check_mode_allows(job, mode, newest)
        if pending or (not flushes and is_added_to(mode, newest)):
            check_fits_pending(job, log, pending=pending)
        if newest is not None and newest.ended is not None:
            newest = None  # a result that was released as a whole can be written again
        if newest is not None and mode == "ignore":
            return None
        appended_to = newest if mode == "append" else None
        # All that is pending becomes one version, of one type, and has the owners of all.
        waiting = last_pending(log) if pending else None
        like = waiting or (None if appended_to is None else appended_to.newest)
        options = job.options
        if flushes and like is not None and like.version > flushes[-1]:
            # A later commit than those that are flushed has set the bounds.
            options = replace(options, max_unconsumed_bytes=None, max_unconsumed_versions=None)
        existing = None if like is None else _without_dead_owners(like.result)
        result = describe_result(options, job.owners, existing)
        if newest is not None and not pending:
            # Here, where the number is chosen: a commit that comes during the wait takes it first.
            _await_consumers(job, outputs, newest.newest.result, result, mode)
        entry = replace(
            _entry(job, commit_id, outputs, described, appended_to),
            result=result,
            transaction=transaction,
            flushed=flushes[-1] if flushes else None,
        )
        if not written:
            put_totals(job.storage, entry, totals, sync=job.options.sync)
            written = True
        if not pending:
            return entry
        operation = PENDING if mode == "append" else PENDING_OVERWRITE
        return Pending(replace(entry, operation=operation))

    decide_commit(job, commit_id)
    try:
        # Another process may have held the decision, committed the job and withdrawn it since.
        entry = _committed_entry(job, log)
        if entry is None:
            check_files(
                job.storage,
                [(output, job.local_roots) for output in outputs],
                "it was removed or changed before the commit. Write the rows again",
            )
            sync, after = job.options.sync, job.base_version
            record = log.append(decide, sync=sync, job_id=job.job_id, after=after)
            entry = None if record is None else entry_of(record)
    except BaseException as error:
        clean_up(job, log, described, error)
        raise
    if entry is None:
        job.storage.delete(described.path)
        withdraw(job)
        abort_job(job, failed=False)
        if before is not None:
            return receipt_of(job.storage, log.committed(before.version))
        newest = log.snapshot()
        if newest is None:
            msg = f"{job.storage.root}: the shuffle was removed during the commit. Write it again"
            raise CorruptShuffleError(msg)
        if newest.ended is not None:  # it was released with what was to be flushed
            raise released_error(job.storage.root, newest.ended)
        return receipt_of(job.storage, newest.newest)
    # The version is published: a failure from here on must not look like a failed write.
    with contextlib.suppress(ShuffleError):
        remove_losers(job, entry.map_outputs)
    return _receipt(job.storage, entry, rows, sizes)


def _without_dead_owners(result: ResultDescription) -> ResultDescription:
    """Drop owners that have certainly ended, so that they do not accumulate; keep all others."""
    alive = tuple(owner for owner in result.owners if owner.is_alive() is not False)
    return replace(result, owners=alive)


def _await_consumers(
    job: ShuffleJob,
    outputs: Sequence[MapOutput],
    existing: ResultDescription,
    result: ResultDescription,
    mode: str,
) -> None:
    """Wait until the consumers of a bounded result have consumed enough to add these outputs.

    An overwrite waits only for registered consumers, which get the overwritten rows too.
    """
    if not result.type.has_back_pressure:
        return
    if mode == "append" or (
        existing.type.has_back_pressure and ConsumerRegistry(job.storage).names()
    ):
        num_bytes = sum(output.num_bytes for output in outputs)
        await_consumers(job.storage, result, num_bytes, job.options.back_pressure_timeout)


def _committed_entry(job: ShuffleJob, log: CommitLog) -> LogEntry | None:
    """Return the entry that committed a job, if any.

    Raises CommitConflictError where garbage collection has given the job up, and
    ShuffleNotFoundError where the version has expired since.
    """
    end = log.find_job(job.job_id, after=job.base_version)
    if end is None:
        return None
    if end.fenced:
        raise log.fenced_error(job.job_id, end.version)
    return log.committed(end.version)


def _entry(
    job: ShuffleJob,
    commit_id: str,
    outputs: tuple[MapOutput, ...],
    totals: TotalsFile,
    appended_to: Snapshot | None,
) -> LogEntry:
    """Return the entry of a commit; its version and result are set later."""
    schema, spark_schema = job.data_schema, job.spark_schema
    if appended_to is not None:
        schema = widen(appended_to.newest.data_schema, schema)
        spark_schema = widen_spark_schema(appended_to.newest.spark_schema, spark_schema)
    return LogEntry(
        version=0,
        operation="overwrite" if appended_to is None else "append",
        shuffle_id=job.shuffle_id if appended_to is None else appended_to.newest.shuffle_id,
        job_id=job.job_id,
        commit_id=commit_id,
        committed_at_ms=time.time_ns() // 1_000_000,
        data_schema=schema,
        spark_schema=spark_schema,
        num_subpartitions=job.num_subpartitions,
        partitioner=job.partitioner.describe(),
        map_outputs=outputs,
        totals=totals,
        sort_by=job.sort_by,
        roots=job.local_roots,
    )


def receipt_of(storage: Storage, entry: LogEntry) -> ShuffleReceipt:
    """Return the receipt of an entry in the log; ShuffleNotFoundError if its version expired."""
    log = CommitLog(storage)
    try:
        rows, sizes = log.totals(Snapshot((entry,)))
    except ObjectNotFoundError:
        log.committed(entry.version)
        raise
    return _receipt(storage, entry, rows, sizes)


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
        subpartition_rows=to_arrow(rows),
        subpartition_bytes=to_arrow(sizes),
        counters=sum_counters(output.counters for output in entry.map_outputs),
    )
