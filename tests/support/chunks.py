"""Chunks that no index describes."""

from collections.abc import Sequence

import pyarrow as pa

from arrow_format.format.chunk_table import ChunkFrames, ChunkPlaces, ChunkTable
from arrow_format.format.codec import StoredChunk
from arrow_format.format.codecs import ChunkDecoder


def compressed_message(batch: pa.RecordBatch) -> bytes:
    """Return the message of a batch whose buffers are compressed, each alone."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # of the schema
    return bytes(messages.read_next_message().serialize().to_pybytes())


def places_of(frames: ChunkFrames, columns: Sequence[int], num_rows: int = 1) -> ChunkPlaces:
    """Where columns at some positions are in a chunk of some frames."""
    (places,) = ChunkTable.of([(0, 0, frames)], num_rows).places([0], columns)
    return places


def decoded(
    decoder: ChunkDecoder, payload: pa.Buffer, frames: ChunkFrames, num_rows: int
) -> pa.RecordBatch:
    """Decode a whole chunk."""
    places = places_of(frames, decoder.columns, num_rows)
    return decoder.decode([StoredChunk(payload, places, (0, num_rows))])
