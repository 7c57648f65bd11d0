"""Values of Arrow as text for people, of every type that is stored, also where Python has none."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as pt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_NO_VALUE = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""What PyArrow raises where Python has no such value: a year 10000, an unknown time zone, text that
is no UTF-8."""


def value_text(value: pa.Scalar, max_length: int) -> str:
    """Return a value as text; lists and the like as Python writes them.

    Parameters
    ----------
    value
        Of any type that is stored.
    max_length
        Characters that are of interest: what is longer ends somewhere behind them. So of a list of
        millions only the first values are looked at.
    """
    text = ""
    for piece in _pieces(value, max_length, is_inner=False):
        text += piece
        if len(text) > max_length:
            break
    return text


def _pieces(value: Any, most: int, *, is_inner: bool) -> Iterator[str]:  # noqa: ANN401
    """Yield the text of a value from left to right, as far as somebody asks for it."""
    type_ = value.type
    if not value.is_valid:
        yield "None" if is_inner else "null"
    elif isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        yield from _pieces(value.value, most, is_inner=is_inner)
    elif isinstance(value, pa.ListScalar):
        of_item = _entry if pt.is_map(type_) else partial(_pieces, is_inner=True)
        items = (of_item(item, most) for item in _items(value.values))
        yield from _joined("[", items, "]")
    elif isinstance(value, pa.StructScalar):
        fields = (_field(value, number, most) for number in range(type_.num_fields))
        yield from _joined("{", fields, "}")
    else:
        yield _plain_text(value, most, is_inner=is_inner)


def _items(values: pa.Array) -> Iterator[pa.Scalar]:
    return (values[number] for number in range(len(values)))


def _entry(entry: Any, most: int) -> Iterator[str]:  # noqa: ANN401
    sides = (_pieces(entry[side], most, is_inner=True) for side in (0, 1))
    return _joined("(", sides, ")")


def _field(value: Any, number: int, most: int) -> Iterator[str]:  # noqa: ANN401
    yield f"{value.type.field(number).name!r}: "
    yield from _pieces(value[number], most, is_inner=True)


def _joined(start: str, items: Iterable[Iterable[str]], end: str) -> Iterator[str]:
    yield start
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item
    yield end


def _plain_text(value: Any, most: int, *, is_inner: bool) -> str:  # noqa: ANN401
    type_ = value.type
    if pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_):
        text = _bytes(value, 4 * (most + 1)).decode(errors="replace")
        return repr(text) if is_inner else text
    if pt.is_temporal(type_) and not (pt.is_duration(type_) or pt.is_interval(type_)):
        return _time_text(value)
    if isinstance(value, pa.BinaryScalar):
        return str(_bytes(value, most + 1))
    try:
        return str(value.as_py())
    except _NO_VALUE:
        return f"{value.value} {type_.unit}" if pt.is_duration(type_) else f"<{type_}>"


def _bytes(value: Any, most: int) -> bytes:  # noqa: ANN401
    return bytes(value.as_buffer()[:most])


def _time_text(value: Any) -> str:  # noqa: ANN401
    """Return a date, time or timestamp as Arrow writes it, which knows more of them than Python."""
    type_ = value.type
    try:
        return str(value.cast(pa.string()).as_py())
    except _NO_VALUE:
        pass
    try:
        # The time zone is not known here: as an instant.
        return str(value.cast(pa.timestamp(type_.unit, "UTC")).cast(pa.string()).as_py())
    except _NO_VALUE:
        return f"{value.value} {type_}"
