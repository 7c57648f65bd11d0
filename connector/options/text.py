"""Kinds of options that are of the data source alone, and the form of their texts.

Parsers raise ValueError where their kind says what is expected, else OptionError.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from arrow_format.errors import OptionError
from arrow_format.filters.spark_text import zone_of
from arrow_format.keys.combination import check_functions
from arrow_format.keys.sort_keys import ORDERS, SortBy, normalise_sort_by
from arrow_format.log.snapshot import VersionSpan
from arrow_format.log.version_names import parse_version_name
from arrow_format.model import MAX_SUBPARTITIONS, SAFE_NAME
from arrow_format.option_fields import Kind, parse_names
from arrow_format.options import check_choice

if TYPE_CHECKING:
    from collections.abc import Iterable

TEXT = Kind()
NAMES = Kind(parse=parse_names, form="names", expected='names such as a,b or ["a","b"]')
KEYS = Kind(form="names", may_be_empty=True)

_PARTITIONERS = ("hash", "range", "roundrobin", "broadcast", "column")


def _check_partitioner(name: str, word: str) -> str:
    return word and check_choice(name, word, _PARTITIONERS)


PARTITIONER = Kind(_check_partitioner, str.lower, "word")
"""Empty: that of the existing shuffle, whatever the keys."""


def _check_zone(_: str, zone: str) -> str:
    zone_of(zone)
    return zone


ZONE = Kind(_check_zone)

_VERSION = re.compile(r"\d{1,18}")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")
_PIN = re.compile(rf"({SAFE_NAME.pattern})(?: ([0-9]{{1,18}})-([0-9]{{1,18}})-([0-9]{{1,18}}))?")


def _parse_version(text: str) -> int | str:
    """Parse what names a version: a number, a time with a zone, or a tag.

    The processes in which Spark opens a source do not know the session's time zone.
    """
    wanted = parse_version_name(text)
    if isinstance(wanted, datetime) and wanted.tzinfo is None:
        problem = (
            f"expected a time with a zone, as {wanted.isoformat(' ')}+01:00 or "
            f"{wanted.isoformat(' ')}Z; arrow_shuffle.open_shuffle takes that of its process"
        )
        raise OptionError.of("version", text, problem)
    return wanted if isinstance(wanted, int) else text


VERSION = Kind(parse=_parse_version, form="number, time or tag")


def _parse_starting_version(text: str) -> int | None:
    """Parse the version to start with; return the one before it, None for ``latest``."""
    if text.lower() in ("earliest", "latest"):
        return 0 if text.lower() == "earliest" else None
    if not _VERSION.fullmatch(text) or int(text) == 0:
        raise ValueError
    return int(text) - 1


STARTING_VERSION = Kind(
    parse=_parse_starting_version,
    form="word or number",
    expected="earliest, latest or a version, from 1",
)


# Subpartitions and pins ---------------------------------------------------------------------------


def _parse_subpartitions(text: str) -> tuple[int, ...]:
    """Parse numbers and ranges such as ``3,7-9``, both ends included."""
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError
        first, last = int(match[1]), int(match[2] or match[1])
        if last >= MAX_SUBPARTITIONS:  # before a huge range is expanded
            problem = f"expected numbers below {MAX_SUBPARTITIONS:,}"
            raise OptionError.of("subpartitions", text, problem)
        numbers.extend(range(first, last + 1))
    return tuple(numbers)


SUBPARTITIONS = Kind(
    parse=_parse_subpartitions,
    form="numbers and ranges",
    expected="numbers and ranges such as 3,7-9",
)


def format_subpartitions(numbers: Iterable[int]) -> str:
    """Inverse of the parser of :data:`SUBPARTITIONS`, for ascending numbers."""
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


def _parse_pin(text: str) -> Pin:
    """Inverse of ``str(pin)``."""
    match = _PIN.fullmatch(text)
    if match is None:
        raise ValueError
    commit_id, *numbers = match.groups()
    return Pin(commit_id, None if numbers[0] is None else VersionSpan(*map(int, numbers)))


INTERNAL = "nothing; to_spark() alone sets it"
PIN_KIND = Kind(parse=_parse_pin, expected=INTERNAL)


# Keys and bounds ----------------------------------------------------------------------------------


_KEY = re.compile(
    r"(?P<name>.+?)(?:\s+(?P<way>asc|desc)(?:ending)?)?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE | re.DOTALL,
)


def _parse_sort_keys(text: str) -> SortBy:
    """Parse sort keys: ``a, b desc nulls first`` as in SQL, or JSON.

    Names in JSON are taken literally; the order in a JSON pair has the short or the long form.
    """
    if text.lstrip().startswith("["):
        return normalise_sort_by([_with_long_order(key) for key in json.loads(text)])
    keys = []
    for part in text.split(","):
        match = _KEY.fullmatch(part.strip())
        if match is None:
            raise ValueError
        keys.append((match["name"], _order(match["way"], match["nulls"])))
    return normalise_sort_by(keys)


SORT_KEYS = Kind(
    parse=_parse_sort_keys,
    form="sort keys",
    expected='columns such as a, b desc nulls first, or for odd names ["a", ["b", "descending"]]',
    may_be_empty=True,
)


def _parse_combine(text: str) -> dict[str, str]:
    """Parse functions of columns: ``n:sum, price:max``, or a JSON object."""
    if text.lstrip().startswith("{"):
        pairs = json.loads(text, object_pairs_hook=list)
    else:
        parts = [part.rpartition(":") for part in text.split(",")]
        pairs = [(column.strip(), end.strip().lower()) for column, _, end in parts]
    try:
        combine = check_functions(dict(pairs))
    except OptionError:
        raise ValueError from None
    if len(combine) < len(pairs):
        raise ValueError
    return combine


COMBINE = Kind(
    parse=_parse_combine,
    form="functions of columns",
    expected="columns with one function each, such as n:sum, price:max",
    may_be_empty=True,
)


def _parse_bounds(text: str) -> tuple[Any, ...]:
    """Parse bounds from JSON: one list of values per bound; with one key, plain values."""
    parsed = json.loads(text)
    if not isinstance(parsed, list):
        raise ValueError  # noqa: TRY004  of a text, as that of a text that is no JSON
    return tuple(parsed)


BOUNDS = Kind(
    parse=_parse_bounds,
    form="JSON list",
    expected='a JSON list with a list of values per bound, such as [["2024-01-31", 7]]',
    may_be_empty=True,
)


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
