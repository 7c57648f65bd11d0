"""Chunks to bytes and back: an Arrow IPC message, or frames of packed columns; pure.

Damage raises :class:`CorruptShuffleError`; the caller adds the file, region and chunk.
"""

from __future__ import annotations

import threading
import zlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard

from arrow_format.arrays.batches import copied
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.column_frames import FrameTable, frame_header, group_columns
from arrow_format.format.ipc import LayoutCheck, is_compressed
from arrow_format.format.packed_decoder import Unpacker
from arrow_format.model import Encoding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ZSTD = pa.Codec("zstd")
"""Decompresses into memory of Arrow's pool, which is reused for the next chunk."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it will be stored."""

    payload: pa.Buffer | bytes
    raw_length: int
    """Bytes before compression."""
    encoding: Encoding


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

    def encode(self, chunks: Iterable[tuple[Sequence[bytes], int]]) -> list[EncodedChunk]:
        """Compress the packed columns of several chunks, each with its number of rows.

        All frames in one call: every call hands Python's lock over to another thread and waits for
        it again, which for frames of some kilobytes takes as long as compressing them.
        """
        described = []
        contents: list[bytes | bytearray | memoryview[int]] = []
        for columns, num_rows in chunks:
            raw_lengths = [len(column) for column in columns]
            groups = group_columns(raw_lengths)
            contents += [b"".join([columns[i] for i in group]) for group in groups]
            described.append((num_rows, groups, raw_lengths))
        compressed = iter(self._compressor.multi_compress_to_buffer(contents) if contents else ())
        encoded = []
        for num_rows, groups, raw_lengths in described:
            frames = [memoryview(frame) for frame in islice(compressed, len(groups))]  # type: ignore[arg-type]
            header = frame_header(num_rows, groups, raw_lengths, [len(frame) for frame in frames])
            payload = b"".join([header, *frames])
            encoded.append(EncodedChunk(payload, sum(raw_lengths), Encoding.FRAMES))
        return encoded


class OpenChunk(ABC):
    """A chunk that was verified, whose columns are decoded when they are asked for.

    Arrays may be views of the stored bytes, or of each other's frames.
    """

    schema: pa.Schema
    """That of the decoder."""
    num_rows: int

    @abstractmethod
    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        """Decode columns at some positions of :attr:`schema`, again with every call.

        Raises
        ------
        CorruptShuffleError
            The columns are not of the shuffle's schema.
        """

    def batch(self) -> pa.RecordBatch:
        """Decode all columns of :attr:`schema`; raises as :meth:`columns`."""
        return batch_of(self.columns(range(len(self.schema))), self.schema, self.num_rows)


class ChunkDecoder:
    """Decodes stored chunks of a data schema; the CRC of every chunk is checked over all of it.

    ``columns`` are the positions of those to return, in order; all when None. A batch of no columns
    still has its number of rows.
    """

    added_row_bytes = 0
    """Bytes by which a row is larger than what is stored of it, at least."""

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self.stored = schema
        self.columns = [*range(len(schema))] if columns is None else [*columns]
        self.is_whole = self.columns == [*range(len(schema))]
        self.schema = pa.schema([schema.field(i) for i in self.columns])
        """Of the batches that are returned."""
        self.unpacker = Unpacker(schema)
        self.layout = LayoutCheck(schema)

    def open_chunk(
        self, stored: pa.Buffer, *, encoding: int, raw_length: int, crc32: int, num_rows: int
    ) -> OpenChunk:
        """Verify a chunk, and return it with no column decoded.

        Raises
        ------
        CorruptShuffleError
            The CRC, raw length, message or number of rows differs from the index.
        FormatVersionError
            This version does not know the encoding.
        """
        if zlib.crc32(stored) != crc32:
            msg = f"CRC-32 of {stored.size} bytes is not the {crc32:#010x} of the index"
            raise CorruptShuffleError(msg)
        if encoding not in (Encoding.IPC, Encoding.FRAMES):
            msg = f"chunk encoding {encoding} is not known; read it with a newer arrow-shuffle"
            raise FormatVersionError(msg)
        try:
            if encoding == Encoding.IPC:
                return _Message(stored, self, num_rows)
            return _Frames(stored, self, num_rows, raw_length)
        except _DAMAGE as error:
            raise _not_of_this_schema(error) from error

    def decode(
        self, stored: pa.Buffer, *, encoding: int, raw_length: int, crc32: int, num_rows: int
    ) -> pa.RecordBatch:
        """Verify and decode one chunk; an uncompressed one may be a view of ``stored``.

        Raises as :meth:`open_chunk`, and CorruptShuffleError for columns of another schema.
        """
        chunk = self.open_chunk(
            stored, encoding=encoding, raw_length=raw_length, crc32=crc32, num_rows=num_rows
        )
        batch = chunk.batch()
        is_view = encoding == Encoding.IPC and not self.is_whole
        if is_view and 2 * batch.nbytes < stored.size:
            # A few small columns must not pin the whole chunk: readers hold rows of many chunks,
            # and count the columns' bytes. Next to the CRC of all columns the copy costs little.
            return copied(batch)
        return batch


def batch_of(columns: Sequence[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return columns as a batch, which has its number of rows also without any."""
    if not columns:  # from_arrays would lose it
        return pa.record_batch([pa.nulls(num_rows)], names=["rows"]).select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_DAMAGE = (pa.ArrowException, OSError, ValueError)


def _not_of_this_schema(error: Exception) -> CorruptShuffleError:
    return CorruptShuffleError(f"not a record batch of the shuffle's schema ({error})")


class _Message(OpenChunk):
    """An Arrow IPC message: all columns are views of it."""

    def __init__(self, stored: pa.Buffer, decoder: ChunkDecoder, num_rows: int) -> None:
        if is_compressed(memoryview(stored)):
            msg = "its buffers are compressed, and say themselves how large they would become"
            raise ValueError(msg)
        batch = pa.ipc.read_record_batch(stored, decoder.stored)
        if batch.num_rows != num_rows:
            msg = f"{batch.num_rows} rows where the index says {num_rows}"
            raise ValueError(msg)
        decoder.layout.check(stored, None if decoder.is_whole else decoder.columns)
        self._batch = batch if decoder.is_whole else batch.select(decoder.columns)
        self.schema = decoder.schema
        self.num_rows = num_rows

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        return [self._batch.column(i) for i in positions]

    def batch(self) -> pa.RecordBatch:
        return self._batch


class _Frames(OpenChunk):
    """Frames of packed columns."""

    def __init__(
        self, stored: pa.Buffer, decoder: ChunkDecoder, num_rows: int, raw_length: int
    ) -> None:
        num_columns = len(decoder.stored)
        self._table = FrameTable(stored, num_columns, num_rows=num_rows, raw_length=raw_length)
        self._stored = stored
        self._columns = decoder.columns
        self._unpacker = decoder.unpacker
        self._raw_length = raw_length
        self.schema = decoder.schema
        self.num_rows = num_rows

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        if not positions:
            return []
        extents, num_bytes, sections = self._table.select([self._columns[i] for i in positions])
        try:
            if len(extents) == 1:
                start, stop = extents[0]
                frames = self._stored.slice(start, stop - start)
            else:
                stored = memoryview(self._stored)
                frames = b"".join([stored[start:stop] for start, stop in extents])
            # One call for all frames; it is an error when they have other than ``num_bytes``.
            content = _ZSTD.decompress(frames, num_bytes)
            return self._unpacker.unpack(content, sections, self.num_rows, self._raw_length)
        except _DAMAGE as error:
            raise _not_of_this_schema(error) from error
