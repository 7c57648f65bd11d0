"""Values of any flat column as binaries whose length tells their width; pure.

The map outputs of a log have bounds of columns of all types in one table, and outlive a change of
type: a value that was written as int32 is read as int64. Source: Iceberg, "single-value
serialization"; here decimals are little-endian like all numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    binary_array,
    fixed_width_values,
    text_octets,
    text_offsets,
    to_arrow,
    validity,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray


def to_binaries(values: pa.Array) -> pa.BinaryArray:
    """Return values of a flat type, each as the bytes that Arrow has for it; a boolean as one."""
    type_ = values.type
    if pt.is_string(type_) or pt.is_binary(type_) or pt.is_fixed_size_binary(type_):
        return values.cast(pa.binary())
    if pt.is_boolean(type_):
        values = values.cast(pa.uint8())
    width = values.type.bit_width // 8
    octets = fixed_width_values(values, f"V{width}").tobytes()
    plain = binary_array(
        [octets[at : at + width] for at in range(0, len(octets), width)], pa.binary()
    )
    valid = validity(values)
    if valid is None:
        return plain
    return pa.Array.from_buffers(
        pa.binary(), len(plain), [to_arrow(valid).buffers()[1], *plain.buffers()[1:]]
    )


def from_binaries(binaries: pa.BinaryArray, type_: pa.DataType) -> pa.Array:
    """Return the values of a flat type; ValueError where a binary is none of it.

    Numbers may have fewer bytes than ``type_``, as narrower types have.
    """
    if pt.is_binary(type_):
        return binaries
    if pt.is_string(type_):
        return binaries.cast(pa.string())  # refuses what is not UTF-8
    valid = validity(binaries)
    bitmap = None if valid is None else to_arrow(valid).buffers()[1]
    is_there = np.ones(len(binaries), np.bool_) if valid is None else valid
    width = 1 if pt.is_boolean(type_) else type_.bit_width // 8
    offsets, octets = text_offsets(binaries), text_octets(binaries)
    lengths = np.diff(offsets)
    values = np.zeros((len(binaries), width), np.uint8)
    for length in np.unique(lengths[is_there]).tolist():
        if length not in _lengths(type_, width):
            msg = f"a value of {length} bytes is no {type_}"
            raise ValueError(msg)
        rows = np.flatnonzero(is_there & (lengths == length))
        stored = octets[offsets[:-1][rows][:, None] + np.arange(length)]
        values[rows] = _widened(stored, width, type_)
    if pt.is_boolean(type_):
        if values.max(initial=0) > 1:
            msg = "a boolean is neither 0 nor 1"
            raise ValueError(msg)
        data = to_arrow(values[:, 0].astype(np.bool_)).buffers()[1]
    else:
        data = pa.py_buffer(values)
    return pa.Array.from_buffers(type_, len(binaries), [bitmap, data])


def _lengths(type_: pa.DataType, width: int) -> set[int]:
    """Bytes that a value may have."""
    if pt.is_integer(type_) or pt.is_decimal(type_):
        smallest = 1 if pt.is_integer(type_) else 4
        return {length for length in (1, 2, 4, 8, 16, 32) if smallest <= length <= width}
    return {4, 8} if pt.is_float64(type_) else {width}


def _widened(stored: NDArray[Any], width: int, type_: pa.DataType) -> NDArray[Any]:
    """Bytes of values of a narrower type of the same kind, in the wider one; rows by bytes."""
    length = stored.shape[1]
    if length == width:
        return stored
    if pt.is_floating(type_):
        return stored.view("<f4").astype("<f8").view(np.uint8)
    wide = np.zeros((len(stored), width), np.uint8)
    if not pt.is_unsigned_integer(type_):
        wide[stored[:, -1] >= 1 << 7] = 0xFF
    wide[:, :length] = stored
    return wide
