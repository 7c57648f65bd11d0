"""Chunks that no index describes."""

from collections.abc import Iterable

import pyarrow as pa

from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.chunk_table import ChunkFrames, ChunkPlaces, ChunkTable


def places_of(frames: ChunkFrames, columns: Iterable[int], num_rows: int = 1) -> ChunkPlaces:
    """Where columns at some positions are in a chunk of some frames."""
    return ChunkTable.of([(0, 0, frames)], num_rows).places(0, columns)


def decoded(
    decoder: ChunkDecoder, payload: pa.Buffer, frames: ChunkFrames, num_rows: int
) -> pa.RecordBatch:
    """Decode a whole chunk."""
    return decoder.decode(payload, places_of(frames, decoder.columns, num_rows))
