"""Spark schemas at the doors of the shuffle: what can be written, hashed, and read with Spark.

Everything here decides from a schema alone, so that what does not work is refused on the driver,
before any task runs.

Source: ``pyspark.sql.pandas.types`` (Spark's own mapping to Arrow) and what Spark 4.3 was seen to
do; ``docs/types.md`` has the table.
"""

from __future__ import annotations

import json
from types import NoneType
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types as pt
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import (
    from_arrow_metadata,
    from_arrow_type,
    is_geography,
    is_geometry,
    is_variant,
    metadata_key,
    to_arrow_schema,
    to_arrow_type,
)
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DecimalType,
    GeographyType,
    GeometryType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimeType,
    UserDefinedType,
    VariantType,
    YearMonthIntervalType,
)

from arrow_format.arrow_types import refuse_duplicates, same_but_labels
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

METADATA_KEY = metadata_key.decode()
"""Field metadata in which Spark keeps the metadata of a column, as JSON."""

TIME_PRECISION_KEY = b"SPARK::time::precision"
"""Field metadata in which the JVM keeps the precision of a TIME column."""


# Writing -----------------------------------------------------------------------------------------


def arrow_schema_of(
    schema: StructType, *, for_map_in_arrow: bool = False, case_sensitive: bool = False
) -> pa.Schema:
    """Return the Arrow schema of what a DataFrame of ``schema`` is stored as.

    Timestamps are labelled UTC, whatever the session's time zone; a user-defined type is its
    storage, a collated string a string, a VARIANT a struct of two binary fields. The comment and
    other metadata of a column are metadata of the field.

    Parameters
    ----------
    schema
        As ``df.schema`` has it.
    for_map_in_arrow
        Also refuse the names that Spark cannot pass to ``mapInArrow``. The data source can take
        them.
    case_sensitive
        The session's ``spark.sql.caseSensitive``; only ``mapInArrow`` depends on it.

    Raises
    ------
    SchemaError
        No columns, equal names, or a type that Spark does not hand over as Arrow; names the
        column, with a dotted path if it is nested.
    """
    if not schema.fields:
        msg = (
            "the DataFrame has no columns, so its number of rows would be lost; "
            "add a column, for example lit(0)"
        )
        raise SchemaError(msg)
    refuse_duplicates(schema.names)
    for field in schema.fields:
        for path, type_, nullable in _walk(field.dataType, field.name, nullable=field.nullable):
            _refuse_unsupported(path, type_, nullable=nullable)
    if for_map_in_arrow:
        _refuse_unresolvable(schema.names, case_sensitive=case_sensitive)
    return to_arrow_schema(schema, timezone="UTC")


def check_keys(schema: StructType, keys: Sequence[str]) -> None:
    """Refuse hash keys that are not there or whose values cannot be hashed as Spark does.

    Names must be written as in the schema, upper and lower case too. The key of a user-defined
    type is its storage, as in ``df.repartition(n, key)``. Nested types are looked into.

    Raises
    ------
    SchemaError
        Names the column, and says why and what to do instead.
    """
    refuse_duplicates(keys, "keys")
    there = dict(zip(schema.names, schema.fields, strict=True))
    for key in keys:
        if key not in there:
            alike = [name for name in there if name.lower() == key.lower()]
            hint = f" (did you mean {alike[0]!r}?)" if alike else ""
            columns = ", ".join(map(repr, schema.names))
            msg = f"key column {key!r} is not there{hint}; columns are {columns}"
            raise SchemaError(msg)
        for path, type_, _ in _walk(there[key].dataType, key, nullable=True):
            reason = _why_no_key(type_)
            if reason:
                msg = f"column {path!r} of type {type_.simpleString()} cannot be a key: {reason}"
                raise SchemaError(msg)


def _walk(type_: DataType, path: str, *, nullable: bool) -> Iterator[tuple[str, DataType, bool]]:
    """Yield a type and all types inside it, each with its dotted path and nullability."""
    yield path, type_, nullable
    if isinstance(type_, UserDefinedType):
        yield from _walk(type_.sqlType(), path, nullable=nullable)
    elif isinstance(type_, ArrayType):
        yield from _walk(type_.elementType, f"{path}.element", nullable=type_.containsNull)
    elif isinstance(type_, MapType):
        yield from _walk(type_.keyType, f"{path}.key", nullable=False)
        yield from _walk(type_.valueType, f"{path}.value", nullable=type_.valueContainsNull)
    elif isinstance(type_, StructType):
        for field in type_.fields:
            yield from _walk(field.dataType, f"{path}.{field.name}", nullable=field.nullable)


def _refuse_unsupported(path: str, type_: DataType, *, nullable: bool) -> None:
    what = type_.simpleString()
    if isinstance(type_, StructType):
        return refuse_duplicates(type_.names, f"fields of column {path!r}")
    if isinstance(type_, ArrayType | MapType | UserDefinedType):
        return None  # what is inside comes by itself
    if isinstance(type_, YearMonthIntervalType):
        advice = "store its months as an integer (extract YEAR and MONTH)"
    elif isinstance(type_, CalendarIntervalType):
        advice = "store its parts as numbers (extract), or a day-time interval"
    elif isinstance(type_, NullType) and not nullable:
        what, advice = "non-nullable void", "cast it, for example array() to array<int>"
    else:
        try:
            to_arrow_type(type_, timezone="UTC")
        except (PySparkException, ValueError, pa.ArrowException):
            advice = "cast it to a type that has one, or drop it"
        else:
            return None
    msg = f"column {path!r} has type {what}, which Spark cannot pass as Arrow: {advice}"
    raise SchemaError(msg)


def _refuse_unresolvable(names: Sequence[str], *, case_sensitive: bool) -> None:
    """Refuse what ``mapInArrow`` fails on: it looks its input columns up by their bare names."""
    for name in names:
        if "." in name or "`" in name or name == "*":
            msg = (
                f"column {name!r}: mapInArrow cannot find a column with '.', '`' or '*' as its "
                'name; rename it, or write with df.write.format("arrow_shuffle")'
            )
            raise SchemaError(msg)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name if case_sensitive else name.lower(), []).append(name)
    for group in alike.values():
        if len(group) > 1:
            msg = (
                f"columns {', '.join(map(repr, group))} have the same name for Spark, which does "
                "not tell upper from lower case: rename them, or set spark.sql.caseSensitive"
            )
            raise SchemaError(msg)


def _why_no_key(type_: DataType) -> str | None:
    """Why a value of this type, or inside a key, cannot be hashed; None if it can."""
    if isinstance(type_, StringType) and not type_.isUTF8BinaryCollation():
        return (
            f"strings that are equal under {type_.collation} may differ in their bytes, which are "
            "what is hashed here; use its bytes (CAST(c AS STRING)), or lower(...) of those"
        )
    if isinstance(type_, VariantType):
        return "Spark does not hash it; use a value taken from it (variant_get)"
    if isinstance(type_, MapType):
        return "equal maps may list their entries in any order; use map_entries(...), sorted"
    if isinstance(type_, NullType):
        return "all its rows would go to one subpartition; leave it out, or cast it"
    if isinstance(type_, GeometryType | GeographyType):
        return "Spark does not hash it; use ST_AsBinary(...) of it"
    return None


# Reading what was written without Spark -------------------------------------------------------


_INSTEAD = (
    (pt.is_uint8, "int16"),
    (pt.is_uint16, "int32"),
    (pt.is_uint32, "int64"),
    (pt.is_uint64, "decimal128(20, 0)"),
    (pt.is_float16, "float32"),
    (pt.is_date64, "date32"),
    (pt.is_time, "time64('ns')"),
    (pt.is_duration, "duration('us')"),
    (pt.is_decimal, "decimal128"),
    (pt.is_fixed_size_binary, "binary"),
    (pt.is_fixed_size_list, "list_"),
)
"""Types that Spark lacks, and what holds the same values."""


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark schema to read a shuffle with that was written without Spark.

    What Spark reads are the stored batches themselves, so a type is taken only if Spark has exactly
    that one. Timestamps with a time zone (any) are TIMESTAMP, those without TIMESTAMP_NTZ; times of
    day are TIME(9), for they may have nanoseconds. Field metadata is taken where Spark wrote it;
    other metadata stays in the shuffle and Spark does not see it.

    Parameters
    ----------
    schema
        A data schema (:func:`arrow_format.arrow_types.data_schema`).

    Raises
    ------
    SchemaError
        Spark has no such type, or cannot parse the metadata; names the column.
    """
    return StructType([_spark_field(field, field.name) for field in schema])


def _spark_field(field: pa.Field, path: str) -> StructField:
    try:
        metadata: object = from_arrow_metadata(field.metadata)
    except ValueError:
        metadata = "not JSON"
    if not isinstance(metadata, dict | NoneType):
        msg = f"column {path!r} has {METADATA_KEY!r} metadata that is no JSON object; remove it"
        raise SchemaError(msg)
    return StructField(field.name, _spark_type(field, path), field.nullable, metadata)


def _spark_type(field: pa.Field, path: str) -> DataType:
    type_ = field.type
    if pt.is_list(type_):
        inside = type_.value_field
        return ArrayType(_spark_type(inside, f"{path}.element"), inside.nullable)
    if pt.is_map(type_):
        key = _spark_type(type_.key_field, f"{path}.key")
        item = type_.item_field
        return MapType(key, _spark_type(item, f"{path}.value"), item.nullable)
    if pt.is_struct(type_) and not (
        is_variant(type_) or is_geometry(type_) or is_geography(type_)
    ):  # fmt: skip
        return StructType([_spark_field(child, f"{path}.{child.name}") for child in type_])
    found: DataType | None = None
    try:
        found = _time_type(field) if pt.is_time64(type_) else from_arrow_type(type_)
        stored = to_arrow_type(found, timezone="UTC")
    except (PySparkException, ValueError, TypeError, pa.ArrowException):
        stored = None
    negative_scale = isinstance(found, DecimalType) and not 0 <= found.scale <= found.precision
    if found is None or stored is None or negative_scale or not same_but_labels(type_, stored):
        advice = next((f"cast it to {name}" for is_it, name in _INSTEAD if is_it(type_)), None)
        if pt.is_timestamp(type_):
            advice = "cast it to timestamp('us')"
        msg = (
            f"column {path!r} has type {type_}, which Spark cannot read: "
            f"{advice or 'drop it'} before it is written, or read it without Spark"
        )
        raise SchemaError(msg)
    return found


def _time_type(field: pa.Field) -> TimeType:
    precision = (field.metadata or {}).get(TIME_PRECISION_KEY, b"9")
    return TimeType(int(precision))


def spark_schema_from_json(text: str) -> StructType:
    """Inverse of ``schema.json()``, which a shuffle written with Spark keeps.

    Raises
    ------
    SchemaError
        The text is no schema, or a user-defined type in it has no class that can be imported here.
    """
    try:
        schema = StructType.fromJson(json.loads(text))
    except (ImportError, PySparkException) as error:
        msg = (
            f"the Spark schema of the shuffle cannot be used here: {error}. A user-defined type "
            "needs its Python class, in a module that can be imported on driver and executors; "
            "without Spark, arrow_format.open_shuffle reads its storage"
        )
        raise SchemaError(msg) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"the Spark schema of the shuffle is no JSON of a schema: {error!r}"
        raise SchemaError(msg) from error
    return schema
