"""Whether rows of one schema may be appended to another's, and the schema both are read as; pure.

Names and types must agree. A column may be nullable on one side only, since Spark derives
nullability from the plan that made the rows; the result is nullable where either side is.
Appends, merges, and reads of changes share this.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from arrow_format.arrays.stored_types import same_but_labels

_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")


def is_appendable(old: pa.Schema, new: pa.Schema) -> bool:
    """Whether the columns have the same names and types, in order, up to nullability and labels."""
    return old.names == new.names and all(
        # Only one side may claim that the keys of a map are sorted.
        same_but_labels(left.type, right.type) or same_but_labels(right.type, left.type)
        for left, right in zip(old, new, strict=True)
    )


def widen(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return ``old``, nullable also where only ``new`` is; they must be appendable."""
    return pa.schema([_widen_field(*pair) for pair in zip(old, new, strict=True)])


def _widen_field(old: pa.Field, new: pa.Field) -> pa.Field:
    return old.with_type(_widen_type(old.type, new.type)).with_nullable(
        old.nullable or new.nullable
    )


def _widen_type(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(old):
        return pa.struct([_widen_field(*pair) for pair in zip(old, new, strict=True)])
    if pa.types.is_map(old):
        key = _widen_field(old.key_field, new.key_field).with_nullable(False)
        item = _widen_field(old.item_field, new.item_field)
        return pa.map_(key, item, keys_sorted=old.keys_sorted and new.keys_sorted)
    if pa.types.is_fixed_size_list(old):
        return pa.list_(_widen_field(old.value_field, new.value_field), old.list_size)
    if pa.types.is_list(old):
        return pa.list_(_widen_field(old.value_field, new.value_field))
    return old


def same_spark_type(left: object, right: object) -> bool:
    """Whether two Spark types, as parsed JSON, differ at most in nullability and metadata."""
    if isinstance(left, dict) and isinstance(right, dict):
        names = (left.keys() | right.keys()) - {*_NULLABILITY, "metadata"}
        return all(same_spark_type(left.get(name), right.get(name)) for name in names)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_spark_type, left, right))
    return left == right


def same_spark_types(left: str | None, right: str | None) -> bool:
    """Whether Spark's JSON of two schemas agrees like that; an unknown one (None) does."""
    return not left or not right or same_spark_type(json.loads(left), json.loads(right))


def widen_spark_schema(old: str | None, new: str | None) -> str | None:
    """Return Spark's JSON of a schema, nullable also where only ``new`` is.

    ``old`` None: rows were written without Spark, and their schema decides. ``new`` None: nothing
    is known of the new rows, so everything becomes nullable.
    """
    if old is None:
        return None
    parsed = None if new is None else json.loads(new)
    return json.dumps(_widen_json(json.loads(old), parsed), separators=(",", ":"))


def _widen_json(old: Any, new: Any) -> Any:  # noqa: ANN401
    if isinstance(old, dict):
        if old.get("type") == "udt":
            return old
        widened = {
            name: value
            if name == "metadata"
            else _widen_json(value, new.get(name) if isinstance(new, dict) else None)
            for name, value in old.items()
        }
        for name in _NULLABILITY:
            if name in old:
                widened[name] = old[name] or not isinstance(new, dict) or new[name]
        return widened
    if isinstance(old, list):
        others = new if isinstance(new, list) else [None] * len(old)
        return [_widen_json(*pair) for pair in zip(old, others, strict=True)]
    return old
