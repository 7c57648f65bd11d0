"""Reads the index of a partitioned file and checks that it is the one that was committed.

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
    """What is needed to read the whole regions of a file that has no index yet."""

    storage: Storage
    file: PartitionedFile
    metadata: PartitionedFileMetadata
    regions: tuple[Region, ...]


def broadcast_rows(regions: Iterable[Region]) -> int:
    """Rows of ``regions`` that every subpartition reads."""
    return sum(region.num_rows for region in regions if region.kind is RegionKind.BROADCAST)


class PartitionedFileReader:
    """The verified index of one partitioned file.

    Parameters
    ----------
    storage
        Where the file is.
    file
        What a map status or log entry says of it.

    Raises
    ------
    CorruptShuffleError
        The index is missing, damaged, or not the one that was committed.
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
        found = (
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
        if found != committed:
            msg = f"{where}: is not the index that was committed; it was replaced afterwards"
            raise CorruptShuffleError(msg)
