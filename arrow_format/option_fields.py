"""Fields of options: beside each, what values it may have, and how they are written as text.

What a field does is said once, in the docstring of its class. Checks, the options of Spark's data
source and their reference are made of both: a new option is a new field.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a field may have."""

    check: Callable[[str, Any], Any] = lambda _, value: value
    """Returns the value to keep, of the field's name and a value; raises OptionError."""
    parse: Callable[[str], Any] = str
    """Returns the value of a text, which is checked then; raises ValueError or OptionError."""
    form: str = "text"
    """What the reference of the options calls its text."""
    expected: str = ""
    """What is expected of a text, for messages; where that is empty, the errors say it."""
    may_be_empty: bool = False
    """Whether an empty text counts as not given; elsewhere it is an error."""

    def of_text(self, name: str, text: str) -> Any:  # noqa: ANN401
        """Return the value of a text; raises OptionError with ``name`` and ``text``."""
        expected = self.expected and f"expected {self.expected}"
        try:
            value = self.parse(text)
        except ValueError:
            raise OptionError.of(name, text, expected) from None
        except OptionError as error:
            raise OptionError.of(name, text, error.problem) from None
        try:
            return self.check(name, value)
        except OptionError as error:
            raise OptionError.of(name, text, expected or error.problem) from None


def option(default: T, kind: Kind, name: str | None = None, *, only: str = "") -> T:
    """Return a field of a dataclass of options, which :func:`check_fields` checks.

    Parameters
    ----------
    default
        The default. If it is None, so may be the value, whatever the kind.
    kind
        What other values it may have.
    name
        What Spark's users call it; when None, the field's name in camel case. The field is none of
        their options where it is empty.
    only
        Where it is an option, if not in batches and streams: ``batch``, or ``to_spark``, which
        no user sets.
    """
    return field(default=default, metadata={"kind": kind, "name": name, "only": only})


def check_fields(options: Any) -> None:  # noqa: ANN401  a dataclass
    """Check the fields of options, and keep what the checks return; raises OptionError."""
    for one in fields(options):
        value = getattr(options, one.name)
        if "kind" in one.metadata and not (value is None and one.default is None):
            object.__setattr__(options, one.name, one.metadata["kind"].check(one.name, value))


# Texts --------------------------------------------------------------------------------------------


# At most 18 digits, which 64 bits hold: Python refuses to convert thousands of digits.
_BYTES = re.compile(r"(\d{1,18})\s*([kmgt]?)b?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Parse a number of bytes, such as ``64m``; raises ValueError."""
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError
    return int(match[1]) << {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}[match[2].lower()]


def parse_flag(text: str) -> bool:
    """Parse ``true`` or ``false``; raises ValueError."""
    return bool(("false", "true").index(text.lower()))


def parse_names(text: str) -> tuple[Any, ...]:
    """Parse names: ``a,b``, or a JSON list where a name has a comma; raises ValueError."""
    if text.startswith("["):
        return tuple(json.loads(text))
    return tuple(part.strip() for part in text.split(","))


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
_DURATION = re.compile(rf"(\d{{1,9}}) *({'|'.join(_UNITS)})")


def parse_duration(text: str) -> timedelta:
    """Parse a duration: a whole number and ``ms``, ``s``, ``m``, ``h`` or ``d``.

    Or units as Flink spells them, ``min`` and the like, singular or plural. Raises ValueError.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


DURATION = Kind(
    parse=parse_duration,
    form="duration",
    expected="a whole number with a unit, as 30m, 1h, 7d or 0s",
)
