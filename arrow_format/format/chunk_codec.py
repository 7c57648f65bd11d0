"""Chunks to bytes and back: an Arrow IPC message or packed rows, plain or in one zstd frame; pure.

Damage raises :class:`CorruptShuffleError`; the caller adds the file, region and chunk.
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
"""Decompresses into memory of Arrow's pool, which is reused for the next chunk."""

_FRAMED = {Encoding.IPC: Encoding.ZSTD, Encoding.PACKED: Encoding.PACKED_ZSTD}
"""Encoding of a chunk once it is in a zstd frame."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it will be stored."""

    payload: pa.Buffer | bytes
    raw_length: int
    """Bytes before compression."""
    encoding: Encoding


class ZstdEncoder:
    """Compresses chunks with one reused compressor; a chunk that would not shrink stays as it is.

    zstd fits its tables to ``chunk_bytes``, the size of most chunks: a tenth faster, no larger.
    """

    def __init__(self, level: int, chunk_bytes: int) -> None:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, source_size=chunk_bytes, write_content_size=True
        )
        self._compressor = zstandard.ZstdCompressor(compression_params=parameters)

    def encode(self, message: pa.Buffer | bytes, encoding: Encoding) -> EncodedChunk:
        """Compress an IPC message or a packed chunk."""
        length = memoryview(message).nbytes
        frame = self._compressor.compress(message)
        if len(frame) >= length:
            return EncodedChunk(message, length, encoding)
        # The compressor shrinks a buffer of the largest possible size in place, which would leave
        # a useless hole behind each of many small frames. A copy has the exact size, and the large
        # buffer is returned whole.
        return EncodedChunk(memoryview(frame).tobytes(), length, _FRAMED[encoding])


class ChunkDecoder:
    """Decodes stored chunks of a data schema; every chunk is verified whole.

    ``columns`` are the positions of those to return, in order; all when None. A batch of no columns
    still has its number of rows.
    """

    added_row_bytes = 0
    """Bytes by which a row is larger than what is stored of it, at least."""

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self._stored = schema
        if columns is not None and [*columns] == [*range(len(schema))]:
            columns = None
        self._columns = columns
        self.schema = schema if columns is None else pa.schema([schema.field(i) for i in columns])
        self._unpacker = Unpacker(schema, columns)
        self._layout = LayoutCheck(schema)

    def decode(
        self, stored: pa.Buffer, *, encoding: int, raw_length: int, crc32: int, num_rows: int
    ) -> pa.RecordBatch:
        """Verify and decode one chunk; an uncompressed one may be a view of ``stored``.

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
            # A few small columns must not pin the whole chunk.
            return copied(batch)
        return batch

    def _viewed(self, message: pa.Buffer, num_rows: int) -> pa.RecordBatch:
        # All columns are views of the message, so none is worth skipping.
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
            # The frame states its size: compared first, so that nothing larger is allocated.
            stated = zstandard.frame_content_size(stored)
            if stated == raw_length:
                return _ZSTD.decompress(stored, raw_length)
        except (zstandard.ZstdError, pa.ArrowInvalid, OSError) as error:
            msg = f"not a zstd frame ({error})"
            raise CorruptShuffleError(msg) from error
        msg = f"zstd frame states {stated} bytes where the index says {raw_length}"
        raise CorruptShuffleError(msg)
