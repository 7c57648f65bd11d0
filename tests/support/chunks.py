"""Chunks that no index describes."""

from collections.abc import Sequence

import pyarrow as pa

from arrow_format.format.chunk_table import ChunkFrames, ChunkPlaces, ChunkTable
from arrow_format.format.codec import StoredChunk
from arrow_format.format.codecs import ChunkDecoder


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
