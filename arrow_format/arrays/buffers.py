"""Buffers of Arrow arrays as NumPy arrays and back, without pandas.

PyArrow's own ``to_numpy`` and ``pa.array`` import pandas, which costs each executor 0.3 s.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import DTypeLike, NDArray


_MAX_OFFSET = np.iinfo(np.int32).max

MIN_OCTETS = 8
"""Bytes :func:`text_octets` returns at least, so that a whole word can always be read."""


def fixed_width_values(array: pa.Array, dtype: DTypeLike) -> NDArray[Any]:
    """Return the values of a fixed-width array, garbage under nulls included, without a copy."""
    dtype = np.dtype(dtype)
    if len(array) == 0:
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def boolean_values(array: pa.Array) -> NDArray[np.uint8]:
    """Return the values of a boolean array as 0 and 1, garbage under nulls included."""
    return _bits(array, 1)


def validity(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return which rows are not null; None when all are."""
    if array.null_count == 0:
        return None
    if array.null_count == len(array):  # an array of type null has no bitmap
        return np.zeros(len(array), np.bool_)
    return _bits(array, 0).view(np.bool_)


def text_offsets(array: pa.Array, dtype: DTypeLike = np.int32) -> NDArray[Any]:
    """Return the num_rows + 1 offsets of strings or lists; ``dtype`` int64 for large types."""
    dtype = np.dtype(dtype)
    if len(array) == 0:
        return np.zeros(1, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array) + 1, dtype.itemsize * array.offset)


def text_octets(array: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes that :func:`text_offsets` point into, padded to :data:`MIN_OCTETS`."""
    content = array.buffers()[2]
    octets = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    if len(octets) < MIN_OCTETS:
        return np.append(octets, np.zeros(MIN_OCTETS, np.uint8))
    return octets


def boolean_bits(array: pa.Array) -> NDArray[np.uint8]:
    """Return the bitmap of a boolean array from its first row on, garbage under nulls included.

    Bitmaps here have ceil(num_rows / 8) bytes, the lowest bit of the first is the first row. The
    bits behind the last row are undefined, unless stated.
    """
    return _bitmap(array, 1)


def validity_bits(array: pa.Array) -> NDArray[np.uint8] | None:
    """Return the bitmap of the rows that are not null; None when all are."""
    if array.null_count == 0:
        return None
    if array.null_count == len(array):  # an array of type null has no bitmap
        return np.zeros(-(-len(array) // 8), np.uint8)
    return _bitmap(array, 0)


def run_of_bits(bitmap: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint8]:
    """Return the bitmap of rows ``[start, stop)`` of a bitmap, zero behind the last row."""
    run = _moved(bitmap, start, stop - start)
    spare = len(run) * 8 - (stop - start)
    if spare:
        run = run.copy()
        run[-1] &= 0xFF >> spare
    return run


def all_set(run: NDArray[np.uint8], num_rows: int) -> bool:
    """Whether all rows are set in a bitmap that is zero behind the last row."""
    whole = num_rows // 8
    return bool((run[:whole] == 0xFF).all()) and (
        num_rows % 8 == 0 or int(run[whole]) == (1 << num_rows % 8) - 1
    )


def _bitmap(array: pa.Array, buffer: int) -> NDArray[np.uint8]:
    if len(array) == 0:
        return np.empty(0, np.uint8)
    return _moved(np.frombuffer(array.buffers()[buffer], np.uint8), array.offset, len(array))


def _moved(bitmap: NDArray[np.uint8], start: int, num_rows: int) -> NDArray[np.uint8]:
    """Bitmap from bit ``start`` of another; no copy where a byte begins there."""
    first, shift = divmod(start, 8)
    octets = bitmap[first : -(-(start + num_rows) // 8)]
    if not shift:
        return octets
    moved = np.right_shift(octets, np.uint8(shift))
    moved[:-1] |= np.left_shift(octets[1:], np.uint8(8 - shift))
    return moved[: -(-num_rows // 8)]


def _bits(array: pa.Array, buffer: int) -> NDArray[np.uint8]:
    if len(array) == 0:
        return np.empty(0, np.uint8)
    first, skip = divmod(array.offset, 8)
    bitmap = np.frombuffer(array.buffers()[buffer], np.uint8)[first:]
    return np.unpackbits(bitmap, count=skip + len(array), bitorder="little")[skip:]


_BOOLEAN = pa.bool_()
_ARROW_TYPES = {type_: pa.from_numpy_dtype(type_) for type_ in map(np.dtype, "?bhilBHILefd")}
_NUMPY_TYPES = {type_: of_numpy for of_numpy, type_ in _ARROW_TYPES.items()}


def to_arrow(values: NDArray[Any], mask: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers or booleans as an array of their type, null where the mask is true.

    Contiguous numbers are not copied: the array changes with them.
    """
    validity, null_count = None, 0
    if mask is not None:
        validity, null_count = _packed_bits(~mask), int(np.count_nonzero(mask))
    data = (
        _packed_bits(values)
        if values.dtype == np.bool_
        else pa.py_buffer(np.ascontiguousarray(values))
    )
    return pa.Array.from_buffers(
        _ARROW_TYPES[values.dtype], len(values), [validity, data], null_count
    )


def to_scalar(value: float, type_: pa.DataType) -> pa.Scalar:
    """Return a number, or a boolean of 0 or 1, as a scalar of a type."""
    return to_arrow(np.array([value], _NUMPY_TYPES[type_]))[0]


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """Return the values of an array; numbers are not copied, nulls raise ArrowInvalid."""
    if array.null_count:
        msg = f"{array.null_count} of {len(array)} values are null; expected none"
        raise pa.ArrowInvalid(msg)
    if array.type == _BOOLEAN:
        return boolean_values(array).view(np.bool_)
    return np.from_dlpack(array)


def text_array(values: Iterable[str]) -> pa.StringArray:
    """Return texts as an array."""
    return binary_array([value.encode() for value in values], pa.string())


def binary_array(values: Sequence[bytes], type_: pa.DataType) -> pa.Array:
    """Return values of bytes as an array of a type with 32-bit offsets."""
    offsets = offsets_of(len(value) for value in values)
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(type_, len(values), [None, offsets.buffers()[1], data], 0)


def list_array(lengths: Iterable[int], items: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return lists, or maps, of these lengths as an array; ``items`` has all of theirs."""
    offsets = offsets_of(lengths)
    buffers = [None, offsets.buffers()[1]]
    return pa.Array.from_buffers(type_, len(offsets) - 1, buffers, 0, children=[items])


def offsets_of(lengths: Iterable[int]) -> pa.Int32Array:
    """Return where values of these lengths begin, and the last one ends."""
    ends = [*accumulate(lengths, initial=0)]
    if ends[-1] > _MAX_OFFSET:
        msg = f"{ends[-1]} bytes or items are more than an array holds"
        raise pa.ArrowCapacityError(msg)
    return to_arrow(np.array(ends, np.int32))


def no_rows(type_: pa.DataType) -> pa.Array:
    """Return an empty array."""
    return pa.nulls(0, type_)


def _packed_bits(values: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values, bitorder="little"))
