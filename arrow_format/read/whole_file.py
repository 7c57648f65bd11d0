"""Reads a data file whole, the bytes between its chunks included, and verifies all of it."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError
from arrow_format.read.fetched_chunks import FetchedChunk, decode_run, edges_of, in_runs, pairs_of
from arrow_format.read.scheduler import ADVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.chunk_reader import ChunkReader
    from arrow_format.read.partitioned_file import IndexPart, PartitionedFileReader, UnfinishedFile


def check_file(
    source: ChunkReader,
    *,
    is_copy: Callable[[ChunkRead], bool] = lambda _: False,
    on_rows: Callable[[ChunkRead, pa.RecordBatch], None] | None = None,
) -> None:
    """Read the whole data file of a reader of all its columns, and verify it.

    A chunk that ``is_copy`` of one that was verified is not decoded: its CRC suffices. All rows of
    others are given to ``on_rows``, in file order. Raises CorruptShuffleError or FormatVersionError
    where anything differs from what was written.
    """
    index, storage = source.index, source.storage
    data_bytes = index.file.data_bytes
    stat = storage.stat(source.path)
    if stat is None or stat.num_bytes != data_bytes:
        actual = "is not there" if stat is None else f"has {stat.num_bytes} bytes"
        msg = f"{source.file}: {actual}, expected {data_bytes} bytes. {ADVICE}"
        raise CorruptShuffleError(msg)
    for run in in_runs(_to_decode(source, is_copy)):
        for part, batch in decode_run(run):
            if on_rows is None:
                continue
            pairs = pairs_of(part)
            for (_, chunk), start in zip(pairs, edges_of(pairs).tolist(), strict=False):
                on_rows(chunk, batch.slice(start, chunk.end_row - chunk.first_row))
    crc32 = 0
    for gap in storage.get_ranges(source.path, list(_gaps(index))):
        crc32 = zlib.crc32(gap, crc32)
    if crc32 != index.metadata.frame_crc32:
        msg = f"{source.file}: header, padding or footer differ from what was written. {ADVICE}"
        raise CorruptShuffleError(msg)


def _to_decode(source: ChunkReader, is_copy: Callable[[ChunkRead], bool]) -> Iterator[FetchedChunk]:
    """Yield the chunks of a file that are no copies, of which the CRCs are compared."""
    for chunk, stored in source.fetched(source.plan(0, len(source.index.regions))):
        if is_copy(chunk):
            source.encoded(chunk, stored)
        else:
            yield FetchedChunk(source, chunk, source.to_decode(chunk, stored))


def _gaps(index: PartitionedFileReader | IndexPart | UnfinishedFile) -> Iterator[tuple[int, int]]:
    """Ranges ``(offset, length)`` of a data file that belong to no chunk, in file order."""
    end = 0
    for region in index.regions:
        for offset, length in zip(
            region.chunks.offset.tolist(), region.chunks.length.tolist(), strict=True
        ):
            if offset > end:
                yield end, offset - end
            end = offset + length
    if index.file.data_bytes > end:
        yield end, index.file.data_bytes - end
