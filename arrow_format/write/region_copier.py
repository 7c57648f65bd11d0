"""Copies the regions of a file into another, each chunk as it is stored wherever that can be.

Chunks that lose rows, or are of an earlier schema, are decoded and encoded again, adjacent ones
together. So rows stay in order, and a few that go cost their own chunks.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby, islice, starmap
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.batches import in_parts
from arrow_format.arrays.schema_evolution import has_same_columns
from arrow_format.arrays.selection import take_runs
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.format.totals import arrow_bytes
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.whole_file import check_file
from arrow_format.write.clustering import Clustering
from arrow_format.write.partitioned_file import StoredPart

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    import pyarrow as pa

    from arrow_format.format.codec import EncodedChunk
    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array
    from arrow_format.options import WriteOptions
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.partitioned_file import PartitionedFileReader, UnfinishedFile
    from arrow_format.write.partitioned_file import Part, PartitionedFileWriter

    Keep = Callable[[ChunkRead, pa.RecordBatch, Int64Array], Int64Array]
    """Given a chunk, all its rows, and the positions of those that no mask took: which stay."""

PART_BYTES = 8 << 20
"""Rows that are encoded together, at most a quarter of a region's memory: more than a chunk, so
that chunks do not become small."""


ROW_BYTES = 8
"""Bytes per row of these besides its own: its position."""


class RegionCopier:
    """Copies regions of one file, without the rows that a mask took.

    Parameters
    ----------
    index
        Of the file.
    schema
        Data schema of the target, that of the file or a later one.
    options
        Give the memory.
    loses
        Whether a chunk may lose more than what a mask took.
    keep
        Asked for the rows that stay of those chunks. Both see positions in whole regions.
    """

    def __init__(
        self,
        index: PartitionedFileReader | UnfinishedFile,
        schema: pa.Schema,
        options: WriteOptions,
        *,
        loses: Callable[[ChunkRead], bool] = lambda _: False,
        keep: Keep = lambda _chunk, _batch, rows: rows,
    ) -> None:
        stored = index.metadata.data_schema
        self.chunks = ChunkReader(index, ChunkDecoders(schema).of(stored))
        self._regions = index.regions
        self._raw_bytes = arrow_bytes(index.regions, index.file.raw_bytes)
        self._statistics = index.statistics
        self._chunks_before = np.cumsum([0, *(len(each.chunks) for each in index.regions)]).tolist()
        self._is_stored_alike = has_same_columns(stored, schema)
        self._part_bytes = max(min(PART_BYTES, options.region_bytes // 4), 1)
        self._loses = loses
        self._keep = keep

    def copy(
        self, target: PartitionedFileWriter, numbers: range, on_bytes: Callable[[int], None]
    ) -> None:
        """Append some regions to a file; ``on_bytes`` gets the stored bytes of each.

        Raises CorruptShuffleError or FormatVersionError when a chunk is damaged or missing.
        """
        for number in numbers:
            region = self._regions[number]
            parts = self._parts(number)
            target.write_region_in_parts(parts, region.kind, raw_length=region.raw_length)
            on_bytes(int(region.chunks.length.sum()))

    def _parts(self, number: int) -> Iterator[Part]:
        planned = [*self.chunks.plan(number, number + 1)]
        fetched = self.chunks.fetched(planned)
        for is_copy, run in groupby(planned, self._is_copy):
            several = [*run]
            first, end = several[0].chunk, several[-1].chunk + 1
            of_run = islice(fetched, len(several))
            if is_copy:
                stored = (self.chunks.encoded(*each) for each in of_run)
                yield self.stored_part(number, first, end, stored)
            else:
                yield from self._decoded(self._regions[number], of_run)

    def _is_copy(self, chunk: ChunkRead) -> bool:
        return (
            self._is_stored_alike
            and not self._loses(chunk)
            and self.chunks.rows_left(chunk) is None
        )

    def stored_part(
        self, number: int, first: int, end: int, stored: Iterable[EncodedChunk]
    ) -> StoredPart:
        """Return chunks ``[first, end)`` of a region, of which ``stored`` has the bytes."""
        region = self._regions[number]
        start, stop = region.chunk_rows(first)[0], region.chunk_rows(end - 1)[1]
        before = self._chunks_before[number]
        known = self._statistics.items()
        raw_lengths = region.chunks.raw_length
        share = self._raw_bytes[number] * int(raw_lengths[first:end].sum())
        return StoredPart(
            stored,
            region.chunks.first_row[first:end] - start,
            _clustering(region, start, stop),
            share // max(int(raw_lengths.sum()), 1),
            {name: column.units(before + first, before + end) for name, column in known},
        )

    def _decoded(
        self, region: Region, fetched: Iterable[tuple[ChunkRead, pa.Buffer]]
    ) -> Iterator[Part]:
        """Yield the rows that stay of adjacent chunks, by row."""
        left = filter(None, starmap(partial(self._left, region), fetched))
        for batch, rows in in_parts(left, self._part_bytes, row_bytes=ROW_BYTES):
            yield batch, _clustering(region, int(rows[0]), int(rows[-1]) + 1, rows)

    def _left(
        self, region: Region, chunk: ChunkRead, stored: pa.Buffer
    ) -> tuple[pa.RecordBatch, Int64Array] | None:
        """Return the rows that stay of a chunk, and which of the region they are; None without."""
        batch = self.chunks.decode(chunk, stored)
        left = self.chunks.rows_left(chunk)
        left = np.arange(batch.num_rows) if left is None else left
        if self._loses(chunk):
            left = self._keep(chunk, batch, left)
        if not len(left):
            return None
        if len(left) < batch.num_rows:
            batch = take_runs(batch, left)
        return batch, left + region.chunk_rows(chunk.chunk)[0]


def _clustering(
    region: Region, start: int, stop: int, left: Int64Array | None = None
) -> Clustering:
    """Return the clustering of rows ``[start, stop)`` of a region, or of those left of them."""
    ranks, edges = region.ranks_of_rows(start, stop)
    edges = edges - start if left is None else np.searchsorted(left, edges)
    present = np.flatnonzero(np.diff(edges))
    offsets = np.append(edges[present], edges[-1]).astype(np.int32)
    return Clustering(region.first_subpartition, None, ranks[present].astype(np.int32), offsets)


def chunk_contents(index: PartitionedFileReader) -> dict[tuple[int, int], bytes]:
    """Return what an index says of the bytes and rows of each chunk, by region and chunk.

    In file order. Chunks of one schema of which that is equal are copies: all their CRCs are.
    """
    contents = {}
    for number, region in enumerate(index.regions):
        table = region.chunks
        for chunk in range(len(table)):
            frames = slice(*table.first_frame[chunk : chunk + 2].tolist())
            said = (
                table.encoding[chunk],
                table.num_rows[chunk],
                table.column_frame[chunk],
                table.column_raw_length[chunk],
                table.frame_length[frames],
                table.frame_crc32[frames],
            )
            contents[number, chunk] = b"".join([each.tobytes() for each in said])
    return contents


def check_written(
    written: PartitionedFileReader,
    copied: Container[bytes],
    schema: pa.Schema,
    on_rows: Callable[[ChunkRead, pa.RecordBatch], None] | None = None,
) -> None:
    """Read a new file back whole, and decode what is no copy of chunks with some contents.

    ``on_rows`` gets what is decoded. Raises CorruptShuffleError or FormatVersionError where
    anything differs from what was written.
    """
    contents = chunk_contents(written)
    check_file(
        ChunkReader(written, ChunkDecoder(schema)),
        is_copy=lambda chunk: contents[chunk.region, chunk.chunk] in copied,
        on_rows=on_rows,
    )
