"""Spark's schemas of results: those of the columns that they come from, where Arrow has less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    NullType,
    StructField,
    StructType,
)

from arrow_format.arrays.spark_schema_evolution import same_spark_type
from arrow_format.errors import SchemaError
from arrow_format.operators.aggregate_functions import LISTS, OF_ROWS
from arrow_format.operators.aggregation_plan import AggregationPlan
from arrow_format.operators.asof_plan import AsOfPlan
from arrow_format.operators.join_plan import JoinPlan
from connector.source.reader import spark_schema
from connector.spark_types import check_keys, spark_schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType

    from arrow_format.operators.aggregation_plan import PlannedAggregation
    from arrow_format.operators.task_plan import TaskPlan
    from arrow_format.read.shuffle import Shuffle


def struct_of(plan: TaskPlan) -> StructType:
    """Return Spark's schema of the results of a plan; raises SchemaError for a type it lacks."""
    if isinstance(plan.declared, StructType):
        return plan.declared
    if plan.calls_function:
        return spark_schema_of(plan.schema)
    inputs: Any = plan.inputs
    if isinstance(plan.details, JoinPlan | AsOfPlan):
        return _joined_schema(plan, plan.details)
    if isinstance(plan.details, AggregationPlan):
        return _result_schema(inputs[0], plan.details)
    return spark_schema(inputs[0], plan.schema.names)


def _joined_schema(plan: TaskPlan, join: JoinPlan | AsOfPlan) -> StructType:
    """Return the Spark schema of a join; raises SchemaError for keys not compared in Spark."""
    inputs: Any = plan.inputs
    left, *rights = map(spark_schema, inputs, plan.columns)
    pairs = [join.keys] if isinstance(join, JoinPlan) else [side.keys for side in join.sides]
    for right, keys in zip(rights, pairs, strict=True):
        _check_types(keys, left, right)
    fields = []
    for field in plan.schema:
        number, column = next(join.sources_of(field.name))
        found = [left, *rights][number][column]
        fields.append(StructField(field.name, found.dataType, field.nullable, found.metadata))
    return StructType(fields)


def _check_types(keys: Sequence[tuple[str, str]], left: StructType, right: StructType) -> None:
    check_keys(left, [key for key, _ in keys])
    check_keys(right, [key for _, key in keys])
    for left_key, right_key in keys:
        left_type, right_type = left[left_key].dataType, right[right_key].dataType
        if not same_spark_type(left_type.jsonValue(), right_type.jsonValue()):
            msg = (
                f"key {left_key!r} of the left is {left_type.simpleString()}, {right_key!r} of the "
                f"right {right_type.simpleString()}: cast one of them before it is written"
            )
            raise SchemaError(msg)


def _result_schema(rows: Shuffle, plan: AggregationPlan) -> StructType:
    typed = [planned.columns[0] for planned in plan.aggregations if _needs_spark_type(planned)]
    inputs = spark_schema(rows, list(dict.fromkeys([*plan.keys, *typed])))
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
    return len(planned.columns) == 1 and planned.function in {"sum", *OF_ROWS, *LISTS}


def _result_type(planned: PlannedAggregation, type_: DataType, from_arrow: DataType) -> DataType:
    function = planned.function
    if function in OF_ROWS or (function == "sum" and isinstance(type_, DayTimeIntervalType)):
        return type_
    if function in LISTS:
        return ArrayType(type_, containsNull=LISTS[function] or isinstance(type_, NullType))
    return from_arrow
