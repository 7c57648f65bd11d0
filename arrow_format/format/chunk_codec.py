"""Chunks to bytes and back: an Arrow IPC message, or frames of packed columns; pure.

Damage raises :class:`CorruptShuffleError`; the caller adds the file, region and chunk.
"""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import zstandard

from arrow_format.arrays.batches import copied
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.batch_frame import content_stated, states
from arrow_format.format.chunk_table import FRAMES, ChunkFrames, Encoding
from arrow_format.format.column_frames import group_columns
from arrow_format.format.ipc import LayoutCheck, is_compressed
from arrow_format.format.packed_decoder import Unpacker

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.format.chunk_table import ChunkPlaces

_ZSTD = pa.Codec("zstd")
"""Decompresses into memory of Arrow's pool, which is reused for the next chunk."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it will be stored."""

    payload: pa.Buffer | bytes
    frames: ChunkFrames


def message_frames(num_columns: int, length: int, crc32: int) -> ChunkFrames:
    """Return what is said of a chunk that is an Arrow IPC message, of a schema of some columns."""
    nought = [0] * num_columns
    return ChunkFrames(Encoding.IPC, nought, nought, [length], [crc32])


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
            frames = ChunkFrames(Encoding.FRAMES, frame_of, raw_lengths, lengths, sums)
            encoded.append(EncodedChunk(b"".join(stored), frames))
        return encoded


class StoredChunk(NamedTuple):
    """A chunk as it was fetched, and what is wanted of it."""

    stored: pa.Buffer
    places: ChunkPlaces
    """Of the decoder's columns in ``stored``."""
    rows: tuple[int, int]
    """``[first, end)`` of those wanted."""


class OpenChunks(ABC):
    """Chunks whose columns are verified and decoded when they are asked for.

    Arrays may be views of the stored bytes, or of each other's frames.
    """

    schema: pa.Schema
    """That of the decoder."""
    num_rows: int
    """Of the rows that are wanted, chunk after chunk: columns have no others."""

    @abstractmethod
    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        """Decode columns at some positions of :attr:`schema`, again with every call.

        Raises
        ------
        CorruptShuffleError
            The CRC of a frame that has them differs from the index, or they are not of the
            shuffle's schema.
        """

    def batch(self) -> pa.RecordBatch:
        """Decode all columns of :attr:`schema`; raises as :meth:`columns`."""
        return batch_of(self.columns(range(len(self.schema))), self.schema, self.num_rows)


class ChunkDecoder:
    """Decodes stored chunks of a data schema, and checks the CRC of what it decodes.

    ``columns`` are the positions of those to return, in order; all when None. A batch of no columns
    still has its number of rows. Frames that have none of the columns are not looked at.
    """

    added_row_bytes = 0
    """Bytes by which a row is larger than what is stored of it, at least."""

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self.stored = schema
        self.names = schema.names
        """Of all columns: PyArrow builds the list at each access."""
        self.columns = [*range(len(schema))] if columns is None else [*columns]
        self.is_whole = self.columns == [*range(len(schema))]
        self.schema = pa.schema([schema.field(i) for i in self.columns])
        """Of the batches that are returned."""
        self.unpacker = Unpacker(schema)
        self.layout = LayoutCheck(schema)

    def open_chunks(self, chunks: Sequence[StoredChunk]) -> OpenChunks:
        """Return chunks with no column decoded: a single one, or several of encoding ``FRAMES``.

        Those cost little more together than one of them. What is decoded keeps no rows in memory
        that are not wanted.

        Raises
        ------
        CorruptShuffleError
            The CRC, the form or the number of rows of a message differs from the index.
        FormatVersionError
            This version does not know the encoding.
        """
        if all(chunk.places.encoding == FRAMES for chunk in chunks):
            return _Frames(chunks, self)
        ((stored, places, rows),) = chunks
        if places.encoding != Encoding.IPC:
            msg = (
                f"chunk encoding {places.encoding} is not known; read it with a newer arrow-shuffle"
            )
            raise FormatVersionError(msg)
        check_frame(stored, places.described, 0, self.names)
        try:
            return _Message(stored, self, places.num_rows, rows)
        except _DAMAGE as error:
            raise _not_of_this_schema(error) from error

    def decode(self, chunks: Sequence[StoredChunk]) -> pa.RecordBatch:
        """Verify and decode chunks; an uncompressed one may be a view of what is stored.

        As :meth:`open_chunks`, and raises as that and :meth:`OpenChunks.columns`.
        """
        batch = self.open_chunks(chunks).batch()
        stored, places, _ = chunks[0]
        is_view = not self.is_whole and places.encoding == Encoding.IPC
        if is_view and 2 * batch.nbytes < stored.size:
            # A few small columns must not pin the whole chunk: readers hold rows of many chunks,
            # and count the columns' bytes. Next to the CRC of all columns the copy costs little.
            return copied(batch)
        return batch


def check_frame(
    stored: pa.Buffer | memoryview, frames: ChunkFrames, frame: int, names: Sequence[str]
) -> None:
    """Raise CorruptShuffleError where the bytes of a frame are not those that were written.

    ``names`` are those of all columns, of which the message has those of the frame.
    """
    length, crc32 = frames.length[frame], frames.crc32[frame]
    if len(stored) == length and zlib.crc32(stored) == crc32:
        return
    columns = [names[i] for i in frames.columns_of(frame)]
    shown = ", ".join(columns[:_NAMES_SHOWN])
    if len(columns) > _NAMES_SHOWN:
        shown += f" and {len(columns) - _NAMES_SHOWN} more"
    msg = (
        f"frame {frame}, of the columns {shown}: CRC-32 of {len(stored)} bytes is not the "
        f"{crc32:#010x} of {length} bytes in the index"
    )
    raise CorruptShuffleError(msg)


_NAMES_SHOWN = 8
"""Columns that a message names."""


def batch_of(columns: Sequence[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return columns as a batch, which has its number of rows also without any."""
    if not columns:  # from_arrays would lose it
        return pa.record_batch([pa.nulls(num_rows)], names=["rows"]).select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_DAMAGE = (pa.ArrowException, OSError, ValueError)


def _not_of_this_schema(error: Exception) -> CorruptShuffleError:
    return CorruptShuffleError(f"not a record batch of the shuffle's schema ({error})")


class _Message(OpenChunks):
    """An Arrow IPC message: all columns are views of it."""

    def __init__(
        self, stored: pa.Buffer, decoder: ChunkDecoder, num_rows: int, rows: tuple[int, int]
    ) -> None:
        if is_compressed(memoryview(stored)):
            msg = "its buffers are compressed, and say themselves how large they would become"
            raise ValueError(msg)
        batch = pa.ipc.read_record_batch(stored, decoder.stored)
        if batch.num_rows != num_rows:
            msg = f"{batch.num_rows} rows where the index says {num_rows}"
            raise ValueError(msg)
        decoder.layout.check(stored, None if decoder.is_whole else decoder.columns)
        self.num_rows = rows[1] - rows[0]
        if not decoder.is_whole:
            batch = batch.select(decoder.columns)
        if self.num_rows < num_rows:
            batch = batch.slice(rows[0], self.num_rows)
            batch = copied(batch) if 2 * self.num_rows < num_rows else batch
        self._batch = batch
        self.schema = decoder.schema

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        return [self._batch.column(i) for i in positions]

    def batch(self) -> pa.RecordBatch:
        return self._batch


class _Frames(OpenChunks):
    """Frames of packed columns."""

    def __init__(self, chunks: Sequence[StoredChunk], decoder: ChunkDecoder) -> None:
        self._chunks = chunks
        self._decoder = decoder
        self.schema = decoder.schema
        self._rows = [(places.num_rows, *rows) for _, places, rows in chunks]
        self.num_rows = sum(end - first for _, first, end in self._rows)

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        if not positions:
            return []
        decoder = self._decoder
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
                    check_frame(piece, places.described, number, decoder.names)
            views += pieces
            sizes += places.raw_length
            begins = [*accumulate(places.raw_length, initial=begin)]
            begin = begins[-1]
            for of_column, (held, start, stop) in zip(sections, of_columns, strict=True):
                of_column.append((begins[held] + start, begins[held] + stop))
        try:
            content = _content(views, sizes)
            columns = zip([decoder.columns[i] for i in positions], sections, strict=True)
            return decoder.unpacker.unpack(content, columns, self._rows)
        except _DAMAGE as error:
            raise _not_of_this_schema(error) from error


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
