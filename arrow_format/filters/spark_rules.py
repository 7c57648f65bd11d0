"""What a filter in SQL may compare and cast: what Spark does with it, bit for bit. Pure.

What is not listed here is refused, whatever Arrow or Python would make of it: the text of a filter
means what Spark's ``where`` means by it, or nothing.

Source: Spark, ``AnsiTypeCoercion``, ``DecimalPrecision``, ``Cast``, ``SqlBaseParser``.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyarrow import types as pt

from arrow_format.arrays.spark_schema_evolution import COLLATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

_NUMBERS = ("integer", "decimal", "float", "double")
_TIMES = ("date", "timestamp", "timestamp_ntz")

COMPARED: Mapping[str, tuple[str, ...]] = {
    "integer": (*_NUMBERS, "text"),
    "decimal": (*_NUMBERS, "text"),
    "float": (*_NUMBERS, "text"),
    "double": (*_NUMBERS, "text"),
    "text": ("text",),
    "binary": ("binary", "text"),
    "boolean": ("boolean", "text"),
    "date": (*_TIMES, "text"),
    "timestamp": (*_TIMES, "text"),
    "timestamp_ntz": (*_TIMES, "text"),
    "time": ("time", "text"),
    "interval": ("interval",),
}
"""By the kind of a column: the kinds of values and columns that it is compared with."""

CAST: Mapping[str, tuple[str, ...]] = {
    "integer": ("integer", "text"),
    "decimal": ("integer", "decimal", "text"),
    "float": ("integer", "decimal", "float", "text"),
    "double": ("integer", "decimal", "float", "double", "text"),
    "binary": ("binary", "text"),
    "boolean": ("boolean", "text"),
    "date": ("date", "text"),
    "timestamp": (*_TIMES, "text"),
    "timestamp_ntz": ("date", "timestamp_ntz", "text"),
    "time": ("time", "text"),
}
"""By the kind that a value is cast to: the kinds of values that are, where that loses nothing."""

MOST_DIGITS = 38
"""Digits of Spark's decimals: where a common type needs more, Spark rounds what it compares."""

ANSI = "spark.sql.ansi.enabled"
_ESCAPES = "spark.sql.parser.escapedStringLiterals"
_QUOTES = "spark.sql.ansi.doubleQuotedIdentifiers"
_CASE = "spark.sql.caseSensitive"

DEFAULTS: Mapping[str, str] = {
    ANSI: "true",
    _ESCAPES: "false",
    _QUOTES: "false",
    _CASE: "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.typeCoercion.datetimeToString.enabled": "false",
}
"""Settings of Spark that decide what a condition means, and under which it means what it does here.
"""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What is known of the session whose ``where`` a filter in SQL must equal."""

    time_zone: str | None = None
    """Of dates and timestamps that name none; None where it is not known."""
    changed: frozenset[str] = frozenset()
    """Those of :data:`DEFAULTS` that have another value."""
    is_known: bool = True
    """Whether they are those of the session; else any of them may be."""

    @classmethod
    def of(cls, values: Mapping[str, str | None], time_zone: str) -> SparkSettings:
        """Return what the values of :data:`DEFAULTS` in a session say; None: Spark lacks it."""
        changed = {
            name
            for name, default in DEFAULTS.items()
            if (values.get(name) or default).lower() != default.lower()
        }
        return cls(time_zone, frozenset(changed))

    @classmethod
    def unknown(cls, time_zone: str | None) -> SparkSettings:
        """Return that nothing is known of a session, as in a data source."""
        # A source never sees the others; an error in Spark's where is no row too many.
        return cls(time_zone, frozenset({ANSI, _ESCAPES, _QUOTES}), is_known=False)

    @property
    def is_case_sensitive(self) -> bool:
        """Whether names are exact."""
        return _CASE in self.changed

    def refusal_of_all(self) -> str | None:
        """Return why no text has its meaning here; None if it has."""
        others = sorted(self.changed - {ANSI, _ESCAPES, _QUOTES, _CASE})
        return self._because("conditions", others[0]) if others else None

    def refusal_of_token(self, token: str) -> str | None:
        """Return why a token, as it was written, may mean something else; None if it may not."""
        if token.startswith('"') and _QUOTES in self.changed:
            return self._because(f"{token}, a text or a name,", _QUOTES, "write '...' or `...`")
        if token[:1] in "'\"" and "\\" in token and _ESCAPES in self.changed:
            return self._because(f"the backslash in {token}", _ESCAPES, "compare an expression")
        return None

    def refusal_of_pair(self, column: str, value: str, *, in_list: bool = False) -> str | None:
        """Return why values of these kinds may be compared otherwise; None if they may not be."""
        if ANSI not in self.changed:
            return None
        kinds = {column, value}
        by_text = "text" in kinds and len(kinds) > 1 and (in_list or not kinds & {*_TIMES})
        if kinds == {"float", "integer"} or by_text:
            return self._because(
                f"a comparison of {column} with {value}", ANSI, "write a value of the column's type"
            )
        return None

    def _because(self, what: str, setting: str, remedy: str = "") -> str:
        if self.is_known:
            why = f"{setting} is not {DEFAULTS[setting]} in this session"
            instead = remedy or "set it so, or give an expression of PyArrow"
        else:
            why = f"that is for {setting} to say, which only a session knows"
            instead = f"{remedy}, or run open_shuffle(path).select(filter=...) by to_spark(spark)"
        return f"{what} may mean something else to Spark: {why}; {instead}"


SPARK_DEFAULTS = SparkSettings()
"""Where there is no session: Spark's defaults, and no time zone."""


def kind_of(type_: pa.DataType) -> str | None:
    """Return the kind of a type in :data:`COMPARED`; None where it has none."""
    if pt.is_timestamp(type_):
        return "timestamp_ntz" if type_.tz is None else "timestamp"
    for is_of, kind in (
        (pt.is_integer, "integer"), (pt.is_decimal, "decimal"), (pt.is_float64, "double"),
        (pt.is_floating, "float"), (pt.is_string, "text"), (pt.is_boolean, "boolean"),
        (pt.is_binary, "binary"), (pt.is_fixed_size_binary, "binary"), (pt.is_date, "date"),
        (pt.is_time, "time"), (pt.is_duration, "interval"),
    ):  # fmt: skip
        if is_of(type_):
            return kind
    return None


# Decimals ----------------------------------------------------------------------------------------

_WHOLE_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Of the decimal that an integer column becomes, by its bits."""


def digits_of(type_: pa.DataType) -> tuple[int, int] | None:
    """Return the digits before and behind the point of an exact number; None for other types."""
    if pt.is_decimal(type_):
        return type_.precision - type_.scale, type_.scale
    return (_WHOLE_DIGITS[type_.bit_width], 0) if pt.is_integer(type_) else None


def digits_of_value(value: pa.Scalar) -> tuple[int, int] | None:
    """Return those of a literal: of an integer, as many as it has."""
    if pt.is_integer(value.type) and value.is_valid:
        return len(str(abs(value.as_py()))), 0
    return digits_of(value.type)


def common_digits(digits: Iterable[tuple[int, int]]) -> int:
    """Return the digits of the decimal that holds all these exactly."""
    found = list(digits)
    return max(whole for whole, _ in found) + max(behind for _, behind in found)


# Columns that are more than their Arrow type -----------------------------------------------------


def refused_columns(spark_schema: str | None) -> dict[str, str]:
    """Return the columns of which Spark compares something else than their values, and why.

    ``spark_schema`` is Spark's JSON of the schema; None for rows that were written without Spark.
    """
    found = ((field["name"], _refused(field)) for field in _fields(spark_schema))
    return {name: why for name, why in found if why is not None}


def collations(spark_schema: str | None, columns: Iterable[str]) -> dict[str, str]:
    """Return by what Spark compares texts of some columns, in structs too; by path, not bytes."""
    fields, found = {field["name"]: field for field in _fields(spark_schema)}, {}
    inside = [(name, fields[name]) for name in columns if name in fields]
    for path, field in inside:  # which grows meanwhile
        for name, collation in (_labels(field).get(COLLATIONS) or {}).items():
            found[path + name.removeprefix(field["name"])] = str(collation).partition(".")[2]
        if isinstance(field["type"], dict):
            below = field["type"].get("fields", ())
            inside += [(f"{path}.{each['name']}", each) for each in below]
    return found


def char_lengths(spark_schema: str | None) -> dict[str, int]:
    """Return the columns whose texts Spark pads with spaces, ``CHAR(n)``, and their lengths."""
    found = ((field["name"], _CHAR.fullmatch(_padded(field))) for field in _fields(spark_schema))
    return {name: int(match[1]) for name, match in found if match}


_CHAR = re.compile(r"char\((\d+)\)", re.IGNORECASE)


def _fields(spark_schema: str | None) -> list[dict[str, Any]]:
    return [] if spark_schema is None else json.loads(spark_schema)["fields"]


def _labels(field: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = field.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _padded(field: Mapping[str, Any]) -> str:
    return str(_labels(field).get("__CHAR_VARCHAR_TYPE_STRING", ""))


def _refused(field: Mapping[str, Any]) -> str | None:
    collations = _labels(field).get(COLLATIONS)
    if isinstance(collations, dict) and field["name"] in collations:
        return (
            f"has the collation {str(collations[field['name']]).partition('.')[2]}, and only bytes "
            "are compared here"
        )
    padded = _padded(field)
    if _CHAR.fullmatch(padded):
        return f"is {padded.upper()}, and Spark pads what it is compared with"
    type_ = field["type"]
    if isinstance(type_, dict) and type_.get("type") == "udt":
        return "is of a user's class, which Spark does not compare"
    return None
