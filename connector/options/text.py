"""Values of options from text: numbers, sizes, durations, booleans, keys and bounds."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from arrow_format.errors import OptionError
from arrow_format.keys.sort_keys import ORDERS, SortBy, normalise_sort_by

if TYPE_CHECKING:
    from collections.abc import Mapping


# No number has more digits than 64 bits hold: Python refuses to read those of thousands.
_BYTES = re.compile(r"(\d{1,18})\s*([kmgt]?)b?", re.IGNORECASE)

_VERSIONS = "a version is named by its number: give option version"
_HINTS = {
    "columns": "columns are chosen by .schema('k BIGINT, v STRING')",
    "paths": "a shuffle has one path, as in load(path); of several take df.union",
    "timestampasof": _VERSIONS,
    "versionasof": _VERSIONS,
}
"""What is meant by options that other data sources, or functions of ours, have; in lower case."""


def unknown(name: str, names: Mapping[str, str], described: str) -> OptionError:
    """Return the error for an option that is not known; it says what may be meant.

    Parameters
    ----------
    name
        As it was given; Spark hands names over in lower case.
    names
        Documented names of the options that are known, by their names in lower case.
    described
        What they are, for a name that is like none of them.
    """
    hint = _HINTS.get(name.lower())
    alike = get_close_matches(name.lower(), names, 1)
    if hint is not None:
        return OptionError(f"option {name!r} is not known: {hint}")
    if alike:
        return OptionError(f"option {name!r} is not known (did you mean {names[alike[0]]!r}?)")
    return OptionError(f"option {name!r} is not known; {described}")


def bad(name: str, value: str, expected: str) -> OptionError:
    """Return the error for a bad value; it names the option and what was found."""
    return OptionError(f"option {name}={value!r}: expected {expected}")


def boolean(name: str, value: str) -> bool:
    """Read ``true`` or ``false``; raises OptionError."""
    if value.lower() not in ("true", "false"):
        raise bad(name, value, "true or false")
    return value.lower() == "true"


def whole(name: str, value: str) -> int:
    """Read a whole number; raises OptionError."""
    try:
        return int(value)
    except ValueError:
        raise bad(name, value, "a whole number") from None


def num_bytes(name: str, value: str) -> int:
    """Read a number of bytes, ``64m``; raises OptionError."""
    match = _BYTES.fullmatch(value.strip())
    if match is None or int(match[1]) == 0:
        raise bad(name, value, "a number of bytes such as 67108864, 64m or 1g")
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


_UNITS = {
    spelled: name
    for name, units in (
        ("milliseconds", "ms millisecond"),
        ("seconds", "s sec second"),
        ("minutes", "m min minute"),
        ("hours", "h hour"),
        ("days", "d day"),
    )
    for unit in units.split()
    for spelled in ((unit, f"{unit}s") if len(unit) > len("ms") else (unit,))
}
"""Words have a plural, abbreviations of one letter or two have none."""
_TEXT = re.compile(rf"(\d{{1,9}}) *({'|'.join(_UNITS)})")


def parse_duration(text: str, name: str, *, examples: str = "30m, 1h, 7d or 0s") -> timedelta:
    """Return the length of time that ``text`` names.

    Parameters
    ----------
    text
        A whole number and a unit: ``ms``, ``s``, ``m``, ``h`` or ``d``, or as Flink writes them,
        ``min`` and the like, in the singular or plural.
    name
        What it is for, for messages.
    examples
        What messages suggest: others than the default where no time at all is not accepted.

    Raises
    ------
    OptionError
        It is not of that form.
    """
    match = _TEXT.fullmatch(text.strip().lower())
    if match is None:
        msg = f"{name}={text!r}: expected a whole number with a unit, as {examples}"
        raise OptionError(msg)
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def duration_text(duration: timedelta) -> str:
    """Write a length of time in the largest unit that gives a whole number."""
    seconds = int(duration.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


FORM = 'columns such as a, b desc nulls first, or for odd names ["a", ["b", "descending"]]'

_PART = re.compile(
    r"(?P<name>.+?)(?:\s+(?P<way>asc|desc)(?:ending)?)?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE | re.DOTALL,
)


def parse_sort_keys(option: str, text: str) -> SortBy:
    """Sort keys from text: ``a, b desc nulls first`` as in SQL, or JSON.

    Names in JSON are taken as they are; the order of a pair may be written either way.

    Parameters
    ----------
    option
        Name of the option, for messages.
    text
        Its value, not empty.

    Raises
    ------
    OptionError
        It is not of that form, or names a column twice.
    """
    if text.lstrip().startswith("["):
        try:
            keys = json.loads(text)
        except ValueError:
            raise _bad(option, text, FORM) from None
        return normalise_sort_by([_spelled_out(key) for key in keys], f"option {option}")
    keys = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise _bad(option, text, FORM)
        keys.append((match["name"], _order(match["way"], match["nulls"])))
    return normalise_sort_by(keys, f"option {option}")


def parse_bounds(option: str, text: str) -> tuple[Any, ...]:
    """Bounds from JSON: one list of values per bound, or with one key the values themselves.

    Raises
    ------
    OptionError
        It is no JSON list.
    """
    expected = 'a JSON list with a list of values per bound, such as [["2024-01-31", 7]]'
    try:
        bounds = json.loads(text)
    except ValueError:
        raise _bad(option, text, expected) from None
    if not isinstance(bounds, list):
        raise _bad(option, text, expected)
    return tuple(bounds)


def _order(way: str | None, nulls: str | None) -> str:
    descending = (way or "").lower() == "desc"
    default = "last" if descending else "first"
    order = "descending" if descending else "ascending"
    nulls = (nulls or default).lower()
    return order if nulls == default else f"{order} nulls {nulls}"


def _spelled_out(key: object) -> object:
    """Return a key from JSON with the short form of its order, if it has one, spelled out."""
    if not isinstance(key, list) or len(key) != 2 or key[1] in ORDERS or not key[1]:
        return key
    match = _PART.fullmatch(f"_ {key[1]}".strip())
    if match is None or match["name"] != "_":
        return key
    return [key[0], _order(match["way"], match["nulls"])]


def _bad(option: str, text: str, expected: str) -> OptionError:
    return OptionError(f"option {option}={text!r}: expected {expected}")
