"""Which rows are the last of their key: exact, whole columns at a time. Pure.

The keys decide how. Small numbers: a table with a place for each. Numbers that fit into one word
with their row number: a sort of these words. Larger numbers: a sort of their digests, which is
checked. Many texts or nested values: a sort of their hashes, then rows of the same hash are
compared. A hash table is built only for few texts, and for different keys of the same hash.

Arrow's ``group_by(keys).aggregate([("row", "max")])`` takes less time only for few keys (0.2 to 0.8
of it); for a million keys of two million rows it takes 1.5 (text), 2 (large numbers) or 10 times as
long (small numbers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    boolean_values,
    fixed_width_values,
    text_offsets,
    to_arrow,
    to_numpy,
    to_scalar,
    validity,
)
from arrow_format.arrays.conversion import float_bits
from arrow_format.arrays.selection import take
from arrow_format.keys.spark_hash import hash_columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


_MAX_PRODUCT = 1 << 62
"""Numbers of several columns are combined by a product, which stays below this."""

_NO_BOUND = 1 << 64
"""A bound that does not limit numbers of 64 bits."""

TABLE_PER_ROW = 4
"""Most places per row in a table of numbers: with more, clearing it takes longer than a sort."""

TABLE_AT_LEAST = 1 << 12

SAMPLE_ROWS = 1 << 12
"""Rows in the sample that estimates how many keys there are."""

MANY_KEYS = 1 << 15
"""From about so many on, looking up a text in a hash table costs more than its hash and a sort."""

_WORD_BITS = 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads numbers over all of uint64 (Knuth's multiplicative hash); being odd, it loses none."""

Numbers = tuple["NDArray[np.int64]", int]
"""A number for each row, equal for equal keys only, and a bound that all of them are below; where
that is more than 2**63, they may be negative."""


def last_rows(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.int64]:
    """Return the last row of each key, ascending, of less than 2**31 rows.

    Key columns have types that can be hash keys
    (:func:`~arrow_format.keys.spark_hash.check_hashable`); slices are fine. Without any, all rows
    have the same key. A null equals a null, a NaN every NaN, and -0.0 equals 0.0.
    """
    if num_rows == 0:
        return np.empty(0, np.int64)
    if not columns:
        return np.array([num_rows - 1], np.int64)
    if all(_is_numeric(column.type) for column in columns) or not _seem_many(columns, num_rows):
        is_last = np.zeros(num_rows, np.bool_)
        is_last[_last(columns)] = True
    else:
        is_last = _are_last_by_hash(columns, num_rows)
    return np.flatnonzero(is_last)


def _is_numeric(type_: pa.DataType) -> bool:
    """Whether values are numbered without a table of the distinct ones."""
    return not pt.is_nested(type_) and (
        pt.is_boolean(type_) or pt.is_floating(type_) or _is_integer(type_)
    )


def _is_integer(type_: pa.DataType) -> bool:
    """Whether values are integers of at most 64 bits, whatever they represent."""
    return not (pt.is_decimal(type_) or pt.is_string(type_) or pt.is_binary(type_))


def _seem_many(columns: Sequence[pa.Array], num_rows: int) -> bool:
    """Whether a sample has so many keys that a hash table would be slow.

    Of m rows with K keys, about m**2 / 2K have a key that came before.
    """
    if num_rows <= SAMPLE_ROWS:
        return False
    if _are_nested(columns):
        return True
    sample = to_arrow(np.linspace(0, num_rows - 1, SAMPLE_ROWS).astype(np.int64))
    keys = max(pc.count_distinct(take(column, sample), mode="all").as_py() for column in columns)
    return bool(SAMPLE_ROWS - keys <= SAMPLE_ROWS**2 / (2 * MANY_KEYS))


def _are_nested(columns: Sequence[pa.Array]) -> bool:
    return any(pt.is_nested(column.type) for column in columns)


def _are_last_by_hash(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.bool_]:
    """Return which rows are the last of their key; a hash that occurs once is not examined."""
    words = hash_columns(columns).view(np.uint32).astype(np.uint64)
    words <<= np.uint64(32)
    words |= np.arange(num_rows, dtype=np.uint64)
    words.sort()
    rows = words.astype(np.uint32)  # runs of one hash, each in the order of its rows
    words >>= np.uint64(32)
    is_first = np.ones(num_rows, np.bool_)
    np.not_equal(words[1:], words[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    del words
    is_last = np.zeros(num_rows, np.bool_)
    is_last[rows[np.append(starts[1:], num_rows) - 1]] = True
    lengths = np.diff(starts, append=num_rows)
    repeats = lengths > 1
    alike = rows[np.repeat(repeats, lengths)]
    if not len(alike):
        return is_last
    # Each is compared with the first row of its run: these are few, and mostly close together.
    first_of = np.empty(num_rows, np.uint32)
    first_of[alike] = np.repeat(rows[starts[repeats]], lengths[repeats])
    alike.sort()
    del rows, starts, lengths, repeats
    firsts = first_of[alike]
    is_mixed = np.zeros(num_rows, np.bool_)  # by the first row of a run
    if _are_nested(columns):
        is_mixed[firsts] = True
    else:
        is_mixed[firsts[~_are_equal(columns, alike, firsts)]] = True
    doubtful = alike[is_mixed[firsts]]
    if len(doubtful):
        is_last[doubtful] = False
        index = to_arrow(doubtful)
        is_last[doubtful[_last([take(column, index) for column in columns])]] = True
    return is_last


def _are_equal(
    columns: Sequence[pa.Array], rows: NDArray[np.uint32], others: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Return whether each of ``rows``, ascending, has the key of the row at its place in others."""
    equal = np.ones(len(rows), np.bool_)
    for column in columns:
        ours = float_bits(column)
        theirs = take(ours, to_arrow(others), boundscheck=False)
        if len(rows) < len(ours):
            ours = take(ours, to_arrow(rows), boundscheck=False)
        same = to_numpy(pc.fill_null(pc.equal(ours, theirs), to_scalar(0, pa.bool_())))
        if ours.null_count:
            same = same | to_numpy(pc.and_(ours.is_null(), theirs.is_null()))
        equal &= same
    return equal


def _last(columns: Sequence[pa.Array]) -> NDArray[np.integer]:
    """Return the last row of each key, in any order."""
    numbers, bound = _combined(_numbers(column) for column in columns)
    if bound > max(TABLE_PER_ROW * len(numbers), TABLE_AT_LEAST):
        rows = _last_by_sort(numbers, bound)
        if rows is not None:
            return rows
        numbers, bound = _encoded(to_arrow(numbers))
    last = np.full(bound, -1, np.int32)
    # Of several rows that are assigned to one place, NumPy leaves the last.
    last[numbers] = np.arange(len(numbers), dtype=np.int32)
    return last[last >= 0]


def _last_by_sort(numbers: NDArray[np.int64], bound: int) -> NDArray[np.int64] | None:
    """Return the last row of each number by a sort; None when two have the same digest.

    A number, or as much of its digest as fits, and the row are one word: so NumPy's fastest sort
    applies.
    """
    row_bits = max(len(numbers) - 1, 1).bit_length()
    words = numbers.astype(np.uint64)
    fits = (bound - 1).bit_length() + row_bits <= _WORD_BITS
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


# Numbers of keys ---------------------------------------------------------------------------------


def _combined(parts: Iterable[Numbers]) -> Numbers:
    """Return one number for the numbers of several columns."""
    whole: Numbers | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        added = part
        if whole[1] * added[1] >= _MAX_PRODUCT:
            whole, added = _encoded(to_arrow(whole[0])), _encoded(to_arrow(added[0]))
        whole = whole[0] * added[1] + added[0], whole[1] * added[1]
    return whole if whole is not None else (np.empty(0, np.int64), 1)


def _encoded(array: pa.Array) -> Numbers:
    """Return numbers from 0 on, as many as there are distinct values."""
    encoded = array.dictionary_encode("encode")
    indices = fixed_width_values(encoded.indices, np.int32)
    return indices.astype(np.int64), max(len(encoded.dictionary), 1)


def _numbers(array: pa.Array) -> Numbers:
    type_ = array.type
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64), 1
    if pt.is_struct(type_):
        return _numbers_of_structs(array)
    if pt.is_list(type_):
        return _numbers_of_lists(array)
    if pt.is_boolean(type_):
        return _with_nulls(array, boolean_values(array).astype(np.int64), 2)
    if pt.is_floating(type_):
        return _numbers(float_bits(array))
    return _numbers_of_integers(array) if _is_integer(type_) else _encoded(array)


def _numbers_of_integers(array: pa.Array) -> Numbers:
    """Return values less their minimum, unless that is too far from the maximum."""
    dtype = np.dtype(f"i{array.type.bit_width // 8}")
    values = fixed_width_values(array, dtype)
    valid = validity(array)
    valid_values = values if valid is None else values[valid]
    least = int(valid_values.min())
    bound = int(valid_values.max()) - least + 1
    if bound >= _MAX_PRODUCT:
        return _encoded(array) if array.null_count else (values, _NO_BOUND)
    # The value under a null may be anything; it is replaced.
    return _with_nulls(array, values.astype(np.int64) - least, bound)


def _with_nulls(array: pa.Array, numbers: NDArray[np.int64], bound: int) -> Numbers:
    """Give nulls a number of their own."""
    valid = validity(array)
    if valid is None:
        return numbers, bound
    if bound >= _MAX_PRODUCT:
        numbers, bound = _encoded(to_arrow(numbers))
    return np.where(valid, numbers, bound), bound + 1


def _numbers_of_structs(array: pa.Array) -> Numbers:
    children = [array.field(i) for i in range(array.type.num_fields)]
    if not children:
        return _with_nulls(array, np.zeros(len(array), np.int64), 1)
    return _with_nulls(array, *_combined(_numbers(child) for child in children))


def _numbers_of_lists(array: pa.Array) -> Numbers:
    """Encode lists as bytes: the numbers of their elements, one after the other."""
    offsets = text_offsets(array).astype(np.int64)
    first, stop = int(offsets[0]), int(offsets[-1])
    elements = array.values.slice(first, stop - first)
    numbers, _ = _numbers(elements) if len(elements) else (np.empty(0, np.int64), 1)
    edges = (offsets - first) * numbers.itemsize
    as_bytes = pa.Array.from_buffers(
        pa.large_binary(),
        len(array),
        [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(numbers))],
    )
    return _with_nulls(array, *_encoded(as_bytes))
