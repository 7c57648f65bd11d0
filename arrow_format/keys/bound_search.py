"""Bounds of ranges: chosen from a sample, and rows placed between them. Pure.

With ``m`` bounds in ascending order there are ``m + 1`` ranges. A row belongs to the range whose
number is how many bounds are strictly less than it, so that rows with equal keys are never apart.

Source: Spark's ``RangePartitioner`` (``getPartition``, ``determineBounds``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.keys.spark_order import (
    ALL_ROWS,
    comparable_codes,
    key_codes,
    num_text_words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.keys.spark_order import CodeColumn, Codes, Rows


def first_descent(bounds: pa.RecordBatch, orders: Sequence[str]) -> int | None:
    """Find the first bound that is less than the one before it; None if there is none.

    Parameters
    ----------
    bounds
        Key columns, the most significant first.
    orders
        Order of each key.
    """
    places = np.empty(bounds.num_rows, np.int64)
    permutation = sort_permutation(key_codes(bounds.columns, orders))
    places[permutation] = np.arange(bounds.num_rows)
    descents = np.flatnonzero(np.diff(places) < 0)
    return int(descents[0]) + 1 if len(descents) else None


def bounds_of_sample(
    sample: pa.RecordBatch, orders: Sequence[str], num_ranges: int
) -> pa.RecordBatch:
    """Choose bounds that split a sample into ranges of about equal numbers of rows.

    Parameters
    ----------
    sample
        Key columns of some rows, the most significant first; in any order.
    orders
        Order of each key.
    num_ranges
        Ranges wanted.

    Returns
    -------
    pyarrow.RecordBatch
        At most ``num_ranges - 1`` rows of the sample, ascending and all different. Fewer where a
        key has more than the rows of one range, or the sample has few keys.
    """
    codes = key_codes(sample.columns, orders)
    permutation = sort_permutation(codes)
    # The last row of each range.
    lasts = np.arange(1, num_ranges, dtype=np.int64) * sample.num_rows // num_ranges - 1
    rows = permutation[np.unique(lasts[lasts >= 0])]
    is_new = np.ones(len(rows), np.bool_)
    if len(rows):
        differs = [column[rows][1:] != column[rows][:-1] for column in codes]
        is_new[1:] = np.any(differs, axis=0)
    return take(sample, to_arrow(rows[is_new]))


@dataclass(frozen=True)
class _Level:
    """One code column of all bounds: how it parts the groups of bounds that agreed before it."""

    values: Codes
    """The different codes, ascending."""
    groups: NDArray[np.int64]
    """The groups there are after this level, ascending, by group before and place in values."""
    num_before: int
    """How many groups there were before."""
    starts: NDArray[np.int32]
    """Number of the first bound of each group, and at the end the number of bounds."""

    def locate(
        self, before: NDArray[np.int64], codes: Codes
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the first group that is not less than each row, and whether the row is in it.

        Parameters
        ----------
        before
            The group that each row was in before this level.
        codes
            Code of each row.
        """
        place, is_equal = _place(codes, self.values)
        if self.num_before == 1:
            return place, is_equal
        if len(self.values) == 1:  # it parts no group; flags of keys without nulls are like this
            return before + place, is_equal
        wanted = _group_keys(before, place, is_equal, self.values)
        return _place(wanted, self.groups)


class BoundIndex:
    """Bounds made ready to place rows.

    Keys are codes in columns, see :mod:`~arrow_format.keys.spark_order`. All bounds begin as one
    group, and each column parts the groups. A row goes from column to column for as long as it is
    equal to some group of bounds; mostly that ends early, so that long text is read no further than
    it takes to tell it from the bounds.

    Parameters
    ----------
    bounds
        Key columns, the most significant first, ascending; equal ones are allowed.
    orders
        Order of each key.
    """

    def __init__(self, bounds: pa.RecordBatch, orders: Sequence[str]) -> None:
        self._orders = tuple(orders)
        # Text longer than all bounds differs from them in the word in which the longest ends.
        self._num_words = [num_text_words(column) for column in bounds.columns]
        self._levels: list[_Level] = []
        if bounds.num_rows == 0:
            return
        group = np.zeros(bounds.num_rows, np.int64)
        for column in self._code_columns(bounds.columns):
            codes = column(ALL_ROWS)
            values = np.unique(codes)
            keys = _group_keys(group, *_place(codes, values), values)
            num_before = int(group[-1]) + 1
            groups, starts, group = np.unique(keys, return_index=True, return_inverse=True)
            ends = np.append(starts, bounds.num_rows).astype(np.int32)
            self._levels.append(_Level(values, groups, num_before, ends))

    def place(self, keys: Sequence[pa.Array]) -> NDArray[np.int32]:
        """Return how many bounds are strictly less than each row.

        Parameters
        ----------
        keys
            Key columns of the rows, of the types of the bounds.

        Returns
        -------
        NDArray[np.int32]
            From 0 to the number of bounds, shape (num_rows,).
        """
        num_rows = len(keys[0])
        placed = np.zeros(num_rows, np.int32)
        rows: Rows = ALL_ROWS
        group = np.zeros(num_rows, np.int64)
        for column, level in zip(self._code_columns(keys), self._levels, strict=False):
            found, is_equal = level.locate(group, column(rows))
            placed[rows] = level.starts[found]
            if is_equal.all():
                group = found
                continue
            equal = np.flatnonzero(is_equal)
            if not len(equal):
                break
            rows = equal if isinstance(rows, slice) else rows[equal]
            group = found[equal]
        return placed

    def _code_columns(self, keys: Sequence[pa.Array]) -> list[CodeColumn]:
        return [
            column
            for key, order, num_words in zip(keys, self._orders, self._num_words, strict=True)
            for column in comparable_codes(key, order, num_words)
        ]


def _place(
    wanted: NDArray[Any], ascending: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Place of the first value that is not less, and whether it is equal."""
    if len(ascending) == 1:
        return (wanted > ascending[0]).astype(np.int64), wanted == ascending[0]
    place = np.searchsorted(ascending, wanted)
    return place, ascending[np.minimum(place, len(ascending) - 1)] == wanted


def _group_keys(
    group: NDArray[np.int64],
    place: NDArray[np.int64],
    is_equal: NDArray[np.bool_],
    values: NDArray[Any],
) -> NDArray[np.int64]:
    """One ascending number for a group and a place among values, or between two of them."""
    return group * (2 * len(values) + 1) + 2 * place + is_equal
