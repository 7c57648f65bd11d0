"""Parses the JSON that stands in files: one object, read the same by everyone, or a ValueError."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.model import FORMAT_VERSION, MAX_INTEGER


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the object that UTF-8 ``text`` is.

    Raises
    ------
    ValueError
        It is none, has a key twice or a number that is none, or is nested too deeply.
    """
    try:
        value = json.loads(
            text.decode(), object_pairs_hook=_without_repetition, parse_constant=_refuse
        )
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None
    if not isinstance(value, dict):
        msg = f"a {type(value).__name__}, not an object"
        raise ValueError(msg)  # noqa: TRY004  of the text, not of an argument
    return value


def natural(value: object, most: int = MAX_INTEGER) -> int:
    """Return ``value`` if it is a whole number from 0 to ``most``.

    Raises
    ------
    ValueError
        It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        shown = value if isinstance(value, int) and abs(value) < 1 << 64 else type(value).__name__
        msg = f"{shown} is not a whole number from 0 to {most}"
        raise ValueError(msg)
    return value


def text(value: object) -> str:
    """Return ``value`` if it is text.

    Raises
    ------
    ValueError
        It is not.
    """
    if not isinstance(value, str):
        msg = f"a {type(value).__name__} is no text"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        msg = "a key stands twice in an object"
        raise ValueError(msg)
    return value


def _refuse(constant: str) -> NoReturn:
    msg = f"{constant} is no number"
    raise ValueError(msg)


def check_format_version(found: int, what: str) -> None:
    """Check that this release reads a format version.

    Raises
    ------
    FormatVersionError
        It is newer.
    CorruptShuffleError
        There never was one of that number.
    """
    if found < 1:
        msg = f"{what} has format version {found}; the first is 1"
        raise CorruptShuffleError(msg)
    if found > FORMAT_VERSION:
        msg = (
            f"{what} has format version {found}, this arrow-shuffle reads up to {FORMAT_VERSION}; "
            "read it with a newer one"
        )
        raise FormatVersionError(msg)
