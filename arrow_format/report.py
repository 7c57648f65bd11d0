"""Reports: frozen values that print themselves, for people, and become JSON, for programs."""

from __future__ import annotations

import html
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

_IN_JSON = (bool, int, float, str, type(None))


class Report:
    """A frozen dataclass whose ``str`` is for people, a line for each fact, in a notebook too.

    A character of a name that would change how the lines look is escaped.
    """

    __slots__ = ()

    def _lines(self) -> Iterator[str]:
        """Yield what is shown."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join(map(printable, self._lines()))

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def as_json(self) -> dict[str, Any]:
        """Return the fields, and each property that is a number, a text or a flag, as JSON has it.

        Errors become ``{"error", "message"}``, schemas types by name, durations ISO 8601, arrays
        lists.
        """
        named = inspect.getmembers(type(self), lambda member: isinstance(member, property))
        found = {name: getattr(self, name) for name, _ in named if not name.startswith("_")}
        values = {name: value for name, value in found.items() if isinstance(value, _IN_JSON)}
        return {**builtins_of(self), **values}


def builtins_of(value: object) -> Any:  # noqa: ANN401
    """Return the fields of a value, and all in them, as ``json.dumps`` takes them."""
    from msgspec import to_builtins  # here: the doctor tells who lacks it

    return to_builtins(value, str_keys=True, enc_hook=_plain)


def _plain(value: Any) -> Any:  # noqa: ANN401
    """Return what msgspec does not know as something that it knows."""
    import pyarrow as pa

    if isinstance(value, BaseException):
        return {"error": type(value).__name__, "message": str(value)}
    if isinstance(value, pa.Schema):
        return {field.name: str(field.type) for field in value}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else value.tolist()  # of Arrow or NumPy


def first_of(lines: Iterable[str], most: int) -> Iterator[str]:
    """Yield the first lines, ``most`` at most, and how many more there are."""
    left = iter(lines)
    yield from islice(left, most)
    if more := sum(1 for _ in left):
        yield f"  ... and {more:,} more; JSON has all"


def printable(text: str) -> str:
    """Return ``text`` on one line, with control characters escaped: names may hold any."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode()
        for c in text
    )
