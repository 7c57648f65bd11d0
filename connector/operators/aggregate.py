"""Groups of rows of a shuffle, aggregated inside the tasks that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from pyspark.sql.types import ArrayType, DayTimeIntervalType, NullType, StringType, StructType

from arrow_format.errors import SchemaError
from arrow_format.operators.aggregate_functions import COMPARING, LISTS, OF_ROWS
from arrow_format.operators.aggregate_shuffle import aggregate_operation
from arrow_format.operators.aggregation_plan import plan_aggregation
from arrow_format.operators.inputs import open_shuffles, where
from arrow_format.operators.into import check_into
from connector.operators.tasks import run_in_groups, session_settings
from connector.options.batch import DEFAULT_TARGET_PARTITION_BYTES
from connector.source.reader import spark_schema
from connector.spark_types import check_keys, spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.aggregation_plan import (
        Aggregation,
        AggregationPlan,
        PlannedAggregation,
    )
    from arrow_format.operators.inputs import Path
    from arrow_format.operators.into import Options
    from arrow_format.options import WriteMode
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place


@overload
def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    filter: str | pc.Expression | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame: ...
@overload
def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    filter: str | pc.Expression | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    into: Place,
    partition_by: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def aggregate_shuffle(
    spark: SparkSession,
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    filter: str | pc.Expression | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    into: Place | None = None,
    partition_by: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame | ShuffleReceipt:
    """Aggregate rows with equal keys in the tasks that read them; only results enter the JVM.

    .. code-block:: python

        aggregate_shuffle(spark, path, "user", [("price", "sum"), ("price", "avg")])
        aggregate_shuffle(spark, path, "user", {"price": "sum", "*": "count"})
        aggregate_shuffle(spark, path, "user", {"spent": ("price", "sum")})

    Parameters
    ----------
    spark
        Session, classic or Connect.
    shuffle
        Path or URI. None of its rows may be broadcast, since every subpartition would count them.
    keys
        Columns to group by; they contain the partition keys, so that no group spans two
        subpartitions. Nulls form a group; so do all NaN, and -0.0 with 0.0. With a partitioner of
        your own, they must contain the columns that it uses.
    aggregations
        (column, function) or (column, function, options), with results named ``price_sum``; or a
        mapping from names of results to these, or from columns to functions, as ``df.agg`` takes
        it. When empty, the result is the distinct keys.

        Functions of Spark's SQL give its values and types: ``sum``, ``avg``
        (``mean``), ``min``, ``max``, ``count`` (of ``"*"``: rows), ``count_if``,
        ``count_distinct``, ``first`` (``first_value``, ``any_value``), ``last`` (``last_value``),
        ``stddev`` (``std``, ``stddev_samp``), ``stddev_pop``, ``variance`` (``var_samp``),
        ``var_pop``, ``skewness``, ``kurtosis``, ``product``, ``collect_list`` (``array_agg``),
        ``collect_set``, ``bool_and`` (``every``), ``bool_or`` (``any``, ``some``). So NaN is the
        largest number, ``stddev`` and ``variance`` are those of a sample, and ``first`` may be
        null. An overflow is an error, as in Spark's ANSI mode; where only an intermediate sum
        overflows, the result is exact and Spark raises an error.

        Functions that only PyArrow has give its results: ``all``, ``approximate_median``,
        ``count_all`` (of ``[]``), ``distinct``, ``first_last``, ``list``, ``min_max``, ``one``,
        ``pivot_wider``, ``skew``, ``tdigest``.

        Options are PyArrow's, with its defaults, for functions that PyArrow has.
        ``("price", "first", pc.ScalarAggregateOptions(skip_nulls=True))`` is Spark's
        ``first(price, true)``.
    filter
        Aggregate only the rows for which it is true: text or an expression, as for
        :func:`~connector.read_shuffle`. A group without such rows is not in the result.
    subpartitions
        One, a range or several; all when None.
    version
        The newest when None.
    target_partition_bytes
        Bytes on disk that one task may read.
    into
        Path or URI of a shuffle that the tasks write the result to, instead of passing it to the
        JVM. Rows stay in the subpartitions that they came from, without an exchange, where the
        result has the partition keys of the input. Each row is checked: one whose key
        belongs elsewhere is an error that names it.
    partition_by
        With ``into`` only: columns of the result to partition it by, as Spark hashes them. If
        they are the partition keys of the input, and n is its too, rows stay.
    num_subpartitions, mode
        With ``into`` only: of the shuffle that is written, as for
        :func:`~connector.write_shuffle`; the number is that of the input when None.
    options
        Memory of a task, and whether files are mapped: a :class:`~arrow_format.ReadOptions`. With
        ``into`` also, or instead, how to write: a :class:`~arrow_format.WriteOptions`. Defaults
        when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame or ShuffleReceipt
        Lazy; the keys, then a column for each aggregation, one row per group in no particular
        order. With ``into``, once all is written and committed, its receipt. A task buffers tens of
        megabytes of rows and results; it reads a larger subpartition in passes, see
        :func:`~arrow_format.operators.aggregate.aggregate_range`.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffle, or it cannot be opened; raised here and not at the
        first action.
    pyspark.errors.PySparkException
        At the first action; with ArithmeticOverflowError where a result exceeds its type, naming
        column and group.
    """
    reading, target = check_into(
        into,
        options,
        keys=partition_by,
        num_subpartitions=num_subpartitions,
        mode=mode,
        storage_options=storage_options,
        name_of_keys="partition_by",
    )
    (opened,) = open_shuffles(shuffle, version, reading, storage_options)
    plan = plan_aggregation(opened, keys, aggregations)
    opened = where(opened, filter, session_settings(spark, filter))
    return run_in_groups(
        spark,
        aggregate_operation(opened, plan),
        _result_schema(opened, plan),
        what="aggregate_shuffle",
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
        into=target,
    )


def _result_schema(shuffle: Shuffle, plan: AggregationPlan) -> StructType:
    typed = [planned.columns[0] for planned in plan.aggregations if _needs_spark_type(planned)]
    inputs = spark_schema(shuffle, list(dict.fromkeys([*plan.keys, *typed])))
    check_keys(inputs, plan.keys)
    fields = [inputs[name] for name in plan.keys]
    fields += spark_schema_of(plan.schema).fields[len(fields) :]
    for planned, field in zip(plan.aggregations, fields[len(plan.keys) :], strict=True):
        if _needs_spark_type(planned):
            type_ = inputs[planned.columns[0]].dataType
            field.dataType = _result_type(planned, type_, field.dataType)
    return StructType(fields)


def _needs_spark_type(planned: PlannedAggregation) -> bool:
    """Whether the result depends on a collation, user-defined type or unit Arrow does not carry."""
    return len(planned.columns) == 1 and planned.function in {"sum", *OF_ROWS, *LISTS, *COMPARING}


def _result_type(planned: PlannedAggregation, type_: DataType, from_arrow: DataType) -> DataType:
    function = planned.function
    if (
        function in COMPARING
        and isinstance(type_, StringType)
        and not type_.isUTF8BinaryCollation()
    ):
        msg = (
            f"aggregation {planned}: {planned.columns[0]!r} has the collation {type_.collation}, "
            "and only bytes are compared here; aggregate the DataFrame of read_shuffle"
        )
        raise SchemaError(msg)
    if function in OF_ROWS or (function == "sum" and isinstance(type_, DayTimeIntervalType)):
        return type_
    if function in LISTS:
        return ArrayType(type_, containsNull=LISTS[function] or isinstance(type_, NullType))
    return from_arrow
