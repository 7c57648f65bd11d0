"""The schema that a user declares of a function's result: of PyArrow, of PySpark, or text."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import SchemaError
from arrow_format.ingest.ddl import schema_of_ddl


class Declared(NamedTuple):
    """A declared schema."""

    schema: pa.Schema
    """As it is stored."""
    struct: object
    """Spark's, where that was given; it may say more than Arrow's."""


def declared(schema: object) -> Declared:
    """Return a declared schema; raises SchemaError for another class, or a type that is not known.

    Text means what it does in Spark, and no session is asked: ``k bigint, v double``.
    """
    if isinstance(schema, pa.Schema):
        return Declared(data_schema(schema), None)
    if isinstance(schema, str):
        return Declared(schema_of_ddl(schema), None)
    if hasattr(type(schema), "fromDDL") and hasattr(schema, "fields"):
        from connector.spark_types import arrow_schema_of

        return Declared(arrow_schema_of(schema), schema)  # type: ignore[arg-type]
    msg = (
        f"schema is {type(schema).__name__}: expected a pyarrow schema, text such as 'k bigint, v "
        "double', or a StructType of PySpark"
    )
    raise SchemaError(msg)
