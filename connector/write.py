"""Writes a DataFrame or a dataset as a shuffle: checks, bounds of ranges, map tasks, commit."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

from arrow_format.errors import OptionError, SchemaError
from arrow_format.extras import require
from arrow_format.ingest.scan import Scan, ScannedRows, plan_scan
from arrow_format.ingest.tables import delta_dataset, plan_iceberg
from arrow_format.jobs.append import like_newest
from arrow_format.jobs.target import settle_bounds
from arrow_format.keys.partitioner import choose_partitioner
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.model import Transaction
from arrow_format.options import WriteMode, check_mode
from arrow_format.storage.open import open_storage
from connector.dataset_task import DatasetMapTask
from connector.map_task import ShuffleMapTask, write_and_commit
from connector.range_sample import sample_range_partitioner
from connector.session import active_session, default_parallelism
from connector.table_formats import table_format

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltalake import DeltaTable
    from pyiceberg.table import DataScan as IcebergDataScan
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Place


def write_shuffle(
    source: DataFrame | ds.Dataset | DeltaTable | IcebergTable | IcebergDataScan,
    path: Place,
    *,
    num_subpartitions: int,
    keys: str | Sequence[str] | None = None,
    partitioner: Partitioner | None = None,
    sort_by: Sequence[str | tuple[str, str]] | None = (),
    combine: Mapping[str, str] | None = None,
    mode: WriteMode = "errorifexists",
    options: WriteOptions | None = None,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    num_map_tasks: int | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Write a DataFrame, a dataset of files or a table as a shuffle and commit it.

    Works on a classic session and through Spark Connect. The calling process commits, so it must
    see ``path`` as the tasks do.

    Parameters
    ----------
    source
        DataFrame to write; one Spark partition is one map task. Or a ``pyarrow.dataset.Dataset`` of
        files (Parquet, Arrow IPC, CSV, ...) that calling process and tasks can read: its files,
        large ones by row groups or record batches, are spread over map tasks by bytes and read
        there, so that no row passes through the JVM. Its own filter applies. The types are those
        that Spark would read, see the guide. Or a table: a ``deltalake.DeltaTable``, whose files
        are read so; or a ``pyiceberg`` table or scan of one, whose files are read by pyiceberg in
        the tasks. Rows that were deleted stay deleted.
    path
        Directory or URI of the shuffle.
    num_subpartitions
        1 to 1,000,000.
    keys, partitioner
        Exactly one: column names to hash as Spark does, or a partitioner. A RangePartitioner
        without bounds gets them from the existing shuffle when appending, otherwise from a sample
        of ``source``: Spark samples a DataFrame, this process a dataset.
    sort_by
        Keys by which the rows of each subpartition are sorted, ``("a", ("b", "descending"))``: a
        column, or a pair of column and ``ascending`` (nulls first), ``descending`` (nulls last),
        ``ascending nulls last`` or ``descending nulls first``. When empty, in order of arrival.
    combine
        Functions of the columns that are not keys, ``{"n": "sum", "price": "max"}``: rows with
        equal keys become one row, of ``sum``, ``min`` or ``max``, as far as they meet in the memory
        of a map task. What is stored are partial results in the types that Spark gives sums;
        :func:`aggregate_shuffle` completes them. A task in which few keys repeat writes its rows as
        they are. None: rows are stored as they are.
    mode
        errorifexists, overwrite, append or ignore.
    options
        How to write; defaults when None.
    columns
        Of a dataset or table only: names of the columns to write, in that order; all when None.
        Only these and the columns of the filter are read.
    filter
        Of a dataset or Delta table only: a boolean ``pyarrow`` expression over columns by name;
        rows for which it is true are written. Partitions for which it cannot be true are not read,
        nor are row groups unless it uses a floating-point column.
    num_map_tasks
        Of a dataset or table only: number of map tasks, fewer where the files cannot be split
        further. When None, about one per 64 MiB on disk, in a multiple of those that run
        concurrently.
    expected_version
        Write only if no rows were added or taken away after that version, which merges do not; 0
        expects that there is none yet. Checked before any task runs, and when the write is
        committed. None: do not ask.
    transaction
        An application and a number, ``("nightly", 20251124)``: the write is committed once, however
        often it is repeated with them. Numbers of an application ascend; its name is 1 to 100 of
        ``A-Z a-z 0-9 _ -``. Where they are in the log already, no row is written and the receipt
        ``is_repetition`` of the first; that is so whatever became of its rows. None: each call
        writes.
    spark
        Of a dataset or table only: the session that runs the tasks; the active one when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    ShuffleReceipt
        What was written. With mode ``ignore`` and an existing shuffle, that of its newest version.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError, StorageError
        An argument does not fit source or path; raised before any task runs.
    CommitConflictError
        Rows were changed after the expected version, or it is not there; or a larger number of the
        application is in the log, and that of the transaction is not. Nothing is left behind.
    pyspark.errors.PySparkException
        A task failed; the files of this write are removed.
    """
    require("pandas", "df.mapInArrow of PySpark")
    mode = check_mode(mode)
    once = Transaction.of(transaction)
    storage = open_storage(path, storage_options)
    chosen = choose_partitioner(keys, partitioner)
    table = table_format(source)
    if table == "delta":
        source = delta_dataset(source)
    common: dict[str, Any] = {
        "num_subpartitions": num_subpartitions,
        "sort_by": sort_by,
        "combine": combine,
        "options": options,
    }
    make_task: Callable[..., ShuffleMapTask]
    num_map_outputs = None
    if hasattr(source, "mapInArrow"):
        given = {"columns": columns, "filter": filter, "num_map_tasks": num_map_tasks}
        for name, value in given.items():
            if value is not None:
                msg = (
                    f"{name}: only for a pyarrow dataset; use df.select, df.filter or "
                    "df.repartition on a DataFrame"
                )
                raise OptionError(msg)
        frame = source
        make_task = partial(
            ShuffleMapTask,
            storage,
            schema=frame.schema,
            case_sensitive=_is_case_sensitive(frame.sparkSession),
            **common,
        )

        def sample(ranges: RangePartitioner) -> RangePartitioner:
            return sample_range_partitioner(frame, ranges.keys, num_subpartitions)
    elif isinstance(source, ds.Dataset) or table == "iceberg":
        session = active_session(spark)
        scan = _planned(
            source,
            parallelism=default_parallelism(session),
            columns=columns,
            filter=filter,
            num_tasks=num_map_tasks,
        )
        num_map_outputs = scan.num_tasks
        frame = session.range(0, num_map_outputs, 1, num_map_outputs)
        make_task = partial(DatasetMapTask, storage, scan, **common)

        def sample(ranges: RangePartitioner) -> RangePartitioner:
            return _sample_dataset(source, ranges, num_subpartitions, filter)
    else:
        package = type(source).__module__.partition(".")[0]
        kind = f"{package} {type(source).__name__}".removeprefix("builtins ")
        msg = (
            f"source is {kind}: expected a Spark DataFrame, a pyarrow dataset of files, or a table "
            "of Delta or Iceberg. Rows in memory are written by arrow_format.write_shuffle"
        )
        raise SchemaError(msg)

    def checked_sample(ranges: RangePartitioner) -> RangePartitioner:
        # Check everything else before any row is read.
        make_task(partitioner=RangePartitioner(keys=ranges.keys, bounds=[]))
        return sample(ranges)

    task = make_task(partitioner=settle_bounds(chosen, storage, mode, checked_sample))
    if num_map_outputs is None:
        _warn_of_slow_transfer(frame.sparkSession)
    return write_and_commit(
        task,
        frame,
        mode,
        num_map_outputs=num_map_outputs,
        expected_version=expected_version,
        transaction=once,
    )


def append_shuffle(
    source: DataFrame | ds.Dataset | DeltaTable | IcebergTable | IcebergDataScan,
    path: Place,
    *,
    options: WriteOptions | None = None,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    num_map_tasks: int | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    spark: SparkSession | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Append rows to a shuffle: partitioned, sorted and stored as those that are there.

    Number of subpartitions, partitioner, sort keys, combined columns and codec are those of the
    newest version. Columns are matched by name: one that the rows lack is null there, and must be
    nullable; one that the shuffle lacks becomes a new nullable column, and one that may be null in
    these rows becomes nullable. A number may be wider than before, unless it is a key. A shuffle of
    combined rows takes no new columns.

    Parameters
    ----------
    source, path
        As for :func:`write_shuffle`.
    options
        How to write; its codec and ``schema_evolution`` are not used. Defaults when None.
    columns, filter, num_map_tasks, expected_version, transaction, spark, storage_options
        As for :func:`write_shuffle`.

    Returns
    -------
    ShuffleReceipt
        What was appended.

    Raises
    ------
    ShuffleNotFoundError, ResultReleasedError
        There is no shuffle to append to.
    OptionError
        A partitioner of your own places its rows: give it to ``write_shuffle(..., mode="append")``.
    SchemaError, StorageError, CommitConflictError, pyspark.errors.PySparkException
        As for :func:`write_shuffle`; nothing is left behind.
    """
    return write_shuffle(
        source,
        path,
        **like_newest(path, options, storage_options),
        mode="append",
        columns=columns,
        filter=filter,
        num_map_tasks=num_map_tasks,
        expected_version=expected_version,
        transaction=transaction,
        spark=spark,
        storage_options=storage_options,
    )


def _is_case_sensitive(spark: SparkSession) -> bool:
    return str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def _warn_of_slow_transfer(spark: SparkSession) -> None:
    """Warn of lz4 between JVM and Python, with which 24 MB take two minutes in Spark 4.3."""
    setting = "spark.sql.execution.arrow.compression.codec"
    if spark.conf.get(setting, "none") == "lz4":
        warnings.warn(
            f"{setting} is lz4, with which Spark 4.3 transfers Arrow batches a hundred times "
            "slower; set it to none or zstd",
            stacklevel=3,
        )


# Bounds of ranges ---------------------------------------------------------------------------------


def _sample_dataset(
    source: Any,  # noqa: ANN401
    ranges: RangePartitioner,
    num_subpartitions: int,
    filter: ds.Expression | None,
) -> RangePartitioner:
    """Give a range partitioner bounds that split a sample of a dataset or table evenly.

    This process reads the key columns and those of the filter twice: to count rows, and to take
    some.
    """
    names = [name for name, _ in ranges.keys]
    scan = _planned(source, parallelism=1, columns=names, filter=filter)
    return RangePartitioner.sampled(ScannedRows(scan), ranges.keys, num_subpartitions)


def _planned(
    source: Any,  # noqa: ANN401
    *,
    filter: ds.Expression | None,
    **options: Any,  # noqa: ANN401
) -> Scan:
    """Plan the scan of a dataset, or of a table of Iceberg."""
    if isinstance(source, ds.Dataset):
        return plan_scan(source, filter=filter, **options)
    if filter is not None:
        msg = "filter: give it to Iceberg, which finds files by it: table.scan(row_filter=...)"
        raise OptionError(msg)
    return plan_iceberg(source, **options)
