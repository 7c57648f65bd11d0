"""Text cast to dates, times and timestamps as Spark casts it, and time zones. Pure.

Source: Spark's ``SparkDateTimeUtils`` (``stringToDate``, ``parseTimestampString``).
"""

from __future__ import annotations

import datetime as dt
import re
from functools import lru_cache
from zoneinfo import ZoneInfo

from arrow_format.errors import OptionError

SPACES = " \t\r\n"
"""What may surround a value in a text. Spark takes control characters too, and no other space."""

_NAIVE_EPOCH = dt.datetime(1970, 1, 1)

_DATE = re.compile(r"([+-]?\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII)
_TIMESTAMP = re.compile(
    r"([+-]?\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](?:(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?\s*(\S.*)?)?)?)?)?",
    re.ASCII,
)
_TIME = re.compile(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,6}))?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?(?::?(\d{2}))?", re.ASCII)
_UTC_NAMES = frozenset({"Z", "UTC", "GMT", "UT"})


def zone_of(name: str) -> dt.tzinfo:
    """Return a time zone by Spark's name for it: a region or an offset; OptionError if unknown."""
    zone = _zone_of(name) if isinstance(name, str) else None
    if zone is None:
        problem = "expected a region such as 'Europe/Berlin', an offset such as '+02:00', or 'UTC'"
        raise OptionError.of("time_zone", name, problem)
    return zone


def arrow_zone(name: str) -> str:
    """Return a time zone by Spark's name for it as Arrow names it; OptionError if unknown."""
    zone = zone_of(name)
    if zone is dt.UTC:
        return "UTC"
    if not isinstance(zone, dt.timezone):
        return name
    minutes = int(zone.utcoffset(None).total_seconds()) // 60
    return f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"


@lru_cache(64)
def _zone_of(name: str) -> dt.tzinfo | None:
    if name in _UTC_NAMES:
        return dt.UTC
    offset = _OFFSET.fullmatch(name)
    try:
        if offset:
            sign, *parts = offset.groups()
            hours, minutes, seconds = (int(part or 0) for part in parts)
            length = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
            return dt.timezone(-length if sign == "-" else length)
        return ZoneInfo(name)
    except (ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        return None
    except KeyError:
        return None


def date_of(text: str) -> int | None:
    """Return the days since 1970 that Spark casts a text to; None if it is no date."""
    match = _DATE.fullmatch(text.strip(SPACES))
    if not match:
        return None
    year, month, day = (1 if part is None else int(part) for part in match.groups())
    try:
        return (dt.date(year, month, day) - dt.date(1970, 1, 1)).days
    except ValueError:
        return None


def timestamp_of(text: str) -> tuple[int, str | None] | None:
    """Return the local microseconds since 1970 in a text, and its zone if any; None if malformed.

    Digits behind the microsecond are dropped, as Spark does.
    """
    match = _TIMESTAMP.fullmatch(text.strip(SPACES))
    if not match:
        return None
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        local = dt.datetime(
            int(year), int(month or 1), int(day or 1),
            int(hour or 0), int(minute or 0), int(second or 0),
            int((fraction or "")[:6].ljust(6, "0")),
        )  # fmt: skip
    except ValueError:
        return None
    return (local - _NAIVE_EPOCH) // dt.timedelta(microseconds=1), zone


def time_of(text: str) -> int | None:
    """Return the microseconds since midnight in a text; None if malformed."""
    match = _TIME.fullmatch(text.strip(SPACES))
    if not match:
        return None
    hour, minute, second, fraction = match.groups()
    try:
        time = dt.time(
            int(hour), int(minute), int(second or 0), int((fraction or "").ljust(6, "0"))
        )
    except ValueError:
        return None
    seconds = time.hour * 3600 + time.minute * 60 + time.second
    return seconds * 1_000_000 + time.microsecond


def instant_of(local_ns: int, zone: dt.tzinfo | None) -> int:
    """Return the instant, in nanoseconds, at which a local time occurs first in a time zone.

    A time that does not occur, in the hour that a clock is put forward, is moved by that hour, as
    Spark does. OptionError beyond the years 1 to 9999, unless the zone is UTC; and where the zone
    is None: not known.
    """
    if zone is None:
        msg = (
            "filter: a date or a timestamp that names no time zone is compared with instants: name "
            "one in the value, as in TIMESTAMP '2024-06-01 03:00:00+02:00' or '... Europe/Berlin', "
            "or give the zone of all of them: option timeZone of the data source, time_zone= in "
            "Python"
        )
        raise OptionError(msg)
    if zone is dt.UTC:
        return local_ns
    try:
        local = _NAIVE_EPOCH + dt.timedelta(seconds=local_ns // 10**9)
        offset = local.replace(tzinfo=zone).utcoffset()
    except OverflowError as error:
        msg = f"a time in zone {zone} must be in the years 1 to 9999"
        raise OptionError(msg) from error
    assert offset is not None  # a fixed zone and a ZoneInfo have one
    return local_ns - offset // dt.timedelta(microseconds=1) * 1000
