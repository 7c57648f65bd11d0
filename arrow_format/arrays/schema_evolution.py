"""Whether rows of one schema may be appended to rows of another, and what both are then read as.

Names and types must agree; a column may be nullable on one side only, since what Spark says of
nullability depends on the plan that made the rows. Read together they are nullable where either is.
Pure.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from arrow_format.arrays.stored_types import same_but_labels

_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")


def is_appendable(there: pa.Schema, here: pa.Schema) -> bool:
    """Whether the columns have the same names and types, in order, up to nullability and labels."""
    return there.names == here.names and all(
        # Whether the keys of a map are sorted is a claim that one side may lack.
        same_but_labels(one.type, other.type) or same_but_labels(other.type, one.type)
        for one, other in zip(there, here, strict=True)
    )


def widen(there: pa.Schema, here: pa.Schema) -> pa.Schema:
    """Return ``there``, nullable also where only ``here`` is; they must be appendable."""
    return pa.schema([_widen_field(*pair) for pair in zip(there, here, strict=True)])


def _widen_field(there: pa.Field, here: pa.Field) -> pa.Field:
    return there.with_type(_widen_type(there.type, here.type)).with_nullable(
        there.nullable or here.nullable
    )


def _widen_type(there: pa.DataType, here: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(there):
        return pa.struct([_widen_field(*pair) for pair in zip(there, here, strict=True)])
    if pa.types.is_map(there):
        key = _widen_field(there.key_field, here.key_field).with_nullable(False)
        item = _widen_field(there.item_field, here.item_field)
        return pa.map_(key, item, keys_sorted=there.keys_sorted and here.keys_sorted)
    if pa.types.is_fixed_size_list(there):
        return pa.list_(_widen_field(there.value_field, here.value_field), there.list_size)
    if pa.types.is_list(there):
        return pa.list_(_widen_field(there.value_field, here.value_field))
    return there


def same_spark_type(one: object, other: object) -> bool:
    """Whether two Spark types, as parsed JSON, differ at most in nullability and metadata."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = (one.keys() | other.keys()) - {*_NULLABILITY, "metadata"}
        return all(same_spark_type(one.get(name), other.get(name)) for name in names)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_spark_type, one, other))
    return one == other


def same_spark_types(one: str | None, other: str | None) -> bool:
    """Whether Spark's JSON of two schemas agrees like that; where one is not known, it does."""
    return not one or not other or same_spark_type(json.loads(one), json.loads(other))


def widen_spark_schema(there: str | None, here: str | None) -> str | None:
    """Return Spark's JSON of a schema, nullable also where only ``here`` is.

    ``there`` None: rows that were written without Spark decide. ``here`` None: nothing is known of
    the rows that join, so everything becomes nullable.
    """
    if there is None:
        return None
    other = None if here is None else json.loads(here)
    return json.dumps(_widen_json(json.loads(there), other), separators=(",", ":"))


def _widen_json(there: Any, here: Any) -> Any:  # noqa: ANN401
    if isinstance(there, dict):
        if there.get("type") == "udt":
            return there
        widened = {
            name: value
            if name == "metadata"
            else _widen_json(value, here.get(name) if isinstance(here, dict) else None)
            for name, value in there.items()
        }
        for name in _NULLABILITY:
            if name in there:
                widened[name] = there[name] or not isinstance(here, dict) or here[name]
        return widened
    if isinstance(there, list):
        others = here if isinstance(here, list) else [None] * len(there)
        return [_widen_json(*pair) for pair in zip(there, others, strict=True)]
    return there
