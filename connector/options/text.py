"""Values of options as text: what is in them, or an error that names the option. Pure."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from arrow_format.errors import OptionError

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
