"""Combines the rows of equal keys in a full buffer, where that pays. Pure but for the decision.

A group has a number, and NumPy adds or compares values by these numbers: in two nanoseconds per row
and column, with no memory for the groups but their results. What is no number of 64 bits (texts,
decimals of many digits) goes through Arrow's hash aggregation.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    boolean_values,
    fixed_width_values,
    to_arrow,
    to_numpy,
    validity,
)
from arrow_format.arrays.conversion import ordered_bits, ordered_bits_as_floats
from arrow_format.arrays.exact_sums import DoesNotFitError, addable, cast_checked
from arrow_format.arrays.gather import gathered
from arrow_format.arrays.selection import joined, take
from arrow_format.keys.key_groups import key_groups
from arrow_format.keys.key_numbers import is_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from arrow_format.keys.partitioner import Assign

LEAST_ABSORBED = 0.4
"""The part of new rows that must be combined into others: with less, grouping them takes longer
than writing them."""

SAMPLED_PAIRS = 64
"""Rows are sampled until about so many pairs of one key are expected where each key has two."""

_SEED = 0
_UFUNCS: dict[str, np.ufunc] = {"sum": np.add, "min": np.minimum, "max": np.maximum}
_NAMES = ["group", "value"]
_HALVES = np.dtype([("low", "<i8"), ("high", "<i8")])
_LARGEST = np.iinfo(np.int64).max


class Combiner:
    """Combines full buffers of one map task, and stops where that does not pay.

    What it decides depends on the rows alone: a second attempt of the task writes the same.
    """

    def __init__(self, schema: pa.Schema, combine: Mapping[str, str], assign: Assign) -> None:
        self.assign = assign
        """Gives rows their subpartitions, which depend on the keys alone."""
        self._functions = [combine.get(name) for name in schema.names]
        self._keys = [i for i, function in enumerate(self._functions) if function is None]
        self._is_sampled = False
        self.stopped = False
        """Whether rows are written as they are from now on."""
        self.num_absorbed = 0
        """Rows that were combined into others."""

    def combined(
        self, columns: Sequence[list[pa.Array]], num_combined: int
    ) -> list[pa.Array] | None:
        """Return the columns of one row for each key; None to leave the rows as they are.

        Parameters
        ----------
        columns
            The arrays of each column.
        num_combined
            So many rows, the first, are known to have different keys.
        """
        num_rows = sum(map(len, columns[0]))
        if not self._is_sampled:
            self._is_sampled = True
            self.stopped = self._expected_part(columns, num_rows) > 1 - LEAST_ABSORBED
            if self.stopped:
                return None
        keys = {i: joined(columns[i]) for i in self._keys}
        groups, rows = key_groups(list(keys.values()))
        indices = to_arrow(rows.astype(np.uint32))
        # Keys first, which are held twice.
        results = {i: gathered(keys.pop(i), indices) for i in self._keys}
        try:
            for i, function in enumerate(self._functions):
                if function is not None:
                    results[i] = combine_column(columns[i], function, groups, len(rows))
        except DoesNotFitError:
            # The whole group may have a sum that fits: readers add exactly.
            return None
        absorbed = num_rows - len(rows)
        self.num_absorbed += absorbed
        self.stopped = absorbed < LEAST_ABSORBED * (num_rows - num_combined)
        return [results[i] for i in range(len(columns))]

    def _expected_part(self, columns: Sequence[list[pa.Array]], num_rows: int) -> float:
        size = isqrt(2 * SAMPLED_PAIRS * num_rows)
        if 2 * size > num_rows:
            return 0.0
        # At random: rows of one key may be adjacent, and a stride would see one of each alone.
        rows = np.unique(np.random.default_rng(_SEED).integers(0, num_rows, size))
        groups, _ = key_groups([_taken(columns[i], rows) for i in self._keys])
        return expected_part(np.bincount(groups), num_rows)


def expected_part(counts: NDArray[np.integer], num_rows: int) -> float:
    """Return which part of ``num_rows`` rows is left when each key has one; estimated.

    ``counts`` are the rows of each key in a random sample. Keys seen more than twice are few. Of
    the others, if each has ``r`` rows among ``N``, a sample of ``m`` rows has about
    ``(r - 1) m**2 / 2N`` pairs.
    """
    pairs = int(np.count_nonzero(counts == 2))
    rare = int(np.count_nonzero(counts == 1)) + 2 * pairs
    if not rare:
        return 0.0
    part_rare = rare / int(counts.sum())
    return part_rare / (1 + 2 * pairs * part_rare * num_rows / rare**2)


def _taken(arrays: list[pa.Array], rows: NDArray[np.int64]) -> pa.Array:
    """Return the values at ascending rows of a column in several arrays."""
    ends = np.cumsum([len(array) for array in arrays])
    stops = np.searchsorted(rows, ends)
    starts = np.append(0, stops[:-1])
    return joined(
        [
            take(array, to_arrow(rows[start:stop] - (end - len(array))))
            for array, start, stop, end in zip(arrays, starts, stops, ends, strict=True)
        ]
    )


def combine_column(
    arrays: Sequence[pa.Array], function: str, groups: NDArray[np.int64], num_groups: int
) -> pa.Array:
    """Return sum, min or max of each group of a column, in its type; nulls are skipped.

    ``groups`` has the group of each row of the arrays, one after the other. As in Spark, a group of
    nulls is null, NaN is the largest number, and sums of doubles are added in order. Raises
    DoesNotFitError where a sum does not fit the type.
    """
    type_ = arrays[0].type
    parts = [part for part in (_values(array, function) for array in arrays) if part is not None]
    if len(parts) < len(arrays) or (function == "sum" and not _adds_up(parts, len(groups), type_)):
        return _by_arrow(pa.chunked_array(arrays), function, groups, num_groups)
    dtype = parts[0].dtype
    add = _UFUNCS[function]
    first = dtype.type(0)
    if function != "sum":
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
    if pt.is_decimal128(type_):
        pairs = fixed_width_values(column, _HALVES)
        is_short = pairs["high"] == pairs["low"] >> 63
        valid = validity(column)
        is_whole = bool((is_short if valid is None else is_short[valid]).all())
        return pairs["low"] if is_whole else None
    is_short_decimal = pt.is_decimal32(type_) or pt.is_decimal64(type_)
    if not is_integer(type_) and not is_short_decimal:
        return None
    kind = "u" if pt.is_unsigned_integer(type_) else "i"
    return fixed_width_values(column, f"{kind}{type_.bit_width // 8}")


def _restored(
    results: NDArray[Any], type_: pa.DataType, is_null: NDArray[np.bool_] | None
) -> pa.Array:
    """Return results of :func:`_values` as a column of a type."""
    if pt.is_boolean(type_):
        results = results.astype(np.bool_)
    if pt.is_decimal128(type_):
        validity_bits = None if is_null is None else to_arrow(~is_null).buffers()[1]
        content = pa.py_buffer(np.stack([results, results >> 63], axis=1))
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


def _by_arrow(
    column: pa.ChunkedArray, function: str, groups: NDArray[np.int64], num_groups: int
) -> pa.Array:
    type_ = column.type
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
