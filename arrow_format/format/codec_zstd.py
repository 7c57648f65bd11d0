"""Codec ``zstd``: columns that are packed into fewer bytes, and compressed in frames."""

from __future__ import annotations

import threading
import zlib
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import zstandard

from arrow_format.format.batch_frame import content_stated, states
from arrow_format.format.chunk_table import ChunkFrames
from arrow_format.format.codec import (
    DAMAGE,
    ChunkWriter,
    Codec,
    EncodedChunk,
    OpenChunks,
    check_frame,
    not_of_this_schema,
)
from arrow_format.format.packed_decoder import Unpacker
from arrow_format.format.packed_encoder import PackedRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.concurrency import OrderedMap
    from arrow_format.format.codec import (
        ChunkColumns,
        ChunkOpener,
        ChunkRow,
        ChunkSink,
        StoredChunk,
    )

DATA_MAGIC = b"ASHFDAT1"
"""First bytes of a data file."""

MAX_EXPANSION = 4
"""A chunk whose rows take more than this many times its bytes in memory is cut as if it had a
quarter of those: reading a chunk must not take much memory however well its rows are packed."""

MIN_FRAME_BYTES = 4096
"""Columns of fewer raw bytes share frames: a frame costs some microseconds and some bytes."""

_ZSTD = pa.Codec("zstd")
"""Decompresses into memory of Arrow's pool, which is reused for the next chunk."""


def group_columns(raw_lengths: Sequence[int]) -> list[list[int]]:
    """Return the columns of each frame, by the raw length of each column in a chunk.

    A large column has a frame of its own, so that nothing pays for it that does not need it. Small
    ones share: a frame is full at :data:`MIN_FRAME_BYTES`.
    """
    frames: list[list[int]] = []
    small: list[int] = []
    num_bytes = 0
    for column, raw_length in enumerate(raw_lengths):
        if raw_length >= MIN_FRAME_BYTES:
            frames.append([column])
            continue
        small.append(column)
        num_bytes += raw_length
        if num_bytes >= MIN_FRAME_BYTES:
            frames.append(small)
            small, num_bytes = [], 0
    if small:
        frames.append(small)
    return frames


class ZstdCodec(Codec):
    """Frames of packed columns."""

    name = "zstd"
    encoding = 1
    most_times = 4
    takes_others = True

    def writer(
        self, sink: ChunkSink, schema: pa.Schema, *, level: int, chunk_bytes: int
    ) -> ChunkWriter[Any, Any]:
        """Begin a data file with its magic."""
        del schema
        return _FrameChunks(sink, level, chunk_bytes)

    def opener(self, wanted: ChunkColumns) -> ChunkOpener:
        """Return what opens frames, of as many chunks as there are."""
        unpacker = Unpacker(wanted.stored)
        return lambda chunks: _Frames(chunks, wanted, unpacker)


class FrameEncoder:
    """Compresses packed columns into the frames of a chunk, with one compressor for each thread.

    zstd fits its tables to inputs of ``chunk_bytes`` at most: a tenth faster, no larger.
    """

    def __init__(self, level: int, chunk_bytes: int) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, source_size=chunk_bytes, write_content_size=True
        )
        self._parameters = parameters
        self._of_thread = threading.local()

    @property
    def _compressor(self) -> zstandard.ZstdCompressor:
        """One that no other thread uses: they are not safe for several."""
        compressor: zstandard.ZstdCompressor | None = getattr(self._of_thread, "compressor", None)
        if compressor is None:
            compressor = zstandard.ZstdCompressor(compression_params=self._parameters)
            self._of_thread.compressor = compressor
        return compressor

    def compressed_bytes(self, content: memoryview) -> int:
        """Return the bytes of a frame of some content."""
        return len(self._compressor.compress(content))

    def encode(self, chunks: Iterable[Sequence[bytes]]) -> list[EncodedChunk]:
        """Compress the packed columns of several chunks.

        All frames in one call: every call hands Python's lock over to another thread and waits for
        it again, which for frames of some kilobytes takes as long as compressing them.
        """
        described = []
        contents: list[bytes | bytearray | memoryview[int]] = []
        for columns in chunks:
            raw_lengths = [len(column) for column in columns]
            groups = group_columns(raw_lengths)
            contents += [b"".join([columns[i] for i in group]) for group in groups]
            described.append((groups, raw_lengths))
        compressed = iter(self._compressor.multi_compress_to_buffer(contents) if contents else ())
        encoded = []
        for groups, raw_lengths in described:
            stored = [memoryview(frame) for frame in islice(compressed, len(groups))]  # type: ignore[arg-type]
            frame_of = [0] * len(raw_lengths)
            for number, group in enumerate(groups):
                for column in group:
                    frame_of[column] = number
            lengths, sums = [len(frame) for frame in stored], [zlib.crc32(f) for f in stored]
            frames = ChunkFrames(ZstdCodec.encoding, frame_of, raw_lengths, lengths, sums)
            encoded.append(EncodedChunk(b"".join(stored), frames))
        return encoded


class _FrameChunks:
    """Writes frames of packed columns, each chunk padded to a multiple of 8."""

    def __init__(self, sink: ChunkSink, level: int, chunk_bytes: int) -> None:
        self._sink = sink
        self._encoder = FrameEncoder(level, chunk_bytes)
        sink.write(DATA_MAGIC)

    def prepare(self, batch: pa.RecordBatch, in_order: OrderedMap) -> tuple[PackedRows, int]:
        rows = PackedRows(batch, self._encoder.compressed_bytes, in_order)
        return rows, max(rows.num_bytes, batch.nbytes // MAX_EXPANSION)

    def encode(self, rows: PackedRows, extents: Sequence[tuple[int, int]]) -> list[EncodedChunk]:
        return self._encoder.encode(rows.columns(start, stop) for start, stop in extents)

    def write(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        offset = self._sink.position
        length = self._sink.write_chunk(chunk.payload)
        self._sink.write(bytes(-length % 8))
        return first_row, offset, chunk.frames

    write_stored = write

    def keep(self, num_chunks: int) -> None:
        del num_chunks  # nothing after the chunks refers to them

    def finish(self) -> None:
        self._sink.flush()


class _Frames(OpenChunks):
    """Frames of packed columns."""

    def __init__(
        self, chunks: Sequence[StoredChunk], wanted: ChunkColumns, unpacker: Unpacker
    ) -> None:
        self._chunks = chunks
        self._wanted = wanted
        self._unpacker = unpacker
        self.schema = wanted.schema
        self._rows = [(places.num_rows, *rows) for _, places, rows in chunks]
        self.num_rows = sum(end - first for _, first, end in self._rows)

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        if not positions:
            return []
        wanted = self._wanted
        views: list[memoryview] = []
        sizes: list[int] = []
        sections: list[list[tuple[int, int]]] = [[] for _ in positions]
        begin = 0
        for stored, places, _ in self._chunks:
            if len(positions) < len(places.columns):  # of a filter, or without checked keys
                places = places.of_columns(positions)
                of_columns = places.columns
            else:
                of_columns = [places.columns[i] for i in positions]
            view = memoryview(stored)
            pieces = [
                view[offset : offset + length]
                for offset, length in zip(places.offset, places.length, strict=True)
            ]
            if [*map(len, pieces)] != places.length or [*map(zlib.crc32, pieces)] != places.crc32:
                for piece, number in zip(pieces, places.number, strict=True):
                    check_frame(piece, places.described, number, wanted.names)
            views += pieces
            sizes += places.raw_length
            begins = [*accumulate(places.raw_length, initial=begin)]
            begin = begins[-1]
            for of_column, (held, start, stop) in zip(sections, of_columns, strict=True):
                of_column.append((begins[held] + start, begins[held] + stop))
        try:
            content = _content(views, sizes)
            columns = zip([wanted.columns[i] for i in positions], sections, strict=True)
            return self._unpacker.unpack(content, columns, self._rows)
        except DAMAGE as error:
            raise not_of_this_schema(error) from error


_ALONE, _SMALL_BYTES = 4, 64 << 10
"""Frames that are decompressed one by one, by a context that is kept: so many at most, and of so
many bytes each. ``_ZSTD`` makes a context, which takes as long as to decompress so much."""


def _content(frames: Sequence[memoryview], sizes: Sequence[int]) -> pa.Buffer:
    """Decompress frames into one buffer; it is an error when one has other bytes than it should."""
    if len(frames) <= _ALONE and max(sizes) <= _SMALL_BYTES:
        contents = [content for content in map(content_stated, frames, sizes) if content]
        if len(contents) == len(frames):
            return contents[0] if len(contents) == 1 else pa.py_buffer(b"".join(contents))
    if len(frames) > 1 and all(map(states, frames, sizes)):
        return _ZSTD.decompress(b"".join(frames), sum(sizes))
    # Together two that are wrong by as much could pass.
    contents = [*map(_ZSTD.decompress, frames, sizes)]
    return contents[0] if len(contents) == 1 else pa.py_buffer(b"".join(contents))
