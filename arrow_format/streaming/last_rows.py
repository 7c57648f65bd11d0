"""Which rows are the last of their key: exact, whole columns at a time. Pure.

There are four ways, and the keys decide: a table with a place for each number, where numbers are
small; a sort of numbers and rows as one word, where these fit into it; a sort of digests that is
checked, where they do not; and of many texts or the like a sort of their hashes, where rows of one
hash are compared. Only few texts, and rows of one hash with different keys, need a hash table.
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


_MOST_NUMBERS = 1 << 62
"""Numbers of several columns become one by a product, which stays below this."""

_ALL_NUMBERS = 1 << 64
"""A bound that says nothing about numbers of 64 bits."""

Numbers = tuple["NDArray[np.int64]", int]
"""A number for each row, and what all of them are below."""


def key_numbers(columns: Sequence[pa.Array]) -> Numbers:
    """Give each row a number: rows have equal ones if and only if their keys are equal.

    Parameters
    ----------
    columns
        Key columns, one or more, of types that can be hash keys
        (:func:`~arrow_format.keys.spark_hash.check_hashable`), of one row or more; slices are fine.

    Returns
    -------
    tuple
        The number of each row, shape (num_rows,), and a bound that all of them are below. Where
        that is more than 2**63 they may be negative as well.
    """
    return _combined(_numbers(column) for column in columns)


def are_cheap(columns: Sequence[pa.Array]) -> bool:
    """Whether keys are numbered without a table of all that are different."""
    return all(
        not pt.is_nested(column.type)
        and (pt.is_boolean(column.type) or pt.is_floating(column.type) or _is_integer(column.type))
        for column in columns
    )


def renumbered(numbers: NDArray[np.int64]) -> Numbers:
    """Return numbers from 0 on, as many as are different."""
    return _encoded(to_arrow(numbers))


def _combined(parts: Iterable[Numbers]) -> Numbers:
    """One number for the numbers of several columns."""
    whole: Numbers | None = None
    for part in parts:
        if whole is None:
            whole = part
            continue
        if whole[1] * part[1] >= _MOST_NUMBERS:
            whole, added = renumbered(whole[0]), renumbered(part[0])
        else:
            added = part
        whole = whole[0] * added[1] + added[0], whole[1] * added[1]
    return whole if whole is not None else (np.empty(0, np.int64), 1)


def _encoded(array: pa.Array) -> Numbers:
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


def _is_integer(type_: pa.DataType) -> bool:
    """Whether values are integers of at most 64 bits, whatever they stand for."""
    return not (pt.is_decimal(type_) or pt.is_string(type_) or pt.is_binary(type_))


def _numbers_of_integers(array: pa.Array) -> Numbers:
    """Values less the least of them, unless that is too far from the greatest."""
    dtype = np.dtype(f"i{array.type.bit_width // 8}")
    values = fixed_width_values(array, dtype)
    valid = validity(array)
    there = values if valid is None else values[valid]
    least = int(there.min())
    width = int(there.max()) - least + 1
    if width >= _MOST_NUMBERS:
        return _encoded(array) if array.null_count else (values, _ALL_NUMBERS)
    # What stands under a null may be anything; it is replaced.
    return _with_nulls(array, values.astype(np.int64) - least, width)


def _with_nulls(array: pa.Array, numbers: NDArray[np.int64], width: int) -> Numbers:
    """Numbers with another one for nulls."""
    valid = validity(array)
    if valid is None:
        return numbers, width
    if width >= _MOST_NUMBERS:
        numbers, width = renumbered(numbers)
    return np.where(valid, numbers, width), width + 1


def _numbers_of_structs(array: pa.Array) -> Numbers:
    children = [array.field(i) for i in range(array.type.num_fields)]
    if not children:
        return _with_nulls(array, np.zeros(len(array), np.int64), 1)
    return _with_nulls(array, *_combined(_numbers(child) for child in children))


def _numbers_of_lists(array: pa.Array) -> Numbers:
    """Take lists for bytes: the numbers of their elements, one after the other."""
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


TABLE_PER_ROW = 4
"""Places for each row that a table of numbers may have; a sort takes longer, and so does clearing
more of them."""

TABLE_AT_LEAST = 1 << 12

SAMPLE_ROWS = 1 << 12
"""Rows that are looked at to guess how many keys there are."""

MANY_KEYS = 1 << 15
"""From about so many on, looking up a text in a hash table costs more than its hash and a sort."""

_WORD_BITS = 64
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads numbers over all of uint64 (Knuth's multiplicative hash); being odd, it loses none."""


def last_rows(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.int64]:
    """Return the last row of each key, ascending.

    Parameters
    ----------
    columns
        Key columns of ``num_rows`` rows, of types that can be hash keys
        (:func:`~arrow_format.keys.spark_hash.check_hashable`); slices are fine. Without any, all
        rows have the same key. A null equals a null, a NaN every NaN, and -0.0 equals 0.0.
    num_rows
        How many rows there are, less than 2**31.
    """
    if num_rows == 0:
        return np.empty(0, np.int64)
    if not columns:
        return np.array([num_rows - 1], np.int64)
    if not are_cheap(columns) and _seem_many(columns, num_rows):
        is_last = _are_last_by_hash(columns, num_rows)
    else:
        is_last = np.zeros(num_rows, np.bool_)
        is_last[_last(columns)] = True
    return np.flatnonzero(is_last)


def _seem_many(columns: Sequence[pa.Array], num_rows: int) -> bool:
    """Whether there seem to be so many keys that a hash table of them is slow, by a sample.

    Of m rows with K keys, about m**2 / 2K have one that was there before.
    """
    if num_rows <= SAMPLE_ROWS:
        return False
    if _are_nested(columns):
        return True
    some = to_arrow(np.linspace(0, num_rows - 1, SAMPLE_ROWS).astype(np.int64))
    most = max(pc.count_distinct(take(column, some), mode="all").as_py() for column in columns)
    return bool(SAMPLE_ROWS - most <= SAMPLE_ROWS**2 / (2 * MANY_KEYS))


def _are_nested(columns: Sequence[pa.Array]) -> bool:
    return any(pt.is_nested(column.type) for column in columns)


def _are_last_by_hash(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.bool_]:
    """Tell which rows are the last of their key; a hash that occurs once needs no further look."""
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
    several = lengths > 1
    alike = rows[np.repeat(several, lengths)]
    if not len(alike):
        return is_last
    # Each is compared with the first of its run: those are few, and mostly stand close together.
    first_of = np.empty(num_rows, np.uint32)
    first_of[alike] = np.repeat(rows[starts[several]], lengths[several])
    alike.sort()
    del rows, starts, lengths, several
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
    """Tell which of some rows, ascending, have the key of the row in the same place of another."""
    equal = np.ones(len(rows), np.bool_)
    for column in columns:
        ours = float_bits(column)
        theirs = take(ours, to_arrow(others), boundscheck=False)
        if len(rows) < len(ours):
            ours = take(ours, to_arrow(rows), boundscheck=False)
        same = pc.fill_null(pc.equal(ours, theirs), to_scalar(0, pa.bool_()))
        there = to_numpy(same)
        if ours.null_count:
            there = there | to_numpy(pc.and_(ours.is_null(), theirs.is_null()))
        equal &= there
    return equal


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
