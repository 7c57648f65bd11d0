"""The map task of the lane that never enters the JVM: each reads its own part of a dataset.

Spark starts the tasks and carries their statuses back; the rows go from the files to the shuffle
inside the Python workers.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from arrow_format.errors import OptionError, SchemaError
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.keys.range_partitioner import RangePartitioner
from connector.map_task import STATUS_SCHEMA, begin_spark_job, status_to_row
from connector.scan.scan import ScannedRows, plan_scan
from connector.spark_types import arrow_schema_of, spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.dataset as ds
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Place
    from connector.scan.scan import DatasetScan


class DatasetMapTask:
    """Callable for ``mapInArrow`` on a DataFrame of task numbers: scans, and writes the shuffle.

    Each row of its input is the number of a map task in its first column; it yields one map status
    for each. The numbers, and not the Spark tasks they arrive in, say what is read.

    Parameters
    ----------
    path
        Directory or URI of the shuffle, as the tasks see it.
    scan
        What each task reads.
    num_subpartitions, partitioner, sort_by, options
        As in :class:`~connector.map_task.ShuffleMapTask`.

    Raises
    ------
    OptionError, SchemaError
        Something does not fit; the message names the column or option.
    """

    def __init__(
        self,
        path: Place,
        scan: DatasetScan,
        *,
        num_subpartitions: int,
        partitioner: Partitioner,
        sort_by: Sequence[str | tuple[str, str]] = (),
        options: WriteOptions | None = None,
    ) -> None:
        self.scan = scan
        self.job = _begin(path, scan.schema, num_subpartitions, partitioner, sort_by, options)

    @property
    def status_schema(self) -> StructType:
        """Schema to give to ``mapInArrow``."""
        return STATUS_SCHEMA

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the map outputs of the numbers that arrive and yield their statuses."""
        # A Spark task owns one core; Arrow would take them all.
        pa.set_cpu_count(1)
        context = TaskContext.get()
        attempt = 0 if context is None else context.attemptNumber()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                status = run_map_task(self.job, number, attempt, self.scan.read(number))
                row = status_to_row(status)
                yield pa.RecordBatch.from_pylist([row], schema=arrow_schema_of(STATUS_SCHEMA))


def _begin(
    path: Place,
    schema: pa.Schema,
    num_subpartitions: int,
    partitioner: Partitioner,
    sort_by: Sequence[str | tuple[str, str]],
    options: WriteOptions | None,
) -> ShuffleJob:
    """Begin a job, with Spark's schema where Spark has all the types."""
    arguments: dict[str, Any] = {
        "num_subpartitions": num_subpartitions,
        "partitioner": partitioner,
        "sort_by": sort_by,
        "options": options,
    }
    try:
        spark_schema = spark_schema_of(schema)
        arrow_schema_of(spark_schema)
    except SchemaError:
        spark_schema = None
    if spark_schema is None:
        return begin_job(path, schema, **arguments)
    return begin_spark_job(path, spark_schema, **arguments)


def sample_dataset(
    dataset: ds.Dataset,
    ranges: RangePartitioner,
    num_subpartitions: int,
    filter: ds.Expression | None,
) -> RangePartitioner:
    """Give a range partitioner bounds that split a sample of a dataset evenly.

    The key columns, and those that the filter looks at, are read here, twice: to count the rows and
    to take some of them.

    Raises
    ------
    OptionError, SchemaError, StorageError
        As :func:`~connector.scan.scan.plan_scan`.
    """
    names = [name for name, _ in ranges.keys]
    scan = plan_scan(dataset, parallelism=1, columns=names, filter=filter)
    return RangePartitioner.sampled(ScannedRows(scan), ranges.keys, num_subpartitions)


def active_session(spark: SparkSession | None) -> SparkSession:
    """Return the session that was given, or the active one, classic or of Spark Connect.

    Raises
    ------
    OptionError
        There is none.
    """
    from pyspark.sql import SparkSession

    found = SparkSession.getActiveSession() if spark is None else spark
    if found is None:
        msg = (
            "source is a pyarrow dataset and there is no active Spark session to run the map "
            "tasks: give spark=..., or start a session first"
        )
        raise OptionError(msg)
    return found


def default_parallelism(spark: SparkSession) -> int:
    """Return how many tasks a session runs at once, as Spark plans for a range of numbers.

    Spark Connect does not tell otherwise.
    """
    (row,) = spark.sql("EXPLAIN SELECT id FROM range(1)").collect()
    found = re.search(r"splits=(?:Some\()?(\d+)", row[0])
    return max(1, int(found[1])) if found else os.cpu_count() or 1
