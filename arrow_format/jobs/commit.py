"""The commit of a job: its map outputs become a version, or are pending until a flush."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from datetime import timedelta
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.column_ids import give_ids
from arrow_format.arrays.spark_schema_evolution import widen_schemas
from arrow_format.errors import CorruptShuffleError, ShuffleError
from arrow_format.jobs.back_pressure import await_consumers
from arrow_format.jobs.cleanup import abort_job, append_entry, remove_losers
from arrow_format.jobs.map_outputs import check_files, complete_outputs
from arrow_format.jobs.receipt import ShuffleReceipt
from arrow_format.jobs.target import as_now_called, check_fits_pending, check_mode_allows
from arrow_format.log.commit_log import AlreadyCommittedError, CommitLog, EntryFields, draft
from arrow_format.log.conflicts import Claims, check_needs, check_version_number
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import PENDING, PENDING_OVERWRITE, LogEntry
from arrow_format.log.pending import last_pending
from arrow_format.log.result import ResultDescription, describe_result, released_error
from arrow_format.log.state import PendingNumbers, VersionShape
from arrow_format.log.totals import sum_totals
from arrow_format.log.transactions import committed_by, find_transaction
from arrow_format.model import MAX_INTEGER
from arrow_format.options import check_mode
from arrow_format.write.counters import sum_counters

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.reader import LogView
    from arrow_format.log.transactions import CommittedTransaction
    from arrow_format.model import MapStatus, Transaction
    from arrow_format.storage.open import Storage


MILLISECOND = timedelta(milliseconds=1)

LISTED_OUTPUTS = 16
"""From so many map outputs on a listing, of 1,000 files per request, says what is there: a request
for each of the files of 100,000 map outputs would take a quarter of an hour."""


def commit_job(
    job: ShuffleJob,
    statuses: Iterable[MapStatus],
    *,
    mode: str = "errorifexists",
    expected_map_outputs: int | None = None,
    transaction: Transaction | None = None,
    pending: bool = False,
    flush_interval: timedelta | None = None,
    flushes: tuple[int, ...] = (),
    expected_version: int | None = None,
) -> ShuffleReceipt:
    """Publish the map outputs of a job as one version.

    Committing a job again returns the receipt of the first commit. So does committing a transaction
    again, in whatever job: that job's files are removed.

    Parameters
    ----------
    job, statuses
        From :func:`begin_job`; one status per map task, numbered from 0 without gaps. Those of an
        iterator are taken one by one, and only their map outputs are kept.
    mode
        errorifexists, overwrite, append or ignore; with ``ignore`` and an existing shuffle, the
        job's files are removed and the receipt is that of the newest version.
    expected_map_outputs
        How many there must be, when that is known.
    transaction
        Where it is in the log already, the receipt is that of its commit, and says so.
    pending
        Commit as part of no version yet, see :mod:`arrow_format.log.pending`; the receipt has the
        number in the log in the place of a version.
    flush_interval
        Of a pending commit: how long it may wait, after which any process may flush it; None: only
        a writer of its stream may.
    flushes
        Pending numbers of the log that this version publishes. If they are no longer pending,
        another process has published them: this job's files are removed and the newest version's
        receipt is returned.
    expected_version
        Commit only if no rows were added or taken away after that version; None: do not ask.

    Raises
    ------
    ShuffleNotFoundError
        The job was committed before, and that version has expired since.
    ShuffleError
        The map outputs are incomplete or of another job; the job was aborted, or another process is
        committing it; or readers would refuse the entry.
    CorruptShuffleError
        A file of a map output was removed or changed.
    CommitConflictError
        The job was given up; or rows were changed after the expected version, or that has expired;
        or a larger number of the application is in the log, and that of the transaction is not.
    ShuffleExistsError, SchemaError
        As :func:`check_target`; another writer may have been faster.
    BackPressureTimeoutError
        The consumers of a bounded result did not consume enough of it in time.
    ResultReleasedError
        What was to be flushed was released meanwhile.
    """
    mode = check_mode(mode)
    check_version_number(expected_version)
    log = CommitLog(job.storage)
    outputs, totals, counters = complete_outputs(job, statuses, expected_map_outputs)
    begun = job = dataclasses.replace(job, num_map_tasks=len(outputs))
    before: CommittedTransaction | None = None
    are_checked = False
    with_ids = lru_cache(1)(outputs.with_columns)  # one object for all tries with equal ids

    def decide(view: LogView) -> LogEntry | None:
        nonlocal before, are_checked
        job = begun
        before = None if transaction is None else committed_by(log, view, transaction)
        if before is not None:
            return None
        if flushes and not view.state.pending.begins_with(flushes):
            return None
        newest = None if view.state.is_ended else log.newest_entry(view)
        operation = "append" if mode == "append" and newest is not None else "overwrite"
        check_needs(operation, log, view, Claims(expected_version))
        if mode == "append" and newest is not None and not flushes:
            job = as_now_called(job, newest)
        check_mode_allows(job, mode, newest)
        waiting = last_pending(log, view)
        if not flushes:
            check_fits_pending(job, waiting, mode, newest, pending=pending)
        if newest is not None and mode == "ignore":
            return None
        if not are_checked:  # not of a job that is committed, whose files may have been removed
            advice = "it was removed or changed before the commit. Write the rows again"
            listed = job.files() if len(outputs) >= LISTED_OUTPUTS else None
            check_files(job.storage, outputs, advice, listed)
            are_checked = True
        appended_to = newest if mode == "append" else None
        # All that is pending becomes one version, of one type, and has the owners of all.
        earlier_shapes = [each for each in (view.state.shape, waiting and waiting.shape) if each]
        waiting = waiting if pending else None
        like = waiting or appended_to
        earlier_rows = [appended_to, waiting] if mode == "append" else []
        options = job.options
        if flushes and like is not None and like.version > flushes[-1]:
            # A later commit than those that are flushed has set the bounds.
            options = dataclasses.replace(
                options, max_unconsumed_bytes=None, max_unconsumed_versions=None
            )
        existing = None if like is None else _without_dead_owners(like.result)
        result = describe_result(options, job.owners, existing)
        if newest is not None and not pending:
            # Here, where the number is chosen: a commit that comes during the wait takes it first.
            _await_consumers(job, outputs, newest.result, result, mode)
        shape = structs.replace(_shape(job, appended_to, earlier_rows), result=result)
        known = [each.columns for each in earlier_shapes]
        if flushes:  # they have ids that no version may have yet
            known.append(job.known)
        columns = give_ids(shape.data_schema, known, view.state.last_column_id)
        shape = structs.replace(shape, column_ids=columns.ids)
        given = {"last_column_id": max(view.state.last_column_id, *columns.ids)}
        fields: EntryFields = {
            "job_id": job.job_id,
            "transaction": transaction,
            "map_outputs": with_ids(give_ids(job.data_schema, [columns], 0), job.unlogged),
            "totals": totals,
            "counters": {k: min(count, MAX_INTEGER) for k, count in counters.items() if count},
        }
        if pending:
            fields["pending_shape"] = shape
            interval_ms = None if flush_interval is None else flush_interval // MILLISECOND
            waits = structs.replace(view.state.pending, interval_ms=interval_ms)
            kind = PENDING if mode == "append" else PENDING_OVERWRITE
            return draft(view, kind, state={"pending": waits, **given}, **fields)
        changes: dict[str, Any] = {"shape": shape, **given}
        if flushes:
            left = tuple(number for number in view.state.pending.numbers if number > flushes[-1])
            interval_ms = view.state.pending.interval_ms if left else None
            now_ms = time.time_ns() // 1_000_000
            changes["pending"] = PendingNumbers.of(left, now_ms, interval_ms)
        return draft(view, operation, state=changes, **fields)

    try:
        entry = append_entry(job, log, decide)
    except AlreadyCommittedError as error:
        entry = log.committed(error.version)
    if entry is None:
        with contextlib.suppress(ShuffleError):  # garbage collection removes what is left
            abort_job(job, failed=False, alone=True)
        if before is not None:
            return _receipt_again(job.storage, before)
        view = log.view()
        newest = log.newest_entry(view)
        if newest is None:
            msg = f"{job.storage.root}: the shuffle was removed during the commit. Write it again"
            raise CorruptShuffleError(msg)
        if view.state.is_ended and view.state.released is not None:
            # It was released with what was to be flushed.
            raise released_error(job.storage.root, view.state.released)
        return receipt_of(job.storage, newest)
    # The version is published: a failure from here on must not look like a failed write.
    with contextlib.suppress(ShuffleError):
        remove_losers(job, entry.map_outputs)
    return receipt_of(job.storage, entry)


def _without_dead_owners(result: ResultDescription) -> ResultDescription:
    """Drop owners that have certainly ended, so that they do not accumulate; keep all others."""
    alive = tuple(owner for owner in result.owners if owner.is_alive() is not False)
    return structs.replace(result, owners=alive)


def _await_consumers(
    job: ShuffleJob,
    outputs: MapOutputs,
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
        existing.type.has_back_pressure and ConsumerRegistry(job.storage).all_progress()
    ):
        await_consumers(job.storage, result, outputs.num_bytes, job.options.back_pressure_timeout)


def _shape(
    job: ShuffleJob, appended_to: LogEntry | None, earlier_rows: Sequence[LogEntry | None]
) -> VersionShape:
    """Return the shape of the version that a commit publishes; its result is set later.

    Its schema is that in which its rows are read together with those of earlier entries.
    """
    schema, spark_schema = reduce(
        widen_schemas,
        [(entry.data_schema, entry.spark_schema) for entry in (*earlier_rows, job) if entry],
    )
    return VersionShape(
        shuffle_id=job.shuffle_id if appended_to is None else appended_to.shuffle_id,
        data_schema=schema,
        column_ids=(),
        spark_schema=spark_schema,
        num_subpartitions=job.num_subpartitions,
        partitioner=job.described_partitioner,
        codec=job.options.codec,
        sort_by=job.sort_by,
        # Rows that are appended may lack some of the columns.
        combine=dict((job if appended_to is None else appended_to).combine),
    )


def find_receipt(storage: Storage, transaction: Transaction | None) -> ShuffleReceipt | None:
    """Return the receipt of a transaction that was committed; None if it may be committed.

    Raises CommitConflictError where a larger number of its application is in the log, and it is
    not.
    """
    if transaction is None:
        return None
    committed = find_transaction(CommitLog(storage), transaction)
    return None if committed is None else _receipt_again(storage, committed)


def _receipt_again(storage: Storage, committed: CommittedTransaction) -> ShuffleReceipt:
    """Return the receipt of a transaction that was committed before, and say so."""
    if committed.entry is not None:
        return dataclasses.replace(receipt_of(storage, committed.entry), is_repetition=True)
    nothing = to_arrow(np.zeros(0, np.int64))
    return ShuffleReceipt(
        path=storage.root,
        version=committed.version,
        num_rows=committed.num_rows,
        num_bytes=committed.num_bytes,
        num_map_outputs=committed.num_outputs,
        num_subpartitions=0,
        subpartition_rows=nothing,
        subpartition_bytes=nothing,
        is_repetition=True,
    )


def receipt_of(storage: Storage, entry: LogEntry) -> ShuffleReceipt:
    """Return the receipt of an entry in the log."""
    rows, sizes = sum_totals([entry.totals], entry.num_subpartitions)
    return ShuffleReceipt(
        path=storage.root,
        version=entry.version,
        num_rows=entry.num_rows,
        num_bytes=entry.num_bytes,
        num_map_outputs=entry.num_outputs,
        num_subpartitions=entry.num_subpartitions,
        subpartition_rows=to_arrow(rows),
        subpartition_bytes=to_arrow(sizes),
        counters=sum_counters([entry.counters]),
    )
