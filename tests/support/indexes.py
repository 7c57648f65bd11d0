"""Indexes as bytes: decoded without the commit that names them, and what a commit says of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arrow_format.format.index_file import directory_place, whole_regions
from arrow_format.model import PartitionedFile
from arrow_format.read.partitioned_file import IndexPart, PartitionedFileReader

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from arrow_format.format.regions import Region
    from arrow_format.format.statistics import ColumnStatistics
    from arrow_format.model import PartitionedFileMetadata


@dataclass(frozen=True)
class _Bytes:
    """A storage of one index."""

    index: bytes
    root: str = "memory"

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        del path, num_bytes
        return self.index

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        del path
        return [self.index[start : start + length] for start, length in ranges]


class _Reader(PartitionedFileReader):
    """That of an index of any data file."""

    def check_data_bytes(self) -> None:
        pass


def said_of(index: bytes) -> dict[str, int]:
    """Return what a commit says of an index, by field of a partitioned file."""
    length, crc32 = directory_place(index)
    return {"index_bytes": len(index), "directory_bytes": length, "directory_crc32": crc32}


def reader_of(index: bytes, said: Mapping[str, Any]) -> PartitionedFileReader:
    """Return the reader of an index, of which a commit says this; raises as that."""
    file = PartitionedFile("x", 0, 0, 0, 0, **said)
    return _Reader(_Bytes(index), file)  # type: ignore[arg-type]


def part_of(index: bytes) -> IndexPart:
    """Return all that an index says; raises as its reader."""
    reader = reader_of(index, said_of(index))
    return reader.of_ranges([(0, reader.metadata.num_subpartitions)])


def decode_index(index: bytes) -> tuple[PartitionedFileMetadata, tuple[Region, ...]]:
    """Inverse of ``encode_index``; raises as a reader of the index."""
    part = part_of(index)
    return part.metadata, whole_regions(part.regions, part.metadata)


def statistics_of(index: bytes) -> Mapping[str, ColumnStatistics]:
    """Return the statistics of all chunks, in file order."""
    return part_of(index).statistics
