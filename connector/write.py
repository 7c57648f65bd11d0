"""Writes a DataFrame, a dataset of files or a table as a shuffle, in tasks of Spark."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Unpack

from arrow_format.errors import OptionError, SchemaError
from arrow_format.extras import require
from arrow_format.ingest.source import StreamSource, named, source_of
from arrow_format.jobs.job import begin_job
from arrow_format.jobs.num_subpartitions import Choice, by_bytes
from arrow_format.jobs.write import Write
from connector.map_status import statuses_from_rows
from connector.map_task import (
    MapTask,
    NumberedMapTask,
    begin_frame_job,
    begin_spark_job,
    options_of_tasks,
    run_task,
)
from connector.range_sample import sample_range_partitioner
from connector.session import active_session, default_parallelism
from connector.spark_types import arrow_schema_of, spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from pyiceberg.table import DataScan as IcebergDataScan
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.ingest.source import Source
    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.jobs.write import AppendArguments, MapTasks, WriteArguments
    from arrow_format.keys.range_partitioner import RangePartitioner
    from arrow_format.model import MapStatus
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Place, Storage

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def write_shuffle(
    source: DataFrame | ds.Dataset | DeltaTable | IcebergTable | IcebergDataScan,
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    num_map_tasks: int | None = None,
    spark: SparkSession | None = None,
    **how: Unpack[WriteArguments],
) -> ShuffleReceipt:
    """Write a shuffle in tasks of Spark and commit it.

    Arguments, result and errors are those of ``arrow_shuffle.write_shuffle``; the session is the
    active one when None.
    """
    write = Write.of(path, **how)
    return write.run(tasks_of(source, spark, columns, filter, num_map_tasks))


def append_shuffle(
    source: DataFrame | ds.Dataset | DeltaTable | IcebergTable | IcebergDataScan,
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    num_map_tasks: int | None = None,
    spark: SparkSession | None = None,
    **how: Unpack[AppendArguments],
) -> ShuffleReceipt:
    """Append rows to a shuffle in tasks of Spark: partitioned, sorted and stored as those there.

    Arguments, result and errors are those of :meth:`arrow_shuffle.Shuffle.append`; the session is
    the active one when None.
    """
    write = Write.like_newest(path, **how)
    return write.run(tasks_of(source, spark, columns, filter, num_map_tasks))


def tasks_of(
    source: Any,  # noqa: ANN401
    spark: SparkSession | None,
    columns: Sequence[str] | None,
    filter: ds.Expression | None,
    num_map_tasks: int | None,
) -> MapTasks:
    """Return the map tasks of a source; raises SchemaError, and OptionError."""
    require("pandas", "df.mapInArrow of PySpark")
    if is_frame(source):
        given = {"columns": columns, "filter": filter, "num_map_tasks": num_map_tasks}
        for name, value in given.items():
            if value is not None:
                msg = (
                    f"{name}: only for a pyarrow dataset; use df.select, df.filter or "
                    "df.repartition on a DataFrame"
                )
                raise OptionError(msg)
        return FrameTasks(source)
    msg = (
        f"source is {named(source)}: expected a Spark DataFrame, a pyarrow dataset of files, or a "
        "table of Delta or Iceberg. Rows in memory are written by this process: leave spark out"
    )
    try:
        found = source_of(source, columns=columns, filter=filter)
    except SchemaError as error:
        raise SchemaError(msg) from error
    if isinstance(found, StreamSource):
        raise SchemaError(msg)
    return ScanTasks(found, spark or active_session(), num_map_tasks)


def is_frame(source: object) -> bool:
    """Whether a source is a DataFrame of Spark, classic or of Spark Connect."""
    # Of its class: a frame of pandas has its columns as attributes, whatever their names.
    return hasattr(type(source), "mapInArrow")


class FrameTasks:
    """A map task per Spark partition of a DataFrame."""

    num_map_outputs = None

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._spark = frame.sparkSession

    def choose(self) -> Choice:
        """Choose the number of subpartitions that ``df.repartition(*keys)`` makes."""
        number = int(self._spark.conf.get(SHUFFLE_PARTITIONS, "200") or 200)
        reason = f"as {SHUFFLE_PARTITIONS} says"
        return Choice(number, reason, default_parallelism(self._spark))

    def begin(self, storage: Storage, **how: Any) -> ShuffleJob:  # noqa: ANN401
        """Begin the job."""
        is_case_sensitive = str(self._spark.conf.get("spark.sql.caseSensitive", "false")).lower()
        return begin_frame_job(
            storage, self._frame.schema, case_sensitive=is_case_sensitive == "true", **how
        )

    def sample(self, ranges: RangePartitioner, num_subpartitions: int) -> RangePartitioner:
        """Let Spark take a sample."""
        return sample_range_partitioner(self._frame, ranges.keys, num_subpartitions)

    def run(self, jobs: Sequence[ShuffleJob], what: str) -> list[Iterator[MapStatus]]:
        """Write the rows of all Spark partitions."""
        _warn_of_slow_transfer(self._spark)
        return _statuses(self._frame, MapTask(jobs), what)


class ScanTasks:
    """Map tasks that read files or a table themselves, so that no row enters the JVM."""

    def __init__(self, source: Source, spark: SparkSession, num_tasks: int | None) -> None:
        self._source = source
        self._spark = spark
        self._cores = default_parallelism(spark)
        self._scan = source.plan(for_spark=True, parallelism=self._cores, num_tasks=num_tasks)
        self.num_map_outputs = self._scan.num_tasks

    def choose(self) -> Choice:
        """Choose the number of subpartitions by the bytes of the rows."""
        return by_bytes(self._scan.num_bytes, self._cores)

    def begin(self, storage: Storage, **how: Any) -> ShuffleJob:  # noqa: ANN401
        """Begin the job."""
        return begin_scan_job(storage, self._scan.schema, **how)

    def sample(self, ranges: RangePartitioner, num_subpartitions: int) -> RangePartitioner:
        """Take a sample in this process."""
        return self._source.sample(ranges, num_subpartitions, for_spark=True)

    def run(self, jobs: Sequence[ShuffleJob], what: str) -> list[Iterator[MapStatus]]:
        """Read and write in one Spark task per map task."""
        numbers = self._spark.range(0, self.num_map_outputs, 1, self.num_map_outputs)
        task = NumberedMapTask(jobs, self._scan.read, reads_ahead=self._source.reads_ahead)
        return _statuses(numbers, task, what)


def begin_scan_job(
    storage: Place,
    schema: pa.Schema,
    *,
    options: WriteOptions | None,
    **how: Any,  # noqa: ANN401
) -> ShuffleJob:
    """Begin a job for the rows of a scan."""
    try:
        spark_schema = spark_schema_of(schema)
        arrow_schema_of(spark_schema)
    except SchemaError:  # Spark lacks a type: the shuffle is one without a Spark schema
        return begin_job(storage, schema, options=options_of_tasks(options), **how)
    return begin_spark_job(storage, spark_schema, options=options, **how)


def _statuses(frame: DataFrame, task: MapTask, what: str) -> list[Iterator[MapStatus]]:
    rows = run_task(frame, task, what)

    def of_target(number: int) -> Iterator[MapStatus]:
        # Not decoded together: totals of tens of thousands of tasks would take gigabytes.
        return statuses_from_rows(row for row in rows if row["target"] == number)

    return [of_target(number) for number in range(len(task.jobs))]


def _warn_of_slow_transfer(spark: SparkSession) -> None:
    """Warn of lz4 between JVM and Python, with which 24 MB take two minutes in Spark 4.3."""
    setting = "spark.sql.execution.arrow.compression.codec"
    if spark.conf.get(setting, "none") == "lz4":
        warnings.warn(
            f"{setting} is lz4, with which Spark 4.3 transfers Arrow batches a hundred times "
            "slower; set it to none or zstd",
            stacklevel=3,
        )
