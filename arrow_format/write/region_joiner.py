"""Joins many regions into one, a range of subpartitions at a time.

The rows of adjacent subpartitions that fit into memory together are read from all regions, in
reading order, and clustered in a sort buffer as in a map task. A subpartition that does not fit is
streamed. Source: FLIP-148, ``PartitionedFileMerger``.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.batches import in_parts
from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.format.totals import arrow_bytes
from arrow_format.keys.merge_runs import merge_sorted
from arrow_format.read.chunk_reader import READ_AHEAD_BYTES, ChunkReader
from arrow_format.read.fetched_chunks import ONE_CHUNK, read_rows
from arrow_format.write.clustering import SPLIT_CHUNK_BYTES, Clustering
from arrow_format.write.rewrite_plan import rewrite_ranges
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.format.regions import Region
    from arrow_format.model import Int32Array, PartitionedFileMetadata
    from arrow_format.read.partitioned_file import PartitionedFileReader, UnfinishedFile
    from arrow_format.write.partitioned_file import Part
    from arrow_format.write.rewrite_plan import RegionRun, RegionSlice


class RegionJoiner:
    """Reads a run of unicast regions as one, a range of subpartitions at a time.

    Rows are read with the schema of ``metadata``. Those of a range may take ``budget_bytes``, and
    ordering them as much again. ``on_bytes`` gets the stored bytes joined since its last call.
    """

    def __init__(
        self,
        inputs: Sequence[PartitionedFileReader],
        run: RegionRun,
        metadata: PartitionedFileMetadata,
        budget_bytes: int,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._inputs = inputs
        self._slices = run.slices
        self._metadata = metadata
        self._n = metadata.num_subpartitions
        self._decoders = ChunkDecoders(metadata.data_schema)
        self._budget_bytes = budget_bytes
        self._on_bytes = on_bytes
        self._regions = [
            sized
            for piece in run.slices
            for sized in sized_regions(inputs[piece.source])[piece.first : piece.end]
        ]
        # Map tasks begin at different subpartitions; the joined region begins where the first does.
        self._first_subpartition = self._regions[0][0].first_subpartition

    @property
    def raw_length(self) -> int:
        """Raw bytes of the chunks that are joined."""
        return sum(region.raw_length for region, _ in self._regions)

    def parts(self) -> Iterator[Part]:
        """Yield the rows of the joined region, by ascending rank, in parts that fit into memory.

        Raises CorruptShuffleError or FormatVersionError when an input is damaged or missing.
        """
        ranges = rewrite_ranges(
            self._regions,
            self._n,
            self._first_subpartition,
            max_bytes=self._budget_bytes,
            row_overhead_bytes=self._buffer().row_overhead_bytes,
        )
        total = sum(subpartitions.num_bytes for subpartitions in ranges)
        stored = int(sum(region.chunks.length.sum() for region, _ in self._regions))
        reported = done = 0
        for subpartitions in ranges:
            if subpartitions.num_bytes > self._budget_bytes:
                yield from self._streamed(subpartitions.first)
            else:
                yield from self._clustered(subpartitions.first, subpartitions.end)
            done += subpartitions.num_bytes
            self._on_bytes(stored * done // total - reported)
            reported = stored * done // total

    def _buffer(self) -> SortBuffer:
        schema, sort_by = self._metadata.data_schema, self._metadata.sort_by
        return SortBuffer(schema, self._budget_bytes, self._n, sort_by)

    def _clustered(self, first: int, end: int) -> Iterator[Part]:
        """Yield the rows of a range, clustered in memory.

        Sizes were estimated from the average row of each chunk. Where the rows do not fit after
        all, the range is halved; a single subpartition that does not fit is streamed.
        """
        waiting = [(first, end)]
        while waiting:
            first, end = waiting.pop()
            part = self._ordered(first, end)
            if part:
                yield part.pop()  # not referenced here while the next part is made
            elif end - first > 1:
                middle = (first + end) // 2
                waiting += [(middle, end), (first, middle)]
            else:
                yield from self._streamed(first)

    def _ordered(self, first: int, end: int) -> list[Part]:
        """Return the rows of a range as one part; no part when they do not fit into memory."""
        buffer = self._buffer()
        for batch, ids in read_rows(self._all_regions(), first, end):
            if not buffer.append(batch, ids):
                return []
        buffer.finish()
        region = buffer.take_region(self._first_subpartition)
        return [(region.batch, region.clustering)]

    def _streamed(self, subpartition: int) -> Iterator[Part]:
        """Yield the rows of a subpartition that does not fit into memory, a chunk at a time."""
        rank = (subpartition - self._first_subpartition) % self._n
        ranks = np.array([rank], np.int32)
        for batch, _ in in_parts(self._rows_of(subpartition), SPLIT_CHUNK_BYTES):
            offsets = np.array([0, batch.num_rows], np.int32)
            yield batch, Clustering(self._first_subpartition, None, ranks, offsets)

    def _rows_of(self, subpartition: int) -> Iterator[tuple[pa.RecordBatch, Int32Array]]:
        sort_by, of_one = self._metadata.sort_by, (subpartition, subpartition + 1)
        read = partial(read_rows, most_bytes=ONE_CHUNK)
        if not sort_by:
            return read(self._all_regions(), *of_one)
        ahead = min(self._budget_bytes // len(self._regions), READ_AHEAD_BYTES)
        runs = [
            map(itemgetter(0), read([(self._reader(piece, ahead), i, i + 1)], *of_one))
            for piece in self._slices
            for i in range(piece.first, piece.end)
        ]
        return zip(merge_sorted(runs, sort_by), repeat(np.empty(0, np.int32)), strict=False)

    def _all_regions(self) -> Iterator[tuple[ChunkReader, int, int]]:
        return ((self._reader(piece), piece.first, piece.end) for piece in self._slices)

    def _reader(self, piece: RegionSlice, ahead_bytes: int = READ_AHEAD_BYTES) -> ChunkReader:
        index = self._inputs[piece.source]
        decoder = self._decoders.of(index.metadata.data_schema)
        return ChunkReader(index, decoder, read_ahead_bytes=ahead_bytes)


def sized_regions(index: PartitionedFileReader | UnfinishedFile) -> list[tuple[Region, int]]:
    """Return the regions of a file, each with its bytes in Arrow."""
    return list(zip(index.regions, arrow_bytes(index.regions, index.file.raw_bytes), strict=True))
