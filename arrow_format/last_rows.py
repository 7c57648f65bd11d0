"""Which rows are the last of their key: exact, whole columns at a time. Pure.

There are four ways, and the keys decide: a table with a place for each number, where numbers are
small; a sort of numbers and rows as one word, where these fit into it; a sort of digests that is
checked, where they do not; and where numbering needs a hash table of texts or the like, a sort of
hashes first, which leaves only the rows whose hash is not unique.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.key_numbers import are_cheap, key_numbers, renumbered
from arrow_format.spark_hash import hash_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TABLE_PER_ROW = 4
"""Places for each row that a table of numbers may have; a sort takes longer, and so does clearing
more of them."""

TABLE_AT_LEAST = 1 << 12

SAMPLE_ROWS = 1 << 12
"""Rows that are looked at to guess whether keys repeat."""

_WORD_BITS = 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads numbers over all of uint64 (Knuth's multiplicative hash); being odd, it loses none."""


def last_rows(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.int64]:
    """Return the last row of each key, ascending.

    Parameters
    ----------
    columns
        Key columns of ``num_rows`` rows, of types that can be hash keys
        (:func:`~arrow_format.spark_hash.check_hashable`); slices are fine. Without any, all rows
        have the same key. A null equals a null, a NaN every NaN, and -0.0 equals 0.0.
    num_rows
        How many rows there are, less than 2**31.
    """
    if num_rows == 0:
        return np.empty(0, np.int64)
    if not columns:
        return np.array([num_rows - 1], np.int64)
    is_last = np.zeros(num_rows, np.bool_)
    if not are_cheap(columns) and _seem_different(columns, num_rows):
        alike = _alike(columns, num_rows)
        is_last[:] = True
        is_last[alike] = False
        if len(alike):
            index = pa.array(alike)
            is_last[alike[_last([column.take(index) for column in columns])]] = True
    else:
        is_last[_last(columns)] = True
    return np.flatnonzero(is_last)


def _seem_different(columns: Sequence[pa.Array], num_rows: int) -> bool:
    """Whether most keys seem to occur once, by a sample.

    Of that many rows out of K keys, about m**2 / 2K pairs in a sample of m have equal keys.
    """
    if num_rows <= SAMPLE_ROWS:
        return False
    if any(pt.is_nested(column.type) for column in columns):
        return True
    some = pa.array(np.linspace(0, num_rows - 1, SAMPLE_ROWS).astype(np.int64))
    most = max(pc.count_distinct(column.take(some), mode="all").as_py() for column in columns)
    return bool(SAMPLE_ROWS - most <= SAMPLE_ROWS**2 / (2 * num_rows))


def _alike(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.int64]:
    """Return the rows whose hash another row has too, ascending."""
    row_bits = np.uint64(32)
    words = hash_columns(columns).view(np.uint32).astype(np.uint64)
    words <<= row_bits
    words |= np.arange(num_rows, dtype=np.uint64)
    words.sort()
    hashes = (words >> row_bits).astype(np.uint32)
    same = hashes[1:] == hashes[:-1]
    shared = np.zeros(num_rows, np.bool_)
    shared[1:] = same
    shared[:-1] |= same
    rows = words[shared].astype(np.uint32).astype(np.int64)
    rows.sort()
    return rows


def _last(columns: Sequence[pa.Array]) -> NDArray[np.integer]:
    """Return the last row of each key, in any order."""
    numbers, width = key_numbers(columns)
    if width > max(TABLE_PER_ROW * len(numbers), TABLE_AT_LEAST):
        found = _last_by_sort(numbers, width)
        if found is not None:
            return found
        numbers, width = renumbered(numbers)
    last = np.full(width, -1, np.int32)
    # Of several rows that are assigned to one place, NumPy leaves the last.
    last[numbers] = np.arange(len(numbers), dtype=np.int32)
    return last[last >= 0]


def _last_by_sort(numbers: NDArray[np.int64], width: int) -> NDArray[np.int64] | None:
    """Return the last row of each number by a sort; None when two have the same digest.

    A number, or what fits of it, and the row are one word, so that NumPy's fastest sort does.
    """
    row_bits = max(len(numbers) - 1, 1).bit_length()
    words = numbers.astype(np.uint64)
    fits = (width - 1).bit_length() + row_bits <= _WORD_BITS
    if fits:
        words <<= np.uint64(row_bits)
    else:
        words *= _SPREAD
        words &= ~np.uint64((1 << row_bits) - 1)
    words |= np.arange(len(numbers), dtype=np.uint64)
    words.sort()
    rows = (words & np.uint64((1 << row_bits) - 1)).astype(np.int64)
    words >>= np.uint64(row_bits)
    same = words[1:] == words[:-1]
    if not fits:
        first = np.flatnonzero(same)
        if bool((numbers[rows[first]] != numbers[rows[first + 1]]).any()):
            return None
    is_last = np.ones(len(rows), np.bool_)
    np.logical_not(same, out=is_last[:-1])
    last: NDArray[np.int64] = rows[is_last]
    return last
