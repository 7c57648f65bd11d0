"""Lengths of time as people write them: ``1h``, ``30m``, ``2 min``, ``500ms``. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

from arrow_format.errors import OptionError

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
