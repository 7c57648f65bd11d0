"""The sink: each micro-batch of a streaming query becomes one version, exactly once.

Spark runs a batch again that it does not know to be complete: after a restart, and with a new
writer. So each run of a batch is a job of its own, which meets nothing that an earlier run left,
and the commit is a transaction of query and batch: the log adds it once, whoever comes again and
wherever the one before was killed.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from arrow_format.errors import OptionError, ShuffleError
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import check_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import pending_outputs
from arrow_format.log.transactions import find_transaction
from arrow_format.model import Transaction
from arrow_format.streaming.flush_pending import flush_if_due, flush_if_last
from connector.map_task import run_spark_task, status_from_row, status_to_row
from connector.options.stream import parse_sink_options
from connector.source.writer import begin_target_job

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import MapStatus

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties of Spark in the tasks of a streaming query."""


@dataclass
class BatchMessage(WriterCommitMessage):
    """What one task of a micro-batch wrote, and for whom."""

    transaction: Transaction
    """The query and its batch."""
    job_id: str
    row: dict[str, Any]
    """Map status, as a row of the status schema."""
    job: ShuffleJob | None
    """The job, from the first map task alone: Spark commits with a writer made anew, which may find
    another shuffle than the one its tasks were planned for."""


class ShuffleStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches through ``df.writeStream.format("arrow_shuffle")``.

    Spark makes one to plan a batch, which it pickles for the tasks, and another to commit it. With
    a flush interval a batch is committed as pending, and once the interval is over the batch that
    comes then flushes all that is.

    Parameters
    ----------
    options
        As Spark hands them over.
    schema
        Schema of the rows.
    overwrite
        Output mode complete: each batch takes the place of what is there. Otherwise it is appended.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError
        Something does not fit; no task runs.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        parsed = parse_sink_options(options)
        self._mode = "overwrite" if overwrite else "append"
        self._empty_versions = parsed.empty_versions
        self._job = begin_target_job(parsed.target, schema, overwrite=overwrite)
        self._flush = parsed.flush
        self._waits = parsed.waits(self._job.partitioner, self._job.sort_by)
        check_target(self._job, self._mode, pending=self._waits)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BatchMessage:
        """Write one Spark partition of a micro-batch; runs in the task."""
        transaction = _transaction_of_task()
        # Of this writer, so that a batch that runs again is another job. Of the batch too, should
        # Spark keep a writer from one batch to the next.
        name = f"{self._job.job_id} {transaction.application_id} {transaction.number}"
        job_id = hashlib.sha256(name.encode()).hexdigest()[:32]
        job = replace(self._job, job_id=job_id)
        status = run_spark_task(job, iterator)
        first = status.output.map_task == 0
        return BatchMessage(transaction, job_id, status_to_row(status), job if first else None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks of a micro-batch wrote, once; runs on the driver's machine.

        Raises
        ------
        ShuffleError
            A task is missing, or of another batch.
        """
        known = [one for one in messages if isinstance(one, BatchMessage)]
        job = next((one.job for one in known if one.job is not None), None)
        transactions = {one.transaction for one in known}
        if job is None or {one.number for one in transactions} != {batchId}:
            msg = (
                f"{self._job.storage.root}: batch {batchId} cannot be committed with messages of "
                f"{len(known)} tasks that are of {sorted(one.number for one in transactions)}"
            )
            raise ShuffleError(msg)
        (transaction,) = transactions
        statuses = [status_from_row(one.row, job.num_subpartitions) for one in known]
        if self._is_done(job, transaction) or self._changes_nothing(job, statuses):
            with contextlib.suppress(ShuffleError):  # what is left is collected some day
                abort_job(job, failed=False)
        else:
            if not self._waits:
                # Of runs with a flush interval: those batches came before, and have to stay so.
                flush_if_last(job.storage, transaction.application_id, self._flush, job.options)
            commit_job(
                job,
                statuses,
                mode=self._mode,
                expected_map_outputs=len(messages),
                transaction=transaction,
                pending=self._waits,
            )
        if self._waits:
            # Also when the batch was committed before: then its flush may be missing.
            flush_if_due(job.storage, self._flush, job.options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what the tasks of a micro-batch wrote; runs on the driver's machine.

        Spark tells only of tasks that ended well. Where there is none, what others left is
        collected some day.
        """
        del batchId
        for one in messages:
            if isinstance(one, BatchMessage):
                # Of a job that is known by its name alone, all of the log is looked through.
                abort_job(one.job or replace(self._job, job_id=one.job_id, base_version=0))
                return

    def _is_done(self, job: ShuffleJob, transaction: Transaction) -> bool:
        """Whether the batch is in the log, also where its version has expired since."""
        return find_transaction(CommitLog(job.storage), transaction) is not None

    def _changes_nothing(self, job: ShuffleJob, statuses: list[MapStatus]) -> bool:
        """Whether the batch has no rows, and readers see none without it either."""
        if self._empty_versions or any(status.output.num_rows for status in statuses):
            return False
        if self._mode == "append":
            return True
        log = CommitLog(job.storage)
        waiting = log.read(partial(pending_outputs, log)).counting
        if waiting:
            # What the next flush gives is what this batch would take the place of.
            return self._waits and not any(entry.num_rows for entry in waiting)
        there = log.snapshot()
        return there is None or there.num_rows == 0


def _transaction_of_task() -> Transaction:
    """Return query and batch of the Spark task this is called in.

    Raises
    ------
    OptionError
        It is not called in a task of a streaming query.
    """
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
