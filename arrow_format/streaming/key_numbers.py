"""Which rows have equal keys, as numbers: whole columns at a time. Pure.

Keys are told apart exactly and not by a hash, whatever their type. A null equals a null, a NaN
every NaN, and -0.0 equals 0.0, at every depth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    boolean_values,
    fixed_width_values,
    text_offsets,
    validity,
)
from arrow_format.arrays.canonical_floats import float_bits
from arrow_format.arrays.numpy_arrays import to_arrow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_MOST_NUMBERS = 1 << 62
"""Numbers of several columns become one by a product, which stays below this."""

_ALL_NUMBERS = 1 << 64
"""A bound that says nothing about numbers of 64 bits."""

Numbers = tuple["NDArray[np.int64]", int]
"""A number for each row, and what all of them are below."""


def key_numbers(columns: Sequence[pa.Array]) -> Numbers:
    """Give each row a number: rows have equal ones if and only if their keys are equal.

    Parameters
    ----------
    columns
        Key columns, one or more, of types that can be hash keys
        (:func:`~arrow_format.keys.spark_hash.check_hashable`), of one row or more; slices are fine.

    Returns
    -------
    tuple
        The number of each row, shape (num_rows,), and a bound that all of them are below. Where
        that is more than 2**63 they may be negative as well.
    """
    return _combined(_numbers(column) for column in columns)


def are_cheap(columns: Sequence[pa.Array]) -> bool:
    """Whether keys are numbered without a table of all that are different."""
    return all(
        not pt.is_nested(column.type)
        and (pt.is_boolean(column.type) or pt.is_floating(column.type) or _is_integer(column.type))
        for column in columns
    )


def renumbered(numbers: NDArray[np.int64]) -> Numbers:
    """Return numbers from 0 on, as many as are different."""
    return _encoded(to_arrow(numbers))


def _combined(parts: Iterable[Numbers]) -> Numbers:
    """One number for the numbers of several columns."""
    whole: Numbers | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        if whole[1] * part[1] >= _MOST_NUMBERS:
            whole, added = renumbered(whole[0]), renumbered(part[0])
        else:
            added = part
        whole = whole[0] * added[1] + added[0], whole[1] * added[1]
    return whole if whole is not None else (np.empty(0, np.int64), 1)


def _encoded(array: pa.Array) -> Numbers:
    encoded = array.dictionary_encode("encode")
    indices = fixed_width_values(encoded.indices, np.int32)
    return indices.astype(np.int64), max(len(encoded.dictionary), 1)


def _numbers(array: pa.Array) -> Numbers:
    type_ = array.type
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64), 1
    if pt.is_struct(type_):
        return _numbers_of_structs(array)
    if pt.is_list(type_):
        return _numbers_of_lists(array)
    if pt.is_boolean(type_):
        return _with_nulls(array, boolean_values(array).astype(np.int64), 2)
    if pt.is_floating(type_):
        return _numbers(float_bits(array))
    return _numbers_of_integers(array) if _is_integer(type_) else _encoded(array)


def _is_integer(type_: pa.DataType) -> bool:
    """Whether values are integers of at most 64 bits, whatever they stand for."""
    return not (pt.is_decimal(type_) or pt.is_string(type_) or pt.is_binary(type_))


def _numbers_of_integers(array: pa.Array) -> Numbers:
    """Values less the least of them, unless that is too far from the greatest."""
    dtype = np.dtype(f"i{array.type.bit_width // 8}")
    values = fixed_width_values(array, dtype)
    valid = validity(array)
    there = values if valid is None else values[valid]
    least = int(there.min())
    width = int(there.max()) - least + 1
    if width >= _MOST_NUMBERS:
        return _encoded(array) if array.null_count else (values, _ALL_NUMBERS)
    # What stands under a null may be anything; it is replaced.
    return _with_nulls(array, values.astype(np.int64) - least, width)


def _with_nulls(array: pa.Array, numbers: NDArray[np.int64], width: int) -> Numbers:
    """Numbers with another one for nulls."""
    valid = validity(array)
    if valid is None:
        return numbers, width
    if width >= _MOST_NUMBERS:
        numbers, width = renumbered(numbers)
    return np.where(valid, numbers, width), width + 1


def _numbers_of_structs(array: pa.Array) -> Numbers:
    children = [array.field(i) for i in range(array.type.num_fields)]
    if not children:
        return _with_nulls(array, np.zeros(len(array), np.int64), 1)
    return _with_nulls(array, *_combined(_numbers(child) for child in children))


def _numbers_of_lists(array: pa.Array) -> Numbers:
    """Take lists for bytes: the numbers of their elements, one after the other."""
    offsets = text_offsets(array).astype(np.int64)
    first, stop = int(offsets[0]), int(offsets[-1])
    elements = array.values.slice(first, stop - first)
    numbers, _ = _numbers(elements) if len(elements) else (np.empty(0, np.int64), 1)
    edges = (offsets - first) * numbers.itemsize
    as_bytes = pa.Array.from_buffers(
        pa.large_binary(),
        len(array),
        [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(numbers))],
    )
    return _with_nulls(array, *_encoded(as_bytes))
