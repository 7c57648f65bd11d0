"""Values of options as text: what is in them, or an error that names the option. Pure."""

from __future__ import annotations

import re

from arrow_format.errors import OptionError

# No number has more digits than 64 bits hold: Python refuses to read those of thousands.
_BYTES = re.compile(r"(\d{1,18})\s*([kmgt]?)b?", re.IGNORECASE)


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
