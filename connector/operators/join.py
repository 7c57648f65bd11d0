"""The join of two co-partitioned shuffles, inside the tasks that read them."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.schema_evolution import same_spark_type
from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.errors import OptionError, SchemaError
from arrow_format.operators.join import join_range
from arrow_format.operators.join_plan import plan_join
from connector.operators.results import results_of
from connector.operators.tasks import (
    open_shuffles,
    run_in_groups,
    session_time_zone,
    spark_struct,
)
from connector.options.source import DEFAULT_TARGET_PARTITION_BYTES
from connector.source.reader import spark_schema
from connector.spark_types import arrow_schema_of, check_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.operators.join_plan import JoinKind, JoinPlan
    from arrow_format.options import ReadOptions
    from arrow_format.read.shuffle import Shuffle
    from connector.operators.tasks import Path, Work


def join_shuffles(
    spark: SparkSession,
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    suffixes: tuple[str, str] | None = None,
    then: Callable[[BatchReader], Iterable[pa.RecordBatch]] | None = None,
    schema: StructType | str | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Join two co-partitioned shuffles without a shuffle, a sort or a trip through the JVM.

    The rows are those of Spark's join: a null equals nothing, NaN equals NaN, -0.0 equals 0.0, and
    text is compared by its bytes. Columns come as ``df.join(other, on=[...])`` gives them: keys of
    one name first and once, then what is left of the left side, then of the right. Keys of two
    names stay in their places.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    left, right
        Paths or URIs of shuffles that are co-partitioned (see :func:`map_subpartitions`). One of
        them may be broadcast: the right one of an inner, left, semi or anti join, the left one of
        an inner or right join. So may one of which a partitioner of yours broadcasts some rows;
        both sides may not have such.
    on
        Columns that are equal: names, or pairs (left, right) of names; they contain the partition
        keys. When None, the partition keys, if they have the same names on both sides. With
        partitioners of your own, ``on`` must contain what they look at.
    how
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or what else Spark calls
        these.
    left_columns, right_columns
        Columns of the result beside keys of one name; all when None. Others are not decoded.
    suffixes
        Appended to names that both sides have; when None, such names are an error.
    then
        ``then(joined)`` is called in each task with a reader of the rows it joined, and what it
        returns or yields is the result: a first sum, say, of what would else pass through the JVM
        row by row. It must not depend on which rows a task has. Timestamps have the time zone of
        the session, so hours and days are those that Spark's SQL gives.
    schema
        Of what ``then`` yields: a StructType or DDL text; only together with it.
    subpartitions
        One, a range or several; all when None.
    version
        Of both, or a pair; the newest when None.
    target_partition_bytes
        Bytes on disk that one task may read, of both together.
    options
        Memory that a task may take to read both together, and mapping; defaults when None.
    storage_options
        Where shuffles are in object stores: credentials, region, endpoint, as obstore names them.
        They win over the environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame
        Lazy; rows in no particular order. Columns of a side that may be missing are nullable.
        A task holds the smaller side of one subpartition, or of several small ones, and as much of
        the other; where that is too much, the rows of some keys at a time, and it reads again.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        Something does not fit; found here and not at the first action. Keys must have the same type
        on both sides, and not be nested.
    """
    one, other = open_shuffles((left, right), version, options, storage_options)
    plan = plan_join(
        one,
        other,
        on=on,
        how=how,
        left_columns=left_columns,
        right_columns=right_columns,
        suffixes=suffixes,
    )
    structs = spark_schema(one, plan.left_columns), spark_schema(other, plan.right_columns)
    _check_types(plan, *structs)
    result = joined = joined_schema(plan, *structs)
    if (then is None) != (schema is None):
        msg = "then and schema: expected both or neither; schema is that of what then yields"
        raise OptionError(msg)
    join = JoinOfGroup(one, other, plan)
    work: Work = join
    if then is not None and schema is not None:
        result = spark_struct(spark, schema)
        rows = in_time_zone(arrow_schema_of(joined), session_time_zone(spark))
        work = ThenOfGroup(join, rows, then, arrow_schema_of(result))
    return run_in_groups(
        spark,
        (one, other),
        work,
        result,
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
    )


def _check_types(plan: JoinPlan, left: StructType, right: StructType) -> None:
    for number, struct in enumerate((left, right)):
        check_keys(struct, [pair[number] for pair in plan.keys])
    for one, other in plan.keys:
        types = left[one].dataType, right[other].dataType
        if not same_spark_type(types[0].jsonValue(), types[1].jsonValue()):
            msg = (
                f"key {one!r} of the left is {types[0].simpleString()}, {other!r} of the right "
                f"{types[1].simpleString()}: cast one of them before it is written"
            )
            raise SchemaError(msg)


def joined_schema(plan: JoinPlan, left: StructType, right: StructType) -> StructType:
    """Spark schema of the result, nullable where a side may be missing."""
    fields = []
    for column in plan.columns:
        sides = []
        if column.left is not None:
            field = left[column.left]
            sides.append((field, field.nullable or plan.how in ("right", "full")))
        if column.right is not None:
            field = right[column.right]
            sides.append((field, field.nullable or plan.how in ("left", "full")))
        first, nullable = sides[0]
        if len(sides) > 1:  # one of them is there
            nullable = any(field.nullable for field, _ in sides)
        fields.append(StructField(column.name, first.dataType, nullable, first.metadata))
    return StructType(fields)


@dataclass(frozen=True)
class JoinOfGroup:
    """Joins the subpartitions of a group."""

    left: Shuffle
    right: Shuffle
    plan: JoinPlan

    def __call__(self, subpartitions: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield the rows of the join."""
        return join_range(self.left, self.right, self.plan, subpartitions)

    def __str__(self) -> str:
        return f"{self.left.path} and {self.right.path}"


@dataclass(frozen=True)
class ThenOfGroup:
    """Gives what a group joins to the user's function."""

    join: JoinOfGroup
    joined: pa.Schema
    """Of the rows that the function gets."""
    then: Callable[[BatchReader], Iterable[pa.RecordBatch]]
    schema: pa.Schema

    def __call__(self, subpartitions: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield what the function gives."""
        with closing(self.join(subpartitions)) as batches:
            reader = BatchReader(self.joined, (conform(batch, self.joined) for batch in batches))
            where = f"subpartitions {subpartitions[0]} to {subpartitions[-1]} of {self.join}"
            yield from results_of(
                lambda: self.then(reader), self.schema, caller="join_shuffles", where=where
            )
