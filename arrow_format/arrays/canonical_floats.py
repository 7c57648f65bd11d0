"""Floating-point numbers as Spark compares them: one NaN, the largest, and one zero. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.numpy_arrays import to_scalar

_BITS = {pa.float16(): pa.int16(), pa.float32(): pa.int32(), pa.float64(): pa.int64()}


def canonical_floats(array: pa.Array) -> pa.Array:
    """Return ``array`` with every NaN the same and -0.0 as 0.0, where it holds floats.

    Nulls stay null. Other types, and floats nested in them, come back as they are.

    Source: Spark, ``NormalizeFloatingNumbers``.
    """
    if not pa.types.is_floating(array.type):
        return array
    if pa.types.is_float16(array.type):  # Arrow does not compute with them
        return canonical_floats(array.cast(pa.float32())).cast(array.type)
    # The sum turns -0.0 into 0.0 and leaves all others.
    return _with_one_nan(pc.add(array, to_scalar(0, array.type)))


def float_bits(array: pa.Array) -> pa.Array:
    """Return floats as the integers of their canonical bits; other types as they are.

    Arrow's hash tables then find NaN equal to itself.
    """
    if not pa.types.is_floating(array.type):
        return array
    return canonical_floats(array).view(_BITS[array.type])


def ordered_bits(array: pa.Array) -> pa.Array:
    """Return floats as signed integers of their width that have Spark's order: NaN the largest.

    -0.0 is less than 0.0; all NaN are one. Nulls stay null.
    """
    if pa.types.is_float16(array.type):
        array = _with_one_nan(array.cast(pa.float32())).cast(array.type)
    else:
        array = _with_one_nan(array)
    return _reversed_below_zero(array.view(_BITS[array.type]))


def ordered_bits_as_floats(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Inverse of :func:`ordered_bits` for floats of a type."""
    return _reversed_below_zero(array).view(type_)


def _with_one_nan(array: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_nan(array), to_scalar(np.nan, array.type), array)


def _reversed_below_zero(bits: pa.Array) -> pa.Array:
    """Turn all bits but the sign's of negative integers: floats have no two's complement."""
    largest = to_scalar((1 << bits.type.bit_width - 1) - 1, bits.type)
    below = pc.less(bits, to_scalar(0, bits.type))
    return pc.if_else(below, pc.bit_wise_xor(bits, largest), bits)
