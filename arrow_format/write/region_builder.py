"""Builds the index record of a region from the parts it is written in; pure.

Apart from the file's writer, because it is the one place that checks what FLIP-148 demands of a
data region: all rows of a subpartition are contiguous. Most regions have one part. A merge joins
regions that do not fit into memory, and writes a few subpartitions at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import ShuffleError
from arrow_format.format.chunk_table import ChunkTable
from arrow_format.format.regions import MAX_REGION_ROWS, Region, RegionKind, region_of

if TYPE_CHECKING:
    from arrow_format.format.codec import ChunkRow
    from arrow_format.model import Int32Array
    from arrow_format.write.clustering import Clustering


class RegionBuilder:
    """Collects the parts of one region, whose rows ascend by rank."""

    def __init__(self, kind: RegionKind, num_subpartitions: int) -> None:
        self._kind = kind
        self.num_subpartitions = num_subpartitions
        self._ranks: list[Int32Array] = []
        self._ends: list[Int32Array] = []
        self._chunks: list[ChunkRow] = []
        self._first_subpartition = 0
        self.num_rows = 0

    def add(self, clustering: Clustering, num_rows: int) -> int:
        """Add the next part and return the row of the region at which it starts.

        Its first subpartition may be the one that the part before it ended with. Raises
        ShuffleError when rows of a subpartition are not contiguous, rows and clustering do not
        match, or the region would have 2**31 rows.
        """
        offsets = clustering.row_offsets
        ranks = (
            np.arange(len(offsets) - 1, dtype=np.int32)
            if clustering.ranks is None
            else clustering.ranks
        )
        first = clustering.first_subpartition
        last_rank = int(self._ranks[-1][-1]) if self._ranks else -1
        if (
            len(ranks) != len(offsets) - 1
            or offsets[-1] != num_rows
            or bool((np.diff(offsets) <= 0).any())
            or bool((np.diff(ranks) <= 0).any())
            or (self._ranks and (first != self._first_subpartition or ranks[0] < last_rank))
        ):
            msg = "all rows of a subpartition must be contiguous, in the order of the region"
            raise ShuffleError(msg)
        start = self.num_rows
        if start + num_rows > MAX_REGION_ROWS:
            msg = f"a region of {start + num_rows:,} rows; it can have {MAX_REGION_ROWS:,}"
            raise ShuffleError(msg)
        ends = offsets[1:] + np.int32(start)
        if self._ranks and ranks[0] == last_rank:
            # The subpartition continues: it ends where this part's rows of it end.
            self._ends[-1] = np.append(self._ends[-1][:-1], ends[0])
            ranks, ends = ranks[1:], ends[1:]
        if len(ranks):
            self._ranks.append(ranks)
            self._ends.append(ends)
        self._first_subpartition = first
        self.num_rows += num_rows
        return start

    def add_chunk(self, row: ChunkRow) -> None:
        """Add a chunk that was written."""
        self._chunks.append(row)

    def build(self) -> Region:
        """Return the region, which has at least one row."""
        ranks = np.concatenate(self._ranks)
        ends = np.concatenate([np.zeros(1, np.int32), *self._ends])
        return region_of(
            self._kind,
            self._first_subpartition,
            ranks,
            np.diff(ends),
            ChunkTable.of(self._chunks, self.num_rows),
            self.num_subpartitions,
        )
