"""A literal as the values next to it in a column's type, so that no comparison changes its meaning.

Of a column of whole numbers, ``x < 2.5`` is ``x < 3``, and ``x = 2.5`` holds for none. Where Spark
compares in a type that several values of the column are equal in, as long integers with a double,
the values next to it enclose all of these. Pure.

Source: Spark, ``AnsiTypeCoercion`` (types of the two sides of a comparison).
"""

from __future__ import annotations

import datetime as dt
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.errors import SchemaError
from arrow_format.filters import scalars
from arrow_format.filters.expression import value_as_sql
from arrow_format.filters.scalars import binary, decimal, number
from arrow_format.filters.spark_text import (
    SPACES,
    date_of,
    instant_of,
    time_of,
    timestamp_of,
    zone_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_SECOND = 10**9
_DAY = 86_400 * _SECOND
_UNITS = {"s": _SECOND, "ms": 10**6, "us": 10**3, "ns": 1}
"""Nanoseconds of each unit."""


_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOATS = frozenset(
    {"nan", *(sign + word for sign in ("", "+", "-") for word in ("inf", "infinity"))}
)
"""Texts of numbers. Python reads more of them than Spark: ``1_0``, and digits of any script."""

_TRUE_WORDS = frozenset({"true", "t", "yes", "y", "1"})
_FALSE_WORDS = frozenset({"false", "f", "no", "n", "0"})


@dataclass(frozen=True, slots=True)
class Nearest:
    """The values of a column's type next to a literal, as Spark compares them."""

    least: pa.Scalar | None
    """The least value that is not less than the literal; None where all values are less."""
    greatest: pa.Scalar | None
    """The greatest value that is not greater; None where all values are greater."""
    num_equal: int
    """How many values equal the literal: 0, 1, or 2 for more."""


def nearest(literal: pa.Scalar, name: str, type_: pa.DataType, zone: dt.tzinfo | None) -> Nearest:
    """Return the values of a column's comparable type next to a literal that is not null.

    ``zone`` is the time zone of dates and of timestamps without one, where they are compared with
    instants; OptionError where it is needed and None. Raises SchemaError, with the column's name,
    where Spark compares no such types or where this does not.
    """
    of = literal.type
    found = None
    if pt.is_integer(type_) or pt.is_decimal(type_):
        found = _near_whole(literal, type_)
    elif pt.is_floating(type_):
        found = _near_float(literal, type_)
    elif pt.is_timestamp(type_) or pt.is_date(type_):
        found = _near_time(literal, name, type_, zone)
    elif (pt.is_time(type_) and pt.is_time(of)) or (pt.is_duration(type_) and pt.is_duration(of)):
        found = _near_ticks(literal.value * _ticks(of), _ticks(type_), type_)
    elif (
        (pt.is_boolean(type_) and pt.is_boolean(of))
        or (pt.is_string(type_) and _is_text(of))
        or (pt.is_binary(type_) and _is_bytes(of))
    ):
        same = literal.cast(type_)
        found = Nearest(same, same, 1)
    if found is None:
        raise SchemaError(incomparable(name, type_, literal))
    return found


def from_text(text: str, type_: pa.DataType) -> pa.Scalar | None:
    """Return a text in the type that Spark casts it to when it is compared with a column.

    None where it is no such value. A timestamp is a local time if the text has no time zone, else
    an instant.

    Source: Spark, ``AnsiTypeCoercion.findWiderTypeForString``.
    """
    try:
        return _from_text(text, type_)
    except (ValueError, ArithmeticError, pa.ArrowException):
        return None


def _from_text(text: str, type_: pa.DataType) -> pa.Scalar | None:
    stripped = text.strip(SPACES)
    if pt.is_integer(type_):
        return number(int(stripped)) if _INTEGER.fullmatch(stripped) else None
    if pt.is_floating(type_) or pt.is_decimal(type_):
        is_number = _NUMBER.fullmatch(stripped) or stripped.lower() in _FLOATS
        return number(float(stripped)) if is_number else None
    if pt.is_date(type_):
        days = date_of(text)
        return None if days is None else number(days, pa.int32()).cast(pa.date32())
    if pt.is_timestamp(type_):
        return _timestamp_from_text(text)
    if pt.is_time(type_):
        time = time_of(text)
        return None if time is None else number(time).cast(pa.time64("us"))
    if pt.is_boolean(type_):
        word = stripped.lower()
        return (
            number(word in _TRUE_WORDS, pa.bool_()) if word in _TRUE_WORDS | _FALSE_WORDS else None
        )
    if pt.is_binary(type_):
        return binary(text.encode())
    return scalars.text(text) if pt.is_string(type_) else None


def decimal_from_text(text: str) -> pa.Scalar:
    """Return a text as a decimal with all of its digits; ValueError where it is none."""
    stripped = text.strip(SPACES)
    if not _NUMBER.fullmatch(stripped):
        msg = "the text is no number"
        raise ValueError(msg)
    return decimal(Decimal(stripped))


def _timestamp_from_text(text: str) -> pa.Scalar | None:
    parsed = timestamp_of(text)
    if parsed is None:
        return None
    local, zone = parsed
    if zone is None:
        return number(local).cast(pa.timestamp("us"))
    instant = instant_of(local * 1000, zone_of(zone.strip(SPACES))) // 1000
    return number(instant).cast(pa.timestamp("us", "UTC"))


# Numbers -----------------------------------------------------------------------------------------


def _near_whole(literal: pa.Scalar, type_: pa.DataType) -> Nearest | None:
    """Of integers and decimals: whole numbers of a unit."""
    if pt.is_decimal(type_):
        unit = Fraction(10) ** -type_.scale
        most = 10**type_.precision - 1
        least = -most
    else:
        unit = Fraction(1)
        is_signed = pt.is_signed_integer(type_)
        most = 2 ** (type_.bit_width - is_signed) - 1
        least = -most - 1 if is_signed else 0

    def scalar(whole: int) -> pa.Scalar:
        if pt.is_decimal(type_):
            return decimal(Decimal(f"{whole}E{-type_.scale}"), type_)
        return number(whole, type_)

    if pt.is_integer(literal.type) or pt.is_decimal(literal.type):
        exact = Fraction(literal.as_py()) / unit
        return _between(math.ceil(exact), math.floor(exact), least, most, scalar)
    if not pt.is_floating(literal.type):
        return None
    double = float(literal.as_py())  # Spark compares doubles
    first = _first(least, most, lambda whole: float(whole * unit) >= double)
    last = _first(least, most, lambda whole: float(whole * unit) > double) - 1
    if math.isnan(double):
        last = most
    return _between(first, last, least, most, scalar)


def _first(least: int, most: int, holds: Callable[[int], bool]) -> int:
    """Return the first number from ``least`` to ``most`` that a condition holds for, or the next.

    It holds for all after the first.
    """
    end = most + 1
    while least < end:
        middle = (least + end) // 2
        if holds(middle):
            end = middle
        else:
            least = middle + 1
    return least


def _between(
    first: int, last: int, least: int, most: int, scalar: Callable[[int], pa.Scalar]
) -> Nearest:
    """``first`` is the least number not less than the literal, ``last`` the greatest not greater.

    Those of the type are from ``least`` to ``most``.
    """
    return Nearest(
        scalar(max(first, least)) if first <= most else None,
        scalar(min(last, most)) if last >= least else None,
        min(max(min(last, most) - max(first, least) + 1, 0), 2),
    )


def _near_float(literal: pa.Scalar, type_: pa.DataType) -> Nearest | None:
    of = literal.type
    if not (pt.is_integer(of) or pt.is_decimal(of) or pt.is_floating(of)):
        return None
    double = float(literal.as_py())  # Spark compares doubles
    single = pt.is_float32(type_)
    with np.errstate(over="ignore"):
        value = np.float32(double) if single else np.float64(double)
    if float(value) == double or math.isnan(double):
        same = number(float(value), type_)
        return Nearest(same, same, 1)
    toward = np.nextafter(value, np.float32(-np.inf if float(value) > double else np.inf))
    below, above = sorted((value, toward))
    return Nearest(number(float(above), type_), number(float(below), type_), 0)


# Dates and times ---------------------------------------------------------------------------------


def _near_time(
    literal: pa.Scalar, name: str, type_: pa.DataType, zone: dt.tzinfo | None
) -> Nearest | None:
    """Of dates and timestamps: in nanoseconds, of local time or since the epoch."""
    of = literal.type
    if not (pt.is_date(of) or pt.is_timestamp(of)):
        return None
    moment = literal.value * _ticks(of)
    is_instant = pt.is_timestamp(of) and of.tz is not None
    ticks = _ticks(type_)
    if pt.is_timestamp(type_) and type_.tz is not None:
        return _near_ticks(moment if is_instant else instant_of(moment, zone), ticks, type_)
    if not is_instant:
        return _near_ticks(moment, ticks, type_)
    if pt.is_timestamp(type_):
        if zone is None or isinstance(zone, dt.timezone):
            return _near_ticks(moment - instant_of(0, zone), ticks, type_)
        # The order of local times is not that of instants where a clock is put forward.
        msg = (
            f"filter: column {name!r} is {type_}, without a time zone, and is compared with the "
            f"instant {value_as_sql(literal)} in zone {zone}; compare it with a timestamp without "
            "a time zone (TIMESTAMP_NTZ '...')"
        )
        raise SchemaError(msg)
    # Spark compares midnights with instants.
    around = moment // _DAY
    days = range(around - 2, around + 3)
    midnights = [instant_of(day * _DAY, zone) for day in days]
    first = next(d for d, at in zip(days, midnights, strict=True) if at >= moment)
    last = first if moment in midnights else first - 1
    per_day = _DAY // ticks
    least, most = _range(type_)
    return _between(
        first, last, -(-least // per_day), most // per_day,
        lambda day: _of_ticks(day * per_day, type_),
    )  # fmt: skip


def _near_ticks(moment: int, ticks: int, type_: pa.DataType) -> Nearest:
    least, most = _range(type_)
    return _between(
        -(-moment // ticks), moment // ticks, least, most, lambda at: _of_ticks(at, type_)
    )


def _ticks(type_: pa.DataType) -> int:
    """Return the nanoseconds of what a date, time, timestamp or duration counts."""
    if pt.is_date32(type_):
        return _DAY
    return _UNITS["ms" if pt.is_date64(type_) else type_.unit]


def _range(type_: pa.DataType) -> tuple[int, int]:
    most = 2 ** (type_.bit_width - 1) - 1
    return -most - 1, most


def _of_ticks(value: int, type_: pa.DataType) -> pa.Scalar:
    return number(value, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)


def _is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_))


def _is_bytes(type_: pa.DataType) -> bool:
    return bool(
        pt.is_binary(type_)
        or pt.is_large_binary(type_)
        or pt.is_binary_view(type_)
        or pt.is_fixed_size_binary(type_)
    )


def incomparable(name: str, type_: pa.DataType, literal: pa.Scalar) -> str:
    """Return the message for a literal that does not compare with a column."""
    return (
        f"filter: column {name!r} is {type_}, which does not compare with {value_as_sql(literal)} "
        f"of type {literal.type}; write a value of the column's type, or cast this one to it"
    )
