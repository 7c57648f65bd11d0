"""Which rows are of which subpartition, by extents of adjacent ones; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arrow_format.arrays.selection import ascending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from arrow_format.model import Int32Array, Int64Array

GONE = -1
"""In the place of a subpartition: of rows that a mask took."""


class Extents(NamedTuple):
    """Adjacent rows of one subpartition each, one extent behind the other.

    Two that are adjacent may be of the same subpartition.
    """

    ids: Int32Array
    """Subpartition of each."""
    sizes: Int64Array
    """Rows of each, 1 or more."""

    @staticmethod
    def of(ids: Int32Array, edges: Int64Array) -> Extents:
        """Return extents by where each begins, and the last one ends; those without rows go."""
        sizes = np.diff(edges)
        is_there = sizes > 0
        return Extents(ids, sizes) if is_there.all() else Extents(ids[is_there], sizes[is_there])

    @staticmethod
    def all_of(subpartition: int, num_rows: int) -> Extents:
        """Return rows that are all of one subpartition."""
        sizes = np.array([num_rows] if num_rows else [], np.int64)
        return Extents(np.full(len(sizes), subpartition, np.int32), sizes)

    @staticmethod
    def of_rows(ids: Int32Array) -> Extents:
        """Return the longest extents, by the subpartition of each row."""
        is_first = np.ones(len(ids), np.bool_)
        np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
        starts = np.flatnonzero(is_first)
        return Extents(ids[starts], np.diff(starts, append=len(ids)))

    @staticmethod
    def joined(parts: Sequence[Extents]) -> Extents:
        """Return all extents of some, one behind the other."""
        if len(parts) == 1:
            return parts[0]
        ids, sizes = zip(*parts, strict=True)
        return Extents(np.concatenate(ids), np.concatenate(sizes))

    def left(self, rows: Int64Array) -> Extents:
        """Return them with the rows at some positions alone, which ascend."""
        edges = np.append(0, self.sizes.cumsum())
        return Extents.of(self.ids, np.searchsorted(rows, edges))

    def marked(self, is_left: NDArray[np.bool_]) -> Extents:
        """Return them cut where the rows that are left begin and end; others are of ``GONE``."""
        ids, sizes = self.cut(np.flatnonzero(np.diff(is_left)) + 1)
        ids[~is_left[sizes.cumsum() - sizes]] = GONE
        return Extents(ids, sizes)

    def cut(self, rows: Int64Array) -> Extents:
        """Return them cut before some rows too, which they have."""
        ends = self.sizes.cumsum()
        starts = ascending(np.concatenate([ends - self.sizes, rows]))
        ids = self.ids[np.searchsorted(ends, starts, side="right")]
        return Extents(ids, np.diff(starts, append=ends[-1:]))

    @property
    def each(self) -> Int32Array:
        """Subpartition of each row."""
        return np.repeat(self.ids, self.sizes)
