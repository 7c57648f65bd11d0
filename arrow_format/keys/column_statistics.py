"""Statistics of columns from their rows, or from those of smaller units; pure.

Rows, or units, are given in groups that follow each other: the chunks of a region, the chunks of a
file. All groups of a column are reduced together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    binary_array,
    boolean_values,
    fixed_width_values,
    to_arrow,
    validity,
)
from arrow_format.arrays.selection import take
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from arrow_format.model import Int64Array

MOST_CHARACTERS = 16
"""Characters of a text, or bytes of a binary, that a bound keeps. Source: Iceberg."""


def statistics_of_rows(
    rows: pa.RecordBatch, names: Iterable[str], starts: Int64Array
) -> dict[str, ColumnStatistics]:
    """Return the statistics of columns of a batch in groups of rows; texts are not cut.

    ``starts`` has the first row of each group, ascending from 0. No group is empty.
    """
    num_rows = np.diff(starts, append=rows.num_rows)
    return {
        name: ColumnStatistics(
            *_extremes(rows.column(name), starts), _null_counts(rows.column(name), starts), num_rows
        )
        for name in names
    }


def combined(statistics: ColumnStatistics, starts: Int64Array) -> ColumnStatistics:
    """Return the statistics of groups of units; ``starts`` as for :func:`statistics_of_rows`."""
    if len(starts) == len(statistics):
        return statistics
    null_count, num_rows = statistics.null_count, statistics.num_rows
    is_known = np.minimum.reduceat(null_count, starts) > UNKNOWN
    # A unit with values but without a bound leaves its group without one.
    has_values = null_count < num_rows
    low, high = (
        _where(
            _extremes(bounds, starts)[side],
            is_known & ~np.logical_or.reduceat(has_values & ~_is_there(bounds), starts),
        )
        for side, bounds in enumerate((statistics.minimum, statistics.maximum))
    )
    return ColumnStatistics(
        low,
        high,
        np.where(is_known, np.add.reduceat(null_count, starts), UNKNOWN),
        np.add.reduceat(num_rows, starts),
    )


def with_short_bounds(statistics: ColumnStatistics) -> ColumnStatistics:
    """Cut bounds that are texts or binaries; others are short enough.

    A lower bound is cut to :data:`MOST_CHARACTERS`, or before the first byte that is not UTF-8. Of
    an upper bound that is cut, the last character that can be is replaced by the next one. Where
    there is none, there is no bound.
    """
    type_ = statistics.minimum.type
    if not (pt.is_string(type_) or pt.is_binary(type_)):
        return statistics
    cut = _cut_text if pt.is_string(type_) else _cut_binary
    return ColumnStatistics(
        _mapped(statistics.minimum, lambda value: cut(value)[0]),
        _mapped(statistics.maximum, lambda value: _at_least(*cut(value), type_)),
        statistics.null_count,
        statistics.num_rows,
    )


# Extremes of groups -------------------------------------------------------------------------------


def _null_counts(column: pa.Array, starts: Int64Array) -> Int64Array:
    valid = validity(column)
    if valid is None:
        return np.zeros(len(starts), np.int64)
    return np.add.reduceat(~valid, starts, dtype=np.int64)


def _extremes(column: pa.Array, starts: Int64Array) -> tuple[pa.Array, pa.Array]:
    """Smallest and largest value of each group in Spark's order; null where all are."""
    numbers = _numbers(column)
    if numbers is None:
        return _extremes_of_slices(column, starts)
    values, as_array = numbers
    valid = validity(column)
    with np.errstate(invalid="ignore"):  # signalling NaN
        if valid is None:
            low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
        else:
            least, greatest = _limits(values.dtype)
            low = np.minimum.reduceat(np.where(valid, values, greatest), starts)
            high = np.maximum.reduceat(np.where(valid, values, least), starts)
    # A NaN makes both bounds NaN, but it is the largest value.
    if values.dtype.kind == "f" and np.isnan(high).any():
        is_number = ~np.isnan(values) if valid is None else ~np.isnan(values) & valid
        low = np.minimum.reduceat(np.where(is_number, values, np.inf), starts)
        low[~np.logical_or.reduceat(is_number, starts)] = np.nan
    is_null = None if valid is None else ~np.logical_or.reduceat(valid, starts)
    return as_array(low, is_null), as_array(high, is_null)


_AsArray = Callable[[Any, Any], pa.Array]
"""Makes an array of a column's type from values, null where a mask is true."""


def _numbers(column: pa.Array) -> tuple[NDArray[Any], _AsArray] | None:
    """Values of a column as numbers of the same order, if they have 64 bits at most."""
    type_ = column.type
    if pt.is_boolean(type_):
        return boolean_values(column), lambda values, nulls: to_arrow(values.view(np.bool_), nulls)
    if pt.is_decimal128(type_):
        return _small_decimals(column)
    if pt.is_decimal256(type_) or pt.is_fixed_size_binary(type_) or _is_text(type_):
        return None
    kind = "f" if pt.is_floating(type_) else "u" if pt.is_unsigned_integer(type_) else "i"
    values = fixed_width_values(column, f"{kind}{type_.bit_width // 8}")

    def as_array(values: NDArray[Any], nulls: NDArray[np.bool_] | None) -> pa.Array:
        if kind == "f":
            values = values + values.dtype.type(0)  # -0.0 becomes 0.0
        return to_arrow(values, nulls).view(type_)

    return values, as_array


def _small_decimals(column: pa.Array) -> tuple[NDArray[Any], _AsArray] | None:
    """Return the low words of 128-bit decimals, if the high words say no more than the sign."""
    words = fixed_width_values(column, np.dtype(("<i8", 2)))
    low, high = words[:, 0], words[:, 1]
    if column.null_count or high.view(np.uint64).max(initial=0):
        fits = high == low >> 63
        if column.null_count:
            fits |= ~validity(column)  # type: ignore[operator]
        if not fits.all():
            return None
    else:
        low = low.view(np.uint64)

    def as_array(values: NDArray[Any], nulls: NDArray[np.bool_] | None) -> pa.Array:
        low = values.view(np.int64)
        high = low >> 63 if values.dtype.kind == "i" else np.zeros_like(low)
        octets = pa.py_buffer(np.stack([low, high], axis=1))
        bitmap = None if nulls is None else to_arrow(~nulls).buffers()[1]
        return pa.Array.from_buffers(column.type, len(low), [bitmap, octets])

    return low, as_array


def _limits(dtype: np.dtype[Any]) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _extremes_of_slices(column: pa.Array, starts: Int64Array) -> tuple[pa.Array, pa.Array]:
    """As :func:`_extremes`, of texts and wide decimals, group by group."""
    ends = [*starts[1:].tolist(), len(column)]
    groups = [
        pc.min_max(column.slice(start, end - start))
        for start, end in zip(starts.tolist(), ends, strict=True)
    ]
    low, high = (
        pa.concat_arrays([pa.repeat(group[side], 1) for group in groups]) for side in ("min", "max")
    )
    return low, high


def _is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_) or pt.is_binary(type_))


# Short bounds -------------------------------------------------------------------------------------


def _mapped(bounds: pa.Array, shorten: Callable[[bytes], bytes | None]) -> pa.Array:
    """Bounds of bytes, each replaced; null where there is none."""
    values = [
        None if value is None else shorten(value) for value in bounds.cast(pa.binary()).to_pylist()
    ]
    nulls = np.array([value is None for value in values], np.bool_)
    plain = binary_array([value or b"" for value in values], bounds.type)
    return _where(plain, ~nulls)


def _cut_binary(value: bytes) -> tuple[bytes, bool]:
    """Return the bytes that stay, and whether some do not."""
    return value[:MOST_CHARACTERS], len(value) > MOST_CHARACTERS


def _cut_text(value: bytes) -> tuple[bytes, bool]:
    # Characters of at most four bytes; a character cut in two makes the error that ends the rest.
    try:
        text = value[: 4 * MOST_CHARACTERS].decode()
    except UnicodeDecodeError as error:
        text = value[: error.start].decode()
    kept = text[:MOST_CHARACTERS].encode()
    return kept, len(kept) < len(value)


def _at_least(kept: bytes, is_cut: bool, type_: pa.DataType) -> bytes | None:
    """Return a short value no less than any that begins with ``kept``; None if there is none."""
    if not is_cut:
        return kept
    return _next_text(kept.decode()) if pt.is_string(type_) else _next_binary(kept)


def _next_text(text: str) -> bytes | None:
    while text:
        number = ord(text[-1]) + 1
        if number <= 0x10FFFF:
            following = chr(0xE000 if number == 0xD800 else number)  # behind the surrogates
            return (text[:-1] + following).encode()
        text = text[:-1]
    return None


def _next_binary(value: bytes) -> bytes | None:
    value = value.rstrip(b"\xff")
    return value[:-1] + bytes([value[-1] + 1]) if value else None


def _is_there(values: pa.Array) -> NDArray[np.bool_]:
    valid = validity(values)
    return np.ones(len(values), np.bool_) if valid is None else valid


def _where(values: pa.Array, condition: NDArray[np.bool_]) -> pa.Array:
    """Return values, null where the condition is false."""
    if condition.all():
        return values
    numbers = np.arange(len(values), dtype=np.int64)
    return take(values, to_arrow(numbers, ~condition))
