"""Options of a catalog table, carried in its schema. Pure.

Spark 4.3 drops the ``OPTIONS`` of a ``CREATE TABLE ... USING`` when it reads or writes a table of a
Python data source: reader and writer get the table's schema and nothing else. The one moment they
are seen is when Spark asks for the schema of a table created without columns. So that schema takes
them along, as JSON at the end of the last column's comment, where the catalog keeps them. (An
``INSERT`` whose columns have the table's names and types loses them once more: Spark then passes
the query's schema on as it is. The error says to repeat them with ``WITH``.)
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS_OPTION = "columns"
"""Columns of a table whose shuffle is not there yet, as in ``CREATE TABLE``."""

_CARRIED = re.compile(r"\s*\[arrow_shuffle (\{.*\})\]$", re.DOTALL)
_SPARK_S_OWN = ("provider", "location", "owner", "external", "is_managed_location", "comment")


def is_table_creation(options: Mapping[str, str]) -> bool:
    """Whether Spark asks on behalf of ``CREATE TABLE``, with the table's properties as options."""
    return "provider" in options


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the properties that Spark's catalog adds to them."""
    return {
        name: value
        for name, value in options.items()
        if name not in _SPARK_S_OWN and not name.startswith("option.")
    }


def carry_in_columns(columns: str, options: Mapping[str, str]) -> str:
    """Return the DDL ``columns`` with ``options`` in the comment of the last one.

    Raises
    ------
    OptionError
        The last column has a comment of its own, so that there is no room.
    """
    if re.search(r"\bcomment\s+['\"](?:[^'\"\\]|\\.)*['\"]\s*$", columns, re.IGNORECASE):
        msg = f"option {COLUMNS_OPTION}: the last column must have no comment; reorder or drop it"
        raise OptionError(msg)
    escaped = _text(options).replace("\\", "\\\\").replace("'", "\\'")
    return f"{columns} COMMENT '{escaped}'"


def carry_in_schema(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return ``schema`` with ``options`` in the comment of the last column."""
    *others, last = without_options(schema).fields
    metadata = dict(last.metadata or {})
    metadata["comment"] = f"{metadata.get('comment', '')} {_text(options)}".strip()
    return StructType([*others, StructField(last.name, last.dataType, last.nullable, metadata)])


def _text(options: Mapping[str, str]) -> str:
    return f"[arrow_shuffle {json.dumps(dict(options), sort_keys=True)}]"


def options_in(schema: StructType) -> dict[str, str]:
    """Return the options that ``schema`` carries; empty when it is not of such a table."""
    for field in schema.fields:
        match = _CARRIED.search((field.metadata or {}).get("comment", ""))
        if match:
            return dict(json.loads(match[1]))
    return {}


def without_options(schema: StructType) -> StructType:
    """Return ``schema`` as it was before it carried options."""
    fields = []
    for field in schema.fields:
        metadata = dict(field.metadata or {})
        comment = _CARRIED.sub("", metadata.get("comment", ""))
        if comment:
            metadata["comment"] = comment
        else:
            metadata.pop("comment", None)
        fields.append(StructField(field.name, field.dataType, field.nullable, metadata))
    return StructType(fields)
