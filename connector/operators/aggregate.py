"""Groups of rows of a shuffle, aggregated inside the tasks that read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    NullType,
    StringType,
    StructType,
)

from arrow_format.errors import SchemaError
from arrow_format.operators.aggregate import aggregate_range
from arrow_format.operators.aggregate_functions import COMPARING, LISTS, OF_ROWS
from arrow_format.operators.aggregation_plan import plan_aggregation
from connector.operators.tasks import open_shuffles, run_in_groups
from connector.options.source import DEFAULT_TARGET_PARTITION_BYTES
from connector.source.reader import spark_schema
from connector.spark_types import check_keys, spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from arrow_format.operators.aggregation_plan import (
        Aggregation,
        AggregationPlan,
        PlannedAggregation,
    )
    from arrow_format.options import ReadOptions
    from arrow_format.read.shuffle import Shuffle
    from connector.operators.tasks import Path


def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Aggregate rows with equal keys, without a shuffle or a trip through the JVM.

    .. code-block:: python

        aggregate_shuffle(spark, path, "user", [("price", "sum"), ("price", "avg")])
        aggregate_shuffle(spark, path, "user", {"price": "sum", "*": "count"})
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
        (column, function) or (column, function, options), of which columns of the result are named
        ``price_sum``; a mapping names them otherwise, or has the form {column: function}, as
        ``df.agg`` takes it. When empty, the result is the distinct keys.

        A name that Spark has gives what Spark's SQL gives, values and types: ``sum``, ``avg``
        (``mean``), ``min``, ``max``, ``count`` (of ``"*"``: rows), ``count_if``,
        ``count_distinct``, ``first`` (``first_value``, ``any_value``), ``last`` (``last_value``),
        ``stddev`` (``std``, ``stddev_samp``), ``stddev_pop``, ``variance`` (``var_samp``),
        ``var_pop``, ``skewness``, ``kurtosis``, ``product``, ``collect_list`` (``array_agg``),
        ``collect_set``, ``bool_and`` (``every``), ``bool_or`` (``any``, ``some``). So NaN is the
        largest number, ``stddev`` and ``variance`` are those of a sample, and ``first`` may be
        null. What overflows is an error, as in Spark's ANSI mode; where only a sum on the way
        overflows, the result is exact and Spark's is an error.

        Names that only PyArrow has give what PyArrow gives: ``all``, ``approximate_median``,
        ``count_all`` (of ``[]``), ``distinct``, ``first_last``, ``list``, ``min_max``, ``one``,
        ``pivot_wider``, ``skew``, ``tdigest``.

        Options are PyArrow's, their defaults included, and go with names that PyArrow has.
        ``("price", "first", pc.ScalarAggregateOptions(skip_nulls=True))`` is Spark's
        ``first(price, true)``.
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
        order. A task holds tens of megabytes of rows and results at a time; a larger subpartition
        is read in passes, see :func:`~arrow_format.operators.aggregate.aggregate_range`.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        Something does not fit; found here and not at the first action.
    pyspark.errors.PySparkException
        At the first action; with ArithmeticOverflowError where a result is outside of what its type
        holds, which names the column and the group.
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
    looked_at = [one.columns[0] for one in plan.aggregations if _depends_on_type(one)]
    there = spark_schema(shuffle, list(dict.fromkeys([*plan.keys, *looked_at])))
    check_keys(there, plan.keys)
    fields = [there[name] for name in plan.keys]
    fields += spark_schema_of(plan.schema).fields[len(fields) :]
    for number, one in enumerate(plan.aggregations, start=len(plan.keys)):
        if _depends_on_type(one):
            type_ = there[one.columns[0]].dataType
            fields[number].dataType = _result_type(one, type_, fields[number].dataType)
    return StructType(fields)


def _depends_on_type(one: PlannedAggregation) -> bool:
    """Whether what Spark says of the column matters.

    A user-defined type, a collation or the unit of an interval is not in Arrow's schema.
    """
    names = {"sum", *OF_ROWS, *LISTS, *COMPARING}
    return len(one.columns) == 1 and one.function in names


def _result_type(one: PlannedAggregation, type_: DataType, from_arrow: DataType) -> DataType:
    if (
        one.function in COMPARING
        and isinstance(type_, StringType)
        and not type_.isUTF8BinaryCollation()
    ):
        msg = (
            f"aggregation {one}: {one.columns[0]!r} has the collation {type_.collation}, and "
            "only bytes are compared here; aggregate what read_shuffle gives"
        )
        raise SchemaError(msg)
    if one.function in OF_ROWS or (
        one.function == "sum" and isinstance(type_, DayTimeIntervalType)
    ):
        return type_
    if one.function in LISTS:
        contains_null = LISTS[one.function] or isinstance(type_, NullType)
        return ArrayType(type_, containsNull=contains_null)
    return from_arrow


@dataclass(frozen=True)
class AggregationOfGroup:
    """Aggregates the subpartitions of a group."""

    shuffle: Shuffle
    plan: AggregationPlan

    def __call__(self, subpartitions: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield one row per group of rows."""
        return aggregate_range(self.shuffle, self.plan, subpartitions)
