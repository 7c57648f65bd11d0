"""Codes whose order as unsigned integers is Spark's order of the values.

Every column becomes *code columns*, the most significant first: whether the row has a value, then
its value in one or more unsigned integers. Comparing rows is then comparing integers.

Source: Spark's ``InterpretedOrdering`` and ``SortOrder``. NaN is the largest number and equal to
itself, -0.0 equals 0.0, text and binary are compared as unsigned bytes, structs field by field with
nulls first (last when descending) whatever is said of nulls of the struct itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    boolean_values,
    fixed_width_values,
    text_octets,
    text_offsets,
    to_arrow,
    to_numpy,
    validity,
)
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.selection import take
from arrow_format.keys.sort_keys import is_descending, puts_nulls_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Codes = np.ndarray[tuple[int], np.dtype[np.unsignedinteger[Any]]]
"""Unsigned integers, one per row."""

Rows = slice | np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
"""Which rows: all of them, or their numbers."""

CodeColumn = Callable[[Rows], Codes]
"""Returns the codes of the given rows, so that a caller may ask for few."""

ALL_ROWS = slice(None)

WORD_BYTES = 7
"""Bytes of text in one word; its lowest byte is their number, or says that more come: ``a`` is less
than ``a`` with a zero byte after it."""

MOST_WORDS = 3
"""Text up to 21 bytes is sorted by its words, longer text by its rank."""

RANK_WORDS = 16
"""Text that agrees in this many words is ranked by comparing it whole."""

_WORKING_BYTES = 28
"""Memory per row that sorting takes at most besides the codes: digits of the radix sort and words,
8 bytes each, a shifted code of 8, and a permutation of 4."""

_TEXT_WORKING_BYTES = 40
"""The same with text, whose starts, lengths and words are wide while they are made."""


def order_codes(array: pa.Array, order: str) -> list[Codes]:
    """Return codes, the most significant first, whose lexicographic order is that of the rows.

    They compare within one call only: concatenate first what is to be compared. Rows are equal in
    all codes exactly if Spark considers their values equal. ``order`` is one of
    :data:`~arrow_format.keys.sort_keys.ORDERS`.
    """
    return [read(ALL_ROWS) for read in _columns(array, order, _sorting_text)]


def key_codes(arrays: Sequence[pa.Array], orders: Sequence[str]) -> list[Codes]:
    """Return the :func:`order_codes` of several columns, the most significant first."""
    return [
        codes
        for array, order in zip(arrays, orders, strict=True)
        for codes in order_codes(array, order)
    ]


def sorting_bytes(types: Sequence[pa.DataType]) -> int:
    """Return the bytes of memory per row that sorting by keys of these types takes."""
    working = _TEXT_WORKING_BYTES if any(map(_has_text, types)) else _WORKING_BYTES
    return sum(map(_code_bytes, types)) + working


def _has_text(type_: pa.DataType) -> bool:
    if pt.is_struct(type_):
        return any(_has_text(field.type) for field in type_)
    return _is_text(type_)


def _code_bytes(type_: pa.DataType) -> int:
    if pt.is_struct(type_):
        return 1 + sum(_code_bytes(field.type) for field in type_)
    if pt.is_null(type_):
        return 1
    return 1 + (8 * MOST_WORDS if _is_text(type_) else -(-type_.bit_width // 8))


def comparable_codes(array: pa.Array, order: str, num_words: int) -> list[CodeColumn]:
    """Return code columns that compare with those of other arrays of the same type.

    Text is compared by its first ``num_words`` words, the same number for all arrays: exactly so
    with text of fewer words, which :func:`num_text_words` counts.
    """
    return list(_columns(array, order, partial(_words_of_text, num_words=num_words)))


def num_text_words(array: pa.Array) -> int:
    """Return the words in which the longest text inside ``array`` ends, at least 1."""
    if pt.is_struct(array.type):
        inside = (num_text_words(array.field(i)) for i in range(array.type.num_fields))
        return max(inside, default=1)
    if _is_text(array.type):
        longest = int(np.diff(text_offsets(_plain(array))).max(initial=0))
        return -(-longest // WORD_BYTES) or 1
    return 1


# Flags, nulls and direction ----------------------------------------------------------------------


def _columns(
    array: pa.Array, order: str, text: Callable[[pa.Array], list[CodeColumn]]
) -> Iterator[CodeColumn]:
    """Code columns of an array; except for the flag, those of nulls are zero."""
    valid = validity(array)
    null, value = (0, 1) if puts_nulls_first(order) else (1, 0)
    flags = (
        np.broadcast_to(np.uint8(value), len(array))
        if valid is None
        else np.where(valid, np.uint8(value), np.uint8(null))
    )
    yield flags.__getitem__
    if pt.is_struct(array.type):
        inner = "descending" if is_descending(order) else "ascending"
        for i in range(array.type.num_fields):
            for column in _columns(array.field(i), inner, text):
                yield partial(_shown, column, valid, descending=False)
        return
    inside = text(_plain(array)) if _is_text(array.type) else _fixed_width(array)
    for column in inside:
        yield partial(_shown, column, valid, descending=is_descending(order))


def _shown(
    column: CodeColumn, valid: NDArray[np.bool_] | None, rows: Rows, *, descending: bool
) -> Codes:
    codes = column(rows)
    if descending:
        codes = ~codes
    if valid is not None:
        codes = np.where(valid[rows], codes, codes.dtype.type(0))
    return codes


# Values of fixed width ---------------------------------------------------------------------------


def _fixed_width(array: pa.Array) -> list[CodeColumn]:
    return [codes.__getitem__ for codes in _fixed_width_codes(array)]


def _fixed_width_codes(array: pa.Array) -> list[Codes]:
    type_ = array.type
    if pt.is_null(type_):
        return []
    if pt.is_boolean(type_):
        return [boolean_values(array)]
    width = type_.bit_width // 8
    if pt.is_decimal(type_):
        return _decimal_codes(array, width)
    bits = fixed_width_values(array, f"u{width}")
    if pt.is_unsigned_integer(type_):
        return [bits]
    if pt.is_floating(type_):
        return [_float_codes(bits)]
    return [_signed_codes(bits)]


def _signed_codes(bits: Codes) -> Codes:
    """Two's complement with the sign inverted, so that negative numbers come first."""
    return bits ^ bits.dtype.type(1 << (8 * bits.itemsize - 1))


def _float_codes(bits: Codes) -> Codes:
    """IEEE 754 numbers, on their bits: a signalling NaN makes NumPy's arithmetic warn."""
    unsigned = bits.dtype.type
    sign = unsigned(1 << (8 * bits.itemsize - 1))
    infinity = unsigned({2: 0x7C00, 4: 0x7F80_0000, 8: 0x7FF0 << 48}[bits.itemsize])
    # The larger a negative number's magnitude, the smaller it is.
    codes = np.where(bits > sign, ~bits, bits | sign)  # -0.0 is the sign alone: it joins 0.0
    codes[(bits & ~sign) > infinity] = np.iinfo(unsigned).max
    return codes


def _decimal_codes(array: pa.Array, width: int) -> list[Codes]:
    """Unscaled values: one word if the precision fits into it, else limbs."""
    if width <= 8:
        return [_signed_codes(fixed_width_values(array, f"u{width}"))]
    num_limbs = width // 8
    limbs = fixed_width_values(array, np.dtype((np.uint64, num_limbs)))
    if array.type.precision <= 18:
        return [_signed_codes(limbs[:, 0])]
    return [_signed_codes(limbs[:, -1]), *(limbs[:, i] for i in reversed(range(num_limbs - 1)))]


# Text and bytes ----------------------------------------------------------------------------------


def _is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_) or pt.is_binary(type_) or pt.is_fixed_size_binary(type_))


def _plain(array: pa.Array) -> pa.Array:
    return array.cast(pa.binary()) if pt.is_fixed_size_binary(array.type) else array


class _Text:
    """Strings or bytes as big-endian words of seven bytes and a count."""

    def __init__(self, array: pa.Array) -> None:
        self._offsets = text_offsets(array)
        octets = text_octets(array)
        self._num_octets = len(octets)
        # The eight bytes at every position; reading them unaligned is faster than copying them.
        self._at: NDArray[np.uint64] = np.ndarray(
            (len(octets) - 7,), np.dtype("<u8"), octets, strides=(1,)
        )

    def words(self, number: int, rows: Rows) -> Codes:
        """Return word ``number`` (from 0) of each row; zero where the text has ended."""
        starts = self._offsets[:-1][rows].astype(np.int64)
        starts += number * WORD_BYTES
        remaining = self._offsets[1:][rows] - starts
        np.clip(remaining, 0, WORD_BYTES + 1, out=remaining)
        last = len(self._at) - 1
        words = self._at[np.minimum(starts, last)].byteswap()
        if len(starts) and int(starts.max()) > last:
            # Near the end, the word read begins before the text; text that ended is masked to 0.
            behind = np.minimum(starts, self._num_octets - 1) - last
            words <<= np.maximum(behind, 0).astype(np.uint64) * np.uint64(8)
        words &= _KEPT[remaining]
        words |= remaining.view(np.uint64)
        return words


_KEPT = np.array(
    [((1 << 64) - 1) ^ ((1 << (64 - 8 * min(n, WORD_BYTES))) - 1) for n in range(WORD_BYTES + 2)],
    np.uint64,
)
"""Bits of a word that belong to the text, by how many bytes of it remain."""


def _words_of_text(array: pa.Array, num_words: int) -> list[CodeColumn]:
    text = _Text(array)
    return [partial(text.words, number) for number in range(num_words)]


def _sorting_text(array: pa.Array) -> list[CodeColumn]:
    """Words of short text, else one column of ranks."""
    num_words = num_text_words(array)
    if num_words <= MOST_WORDS:
        return _words_of_text(array, num_words)
    return [_text_ranks(array).__getitem__]


def _text_ranks(array: pa.Array) -> NDArray[np.uint32]:
    """Count, for each row, the rows with smaller text.

    Rows that are equal so far are compared by one more word, until they differ or end.
    """
    text = _Text(array)
    ranks = np.zeros(len(array), np.uint32)
    rows = np.arange(len(array))
    for number in range(RANK_WORDS):
        words = text.words(number, rows)
        ranks[rows], is_tied = _refined(ranks[rows], words)
        rows = rows[is_tied & (words & np.uint64(0xFF) > WORD_BYTES)]
        if not len(rows):
            return ranks
    whole = to_numpy(pc.rank(take(array, to_arrow(rows)), tiebreaker="dense"))
    ranks[rows], _ = _refined(ranks[rows], whole)
    return ranks


def _refined(
    ranks: NDArray[np.uint32], codes: Codes
) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
    """Ranks after rows of equal rank were compared by a code, and which rows are still tied."""
    order = sort_permutation([ranks, codes])
    before, codes = ranks[order], codes[order]
    places = np.arange(len(order), dtype=np.uint32)
    begins_rank = np.ones(len(order), np.bool_)
    begins_rank[1:] = before[1:] != before[:-1]
    begins = begins_rank.copy()
    begins[1:] |= codes[1:] != codes[:-1]
    rank_starts = np.maximum.accumulate(np.where(begins_rank, places, 0))
    starts = np.maximum.accumulate(np.where(begins, places, 0))
    is_alone = begins & np.append(begins[1:], True)
    refined = np.empty_like(ranks)
    refined[order] = before + (starts - rank_starts)
    is_tied = np.empty(len(order), np.bool_)
    is_tied[order] = ~is_alone
    return refined, is_tied
