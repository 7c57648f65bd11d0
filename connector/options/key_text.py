"""Sort keys and range bounds as text, the form they have in options of the data source. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from arrow_format.errors import OptionError
from arrow_format.keys.sort_keys import ORDERS, SortBy, normalise_sort_by

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
