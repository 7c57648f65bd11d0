"""Writing a DataFrame or a dataset as a shuffle, from first check to receipt."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from arrow_format.errors import OptionError, SchemaError
from arrow_format.jobs.cleanup import abort_after
from arrow_format.jobs.commit import receipt_of
from arrow_format.jobs.target import open_target, settle_bounds
from arrow_format.keys.partitioner import choose_partitioner
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.options import WriteMode, check_mode
from arrow_format.storage.open import open_storage
from connector.dataset_task import (
    DatasetMapTask,
    active_session,
    default_parallelism,
    sample_dataset,
)
from connector.map_task import ShuffleMapTask, commit_shuffle
from connector.sampling import sample_range_partitioner
from connector.scan.scan import plan_scan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Place, Storage
    from connector.scan.scan import DatasetScan


def write_shuffle(
    source: DataFrame | ds.Dataset,
    path: Place,
    *,
    num_subpartitions: int,
    keys: str | Sequence[str] | None = None,
    partitioner: Partitioner | None = None,
    sort_by: Sequence[str | tuple[str, str]] = (),
    mode: WriteMode = "errorifexists",
    options: WriteOptions | None = None,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    num_map_tasks: int | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Write a DataFrame or a dataset of files as a shuffle and commit it.

    Works on a classic session and through Spark Connect. The calling process commits, so it must
    see ``path`` as the tasks do.

    Parameters
    ----------
    source
        DataFrame to write; one Spark partition is one map task. Or a ``pyarrow.dataset.Dataset`` of
        files (Parquet, Arrow IPC, CSV, ...) that calling process and tasks can read: its files,
        the large ones by row groups or record batches, are spread over map tasks by bytes and read
        inside of them, so that no row passes through the JVM. Its own filter holds. The types are
        those that Spark would read, see the guide.
    path
        Directory or URI of the shuffle.
    num_subpartitions
        1 to 1,000,000.
    keys, partitioner
        Exactly one: column names to hash as Spark does, or a partitioner. A RangePartitioner
        without bounds gets them from a sample of ``source``, which Spark takes of a DataFrame and
        this process of a dataset, or when appending from the shuffle that is there.
    sort_by
        Keys by which the rows of each subpartition are sorted, ``("a", ("b", "descending"))``: a
        column, or a pair of column and ``ascending`` (nulls first), ``descending`` (nulls last),
        ``ascending nulls last`` or ``descending nulls first``. When empty, as they arrive.
    mode
        errorifexists, overwrite, append or ignore.
    options
        How to write; defaults when None.
    columns
        Of a dataset only: names of the columns to write, in that order; all when None. No others
        are read, but for those that the filter looks at.
    filter
        Of a dataset only: a boolean ``pyarrow`` expression over columns by name; rows for which it
        is true are written. Partitions of which it cannot be true are not read, nor are row groups
        unless it looks at a floating-point column.
    num_map_tasks
        Of a dataset only: how many map tasks to have, or fewer where there is not so much to part.
        When None, about one for each 64 MiB on disk, and as many as run at once.
    spark
        Of a dataset only: the session that runs the tasks; the active one when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    ShuffleReceipt
        What was written. With mode ``ignore`` and a shuffle that is there, its newest version's.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError, StorageError
        Something does not fit; found before any task runs.
    pyspark.errors.PySparkException
        A task failed; everything this write had written is removed.
    """
    check_mode(mode)
    storage = open_storage(path, storage_options)
    chosen = choose_partitioner(keys, partitioner)
    common = {
        "num_subpartitions": num_subpartitions,
        "sort_by": sort_by,
        "options": options,
    }
    if hasattr(source, "mapInArrow"):
        given = {"columns": columns, "filter": filter, "num_map_tasks": num_map_tasks}
        for name, value in given.items():
            if value is not None:
                msg = (
                    f"{name}: only a pyarrow dataset takes it; of a DataFrame give what "
                    "df.select, df.filter or df.repartition makes of it"
                )
                raise OptionError(msg)
        rows = _rows_of_frame(source, storage, common)
    elif isinstance(source, ds.Dataset):
        session = active_session(spark)
        scan = plan_scan(
            source,
            parallelism=default_parallelism(session),
            columns=columns,
            filter=filter,
            num_tasks=num_map_tasks,
        )
        rows = _rows_of_dataset(source, scan, filter, session, storage, common)
    else:
        package = type(source).__module__.partition(".")[0]
        kind = f"{package} {type(source).__name__}".removeprefix("builtins ")
        msg = (
            f"source is {kind}: expected a Spark DataFrame or a pyarrow dataset of files. Rows in "
            "memory are written by arrow_format.write_shuffle"
        )
        raise SchemaError(msg)

    def sample(ranges: RangePartitioner) -> RangePartitioner:
        # All else is checked before any row is read.
        rows.make_task(RangePartitioner(keys=ranges.keys, bounds=[]))
        return rows.sample(ranges)

    task = rows.make_task(settle_bounds(chosen, storage, mode, sample))
    there = open_target(task.job, mode)
    if there is not None and mode == "ignore":
        return receipt_of(task.job.storage, there.newest)
    task.job = replace(task.job, has_directory=True)
    try:
        statuses = rows.run(task)
        return commit_shuffle(task, statuses, mode=mode, expected_map_outputs=rows.num_map_outputs)
    except BaseException as error:
        abort_after(task.job, error)
        raise


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the rows of a source get into a shuffle."""

    make_task: Callable[[Partitioner], Any]
    """Checks what can be checked, and makes the map task."""
    sample: Callable[[RangePartitioner], RangePartitioner]
    """Gives a range partitioner its bounds."""
    run: Callable[[Any], list[Row]]
    """Runs the map task in Spark and returns the map statuses."""
    num_map_outputs: int | None = None
    """How many statuses there must be, where that is known before."""


def _rows_of_frame(df: DataFrame, storage: Storage, common: Mapping[str, Any]) -> _Rows:
    case_sensitive = is_case_sensitive(df.sparkSession)

    def run(task: ShuffleMapTask) -> list[Row]:
        warn_of_slow_transfer(df.sparkSession)
        return df.mapInArrow(task, task.status_schema).collect()

    return _Rows(
        make_task=lambda partitioner: ShuffleMapTask(
            storage,
            schema=df.schema,
            partitioner=partitioner,
            case_sensitive=case_sensitive,
            **common,
        ),
        sample=lambda ranges: sample_range_partitioner(
            df, ranges.keys, common["num_subpartitions"]
        ),
        run=run,
    )


def _rows_of_dataset(
    dataset: ds.Dataset,
    scan: DatasetScan,
    condition: ds.Expression | None,
    spark: SparkSession,
    storage: Storage,
    common: Mapping[str, Any],
) -> _Rows:
    def run(task: DatasetMapTask) -> list[Row]:
        numbers = spark.range(0, scan.num_tasks, 1, scan.num_tasks)
        return numbers.mapInArrow(task, task.status_schema).collect()

    return _Rows(
        make_task=lambda partitioner: DatasetMapTask(
            storage, scan, partitioner=partitioner, **common
        ),
        sample=lambda ranges: sample_dataset(
            dataset, ranges, common["num_subpartitions"], condition
        ),
        run=run,
        num_map_outputs=scan.num_tasks,
    )


def is_case_sensitive(spark: SparkSession) -> bool:
    """Whether the session tells columns apart by upper and lower case."""
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def warn_of_slow_transfer(spark: SparkSession) -> None:
    """Warn when Arrow batches are compressed with lz4 between JVM and Python.

    In Spark 4.3 that makes 24 MB take two minutes.
    """
    setting = "spark.sql.execution.arrow.compression.codec"
    if spark.conf.get(setting, "none") == "lz4":
        warnings.warn(
            f"{setting} is lz4, which makes Spark 4.3 hand over Arrow batches a hundred times "
            "slower; set it to none or zstd",
            stacklevel=4,
        )
