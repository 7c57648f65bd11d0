"""Chunks on their way into a data file: encoded, checksummed, gathered into large writes."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from arrow_format.codec import ZstdEncoder
from arrow_format.ipc_footer import keep_batches
from arrow_format.model import Encoding

if TYPE_CHECKING:
    from arrow_format.region_builder import ChunkRow
    from arrow_format.storage import ByteSource, ObjectWriter

WRITE_BYTES = 4 << 20
"""Chunks are gathered into writes of about this many bytes."""

DATA_MAGIC = b"ASHFDAT1"
"""First bytes of a data file of codec zstd; with codec none it is an Arrow IPC file."""


class GatheringSink:
    """A file for Arrow's IPC writer: counts, checksums, gathers small pieces into ``writev``."""

    closed = False

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._held: list[ByteSource] = []
        self._held_bytes = 0
        self.position = 0
        self.frame_crc32 = 0
        self.write_ns = 0
        """Time spent in the storage."""
        self._chunk_from: int | None = None
        self._chunk_crc32 = 0
        self._diverted: list[bytes] | None = None

    def begin_chunk(self, position: int) -> None:
        """Count what is written from ``position`` on, where a piece will begin, as a chunk."""
        self._chunk_from = position
        self._chunk_crc32 = 0

    def end_chunk(self) -> int:
        """Return the CRC-32 of the chunk; what follows is of the frame again."""
        self._chunk_from = None
        return self._chunk_crc32

    def write(self, piece: ByteSource) -> int:
        """Take a piece; it is kept alive until it is written."""
        length = piece.size if isinstance(piece, pa.Buffer) else len(piece)
        if self._diverted is not None:
            self._diverted.append(bytes(memoryview(piece)))
            return length
        if length:
            self._held.append(piece)
            self._held_bytes += length
            if self._chunk_from is None or self.position < self._chunk_from:
                self.frame_crc32 = zlib.crc32(piece, self.frame_crc32)
            else:
                self._chunk_crc32 = zlib.crc32(piece, self._chunk_crc32)
            self.position += length
            if self._held_bytes >= WRITE_BYTES:
                self.flush()
        return length

    def flush(self) -> None:
        """Write what is held."""
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            started = time.perf_counter_ns()
            self._writer.writev(held)
            self.write_ns += time.perf_counter_ns() - started

    def truncate(self, position: int, frame_crc32: int) -> None:
        """Go back to an earlier end, all of which was written; with the CRC-32 of then."""
        self._held, self._held_bytes = [], 0
        self._chunk_from = None
        self._writer.truncate(position)
        self.position, self.frame_crc32 = position, frame_crc32

    def divert(self) -> list[bytes]:
        """Collect what is written from now on in the list returned, and nowhere else."""
        self._diverted = []
        return self._diverted

    def restore(self) -> None:
        """End what :meth:`divert` began."""
        self._diverted = None

    def tell(self) -> int:
        """Return the bytes taken so far."""
        return self.position

    def readable(self) -> bool:
        """Answer no."""
        return False

    def writable(self) -> bool:
        """Answer yes."""
        return True

    def seekable(self) -> bool:
        """Answer no."""
        return False

    def close(self) -> None:
        """Leave the object open: the partitioned file finishes it."""


class ChunkWriter(Protocol):
    """Writes batches as chunks of one codec."""

    def write(self, batch: pa.RecordBatch, first_row: int) -> ChunkRow:
        """Write ``batch`` as the chunk that starts at ``first_row`` of its region."""
        ...

    def keep(self, num_chunks: int) -> None:
        """Forget all but the first chunks: the file was cut behind them, and will be finished."""
        ...

    def finish(self) -> None:
        """Write what belongs behind the last chunk."""
        ...


class IpcFileChunks:
    """Codec none: every chunk is a record batch of one Arrow IPC file."""

    def __init__(self, sink: GatheringSink, schema: pa.Schema) -> None:
        self._sink = sink
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema)
        # Arrow writes magic and schema together with the first batch.
        self._header_bytes = 8 + schema.serialize().size
        self._num_kept: int | None = None

    def write(self, batch: pa.RecordBatch, first_row: int) -> ChunkRow:
        """See :meth:`ChunkWriter.write`."""
        offset = max(self._sink.position, self._header_bytes)
        self._sink.begin_chunk(offset)
        self._writer.write_batch(batch)
        length = self._sink.position - offset
        return first_row, offset, length, length, Encoding.IPC, self._sink.end_chunk()

    def keep(self, num_chunks: int) -> None:
        """See :meth:`ChunkWriter.keep`."""
        self._num_kept = num_chunks

    def finish(self) -> None:
        """See :meth:`ChunkWriter.finish`."""
        if self._num_kept is None:
            self._writer.close()
        else:
            end = self._sink.divert()
            self._writer.close()
            self._sink.restore()
            self._sink.write(keep_batches(b"".join(end), self._num_kept))
        self._sink.flush()


class ZstdChunks:
    """Codec zstd: frames, each padded to a multiple of 8."""

    def __init__(self, sink: GatheringSink, level: int) -> None:
        self._sink = sink
        self._encoder = ZstdEncoder(level)
        sink.write(DATA_MAGIC)

    def write(self, batch: pa.RecordBatch, first_row: int) -> ChunkRow:
        """See :meth:`ChunkWriter.write`."""
        chunk = self._encoder.encode(batch)
        offset = self._sink.position
        self._sink.begin_chunk(offset)
        length = self._sink.write(chunk.payload)
        crc32 = self._sink.end_chunk()
        self._sink.write(bytes(-length % 8))
        return first_row, offset, length, chunk.raw_length, chunk.encoding, crc32

    def keep(self, num_chunks: int) -> None:
        """See :meth:`ChunkWriter.keep`."""
        del num_chunks  # nothing behind the frames speaks of them

    def finish(self) -> None:
        """See :meth:`ChunkWriter.finish`."""
        self._sink.flush()
