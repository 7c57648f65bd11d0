"""The regions of a data file as frozen values: rows by rank, and the chunks that have them. Pure.

Rows are counted in rows, sizes in bytes, and every array is one-dimensional. Source: FLIP-148
("data region"), with chunks as the physical unit inside a region.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from arrow_format.format.chunk_table import ChunkTable
    from arrow_format.model import Int32Array, Int64Array

_BLOCK = 256
"""Numbers between two sums that :class:`PrefixSums` holds."""


class RegionKind(IntEnum):
    """Who reads the rows of a region: one subpartition each, or every subpartition all of them."""

    UNICAST = 0
    BROADCAST = 1


class PrefixSums:
    """Small unsigned numbers and their running sums, of which only some are held.

    The sum before every 256th number is held, so that a sum or a position costs the same however
    many numbers there are.
    """

    __slots__ = ("_before_blocks", "values")

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values
        starts = np.arange(0, len(values), _BLOCK)
        self._before_blocks = np.zeros(len(starts) + 1, np.int64)
        # NumPy sums unsigned numbers as uint64 three times as fast as it does as int64.
        sums = np.add.reduceat(values, starts, dtype=np.uint64).astype(np.int64)
        sums.cumsum(out=self._before_blocks[1:])

    @staticmethod
    def of(values: npt.NDArray[Any]) -> PrefixSums:
        """Return sums of whole numbers from 0 on, held in the fewest bytes that fit the largest."""
        return PrefixSums(values.astype(np.min_scalar_type(values.max(initial=0))))

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"PrefixSums({self.values!r})"

    @property
    def total(self) -> int:
        """Sum of all numbers."""
        return int(self._before_blocks[-1])

    def before(self, position: int) -> int:
        """Return the sum of the numbers before a position."""
        block = position // _BLOCK
        rest = self.values[block * _BLOCK : position]
        return int(self._before_blocks[block] + rest.sum(dtype=np.int64))

    def position(self, total: int) -> int:
        """Return the last position before which the sum is at most ``total``, 0 or more."""
        block = int(self._before_blocks.searchsorted(total, "right")) - 1
        first = block * _BLOCK
        sums = self.values[first : first + _BLOCK].cumsum(dtype=np.int64)
        inside = int(sums.searchsorted(total - self._before_blocks[block], "right"))
        return min(first + inside, len(self.values))

    def between(self, first: int, end: int) -> Int64Array:
        """Return the sums before each position from ``first`` to ``end``, both included."""
        sums = np.empty(end - first + 1, np.int64)
        sums[0] = self.before(first)
        np.cumsum(self.values[first:end], dtype=np.int64, out=sums[1:])
        sums[1:] += sums[0]
        return sums


@dataclass(frozen=True, slots=True)
class Region:
    """One flush of the sort buffer, its rows ordered by rank.

    The rank is ``(subpartition - first_subpartition) mod num_subpartitions``.

    Source: FLIP-148, "data region"; the rotation is Flink's ``subpartitionOrder``.
    """

    kind: RegionKind
    num_rows: int
    first_subpartition: int
    rank_gaps: PrefixSums | None
    """Distance of each listed rank, ascending, from the one before, of the first from -1; None when
    all ranks are listed, and for a broadcast region."""
    rank_rows: PrefixSums
    """Rows of each listed rank, 0 only where all are listed; empty for a broadcast region."""
    chunks: ChunkTable

    @property
    def raw_length(self) -> int:
        """Bytes of all chunks before they were compressed."""
        return int(self.chunks.raw_length.sum())

    @property
    def row_offsets(self) -> Int64Array:
        """Row at which each listed rank starts, then ``num_rows``; both ends when broadcast."""
        if self.kind is RegionKind.BROADCAST:
            return np.array([0, self.num_rows])
        return self.rank_rows.between(0, len(self.rank_rows))

    def _ranks(self, first: int, end: int) -> Int64Array:
        if self.rank_gaps is None:
            return np.arange(first, end)
        ranks: Int64Array = self.rank_gaps.between(first, end)[1:] - 1
        return ranks

    def rank_extent(self, first_rank: int, end_rank: int) -> tuple[int, int]:
        """Return the rows ``[first, end)`` of a range of ranks of a unicast region."""
        if self.rank_gaps is not None:
            first_rank = self.rank_gaps.position(first_rank)
            end_rank = self.rank_gaps.position(end_rank)
        return self.rank_rows.before(first_rank), self.rank_rows.before(end_rank)

    def ranks_of_rows(self, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Return the ranks of the rows ``[first, end)``, ascending, and the row where each starts.

        One more row follows, ``end``. A rank without rows may be among them: it starts where the
        next one does. All rows of a broadcast region are of rank 0.
        """
        if self.kind is RegionKind.BROADCAST:
            return np.zeros(1, np.int64), np.array([first, end])
        lo = self.rank_rows.position(first)
        hi = self.rank_rows.position(end - 1) + 1
        return self._ranks(lo, hi), np.clip(self.rank_rows.between(lo, hi), first, end)

    def chunk_rows(self, chunk: int) -> tuple[int, int]:
        """Return the rows ``[first, end)`` of the region that a chunk has."""
        starts = self.chunks.first_row
        end = int(starts[chunk + 1]) if chunk + 1 < len(starts) else self.num_rows
        return int(starts[chunk]), end

    def row_extents(
        self, first: int, end: int, num_subpartitions: int
    ) -> tuple[tuple[int, int], ...]:
        """Return the extents of rows, in file order, of subpartitions ``[first, end)``.

        There are at most two: a range that crosses ``first_subpartition`` is at both ends of a
        rotated region.
        """
        if self.kind is RegionKind.BROADCAST:
            extents = [(0, self.num_rows)]
        elif first < self.first_subpartition < end:
            wrapped = first - self.first_subpartition + num_subpartitions
            extents = [
                self.rank_extent(0, end - self.first_subpartition),
                self.rank_extent(wrapped, num_subpartitions),
            ]
        else:
            rank = (first - self.first_subpartition) % num_subpartitions
            extents = [self.rank_extent(rank, rank + end - first)]
        return tuple((start, stop) for start, stop in extents if stop > start)

    def subpartitions_of_rows(self, first: int, end: int, num_subpartitions: int) -> Int32Array:
        """Return the subpartition (int32) of each row in ``[first, end)`` of a unicast region."""
        ranks, edges = self.ranks_of_rows(first, end)
        ids = ((ranks + self.first_subpartition) % num_subpartitions).astype(np.int32)
        return np.repeat(ids, np.diff(edges))

    def subpartition_rows(self, num_subpartitions: int) -> tuple[Int64Array, Int64Array]:
        """Return the listed subpartitions and their numbers of rows, which may be 0, in rank order.

        All rows of a broadcast region count for every subpartition.
        """
        if self.kind is RegionKind.BROADCAST:
            all_ids = np.arange(num_subpartitions, dtype=np.int64)
            return all_ids, np.full(num_subpartitions, self.num_rows, np.int64)
        ids = (self._ranks(0, len(self.rank_rows)) + self.first_subpartition) % num_subpartitions
        return ids, self.rank_rows.values.astype(np.int64)
