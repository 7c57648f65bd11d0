"""Spark's ``hash(...)`` of Arrow columns, which decides where `df.repartition(n, *keys)` puts rows.

Source: Spark's ``org.apache.spark.sql.catalyst.expressions.Murmur3Hash``. The hash of a row starts
at a seed and folds in one value after the other, each seeded by the hash so far; a null changes
nothing. Types decide how a value becomes integers or bytes; `murmur3` does the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import (
    boolean_values,
    fixed_width_values,
    text_octets,
    text_offsets,
    to_arrow,
    validity,
)
from arrow_format.arrays.selection import take
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.murmur3 import fold_bytes, fold_ints, fold_longs
from arrow_format.keys.sort_keys import spark_struct

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SPARK_SEED = 42
"""The seed of ``hash(...)`` and of hash partitioning."""

MAX_LONG_DIGITS = 18
"""The largest decimal precision that Spark hashes as a long (``Decimal.MAX_LONG_DIGITS``)."""

_INTS = {
    pa.int8(): np.int8,
    pa.int16(): np.int16,
    pa.int32(): np.int32,
    pa.date32(): np.int32,
}
_LONGS = {
    pa.int64(): np.int64,
    pa.duration("us"): np.int64,
    pa.time64("ns"): np.int64,
}
_OTHERS = {pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.binary()}


def hash_columns(columns: Sequence[pa.Array], seed: int = SPARK_SEED) -> NDArray[np.int32]:
    """Hash rows as Spark's ``hash(*columns)`` does.

    Time grows with the bytes of the values, and with the longest list, since elements are folded
    position by position. Raises SchemaError without columns, for different lengths, and for a type
    that cannot be a hash key.
    """
    if len({len(column) for column in columns}) != 1:
        lengths = [len(column) for column in columns]
        raise SchemaError(f"Hashing needs one or more columns of one length; got {lengths}.")
    for index, column in enumerate(columns):
        _check_type(f"key column {index}", column.type)
    hashes = np.full(len(columns[0]), seed & 0xFFFFFFFF, np.uint32)
    for column in columns:
        _fold(column, hashes)
    return hashes.view(np.int32)


def subpartition_ids(hashes: NDArray[np.int32], num_subpartitions: int) -> NDArray[np.int32]:
    """Map hashes to subpartitions as Spark's ``pmod(hash, n)`` does.

    Raises OptionError if `num_subpartitions` is not a positive int32.
    """
    if not 1 <= num_subpartitions < 2**31:
        raise OptionError(
            f"The number of subpartitions must be from 1 to 2**31 - 1, not {num_subpartitions}."
        )
    # NumPy's floor division by a scalar uses SIMD, its remainder does not. The product may wrap
    # around; the difference wraps back.
    divisor = np.int32(num_subpartitions)
    floors = np.floor_divide(hashes, divisor)
    np.multiply(floors, divisor, out=floors)
    return np.subtract(hashes, floors, out=floors)


def check_hashable(field: pa.Field) -> None:
    """Raise SchemaError for a column that cannot be a hash key.

    Collated strings are refused by Spark's schema: Arrow does not carry collations.
    """
    _check_type(f"column {field.name!r}", field.type)


def _check_type(where: str, data_type: pa.DataType) -> None:
    """Raise SchemaError for the first type in `data_type` that has no hash."""
    children = [data_type.field(index) for index in range(data_type.num_fields)]
    if pa.types.is_map(data_type):
        advice = "Spark does not hash maps: use an entry of it, or its sorted entries as an array"
    elif pa.types.is_null(data_type):
        advice = "it holds only nulls, which hash all alike: leave it out, or cast it"
    elif kind := spark_struct(data_type):
        raise SchemaError(
            f"{where} of type {kind} cannot be a hash key: use a plain column derived from it "
            "(variant_get, ST_AsBinary)."
        )
    elif pa.types.is_list(data_type) or pa.types.is_struct(data_type):
        for child in children:
            _check_type(f"{where}, field {child.name!r}", child.type)
        return
    elif (
        data_type in _INTS
        or data_type in _LONGS
        or data_type in _OTHERS
        or pa.types.is_decimal128(data_type)
        or (pa.types.is_timestamp(data_type) and data_type.unit == "us")
    ):
        return
    else:
        advice = "cast it to the type that Spark would have for it"
    raise SchemaError(f"{where} of type {data_type} cannot be a hash key: {advice}.")


def _fold(array: pa.Array, hashes: NDArray[np.uint32]) -> None:
    """Fold a value per row into the running hashes, in place; nulls change nothing."""
    if array.null_count == len(array):
        return
    valid = validity(array)
    before = None if valid is None else hashes.copy()
    if pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            _fold(array.field(index), hashes)
    elif pa.types.is_list(array.type):
        _fold_elements(array, hashes)
    elif pa.types.is_string(array.type) or pa.types.is_binary(array.type):
        offsets = text_offsets(array)
        fold_bytes(hashes, text_octets(array), offsets[:-1], np.diff(offsets))
    elif pa.types.is_decimal128(array.type):
        _fold_decimals(array, hashes)
    elif pa.types.is_float32(array.type):
        bits = _canonical(fixed_width_values(array, np.int32), sign=-(2**31), infinity=0x7F800000)
        fold_ints(hashes, bits)
    elif pa.types.is_float64(array.type):
        bits = _canonical(fixed_width_values(array, np.int64), sign=-(2**63), infinity=0x7FF0 << 48)
        fold_longs(hashes, bits)
    elif pa.types.is_boolean(array.type):
        fold_ints(hashes, boolean_values(array).astype(np.int32))
    elif array.type in _INTS:
        values = fixed_width_values(array, _INTS[array.type])
        fold_ints(hashes, values.astype(np.int32, copy=False))
    else:
        fold_longs(hashes, fixed_width_values(array, np.int64))
    if valid is not None and before is not None:
        np.copyto(hashes, before, where=~valid)


def _fold_elements(array: pa.Array, hashes: NDArray[np.uint32]) -> None:
    """Fold the elements of lists, one position of all lists at a time.

    Sorted by length, the lists with an element left are a shrinking suffix.
    """
    offsets = text_offsets(array).astype(np.int64)
    lengths = np.diff(offsets)
    order = lengths.argsort(kind="stable")
    running, starts, lengths = hashes[order], offsets[order], lengths[order]
    elements = array.values
    for index in range(int(lengths[-1])):
        first = int(lengths.searchsorted(index, side="right"))
        _fold(take(elements, to_arrow(starts[first:] + index)), running[first:])
    hashes[order] = running


def _fold_decimals(array: pa.Array, hashes: NDArray[np.uint32]) -> None:
    """Fold the unscaled values, as longs or as the shortest big-endian two's complement."""
    halves = fixed_width_values(array, np.dtype((np.uint64, 2)))
    low, high = halves[:, 0], halves[:, 1]
    if array.type.precision <= MAX_LONG_DIGITS:
        fold_longs(hashes, low.view(np.int64))
        return
    # Without the bits that only repeat the sign, a byte per 8 bits, and one bit for the sign
    # (BigInteger.toByteArray).
    signs = (high.view(np.int64) >> 63).view(np.uint64)
    has_high = (high ^ signs) != 0
    top = np.where(has_high, high, low) ^ signs
    num_bytes = 1 + 8 * has_high.astype(np.int64)
    for bits in range(7, 64, 8):
        num_bytes += top >= np.uint64(1 << bits)
    big_endian = halves[:, ::-1].astype(">u8").view(np.uint8).reshape(-1)
    ends = np.arange(16, len(big_endian) + 1, 16)
    fold_bytes(hashes, big_endian, ends - num_bytes, num_bytes)


def _canonical(bits: NDArray[Any], *, sign: int, infinity: int) -> NDArray[Any]:
    """Bits of floating-point values with one NaN and one zero, as Java compares them.

    On integers, since a signalling NaN makes NumPy's floating-point arithmetic warn.
    """
    quiet_nan = infinity | (infinity & -infinity) >> 1
    is_nan = (bits & ~sign) > infinity
    canonical = np.where(is_nan, bits.dtype.type(quiet_nan), bits)
    canonical[canonical == sign] = 0
    return canonical
