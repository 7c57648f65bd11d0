"""Codec ``none``: each chunk is a record batch of an Arrow IPC file, which anything can read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.format.chunk_table import MESSAGE, ChunkFrames
from arrow_format.format.codec import (
    DAMAGE,
    ChunkWriter,
    Codec,
    EncodedChunk,
    OpenChunks,
    check_frame,
    not_of_this_schema,
)
from arrow_format.format.ipc import LayoutCheck, is_compressed, keep_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.concurrency import OrderedMap
    from arrow_format.format.codec import (
        ChunkColumns,
        ChunkOpener,
        ChunkRow,
        ChunkSink,
        StoredChunk,
    )


class NoneCodec(Codec):
    """Arrow messages in a plain Arrow file."""

    name = "none"
    encoding = MESSAGE
    most_times = 8  # bytes that are not compressed are of fewer rows
    takes_others = False

    def writer(
        self, sink: ChunkSink, schema: pa.Schema, *, level: int, chunk_bytes: int
    ) -> ChunkWriter[Any, Any]:
        """Begin an Arrow file."""
        del level, chunk_bytes
        return _IpcFileChunks(sink, schema)

    def opener(self, wanted: ChunkColumns) -> ChunkOpener:
        """Return what opens a message."""
        layout = LayoutCheck(wanted.stored)

        def opened(chunks: Sequence[StoredChunk]) -> OpenChunks:
            ((stored, places, rows),) = chunks
            check_frame(stored, places.described, 0, wanted.names)
            try:
                return _Message(stored, wanted, layout, places.num_rows, rows)
            except DAMAGE as error:
                raise not_of_this_schema(error) from error

        return opened


def message_frames(num_columns: int, length: int, crc32: int) -> ChunkFrames:
    """Return what is said of a chunk that is an Arrow IPC message, of a schema of some columns."""
    nought = [0] * num_columns
    return ChunkFrames(MESSAGE, nought, nought, [length], [crc32])


class _IpcFileChunks:
    """Writes an Arrow file: Arrow's writer takes batches, and keeps the footer."""

    def __init__(self, sink: ChunkSink, schema: pa.Schema) -> None:
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


class _Message(OpenChunks):
    """An Arrow IPC message: all columns are views of it."""

    are_views = True

    def __init__(
        self,
        stored: pa.Buffer,
        wanted: ChunkColumns,
        layout: LayoutCheck,
        num_rows: int,
        rows: tuple[int, int],
    ) -> None:
        if is_compressed(memoryview(stored)):
            msg = "its buffers are compressed, and say themselves how large they would become"
            raise ValueError(msg)
        batch = pa.ipc.read_record_batch(stored, wanted.stored)
        if batch.num_rows != num_rows:
            msg = f"{batch.num_rows} rows where the index says {num_rows}"
            raise ValueError(msg)
        layout.check(stored, None if wanted.is_whole else wanted.columns)
        self.num_rows = rows[1] - rows[0]
        if not wanted.is_whole:
            batch = batch.select(wanted.columns)
        if self.num_rows < num_rows:
            batch = batch.slice(rows[0], self.num_rows)
            batch = copied(batch) if 2 * self.num_rows < num_rows else batch
        self._batch = batch
        self.schema = wanted.schema

    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        return [self._batch.column(i) for i in positions]

    def batch(self) -> pa.RecordBatch:
        return self._batch
