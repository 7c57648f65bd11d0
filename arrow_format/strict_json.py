"""Parses JSON in files strictly: one object that every reader reads alike, or a ValueError.

Alone, since log, index and leases parse with it and share nothing else.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.model import FORMAT_VERSION, MAX_INTEGER


def parse_object(text: bytes) -> dict[str, Any]:
    """Parse UTF-8 ``text`` as one JSON object.

    Raises ValueError if it is not an object, repeats a key, has NaN or an infinity, or is nested
    too deeply.
    """
    try:
        value = json.loads(
            text.decode(), object_pairs_hook=_without_repetition, parse_constant=_refuse
        )
    except RecursionError:
        msg = "nested too deeply"
        raise ValueError(msg) from None
    if not isinstance(value, dict):
        msg = f"expected an object, got {type(value).__name__}"
        raise ValueError(msg)  # noqa: TRY004  of the text, not of an argument
    return value


def natural(value: object, largest: int = MAX_INTEGER) -> int:
    """Return ``value`` if it is a whole number from 0 to ``largest``; raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        shown = value if isinstance(value, int) and abs(value) < 1 << 64 else type(value).__name__
        msg = f"{shown} is not a whole number from 0 to {largest}"
        raise ValueError(msg)
    return value


def text(value: object) -> str:
    """Return ``value`` if it is a string; raises ValueError."""
    if not isinstance(value, str):
        msg = f"expected a string, got {type(value).__name__}"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    return value


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        msg = "an object repeats a key"
        raise ValueError(msg)
    return value


def _refuse(constant: str) -> NoReturn:
    msg = f"{constant} is not a JSON number"
    raise ValueError(msg)


def check_format_version(version: int, what: str) -> None:
    """Raise FormatVersionError if this release is too old, CorruptShuffleError below version 1."""
    if version < 1:
        msg = f"{what} has format version {version}; the first is 1"
        raise CorruptShuffleError(msg)
    if version > FORMAT_VERSION:
        msg = (
            f"{what} has format version {version}, this arrow-shuffle reads up to "
            f"{FORMAT_VERSION}; read it with a newer one"
        )
        raise FormatVersionError(msg)
