"""Which rows of two blocks have equal keys: an index of one, looked up by the other. Pure.

Arrow's hash tables number the distinct keys; NumPy turns numbers into pairs of rows, as many at a
time as the caller asks for. A key that both sides repeat thus costs time and no memory, where
Acero's join queues all pairs before it returns the first (ADR 7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import to_arrow, to_numpy, to_scalar
from arrow_format.arrays.conversion import float_bits

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

NO_ROW = -1
"""Instead of a row number: no such row. Instead of a key number: unknown, or with a null."""


class KeyIndex:
    """Rows by their keys, which are one or more columns that are not nested.

    A key with a null equals no other. NaN equals NaN, and -0.0 equals 0.0, as in Spark.
    """

    def __init__(self, columns: Sequence[pa.Array]) -> None:
        self._values: list[pa.Array] = []
        self._combined: list[pa.Array] = []
        codes = self._numbered(float_bits(columns[0]), self._values)
        for column in columns[1:]:
            inner = self._numbered(float_bits(column), self._values)
            codes = self._numbered(_pairs(codes, inner, len(self._values[-1])), self._combined)
        self.row_keys = codes
        """Number of the key of each row, or NO_ROW; shape (num_rows,)."""
        self.num_keys = len((self._combined or self._values)[-1])
        """Number of distinct keys."""
        known = codes[codes != NO_ROW]
        counts = np.bincount(known, minlength=self.num_keys)
        rows = np.flatnonzero(codes != NO_ROW)
        # Keys are numbered by first appearance, so those that do not repeat are sorted already.
        self._is_unique = len(known) == self.num_keys
        if not self._is_unique:
            rows = rows[np.argsort(known, kind="stable")]
        # The last items are those of the key NO_ROW, which is -1: no rows, then NO_ROW.
        self._counts = np.append(counts, 0)
        self._starts = np.append(0, np.cumsum(counts))
        self._rows = np.append(rows, NO_ROW)

    @staticmethod
    def _numbered(column: pa.Array, into: list[pa.Array]) -> NDArray[np.int64]:
        encoded = column.dictionary_encode()
        into.append(encoded.dictionary)
        return _numbers(encoded.indices)

    def look_up(self, columns: Sequence[pa.Array]) -> NDArray[np.int64]:
        """Return the number of each row's key, or NO_ROW; shape (num_rows,).

        Columns have the types of those of the index.
        """
        codes = _look_up(float_bits(columns[0]), self._values[0])
        for column, values, combined in zip(
            columns[1:], self._values[1:], self._combined, strict=True
        ):
            inner = _look_up(float_bits(column), values)
            codes = _look_up(_pairs(codes, inner, len(values)), combined)
        return codes

    def pairs(
        self, keys: NDArray[np.int64], *, unmatched: bool, max_pairs: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield pairs (row that looked up, row of the index), ordered by the former.

        ``keys`` are as :meth:`look_up` returned them. With ``unmatched``, a row without a match is
        paired with NO_ROW; otherwise it is left out. No yield is empty.
        """
        if self._is_unique:
            yield from self._single_pairs(keys, unmatched=unmatched, max_pairs=max_pairs)
            return
        counts, starts = self._counts[keys], self._starts[keys]
        if unmatched:
            counts[keys == NO_ROW] = 1
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        for first in range(0, total, max_pairs):
            last = min(first + max_pairs, total)
            head = int(np.searchsorted(ends, first, side="right"))
            tail = int(np.searchsorted(ends, last, side="left")) + 1
            begins = ends[head:tail] - counts[head:tail]
            sizes = np.minimum(ends[head:tail], last) - np.maximum(begins, first)
            rows = np.repeat(np.arange(head, tail), sizes)
            position = np.arange(first, last) + np.repeat(starts[head:tail] - begins, sizes)
            yield rows, self._rows[position]

    def _single_pairs(
        self, keys: NDArray[np.int64], *, unmatched: bool, max_pairs: int
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield what :meth:`pairs` does where no key repeats, which takes a third of the time."""
        for first in range(0, len(keys), max_pairs):
            part = keys[first : first + max_pairs]
            if unmatched:
                yield np.arange(first, first + len(part)), self._rows[part]
            else:
                matched = np.flatnonzero(part != NO_ROW)
                if len(matched):
                    yield matched + first, self._rows[part[matched]]


def _numbers(indices: pa.Array) -> NDArray[np.int64]:
    filled = pc.fill_null(indices, to_scalar(NO_ROW, indices.type))
    numbers: NDArray[np.int64] = to_numpy(filled).astype(np.int64)
    return numbers


def _look_up(column: pa.Array, values: pa.Array) -> NDArray[np.int64]:
    return _numbers(pc.index_in(column, value_set=values, skip_nulls=True))


def _pairs(outer: NDArray[np.int64], inner: NDArray[np.int64], width: int) -> pa.Array:
    """One number per pair, ``inner`` below ``width``; null for NO_ROW. Stays far below 2**63."""
    return to_arrow(outer * width + inner, mask=(outer == NO_ROW) | (inner == NO_ROW))
