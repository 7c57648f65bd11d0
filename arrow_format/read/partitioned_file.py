"""Reads the index of a partitioned file and checks that it is the one that was committed.

Alone so that reading never loads the writer, which is :mod:`arrow_format.write.partitioned_file`.
Source: FLIP-148, ``PartitionedFileReader``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.index_file import decode_index
from arrow_format.model import PartitionedFile, PartitionedFileMetadata, Region, RegionKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrow_format.storage.open import Storage


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """What a reader needs for the complete regions of a file that has no index yet."""

    storage: Storage
    file: PartitionedFile
    metadata: PartitionedFileMetadata
    regions: tuple[Region, ...]


def broadcast_rows(regions: Iterable[Region]) -> int:
    """Count the rows of ``regions`` that every subpartition reads."""
    return sum(region.num_rows for region in regions if region.kind is RegionKind.BROADCAST)


class PartitionedFileReader:
    """The verified index of one partitioned file.

    Parameters
    ----------
    storage
        Storage that holds the file.
    file
        The file as its map status or log entry describes it.

    Raises
    ------
    CorruptShuffleError
        The index is missing, damaged, or not the one that was committed.
    FormatVersionError
        A newer version wrote it.
    """

    def __init__(self, storage: Storage, file: PartitionedFile) -> None:
        self.storage = storage
        self.file = file
        index = storage.read(file.index_path, num_bytes=file.index_bytes)
        where = f"{storage.root}/{file.index_path}"
        try:
            self.metadata, self.regions = decode_index(index)
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{where}: {error}"
            raise type(error)(msg) from error
        actual = (
            zlib.crc32(index),
            self.metadata.data_bytes,
            len(self.regions),
            sum(region.num_rows for region in self.regions),
            broadcast_rows(self.regions),
        )
        committed = (
            file.index_crc32,
            file.data_bytes,
            file.num_regions,
            file.num_rows,
            file.num_broadcast_rows,
        )
        if actual != committed:
            msg = f"{where}: is not the index that was committed; it was replaced afterwards"
            raise CorruptShuffleError(msg)
