"""Carries out one planned merge: into the first directory that takes it, inputs left alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from arrow_format.errors import StorageError
from arrow_format.format.totals import subpartition_totals
from arrow_format.write.merger import PartitionedFileMerger, ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrow_format.model import Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.storage.local_dirs import WriteRoots

ROOM_BYTES = 4 << 20
"""Room a directory must have beside the data, for the index."""


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A merged file, read back and found sound, and what it changes in the totals."""

    file: PartitionedFile
    num_merged_regions: int
    """Regions of the inputs."""
    added_bytes: Int64Array
    """Bytes per subpartition that the file has more than its inputs; mostly negative."""


def merge_files(
    inputs: Sequence[PartitionedFileReader],
    *,
    rewrite: bool,
    max_fan_in: int,
    roots: WriteRoots,
    path_in: Callable[[int], str],
    metadata: PartitionedFileMetadata,
    options: WriteOptions,
    on_bytes: Callable[[int], None] = ignore,
) -> MergedFile:
    """Merge files into one that stands in one of several directories.

    Parameters
    ----------
    inputs
        Indexes of the inputs, in reading order.
    rewrite
        Whether regions are joined; otherwise they are copied as they are.
    max_fan_in
        Most regions that become one.
    roots
        Where the file may go; one that fails is left out from then on.
    path_in
        Gives the path of the file, without suffix, in the root of that number.
    metadata, options, on_bytes
        As :class:`~arrow_format.write.merger.PartitionedFileMerger` takes them.

    Raises
    ------
    CorruptShuffleError, FormatVersionError, SchemaError
        An input is damaged, or not of this shuffle.
    StorageError, OutOfDiskError
        No directory took the file; nothing of it is left.
    """
    num_bytes = sum(one.file.data_bytes for one in inputs) + ROOM_BYTES
    while True:
        root = roots.choose(num_bytes)
        merger = PartitionedFileMerger(
            roots.storage(root), path_in(root), metadata, options, on_bytes=on_bytes
        )
        try:
            merged = (
                merger.rewrite(inputs, max_fan_in=max_fan_in) if rewrite else merger.append(inputs)
            )
        except StorageError as error:
            roots.leave_out(root, error)
            continue
        n = metadata.num_subpartitions
        _, added = subpartition_totals(merged.regions, n, merged.file.data_bytes)
        for one in inputs:
            added -= subpartition_totals(one.regions, n, one.file.data_bytes)[1]
        return MergedFile(
            replace(merged.file, root=root), sum(len(one.regions) for one in inputs), added
        )
