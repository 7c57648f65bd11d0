"""Floating-point keys as Spark compares them: one NaN, which equals itself, and one zero. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.numpy_arrays import to_scalar


def canonical_floats(array: pa.Array) -> pa.Array:
    """Return ``array`` with every NaN the same and -0.0 as 0.0, where it holds floats.

    Nulls stay null. Other types, and floats nested in them, come back as they are.

    Source: Spark, ``NormalizeFloatingNumbers``.
    """
    type_ = array.type
    if not pa.types.is_float32(type_) and not pa.types.is_float64(type_):
        return array
    # The sum turns -0.0 into 0.0 and leaves all others.
    zeroed = pc.add(array, to_scalar(0, type_))
    return pc.if_else(pc.is_nan(zeroed), to_scalar(np.nan, type_), zeroed)


def float_bits(array: pa.Array) -> pa.Array:
    """Return floats as the integers of their canonical bits; other types as they are.

    Arrow's hash tables then find NaN equal to itself.
    """
    if pa.types.is_float32(array.type):
        return canonical_floats(array).view(pa.int32())
    if pa.types.is_float64(array.type):
        return canonical_floats(array).view(pa.int64())
    return array
