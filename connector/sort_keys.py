"""Sort keys of Spark columns: what Arrow cannot order as Spark does, Spark's schema shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StringType, StructType, UserDefinedType

from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

    from arrow_format.keys.sort_keys import SortBy


def check_sort_keys(schema: StructType, keys: SortBy, what: str = "sort_by") -> None:
    """Refuse collated strings as sort keys, also inside structs.

    All other types that cannot be sorted by are refused by the Arrow schema, and so is a column
    that is not there.

    Raises
    ------
    SchemaError
        Names the column, and says why and what to do instead.
    """
    fields = {field.name: field for field in schema.fields}
    for name, _ in keys:
        if name not in fields:
            continue
        for path, type_ in _walk(fields[name].dataType, name):
            if isinstance(type_, StringType) and not type_.isUTF8BinaryCollation():
                msg = (
                    f"{what}: column {path!r} of type {type_.simpleString()} cannot be a sort key: "
                    f"Spark orders it by {type_.collation}, which Arrow does not carry; sort by "
                    "its bytes (CAST(c AS STRING)), or lower(...) of those, in a new column"
                )
                raise SchemaError(msg)


def _walk(type_: DataType, path: str) -> Iterator[tuple[str, DataType]]:
    """Yield the types that values of a sort key are compared by."""
    if isinstance(type_, UserDefinedType):
        yield from _walk(type_.sqlType(), path)
    elif isinstance(type_, StructType):
        for field in type_.fields:
            yield from _walk(field.dataType, f"{path}.{field.name}")
    else:
        yield path, type_
