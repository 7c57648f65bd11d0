"""Reads the index of a partitioned file and checks that it is the one that was committed.

Alone so that reading never loads the writer, which is :mod:`arrow_format.write.partitioned_file`.
Source: FLIP-148, ``PartitionedFileReader``.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.column_ids import renamed
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_table import Encoding
from arrow_format.format.index_file import decode_index, statistics_section
from arrow_format.format.regions import Region, RegionKind
from arrow_format.format.statistics import ColumnStatistics
from arrow_format.format.statistics_section import decode_section

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.model import Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import Codec
    from arrow_format.storage.open import Storage


@dataclass(frozen=True, slots=True)
class UnfinishedFile:
    """What a reader needs for the complete regions of a file that has no index yet."""

    storage: Storage
    file: PartitionedFile
    metadata: PartitionedFileMetadata
    regions: tuple[Region, ...]
    statistics: Mapping[str, ColumnStatistics]
    """Of all chunks, in file order."""


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
        self._section = statistics_section(index)
        self._statistics: Mapping[str, ColumnStatistics] | None = None

    def rename_columns(self, names: Mapping[str, str]) -> None:
        """Call the columns other names, wherever this file's metadata name one."""
        metadata = self.metadata
        self.metadata = replace(
            metadata,
            data_schema=renamed(metadata.data_schema, names),
            sort_by=tuple((names.get(name, name), order) for name, order in metadata.sort_by),
            statistics=tuple(names.get(name, name) for name in metadata.statistics),
        )

    @property
    def codec(self) -> Codec:
        """``none`` where all chunks are plain Arrow messages, as an Arrow IPC file has them."""
        is_plain = all((region.chunks.encoding == Encoding.IPC).all() for region in self.regions)
        return "none" if is_plain else "zstd"

    @property
    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Of all chunks in file order, as they are stored; decoded when they are first needed.

        Raises CorruptShuffleError where they cannot be those of this file.
        """
        if self._statistics is None:  # several threads may do this: they make equal ones
            names, schema = self.metadata.statistics, self.metadata.data_schema
            try:
                self._statistics = decode_section(
                    self._section, names, schema, chunk_rows(self.regions)
                )
            except CorruptShuffleError as error:
                msg = f"{self.storage.root}/{self.file.index_path}: {error}"
                raise CorruptShuffleError(msg) from error
        return self._statistics

    def chunk_statistics(
        self, names: Iterable[str], schema: pa.Schema
    ) -> dict[str, ColumnStatistics]:
        """Return what is known of columns in each chunk, in file order; others are left out.

        Parameters
        ----------
        names
            Columns of ``schema``.
        schema
            The data schema as which rows are read, that of the file or a later one: bounds have its
            types, and a column that the file lacks is null in all rows.

        Raises
        ------
        CorruptShuffleError
            The index has other statistics than it says.
        """
        stored = self.metadata.data_schema.names
        columns = {}
        for name in names:
            type_ = schema.field(name).type
            if name in self.metadata.statistics:
                columns[name] = self.statistics[name].of_type(type_)
            elif name not in stored:
                columns[name] = ColumnStatistics.all_null(type_, chunk_rows(self.regions))
        return columns


def chunk_rows(regions: Sequence[Region]) -> Int64Array:
    """Return the number of rows of each chunk of all regions, in file order."""
    rows = [np.diff(region.chunks.first_rows_and_end(region.num_rows)) for region in regions]
    return np.concatenate([np.zeros(0, np.int64), *rows])
