"""Which row of one block is the nearest in time to each row of another, of an equal key. Pure.

Key and time of a row become one number, in whose order the rows of the one block are put: sorted
runs of them, as a shuffle sorted by both has, are merged. There each row of the other is found by
bisection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import fixed_width_values, to_arrow, validity
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.keys.key_numbers import encoded, key_numbers
from arrow_format.keys.spark_order import order_codes
from arrow_format.operators.key_index import NO_ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from arrow_format.model import Int64Array

    Values = NDArray[Any]
    """Of int64 or float64; how far they are is of uint64 or float64."""

Direction: TypeAlias = Literal["backward", "forward", "nearest"]

_MAX_NUMBER = 1 << 62
"""The number of a row, of its key and its time, stays below this."""


@dataclass(frozen=True, slots=True)
class TimeRule:
    """Which of the rows of a key a row has as of its time."""

    direction: Direction = "backward"
    """``backward``: the last row before it; ``forward``: the first after it; ``nearest``: the one
    of both that is less far, where they are equally far the one before."""
    allow_exact_matches: bool = True
    """Whether a row of an equal time is before it, and after it."""
    tolerance: float | None = None
    """The most that the times may differ, in their unit; None for any."""


@dataclass(frozen=True, slots=True)
class TimedRows:
    """Some rows by key and time.

    Those with a null among these, or a time that is NaN, match nothing. Keys are equal as in Spark:
    NaN equals NaN, and -0.0 equals 0.0.
    """

    keys: Sequence[pa.Array]
    """One column or more."""
    time: pa.Array
    """Of int64 or float64."""

    @property
    def values(self) -> Values:
        """Times as numbers."""
        return fixed_width_values(
            self.time, np.float64 if pt.is_floating(self.time.type) else np.int64
        )

    def known(self) -> Int64Array | None:
        """Return the rows that can match something, ascending; None for all."""
        columns = (*self.keys, self.time)
        masks = [mask for mask in map(validity, columns) if mask is not None]
        if pt.is_floating(self.time.type):
            masks.append(~np.isnan(self.values))
        every = np.logical_and.reduce(masks) if masks else np.True_
        return None if every.all() else np.flatnonzero(every)

    def at(self, rows: Int64Array | None) -> TimedRows:
        """Return some of the rows; all when None."""
        if rows is None:
            return self
        indices = to_arrow(rows)
        return TimedRows([take(key, indices) for key in self.keys], take(self.time, indices))


def matches(
    left: TimedRows, right: TimedRows, rule: TimeRule, ties: pa.Array | None = None
) -> Int64Array:
    """Return for each row of the left which row of the right it has, or NO_ROW.

    Of rows of the right with one key and one time, ``backward`` and ``nearest`` take the last,
    ``forward`` the first; with ``ties``, a column of the right, of those with its greatest value in
    Spark's order, where a null is the smallest.

    Parameters
    ----------
    left, right
        Rows, whose keys and times have equal types.
    rule
        Which row.
    ties
        Shape (rows of the right,).
    """
    asking, there = left.known(), right.known()
    found = np.full(len(left.time), NO_ROW, np.int64)
    left, right = left.at(asking), right.at(there)
    if not (len(left.time) and len(right.time)):
        return found
    keys, numbers = _numbered(left, right)
    num_right = len(right.time)
    numbers_there, times_there = numbers[:num_right], right.values
    order = _order(numbers_there, there, ties, greatest_first=rule.direction == "forward")
    if order is not None:
        numbers_there = numbers_there[order]

    def near(rows: Int64Array) -> tuple[Int64Array, Values]:
        """Return rows without those of other keys and those too far, and how far each is."""
        places = rows if order is None else order[rows]
        is_near = (rows != NO_ROW) & (keys[places] == keys[num_right:])
        apart = _apart(left.values, times_there[places])
        if rule.tolerance is not None:
            is_near &= apart <= rule.tolerance
        return np.where(is_near, rows, NO_ROW), apart

    rows = _found(numbers[num_right:], numbers_there, rule, near)
    has_one = rows != NO_ROW
    matched = rows[has_one]
    if order is not None:
        matched = order[matched]
    if there is not None:
        matched = there[matched]
    found[has_one if asking is None else asking[has_one]] = matched
    return found


def _found(
    asked: Int64Array,
    there: Int64Array,
    rule: TimeRule,
    near: Callable[[Int64Array], tuple[Int64Array, Values]],
) -> Int64Array:
    """Return the row for each number that is asked for, of ascending ones, or NO_ROW."""
    before_side: Literal["left", "right"] = "right" if rule.allow_exact_matches else "left"
    after_side: Literal["left", "right"] = "left" if rule.allow_exact_matches else "right"
    before = after = None
    if rule.direction != "forward":
        before = near(np.searchsorted(there, asked, before_side) - 1)
    if rule.direction != "backward":
        rows = np.searchsorted(there, asked, after_side)
        rows[rows == len(there)] = NO_ROW
        if rule.direction == "nearest":  # of those with its time the last, as before
            rows = np.where(
                rows == NO_ROW, NO_ROW, np.searchsorted(there, there[rows], "right") - 1
            )
        after = near(rows)
    if before is None or after is None:
        return (before or after)[0]  # type: ignore[index]  # one of them is asked for
    (earlier, back), (later, on) = before, after
    is_later = (later != NO_ROW) & ((earlier == NO_ROW) | (on < back))
    return np.where(is_later, later, earlier)


def _numbered(left: TimedRows, right: TimedRows) -> tuple[Int64Array, Int64Array]:
    """Return two numbers for each row, those of the right first: of its key, and of key and time.

    Rows of a key have adjacent numbers, in the order of their times.
    """
    pairs = zip(right.keys, left.keys, strict=True)
    keys, bound = key_numbers([pa.concat_arrays(pair) for pair in pairs])
    times: Int64Array = np.concatenate([_codes(rows) for rows in (right, left)])
    least = int(times.min())
    span = int(times.max()) - least + 1
    if bound * span > _MAX_NUMBER:
        keys, bound = encoded(to_arrow(keys))
    if bound * span > _MAX_NUMBER:
        distinct, places = np.unique(times, return_inverse=True)
        times, least, span = places.astype(np.int64), 0, len(distinct)
    keys = keys * np.int64(span)
    return keys, keys + (times - np.int64(least))


def _codes(rows: TimedRows) -> Int64Array:
    """Return integers in the order of the times; -0.0 equals 0.0."""
    values: Int64Array = rows.values
    if values.dtype == np.int64:
        return values
    _, codes = order_codes(rows.time, "ascending")
    return (codes ^ np.uint64(1 << 63)).view(np.int64)


def _order(
    numbers: Int64Array,
    places: Int64Array | None,
    ties: pa.Array | None,
    *,
    greatest_first: bool,
) -> NDArray[np.uint32] | Int64Array | None:
    """Return the permutation into the order of numbers, then of ties; None for as they are.

    ``places`` are the rows of ``ties`` that have numbers, all when None.
    """
    if ties is not None:
        if places is not None:
            ties = take(ties, to_arrow(places))
        codes = order_codes(ties, "descending" if greatest_first else "ascending")
        return sort_permutation(codes, numbers)
    if (numbers[1:] >= numbers[:-1]).all():
        return None
    # Merges ascending runs, which regions of a sorted shuffle are.
    return np.argsort(numbers, kind="stable")


def _apart(times: Values, others: Values) -> Values:
    """Return how far times are from others; of integers modulo 2**64, hence exact."""
    apart: Values
    if times.dtype == np.float64:
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(times - others)
        apart[times == others] = 0.0  # infinity less infinity is NaN
        return apart
    greater, less = np.maximum(times, others), np.minimum(times, others)
    apart = greater.view(np.uint64) - less.view(np.uint64)
    return apart
