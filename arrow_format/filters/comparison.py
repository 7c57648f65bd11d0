"""Values compared in Spark's order: one type for each kind, three primitives. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.conversion import canonical_floats, float_bits
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.arrays.stored_types import ORDERED_TYPES
from arrow_format.keys.spark_order import order_codes

_KERNELS = {"=": pc.equal, "<": pc.less, "<=": pc.less_equal}
"""The others are these, negated."""


def comparable_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type in which values of a stored type are compared; None if they have no order."""
    if not any(is_ordered(type_) for is_ordered in ORDERED_TYPES):
        return None
    if pt.is_fixed_size_binary(type_):
        return pa.binary()
    if pt.is_decimal32(type_) or pt.is_decimal64(type_):  # Arrow has few functions of them
        return pa.decimal128(type_.precision, type_.scale)
    if pt.is_float16(type_):
        return pa.float32()
    if pt.is_timestamp(type_) and type_.tz is not None:
        return pa.timestamp(type_.unit, "UTC")
    return type_


def common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which two columns are compared as Spark does; None if they cannot be.

    Source: Spark, ``AnsiTypeCoercion.findTightestCommonType`` and ``DecimalPrecision``.
    """
    if left.equals(right):
        return left
    types = (left, right)
    if all(map(pt.is_signed_integer, types)):
        return max(types, key=lambda type_: type_.bit_width)
    if all(map(is_number, types)):
        if any(map(pt.is_floating, types)):
            return pa.float64()
        digits = [_digits(type_) for type_ in types]
        scale = max(scale for _, scale in digits)
        precision = scale + max(whole for whole, _ in digits)
        if scale >= 0 and precision <= 76:
            return pa.decimal256(precision, scale)
    return None


def is_number(type_: pa.DataType) -> bool:
    """Whether values of a type are numbers."""
    return bool(pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_))


def _digits(type_: pa.DataType) -> tuple[int, int]:
    """Return the digits before and behind the point."""
    return (type_.precision - type_.scale, type_.scale) if pt.is_decimal(type_) else (20, 0)


def comparable(array: pa.Array, type_: pa.DataType | None = None) -> pa.Array:
    """Return an array in the type it is compared in, or in ``type_``, which may be a wider one."""
    target = type_ or comparable_type(array.type)
    if target is None or array.type.equals(target):
        return array
    if pt.is_timestamp(target) and target.unit == array.type.unit:
        return array.view(target)
    return array.cast(target, safe=not pt.is_floating(target))


def compare(operator: str, left: pa.Array, right: pa.Array | pa.Scalar) -> pa.BooleanArray:
    """Compare values of one comparable type by ``=``, ``<`` or ``<=``; null where one is null."""
    truth = _KERNELS[operator](left, right)
    if not pt.is_floating(left.type) or (
        isinstance(right, pa.Scalar) and not (right.is_valid and np.isnan(right.as_py()))
    ):
        return truth
    # With a NaN, each of these was false.
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if operator == "<":
        holds = pc.and_(right_nan, pc.invert(left_nan))
    else:
        holds = pc.and_(right_nan, left_nan) if operator == "=" else right_nan
    return pc.or_(truth, holds)


def is_in(array: pa.Array, values: pa.Array) -> pa.BooleanArray:
    """Return whether each value equals one of ``values``, of the same type and without nulls.

    Null where the value is null.
    """
    found = pc.is_in(float_bits(array), value_set=float_bits(values))
    return pc.if_else(pc.is_valid(array), found, None) if array.null_count else found


def distinct(values: pa.Array) -> pa.Array:
    """Return the distinct values in ascending order."""
    codes = order_codes(values, "ascending")
    order = sort_permutation(codes)
    is_new = np.zeros(len(values), np.bool_)
    is_new[:1] = True
    for column in codes:
        in_order = column[order]
        is_new[1:] |= in_order[1:] != in_order[:-1]
    return take(canonical_floats(values), to_arrow(order[is_new]))
