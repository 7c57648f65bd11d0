"""Writes rows that come in the order of a region as a file of one region, and checks the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.batches import in_parts
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.regions import RegionKind
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.whole_file import check_file
from arrow_format.write.checked_file import write_checked
from arrow_format.write.clustering import SPLIT_CHUNK_BYTES, Clustering, cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from arrow_format.model import PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.read.rows import Rows
    from arrow_format.storage.local_dirs import WriteRoots
    from arrow_format.write.partitioned_file import Part, PartitionedFileWriter


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
    placed: bool,
) -> PartitionedFileReader:
    """Write a file of one region, in the first directory that takes it; of none without rows.

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
    placed
        Whether each row is known to be where the partitioner places it.

    Raises
    ------
    CorruptShuffleError
        The file cannot be read back as it was written.
    StorageError, OutOfDiskError
        No directory took the file.
    """

    def write_rows(writer: PartitionedFileWriter) -> None:
        parts = _parts(open_rows(), kind, first_subpartition, metadata.num_subpartitions)
        writer.write_region_in_parts(parts, kind, raw_length=raw_bytes)

    def write(root: str) -> PartitionedFileReader:
        return write_checked(
            roots.storage(root),
            path_in(root),
            metadata,
            options,
            write=write_rows,
            check=check_whole,
            root=root,
            placed=placed,
        )

    return roots.first_to_take(num_bytes, write)


def check_whole(written: PartitionedFileReader) -> None:
    """Read a new file whole; raises CorruptShuffleError where it is not as it was written."""
    check_file(ChunkReader(written, ChunkDecoder(written.metadata.data_schema)))


def _parts(
    rows: Iterable[Rows], kind: RegionKind, first_subpartition: int, num_subpartitions: int
) -> Iterator[Part]:
    """Yield rows as parts of a region, whose chunks end where these do."""
    pairs = ((run.batch, run.subpartitions) for run in rows)
    for batch, ids in in_parts(pairs, SPLIT_CHUNK_BYTES):
        if kind is RegionKind.BROADCAST:
            ends = np.array([0, batch.num_rows], np.int32)
            yield batch, Clustering(0, None, None, ends)
        else:
            yield batch, cluster(ids, num_subpartitions, first_subpartition)
