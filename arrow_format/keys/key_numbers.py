"""A number for each row, equal exactly for rows of one key. Pure.

Keys are equal as partitioners put them together: a null equals a null, a NaN every NaN, and -0.0
equals 0.0, inside of nested values too.
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
    to_arrow,
    validity,
)
from arrow_format.arrays.conversion import float_bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_MAX_PRODUCT = 1 << 62
"""Numbers of several columns are combined by a product, which stays below this."""

_NO_BOUND = 1 << 64
"""A bound that does not limit numbers of 64 bits."""

Numbers = tuple["NDArray[np.int64]", int]
"""A number for each row, equal for equal keys only, and a bound that all of them are below; where
that is more than 2**63, they may be negative."""


def key_numbers(columns: Sequence[pa.Array]) -> Numbers:
    """Return the number of each row's key; maps are equal that have equal entries in order."""
    return _combined(_numbers(column) for column in columns)


def is_integer(type_: pa.DataType) -> bool:
    """Whether values are integers of at most 64 bits, whatever they represent."""
    return not (
        pt.is_decimal(type_)
        or pt.is_string(type_)
        or pt.is_binary(type_)
        or pt.is_fixed_size_binary(type_)
    )


def _combined(parts: Iterable[Numbers]) -> Numbers:
    """Return one number for the numbers of several columns."""
    whole: Numbers | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        added = part
        if whole[1] * added[1] >= _MAX_PRODUCT:
            whole, added = encoded(to_arrow(whole[0])), encoded(to_arrow(added[0]))
        whole = whole[0] * added[1] + added[0], whole[1] * added[1]
    return whole if whole is not None else (np.empty(0, np.int64), 1)


def encoded(array: pa.Array) -> Numbers:
    """Return numbers from 0 on, as many as there are distinct values."""
    if pt.is_decimal32(array.type) or pt.is_decimal64(array.type):  # Arrow does not encode them
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    dictionary = array.dictionary_encode("encode")
    indices = fixed_width_values(dictionary.indices, np.int32)
    return indices.astype(np.int64), max(len(dictionary.dictionary), 1)


def _numbers(array: pa.Array) -> Numbers:
    type_ = array.type
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64), 1
    if pt.is_struct(type_):
        return _numbers_of_structs(array)
    if pt.is_list(type_) or pt.is_map(type_) or pt.is_fixed_size_list(type_):
        return _numbers_of_lists(array)
    if pt.is_boolean(type_):
        return _with_nulls(array, boolean_values(array).astype(np.int64), 2)
    if pt.is_floating(type_):
        return _numbers(float_bits(array))
    if pt.is_interval(type_):
        return encoded(array.view(pa.binary(type_.byte_width)))
    return _numbers_of_integers(array) if is_integer(type_) else encoded(array)


def _numbers_of_integers(array: pa.Array) -> Numbers:
    """Return values less their minimum, unless that is too far from the maximum."""
    dtype = np.dtype(f"i{array.type.bit_width // 8}")
    values = fixed_width_values(array, dtype)
    valid = validity(array)
    valid_values = values if valid is None else values[valid]
    least = int(valid_values.min())
    bound = int(valid_values.max()) - least + 1
    if bound >= _MAX_PRODUCT:
        return encoded(array) if array.null_count else (values, _NO_BOUND)
    # The value under a null may be anything; it is replaced.
    return _with_nulls(array, np.subtract(values, least, dtype=np.int64), bound)


def _with_nulls(array: pa.Array, numbers: NDArray[np.int64], bound: int) -> Numbers:
    """Give nulls a number of their own."""
    valid = validity(array)
    if valid is None:
        return numbers, bound
    if bound >= _MAX_PRODUCT:
        numbers, bound = encoded(to_arrow(numbers))
    return np.where(valid, numbers, bound), bound + 1


def _numbers_of_structs(array: pa.Array) -> Numbers:
    children = [array.field(i) for i in range(array.type.num_fields)]
    if not children:
        return _with_nulls(array, np.zeros(len(array), np.int64), 1)
    return _with_nulls(array, *_combined(_numbers(child) for child in children))


def _numbers_of_lists(array: pa.Array) -> Numbers:
    """Encode lists as bytes: the numbers of their elements, one after the other."""
    if pt.is_fixed_size_list(array.type):
        offsets = (array.offset + np.arange(len(array) + 1)) * array.type.list_size
    else:
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
    return _with_nulls(array, *encoded(as_bytes))
