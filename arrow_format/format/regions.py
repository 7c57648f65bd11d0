"""The regions of a data file as frozen values: rows by rank, and the chunks that have them. Pure.

Rows are counted in rows, sizes in bytes, and every array is one-dimensional. Source: FLIP-148
("data region"), with chunks as the physical unit inside a region.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.format.chunk_table import ChunkTable
from arrow_format.format.extents import Extents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from arrow_format.model import Int32Array, Int64Array

MAX_REGION_ROWS = (1 << 31) - 1
"""Row offsets of a region are 32-bit."""

_BLOCK = 64
"""Numbers between two sums that :class:`PrefixSums` holds."""


class RegionKind(IntEnum):
    """Who reads the rows of a region: one subpartition each, or every subpartition all of them."""

    UNICAST = 0
    BROADCAST = 1


class PrefixSums:
    """Small unsigned numbers and their running sums, of which only some are held.

    The sum before every 64th number is held, so that a sum or a position costs the same however
    many numbers there are. They are added up when one is asked for.
    """

    __slots__ = ("_known", "values")

    def __init__(self, values: npt.NDArray[Any]) -> None:
        self.values = values
        self._known: Int64Array | None = None

    @property
    def _before_blocks(self) -> Int64Array:
        if self._known is None:  # several threads may do this: they make equal ones
            values = self.values
            num_whole = len(values) // _BLOCK
            known = np.zeros(-(-len(values) // _BLOCK) + 1, np.int64)
            # Of 64 numbers the sum fits twice their bytes. np.add.reduceat is as fast, but makes
            # all of them as wide as the sums first.
            wider = f"u{min(2 * values.itemsize, 8)}"
            whole = values[: num_whole * _BLOCK].reshape(-1, _BLOCK)
            known[1 : num_whole + 1] = whole.sum(axis=1, dtype=wider)
            known[num_whole + 1 :] = values[num_whole * _BLOCK :].sum(dtype=np.uint64)
            known.cumsum(out=known)
            self._known = known
        return self._known

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
        rest = int(self.values[block * _BLOCK : position].sum(dtype=np.int64))
        return int(self._before_blocks[block]) + rest if block else rest

    def position(self, total: int) -> int:
        """Return the last position before which the sum is at most ``total``, 0 or more."""
        return self.positions(total)[0]

    def positions(self, *totals: int) -> list[int]:
        """Return :meth:`position` of several sums."""
        found: list[int] = []
        last, sums = -1, self.values[:0]
        for block, total in zip(self._blocks_of(totals), totals, strict=True):
            first = block * _BLOCK
            if block != last:  # few are far from the one before
                sums, last = self.values[first : first + _BLOCK].cumsum(dtype=np.int64), block
            before = self._before_blocks[block] if block else 0
            inside = int(sums.searchsorted(total - before, "right"))
            found.append(min(first + inside, len(self.values)))
        return found

    def _blocks_of(self, totals: Sequence[int]) -> list[int]:
        if len(self.values) <= _BLOCK:
            return [0] * len(totals)
        return (self._before_blocks.searchsorted(totals, "right") - 1).tolist()  # type: ignore[no-any-return]

    def before_each(self, positions: Int64Array) -> Int64Array:
        """Return :meth:`before` of many positions."""
        if self._is_small_for(positions):
            return self.between(0, len(self.values))[positions]
        block, rest = np.divmod(positions, _BLOCK)
        inside = np.where(np.arange(_BLOCK) < rest[:, None], self._blocks_at(block), 0)
        sums: Int64Array = self._before_blocks[block] + inside.sum(axis=1, dtype=np.int64)
        return sums

    def reaching(self, totals: Int64Array) -> Int64Array:
        """Return the first position with which the sum is at least each total; else their number.

        No number is 0.
        """
        if self._is_small_for(totals):
            found: Int64Array = self.between(0, len(self.values))[1:].searchsorted(totals)
            return found
        block = np.maximum(self._before_blocks.searchsorted(totals) - 1, 0)
        sums = self._blocks_at(block).cumsum(axis=1, dtype=np.int64)
        is_less = sums < (totals - self._before_blocks[block])[:, None]
        places: Int64Array = np.minimum(block * _BLOCK + is_less.sum(axis=1), len(self.values))
        return places

    def _is_small_for(self, asked: Int64Array) -> bool:
        """Whether to add up all takes less than to look at a block for each of so many."""
        return len(self.values) <= _BLOCK * len(asked)

    def _blocks_at(self, blocks: Int64Array) -> npt.NDArray[Any]:
        """Return the numbers of some blocks, of shape (blocks, 64); behind the last, any."""
        at = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        found: npt.NDArray[Any] = self.values[np.minimum(at, len(self.values) - 1)]
        return found

    def between(self, first: int, end: int) -> Int64Array:
        """Return the sums before each position from ``first`` to ``end``, both included."""
        sums = np.empty(end - first + 1, np.int64)
        sums[0] = self.before(first) if first else 0
        self.values[first:end].cumsum(dtype=np.int64, out=sums[1:])
        if first:
            sums[1:] += sums[0]
        return sums


@dataclass(frozen=True, slots=True)
class Region:
    """One flush of the sort buffer, its rows ordered by rank; or a part of one.

    The rank is ``(subpartition - first_subpartition) mod num_subpartitions``. A part is rows of a
    region, one behind the other, whose subpartitions ascend from ``first_subpartition`` on: the
    same arithmetic holds, and nothing wraps.

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
    number: int = 0
    """Its number in the file."""
    first_row: int = 0
    """Of a part of a region: the row of the region at which it begins."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, about."""
        gaps = 0 if self.rank_gaps is None else self.rank_gaps.values.nbytes
        return gaps + self.rank_rows.values.nbytes + self.chunks.nbytes

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
            first_rank, end_rank = self.rank_gaps.positions(first_rank, end_rank)
        start = self.rank_rows.before(first_rank)
        if end_rank - first_rank < _BLOCK:  # as of few subpartitions, which are asked for often
            rows = self.rank_rows.values[first_rank:end_rank]
            return start, start + int(rows.sum(dtype=np.int64))
        return start, self.rank_rows.before(end_rank)

    def ranks_of_rows(self, first: int, end: int) -> tuple[Int64Array, Int64Array]:
        """Return the ranks of the rows ``[first, end)``, ascending, and the row where each starts.

        One more row follows, ``end``. A rank without rows may be among them: it starts where the
        next one does. All rows of a broadcast region are of rank 0.
        """
        if self.kind is RegionKind.BROADCAST:
            return np.zeros(1, np.int64), np.array([first, end])
        lo, hi = 0, len(self.rank_rows)
        if end - first < self.num_rows:  # else all, as of small files that are joined
            lo, last = self.rank_rows.positions(first, end - 1)
            hi = last + 1
        edges = self.rank_rows.between(lo, hi)
        edges[0], edges[-1] = first, end  # only these ranks may have rows before and behind
        return self._ranks(lo, hi), edges

    def chunk_rows(self, chunk: int) -> tuple[int, int]:
        """Return the rows ``[first, end)`` of the region that a chunk has."""
        start = int(self.chunks.first_row[chunk])
        return start, start + int(self.chunks.num_rows[chunk])

    def chunk_extent(self, first: int, end: int) -> tuple[int, int]:
        """Return the range of chunks that have rows ``[first, end)``, which are not none."""
        starts = self.chunks.first_row
        return int(starts.searchsorted(first, "right")) - 1, int(starts.searchsorted(end, "left"))

    @property
    def subpartitions(self) -> Int64Array:
        """Subpartitions of a part, ascending."""
        return self.first_subpartition + self._ranks(0, len(self.rank_rows))

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

    def extents_of_rows(self, first: int, end: int, num_subpartitions: int) -> Extents:
        """Return the subpartitions of the rows ``[first, end)`` of a unicast region."""
        ranks, edges = self.ranks_of_rows(first, end)
        ids = (ranks + self.first_subpartition) % num_subpartitions
        return Extents.of(ids.astype(np.int32), edges)

    def subpartitions_of_rows(self, first: int, end: int, num_subpartitions: int) -> Int32Array:
        """Return the subpartition (int32) of each row in ``[first, end)`` of a unicast region."""
        return self.extents_of_rows(first, end, num_subpartitions).each

    def subpartition_rows(self, num_subpartitions: int) -> tuple[Int64Array, Int64Array]:
        """Return the listed subpartitions and their numbers of rows, which may be 0, in rank order.

        All rows of a broadcast region count for every subpartition.
        """
        if self.kind is RegionKind.BROADCAST:
            all_ids = np.arange(num_subpartitions, dtype=np.int64)
            return all_ids, np.full(num_subpartitions, self.num_rows, np.int64)
        ids = (self._ranks(0, len(self.rank_rows)) + self.first_subpartition) % num_subpartitions
        return ids, self.rank_rows.values.astype(np.int64)


def region_of(
    kind: RegionKind,
    first_subpartition: int,
    ranks: Int32Array | Int64Array,
    rank_rows: Int32Array | Int64Array,
    chunks: ChunkTable,
    num_subpartitions: int,
    number: int = 0,
) -> Region:
    """Return a region with rows of some ranks, ascending; it lists all when that is smaller."""
    num_rows = int(rank_rows.sum(dtype=np.int64))
    gaps = None
    if kind is RegionKind.BROADCAST:
        rank_rows = rank_rows[:0]
    elif 2 * len(ranks) >= num_subpartitions:
        all_rows = np.zeros(num_subpartitions, np.int32)
        all_rows[ranks] = rank_rows
        rank_rows = all_rows
    else:
        gaps = PrefixSums.of(np.diff(ranks, prepend=-1))
    rows = PrefixSums.of(rank_rows)
    return Region(kind, num_rows, first_subpartition, gaps, rows, chunks, number)


def parts_of(region: Region, first: int, end: int, num_subpartitions: int) -> Iterator[Region]:
    """Yield the parts of a whole region with rows of subpartitions ``[first, end)``.

    There are two where its subpartitions wrap inside of the range. A part of a broadcast region is
    all of it.
    """
    if region.kind is RegionKind.BROADCAST:
        yield region
        return
    for start, stop in region.row_extents(first, end, num_subpartitions):
        ranks, edges = region.ranks_of_rows(start, stop)
        rows = np.diff(edges)
        present = np.flatnonzero(rows)
        ids = (ranks[present] + region.first_subpartition) % num_subpartitions
        yield Region(
            region.kind,
            stop - start,
            first,
            PrefixSums.of(np.diff(ids, prepend=first - 1)),
            PrefixSums.of(rows[present]),
            region.chunks.between(*region.chunk_extent(start, stop), start),
            region.number,
            start,
        )


def folded_parts(part: Region, num_subpartitions: int) -> Iterator[Region]:
    """Yield a part as parts of fewer subpartitions, of which its own number is a multiple.

    A row is in its subpartition modulo ``num_subpartitions``; a part ends where that falls.
    """
    if part.kind is RegionKind.BROADCAST:
        yield part
        return
    ids, rows = part.subpartitions, part.rank_rows.values
    edges = part.row_offsets
    cuts = np.flatnonzero(np.diff(ids // num_subpartitions)) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(ids)]):
        start, stop = int(edges[first]), int(edges[end])
        yield Region(
            part.kind,
            stop - start,
            0,
            PrefixSums.of(np.diff(ids[first:end] % num_subpartitions, prepend=-1)),
            PrefixSums(rows[first:end]),
            part.chunks.between(*part.chunk_extent(start, stop), start),
            part.number,
            part.first_row + start,
        )


def whole_region(parts: Sequence[Region], num_subpartitions: int) -> Region | None:
    """Return the region that all of its joined parts make; None where they make none.

    It begins at the subpartition of its first row if its subpartitions wrap, else at 0.
    """
    if parts[0].kind is RegionKind.BROADCAST:
        return parts[0] if len(parts) == 1 else None
    tables = [part.chunks.between(0, len(part.chunks), -part.first_row) for part in parts]
    chunks = tables[0] if len(tables) == 1 else ChunkTable.joined(tables)
    ids = np.concatenate([part.subpartitions for part in parts])
    rows = np.concatenate([part.rank_rows.values for part in parts])
    first = int(ids[0]) if len(parts) > 1 else 0
    ranks = (ids - first) % num_subpartitions
    if (
        np.any(np.diff(ranks) <= 0)
        or chunks.first_row[0] != 0
        or np.any(chunks.first_row[1:] != (chunks.first_row + chunks.num_rows)[:-1])
        or int(chunks.row_edges[-1]) != int(rows.sum(dtype=np.int64))
    ):
        return None
    return region_of(parts[0].kind, first, ranks, rows, chunks, num_subpartitions, parts[0].number)
