"""Parsers of option values: each takes the name of an option and its text, for messages and value.

They check the form of a text. Ranges and combinations are checked by the dataclass that a value is
for. All raise OptionError, which names the option, shows the text and says what is expected.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from arrow_format.errors import OptionError
from arrow_format.keys.combination import check_functions
from arrow_format.keys.sort_keys import ORDERS, SortBy, normalise_sort_by
from arrow_format.log.snapshot import VersionSpan
from arrow_format.log.version_names import VERSION_NAMES, parse_version_name
from arrow_format.model import MAX_SUBPARTITIONS, SAFE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable

# At most 18 digits, which 64 bits hold: Python refuses to convert thousands of digits.
_BYTES = re.compile(r"(\d{1,18})\s*([kmgt]?)b?", re.IGNORECASE)
_VERSION = re.compile(r"\d{1,18}")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_PIN = re.compile(rf"({SAFE_NAME.pattern})(?: ([0-9]{{1,18}})-([0-9]{{1,18}})-([0-9]{{1,18}}))?")


def bad(name: str, value: str, expected: str) -> OptionError:
    """Return the error for a bad value; it names the option and shows the value."""
    return OptionError(f"option {name}={value!r}: expected {expected}")


def as_is(name: str, value: str) -> str:
    """Return the text."""
    del name
    return value


def lower(name: str, value: str) -> str:
    """Return a word in lower case."""
    del name
    return value.lower()


def boolean(name: str, value: str) -> bool:
    """Parse ``true`` or ``false``."""
    if value.lower() not in ("true", "false"):
        raise bad(name, value, "true or false")
    return value.lower() == "true"


def whole(name: str, value: str) -> int:
    """Parse a whole number."""
    try:
        return int(value)
    except ValueError:
        raise bad(name, value, "a whole number") from None


def parse_version(name: str, value: str) -> int | str:
    """Parse what names a version: a number, a time with a zone, or a tag.

    The processes in which Spark opens a source do not know the session's time zone.
    """
    try:
        wanted = parse_version_name(value)
    except OptionError:
        raise bad(name, value, VERSION_NAMES) from None
    if isinstance(wanted, datetime) and wanted.tzinfo is None:
        raise bad(
            name,
            value,
            f"a time with a zone, as {wanted.isoformat(' ')}+01:00 or {wanted.isoformat(' ')}Z; "
            "connector.read_shuffle takes the zone of the session",
        )
    return wanted if isinstance(wanted, int) else value


def num_bytes(name: str, value: str) -> int:
    """Parse a number of bytes above zero, such as ``64m``."""
    match = _BYTES.fullmatch(value.strip())
    if match is None or int(match[1]) == 0:
        raise bad(name, value, "a number of bytes such as 67108864, 64m or 1g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


def parse_names(name: str, value: str) -> tuple[str, ...]:
    """Parse names: ``a,b``, or a JSON list where a name contains a comma."""
    if value.startswith("["):
        try:
            return tuple(json.loads(value))
        except ValueError:
            raise bad(name, value, 'names such as a,b or ["a","b"]') from None
    return tuple(part.strip() for part in value.split(","))


def parse_statistics(name: str, value: str) -> str | tuple[str, ...]:
    """Parse ``all``, ``none``, or names of columns."""
    if value.lower() in ("all", "none"):
        return "all" if value.lower() == "all" else ()
    return parse_names(name, value)


def parse_starting_version(name: str, value: str) -> int | None:
    """Parse the version to start with; return the one before it, None for ``latest``."""
    if value.lower() in ("earliest", "latest"):
        return 0 if value.lower() == "earliest" else None
    if not _VERSION.fullmatch(value) or int(value) == 0:
        raise bad(name, value, "earliest, latest or a version, from 1")
    return int(value) - 1


# Durations ----------------------------------------------------------------------------------------


_UNITS = {
    spelling: name
    for name, units in (
        ("milliseconds", "ms millisecond"),
        ("seconds", "s sec second"),
        ("minutes", "m min minute"),
        ("hours", "h hour"),
        ("days", "d day"),
    )
    for unit in units.split()
    for spelling in ((unit, f"{unit}s") if len(unit) > len("ms") else (unit,))
}
"""Words have a plural, abbreviations of one letter or two have none."""
INTERVALS = "500ms, 90s, 2min or 1h"
"""Examples of flush intervals, for messages."""
_DURATION = re.compile(rf"(\d{{1,9}}) *({'|'.join(_UNITS)})")


def parse_duration(text: str, name: str, *, examples: str = "30m, 1h, 7d or 0s") -> timedelta:
    """Parse a duration: a whole number and ``ms``, ``s``, ``m``, ``h`` or ``d``.

    Or units as Flink spells them, ``min`` and the like, singular or plural. ``name`` is what
    messages call it, ``examples`` what they suggest.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        msg = f"{name}={text!r}: expected a whole number with a unit, as {examples}"
        raise OptionError(msg)
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_interval(name: str, value: str) -> timedelta:
    """Parse a flush interval."""
    return parse_duration(value, f"option {name}", examples=INTERVALS)


def seconds(name: str, value: str) -> float:
    """Parse a duration; return it in seconds."""
    return parse_duration(value, f"option {name}").total_seconds()


# Subpartitions and pins ---------------------------------------------------------------------------


def parse_subpartitions(name: str, value: str) -> tuple[int, ...]:
    """Parse numbers and ranges such as ``3,7-9``, both ends included."""
    numbers: list[int] = []
    for part in value.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise bad(name, value, "numbers and ranges such as 3,7-9")
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= MAX_SUBPARTITIONS:  # before a huge range is expanded
            raise bad(name, value, f"numbers below {MAX_SUBPARTITIONS:,}")
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


def format_subpartitions(numbers: Iterable[int]) -> str:
    """Inverse of :func:`parse_subpartitions` for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


class Pin(NamedTuple):
    """The commit of a version, and which versions up to it a DataFrame reads."""

    commit_id: str
    span: VersionSpan | None = None
    """None: all of the version."""

    def __str__(self) -> str:
        span = self.span
        return self.commit_id + (f" {span.base}-{span.start}-{span.end}" if span else "")


def parse_pin(name: str, value: str) -> Pin:
    """Inverse of ``str(pin)``."""
    match = _PIN.fullmatch(value)
    if match is None:
        raise bad(name, value, "nothing; connector.read_shuffle alone sets it")
    commit_id, *numbers = match.groups()
    return Pin(commit_id, None if numbers[0] is None else VersionSpan(*map(int, numbers)))


# Keys and bounds ----------------------------------------------------------------------------------


_KEYS = 'columns such as a, b desc nulls first, or for odd names ["a", ["b", "descending"]]'

_KEY = re.compile(
    r"(?P<name>.+?)(?:\s+(?P<way>asc|desc)(?:ending)?)?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE | re.DOTALL,
)


def parse_sort_keys(name: str, value: str) -> SortBy:
    """Parse sort keys: ``a, b desc nulls first`` as in SQL, or JSON.

    Names in JSON are taken literally; the order in a JSON pair has the short or the long form.
    """
    if value.lstrip().startswith("["):
        try:
            keys = json.loads(value)
        except ValueError:
            raise bad(name, value, _KEYS) from None
        return normalise_sort_by([_with_long_order(key) for key in keys], f"option {name}")
    keys = []
    for part in value.split(","):
        match = _KEY.fullmatch(part.strip())
        if match is None:
            raise bad(name, value, _KEYS)
        keys.append((match["name"], _order(match["way"], match["nulls"])))
    return normalise_sort_by(keys, f"option {name}")


def parse_combine(name: str, value: str) -> dict[str, str]:
    """Parse functions of columns: ``n:sum, price:max``, or a JSON object."""
    expected = "columns with one function each, such as n:sum, price:max"
    try:
        if value.lstrip().startswith("{"):
            pairs = json.loads(value, object_pairs_hook=list)
        else:
            parts = [part.rpartition(":") for part in value.split(",")]
            pairs = [(column.strip(), end.strip().lower()) for column, _, end in parts]
        combine = check_functions(dict(pairs))
    except (ValueError, OptionError):
        raise bad(name, value, expected) from None
    if len(combine) < len(pairs):
        raise bad(name, value, expected)
    return combine


def parse_bounds(name: str, value: str) -> tuple[Any, ...]:
    """Parse bounds from JSON: one list of values per bound; with one key, plain values."""
    expected = 'a JSON list with a list of values per bound, such as [["2024-01-31", 7]]'
    try:
        parsed = json.loads(value)
    except ValueError:
        raise bad(name, value, expected) from None
    if not isinstance(parsed, list):
        raise bad(name, value, expected)
    return tuple(parsed)


def _order(way: str | None, nulls: str | None) -> str:
    descending = (way or "").lower() == "desc"
    default = "last" if descending else "first"
    order = "descending" if descending else "ascending"
    nulls = (nulls or default).lower()
    return order if nulls == default else f"{order} nulls {nulls}"


def _with_long_order(key: object) -> object:
    """Return a key from JSON with the short form of its order, if it has one, spelled out."""
    if not isinstance(key, list) or len(key) != 2 or key[1] in ORDERS or not key[1]:
        return key
    match = _KEY.fullmatch(f"_ {key[1]}".strip())
    if match is None or match["name"] != "_":
        return key
    return [key[0], _order(match["way"], match["nulls"])]
