"""Schemas as text, as Spark writes them: ``k bigint NOT NULL, v array<double>``. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import sqlglot
from sqlglot import exp

from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping

_T = exp.DataType.Type

_TYPES: Mapping[object, pa.DataType] = {
    _T.BOOLEAN: pa.bool_(),
    _T.TINYINT: pa.int8(),
    _T.SMALLINT: pa.int16(),
    _T.INT: pa.int32(),
    _T.BIGINT: pa.int64(),
    _T.FLOAT: pa.float32(),
    _T.DOUBLE: pa.float64(),
    _T.TEXT: pa.string(),
    _T.VARCHAR: pa.string(),
    _T.CHAR: pa.string(),
    _T.BINARY: pa.binary(),
    _T.DATE: pa.date32(),
    _T.TIMESTAMP: pa.timestamp("us", "UTC"),
    _T.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
    _T.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    _T.TIMESTAMPNTZ: pa.timestamp("us"),
}


def schema_of_ddl(text: str) -> pa.Schema:
    """Return the schema that a text declares, with the types that Spark's values have in Arrow.

    Raises SchemaError for text that is no list of columns, and for a type that is not known here,
    as intervals: a ``pyarrow`` schema has it.
    """
    try:
        parsed = sqlglot.parse_one(f"CREATE TABLE t ({text})", dialect="spark")
        columns = list(parsed.this.expressions)
        if not columns or not all(isinstance(column, exp.ColumnDef) for column in columns):
            raise SchemaError(_not_known(text))
        return pa.schema([_field(column, text) for column in columns])
    except sqlglot.errors.SqlglotError as error:
        raise SchemaError(_not_known(text)) from error


def _field(column: exp.Expression, text: str) -> pa.Field:
    kind = column.args.get("kind")
    if not isinstance(kind, exp.DataType):
        raise SchemaError(_not_known(text, column.name))
    constraints = [each.args.get("kind") for each in column.args.get("constraints") or ()]
    is_null = not any(isinstance(each, exp.NotNullColumnConstraint) for each in constraints)
    return pa.field(column.name, _type(kind, text), nullable=is_null)


def _type(kind: exp.DataType, text: str) -> pa.DataType:
    inside = kind.expressions
    if kind.this == _T.DECIMAL:
        digits = [int(each.name) for each in inside] or [10, 0]
        return pa.decimal128(*digits)
    if kind.this == _T.ARRAY and len(inside) == 1:
        return pa.list_(pa.field("element", _type(inside[0], text)))
    if kind.this == _T.MAP and len(inside) == 2:
        return pa.map_(_type(inside[0], text), _type(inside[1], text))
    if kind.this == _T.STRUCT and inside:
        return pa.struct([_field(each, text) for each in inside])
    if kind.this not in _TYPES:
        raise SchemaError(_not_known(text, kind.sql(dialect="spark")))
    return _TYPES[kind.this]


def _not_known(text: str, what: str = "") -> str:
    about = f" ({what})" if what else ""
    return (
        f"schema={text!r}{about}: expected columns and types as Spark writes them, such as "
        "'k bigint, v array<double>'; for other types give a pyarrow schema or a StructType"
    )
