"""What data and index files hold, whether the log names them or not: chunks, frames and bounds."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import zstandard

from arrow_format.format.codec_zstd import ZstdCodec
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.model import INDEX_SUFFIX, PartitionedFile
from arrow_format.read.chunk_plan import plan_chunks
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import UnfinishedFile
from arrow_format.storage.open import PosixStorage
from tests.support.indexes import decode_index, statistics_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa


class HeldChunk(NamedTuple):
    """A chunk of a file."""

    stored: bytes
    rows: pa.RecordBatch
    """All of them, those too that a mask took."""
    frames: list[bytes]
    """What is compressed: packed columns, or the message."""


def held_chunks(index_path: Path) -> list[HeldChunk]:
    """Return the chunks of a file, in file order."""
    metadata, regions = decode_index(index_path.read_bytes())
    name = index_path.name.removesuffix(INDEX_SUFFIX)
    file = PartitionedFile(name, 0, len(regions), metadata.data_bytes, 0, 0, 0, 0)
    storage = PosixStorage(str(index_path.parent))
    index = UnfinishedFile(storage, file, metadata, regions, {})
    reader, n = ChunkReader(index, ChunkDecoder(metadata.data_schema)), metadata.num_subpartitions
    held = []
    for chunk, buffer in reader.fetched(plan_chunks(regions, 0, n, n)):
        stored, rows = buffer.to_pybytes(), reader.decode(chunk, buffer)
        described = regions[chunk.region].chunks.frames(chunk.chunk)
        frames = [stored[start:stop] for start, stop in pairwise(described.edges)]
        if described.encoding == ZstdCodec.encoding:
            frames = [zstandard.decompress(frame) for frame in frames]
        held.append(HeldChunk(stored, rows, frames))
    return held


def held_bytes(*directories: str | Path) -> bytes:
    """Return all values in chunks and bounds of all files below, and their frames."""
    return b"\n".join(
        part
        for directory in directories
        for index_path in Path(directory).rglob(f"*{INDEX_SUFFIX}")
        for part in _parts(index_path)
    )


def _parts(index_path: Path) -> Iterator[bytes]:
    for column in statistics_of(index_path.read_bytes()).values():
        yield repr([column.minimum.to_pylist(), column.maximum.to_pylist()]).encode()
    for chunk in held_chunks(index_path):
        yield from chunk.frames
        for column in chunk.rows.columns:
            yield from (buffer.to_pybytes() for buffer in column.buffers() if buffer is not None)


def raw_bytes(*directories: str | Path) -> bytes:
    """Return the bytes of all files below."""
    return b"\n".join(
        path.read_bytes()
        for directory in directories
        for path in Path(directory).rglob("*")
        if path.is_file()
    )
