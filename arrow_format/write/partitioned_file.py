"""The writer of one partitioned file: a data file, region by region, and then its index.

The index is written last, so a data file without index was never finished.
Source: FLIP-148, ``PartitionedFileWriter``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.errors import ClosedError, ShuffleError, StorageError
from arrow_format.format.index_file import directory_place, encode_index
from arrow_format.format.regions import RegionKind
from arrow_format.format.single_values import to_binaries
from arrow_format.format.statistics import UNKNOWN, ColumnStatistics
from arrow_format.format.totals import subpartition_range
from arrow_format.keys.column_statistics import combined, statistics_of_rows, with_short_bounds
from arrow_format.model import FILE_STATISTICS, PartitionedFile, PartitionedFileMetadata
from arrow_format.options import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS, WriteOptions
from arrow_format.read.partitioned_file import UnfinishedFile, broadcast_rows
from arrow_format.storage.open import ObjectNotFoundError
from arrow_format.write.chunk_writer import GatheringSink, closing_bytes, open_chunk_writer
from arrow_format.write.clustering import (
    Clustering,
    cut_chunks,
    cut_to_size,
    in_runs,
    region_chunk_bytes,
)
from arrow_format.write.region_builder import RegionBuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from arrow_format.concurrency import OrderedMap
    from arrow_format.format.codec import EncodedChunk
    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array
    from arrow_format.storage.open import ObjectWriter, Storage

ENCODED_BYTES = 2 << 20
"""Raw bytes of the chunks that are encoded by one call: of one chunk at least."""

_STATISTICS_BYTES = 32
"""About the bytes of the statistics of a column and chunk: two bounds and a number of nulls."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Rows of a region as chunks of another file, to be copied as they are stored there."""

    chunks: Iterable[EncodedChunk]
    """In order. They are of the codec of the file, unless that takes others."""
    first_rows: Int64Array
    """Row of the part at which each of them starts."""
    clustering: Clustering
    raw_bytes: int
    """Approximate bytes of the rows as Arrow holds them in memory."""
    statistics: Mapping[str, ColumnStatistics]
    """Of the chunks, by column, as far as they are known."""


Part = tuple[pa.RecordBatch, Clustering] | StoredPart
"""Rows of some subpartitions of a region, with their clustering."""


class PartitionedFileWriter:
    """Writes one data file, region after region, and then its index.

    Used as a context manager it removes both files unless :meth:`finish` succeeded.

    Parameters
    ----------
    storage
        Where the files go.
    path
        Path of both files without suffix, relative to the storage's root.
    metadata
        What the index records besides the regions.
    options
        Codec, chunk size and whether to sync.
    in_order
        Packs columns and encodes chunks, as ``map`` does; :meth:`~Workers.map` in threads.

    Raises
    ------
    ObjectExistsError
        A data file of that name already exists; it is not touched.
    StorageError
        The storage takes no file, or the directory is gone.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
        in_order: OrderedMap = map,
    ) -> None:
        self._storage = storage
        self._options = options
        self._in_order = in_order
        self._metadata = metadata
        self._chunk_bytes = closing_bytes(metadata.data_schema, options.chunk_bytes, options.codec)
        self._file = PartitionedFile(path, 0, 0, 0, 0, 0, 0, 0)
        self._regions: list[Region] = []
        # Of the chunks of each region.
        self._statistics: dict[str, list[ColumnStatistics]] = {
            name: [] for name in metadata.statistics
        }
        self._raw_bytes = 0
        self._closed = False
        self._rolled_back = False
        self._index_begun = False
        # Where the last whole region ends: position and frame CRC-32 of the sink, raw bytes.
        self._whole = (0, 0)
        self._whole_raw_bytes = 0
        self._object = self._open(self._file.data_path)
        self._sink = GatheringSink(self._object)
        try:
            self._chunks = open_chunk_writer(self._sink, metadata.data_schema, options)
        except BaseException:
            self._object.abort()
            raise

    def _open(self, path: str) -> ObjectWriter:
        try:
            return self._storage.open_writer(path, sync=self._options.sync)
        except ObjectNotFoundError as error:
            # The directory of the file is gone. A missing input would be damage instead.
            raise StorageError(str(error)) from error

    @property
    def num_regions(self) -> int:
        """Regions written so far."""
        return len(self._regions)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data file so far."""
        return self._sink.position

    @property
    def write_ns(self) -> int:
        """Nanoseconds spent so far in handing bytes of the data file to the storage."""
        return self._sink.write_ns

    @property
    def index_bytes(self) -> int:
        """Approximate bytes that what the index will say of the regions takes in memory."""
        per_chunk = _STATISTICS_BYTES * len(self._statistics)
        return sum(region.nbytes + per_chunk * len(region.chunks) for region in self._regions)

    @property
    def regions(self) -> tuple[Region, ...]:
        """The regions written so far."""
        return tuple(self._regions)

    def write_region(self, batch: pa.RecordBatch, clustering: Clustering) -> None:
        """Append a region of unicast rows; nothing is written when there are no rows.

        Parameters
        ----------
        batch
            Rows of the data schema in the order of ``clustering``.
        clustering
            Which rows each subpartition has; all rows of a subpartition are contiguous.

        Raises
        ------
        ClosedError
            The file is finished or was released.
        ShuffleError
            The rows of a subpartition are not contiguous, or rows and clustering do not match.
        """
        self.write_region_in_parts([(batch, clustering)])

    def write_region_in_parts(
        self, parts: Iterable[Part], kind: RegionKind = RegionKind.UNICAST, *, raw_length: int = 0
    ) -> None:
        """Append one region whose rows come a few subpartitions at a time.

        Each part is written, and no longer referenced, before the next one is requested.

        Parameters
        ----------
        parts
            Rows by ascending rank; all with the same first subpartition. A part may continue the
            subpartition that the part before it ended with.
        kind
            Whether each row is read by one subpartition, or all rows by every subpartition. Rows
            of a broadcast region are clustered as rows of one subpartition.
        raw_length
            About the raw bytes of the chunks of all parts, where there are several: small regions
            have smaller chunks, and a small part of a large region has not.

        Raises
        ------
        ClosedError, ShuffleError
            As :meth:`write_region`.
        """
        self._check_open()
        n = self._metadata.num_subpartitions if kind is RegionKind.UNICAST else 1
        builder = RegionBuilder(kind, n)
        statistics: dict[str, list[ColumnStatistics]] = {name: [] for name in self._statistics}
        for part in parts:
            if isinstance(part, StoredPart):
                of_part = self._copy(builder, part)
            elif part[0].num_rows:
                of_part = self._encode(builder, *part, raw_length)
            else:
                continue
            for name, known in of_part.items():
                statistics[name].append(known)
            del part  # nothing here may keep its rows in memory while the next one is made
        if builder.num_rows:
            self._add_region(builder.build(), statistics)

    def _encode(
        self, builder: RegionBuilder, batch: pa.RecordBatch, clustering: Clustering, raw_length: int
    ) -> dict[str, ColumnStatistics]:
        """Write rows as new chunks; return the statistics of these."""
        n = builder.num_subpartitions
        part_start = self._begun(builder, clustering, batch.num_rows)
        self._raw_bytes += batch.nbytes
        rows, num_bytes = self._chunks.prepare(batch, self._in_order)
        chunk_bytes = region_chunk_bytes(max(num_bytes, raw_length), self._chunk_bytes)
        first_rows = cut_chunks(clustering, n, num_bytes, chunk_bytes)
        extents = [*cut_to_size(batch, first_rows, MAX_CHUNK_BYTES, MAX_CHUNK_ROWS)]
        starts = [start for start, _ in extents]
        runs = in_runs(extents, batch.num_rows * ENCODED_BYTES // max(num_bytes, 1))
        encoded = self._in_order(partial(self._chunks.encode, rows), runs)
        for start, chunk in zip(starts, chain.from_iterable(encoded), strict=True):
            builder.add_chunk(self._chunks.write(chunk, part_start + start))
        known = statistics_of_rows(batch, self._statistics, np.array(starts, np.int64))
        self._sink.flush()  # which refers to the rows
        return {name: with_short_bounds(column) for name, column in known.items()}

    def _copy(self, builder: RegionBuilder, part: StoredPart) -> dict[str, ColumnStatistics]:
        """Write chunks as they are stored; return what is known of them."""
        num_rows = int(part.clustering.row_offsets[-1])
        part_start = self._begun(builder, part.clustering, num_rows)
        for start, chunk in zip(part.first_rows.tolist(), part.chunks, strict=True):
            builder.add_chunk(self._chunks.write_stored(chunk, part_start + start))
        self._raw_bytes += part.raw_bytes
        rows = np.diff(part.first_rows, append=num_rows)
        known = {}
        for name in self._statistics:
            type_ = self._metadata.data_schema.field(name).type
            column = part.statistics.get(name, ColumnStatistics.unknown(type_, rows))
            known[name] = column.of_type(type_)  # types may differ in labels
        return known

    def _begun(self, builder: RegionBuilder, clustering: Clustering, num_rows: int) -> int:
        """Add a part to a region, and return the row at which it starts."""
        try:
            return builder.add(clustering, num_rows)
        except ShuffleError as error:
            msg = f"{self._file.data_path}: {error}"
            raise ShuffleError(msg) from error

    def _check_open(self) -> None:
        if self._closed or self._rolled_back:
            msg = f"{self._file.data_path}: finished or released; no region can be written"
            raise ClosedError(msg)

    def _add_region(
        self, region: Region, statistics: Mapping[str, Sequence[ColumnStatistics]]
    ) -> None:
        # A region counts as written once the storage has its bytes and no column is pinned.
        self._sink.flush()
        self._whole = (self._sink.position, self._sink.frame_crc32)
        self._whole_raw_bytes = self._raw_bytes
        self._regions.append(replace(region, number=len(self._regions)))
        for name, regions in self._statistics.items():
            regions.append(ColumnStatistics.joined(statistics[name]))

    @property
    def _chunk_statistics(self) -> dict[str, ColumnStatistics]:
        if not self._regions:
            return {}
        return {name: ColumnStatistics.joined(each) for name, each in self._statistics.items()}

    def roll_back(self) -> None:
        """Cut off what a failed write left after the last whole region.

        The file can then be finished with the regions it has, but takes no others.

        Raises
        ------
        StorageError
            The file cannot be cut, and cannot be finished.
        """
        if self._closed:
            return
        self._rolled_back = True
        self._raw_bytes = self._whole_raw_bytes
        self._sink.truncate(*self._whole)
        self._chunks.keep(sum(len(region.chunks) for region in self._regions))

    def finish(self) -> PartitionedFile:
        """Finish the data file, then write the index; both are durable when ``sync`` is on.

        Returns
        -------
        PartitionedFile
            The sizes and checksums that a map status and the log record.

        Raises
        ------
        ClosedError
            The file is already finished or released.
        StorageError
            The storage took no more bytes. Until :meth:`release` the regions can be read, see
            :meth:`unfinished`.
        """
        if self._closed:
            msg = f"{self._file.data_path}: finished or released; it cannot be finished again"
            raise ClosedError(msg)
        self._chunks.finish()
        self._object.close()
        statistics = self._chunk_statistics
        metadata = replace(
            self._metadata,
            statistics=tuple(statistics),
            data_bytes=self._sink.position,
            frame_crc32=self._sink.frame_crc32,
        )
        index = encode_index(metadata, self._regions, statistics)
        writer = self._open(self._file.index_path)
        self._index_begun = True  # a file of that name is now ours to remove
        try:
            writer.writev([index])
            writer.close()
        finally:
            writer.abort()
        self._closed = True
        first, end = subpartition_range(self._regions, self._metadata.num_subpartitions)
        directory_bytes, directory_crc32 = directory_place(index)
        return replace(
            self._file,
            num_rows=sum(region.num_rows for region in self._regions),
            num_regions=len(self._regions),
            data_bytes=self._sink.position,
            raw_bytes=self._raw_bytes,
            index_bytes=len(index),
            directory_bytes=directory_bytes,
            directory_crc32=directory_crc32,
            num_broadcast_rows=broadcast_rows(self._regions),
            num_subpartitions=self._metadata.num_subpartitions,
            first_subpartition=first,
            end_subpartition=end,
            statistics=file_statistics(statistics, self._metadata.data_schema),
        )

    def unfinished(self) -> UnfinishedFile:
        """Return the whole regions, for a reader of the file before it is finished."""
        file = replace(
            self._file,
            num_regions=len(self._regions),
            data_bytes=self._whole[0],
            raw_bytes=self._whole_raw_bytes,
        )
        return UnfinishedFile(
            self._storage, file, self._metadata, self.regions, self._chunk_statistics
        )

    def release(self) -> None:
        """Remove the unfinished file; does nothing after :meth:`finish`.

        A file that a broken storage refuses to delete stays: no log entry will name it, and the
        commit or abort of its job tries again.
        """
        if self._closed:
            return
        self._closed = True
        self._object.abort()
        if self._index_begun:
            with contextlib.suppress(StorageError):
                self._storage.delete(self._file.index_path)
        with contextlib.suppress(StorageError):
            self._storage.delete(self._file.data_path)

    def __enter__(self) -> PartitionedFileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def remove_file(storage: Storage, file: PartitionedFile) -> None:
    """Remove a file that no log entry names, as far as possible.

    What a broken storage refuses to delete is removed by the commit or abort of its job, or later
    by garbage collection.
    """
    for path in (file.index_path, file.data_path):
        with contextlib.suppress(StorageError):
            storage.delete(path)


def file_statistics(chunks: Mapping[str, ColumnStatistics], schema: pa.Schema) -> pa.StructArray:
    """Return what a map status says of a file of a schema, given the statistics of its chunks."""
    whole = {name: combined(column, np.zeros(1, np.int64)) for name, column in chunks.items()}
    known = {name: column for name, column in whole.items() if column.null_count[0] > UNKNOWN}
    if not known:
        return pa.nulls(0, FILE_STATISTICS)
    bounds = [
        pa.concat_arrays([to_binaries(getattr(column, side)) for column in known.values()])
        for side in ("minimum", "maximum")
    ]
    positions = np.array([schema.get_field_index(name) for name in known], np.int64)
    null_counts = np.concatenate([column.null_count for column in known.values()])
    return pa.StructArray.from_arrays(
        [to_arrow(positions), *bounds, to_arrow(null_counts)], fields=list(FILE_STATISTICS)
    )
