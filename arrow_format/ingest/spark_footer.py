"""What files say that only Spark knows: types, and the calendar that its dates are in; pure.

Spark stores the schema of a DataFrame in its Parquet and ORC files, whose own types are fewer,
and reads by it. Spark 2, and Spark 3 and later when asked to, write dates in the
Julian calendar up to October 1582, and timestamps up to 1900 with what Java once knew of time
zones. Spark moves such values when it reads; here they are refused.

Source: ``DataSourceUtils`` and ``ParquetFileFormat`` of Spark 4.3, and files written by it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_numpy
from arrow_format.arrays.selection import keep
from arrow_format.arrays.spark_schema_evolution import COLLATIONS
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VERSION = b"org.apache.spark.version"
LEGACY_DATES = b"org.apache.spark.legacyDateTime"
LEGACY_INT96 = b"org.apache.spark.legacyINT96"
ROW_METADATA = b"org.apache.spark.sql.parquet.row.metadata"

ORC_TYPE = b"spark.sql.catalyst.type"
"""Metadata of a field of an ORC file in which Spark keeps the type that the column has."""

METADATA_KEY = b"SPARK::metadata::json"
"""Metadata of an Arrow field in which Spark keeps that of a column, such as a comment."""

TIME_PRECISION_KEY = b"SPARK::time::precision"
"""Metadata of an Arrow field in which Spark keeps the precision of a TIME column."""

INTERNAL = ("__", "spark.")
"""Prefixes of column metadata that Spark uses internally."""

PLAIN = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string"}
    | {"binary", "date", "timestamp", "timestamp_ntz"}
)
"""Types in Spark's JSON that Parquet has as well."""

WITH_PARAMETERS = ("decimal(", "time(", "char(", "varchar(")
"""Types with parameters; CHAR and VARCHAR are STRING in files that are not of a table."""

ORC_PLAIN = ("string", "binary", "char", "varchar")
"""Types that Spark records for an ORC column of just that type."""

FIRST_DAY = -141_427
"""1582-10-15, in days since 1970: dates from then on are equal in both calendars."""

FIRST_SECOND = -2_208_988_800
"""1900-01-01 in UTC, in seconds since 1970: timestamps from then on are equal."""

USUAL_INT96 = re.compile(r"parquet-mr |impala |parquet-cpp-arrow version (2[3-9]|[3-9]\d|\d{3})")
"""Writers that count the time of day of INT96 forward from midnight, as PyArrow reads it.

Others, such as PyArrow before 23, count back from the next midnight before 1970. Spark adds the
negative number; PyArrow reads it as unsigned, 584 years later."""

FIRST_WRAPPED, LAST_WRAPPED = (1 << 63) // 1_000, (1 << 64) // 1_000
"""Microseconds that PyArrow gives for such times from 1677 (the first in 64 bits) to 1970."""

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class SparkFooter:
    """What Spark wrote into the footer of a Parquet file; empty for other writers."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """JSON of the fields that Spark declares, by name."""
    only_spark: tuple[tuple[str, str, str], ...] = ()
    """Column, dotted path and name of each type in them that Parquet lacks."""
    legacy_dates: bool = False
    """Whether dates and timestamps, but for INT96, are in the older calendar."""
    legacy_int96: bool = False
    """Whether timestamps of INT96 are."""


def spark_footer(metadata: Mapping[bytes, bytes] | None) -> SparkFooter:
    """Return what Spark wrote into the key-value metadata of a Parquet footer."""
    metadata = metadata or {}
    version = metadata.get(VERSION)
    try:
        declared = json.loads(metadata.get(ROW_METADATA, b""))["fields"]
        fields = {declaration["name"]: declaration for declaration in declared}
        only_spark = tuple(
            (name, path, what)
            for name, declaration in fields.items()
            for path, what in _only_spark_in(declaration, name)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fields, only_spark = {}, ()  # Spark ignores it too
    # Without a version Spark assumes today's calendar, unless configured otherwise.
    return SparkFooter(
        fields,
        only_spark,
        legacy_dates=version is not None and (version < b"3.0.0" or LEGACY_DATES in metadata),
        legacy_int96=version is not None and (version < b"3.1.0" or LEGACY_INT96 in metadata),
    )


# Types -------------------------------------------------------------------------------------------


def check_parquet_types(
    where: str, physical: pa.Schema, names: Iterable[str], footer: SparkFooter, described: str
) -> None:
    """Refuse columns of a Parquet file that Spark reads as types which Arrow does not show.

    ``described`` is the schema in Parquet's words: Arrow does not show which structs are VARIANT.

    Raises
    ------
    SchemaError
        For an interval, a VARIANT, a user-defined type or a collation; names file and column.
    """
    wanted = set(names)
    refused = [(path, what) for name, path, what in footer.only_spark if name in wanted]
    if "(Variant(" in described:
        for name in wanted:
            for path, field_ in _fields_in(physical.field(name), name):
                type_ = field_.type
                inside = {child.name for child in type_} if pt.is_struct(type_) else set()
                if {"metadata"} < inside <= {"metadata", "value", "typed_value"}:
                    refused.append((path, "VARIANT"))
    for path, what in refused:
        raise _refusal(where, path, what, "parquet")


def check_orc_types(where: str, physical: pa.Schema, names: Iterable[str]) -> None:
    """Refuse columns of an ORC file that Spark reads as other types or other moments.

    An ORC timestamp is local time of its writer, and PyArrow does not give the writer's zone.
    SchemaError names file and column.
    """
    for name in names:
        for path, field_ in _fields_in(physical.field(name), name):
            declared = (field_.metadata or {}).get(ORC_TYPE, b"string").decode("utf-8", "replace")
            if pt.is_timestamp(field_.type):
                raise _refusal(where, path, "a TIMESTAMP in the time zone of its writer", "orc")
            if not declared.startswith(ORC_PLAIN):
                raise _refusal(where, path, declared.upper(), "orc")


def _refusal(where: str, path: str, what: str, kind: str) -> SchemaError:
    msg = (
        f"{where}: column {path!r} is {what} for Spark, and only Spark can read it. "
        "Leave the column out, or let Spark read the files: "
        f"write_shuffle(spark.read.{kind}(...), ...)"
    )
    return SchemaError(msg)


def _only_spark_in(declared: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Yield dotted path and name of each type of a declared field that Parquet lacks."""
    for inside, collation in ((declared.get("metadata") or {}).get(COLLATIONS) or {}).items():
        _, dot, below = inside.partition(".")
        yield f"{path}{dot}{below}", f"STRING COLLATE {collation}"
    yield from _only_spark_in_type(declared["type"], path)


def _only_spark_in_type(type_: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    if isinstance(type_, str):
        if type_ not in PLAIN and not type_.startswith(WITH_PARAMETERS):
            yield path, type_.upper()
    elif type_["type"] == "struct":
        for child in type_["fields"]:
            yield from _only_spark_in(child, f"{path}.{child['name']}")
    elif type_["type"] == "array":
        yield from _only_spark_in_type(type_["elementType"], f"{path}.element")
    elif type_["type"] == "map":
        yield from _only_spark_in_type(type_["keyType"], f"{path}.key")
        yield from _only_spark_in_type(type_["valueType"], f"{path}.value")
    else:
        yield path, f"the user-defined type {type_.get('pyClass') or type_.get('class')}"


def _fields_in(field_: pa.Field, path: str) -> Iterator[tuple[str, pa.Field]]:
    """Yield a field and all fields inside it, each with its dotted path."""
    yield path, field_
    for where, child in fields_within(field_.type, path):
        yield from _fields_in(child, where)


def fields_within(type_: pa.DataType, path: str) -> list[tuple[str, pa.Field]]:
    """Return the fields directly inside a type, with dotted paths as Spark names them."""
    if pt.is_map(type_):
        return [(f"{path}.key", type_.key_field), (f"{path}.value", type_.item_field)]
    if pt.is_struct(type_):
        return [(f"{path}.{child.name}", child) for child in type_]
    return [(f"{path}.element", type_.field(i)) for i in range(type_.num_fields)]


# Labels ------------------------------------------------------------------------------------------


def labelled(schema: pa.Schema, footer: SparkFooter) -> pa.Schema:
    """Return a data schema with Spark's metadata of its columns: comments, precision of TIME."""
    return pa.schema(
        [
            _labelled(column, declared["type"], declared.get("metadata"))
            if (declared := footer.fields.get(column.name))
            else column
            for column in schema
        ]
    )


def _labelled(field_: pa.Field, declared: Any, notes: Any = None) -> pa.Field:  # noqa: ANN401
    metadata, type_ = dict(field_.metadata or {}), field_.type
    kept = {key: value for key, value in (notes or {}).items() if not key.startswith(INTERNAL)}
    if kept:
        metadata[METADATA_KEY] = json.dumps(kept).encode()
    kind = declared["type"] if isinstance(declared, dict) else None
    if kind == "struct" and pt.is_struct(type_):
        inside = {child["name"]: child for child in declared["fields"]}
        type_ = pa.struct(
            [
                _labelled(child, inside[child.name]["type"], inside[child.name].get("metadata"))
                if child.name in inside
                else child
                for child in type_
            ]
        )
    elif kind == "array" and pt.is_list(type_):
        type_ = pa.list_(_labelled(type_.value_field, declared["elementType"]))
    elif kind == "map" and pt.is_map(type_):
        key = _labelled(type_.key_field, declared["keyType"])
        item = _labelled(type_.item_field, declared["valueType"])
        type_ = pa.map_(key, item, keys_sorted=type_.keys_sorted)
    elif pt.is_time(type_) and str(declared).startswith("time("):
        metadata[TIME_PRECISION_KEY] = declared[len("time(") : -1].encode()
    return field_.with_type(type_).with_metadata(metadata or None)


# Calendar ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which values of a file Spark reads as other days or moments than PyArrow; usually none."""

    dates: bool = False
    """Whether dates, and timestamps with a time zone, are in the older calendar."""
    int96: frozenset[str] = frozenset()
    """Columns whose timestamps of INT96 are."""
    wrapped: frozenset[str] = frozenset()
    """Columns with INT96 of a writer that may count times of day before 1970 back from midnight."""
    writer: str = ""
    """What wrote the file, for the message."""

    def concerns(self, field_: pa.Field) -> bool:
        """Whether a column may have such values, at any depth."""
        return any(
            self._is_old(field_.name, child.type) or self._is_wrapped(field_.name, child.type)
            for _, child in _fields_in(field_, field_.name)
        )

    def check(self, column: pa.Array, field_: pa.Field, where: str) -> None:
        """Refuse values that Spark reads otherwise; SchemaError names file and column.

        ``column`` holds rows as in the file ``where``, INT96 in microseconds.
        """
        for leaf in _leaf_values(column) if self.concerns(field_) else ():
            why = None
            if leaf.null_count == len(leaf):
                continue
            if self._is_old(field_.name, leaf.type):
                why = _why_moved(leaf)
            if why is None and self._is_wrapped(field_.name, leaf.type) and _has_wrapped(leaf):
                why = (
                    f"timestamps from 2262 to 2554, and {self.writer.strip()!r} writes some before "
                    "1970 so that PyArrow reads them as these"
                )
            if why is not None:
                msg = (
                    f"{where}: column {field_.name!r} has {why}. Leave the column out, or let "
                    "Spark read the files: write_shuffle(spark.read..., ...)"
                )
                raise SchemaError(msg)

    def _is_old(self, name: str, type_: pa.DataType) -> bool:
        if pt.is_timestamp(type_):
            return self.dates if type_.tz is not None else name in self.int96
        return self.dates and pt.is_date(type_)

    def _is_wrapped(self, name: str, type_: pa.DataType) -> bool:
        return name in self.wrapped and pt.is_timestamp(type_) and type_.tz is None


def calendar_of(footer: SparkFooter, int96: frozenset[str], created_by: str | None) -> Calendar:
    """Return which values of a Parquet file Spark reads otherwise.

    ``int96`` are the columns with INT96; ``created_by`` is the writer's name for itself.
    """
    writer = created_by or ""
    return Calendar(
        dates=footer.legacy_dates,
        int96=int96 if footer.legacy_int96 else frozenset(),
        wrapped=frozenset() if USUAL_INT96.match(writer) else int96,
        writer=writer,
    )


def _why_moved(leaf: pa.Array) -> str | None:
    """Describe the values of the older calendar that differ today; None if none does."""
    if pt.is_date(leaf.type):
        leaf, first, what, since = leaf.cast(pa.date32()), FIRST_DAY, "dates", "1582-10-15"
    else:
        first = FIRST_SECOND * PER_SECOND[leaf.type.unit]
        what, since = "timestamps", "1900-01-01"
    if pc.min(leaf).value >= first:
        return None
    return f"{what} before {since} in the calendar of Spark 2, which are other {what} in today's"


def _has_wrapped(leaf: pa.Array) -> bool:
    values = to_numpy(keep(leaf, leaf.is_valid()).cast(pa.int64()))
    return bool(((values >= FIRST_WRAPPED) & (values <= LAST_WRAPPED)).any())


def _leaf_values(array: pa.Array) -> Iterator[pa.Array]:
    """Yield arrays of leaf values; those of maps may include values outside the slice."""
    if pt.is_map(array.type):
        yield from _leaf_values(array.keys)
        yield from _leaf_values(array.items)
    elif pt.is_struct(array.type):
        for child in array.flatten():
            yield from _leaf_values(child)
    elif array.type.num_fields:
        yield from _leaf_values(array.flatten())
    else:
        yield array
