"""The buffers of Arrow arrays as NumPy arrays, without a copy where there is none to make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import DTypeLike, NDArray

OCTETS_AT_LEAST = 8
"""Bytes that the content of a text array has, so that a whole word can always be read from it."""


def fixed_width_values(array: pa.Array, dtype: DTypeLike) -> NDArray[Any]:
    """Return the values of a fixed-width array, garbage under nulls included; shape (num_rows,)."""
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


def text_offsets(array: pa.Array) -> NDArray[np.int32]:
    """Return where strings begin and end, shape (num_rows + 1,)."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def text_octets(array: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes that strings lie in, at least :data:`OCTETS_AT_LEAST` of them."""
    content = array.buffers()[2]
    octets = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    if len(octets) < OCTETS_AT_LEAST:
        return np.append(octets, np.zeros(OCTETS_AT_LEAST, np.uint8))
    return octets


def boolean_bits(array: pa.Array) -> NDArray[np.uint8]:
    """Return the bitmap of a boolean array from its first row on, garbage under nulls included.

    Here and in :func:`validity_bits` rows are bits from the lowest of the first byte on, shape
    (ceil(num_rows / 8),); what stands in the last byte behind the last row is anything.
    """
    return _bitmap(array, 1)


def validity_bits(array: pa.Array) -> NDArray[np.uint8] | None:
    """Return the bitmap of which rows are not null; None when all are."""
    if array.null_count == 0:
        return None
    if array.null_count == len(array):  # an array of type null has no bitmap
        return np.zeros(-(-len(array) // 8), np.uint8)
    return _bitmap(array, 0)


def run_of_bits(bitmap: NDArray[np.uint8], start: int, stop: int) -> NDArray[np.uint8]:
    """Return the bitmap of rows ``[start, stop)`` of a bitmap, zero behind the last of them."""
    run = _moved(bitmap, start, stop - start)
    spare = len(run) * 8 - (stop - start)
    if spare:
        run = run.copy()
        run[-1] &= 0xFF >> spare
    return run


def all_set(run: NDArray[np.uint8], num_rows: int) -> bool:
    """Whether all rows are set in a bitmap that is zero behind the last of them."""
    whole = num_rows // 8
    return bool((run[:whole] == 0xFF).all()) and (
        num_rows % 8 == 0 or int(run[whole]) == (1 << num_rows % 8) - 1
    )


def _bitmap(array: pa.Array, buffer: int) -> NDArray[np.uint8]:
    if len(array) == 0:
        return np.empty(0, np.uint8)
    return _moved(np.frombuffer(array.buffers()[buffer], np.uint8), array.offset, len(array))


def _moved(bitmap: NDArray[np.uint8], start: int, num_rows: int) -> NDArray[np.uint8]:
    """Bitmap that begins at bit ``start`` of another; no copy where that is the first of a byte."""
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
