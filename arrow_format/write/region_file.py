"""Writes rows that come in the order of a region as a file of one region, and checks the file."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.batches import Rows
from arrow_format.arrays.row_sizes import most_items
from arrow_format.arrays.selection import joined
from arrow_format.errors import StorageError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.regions import RegionKind
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.whole_file import check_file
from arrow_format.storage.open import ObjectNotFoundError
from arrow_format.write.clustering import SPLIT_CHUNK_BYTES, Clustering, cluster
from arrow_format.write.partitioned_file import INDEX_RESERVE_BYTES, PartitionedFileWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from arrow_format.model import PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.local_dirs import WriteRoots
    from arrow_format.storage.open import Storage
    from arrow_format.write.partitioned_file import Part


def write_region_file(
    open_rows: Callable[[], Iterator[Rows]],
    kind: RegionKind,
    first_subpartition: int,
    *,
    roots: WriteRoots,
    path_in: Callable[[str], str],
    metadata: PartitionedFileMetadata,
    options: WriteOptions,
    num_bytes: int,
    raw_bytes: int,
) -> PartitionedFileReader | None:
    """Write a file of one region, in the first directory that takes it; None without rows.

    Returns its index once it was read back whole.

    Parameters
    ----------
    open_rows
        Returns the rows by ascending subpartition, each time that a directory is tried. Of a
        broadcast region all are of one subpartition.
    kind
        Whether each row is of its subpartition, or of all.
    first_subpartition
        No row is of a lower one.
    roots, path_in
        Where the file may go, and its path in a root.
    metadata, options
        What its index records besides the region; codec, chunk size, level, sync.
    num_bytes, raw_bytes
        About the bytes of the file, and of its rows in Arrow.

    Raises
    ------
    CorruptShuffleError
        The file cannot be read back as it was written.
    StorageError, OutOfDiskError
        No directory took the file.
    """
    while True:
        root = roots.choose(num_bytes + INDEX_RESERVE_BYTES)
        storage, path = roots.storage(root), path_in(root)
        try:
            parts = _parts(open_rows(), kind, first_subpartition, metadata.num_subpartitions)
            file = _write(storage, path, metadata, options, parts, kind, raw_bytes)
        except StorageError as error:
            roots.leave_out(root, error)
            continue
        if file is None:
            return None
        return read_back(storage, replace(file, root=root), metadata.data_schema)


def _write(
    storage: Storage,
    path: str,
    metadata: PartitionedFileMetadata,
    options: WriteOptions,
    parts: Iterator[Part],
    kind: RegionKind,
    raw_bytes: int,
) -> PartitionedFile | None:
    try:
        writer = PartitionedFileWriter(storage, path, metadata, options)
    except ObjectNotFoundError as error:
        # The directory of the output is gone. A missing input would be damage instead.
        raise StorageError(str(error)) from error
    with writer:
        writer.write_region_in_parts(parts, kind, raw_length=raw_bytes)
        return writer.finish() if writer.num_regions else None


def _parts(
    rows: Iterable[Rows], kind: RegionKind, first_subpartition: int, num_subpartitions: int
) -> Iterator[Part]:
    for run in _in_parts(rows):
        if kind is RegionKind.BROADCAST:
            ends = np.array([0, run.batch.num_rows], np.int32)
            yield run.batch, Clustering(0, None, None, ends)
        else:
            order = cluster(run.subpartitions, num_subpartitions, first_subpartition)
            yield run.batch, order


def _in_parts(rows: Iterable[Rows]) -> Iterator[Rows]:
    """Join rows to :data:`SPLIT_CHUNK_BYTES` or more, but the last; chunks end where parts do."""
    batches: list[pa.RecordBatch] = []
    ids = []
    num_bytes = 0
    for run in rows:
        batches.append(run.batch)
        ids.append(run.subpartitions)
        num_bytes += run.batch.nbytes + most_items(run.batch)
        del run  # nothing but the joined rows is in memory while they are written
        if num_bytes >= SPLIT_CHUNK_BYTES:
            yield _joined(batches, ids)
            num_bytes = 0
    if batches:
        yield _joined(batches, ids)


def _joined(batches: list[pa.RecordBatch], ids: list[np.ndarray]) -> Rows:
    """Return rows as one, and empty their lists."""
    whole = Rows(joined(batches), np.concatenate(ids))
    batches.clear()
    ids.clear()
    return whole


def read_back(
    storage: Storage,
    file: PartitionedFile,
    schema: pa.Schema,
) -> PartitionedFileReader:
    """Return the index of a new file, which is read whole; it is removed where that fails."""
    try:
        written = PartitionedFileReader(storage, file)
        check_file(ChunkReader(written, ChunkDecoder(schema)))
    except BaseException:
        # No log entry names a file that stays here; the first error is the one to raise.
        with contextlib.suppress(StorageError):
            storage.delete(file.index_path)
            storage.delete(file.data_path)
        raise
    return written
