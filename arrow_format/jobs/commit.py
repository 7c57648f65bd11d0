"""The commit of a job: its map outputs become a version, or are pending until a flush."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from datetime import timedelta
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.column_ids import give_ids
from arrow_format.arrays.spark_schema_evolution import widen_schemas
from arrow_format.errors import CorruptShuffleError, OptionError, ShuffleError
from arrow_format.jobs.back_pressure import await_consumers
from arrow_format.jobs.cleanup import abort_job, append_entry, remove_losers
from arrow_format.jobs.map_outputs import CompleteOutputs, check_files, complete_outputs
from arrow_format.jobs.receipt import ShuffleReceipt
from arrow_format.jobs.target import (
    as_now_called,
    check_can_wait,
    check_fits_pending,
    check_mode_allows,
)
from arrow_format.jobs.unique_rows import UniqueRows
from arrow_format.log.commit_log import AlreadyCommittedError, CommitLog, EntryFields, draft
from arrow_format.log.conflicts import Claims, check_needs, check_version_number
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import PENDING, PENDING_OVERWRITE, UPSERT, LogEntry
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.pending import last_pending
from arrow_format.log.result import ResultDescription, describe_result, released_error
from arrow_format.log.state import PendingNumbers, VersionShape
from arrow_format.log.totals import sum_totals
from arrow_format.log.transactions import committed_by, find_transaction
from arrow_format.model import MAX_INTEGER
from arrow_format.options import check_mode, keeps_rows, replaces_rows
from arrow_format.read.presentation import scaled_note
from arrow_format.write.counters import sum_counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
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
    gone: pa.RecordBatch | None = None,
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
    gone
        Of an upsert: keys of which no row is left, the columns that identify one, called by their
        ids. With mode ``replace_groups`` they are the columns of the partitioner, and rows of the
        job may have these keys too. None for none.

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
    if job.row_kind is not None and mode != "upsert":
        msg = (
            f"{job.storage.root}: the map tasks wrote changes (row_kind={job.row_kind!r}), which "
            f"only mode='upsert' applies, not {mode!r}; nothing was committed"
        )
        raise OptionError(msg)
    log = CommitLog(job.storage)
    complete = complete_outputs(job, statuses, expected_map_outputs)
    commit = _Commit(
        job=dataclasses.replace(job, num_map_tasks=len(complete.outputs)),
        log=log,
        complete=complete,
        counters={k: min(count, MAX_INTEGER) for k, count in complete.counters.items() if count},
        mode=mode,
        transaction=transaction,
        pending=pending,
        flush_interval=flush_interval,
        flushes=flushes,
        expected_version=expected_version,
        gone=gone,
    )
    try:
        entry = append_entry(commit.job, log, commit.entry)
    except AlreadyCommittedError as error:
        entry = log.committed(error.version)
    if entry is None:
        with contextlib.suppress(ShuffleError):  # garbage collection removes what is left
            abort_job(commit.job, failed=False, alone=True)
        return commit.receipt_without()
    # The version is published: a failure from here on must not look like a failed write.
    with contextlib.suppress(ShuffleError):
        remove_losers(commit.job, entry.map_outputs)
    return receipt_of(job.storage, entry)


@dataclasses.dataclass
class _Commit:
    """The commit of a job: what it puts into the log, as that is at each try."""

    job: ShuffleJob
    log: CommitLog
    complete: CompleteOutputs
    counters: dict[str, int]
    mode: str
    transaction: Transaction | None
    pending: bool
    flush_interval: timedelta | None
    flushes: tuple[int, ...]
    expected_version: int | None
    gone: pa.RecordBatch | None
    earlier: CommittedTransaction | None = None
    """The commit of the same transaction, where the log has it."""
    are_checked: bool = False
    """Whether the files of the map outputs are."""

    @cached_property
    def with_ids(self) -> Callable[..., MapOutputs]:
        """Give columns of the map outputs their ids; one object for tries with equal ids."""
        return lru_cache(1)(self.complete.outputs.with_columns)

    def entry(self, view: LogView) -> LogEntry | None:
        """Return the entry to add; None where there is nothing to commit. As a ``decide``."""
        if self._is_done(view):
            return None
        newest = None if view.state.is_ended else self.log.newest_entry(view)
        job, waiting = self._fitting(view, newest)
        if newest is not None and self.mode == "ignore":
            return None
        self._check_files()
        shape = self._shape(view, job, newest, waiting)
        ids = give_ids(job.data_schema, [shape.columns], 0)
        outputs = self.with_ids(ids, job.unlogged)
        fields: EntryFields = {
            "job_id": job.job_id,
            "transaction": self.transaction,
            "map_outputs": outputs,
            "totals": self.complete.totals,
            "counters": self.counters,
        }
        state = self._pending_state(view)
        state["last_column_id"] = max(view.state.last_column_id, *shape.column_ids)
        if self.pending:
            fields["pending_shape"] = shape
            kind = PENDING if self.mode == "append" else PENDING_OVERWRITE
            return draft(view, kind, state=state, **fields)
        operation = self._operation(newest)
        if shape.unique or (self.mode == "replace_groups" and operation == UPSERT):
            tombstones = self.complete.tombstones
            if tombstones:
                of_columns = ids.only(job.tombstone_columns).ids
                tombstones = [
                    dataclasses.replace(each, column_ids=of_columns) for each in tombstones
                ]
            replaced = self.unique_rows.replaced(
                view, shape, outputs, tombstones, operation, self.mode
            )
            if replaced.masks:
                placed = replaced.own.at_version(view.newest + 1)
                fields["map_outputs"] = MapOutputs.concat([replaced.outputs, placed])
                if len(replaced.inputs):
                    fields["removed"] = replaced.inputs.keys
                elif operation == UPSERT:
                    operation = "append"  # older changes of its own alone were left out
                totals = [self.complete.totals, replaced.totals]
                fields["totals"] = sum_totals(totals, job.num_subpartitions)
            elif operation == UPSERT:
                operation = "append"  # which it is, and which readers of changes follow
        return draft(view, operation, state={"shape": shape, **state}, **fields)

    @cached_property
    def unique_rows(self) -> UniqueRows:
        """What looks for rows that have the identity of these."""
        return UniqueRows(self.job, self.log, self.complete, self.gone)

    def _is_done(self, view: LogView) -> bool:
        """Whether another commit did all that this one would do."""
        transaction, flushes = self.transaction, self.flushes
        self.earlier = None if transaction is None else committed_by(self.log, view, transaction)
        is_flushed = bool(flushes) and not view.state.pending.begins_with(flushes)
        return self.earlier is not None or is_flushed

    def _operation(self, newest: LogEntry | None) -> str:
        if newest is None or not keeps_rows(self.mode):
            return "overwrite"
        return UPSERT if replaces_rows(self.mode) else self.mode

    def _fitting(
        self, view: LogView, newest: LogEntry | None
    ) -> tuple[ShuffleJob, LogEntry | None]:
        """Check that the rows fit what is there, and return the job with its columns' names.

        Also the last entry that is pending, if any.
        """
        check_needs(self._operation(newest), self.log, view, Claims(self.expected_version))
        job, is_flush = self.job, bool(self.flushes)
        if keeps_rows(self.mode) and newest is not None and not is_flush:
            job = as_now_called(job, newest)
        check_mode_allows(job, self.mode, newest)
        waiting = last_pending(self.log, view)
        if not is_flush:
            check_fits_pending(job, waiting, self.mode, newest, pending=self.pending)
            check_can_wait(job, newest, pending=self.pending)
        return job, waiting

    def _check_files(self) -> None:
        """Check that no file was removed or changed, once.

        Not of a job that is committed, whose files may have been removed since.
        """
        if not self.are_checked:
            advice = "it was removed or changed before the commit. Write the rows again"
            outputs, tombstones = self.complete.outputs, self.complete.tombstones
            listed = self.job.files() if len(outputs) >= LISTED_OUTPUTS else None
            check_files(self.job.storage, [*outputs, *tombstones], advice, listed)
            self.are_checked = True

    def _shape(
        self, view: LogView, job: ShuffleJob, newest: LogEntry | None, waiting: LogEntry | None
    ) -> VersionShape:
        """Return the shape of the version, once consumers let it come.

        All that is pending becomes one version, of one type, and has the owners of all.
        """
        appended_to = newest if keeps_rows(self.mode) else None
        known = [each.columns for each in (view.state.shape, waiting and waiting.shape) if each]
        if self.flushes:  # they have ids that no version may have yet
            known.append(job.known)
        waiting = waiting if self.pending else None
        result = self._result(job, waiting or appended_to)
        if newest is not None and not self.pending:
            # Here, where the number is chosen: a commit that comes during the wait takes it first.
            _await_consumers(job, self.complete.outputs, newest.result, result, self.mode)
        earlier = (appended_to, waiting) if keeps_rows(self.mode) else ()
        # In it the rows are read together with those of earlier entries.
        schema, spark_schema = reduce(
            widen_schemas,
            [(entry.data_schema, entry.spark_schema) for entry in (*earlier, job) if entry],
        )
        columns = give_ids(schema, known, view.state.last_column_id)
        unique = tuple(columns.by_name[name] for name in job.unique)
        sequence = 0 if job.sequence_by is None else columns.by_name[job.sequence_by]
        n, rescaled_to = job.num_subpartitions, None
        if appended_to is not None and appended_to.shape.rescaled_to is not None:
            # What is pending is flushed by itself, and divides nothing before.
            scaled = appended_to.shape.divided([n])
            n = n if self.pending else scaled.num_subpartitions
            rescaled_to = n if self.pending else scaled.rescaled_to
        return VersionShape(
            shuffle_id=job.shuffle_id if appended_to is None else appended_to.shuffle_id,
            data_schema=schema,
            column_ids=columns.ids,
            spark_schema=spark_schema,
            num_subpartitions=n,
            rescaled_to=rescaled_to,
            partitioner=job.described_partitioner,
            codec=job.options.codec,
            sort_by=job.sort_by,
            # Rows that are appended may lack some of the columns.
            combine=dict((job if appended_to is None else appended_to).combine),
            result=result,
            unique=unique if appended_to is None else appended_to.shape.unique,
            sequence_by=sequence or (0 if appended_to is None else appended_to.shape.sequence_by),
        )

    def _result(self, job: ShuffleJob, like: LogEntry | None) -> ResultDescription:
        """Return the result of the version, as an entry before it may have described it."""
        options = job.options
        if self.flushes and like is not None and like.version > self.flushes[-1]:
            # A later commit than those that are flushed has set the bounds.
            options = dataclasses.replace(
                options, max_unconsumed_bytes=None, max_unconsumed_versions=None
            )
        existing = None if like is None else _without_dead_owners(like.result)
        return describe_result(options, job.owners, existing)

    def _pending_state(self, view: LogView) -> dict[str, Any]:
        """Return what changes of the state in what is pending, as far as this commit knows it."""
        before = view.state.pending
        if self.pending:
            interval = self.flush_interval
            interval_ms = None if interval is None else interval // MILLISECOND
            return {"pending": structs.replace(before, interval_ms=interval_ms)}
        if not self.flushes:
            return {}
        left = tuple(number for number in before.numbers if number > self.flushes[-1])
        now_ms = time.time_ns() // 1_000_000
        return {"pending": PendingNumbers.of(left, now_ms, before.interval_ms if left else None)}

    def receipt_without(self) -> ShuffleReceipt:
        """Return the receipt of the version that took the place of this commit.

        Raises CorruptShuffleError where there is none, and ResultReleasedError where what was to be
        flushed was released.
        """
        storage = self.job.storage
        if self.earlier is not None:
            return _receipt_again(storage, self.earlier)
        view = self.log.view()
        newest = self.log.newest_entry(view)
        if newest is None:
            msg = f"{storage.root}: the shuffle was removed during the commit. Write it again"
            raise CorruptShuffleError(msg)
        if view.state.is_ended and view.state.released is not None:
            raise released_error(storage.root, view.state.released)
        return receipt_of(storage, newest)


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
    if keeps_rows(mode) or (
        existing.type.has_back_pressure and ConsumerRegistry(job.storage).all_progress()
    ):
        await_consumers(job.storage, result, outputs.num_bytes, job.options.back_pressure_timeout)


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
    num_outputs, num_rows, num_bytes = entry.own_sums
    note = scaled_note(entry.num_subpartitions, entry.shape.rescaled_to)
    is_upsert = entry.operation == UPSERT
    return ShuffleReceipt(
        path=storage.root,
        version=entry.version,
        num_rows=num_rows,
        num_replaced=num_rows - int(rows.sum()) if is_upsert else 0,
        num_bytes=num_bytes,
        num_map_outputs=num_outputs,
        num_subpartitions=entry.num_subpartitions,
        subpartition_rows=to_arrow(rows),
        subpartition_bytes=to_arrow(sizes),
        counters=sum_counters([entry.counters]),
        notes=() if note is None or entry.is_pending else (f"The version is {note}.",),
    )
