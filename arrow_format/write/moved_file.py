"""Moves the regions of a file that cannot be finished where it is into one that stands elsewhere.

Its disk is full, say: each whole region is with the file system and can be read back, but there is
no room for the footer or the index that would make a file of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError, StorageError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.write.region_joiner import sized_regions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.format.chunk_codec import EncodedChunk
    from arrow_format.read.partitioned_file import UnfinishedFile
    from arrow_format.write.partitioned_file import PartitionedFileWriter


def move_regions(source: UnfinishedFile, target: PartitionedFileWriter) -> None:
    """Append all regions of ``source`` to ``target``, chunks as they are stored, each verified.

    Raises
    ------
    CorruptShuffleError
        ``source`` cannot be read back as it was written.
    StorageError
        ``target`` cannot be written.
    """
    chunks = ChunkReader(source, ChunkDecoder(source.metadata.data_schema))
    for number, (region, raw_bytes) in enumerate(sized_regions(source)):
        stored = _read_back(chunks.stored(number, number + 1))
        target.write_stored_region(region, stored, raw_bytes)


def _read_back(chunks: Iterator[EncodedChunk]) -> Iterator[EncodedChunk]:
    """Give chunks; what cannot be read is no failure of the storage that is written to."""
    try:
        yield from chunks
    except StorageError as error:
        raise CorruptShuffleError(str(error)) from error
