"""Chunks to bytes and back: an Arrow IPC record batch message, plain or inside one zstd frame.

Pure: bytes in, bytes out. Damage found here raises :class:`CorruptShuffleError` without saying
where; the caller knows the file, region and chunk.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import pyarrow as pa
import zstandard

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.model import Encoding


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it will be stored."""

    payload: pa.Buffer | bytes
    raw_length: int
    """Bytes of the IPC message inside."""
    encoding: Encoding


class ZstdEncoder:
    """Turns record batches into chunks of codec ``zstd``; holds one reused compressor.

    A chunk that would not shrink is kept as plain IPC (encoding 0).
    """

    def __init__(self, level: int) -> None:
        self._compressor = zstandard.ZstdCompressor(level=level, write_content_size=True)

    def encode(self, batch: pa.RecordBatch) -> EncodedChunk:
        """Encode ``batch``."""
        message = batch.serialize()
        frame = self._compressor.compress(message)
        if len(frame) >= message.size:
            return EncodedChunk(message, message.size, Encoding.IPC)
        # The compressor shrinks a buffer of the largest possible size in place. Many small frames
        # that wait to be written would each keep a hole behind them that nothing fits into: a copy
        # has the right size, and the large buffer goes back whole.
        return EncodedChunk(memoryview(frame).tobytes(), message.size, Encoding.ZSTD)


class ChunkDecoder:
    """Turns stored chunks into record batches of ``schema``; holds one reused decompressor."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._decompressor = zstandard.ZstdDecompressor()

    def decode(
        self, stored: pa.Buffer, *, encoding: int, raw_length: int, crc32: int, num_rows: int
    ) -> pa.RecordBatch:
        """Verify and decode one chunk; with encoding 0 the batch is a view of ``stored``.

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
        if encoding == Encoding.ZSTD:
            message = self._decompress(stored, raw_length)
        elif encoding == Encoding.IPC:
            message = stored
        else:
            msg = f"chunk encoding {encoding} is not known; read it with a newer arrow-shuffle"
            raise FormatVersionError(msg)
        try:
            batch = pa.ipc.read_record_batch(message, self._schema)
        except (pa.ArrowException, OSError, ValueError) as error:
            msg = f"not an Arrow record batch of the shuffle's schema ({error})"
            raise CorruptShuffleError(msg) from error
        if batch.num_rows != num_rows:
            msg = f"holds {batch.num_rows} rows where the index says {num_rows}"
            raise CorruptShuffleError(msg)
        return batch

    def _decompress(self, stored: pa.Buffer, raw_length: int) -> pa.Buffer:
        try:
            # The frame states its size: compare first, so that nothing larger is ever allocated.
            stated = zstandard.frame_content_size(stored)
            if stated == raw_length:
                return pa.py_buffer(self._decompressor.decompress(stored))
        except zstandard.ZstdError as error:
            msg = f"not a zstd frame ({error})"
            raise CorruptShuffleError(msg) from error
        msg = f"zstd frame states {stated} bytes where the index says {raw_length}"
        raise CorruptShuffleError(msg)
