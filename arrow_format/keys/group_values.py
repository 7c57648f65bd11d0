"""Sum, smallest and largest value of each group of a column, by the numbers of its groups. Pure.

NumPy adds or compares values by these numbers: in two nanoseconds per row and column, with no
memory for the groups but their results. What is no number of 64 bits (texts, decimals of many
digits) goes through Arrow's hash aggregation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    boolean_values,
    fixed_width_values,
    to_arrow,
    to_numpy,
    validity,
)
from arrow_format.arrays.conversion import ordered_bits, ordered_bits_as_floats
from arrow_format.arrays.exact_sums import addable, cast_checked
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import joined, take
from arrow_format.keys.key_numbers import is_integer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NAMES = ["group", "value"]

FEW_ROWS = 4
"""Rows of a group on average up to which comparing them in pairs is as fast as Arrow, which keeps
each group's text in memory of its own, and so takes twice as much."""

MOST_JOINED_BYTES = 1 << 30
"""Of one column: Arrow's arrays hold no more than 2 GiB of text."""

_LARGEST = np.iinfo(np.int64).max


def combine_column(
    arrays: Sequence[pa.Array],
    function: str,
    groups: NDArray[np.int64],
    num_groups: int,
    *,
    type_: pa.DataType | None = None,
) -> pa.Array:
    """Return sum, min or max of each group of a column; nulls are skipped.

    ``groups`` has the group of each row of the arrays, one after the other. As in Spark, a group of
    nulls is null, NaN is the largest number, and sums of doubles are added in order. Results have
    the type of the column, sums another ``type_`` where one is given. Raises DoesNotFitError where
    a sum does not fit it.
    """
    type_ = arrays[0].type if type_ is None else type_
    if pt.is_null(arrays[0].type):
        return pa.nulls(num_groups, type_)
    parts = [part for part in (_values(array, function) for array in arrays) if part is not None]
    if len(parts) < len(arrays) or (function == "sum" and not _adds_up(parts, len(groups), type_)):
        is_small = sum(array.nbytes for array in arrays) <= MOST_JOINED_BYTES
        if function != "sum" and is_small and len(groups) < FEW_ROWS * num_groups:
            return _ends_of_pairs(joined(list(arrays)), function, groups, num_groups)
        return _by_arrow(pa.chunked_array(arrays), function, groups, num_groups, type_)
    dtype = parts[0].dtype
    add = _UFUNCS[function]
    if function == "sum":
        dtype = np.dtype(np.float64 if dtype.kind == "f" else np.int64)
        parts = [values.astype(dtype, copy=False) for values in parts]
        first = dtype.type(0)
    else:
        limits = np.iinfo(dtype)
        first = limits.max if function == "min" else limits.min
    results = np.full(num_groups, first, dtype)
    has_nulls = any(array.null_count for array in arrays)
    is_null = np.ones(num_groups, np.bool_) if has_nulls else None
    end = 0
    for array, values in zip(arrays, parts, strict=True):
        own = groups[end : end + len(array)]
        end += len(array)
        valid = validity(array)
        if valid is not None:
            values, own = values[valid], own[valid]
        if is_null is not None:
            is_null[own] = False
        with np.errstate(all="ignore"):  # sums of infinities
            add.at(results, own, values)
    return _restored(results, type_, is_null)


def _values(column: pa.Array, function: str) -> NDArray[Any] | None:
    """Return values as numbers of their order, whatever under nulls; None where they are none."""
    type_ = column.type
    if pt.is_boolean(type_):
        return boolean_values(column)
    if pt.is_floating(type_):
        if function != "sum":
            column = ordered_bits(column)
            return fixed_width_values(column, f"i{column.type.bit_width // 8}")
        return fixed_width_values(column, np.float64)
    if pt.is_decimal128(type_) or pt.is_decimal256(type_):
        words = fixed_width_values(column, _words(type_))["word"]
        lowest = np.ascontiguousarray(words[:, 0])
        signs = lowest >> 63
        is_longer = np.zeros(len(column), np.bool_)
        for number in range(1, words.shape[1]):
            is_longer |= words[:, number] != signs
        valid = validity(column)
        return None if (is_longer if valid is None else is_longer[valid]).any() else lowest
    is_short_decimal = pt.is_decimal32(type_) or pt.is_decimal64(type_)
    if not is_integer(type_) and not is_short_decimal:
        return None
    kind = "u" if pt.is_unsigned_integer(type_) else "i"
    return fixed_width_values(column, f"{kind}{type_.bit_width // 8}")


def _words(type_: pa.DataType) -> np.dtype[np.void]:
    """Words of a decimal, the lowest first."""
    return np.dtype([("word", "<i8", (type_.bit_width // 64,))])


def _restored(
    results: NDArray[Any], type_: pa.DataType, is_null: NDArray[np.bool_] | None
) -> pa.Array:
    """Return results of :func:`_values` as a column of a type."""
    if pt.is_boolean(type_):
        results = results.astype(np.bool_)
    if pt.is_decimal128(type_) or pt.is_decimal256(type_):
        validity_bits = None if is_null is None else to_arrow(~is_null).buffers()[1]
        words = np.empty(len(results), _words(type_))
        words["word"] = (results >> 63)[:, np.newaxis]
        words["word"][:, 0] = results
        content = pa.py_buffer(words)
        return pa.Array.from_buffers(type_, len(results), [validity_bits, content])
    array = to_arrow(results, is_null)
    if pt.is_floating(type_) and not pt.is_floating(array.type):
        return ordered_bits_as_floats(array, type_)
    return array if array.type == type_ else array.view(type_)


def _adds_up(parts: Sequence[NDArray[Any]], num_rows: int, type_: pa.DataType) -> bool:
    """Whether no sum of some of these integers can be out of the range of the type."""
    if pt.is_floating(type_):
        return True
    largest = max(
        (max(int(values.max()), -int(values.min())) for values in parts if len(values)), default=0
    )
    bound = min(10**type_.precision - 1, _LARGEST) if pt.is_decimal(type_) else _LARGEST
    return largest * num_rows <= bound


def _ends_of_pairs(
    column: pa.Array, function: str, groups: NDArray[np.int64], num_groups: int
) -> pa.Array:
    """Compare the rows of each group in pairs, until one is left of each group."""
    is_better = pc.less if function == "min" else pc.greater
    valid = validity(column)
    rows = np.arange(len(groups)) if valid is None else np.flatnonzero(valid)
    own = groups[rows]
    if len(rows) > num_groups or (np.bincount(own, minlength=1) > 1).any():
        order = sort_permutation([own])
        rows, own = rows[order], own[order]
        del order
    while True:
        first = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
        if len(first) >= len(own):
            break
        sizes = np.diff(first, append=len(own))
        is_second = (np.arange(len(own)) - np.repeat(first, sizes)) % 2 == 1
        second = np.flatnonzero(is_second)
        ends = [take(column, to_arrow(rows[which])) for which in (second, second - 1)]
        better = second[to_numpy(is_better(*ends))]
        rows[better - 1] = rows[better]
        rows, own = rows[~is_second], own[~is_second]
    of_groups = np.full(num_groups, -1)
    of_groups[own] = rows
    missing = of_groups < 0
    return take(column, to_arrow(of_groups, missing if missing.any() else None))


def _by_arrow(
    column: pa.ChunkedArray,
    function: str,
    groups: NDArray[np.int64],
    num_groups: int,
    type_: pa.DataType,
) -> pa.Array:
    values = addable(column) if function == "sum" else column
    table = pa.table([to_arrow(groups), values], _NAMES)
    result = table.group_by("group", use_threads=False).aggregate([("value", function)])
    found = result.column("value_" + function)
    if pt.is_duration(type_):
        found = cast_checked(found, pa.int64())
    found = cast_checked(found, type_).combine_chunks()
    places = np.empty(num_groups, np.uint32)
    places[to_numpy(result.column("group").combine_chunks())] = np.arange(num_groups)
    return take(found, to_arrow(places))
