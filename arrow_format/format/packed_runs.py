"""Which values are wanted of packed columns of some chunks; pure."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arrow_format.arrays.selection import ranges

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.model import Int64Array

MANY_CHUNKS, FEW_ROWS = 16, 32
"""So many chunks, of which so few rows each are wanted, are unpacked by one call of NumPy for all;
of others a call for each costs less than to look up each value."""


class Runs(NamedTuple):
    """Values of a node that are wanted of some chunks."""

    rows: Sequence[tuple[int, int, int]]
    """Of each chunk the number of its values, and ``first`` and ``end`` of those wanted."""
    edges: list[int]
    """Where the first one of each comes among those of all, then their number."""
    are_all: bool
    """Whether all values of a single chunk are wanted."""
    few: Few | None
    """Where they are, if they are a few values of each of many chunks."""

    @staticmethod
    def of(rows: Sequence[tuple[int, int, int]]) -> Runs:
        """Return those that are wanted of each chunk, as :attr:`rows` has it."""
        edges = [*accumulate((end - first for _, first, end in rows), initial=0)]
        is_few = len(rows) >= MANY_CHUNKS and edges[-1] <= FEW_ROWS * len(rows)
        # Of more values than a column can have the other way says which chunk is damaged.
        is_few = is_few and max(number for number, _, _ in rows) < 1 << 31
        few = Few.of(rows) if is_few else None
        return Runs(rows, edges, len(rows) == 1 and edges[-1] == rows[0][0], few)

    def times(self, number: int) -> Runs:
        """Return as many values for each."""
        if number == 1:
            return self
        return Runs.of([(number * n, number * first, number * end) for n, first, end in self.rows])


class Few(NamedTuple):
    """A few wanted values of each of many chunks."""

    extents: Int64Array
    """Of each chunk the number of its values, and ``first`` and ``end`` of those wanted."""
    chunk: Int64Array
    """Of each value that is wanted, its chunk."""
    row: Int64Array
    """And its place in there."""

    @staticmethod
    def of(rows: Sequence[tuple[int, int, int]]) -> Few:
        """Return those that are wanted of each chunk, as :attr:`Runs.rows` has it."""
        extents = np.array(rows, np.int64)
        counts = extents[:, 2] - extents[:, 1]
        chunk = np.repeat(np.arange(len(rows)), counts)
        return Few(extents, chunk, ranges(extents[:, 1], counts))
