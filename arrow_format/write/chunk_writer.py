"""Writes chunks into a data file: encoded, checksummed, and gathered into large writes."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.format.chunk_codec import EncodedChunk, FrameEncoder, message_frames
from arrow_format.format.ipc import keep_batches
from arrow_format.format.packed_encoder import PackedRows
from arrow_format.format.packed_layout import num_nodes
from arrow_format.options import MAX_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.concurrency import OrderedMap
    from arrow_format.options import Codec, WriteOptions
    from arrow_format.storage.open import ByteSource, ObjectWriter
    from arrow_format.write.region_builder import ChunkRow

WRITE_BYTES = 4 << 20
"""Chunks are gathered into writes of about this many bytes."""

NODES_PER_CHUNK = 16
"""A chunk of more columns than this closes later in proportion: each costs some microseconds."""

MOST_TIMES = {"zstd": 4, "none": 8}
"""... but at this many times ``chunk_bytes`` at the latest, by codec: bytes that are not compressed
are those of the rows in memory, and of fewer rows."""

MAX_EXPANSION = 4
"""A chunk whose rows take more than this many times its bytes in memory is cut as if it had a
quarter of those: reading a chunk must not take much memory however well its rows are packed."""

DATA_MAGIC = b"ASHFDAT1"
"""First bytes of a data file of codec zstd; with codec none it is an Arrow IPC file."""


class GatheringSink:
    """A file for Arrow's IPC writer: counts, checksums, and gathers small buffers for ``writev``.

    Bytes between :meth:`begin_chunk` and :meth:`end_chunk` belong to a chunk and its CRC-32; all
    others (header, padding, footer) belong to the frame, whose CRC-32 is in the index.
    """

    closed = False

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._buffered: list[ByteSource] = []
        self._buffered_bytes = 0
        self.position = 0
        self.frame_crc32 = 0
        self.write_ns = 0
        """Nanoseconds spent in the storage."""
        self._chunk_start: int | None = None
        self._chunk_crc32 = 0
        self._diverted: list[bytes] | None = None

    def begin_chunk(self, position: int) -> None:
        """Begin a chunk at ``position``; what is written before it still belongs to the frame."""
        self._chunk_start = position
        self._chunk_crc32 = 0

    def end_chunk(self) -> int:
        """End the chunk and return its CRC-32."""
        self._chunk_start = None
        return self._chunk_crc32

    def write(self, buffer: ByteSource) -> int:
        """Take a buffer, which is kept alive until it is written; return its bytes."""
        if self._diverted is not None:
            self._diverted.append(bytes(memoryview(buffer)))
            return len(self._diverted[-1])
        if self._chunk_start is None or self.position < self._chunk_start:
            self.frame_crc32 = zlib.crc32(buffer, self.frame_crc32)
        else:
            self._chunk_crc32 = zlib.crc32(buffer, self._chunk_crc32)
        return self.write_chunk(buffer)

    def write_chunk(self, buffer: ByteSource) -> int:
        """Take a chunk whose CRC-32 is known, as :meth:`write` takes a buffer."""
        length = buffer.size if isinstance(buffer, pa.Buffer) else len(buffer)
        if length:
            self._buffered.append(buffer)
            self._buffered_bytes += length
            self.position += length
            if self._buffered_bytes >= WRITE_BYTES:
                self.flush()
        return length

    def flush(self) -> None:
        """Write the buffered bytes to the storage."""
        buffered, self._buffered, self._buffered_bytes = self._buffered, [], 0
        if buffered:
            started = time.perf_counter_ns()
            self._writer.writev(buffered)
            self.write_ns += time.perf_counter_ns() - started

    def truncate(self, position: int, frame_crc32: int) -> None:
        """Cut the file at ``position``, all of it written, where the frame had this CRC-32."""
        self._buffered, self._buffered_bytes = [], 0
        self._chunk_start = None
        self._writer.truncate(position)
        self.position, self.frame_crc32 = position, frame_crc32

    def divert(self) -> list[bytes]:
        """Collect what is written until :meth:`restore` in the list returned, and nowhere else."""
        self._diverted = []
        return self._diverted

    def restore(self) -> None:
        """Write to the file again."""
        self._diverted = None

    def close(self) -> None:
        """Leave the object open: the partitioned file finishes it."""


Rows = TypeVar("Rows")
"""Rows as a codec takes them."""
Encoded = TypeVar("Encoded")
"""A chunk as a codec writes it."""


class ChunkWriter(Protocol[Rows, Encoded]):
    """Writes rows as chunks of one codec."""

    def prepare(self, batch: pa.RecordBatch, in_order: OrderedMap) -> tuple[Rows, int]:
        """Return rows for :meth:`encode`, and the raw bytes by which they are cut into chunks."""

    def encode(self, rows: Rows, extents: Sequence[tuple[int, int]]) -> list[Encoded]:
        """Return rows ``[start, stop)`` as chunks for :meth:`write`; in any thread."""

    def write(self, chunk: Encoded, first_row: int) -> ChunkRow:
        """Write the chunk that starts at ``first_row`` of its region."""

    def write_stored(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        """Write a chunk of another file as it is stored there."""

    def keep(self, num_chunks: int) -> None:
        """Forget all but the first chunks: the file was cut after them and will be finished."""

    def finish(self) -> None:
        """Write what follows the last chunk."""


def closing_bytes(schema: pa.Schema, chunk_bytes: int, codec: Codec) -> int:
    """Return the raw bytes at which a chunk closes: ``chunk_bytes``, but more of wide tables.

    What is inside of a column counts as a column more.
    """
    nodes = sum(num_nodes(type_) for type_ in schema.types)
    times = min(max(nodes / NODES_PER_CHUNK, 1), MOST_TIMES[codec])
    return min(int(chunk_bytes * times), MAX_CHUNK_BYTES)


def open_chunk_writer(
    sink: GatheringSink, schema: pa.Schema, options: WriteOptions
) -> ChunkWriter[Any, Any]:
    """Return a writer of chunks of the codec of ``options``; it begins the data file."""
    if options.codec == "none":
        return _IpcFileChunks(sink, schema)
    return _ZstdChunks(sink, options.codec_level, options.chunk_bytes)


class _IpcFileChunks:
    """Codec none: every chunk is a record batch of one Arrow IPC file.

    Arrow's writer takes batches, and keeps the footer.
    """

    def __init__(self, sink: GatheringSink, schema: pa.Schema) -> None:
        self._sink = sink
        self._schema = schema
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema)
        # Arrow writes magic and schema together with the first batch.
        self._header_bytes = 8 + schema.serialize().size
        self._num_kept: int | None = None

    def prepare(self, batch: pa.RecordBatch, in_order: OrderedMap) -> tuple[pa.RecordBatch, int]:
        del in_order
        return batch, batch.nbytes

    def encode(
        self, rows: pa.RecordBatch, extents: Sequence[tuple[int, int]]
    ) -> list[pa.RecordBatch]:
        # Of a view Arrow writes what lies beside it too, up to its padding. Where that is erased
        # later, this chunk is copied as it is.
        return [copied(rows.slice(start, stop - start)) for start, stop in extents]

    def write(self, chunk: pa.RecordBatch, first_row: int) -> ChunkRow:
        offset = max(self._sink.position, self._header_bytes)
        self._sink.begin_chunk(offset)
        self._writer.write_batch(chunk)
        length = self._sink.position - offset
        frames = message_frames(len(self._schema), length, self._sink.end_chunk())
        return first_row, offset, frames

    def write_stored(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        # An IPC message (encoding 0). Reading it copies no column.
        batch = pa.ipc.read_record_batch(pa.py_buffer(chunk.payload), self._schema)
        return self.write(batch, first_row)

    def keep(self, num_chunks: int) -> None:
        self._num_kept = num_chunks

    def finish(self) -> None:
        if self._num_kept is None:
            self._writer.close()
        else:
            footer = self._sink.divert()
            self._writer.close()
            self._sink.restore()
            self._sink.write(keep_batches(b"".join(footer), self._num_kept))
        self._sink.flush()


class _ZstdChunks:
    """Codec zstd: frames of packed columns, each chunk padded to a multiple of 8."""

    def __init__(self, sink: GatheringSink, level: int, chunk_bytes: int) -> None:
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
