"""Parts of blocks that were decoded together, as columns: those of many files are planned at once.

Of a version of many small files each has a part or two, and a call of NumPy for each of them takes
longer than all that it does. A part is a :class:`Region` where one is asked for. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from arrow_format.arrays.selection import ranges
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.chunk_table import FRAME_BYTES, ChunkTable
from arrow_format.format.regions import PrefixSums, Region, RegionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from arrow_format.model import Int64Array


class Wanted(NamedTuple):
    """Chunks that have rows of a range of subpartitions, by part and offset; one value for each."""

    part: Int64Array
    """Position among the parts that were asked."""
    chunk: Int64Array
    """Its number in the part."""
    first_row: Int64Array
    """First row wanted, counted from the start of the chunk."""
    end_row: Int64Array
    """Row after the last one wanted."""
    row: Int64Array
    """Its number in the table of all chunks."""


@dataclass(frozen=True, slots=True, eq=False)
class PartTable:
    """Parts of the blocks of some files; one value for each, by block, region and row."""

    region: Int64Array
    """Number of its region in its file."""
    kind: npt.NDArray[np.uint8]
    first_row: Int64Array
    num_rows: Int64Array
    first_subpartition: Int64Array
    """First subpartition of the range of its block."""
    goes_on: npt.NDArray[np.bool_]
    """Whether the subpartitions of the next one in its block, of the same region, are all behind
    its own: then both may be one part."""
    edges: Int64Array
    """Subpartitions before those of each part, then all."""
    gaps: PrefixSums
    """Distance of each subpartition from the one before, of the first of a part from the one before
    ``first_subpartition``."""
    rows: PrefixSums
    """Rows of each of these."""
    chunks: ChunkTable
    """Of all parts; the first row of each is counted from that of its part."""
    chunk_edges: Int64Array
    """Chunks before those of each part, then all."""

    def at(self, part: int) -> Region:
        """Return a part, which shares the memory of all."""
        kind = RegionKind(int(self.kind[part]))
        start, stop = self.edges[part : part + 2].tolist()
        gaps = self.gaps.values[start:stop]
        return Region(
            kind,
            int(self.num_rows[part]),
            int(self.first_subpartition[part]),
            None if kind is RegionKind.BROADCAST else PrefixSums(gaps),
            PrefixSums(self.rows.values[start:stop]),
            self.chunks.between(*self.chunk_edges[part : part + 2].tolist()),
            int(self.region[part]),
            int(self.first_row[part]),
        )

    def between(self, first: int, end: int) -> PartTable:
        """Return adjacent parts, which share the memory of all."""
        begin, stop = self.edges[first], self.edges[end]
        first_chunk, end_chunk = self.chunk_edges[first], self.chunk_edges[end]
        of_parts: dict[str, Any] = {name: getattr(self, name)[first:end] for name in _OF_PARTS}
        return PartTable(
            **of_parts,
            edges=self.edges[first : end + 1] - begin,
            gaps=PrefixSums(self.gaps.values[begin:stop]),
            rows=PrefixSums(self.rows.values[begin:stop]),
            chunks=self.chunks.between(int(first_chunk), int(end_chunk)),
            chunk_edges=self.chunk_edges[first : end + 1] - first_chunk,
        )

    @staticmethod
    def together(tables: Sequence[PartTable]) -> PartTable:
        """Return the parts of tables of one file, one behind the other."""
        if len(tables) == 1:
            return tables[0]
        of_parts: dict[str, Any] = {
            name: np.concatenate([getattr(each, name) for each in tables]) for name in _OF_PARTS
        }
        return PartTable(
            **of_parts,
            edges=_edges([each.edges for each in tables]),
            gaps=PrefixSums(np.concatenate([each.gaps.values for each in tables])),
            rows=PrefixSums(np.concatenate([each.rows.values for each in tables])),
            chunks=ChunkTable.joined([each.chunks for each in tables]),
            chunk_edges=_edges([each.chunk_edges for each in tables]),
        )

    def joined(self) -> list[Region]:
        """Return parts of one file, by region and first row, joined where one goes on in the next.

        A chunk at the border of two blocks, which both have, is in the joined part once. So is a
        broadcast region that several blocks have. Raises CorruptShuffleError where two blocks
        describe a chunk otherwise.
        """
        parts = np.lexsort((self.first_row, self.region))
        is_broadcast = self.kind[parts] == RegionKind.BROADCAST
        is_same = np.append(False, np.diff(self.region[parts]) == 0)
        # Each block has all of a broadcast region.
        parts = parts[~(is_same & is_broadcast & np.append(False, is_broadcast[:-1]))]
        begins = self.edges[parts]
        counts = self.edges[parts + 1] - begins
        listed, starts = ranges(begins, counts), counts.cumsum() - counts
        gaps = self.gaps.values[listed].astype(np.int64)
        sums = np.append(0, gaps.cumsum())
        before = self.first_subpartition[parts] - 1
        first, last = (
            before + np.append(gaps, 0)[starts],
            before + sums[starts + counts] - sums[starts],
        )
        goes_on = self._go_on(parts, first, last)
        later, run = np.flatnonzero(goes_on), np.flatnonzero(~goes_on)
        gaps[starts[later]] = first[later] - last[later - 1]
        chunks, chunk_edges = self._chunks_of(parts, later, run)
        list_edges = np.append(starts[run], len(listed)).tolist()
        list_rows, num_rows = self.rows.values[listed], np.add.reduceat(self.num_rows[parts], run)
        each = zip(parts[run].tolist(), pairwise(list_edges), pairwise(chunk_edges), strict=True)
        return [
            Region(
                RegionKind(int(self.kind[part])),
                int(num_rows[number]),
                int(self.first_subpartition[part]),
                None if start == stop else PrefixSums.of(gaps[start:stop]),
                PrefixSums(list_rows[start:stop]),
                chunks.between(*of_chunks),
                int(self.region[part]),
                int(self.first_row[part]),
            )
            for number, (part, (start, stop), of_chunks) in enumerate(each)
        ]

    def _go_on(
        self, parts: Int64Array, first: Int64Array, last: Int64Array
    ) -> npt.NDArray[np.bool_]:
        """Return of each part whether it goes on where the one before ends.

        ``first`` and ``last`` are the subpartitions that it lists first and last.
        """
        region, kind, first_row = self.region[parts], self.kind[parts], self.first_row[parts]
        goes_on = (region[1:] == region[:-1]) & (kind[1:] == kind[:-1])
        goes_on &= (first_row + self.num_rows[parts])[:-1] == first_row[1:]
        goes_on &= last[:-1] < first[1:]
        return np.append(False, goes_on)

    def _chunks_of(
        self, parts: Int64Array, later: Int64Array, run: Int64Array
    ) -> tuple[ChunkTable, list[int]]:
        """Return the chunks of parts that are joined, and the edges of each joined one.

        Those at positions ``later`` are joined with the one before, those of ``run`` are not.
        """
        begins = self.chunk_edges[parts]
        counts = self.chunk_edges[parts + 1] - begins
        rows, starts = ranges(begins, counts), counts.cumsum() - counts
        heads = np.repeat(run, np.diff(np.append(run, len(parts))))
        shift = self.first_row[parts] - self.first_row[parts[heads]]
        first_row = self.chunks.first_row[rows] + np.repeat(shift, counts)
        # A chunk at the border of two blocks is in both.
        offset, is_there = self.chunks.offset[rows], np.ones(len(rows), np.bool_)
        is_there[starts[later]] = offset[starts[later]] != offset[starts[later] - 1]
        again = np.flatnonzero(~is_there)
        if len(again):
            before, after = (self.chunks.at(rows[at], first_row[at]) for at in (again - 1, again))
            if not before.equals(after):
                ones = [np.array([at]) for at in range(len(again))]
                pairs = ((before.at(at, first_row[at]), after.at(at, first_row[at])) for at in ones)
                place = next(int(one.offset[0]) for one, two in pairs if not one.equals(two))
                msg = (
                    "blocks of the index contradict each other about the chunk at byte "
                    f"{place} of the data file"
                )
                raise CorruptShuffleError(msg)
        edges = np.append(0, is_there.cumsum())[np.append(starts[run], len(rows))]
        return self.chunks.at(rows[is_there], first_row[is_there]), edges.tolist()

    def sizes(self, edges: Sequence[int]) -> list[int]:
        """Return the bytes of memory that the parts between two edges take, about."""
        ends = np.array(edges)
        listed_bytes = self.gaps.values.itemsize + self.rows.values.itemsize
        sizes = np.diff(self.edges[ends]) * listed_bytes
        of_chunks = self.chunk_edges[ends]
        sizes += np.diff(of_chunks) * self.chunks.row_bytes
        sizes += np.diff(self.chunks.first_frame[of_chunks]) * FRAME_BYTES
        found: list[int] = sizes.tolist()
        return found

    def wanted(self, parts: Int64Array, first: int, end: int) -> Wanted:
        """Return the chunks of some parts, ascending, with rows of subpartitions ``[first, end)``.

        All chunks of a broadcast region have some.
        """
        begin, stop = self.edges[parts], self.edges[parts + 1]
        # A subpartition is where the distances of its part reach its own.
        before = self.gaps.before_each(begin) - self.first_subpartition[parts] + 1
        rows_before = self.rows.before_each(begin)
        from_row, to_row = (
            self.rows.before_each(np.clip(self.gaps.reaching(before + edge), begin, stop))
            - rows_before
            for edge in (first, end)
        )
        is_broadcast = self.kind[parts] == RegionKind.BROADCAST
        to_row = np.where(is_broadcast, self.num_rows[parts], to_row)  # of no list, from row 0
        table, first_chunk = self.chunks, self.chunk_edges[parts]
        ends = table.num_rows.cumsum()
        shift = ends[first_chunk] - table.num_rows[first_chunk] - table.first_row[first_chunk]
        from_chunk = ends.searchsorted(from_row + shift, "right")
        to_chunk = ends.searchsorted(to_row + shift, "left") + 1
        counts = np.where(to_row > from_row, to_chunk - from_chunk, 0)
        part = np.repeat(np.arange(len(parts)), counts)
        row = ranges(from_chunk, counts)
        starts = table.first_row[row]
        return Wanted(
            part,
            row - first_chunk[part],
            np.maximum(from_row[part] - starts, 0),
            np.minimum(to_row[part] - starts, table.num_rows[row]),
            row,
        )


_OF_PARTS = "region", "kind", "first_row", "num_rows", "first_subpartition", "goes_on"
"""Fields of a table with one value for each part."""


def _edges(tables: Sequence[Int64Array]) -> Int64Array:
    """Return the edges of lists that come one behind the other."""
    return np.append(0, np.concatenate([np.diff(edges) for edges in tables]).cumsum())
