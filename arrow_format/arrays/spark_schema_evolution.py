"""Spark's JSON of the schema of appended rows: whether it fits, and what both are read as; pure.

It says what Arrow types do not: which struct is a VARIANT, which text a CHAR, which column of a
user's class. What it lacks is derived from the Arrow schema, which decides about the rest: a column
that was written without Spark is in no JSON, and a number has the type that the Arrow column has.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.schema_evolution import widen

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

Schemas: TypeAlias = tuple[pa.Schema, str | None]
"""The schema of rows in Arrow, and Spark's JSON of it; None: they were written without Spark."""

COLLATIONS = "__COLLATIONS"
"""Key of a field's metadata: the collations of the strings in it, by their paths."""

_NULLABILITY = ("nullable", "containsNull", "valueContainsNull")

_NUMBERS = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
}
"""Spark's name of each number type, besides decimals."""

_DECIMAL = re.compile(r"decimal\(\d+,-?\d+\)")


def same_spark_type(left: object, right: object) -> bool:
    """Whether two Spark types, as parsed JSON, differ at most in nullability and metadata."""
    if isinstance(left, dict) and isinstance(right, dict):
        names = (left.keys() | right.keys()) - {*_NULLABILITY, "metadata"}
        return all(same_spark_type(left.get(name), right.get(name)) for name in names)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same_spark_type, left, right))
    return left == right


def spark_refusals(old: str | None, new: str | None) -> Iterator[str]:
    """Yield which columns of two schemas have Spark types that cannot be read as one.

    The Arrow schema decides about numbers, and about columns that only one side has.
    """
    ours = _fields(new)
    for name, field in _fields(old).items():
        there, here = field["type"], ours.get(name, field)["type"]
        if not same_spark_type(there, here) and not (is_number(there) and is_number(here)):
            yield f"column {name!r} is {_shown(there)} there, {_shown(here)} here"


def is_number(spark_type: object) -> bool:
    """Whether a Spark type, as parsed JSON, is a number that Arrow describes completely."""
    return isinstance(spark_type, str) and (
        spark_type in _NUMBERS.values() or _DECIMAL.fullmatch(spark_type) is not None
    )


def labelled_columns(spark_schema: str | None) -> frozenset[str]:
    """Return the columns of which Spark's JSON says more than the Arrow type does, or may."""
    return frozenset(
        name for name, field in _fields(spark_schema).items() if not is_number(field["type"])
    )


def _shown(spark_type: object) -> str:
    return spark_type if isinstance(spark_type, str) else json.dumps(spark_type)


def widen_schemas(old: Schemas, new: Schemas) -> Schemas:
    """Return the schemas in which rows of both can be read; see :func:`~.schema_evolution.widen`.

    Where the JSON of ``old`` is None, rows were written without Spark, and the Arrow schema
    decides. Where that of ``new`` is None, nothing is known of the new rows, so everything becomes
    nullable.
    """
    schema = widen(old[0], new[0])
    if old[1] is None:
        return schema, None
    described = json.loads(old[1])
    known, added = _fields(old[1]), _fields(new[1])
    fields = []
    for column in schema:
        field, other = known.get(column.name), added.get(column.name)
        if field is None:
            if other is None or column.name in old[0].names:
                continue  # the Arrow schema decides
            field = other
        elif column.name in new[0].names:
            field = _widen_json(field, other)
        if is_number(field["type"]):
            field = field | {"type": _number_name(column.type)}
        fields.append(field | {"nullable": field["nullable"] or column.nullable})
    return schema, json.dumps(described | {"fields": fields}, separators=(",", ":"))


def rename_spark(
    text: str | None, names: Mapping[str, str], dropped: Collection[str] = ()
) -> str | None:
    """Return Spark's JSON of a schema with new names of some columns, and without others."""
    if text is None:
        return None
    described = json.loads(text)
    fields = [
        renamed_field(field, names.get(field["name"], field["name"]))
        for field in described["fields"]
        if field["name"] not in dropped
    ]
    return json.dumps(described | {"fields": fields}, separators=(",", ":"))


def renamed_field(field: dict[str, Any], name: str) -> dict[str, Any]:
    """Return Spark's JSON of a field with another name."""
    metadata = field.get("metadata") or {}
    if COLLATIONS in metadata:  # by path, which begins with the name of the column
        length = len(field["name"])
        by_path = {name + path[length:]: text for path, text in metadata[COLLATIONS].items()}
        field = field | {"metadata": metadata | {COLLATIONS: by_path}}
    return field | {"name": name}


def _fields(text: str | None) -> dict[str, dict[str, Any]]:
    return {} if not text else {field["name"]: field for field in json.loads(text)["fields"]}


def _number_name(type_: pa.DataType) -> str:
    if pt.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    return _NUMBERS[type_]


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
