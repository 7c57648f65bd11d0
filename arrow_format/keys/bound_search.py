"""Bounds of ranges chosen from a sample, and rows located between bounds; pure.

``m`` ascending bounds make ``m + 1`` ranges. The range of a row is the number of bounds strictly
less than it, so rows with equal keys share one.

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
    """Return the number of the first bound that is less than the one before it, if any."""
    ranks = np.empty(bounds.num_rows, np.int64)
    permutation = sort_permutation(key_codes(bounds.columns, orders))
    ranks[permutation] = np.arange(bounds.num_rows)
    descents = np.flatnonzero(np.diff(ranks) < 0)
    return int(descents[0]) + 1 if len(descents) else None


def bounds_of_sample(
    sample: pa.RecordBatch,
    orders: Sequence[str],
    num_ranges: int,
    weights: NDArray[np.float64] | None = None,
) -> pa.RecordBatch:
    """Choose bounds that split a sample of key columns into ranges of about equal weight.

    A row weighs 1 unless ``weights`` are given, which say how many rows it represents. At most
    ``num_ranges - 1``, ascending and distinct; fewer where a key fills more than a range, or the
    sample has few keys.
    """
    codes = key_codes(sample.columns, orders)
    permutation = sort_permutation(codes)
    splits = np.arange(1, num_ranges, dtype=np.int64)
    if weights is None:
        num_rows_upto = splits * sample.num_rows // num_ranges
    else:
        ends = np.cumsum(weights[permutation])
        num_rows_upto = np.searchsorted(ends, splits * ends[-1:].sum() / num_ranges, side="right")
    # The last row of each range.
    lasts = num_rows_upto - 1
    rows = permutation[np.unique(lasts[lasts >= 0])]
    is_new = np.ones(len(rows), np.bool_)
    if len(rows):
        differs = [column[rows][1:] != column[rows][:-1] for column in codes]
        is_new[1:] = np.any(differs, axis=0)
    return take(sample, to_arrow(rows[is_new]))


@dataclass(frozen=True)
class _Level:
    """One code column of all bounds: it splits the groups of bounds that are equal so far."""

    values: Codes
    """The distinct codes, ascending."""
    groups: NDArray[np.int64]
    """Keys (:func:`_group_keys`) of the groups after this level, ascending."""
    num_before: int
    """Number of groups before this level."""
    starts: NDArray[np.int32]
    """First bound of each group, and at the end the number of bounds."""

    def locate(
        self, before: NDArray[np.int64], codes: Codes
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Find the first group not less than each row, of group ``before``; whether it is equal."""
        position, is_equal = _search(codes, self.values)
        if self.num_before == 1:
            return position, is_equal
        if len(self.values) == 1:  # splits no group, as flags of keys without nulls
            return before + position, is_equal
        return _search(_group_keys(before, position, is_equal, self.values), self.groups)


class BoundIndex:
    """Index of ascending bounds, equal ones allowed, that locates rows between them.

    Keys are columns of codes, see :mod:`~arrow_format.keys.spark_order`. All bounds begin as one
    group, and each column splits the groups. A row is compared column by column while it equals a
    group of bounds; that mostly ends early, so long text is hardly read.
    """

    def __init__(self, bounds: pa.RecordBatch, orders: Sequence[str]) -> None:
        self._orders = tuple(orders)
        # Longer text differs from all bounds at the latest in the word where the longest ends.
        self._num_words = [num_text_words(column) for column in bounds.columns]
        self._levels: list[_Level] = []
        if bounds.num_rows == 0:
            return
        group = np.zeros(bounds.num_rows, np.int64)
        for column in self._code_columns(bounds.columns):
            codes = column(ALL_ROWS)
            values = np.unique(codes)
            keys = _group_keys(group, *_search(codes, values), values)
            num_before = int(group[-1]) + 1
            groups, starts, group = np.unique(keys, return_index=True, return_inverse=True)
            ends = np.append(starts, bounds.num_rows).astype(np.int32)
            self._levels.append(_Level(values, groups, num_before, ends))

    def place(self, keys: Sequence[pa.Array]) -> NDArray[np.int32]:
        """Return how many bounds are strictly less than each row, from its key columns."""
        num_rows = len(keys[0])
        num_less = np.zeros(num_rows, np.int32)
        rows: Rows = ALL_ROWS
        group = np.zeros(num_rows, np.int64)
        for column, level in zip(self._code_columns(keys), self._levels, strict=False):
            located, is_equal = level.locate(group, column(rows))
            num_less[rows] = level.starts[located]
            if is_equal.all():
                group = located
                continue
            equal = np.flatnonzero(is_equal)
            if not len(equal):
                break
            rows = equal if isinstance(rows, slice) else rows[equal]
            group = located[equal]
        return num_less

    def _code_columns(self, keys: Sequence[pa.Array]) -> list[CodeColumn]:
        return [
            column
            for key, order, num_words in zip(keys, self._orders, self._num_words, strict=True)
            for column in comparable_codes(key, order, num_words)
        ]


def _search(
    wanted: NDArray[Any], ascending: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Position of the first value that is not less, and whether it is equal."""
    if len(ascending) == 1:
        return (wanted > ascending[0]).astype(np.int64), wanted == ascending[0]
    position = np.searchsorted(ascending, wanted)
    return position, ascending[np.minimum(position, len(ascending) - 1)] == wanted


def _group_keys(
    group: NDArray[np.int64],
    position: NDArray[np.int64],
    is_equal: NDArray[np.bool_],
    values: NDArray[Any],
) -> NDArray[np.int64]:
    """One ascending number for a group and a position at or between ``values``."""
    return group * (2 * len(values) + 1) + 2 * position + is_equal
