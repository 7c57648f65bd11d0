"""Chunks to bytes and back: an Arrow IPC message or packed rows, plain or inside one zstd frame.

Pure: bytes in, bytes out. Damage found here raises :class:`CorruptShuffleError` without saying
where; the caller knows the file, region and chunk.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard

from arrow_format.arrays.batches import copied
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.ipc import LayoutCheck, is_compressed
from arrow_format.format.packed_decoder import Unpacker
from arrow_format.model import Encoding

if TYPE_CHECKING:
    from collections.abc import Sequence

_ZSTD = pa.Codec("zstd")
"""What frames are opened with: into memory of Arrow's pool, which is kept for the next chunk."""

_FRAMED = {Encoding.IPC: Encoding.ZSTD, Encoding.PACKED: Encoding.PACKED_ZSTD}
"""What a chunk becomes inside a zstd frame."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it will be stored."""

    payload: pa.Buffer | bytes
    raw_length: int
    """Bytes before compression."""
    encoding: Encoding


class ZstdEncoder:
    """Compresses chunks; holds one reused compressor.

    A chunk that would not shrink is kept as it is.

    Parameters
    ----------
    level
        zstd level.
    chunk_bytes
        Size that most chunks have. zstd fits its tables to it: with those it takes for inputs of
        any size, it would be a tenth slower and no smaller.
    """

    def __init__(self, level: int, chunk_bytes: int) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, source_size=chunk_bytes, write_content_size=True
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)

    def encode(self, message: pa.Buffer | bytes, encoding: Encoding) -> EncodedChunk:
        """Compress a chunk that is an IPC message or packed."""
        length = memoryview(message).nbytes
        frame = self._compressor.compress(message)
        if len(frame) >= length:
            return EncodedChunk(message, length, encoding)
        # The compressor shrinks a buffer of the largest possible size in place. Many small frames
        # that wait to be written would each keep a hole behind them that nothing fits into: a copy
        # has the right size, and the large buffer goes back whole.
        return EncodedChunk(memoryview(frame).tobytes(), length, _FRAMED[encoding])


class ChunkDecoder:
    """Turns stored chunks into record batches.

    Every chunk is verified whole, whichever columns are wanted.

    Parameters
    ----------
    schema
        Data schema of the chunks.
    columns
        Positions of the columns to decode, in the order wanted; all when None. Without any, a batch
        still has its number of rows.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self._stored = schema
        if columns is not None and [*columns] == [*range(len(schema))]:
            columns = None
        self._columns = columns
        self.schema = schema if columns is None else pa.schema([schema.field(i) for i in columns])
        """Schema of the record batches."""
        self._unpacker = Unpacker(schema, columns)
        self._layout = LayoutCheck(schema)

    def decode(
        self, stored: pa.Buffer, *, encoding: int, raw_length: int, crc32: int, num_rows: int
    ) -> pa.RecordBatch:
        """Verify and decode one chunk; one that is not compressed may be a view of ``stored``.

        Raises
        ------
        CorruptShuffleError
            The CRC, the raw length, the message or its number of rows is not as the index says.
        FormatVersionError
            The encoding is not known to this version.
        """
        if zlib.crc32(stored) != crc32:
            msg = f"CRC-32 of {stored.size} bytes is not the {crc32:#010x} of the index"
            raise CorruptShuffleError(msg)
        message = stored
        if encoding in (Encoding.ZSTD, Encoding.PACKED_ZSTD):
            message = self._decompress(stored, raw_length)
        elif encoding not in (Encoding.IPC, Encoding.PACKED):
            msg = f"chunk encoding {encoding} is not known; read it with a newer arrow-shuffle"
            raise FormatVersionError(msg)
        try:
            if encoding in (Encoding.PACKED, Encoding.PACKED_ZSTD):
                batch = self._unpacker.unpack(message, num_rows)
            else:
                batch = self._viewed(message, num_rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            msg = f"not a record batch of the shuffle's schema ({error})"
            raise CorruptShuffleError(msg) from error
        if self._columns is not None and 2 * batch.nbytes < message.size:
            # Columns of a few bytes must not keep the whole chunk in memory.
            return copied(batch)
        return batch

    def _viewed(self, message: pa.Buffer, num_rows: int) -> pa.RecordBatch:
        # Nothing is decoded that could be skipped: all columns are views of the message.
        if is_compressed(memoryview(message)):
            msg = "its buffers are compressed, and say themselves how large they would become"
            raise ValueError(msg)
        batch = pa.ipc.read_record_batch(message, self._stored)
        if batch.num_rows != num_rows:
            msg = f"{batch.num_rows} rows where the index says {num_rows}"
            raise ValueError(msg)
        self._layout.check(message)
        return batch if self._columns is None else batch.select(self._columns)

    def _decompress(self, stored: pa.Buffer, raw_length: int) -> pa.Buffer:
        try:
            # The frame states its size: compare first, so that nothing larger is ever allocated.
            stated = zstandard.frame_content_size(stored)
            if stated == raw_length:
                return _ZSTD.decompress(stored, raw_length)
        except (zstandard.ZstdError, pa.ArrowInvalid, OSError) as error:
            msg = f"not a zstd frame ({error})"
            raise CorruptShuffleError(msg) from error
        msg = f"zstd frame states {stated} bytes where the index says {raw_length}"
        raise CorruptShuffleError(msg)
