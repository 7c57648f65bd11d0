"""Chunks on their way into a data file: encoded, checksummed, gathered into large writes."""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from arrow_format.format.chunk_codec import EncodedChunk, ZstdEncoder
from arrow_format.format.ipc import keep_batches
from arrow_format.format.packed_encoder import PackedRows
from arrow_format.format.packed_layout import num_nodes
from arrow_format.model import Encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.storage.open import ByteSource, ObjectWriter
    from arrow_format.write.region_builder import ChunkRow

WRITE_BYTES = 4 << 20
"""Chunks are gathered into writes of about this many bytes."""

MIN_NODE_BYTES = 4096
"""Rows are packed where a chunk holds this many bytes of each column on average, or more."""

MAX_EXPANSION = 4
"""A chunk whose rows take more than this many times its bytes in memory is cut as if it had a
quarter of these: reading it must not take much memory however well its rows were packed."""

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


class PreparedRows(Protocol):
    """The rows of a region, or of a part of it, ready to be cut into chunks."""

    @property
    def num_bytes(self) -> int:
        """Bytes by which chunks are cut: about what their raw lengths add up to."""
        ...

    def write(self, start: int, stop: int, first_row: int) -> ChunkRow:
        """Write rows ``[start, stop)`` as the chunk that starts at ``first_row`` of its region."""
        ...


class ChunkWriter(Protocol):
    """Writes batches as chunks of one codec."""

    def prepare(self, batch: pa.RecordBatch) -> PreparedRows:
        """Return rows of one region for their chunks to be written, front to back."""
        ...

    def write_encoded(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        """Write a chunk that is encoded already, as it is."""
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
        self._schema = schema
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema)
        # Arrow writes magic and schema together with the first batch.
        self._header_bytes = 8 + schema.serialize().size
        self._num_kept: int | None = None

    def prepare(self, batch: pa.RecordBatch) -> PreparedRows:
        """See :meth:`ChunkWriter.prepare`."""
        return _PlainRows(batch, self.write)

    def write(self, batch: pa.RecordBatch, first_row: int) -> ChunkRow:
        """Write ``batch`` as one chunk."""
        offset = max(self._sink.position, self._header_bytes)
        self._sink.begin_chunk(offset)
        self._writer.write_batch(batch)
        length = self._sink.position - offset
        return first_row, offset, length, length, Encoding.IPC, self._sink.end_chunk()

    def write_encoded(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        """See :meth:`ChunkWriter.write_encoded`; the chunk has encoding 0.

        Arrow's writer takes batches, not messages, and keeps its footer as it does. Reading the
        message copies no column.
        """
        return self.write(
            pa.ipc.read_record_batch(pa.py_buffer(chunk.payload), self._schema), first_row
        )

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


@dataclass(frozen=True, slots=True)
class _PlainRows:
    """Rows that become IPC messages."""

    batch: pa.RecordBatch
    write_batch: Callable[[pa.RecordBatch, int], ChunkRow]

    @property
    def num_bytes(self) -> int:
        return int(self.batch.nbytes)

    def write(self, start: int, stop: int, first_row: int) -> ChunkRow:
        return self.write_batch(self.batch.slice(start, stop - start), first_row)


@dataclass(frozen=True, slots=True)
class _PackedRows:
    """Rows that become packed chunks."""

    rows: PackedRows
    num_bytes: int
    write_message: Callable[[bytes, int], ChunkRow]

    def write(self, start: int, stop: int, first_row: int) -> ChunkRow:
        return self.write_message(self.rows.message(start, stop), first_row)


class ZstdChunks:
    """Codec zstd: frames, each padded to a multiple of 8.

    Inside them rows are packed; but where columns are so many that a chunk would hold little of
    each, they are Arrow IPC messages, whose cost per column is lower.
    """

    def __init__(
        self, sink: GatheringSink, schema: pa.Schema, level: int, chunk_bytes: int
    ) -> None:
        self._sink = sink
        self._encoder = ZstdEncoder(level, chunk_bytes)
        nodes = sum(num_nodes(field.type) for field in schema)
        self._packs = chunk_bytes >= nodes * MIN_NODE_BYTES
        sink.write(DATA_MAGIC)

    def prepare(self, batch: pa.RecordBatch) -> PreparedRows:
        """See :meth:`ChunkWriter.prepare`."""
        if not self._packs:
            return _PlainRows(batch, self._write_plain)
        rows = PackedRows(batch)
        num_bytes = max(rows.num_bytes, batch.nbytes // MAX_EXPANSION)
        return _PackedRows(rows, num_bytes, self._write_packed)

    def _write_plain(self, batch: pa.RecordBatch, first_row: int) -> ChunkRow:
        return self.write_encoded(self._encoder.encode(batch.serialize(), Encoding.IPC), first_row)

    def _write_packed(self, message: bytes, first_row: int) -> ChunkRow:
        return self.write_encoded(self._encoder.encode(message, Encoding.PACKED), first_row)

    def write_encoded(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        """See :meth:`ChunkWriter.write_encoded`; chunks of any encoding stand side by side."""
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
