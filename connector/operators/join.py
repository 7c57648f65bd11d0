"""The join of two co-partitioned shuffles, inside the tasks that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from pyspark.sql.types import StructField, StructType

from arrow_format.arrays.spark_schema_evolution import same_spark_type
from arrow_format.arrays.stored_types import in_time_zone
from arrow_format.errors import SchemaError
from arrow_format.operators.inputs import open_shuffles, where
from arrow_format.operators.into import check_into
from arrow_format.operators.join_plan import plan_join
from arrow_format.operators.join_shuffles import check_then, join_operation
from connector.operators.tasks import (
    run_in_groups,
    session_settings,
    session_time_zone,
    spark_struct,
)
from connector.options.batch import DEFAULT_TARGET_PARTITION_BYTES
from connector.source.reader import spark_schema
from connector.spark_types import arrow_schema_of, check_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.inputs import Path
    from arrow_format.operators.into import Options
    from arrow_format.operators.join_plan import JoinKind, JoinPlan
    from arrow_format.operators.join_shuffles import Then
    from arrow_format.options import WriteMode
    from arrow_format.storage.open import Place


@overload
def join_shuffles(
    spark: SparkSession,
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_filter: str | pc.Expression | None = None,
    right_filter: str | pc.Expression | None = None,
    suffixes: tuple[str, str] | None = None,
    then: Then | None = None,
    schema: StructType | pa.Schema | str | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    check: bool = False,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame: ...
@overload
def join_shuffles(
    spark: SparkSession,
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_filter: str | pc.Expression | None = None,
    right_filter: str | pc.Expression | None = None,
    suffixes: tuple[str, str] | None = None,
    then: Then | None = None,
    schema: StructType | pa.Schema | str | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    check: bool = False,
    into: Place,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def join_shuffles(
    spark: SparkSession,
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_filter: str | pc.Expression | None = None,
    right_filter: str | pc.Expression | None = None,
    suffixes: tuple[str, str] | None = None,
    then: Then | None = None,
    schema: StructType | pa.Schema | str | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    check: bool = False,
    into: Place | None = None,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame | ShuffleReceipt:
    """Join two co-partitioned shuffles in the tasks that read them; only results enter the JVM.

    The rows are those of Spark's join: a null equals nothing, NaN equals NaN, -0.0 equals 0.0, and
    text is compared by its bytes. Columns are in the order of ``df.join(other, on=[...])``: keys
    with one name first and once, then the other columns of the left side, then of the right. Keys
    with two names stay in place.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    left, right
        Paths or URIs of shuffles that are co-partitioned (see :func:`map_subpartitions`). One of
        them may be broadcast, wholly or in some rows by a partitioner of your own: the right one of
        an inner, left, semi or anti join, the left one of an inner or right join.
    on
        Columns that are equal: names, or pairs (left, right) of names; they contain the partition
        keys. When None, the partition keys, if they have the same names on both sides. With
        partitioners of your own, ``on`` must contain the columns that they use.
    how
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or Spark's other names of
        these.
    left_columns, right_columns
        Columns of the result besides keys with one name; all when None. Others are not decoded.
    left_filter, right_filter
        Join only the rows of a side for which it is true: text or an expression, as for
        :func:`~connector.read_shuffle`. It applies before the join, as if the side had no other
        rows: an outer or anti join keeps rows whose partner is left out.
    suffixes
        Appended to names that both sides have; when None, such names are an error.
    then
        ``then(joined)`` is called in each task with a reader of the rows it joined, and returns or
        yields the result: a partial sum, say, instead of every row. It must not depend on which
        rows a task has. Timestamps have the session's time zone, so hours and days are those of
        Spark's SQL.
    schema
        Of what ``then`` yields: a StructType, DDL text or a ``pyarrow`` schema; given if and only
        if ``then`` is.
    subpartitions
        One, a range or several; all when None.
    version
        Of both, or a pair; the newest when None.
    target_partition_bytes
        Bytes on disk that one task may read, of both together.
    check
        Ask the partitioner of each shuffle about each row that is read: the first one that is in
        another subpartition than it belongs to is a CorruptShuffleError with its file. Otherwise
        rows are taken to be where the log says. Costs the decoding of the keys.
    into
        Path or URI of a shuffle that the tasks write the result to, instead of passing it to the
        JVM. Rows stay in the subpartitions that they came from, without an exchange, where the
        result has the partition keys of the input: of the right one in a right join or where the
        left one is broadcast, else of the left one. Each row is checked: one whose key belongs
        elsewhere is an error that names it.
    keys
        With ``into`` only: columns of the result to partition it by, as Spark hashes them. If
        they are the partition keys of the input, and n is its too, rows stay.
    num_subpartitions, mode
        With ``into`` only: of the shuffle that is written, as for
        :func:`~connector.write_shuffle`; the number is that of the input when None.
    options
        Memory of a task, for both together, and whether files are mapped: a
        :class:`~arrow_format.ReadOptions`. With ``into`` also, or instead, how to write: a
        :class:`~arrow_format.WriteOptions`. Defaults when None.
    storage_options
        Of object stores: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame or ShuffleReceipt
        Lazy; rows in no particular order. With ``into``, once all is written and committed, its
        receipt. Columns of a side that may be missing are nullable. A
        task buffers the smaller side of one subpartition, or of several small ones, and as much of
        the other; where that exceeds its memory, it reads in passes, each for some of the keys.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffles, or they cannot be opened; raised here and not at the
        first action. Keys must have the same type on both sides, and not be nested.
    """
    reading, target = check_into(
        into,
        options,
        keys=keys,
        num_subpartitions=num_subpartitions,
        mode=mode,
        storage_options=storage_options,
    )
    left_shuffle, right_shuffle = open_shuffles(
        (left, right), version, reading, storage_options, check=check
    )
    plan = plan_join(
        left_shuffle,
        right_shuffle,
        on=on,
        how=how,
        left_columns=left_columns,
        right_columns=right_columns,
        suffixes=suffixes,
    )
    check_then(then, schema)
    time_zone = session_time_zone(spark)
    settings = session_settings(spark, left_filter, right_filter)
    left_shuffle = where(left_shuffle, left_filter, settings, "left_filter")
    right_shuffle = where(right_shuffle, right_filter, settings, "right_filter")
    left_schema = spark_schema(left_shuffle, plan.left_columns)
    right_schema = spark_schema(right_shuffle, plan.right_columns)
    _check_types(plan, left_schema, right_schema)
    joined = joined_schema(plan, left_schema, right_schema)
    result = joined if schema is None else spark_struct(spark, schema)
    operation = join_operation(
        left_shuffle,
        right_shuffle,
        plan,
        joined=in_time_zone(arrow_schema_of(joined), time_zone),
        then=then,
        schema=arrow_schema_of(result),
    )
    return run_in_groups(
        spark,
        operation,
        result,
        what="join_shuffles",
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
        into=target,
    )


def _check_types(plan: JoinPlan, left: StructType, right: StructType) -> None:
    check_keys(left, [key for key, _ in plan.keys])
    check_keys(right, [key for _, key in plan.keys])
    for left_key, right_key in plan.keys:
        left_type, right_type = left[left_key].dataType, right[right_key].dataType
        if not same_spark_type(left_type.jsonValue(), right_type.jsonValue()):
            msg = (
                f"key {left_key!r} of the left is {left_type.simpleString()}, {right_key!r} of the "
                f"right {right_type.simpleString()}: cast one of them before it is written"
            )
            raise SchemaError(msg)


def joined_schema(plan: JoinPlan, left: StructType, right: StructType) -> StructType:
    """Return the Spark schema of the result, nullable where a side may be missing."""
    fields = []
    for column in plan.columns:
        sides = [
            schema[name]
            for schema, name in ((left, column.left), (right, column.right))
            if name is not None
        ]
        first, last = sides[0], sides[-1]
        nullable = plan.is_nullable(column, left=first.nullable, right=last.nullable)
        fields.append(StructField(column.name, first.dataType, nullable, first.metadata))
    return StructType(fields)
