"""Rows from pandas, Polars and others, brought without loss to types that Spark reads; pure.

Spark reads stored batches as they are, so types that it lacks must be stored as others:
nanoseconds, unsigned integers, lists and bytes of a fixed size. See ``docs/guide/types.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.conversion import convert, with_fields
from arrow_format.arrays.expansion import expandable_slices
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_MAX_PRECISION = 38

_SIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
"""Types in which Spark reads unsigned integers, which it lacks."""


def schema_for_spark(schema: pa.Schema, subpartition: str | None = None) -> pa.Schema:
    """Return the data schema of a user's rows in types that Spark reads.

    The column ``subpartition`` stays an integer. Raises SchemaError as
    :func:`~arrow_format.arrays.stored_types.data_schema` does, and where Spark has no type that
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
    """Yield rows of ``schema`` in the types of :func:`schema_for_spark`, megabytes at a time.

    An item that is no record batch is passed on. Raises SchemaError where a batch does not fit the
    schema, or a value would change: a timestamp with nanoseconds, for one.
    """
    plain, target = data_schema(schema), schema_for_spark(schema, subpartition)
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            yield batch
            continue
        for piece in expandable_slices(batch, target):
            rows = normalise(piece, plain)
            columns = [_convert(*pair) for pair in zip(rows.columns, target, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=target)


def _convert(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return convert(column, field.type)
    except pa.ArrowException as error:
        msg = (
            f"column {field.name!r} of type {column.type} has a value that does not fit into "
            f"{field.type}, the type stored for Spark: {error}. Round or cast the column before it "
            "is written, or write with for_spark=False: then it is stored as it is, and Spark "
            "cannot read it"
        )
        raise SchemaError(msg) from error


def _field(field: pa.Field, path: str) -> pa.Field:
    return field.with_type(_type(field.type, path))


def _type(type_: pa.DataType, path: str) -> pa.DataType:
    nested = with_fields(type_, lambda child, suffix: _field(child, path + suffix))
    found = as_spark_has(type_ if nested is None else nested)
    if found is None:
        msg = (
            f"column {path!r} has type {type_}, and Spark has no type that holds its values: cast "
            "it or drop it before it is written, or write with for_spark=False: then it is stored "
            "as it is, and Spark cannot read it"
        )
        raise SchemaError(msg)
    return found


def as_spark_has(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which Spark has the values of a stored type; None where it has none.

    What a nested type has inside stays as it is. Spark's units may be coarser than those of a time:
    whether such a value is refused or rounded is for the caller to say.
    """
    if pt.is_fixed_size_list(type_):
        return pa.list_(type_.value_field)
    if pt.is_timestamp(type_):
        return pa.timestamp("us", type_.tz)
    if pt.is_duration(type_):
        return pa.duration("us")
    if pt.is_time(type_):
        return pa.time64("ns")
    if pt.is_date64(type_):
        return pa.date32()
    if pt.is_unsigned_integer(type_):
        return _SIGNED[type_]
    if pt.is_float16(type_):
        return pa.float32()
    if pt.is_decimal(type_):
        # Spark's scales are from 0 to the precision.
        scale = max(type_.scale, 0)
        precision = max(type_.precision + scale - type_.scale, scale)
        return pa.decimal128(precision, scale) if precision <= _MAX_PRECISION else None
    if pt.is_fixed_size_binary(type_):
        return pa.binary()
    return None if pt.is_interval(type_) else type_
