"""Writing a DataFrame as a shuffle, from first check to receipt."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from arrow_format.commit import abort_after, receipt_of
from arrow_format.errors import OptionError, SchemaError
from arrow_format.options import check_mode
from arrow_format.partitioner import choose_partitioner
from arrow_format.range_partitioner import RangePartitioner
from arrow_format.range_target import settle_bounds
from arrow_format.target import open_target
from connector.map_task import ShuffleMapTask, commit_shuffle
from connector.range_sampling import sample_range_partitioner

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.options import WriteOptions
    from arrow_format.partitioner import Partitioner
    from arrow_format.receipt import ShuffleReceipt


def write_shuffle(
    source: DataFrame,
    path: str | os.PathLike[str],
    *,
    num_subpartitions: int,
    keys: str | Sequence[str] | None = None,
    partitioner: Partitioner | None = None,
    sort_by: Sequence[str | tuple[str, str]] = (),
    mode: str = "errorifexists",
    options: WriteOptions | None = None,
    spark: SparkSession | None = None,
) -> ShuffleReceipt:
    """Write a DataFrame as a shuffle and commit it.

    Works on a classic session and through Spark Connect. The calling process commits, so it must
    see ``path`` as the tasks do.

    Parameters
    ----------
    source
        DataFrame to write; one Spark partition is one map task. A ``pyarrow.dataset.Dataset`` is
        not supported yet.
    path
        Directory or URI of the shuffle.
    num_subpartitions
        1 to 1,000,000.
    keys, partitioner
        Exactly one: column names to hash as Spark does, or a partitioner. A RangePartitioner
        without bounds gets them from a sample that Spark takes of ``source`` first, or when
        appending from the shuffle that is there.
    sort_by
        Keys by which the rows of each subpartition are sorted, ``("a", ("b", "descending"))``: a
        column, or a pair of column and ``ascending`` (nulls first), ``descending`` (nulls last),
        ``ascending nulls last`` or ``descending nulls first``. When empty, as they arrive.
    mode
        errorifexists, overwrite, append or ignore.
    options
        How to write; defaults when None.
    spark
        Not needed for a DataFrame.

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
    del spark
    check_mode(mode)
    if not hasattr(source, "mapInArrow"):
        if type(source).__module__.startswith("pyarrow"):
            msg = (
                f"source is a pyarrow {type(source).__name__}: not supported yet; read it by Spark"
            )
            raise OptionError(msg)
        msg = f"source is {type(source).__name__}: expected a Spark DataFrame"
        raise SchemaError(msg)
    case_sensitive = is_case_sensitive(source.sparkSession)

    def make_task(partitioner: Partitioner) -> ShuffleMapTask:
        return ShuffleMapTask(
            path,
            schema=source.schema,
            num_subpartitions=num_subpartitions,
            partitioner=partitioner,
            sort_by=sort_by,
            options=options,
            case_sensitive=case_sensitive,
        )

    def sample(ranges: RangePartitioner) -> RangePartitioner:
        # All else is checked before Spark reads anything.
        make_task(RangePartitioner(keys=ranges.keys, bounds=[]))
        return sample_range_partitioner(source, ranges.keys, num_subpartitions)

    chosen = choose_partitioner(keys, partitioner)
    task = make_task(settle_bounds(chosen, path, mode, sample))
    there = open_target(task.job, mode)
    if there is not None and mode == "ignore":
        return receipt_of(task.job.storage, there.newest)
    task.job = replace(task.job, has_directory=True)
    try:
        warn_of_slow_transfer(source.sparkSession)
        statuses = source.mapInArrow(task, task.status_schema).collect()
        return commit_shuffle(task, statuses, mode=mode)
    except BaseException as error:
        abort_after(task.job, error)
        raise


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
            stacklevel=3,
        )
