"""Sums and means of integers, decimals and durations: exact, or an error. Pure.

Arrow adds without checking for overflow. A sum is therefore kept in a type that holds the sum of
any number of rows, and is cast to the type of the result at the end.

Source: Spark 4.3, ``Sum`` and ``Average``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow, to_scalar

if TYPE_CHECKING:
    from collections.abc import Callable

Column: TypeAlias = pa.ChunkedArray

MAX_DIGITS = 38
"""Of Spark's decimals."""

SUM_DIGITS = 10
"""Digits that the sum of decimals has more than they."""

_LONG_STATE = pa.decimal128(MAX_DIGITS, 0)
"""Holds the sum of 2**63 integers of 64 bits."""


class DoesNotFitError(Exception):
    """A result, of row ``row``, is out of the range of its type."""

    def __init__(self, row: int, type_: pa.DataType) -> None:
        self.row, self.type = row, type_


def cast_checked(column: Column, type_: pa.DataType) -> Column:
    """Cast numbers; raise :class:`DoesNotFitError` of the first that is out of range."""
    try:
        return column.cast(type_)
    except pa.ArrowInvalid:
        pass
    first, end = 0, len(column)
    while end - first > 1:
        middle = (first + end) // 2
        try:
            column.slice(first, middle - first).cast(type_)
            first = middle
        except pa.ArrowInvalid:
            end = middle
    raise DoesNotFitError(first, type_)


def sum_state(type_: pa.DataType) -> pa.DataType | None:
    """Return the type that holds an exact sum of any number of rows; None: not summed exactly."""
    if pt.is_decimal(type_):
        return pa.decimal256(76, type_.scale)
    is_exact = pt.is_integer(type_) or pt.is_boolean(type_) or pt.is_duration(type_)
    return _LONG_STATE if is_exact else None


def addable(column: Column) -> Column:
    """Return a column as integers or decimals whose sum cannot overflow in PyArrow."""
    type_ = column.type
    if pt.is_duration(type_):
        return addable(column.cast(pa.int64()))
    is_decimal = pt.is_decimal(type_)
    wider = pa.decimal256(76, type_.scale) if is_decimal else _LONG_STATE
    if is_decimal and not pt.is_decimal128(type_):
        return column.cast(wider)
    ends = [end for end in pc.min_max(column).as_py().values() if end is not None]
    bound = 1 + max((abs(int(end)) for end in ends), default=0)
    if is_decimal:
        fits = bound * len(column) * 10 ** max(type_.scale, 0) < 1 << 127
    else:
        fits = bound * len(column) < 1 << 63
    return column if fits else column.cast(wider)


def sum_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type that Spark gives sums of a column of a type; None: it has no sum."""
    if pt.is_floating(type_) or pt.is_null(type_):
        return pa.float64()
    if pt.is_decimal(type_):
        return pa.decimal128(min(type_.precision + SUM_DIGITS, MAX_DIGITS), type_.scale)
    if pt.is_duration(type_):
        return type_
    return None if sum_state(type_) is None else pa.int64()


def exact_sum(type_: pa.DataType, total: Column) -> Column:
    """Return sums of a column of a type, in its :func:`sum_type`; of no floats."""
    if pt.is_duration(type_):
        return cast_checked(total, pa.int64()).cast(type_)
    return cast_checked(total, sum_type(type_))


def exact_mean(type_: pa.DataType, total: Column, count: Column) -> Column:
    """Return the means of decimals or durations, rounded half up as Spark does."""
    if pt.is_duration(type_):
        return _rounded_quotient(total, count, 0).cast(pa.int64()).cast(type_)
    scale = min(type_.scale + 4, MAX_DIGITS)
    # As in Spark, a sum that does not fit has no mean.
    total = cast_checked(total, pa.decimal128(MAX_DIGITS, type_.scale))
    unscaled = pa.decimal128(MAX_DIGITS, 0)
    whole = map_chunks(lambda chunk: chunk.view(unscaled), total, unscaled)
    means = _rounded_quotient(whole, count, scale - type_.scale)
    scaled = pa.decimal256(76, scale)
    means = map_chunks(lambda chunk: chunk.view(scaled), means, scaled)
    return cast_checked(means, pa.decimal128(min(type_.precision + 4, MAX_DIGITS), scale))


def _rounded_quotient(total: Column, count: Column, digits: int) -> Column:
    """Return ``total * 10**digits / count`` as whole numbers, half rounded away from zero.

    ``total`` is decimal128(38, 0); ``count`` is int64, of any value where ``total`` is null.
    """
    is_zero = pc.equal(count, to_scalar(0, pa.int64()))
    counts = _wide(pc.if_else(is_zero, to_scalar(1, pa.int64()), count), 19)
    dividend = pc.multiply(_wide(pc.abs(total), 38), _whole(10**digits, 5))  # 44 digits at most
    doubled = pc.add(pc.multiply(dividend, _whole(2, 1)), counts)
    doubled_counts = _wide(pc.multiply(counts, _whole(2, 1)), 20)
    whole = _wide(pc.floor(pc.divide(_wide(doubled, 45), doubled_counts)), 76)
    return pc.if_else(pc.less(total, _whole(0, 1)), pc.negate(whole), whole)


def _wide(numbers: Column, digits: int) -> Column:
    """Whole numbers as a type of as few digits as hold them, which Arrow's arithmetic needs."""
    return numbers.cast(pa.decimal256(digits, 0))


def _whole(number: int, digits: int) -> pa.Scalar:
    wide = to_arrow(np.array([number], np.int64)).cast(pa.decimal256(max(digits, 19), 0))
    return wide.cast(pa.decimal256(digits, 0))[0]


def map_chunks(
    function: Callable[[pa.Array], pa.Array], column: Column, type_: pa.DataType | None = None
) -> Column:
    """Apply a function to each chunk, or to an empty one where there is none."""
    chunks = column.chunks if column.num_chunks else [pa.nulls(0, column.type)]
    return pa.chunked_array([function(chunk) for chunk in chunks], type_)
