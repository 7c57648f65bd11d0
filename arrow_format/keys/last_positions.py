"""Which rows are the last of their key: exact, whole columns at a time. Pure.

The keys decide how. Numbers and few texts: the last row of each group of
:mod:`~arrow_format.keys.key_groups`. Many texts or nested values: a sort of their hashes, then rows
of the same hash are compared, and those are grouped that differ.

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

from arrow_format.arrays.buffers import to_arrow, to_numpy, to_scalar
from arrow_format.arrays.conversion import float_bits
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.keys.key_groups import key_groups
from arrow_format.keys.key_numbers import is_integer
from arrow_format.keys.spark_hash import hash_columns
from arrow_format.keys.spark_order import key_codes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


SAMPLE_ROWS = 1 << 12
"""Rows in the sample that estimates how many keys there are."""

MANY_KEYS = 1 << 15
"""From about so many on, looking up a text in a hash table costs more than its hash and a sort."""


def last_positions(columns: Sequence[pa.Array], num_rows: int) -> NDArray[np.int64]:
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
        is_last[key_groups(columns)[1]] = True
    else:
        is_last = _are_last_by_hash(columns, num_rows)
    return np.flatnonzero(is_last)


def last_by(
    keys: Sequence[pa.Array], by: Sequence[pa.Array], orders: Sequence[str]
) -> NDArray[np.integer]:
    """Return the last row of each key in the order of other columns, at least one.

    Of rows that these leave open, and that is the later one, the last. ``orders`` are those of a
    sort key.
    """
    order = sort_permutation(key_codes(by, orders))
    if bool((order[1:] > order[:-1]).all()):  # as where each append has later ones
        return last_positions(keys, len(order))
    in_order = to_arrow(order)
    ordered = [take(key, in_order) for key in keys]
    last: NDArray[np.integer] = order[last_positions(ordered, len(order))]
    return last


def _is_numeric(type_: pa.DataType) -> bool:
    """Whether values are numbered without a table of the distinct ones."""
    return not pt.is_nested(type_) and (
        pt.is_boolean(type_) or pt.is_floating(type_) or is_integer(type_)
    )


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
        last_of_group = key_groups([take(column, index) for column in columns])[1]
        is_last[doubtful[last_of_group]] = True
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
