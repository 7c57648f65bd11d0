"""Writes chunks into a data file: encoded, checksummed, and gathered into large writes."""

from __future__ import annotations

import time
import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.format.codecs import CODECS
from arrow_format.format.packed_layout import num_nodes
from arrow_format.options import MAX_CHUNK_BYTES

if TYPE_CHECKING:
    from arrow_format.format.codec import ChunkWriter
    from arrow_format.options import Codec, WriteOptions
    from arrow_format.storage.open import ByteSource, ObjectWriter

WRITE_BYTES = 4 << 20
"""Chunks are gathered into writes of about this many bytes."""

NODES_PER_CHUNK = 16
"""A chunk of more columns than this closes later in proportion: each costs some microseconds."""


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


def closing_bytes(schema: pa.Schema, chunk_bytes: int, codec: Codec) -> int:
    """Return the raw bytes at which a chunk closes: ``chunk_bytes``, but more of wide tables.

    What is inside of a column counts as a column more.
    """
    nodes = sum(num_nodes(type_) for type_ in schema.types)
    times = min(max(nodes / NODES_PER_CHUNK, 1), CODECS[codec].most_times)
    return min(int(chunk_bytes * times), MAX_CHUNK_BYTES)


def open_chunk_writer(
    sink: GatheringSink, schema: pa.Schema, options: WriteOptions
) -> ChunkWriter[Any, Any]:
    """Return a writer of chunks of the codec of ``options``; it begins the data file."""
    codec = CODECS[options.codec]
    return codec.writer(sink, schema, level=options.codec_level, chunk_bytes=options.chunk_bytes)
