"""The hook: a map task for ``df.mapInArrow``, and the commit of its map outputs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import Row, StructType

from arrow_format.errors import OptionError, SchemaError
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_tasks
from arrow_format.jobs.run import run_job
from arrow_format.keys.bounds import WHAT
from arrow_format.keys.combination import check_functions
from arrow_format.keys.partitioner import HashPartitioner, Partitioner, choose_partitioner
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.row_identity import names_of
from arrow_format.keys.sort_keys import normalise_sort_by
from arrow_format.model import Transaction
from arrow_format.options import WriteOptions, check_write_options
from arrow_format.process_identity import java_above, this_process
from arrow_format.storage.open import open_storage
from connector.map_status import STATUS_SCHEMA, status_to_row, statuses_from_rows
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.spark_job import run_as_job
from connector.spark_types import (
    arrow_schema_of,
    check_keys,
    check_sort_keys,
    combined_spark_schema,
    stored_schema,
)
from connector.task_process import begin_task
from connector.worker_python import check_worker_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.reader import LogView
    from arrow_format.model import MapStatus
    from arrow_format.options import WriteMode
    from arrow_format.read.rows import Rows
    from arrow_format.storage.open import Place


def options_of_tasks(options: WriteOptions | None) -> WriteOptions:
    """Return the options of a write by tasks, one thread for each unless the user says how many."""
    options = check_write_options(options)
    return options if options.threads else replace(options, threads=1)


def begin_spark_job(
    path: Place,
    schema: StructType,
    *,
    num_subpartitions: int,
    partitioner: Partitioner,
    sort_by: Sequence[str | tuple[str, str]] | None = (),
    combine: Mapping[str, str] | None = None,
    unique: str | Sequence[str] | None = None,
    sequence_by: str | None = None,
    row_kind: str | None = None,
    options: WriteOptions | None,
    view: LogView | None = None,
) -> ShuffleJob:
    """Begin a job for rows of a schema from :func:`~connector.spark_types.stored_schema`."""
    rows = StructType([field for field in schema.fields if field.name != row_kind])
    if isinstance(partitioner, HashPartitioner):
        check_keys(schema, partitioner.keys)
    if isinstance(partitioner, RangePartitioner):
        check_sort_keys(schema, partitioner.keys, WHAT)
    check_sort_keys(schema, normalise_sort_by(sort_by))
    check_keys(schema, names_of(unique))
    combine = check_functions({} if combine is None else combine)
    return begin_job(
        path,
        arrow_schema_of(schema),
        num_subpartitions=num_subpartitions,
        partitioner=partitioner,
        sort_by=sort_by,
        combine=combine,
        unique=unique,
        sequence_by=sequence_by,
        row_kind=row_kind,
        options=options_of_tasks(options),
        spark_schema=combined_spark_schema(rows, combine).json(),
        # Spark itself where it started this process, else the process that drives Spark.
        owner=java_above() or this_process(),
        view=view,
    )


def begin_frame_job(
    path: Place,
    schema: StructType,
    *,
    case_sensitive: bool,
    **how: Any,  # noqa: ANN401
) -> ShuffleJob:
    """Begin a job for the rows of a DataFrame, which come through ``mapInArrow``."""
    schema = stored_schema(schema)
    arrow_schema_of(schema, for_map_in_arrow=True, case_sensitive=case_sensitive)
    return begin_spark_job(path, schema, **how)


def run_spark_task(job: ShuffleJob, batches: Iterable[pa.RecordBatch]) -> MapStatus:
    """Write the batches of the current Spark task; raises OptionError outside of one."""
    (status,) = run_spark_tasks([job], batches)
    return status


def run_spark_tasks(
    jobs: Sequence[ShuffleJob], batches: Iterable[pa.RecordBatch]
) -> list[MapStatus]:
    """Write the batches of the current Spark task to each of several jobs."""
    begin_task()
    context = TaskContext.get()
    if context is None:
        msg = "ShuffleMapTask runs inside a Spark task; use df.mapInArrow(task, ...)"
        raise OptionError(msg)
    return run_map_tasks(jobs, context.partitionId(), context.attemptNumber(), batches)


def statuses_to_batch(statuses: Sequence[MapStatus]) -> pa.RecordBatch:
    """Return the statuses of a map task, one for each of its jobs, as what Spark collects."""
    rows = [status_to_row(status, i, len(statuses)) for i, status in enumerate(statuses)]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema_of(STATUS_SCHEMA))


class MapTask(ChecksOnArrival):
    """Callable for ``mapInArrow`` that writes each Spark partition to each of several jobs."""

    def __init__(self, jobs: Sequence[ShuffleJob]) -> None:
        self.jobs = tuple(jobs)

    @property
    def status_schema(self) -> StructType:
        """Schema to give to ``mapInArrow``."""
        return STATUS_SCHEMA

    @plain_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the batches of one Spark partition and yield its map status, a row for each job."""
        yield statuses_to_batch(run_spark_tasks(self.jobs, batches))


class ShuffleMapTask(MapTask):
    """Callable for ``df.mapInArrow`` that writes a shuffle and yields one map status per task.

    .. code-block:: python

        task = arrow_shuffle.ShuffleMapTask(
            "/data/by_hand", schema=df.schema, keys=["k"], num_subpartitions=8
        )
        statuses = df.mapInArrow(task, task.status_schema).collect()
        receipt = arrow_shuffle.commit_shuffle(task, statuses)

    Readers see nothing until the commit. A task object is one job: commit it once, and make a new
    one for another write.

    Parameters
    ----------
    path
        Directory or URI of the shuffle, as the tasks see it.
    schema
        Schema of the DataFrame the task is applied to.
    num_subpartitions
        1 to 1,000,000.
    keys, partitioner
        Exactly one: column names to hash as Spark does, or a partitioner.
    sort_by
        Keys by which the rows of each subpartition are sorted, ``("a", ("b", "descending"))``, with
        Spark's order of values and nulls.
    combine, unique, sequence_by, row_kind
        As for :func:`~arrow_shuffle.write_shuffle`; what ``row_kind`` was given to is committed by
        mode ``upsert``.
    options
        How to write; defaults when None.
    case_sensitive
        The session's ``spark.sql.caseSensitive``.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Raises
    ------
    OptionError, SchemaError
        An argument does not fit the schema; the message names the column or option.
    """

    def __init__(
        self,
        path: Place,
        *,
        schema: StructType,
        num_subpartitions: int,
        keys: str | Sequence[str] | None = None,
        partitioner: Partitioner | None = None,
        sort_by: Sequence[str | tuple[str, str]] | None = (),
        combine: Mapping[str, str] | None = None,
        unique: str | Sequence[str] | None = None,
        sequence_by: str | None = None,
        row_kind: str | None = None,
        options: WriteOptions | None = None,
        case_sensitive: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(schema, StructType):
            msg = f"schema is {type(schema).__name__}: expected the DataFrame's df.schema"
            raise SchemaError(msg)
        job = begin_frame_job(
            open_storage(path, storage_options),
            schema,
            case_sensitive=case_sensitive,
            num_subpartitions=num_subpartitions,
            partitioner=choose_partitioner(keys, partitioner),
            sort_by=sort_by,
            combine=combine,
            unique=unique,
            sequence_by=sequence_by,
            row_kind=row_kind,
            options=options,
        )
        super().__init__([job])

    @property
    def job(self) -> ShuffleJob:
        """The write that it is of."""
        return self.jobs[0]


class NumberedMapTask(MapTask):
    """Callable for ``mapInArrow`` on a DataFrame of numbers, for each of which a task makes rows.

    The numbers, in the first column, alone decide what is written, in whichever Spark task they
    arrive. It yields one map status per number and job.

    Parameters
    ----------
    jobs
        The writes, which get the same rows.
    rows
        Returns the rows of the map task of a number, from 0; picklable. A generator is closed.
    reads_ahead
        Whether any thread of the write may take the next rows.
    """

    def __init__(
        self,
        jobs: Sequence[ShuffleJob],
        rows: Callable[[int], Iterable[pa.RecordBatch | Rows]],
        *,
        reads_ahead: bool = False,
    ) -> None:
        super().__init__(jobs)
        self.rows = rows
        self.reads_ahead = reads_ahead

    @plain_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the map outputs of the numbers that arrive and yield their statuses."""
        begin_task()
        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield statuses_to_batch(self.write(number, attempt))

    def write(self, number: int, attempt: int) -> list[MapStatus]:
        """Write the map outputs of a number, one for each job."""
        rows = self.rows(number)
        try:
            return run_map_tasks(self.jobs, number, attempt, rows, reads_ahead=self.reads_ahead)
        finally:
            # Now, and not when Python collects garbage.
            if isinstance(rows, Generator):
                rows.close()


def run_task(frame: DataFrame, task: MapTask, what: str) -> Sequence[Any]:
    """Return the statuses, as rows, of a map task over a DataFrame: a job that says what it does.

    No task runs when it returns. Raises MissingPackageError before the job where the Python of a
    local master lacks this package, and as :func:`~connector.spark_job.run_as_job`.
    """
    spark = frame.sparkSession
    check_worker_python(spark)
    statuses = frame.mapInArrow(task, task.status_schema)
    return run_as_job(spark, what, statuses.collect)


def write_and_commit(
    task: MapTask,
    frame: DataFrame,
    mode: WriteMode,
    *,
    what: str = "write",
    num_map_outputs: int | None = None,
    expected_version: int | None = None,
    transaction: Transaction | None = None,
    gone: pa.RecordBatch | None = None,
) -> ShuffleReceipt:
    """Run a map task of one job over a DataFrame as :func:`~arrow_format.jobs.run.run_job` does.

    ``what`` is what the job is said to do with the path.
    """

    def run(job: ShuffleJob) -> Iterator[MapStatus]:
        task.jobs = (job,)
        rows = run_task(frame, task, f"{what} {job.storage.root} ({mode})")
        # Not decoded together: totals of tens of thousands of tasks would take gigabytes.
        return statuses_from_rows(rows)

    return run_job(
        task.jobs[0],
        mode,
        run,
        num_map_outputs=num_map_outputs,
        expected_version=expected_version,
        transaction=transaction,
        gone=gone,
    )


def abort_shuffle(task: ShuffleMapTask) -> None:
    """Delete the files of a job that will not be committed; safe to call at any time.

    .. code-block:: python

        task = arrow_shuffle.ShuffleMapTask(
            "/data/aborted", schema=df.schema, keys=["k"], num_subpartitions=8
        )
        try:
            df.mapInArrow(task, task.status_schema).collect()
        finally:
            arrow_shuffle.abort_shuffle(task)

    A job that was committed keeps its files.
    """
    abort_job(task.job)


def commit_shuffle(
    task: ShuffleMapTask,
    statuses: Sequence[Row] | pa.Table,
    *,
    mode: WriteMode = "errorifexists",
    expected_map_outputs: int | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
) -> ShuffleReceipt:
    """Publish the map outputs of a job as one version.

    .. code-block:: python

        task = arrow_shuffle.ShuffleMapTask(
            "/data/by_k", schema=df.schema, keys=["k"], num_subpartitions=8
        )
        statuses = df.mapInArrow(task, task.status_schema).collect()
        print(arrow_shuffle.commit_shuffle(task, statuses))

    Committing the same task again returns the receipt of the first commit.

    Parameters
    ----------
    task
        The task that was given to ``mapInArrow``.
    statuses
        What the tasks yielded: ``collect()`` or ``toArrow()`` of that DataFrame.
    mode
        errorifexists, overwrite, append, upsert, replace_groups or ignore.
    expected_map_outputs
        Number of Spark partitions of the input, if known.
    expected_version
        Commit only if no rows were added or taken away after that version; None: do not ask.
    transaction
        As for :func:`~arrow_shuffle.write_shuffle`; where it was committed before, the files of
        this job are removed.

    Returns
    -------
    ShuffleReceipt
        What was written.

    Raises
    ------
    ShuffleError
        A map status is missing, duplicate, or of another job.
    ShuffleExistsError, SchemaError
        The path does not allow the mode; the files of this job are kept for another attempt.
    CommitConflictError
        Rows were changed after the expected version, or it is not there; or the job was given up;
        or a larger number of the application is in the log, and that of the transaction is not.
    """
    rows: Sequence[Any] = statuses.to_pylist() if isinstance(statuses, pa.Table) else statuses
    return commit_job(
        task.job,
        statuses_from_rows(rows),
        mode=mode,
        expected_map_outputs=expected_map_outputs,
        expected_version=expected_version,
        transaction=Transaction.of(transaction),
    )
