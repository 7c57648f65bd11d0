"""What files say that only Spark knows: types, and the calendar that its dates are in; pure.

Spark keeps the schema of a DataFrame beside that of the Parquet or ORC file, whose types are fewer,
and goes by it when it reads. Spark 2, and Spark 3 and later when asked to, write dates in the
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

COLLATIONS = "__COLLATIONS"
INTERNAL = ("__", "spark.")
"""Metadata of columns that Spark keeps for itself has names that begin like this."""

PLAIN = frozenset(
    {"boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string"}
    | {"binary", "date", "timestamp", "timestamp_ntz"}
)
"""Types in Spark's JSON that Parquet has as well."""

WITH_PARAMETERS = ("decimal(", "time(", "char(", "varchar(")
"""Those that say more of a type; CHAR and VARCHAR are STRING in files that are no table."""

ORC_PLAIN = ("string", "binary", "char", "varchar")
"""Types that Spark notes down for a column of ORC which is just that."""

FIRST_DAY = -141_427
"""1582-10-15, in days since 1970: from here on dates are the same in either calendar."""

FIRST_SECOND = -2_208_988_800
"""1900-01-01 in UTC, in seconds since 1970: from here on timestamps are the same."""

USUAL_INT96 = re.compile(r"parquet-mr |impala |parquet-cpp-arrow version (2[3-9]|[3-9]\d|\d{3})")
"""Writers that are known to count the time of day of INT96 from midnight on, as PyArrow reads it.

Others, PyArrow before 23 among them, count it back from the next midnight where it is before 1970.
Spark adds what is negative; PyArrow takes it as without a sign, 584 years later."""

FIRST_WRAPPED, LAST_WRAPPED = (1 << 63) // 1_000, (1 << 64) // 1_000
"""Microseconds as which times from 1677, the first that 64 bits of nanoseconds hold, to 1970 come
out then."""

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True, slots=True)
class SparkFooter:
    """What Spark wrote into the footer of a Parquet file; nothing in those of others."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """JSON of the fields that Spark declares, by name."""
    only_spark: tuple[tuple[str, str, str], ...] = ()
    """Column, dotted path and name of each type in them that Parquet lacks."""
    legacy_dates: bool = False
    """Whether dates and timestamps, but for INT96, are in the older calendar."""
    legacy_int96: bool = False
    """Whether timestamps of INT96 are."""


def spark_footer(metadata: Mapping[bytes, bytes] | None) -> SparkFooter:
    """Return what Spark wrote into a footer.

    Parameters
    ----------
    metadata
        Keys and values of the footer of a Parquet file.
    """
    found = metadata or {}
    version = found.get(VERSION)
    try:
        fields = {one["name"]: one for one in json.loads(found.get(ROW_METADATA, b""))["fields"]}
        only_spark = tuple(
            (name, path, what)
            for name, one in fields.items()
            for path, what in _only_spark_in(one, name)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        fields, only_spark = {}, ()  # Spark takes no notice of it either
    # Of files that name no version Spark takes the calendar to be today's, unless set otherwise.
    return SparkFooter(
        fields,
        only_spark,
        legacy_dates=version is not None and (version < b"3.0.0" or LEGACY_DATES in found),
        legacy_int96=version is not None and (version < b"3.1.0" or LEGACY_INT96 in found),
    )


# Types -------------------------------------------------------------------------------------------


def check_parquet_types(
    where: str, physical: pa.Schema, names: Iterable[str], footer: SparkFooter, described: str
) -> None:
    """Refuse columns of a Parquet file that Spark reads as types which Arrow does not show.

    Parameters
    ----------
    where
        The file.
    physical
        Its schema.
    names
        Columns that are read from it.
    footer
        What Spark wrote there.
    described
        The schema in the words of Parquet: Arrow does not show which structs it calls VARIANT.

    Raises
    ------
    SchemaError
        Such as an interval, a VARIANT, a user-defined type or a collation; names file and column.
    """
    wanted = set(names)
    found = [(path, what) for name, path, what in footer.only_spark if name in wanted]
    if "(Variant(" in described:
        for name in wanted:
            for path, one in _fields_in(physical.field(name), name):
                inside = {child.name for child in one.type} if pt.is_struct(one.type) else set()
                if {"metadata"} < inside <= {"metadata", "value", "typed_value"}:
                    found.append((path, "VARIANT"))
    for path, what in found:
        raise _refusal(where, path, what, "parquet")


def check_orc_types(where: str, physical: pa.Schema, names: Iterable[str]) -> None:
    """Refuse columns of an ORC file that Spark reads as other types, or as other moments.

    An ORC timestamp is the time on the clock of its writer, and PyArrow does not say where that
    clock was.

    Raises
    ------
    SchemaError
        Names file and column.
    """
    for name in names:
        for path, one in _fields_in(physical.field(name), name):
            declared = (one.metadata or {}).get(ORC_TYPE, b"string").decode("utf-8", "replace")
            if pt.is_timestamp(one.type):
                raise _refusal(where, path, "a TIMESTAMP in the time zone of its writer", "orc")
            if not declared.startswith(ORC_PLAIN):
                raise _refusal(where, path, declared.upper(), "orc")


def _refusal(where: str, path: str, what: str, kind: str) -> SchemaError:
    msg = (
        f"{where}: column {path!r} is {what} for Spark, which cannot be read from the file without "
        "it. Leave the column out, or let Spark read the files: "
        f"write_shuffle(spark.read.{kind}(...), ...)"
    )
    return SchemaError(msg)


def _only_spark_in(declared: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401
    """Dotted path and name of each type of a declared field that Parquet lacks."""
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


def _fields_in(one: pa.Field, path: str) -> Iterator[tuple[str, pa.Field]]:
    """Yield a field and all inside of it, each with its dotted path."""
    yield path, one
    for where, child in fields_within(one.type, path):
        yield from _fields_in(child, where)


def fields_within(type_: pa.DataType, path: str) -> list[tuple[str, pa.Field]]:
    """Return the fields directly inside of a type, with dotted paths as Spark names them."""
    if pt.is_map(type_):
        return [(f"{path}.key", type_.key_field), (f"{path}.value", type_.item_field)]
    if pt.is_struct(type_):
        return [(f"{path}.{child.name}", child) for child in type_]
    return [(f"{path}.element", type_.field(i)) for i in range(type_.num_fields)]


# Labels ------------------------------------------------------------------------------------------


def labelled(schema: pa.Schema, footer: SparkFooter) -> pa.Schema:
    """Return a data schema with what Spark notes beside the types: comments, precision of TIME."""
    return pa.schema(
        [
            _labelled(one, declared["type"], declared.get("metadata"))
            if (declared := footer.fields.get(one.name))
            else one
            for one in schema
        ]
    )


def _labelled(one: pa.Field, declared: Any, notes: Any = None) -> pa.Field:  # noqa: ANN401
    metadata, type_ = dict(one.metadata or {}), one.type
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
    return one.with_type(type_).with_metadata(metadata or None)


# Calendar ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which values of a file Spark reads as other days or moments than PyArrow; none of most."""

    dates: bool = False
    """Whether dates, and timestamps with a time zone, are in the older calendar."""
    int96: frozenset[str] = frozenset()
    """Columns whose timestamps of INT96 are."""
    wrapped: frozenset[str] = frozenset()
    """Columns with INT96 of a writer that may count times of day before 1970 back from midnight."""
    writer: str = ""
    """What wrote the file, for the message."""

    def concerns(self, one: pa.Field) -> bool:
        """Whether a column may have such values, at any depth."""
        return any(
            self._is_old(one.name, child.type) or self._is_wrapped(one.name, child.type)
            for _, child in _fields_in(one, one.name)
        )

    def check(self, column: pa.Array, one: pa.Field, where: str) -> None:
        """Refuse values that Spark reads as others.

        Parameters
        ----------
        column, one
            Rows of a column as the file has them, INT96 in microseconds, and its field.
        where
            The file.

        Raises
        ------
        SchemaError
            Names file and column.
        """
        for leaf in _leaf_values(column) if self.concerns(one) else ():
            why = None
            if leaf.null_count == len(leaf):
                continue
            if self._is_old(one.name, leaf.type):
                why = _why_moved(leaf)
            if why is None and self._is_wrapped(one.name, leaf.type) and _has_wrapped(leaf):
                why = (
                    f"timestamps from 2262 to 2554, and {self.writer.strip()!r} writes some before "
                    "1970 so that PyArrow reads them as these"
                )
            if why is not None:
                msg = (
                    f"{where}: column {one.name!r} has {why}. Leave the column out, or let Spark "
                    "read the files: write_shuffle(spark.read..., ...)"
                )
                raise SchemaError(msg)

    def _is_old(self, name: str, type_: pa.DataType) -> bool:
        if pt.is_timestamp(type_):
            return self.dates if type_.tz is not None else name in self.int96
        return self.dates and pt.is_date(type_)

    def _is_wrapped(self, name: str, type_: pa.DataType) -> bool:
        return name in self.wrapped and pt.is_timestamp(type_) and type_.tz is None


def calendar_of(footer: SparkFooter, int96: frozenset[str], created_by: str | None) -> Calendar:
    """Return which values of a Parquet file Spark reads as others.

    Parameters
    ----------
    footer
        What Spark wrote there.
    int96
        Columns that have timestamps of INT96.
    created_by
        The name that the writer gives itself.
    """
    writer = created_by or ""
    return Calendar(
        dates=footer.legacy_dates,
        int96=int96 if footer.legacy_int96 else frozenset(),
        wrapped=frozenset() if USUAL_INT96.match(writer) else int96,
        writer=writer,
    )


def _why_moved(leaf: pa.Array) -> str | None:
    """Say which values of the older calendar are others today; None if none is."""
    if pt.is_date(leaf.type):
        leaf, first, what, since = leaf.cast(pa.date32()), FIRST_DAY, "dates", "1582-10-15"
    else:
        first = FIRST_SECOND * PER_SECOND[leaf.type.unit]
        what, since = "timestamps", "1900-01-01"
    if pc.min(leaf).value >= first:
        return None
    return (
        f"{what} before {since}, and they are in the calendar of Spark 2, in which they are others "
        "than in today's"
    )


def _has_wrapped(leaf: pa.Array) -> bool:
    values = to_numpy(keep(leaf, leaf.is_valid()).cast(pa.int64()))
    return bool(((values >= FIRST_WRAPPED) & (values <= LAST_WRAPPED)).any())


def _leaf_values(array: pa.Array) -> Iterator[pa.Array]:
    """Values that hold no others; of maps perhaps some of rows beside those asked for."""
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
