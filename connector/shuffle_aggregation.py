"""Groups of rows of a shuffle, aggregated inside the tasks that read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from arrow_format.aggregation_plan import plan_aggregation
from arrow_format.range_aggregation import aggregate_range
from connector.source_options import DEFAULT_TARGET_PARTITION_BYTES
from connector.source_reader import spark_schema
from connector.spark_types import check_keys, spark_schema_of
from connector.subpartition_tasks import open_shuffles, run_in_groups

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.aggregation_plan import Aggregation, AggregationPlan
    from arrow_format.dataset import Shuffle
    from arrow_format.options import ReadOptions
    from connector.subpartition_tasks import Path


def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation],
    *,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Aggregate rows with equal keys, without a shuffle or a trip through the JVM.

    .. code-block:: python

        aggregate_shuffle(spark, path, "user", [("price", "sum"), ([], "count_all")])
        aggregate_shuffle(spark, path, "user", {"spent": ("price", "sum")})

    Parameters
    ----------
    spark
        Session, classic or Connect.
    shuffle
        Path or URI; no rows of it may be broadcast, since every subpartition would count them.
    keys
        Columns to group by; they contain the partition keys, so that no group lies in two
        subpartitions. Nulls form a group; so do all NaN, and -0.0 with 0.0. With a partitioner of
        your own, they must contain what it looks at.
    aggregations
        As ``pyarrow.TableGroupBy.aggregate`` takes them: (column, function) or (column, function,
        options), with ``count_all`` of ``[]``. Columns of the result are named ``price_sum``; a
        mapping names them otherwise. When empty, the result is the distinct keys.
    subpartitions
        One, a range or several; all when None.
    version
        The newest when None.
    target_partition_bytes
        Bytes on disk that one task may read.
    options
        Memory that a task may take to read, and mapping; defaults when None.
    storage_options
        Where shuffles are in object stores: credentials, region, endpoint, as obstore names them.
        They win over the environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame
        Lazy; the keys, then a column for each aggregation, one row per group in no particular
        order. Values are PyArrow's, not Spark's: a sum of integers wraps around, ``min`` and
        ``max`` pass over NaN. A task holds tens of megabytes of rows and results at a
        time; a larger subpartition is read in passes, see
        :func:`~arrow_format.range_aggregation.aggregate_range`.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        Something does not fit; found here and not at the first action.
    """
    (opened,) = open_shuffles(shuffle, version, options, storage_options)
    plan = plan_aggregation(opened, keys, aggregations)
    return run_in_groups(
        spark,
        (opened,),
        AggregationOfGroup(opened, plan),
        _result_schema(opened, plan),
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
    )


def _result_schema(shuffle: Shuffle, plan: AggregationPlan) -> StructType:
    there = spark_schema(shuffle, plan.keys)
    check_keys(there, plan.keys)
    # A user-defined type or a collation is not in Arrow's schema.
    keys = [there[name] for name in plan.keys]
    return StructType([*keys, *spark_schema_of(plan.schema).fields[len(keys) :]])


@dataclass(frozen=True)
class AggregationOfGroup:
    """Aggregates the subpartitions of a group."""

    shuffle: Shuffle
    plan: AggregationPlan

    def __call__(self, subpartitions: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield one row per group of rows."""
        return aggregate_range(self.shuffle, self.plan, subpartitions)
