"""Reads many regions as if they were one: the heart of a rewrite.

Adjacent subpartitions are taken together as far as they fit into memory, their rows from all
regions in reading order, and ordered as a map task orders those of its sort buffer.
Source: FLIP-148, ``PartitionedFileMerger``.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.row_sizes import most_items
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.totals import arrow_bytes
from arrow_format.keys.merge_runs import merge_sorted
from arrow_format.read.chunk_reader import READ_AHEAD_BYTES, ChunkReader
from arrow_format.write.clustering import SPLIT_CHUNK_BYTES, Clustering
from arrow_format.write.rewrite_plan import plan_ranges
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from arrow_format.model import Int32Array, PartitionedFileMetadata, Region
    from arrow_format.read.partitioned_file import PartitionedFileReader, UnfinishedFile
    from arrow_format.write.rewrite_plan import RegionRun, RegionSlice

Part = tuple[pa.RecordBatch, Clustering]
"""Rows of a region that is written a few subpartitions at a time."""


class RegionJoiner:
    """Reads a run of regions as one, a range of subpartitions at a time.

    Parameters
    ----------
    inputs
        Indexes of the files that the run has regions of.
    run
        At least one region, all unicast.
    metadata
        Number of subpartitions, sort keys, and the schema that rows are read with.
    budget_bytes
        What the rows of a range may take in memory; ordering them takes as much again.
    on_bytes
        Called with the stored bytes that were joined since the last call.
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
        self._decoder = ChunkDecoder(metadata.data_schema)
        self._budget_bytes = budget_bytes
        self._on_bytes = on_bytes
        self._regions = [
            pair
            for one in run.slices
            for pair in sized_regions(inputs[one.source])[one.first : one.end]
        ]
        # Map tasks begin at different subpartitions; what they wrote together begins where the
        # first of them did.
        self._first_subpartition = self._regions[0][0].first_subpartition

    def parts(self) -> Iterator[Part]:
        """Rows of the joined region, by ascending rank, in parts that fit into memory.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            What is read is damaged or missing.
        """
        ranges = plan_ranges(
            self._regions,
            self._n,
            self._first_subpartition,
            max_bytes=self._budget_bytes,
            row_overhead_bytes=self._buffer().row_overhead_bytes,
        )
        weight = sum(one.num_bytes for one in ranges)
        stored = int(sum(region.chunks.length.sum() for region, _ in self._regions))
        before = done = 0
        for one in ranges:
            if one.num_bytes > self._budget_bytes:
                yield from self._streamed(one.first)
            else:
                yield from self._clustered(one.first, one.end)
            done += one.num_bytes
            self._on_bytes(stored * done // weight - before)
            before = stored * done // weight

    def _buffer(self) -> SortBuffer:
        schema, sort_by = self._metadata.data_schema, self._metadata.sort_by
        return SortBuffer(schema, self._budget_bytes, self._n, sort_by)

    def _clustered(self, first: int, end: int) -> Iterator[Part]:
        """Rows of a range, ordered as a map task orders those of its buffer.

        Sizes were estimated from the average row of each chunk. Where the rows do not fit, halves
        are tried, and at last a subpartition is read by itself.
        """
        waiting = [(first, end)]
        while waiting:
            first, end = waiting.pop()
            part = self._ordered(first, end)
            if part:
                yield part.pop()  # held by nobody here while the next one is made
            elif end - first > 1:
                middle = (first + end) // 2
                waiting += [(middle, end), (first, middle)]
            else:
                yield from self._streamed(first)

    def _ordered(self, first: int, end: int) -> list[Part]:
        """Return the rows of a range as one part; none when they do not fit into memory."""
        buffer = self._buffer()
        for one in self._slices:
            for batch, ids in self._reader(one).rows(one.first, one.end, first, end):
                if not buffer.append(batch, ids):
                    return []
        buffer.finish()
        region = buffer.take_region(self._first_subpartition)
        return [(region.batch, region.clustering)]

    def _streamed(self, subpartition: int) -> Iterator[Part]:
        """Rows of one subpartition that is too large for memory, a chunk's worth at a time."""
        rank = (subpartition - self._first_subpartition) % self._n
        ranks = np.array([rank], np.int32)
        for batch in _joined(self._rows_of(subpartition), SPLIT_CHUNK_BYTES):
            offsets = np.array([0, batch.num_rows], np.int32)
            yield batch, Clustering(self._first_subpartition, None, ranks, offsets)

    def _rows_of(self, subpartition: int) -> Iterator[pa.RecordBatch]:
        sort_by = self._metadata.sort_by
        if not sort_by:
            rows = (
                self._reader(one).rows(one.first, one.end, subpartition, subpartition + 1)
                for one in self._slices
            )
            return _batches(chain.from_iterable(rows))
        ahead = min(self._budget_bytes // len(self._regions), READ_AHEAD_BYTES)
        return merge_sorted(
            [
                _batches(self._reader(one, ahead).rows(i, i + 1, subpartition, subpartition + 1))
                for one in self._slices
                for i in range(one.first, one.end)
            ],
            sort_by,
        )

    def _reader(self, one: RegionSlice, ahead_bytes: int = READ_AHEAD_BYTES) -> ChunkReader:
        return ChunkReader(self._inputs[one.source], self._decoder, read_ahead_bytes=ahead_bytes)


def sized_regions(index: PartitionedFileReader | UnfinishedFile) -> list[tuple[Region, int]]:
    """Return the regions of a file with the bytes that each takes in Arrow."""
    return list(zip(index.regions, arrow_bytes(index.regions, index.file.raw_bytes), strict=True))


def _batches(
    rows: Iterable[tuple[pa.RecordBatch, Int32Array]],
) -> Iterator[pa.RecordBatch]:
    return (batch for batch, _ in rows)


def _joined(batches: Iterable[pa.RecordBatch], min_bytes: int) -> Iterator[pa.RecordBatch]:
    """Join batches until they have about ``min_bytes``; the last has what is left.

    Each item of a list counts one more, as it may take no byte.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_bytes += batch.nbytes + most_items(batch)
        if held_bytes >= min_bytes:
            yield pa.concat_batches(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_batches(held)
