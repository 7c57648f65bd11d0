"""Parts of blocks that were decoded together, as columns: those of many files are planned at once.

Of a version of many small files each has a part or two, and a call of NumPy for each of them takes
longer than all that it does. A part is a :class:`Region` where one is asked for. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from arrow_format.format.chunk_table import FRAME_BYTES
from arrow_format.format.regions import PrefixSums, Region, RegionKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from arrow_format.format.chunk_table import ChunkTable
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
        row = np.arange(len(part)) + np.repeat(from_chunk - (counts.cumsum() - counts), counts)
        starts = table.first_row[row]
        return Wanted(
            part,
            row - first_chunk[part],
            np.maximum(from_row[part] - starts, 0),
            np.minimum(to_row[part] - starts, table.num_rows[row]),
            row,
        )
