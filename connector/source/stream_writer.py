"""The sink: each micro-batch of a streaming query becomes one version, exactly once.

Spark runs a batch again, with a new writer, when it does not know that the batch is complete. So
each run of a batch is a job of its own, which shares no files with an earlier run, and the commit
is a transaction of query and batch, which the log adds once, wherever an earlier run was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from arrow_format.errors import OptionError, ShuffleError
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import check_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import pending_outputs
from arrow_format.log.transactions import find_transaction
from arrow_format.model import Transaction
from arrow_format.options import keeps_rows
from arrow_format.streaming.flush_pending import flush_if_due, flush_if_last
from connector.map_status import status_to_row, statuses_from_rows
from connector.map_task import run_spark_task
from connector.micro_batches import QUERY_ID
from connector.options.stream import parse_sink_options
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.source.writer import begin_target_job
from connector.spark_version import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import MapStatus

_LOGGER = logging.getLogger("arrow_shuffle")
_said: set[str] = set()
"""Where this process has said when rows are seen."""

BATCH_ID = "streaming.sql.batchId"
"""Spark's local property in the tasks of a streaming query, beside :data:`QUERY_ID`."""


@dataclass
class BatchMessage(WriterCommitMessage):
    """The map status of one task of a micro-batch."""

    transaction: Transaction
    """The query and its batch."""
    job_id: str
    row: dict[str, Any]
    """As a row of the status schema."""
    job: ShuffleJob | None
    """The job, from the first map task only. Spark commits with a new writer, which may find
    another shuffle than the one that the tasks were planned for."""


class ShuffleStreamWriter(ChecksOnArrival, DataSourceStreamArrowWriter):
    """Writes micro-batches through ``df.writeStream.format("arrow_shuffle")``.

    Spark makes one writer to plan a batch, which it pickles for the tasks, and another to commit
    it. With a flush interval each batch is committed as pending, and the first batch after the
    interval publishes all pending ones: before it runs, and after its commit if they are due then.
    ``overwrite`` is output mode complete: each batch replaces all rows. Otherwise batches are
    appended.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        parsed = parse_sink_options(options)
        self._mode = parsed.target.mode(overwrite=overwrite)
        self._empty_versions = parsed.empty_versions
        self._job = begin_target_job(parsed.target, schema, overwrite=overwrite)
        self._flush = parsed.flush
        self._waits = parsed.waits(self._job.partitioner, self._job.sort_by, self._job.combine)
        check_target(self._job, self._mode, pending=self._waits)
        if self._waits:
            # Here, before the batch runs: a query that was restarted may have died long ago.
            flush_if_due(self._job.storage, self._flush, self._job.options)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchMessage:
        """Write one Spark partition of a micro-batch; runs in the task."""
        transaction = _transaction_of_task()
        # With the writer's id, so that a batch that runs again is another job, and with the batch,
        # in case Spark uses a writer for several.
        name = f"{self._job.job_id} {transaction.application_id} {transaction.number}"
        job_id = hashlib.sha256(name.encode()).hexdigest()[:32]
        job = replace(self._job, job_id=job_id)
        # Here, since Spark keeps the processes of tasks, and makes others for each batch: the one
        # that commits learns with the job of the first task what was found.
        job.storage.check_puts()
        status = run_spark_task(job, iterator)
        first = status.output.map_task == 0
        return BatchMessage(transaction, job_id, status_to_row(status), job if first else None)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish a micro-batch, once; runs on the driver's machine.

        Raises ShuffleError if the message of a task is missing, or of another batch.
        """
        known = [message for message in messages if isinstance(message, BatchMessage)]
        job = next((message.job for message in known if message.job is not None), None)
        transactions = {message.transaction for message in known}
        batches = {transaction.number for transaction in transactions}
        if job is None or batches != {batchId}:
            msg = (
                f"{self._job.storage.root}: batch {batchId} cannot be committed with messages of "
                f"{len(known)} tasks that are of {sorted(batches)}"
            )
            raise ShuffleError(msg)
        (transaction,) = transactions
        job = replace(job, num_map_tasks=len(messages))
        statuses = list(statuses_from_rows(message.row for message in known))
        if self._waits:
            self._say_when_it_is_seen(batchId)
        # Rows first: a batch without any left no trace of its transaction.
        if self._changes_nothing(job, statuses) or self._is_done(job, transaction):
            with contextlib.suppress(ShuffleError):  # garbage collection removes the rest
                abort_job(job, failed=False, alone=True)
        else:
            if not self._waits:
                # Publish batches pending from runs with a flush interval first: they are earlier.
                flush_if_last(job.storage, transaction.application_id, self._flush, job.options)
            commit_job(
                job,
                statuses,
                mode=self._mode,
                expected_map_outputs=len(messages),
                transaction=transaction,
                pending=self._waits,
                flush_interval=self._flush.max_interval if self._waits else None,
            )
        if self._waits:
            # Also if the batch was committed before: its flush may be missing.
            flush_if_due(job.storage, self._flush, job.options)

    def _say_when_it_is_seen(self, batch: int) -> None:
        root = self._job.storage.root
        if root in _said:
            return
        _said.add(root)
        interval = self._flush.max_interval
        _LOGGER.warning(
            "%s: batches from %d on are pending until they have waited for %s; the batch after "
            "that flushes them, in this run or the next. When no batch comes, `arrow-shuffle "
            "flush --due %s`, garbage collection or consume(..., flush=True) does, or "
            "flush_when_done(query, path) at the end of the query",
            root, batch, interval, root,
        )  # fmt: skip

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Delete the files of a micro-batch; runs on the driver's machine.

        Spark passes messages of successful tasks only. Without any, garbage collection removes the
        files of the others.
        """
        del batchId
        for message in messages:
            if isinstance(message, BatchMessage):
                # Without the job its base version is not known, so the whole log is searched.
                job = message.job or replace(self._job, job_id=message.job_id, base_version=0)
                abort_job(job)
                return

    def _is_done(self, job: ShuffleJob, transaction: Transaction) -> bool:
        """Whether the log has the batch, even if its version has expired since."""
        return find_transaction(CommitLog(job.storage), transaction) is not None

    def _changes_nothing(self, job: ShuffleJob, statuses: list[MapStatus]) -> bool:
        """Whether the batch has no rows, and readers see none without it."""
        if self._empty_versions or any(
            status.output.num_rows or status.tombstones for status in statuses
        ):
            return False
        if keeps_rows(self._mode):
            return True
        log = CommitLog(job.storage)
        waiting = log.read(partial(pending_outputs, log)).counting
        if waiting:
            # This batch would replace the result of the next flush.
            return self._waits and not any(entry.num_rows for entry in waiting)
        snapshot = log.snapshot()
        return snapshot is None or snapshot.num_rows == 0


def _transaction_of_task() -> Transaction:
    """Return query and batch of the current Spark task; raises OptionError outside of one."""
    context = TaskContext.get()
    query, batch = (
        (None, None) if context is None else map(context.getLocalProperty, (QUERY_ID, BATCH_ID))
    )
    if not query or not batch:
        msg = (
            f"no query and batch in the task (local properties {QUERY_ID}={query!r}, "
            f"{BATCH_ID}={batch!r}); the sink of a stream runs in micro-batches of df.writeStream"
        )
        raise OptionError(msg)
    return Transaction(query, int(batch))
