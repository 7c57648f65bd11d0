"""Rows in types that Spark reads: what pandas, Polars and others have beside those, without loss.

Spark reads stored batches as they are, so what it has no type for must be another type when it is
stored: nanoseconds, unsigned integers, lists and bytes of a fixed size. Which one, and that no
value may change, is as in ``docs/guide/types.md``. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.conversion import convert, is_list
from arrow_format.arrays.expansion import pieces
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


MAX_DECIMAL_PRECISION = 38

SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""Types in which Spark reads numbers without a sign, which it lacks."""


def schema_for_spark(schema: pa.Schema, subpartition: str | None = None) -> pa.Schema:
    """Return the data schema of rows of any schema in types that Spark reads.

    Parameters
    ----------
    schema
        Of rows as a user hands them in.
    subpartition
        A column that must stay an integer, since it says where each row belongs.

    Raises
    ------
    SchemaError
        As :func:`~arrow_format.arrays.stored_types.data_schema`; or Spark has no type that
        holds the values of a column.
    """
    plain = data_schema(schema)
    fields = [_field(field, field.name) for field in plain]
    for i, field in enumerate(plain):
        if field.name == subpartition and pt.is_uint64(field.type):
            fields[i] = field.with_type(pa.int64())
    return pa.schema(fields)


def rows_for_spark(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, subpartition: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Bring rows to the types of :func:`schema_for_spark`, a few megabytes at a time.

    Parameters
    ----------
    batches
        Rows of ``schema``; an item that is no record batch is passed on.
    schema, subpartition
        As for :func:`schema_for_spark`.

    Raises
    ------
    SchemaError
        A batch does not fit the schema, or a value would not be the same in the type for Spark, as
        a timestamp with nanoseconds beside its microseconds.
    """
    plain, target = data_schema(schema), schema_for_spark(schema, subpartition)
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            yield batch
            continue
        for piece in pieces(batch, target):
            rows = normalise(piece, plain)
            columns = [_convert(*pair) for pair in zip(rows.columns, target, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def _convert(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return convert(column, field.type)
    except pa.ArrowException as error:
        msg = (
            f"column {field.name!r} has type {column.type}, and a value that {field.type}, which "
            f"is stored for Spark, does not hold: {error}. Round or cast the column before it is "
            "written, or write with for_spark=False: then it is stored as it is, and Spark "
            "cannot read it"
        )
        raise SchemaError(msg) from error


def _field(field: pa.Field, path: str) -> pa.Field:
    return field.with_type(_type(field.type, path))


def _type(type_: pa.DataType, path: str) -> pa.DataType:
    """Type of Spark that holds all values of a stored type, or those that it may hold."""
    if pt.is_struct(type_):
        return pa.struct([_field(child, f"{path}.{child.name}") for child in type_])
    if pt.is_map(type_):
        key = _field(type_.key_field, f"{path}.key")
        item = _field(type_.item_field, f"{path}.value")
        return pa.map_(key, item, keys_sorted=type_.keys_sorted)
    if is_list(type_) or pt.is_fixed_size_list(type_):
        return pa.list_(_field(type_.value_field, f"{path}.element"))
    if pt.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if pt.is_duration(type_):
        return pa.duration("us")
    if pt.is_time(type_):
        return pa.time64("ns")
    if pt.is_date64(type_):
        return pa.date32()
    if pt.is_unsigned_integer(type_):
        return SIGNED[type_]
    if pt.is_float16(type_):
        return pa.float32()
    if pt.is_decimal(type_):
        # Spark's scales are from 0 to the precision.
        scale = max(type_.scale, 0)
        precision = max(type_.precision + scale - type_.scale, scale)
        if precision <= MAX_DECIMAL_PRECISION:
            return pa.decimal128(precision, scale)
    elif pt.is_fixed_size_binary(type_):
        return pa.binary()
    elif not pt.is_interval(type_):
        return type_
    msg = (
        f"column {path!r} has type {type_}, and Spark has none that holds its values: cast it or "
        "drop it before it is written, or write with for_spark=False: then it is stored as it is, "
        "and Spark cannot read it"
    )
    raise SchemaError(msg)
