"""The group of each row: a number, the same exactly for rows of one key. Pure.

A hash table of NumPy arrays, all rows at a time. Each row puts its number into the place that its
key has in a table; of several rows the last stays. A row whose key is that of the row it then finds
there belongs to it. The others had their place taken: they are few, and try another table.

Arrow's tables take twice as long for texts, since they look up one after the other in more memory
than the processor's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_octets, text_offsets, validity
from arrow_format.keys.key_numbers import encoded, key_numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Words = list[NDArray[np.int64]]
    Groups = tuple[NDArray[np.int64], NDArray[np.int64]]

BLOCK_ROWS = 1 << 16
"""Rows per pass: what a pass makes stays in the processor's cache, and needs no new memory."""

PLACES_PER_ROW = 4
MIN_PLACES = 1 << 12
"""Most places of a table in which each number has its own: a larger one is further from the
processor's cache than one of digests."""

WORD_BYTES = 8
MAX_WORDS = 4
"""Words of the longest texts that are compared as words; longer ones are numbered by Arrow."""

FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)
"""Odd numbers that spread words over 64 bits."""

_HALF = np.uint64(32)


def key_groups(columns: Sequence[pa.Array]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the group of each row, numbered from 0, and the last row of each group.

    Columns are as for :func:`~arrow_format.keys.key_numbers.key_numbers`, of less than 2**31 rows;
    rows of equal keys are one group.
    """
    num_rows = len(columns[0])
    if not num_rows:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    words: Words = []
    others = []
    for column in columns:
        of_text = text_words(column)
        words += of_text or []
        others += [] if of_text else [column]
    if others:
        numbers, bound = key_numbers(others)
        if not words and bound <= max(PLACES_PER_ROW * num_rows, MIN_PLACES):
            return _by_place(numbers, bound)
        words.append(numbers)
    return _by_words(words, FACTORS)


def _by_place(places: NDArray[np.int64], bound: int) -> Groups:
    """Put the groups of rows in the place of numbers below a bound, in order of their last rows."""
    table = np.empty(bound, np.int32)
    # Of several rows that are assigned to one place, NumPy leaves the last.
    for start, block in _blocks(places):
        table[block] = np.arange(start, start + len(block), dtype=np.int32)
    parts = []
    for start, block in _blocks(places):
        rows = np.arange(start, start + len(block), dtype=np.int32)
        parts.append(np.flatnonzero(table[block] == rows) + start)
    last = np.concatenate(parts)
    table[places[last]] = np.arange(len(last), dtype=np.int32)
    for _, block in _blocks(places):
        block[:] = table[block]
    return places, last


def _blocks(values: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the first row and the values of each block, which are small beside the cache."""
    for start in range(0, len(values), BLOCK_ROWS):
        yield start, values[start : start + BLOCK_ROWS]


def _by_words(words: Words, factors: tuple[int, ...]) -> Groups:
    """Group rows by their words, as :func:`_by_place`; one table for each factor, then Arrow's."""
    if not factors:
        content = np.stack(words, axis=1)
        width = pa.binary(content.itemsize * len(words))
        array = pa.Array.from_buffers(width, len(content), [None, pa.py_buffer(content)])
        return _by_place(*encoded(array))
    bits = max((len(words[0]) - 1).bit_length(), 1)
    groups, last = _by_place(_digests(words, bits, np.uint64(factors[0])), 1 << bits)
    of_groups = [word[last] for word in words]
    other = []
    for start, block in _blocks(groups):
        differs = np.zeros(len(block), np.bool_)
        for word, of_group in zip(words, of_groups, strict=True):
            differs |= of_group[block] != word[start : start + len(block)]
        other.append(np.flatnonzero(differs) + start)
    rows = np.concatenate(other)
    if len(rows):
        more, last_of_more = _by_words([word[rows] for word in words], factors[1:])
        groups[rows] = more + len(last)
        last = np.concatenate([last, rows[last_of_more]])
    return groups, last


def _digests(words: Words, bits: int, factor: np.uint64) -> NDArray[np.int64]:
    """Return numbers of so many bits, the same for the same words, and spread evenly."""
    digests = np.empty(len(words[0]), np.int64)
    for start in range(0, len(digests), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        mixed = digests[block].view(np.uint64)
        mixed[:] = 0
        for word in words:
            mixed += word[block].view(np.uint64)
            mixed *= factor
            mixed ^= mixed >> _HALF
        mixed *= factor
        mixed >>= np.uint64(64 - bits)
    return digests


def text_words(column: pa.Array) -> Words | None:
    """Return short texts as words, the same exactly for equal texts; None where they are not short.

    A text of 8 bytes or more is its words, the last of which ends where it ends, and its length; a
    shorter one is zeros before its bytes, and its length.
    """
    if not pt.is_string(column.type) and not pt.is_binary(column.type):
        return None
    offsets = text_offsets(column)
    octets = text_octets(column)
    lengths = np.diff(offsets)
    longest, shortest = int(lengths.max()), int(lengths.min())
    num_words = max(-(-longest // WORD_BYTES), 1)
    if num_words > MAX_WORDS:
        return None
    words = [np.empty(len(column), np.int64) for _ in range(num_words)]
    margin = np.zeros(WORD_BYTES, np.uint8)
    for start in range(0, len(column), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        starts = offsets[start : start + BLOCK_ROWS + 1].astype(np.int64)
        content = np.concatenate([margin, octets[starts[0] : starts[-1]]])
        at = np.ndarray((len(content) - WORD_BYTES + 1,), np.int64, content, strides=(1,))
        starts -= starts[0]
        # With the margin, the word that ends at an offset begins there.
        starts, ends = starts[:-1], starts[1:]
        for word in words[:-1]:
            starts = np.minimum(starts + WORD_BYTES, ends)
            word[block] = at[starts]
        words[-1][block] = at[ends]
        if shortest < WORD_BYTES:
            spare = 8 * np.maximum(WORD_BYTES - lengths[block], 0).astype(np.uint64)
            for word in words:
                word[block].view(np.uint64)[:] >>= spare
    valid = validity(column)
    if shortest < longest or valid is not None:
        words.append(lengths.astype(np.int64))
    return words if valid is None else [np.where(valid, word, -1) for word in words]
