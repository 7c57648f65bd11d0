"""Merges partitioned files into one: regions copied as they are, or joined.

Inputs are only read. The output is read back and compared with them before it is returned; on any
failure it is removed. :func:`merge_files` picks a directory for the output,
:class:`PartitionedFileMerger` writes it, and :mod:`~arrow_format.write.merge_check` compares it.
Source: FLIP-148, ``PartitionedFileMerger``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.schema_evolution import (
    can_read_as,
    shared_columns,
)
from arrow_format.errors import OptionError, SchemaError
from arrow_format.format.codecs import codec_of_file
from arrow_format.format.regions import RegionKind
from arrow_format.options import ignore
from arrow_format.write.checked_file import write_checked
from arrow_format.write.merge_check import check_merged
from arrow_format.write.merge_policy import MAX_FAN_IN
from arrow_format.write.region_copier import RegionCopier
from arrow_format.write.region_joiner import RegionJoiner, sized_regions
from arrow_format.write.rewrite_plan import plan_fan_in, plan_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrow_format.model import Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.storage.local_dirs import WriteRoots
    from arrow_format.storage.open import Storage
    from arrow_format.write.partitioned_file import PartitionedFileWriter


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A merged and checked file, and how it changes the totals per subpartition."""

    file: PartitionedFile
    num_merged_regions: int
    """Regions of the inputs."""
    added_bytes: Int64Array
    """Stored bytes per subpartition less those of the inputs; mostly negative."""


def merge_files(
    inputs: Sequence[PartitionedFileReader],
    *,
    rewrite: bool,
    max_fan_in: int,
    roots: WriteRoots,
    path_in: Callable[[str], str],
    metadata: PartitionedFileMetadata,
    options: WriteOptions,
    on_bytes: Callable[[int], None] = ignore,
) -> MergedFile:
    """Merge files into one, in the first directory that takes it.

    The arguments are those of :class:`PartitionedFileMerger`, but for ``path_in``, which returns
    the path of the output in a root. StorageError or OutOfDiskError are raised only when no root
    took the file.
    """

    def merge(root: str) -> PartitionedFile:
        merger = PartitionedFileMerger(
            roots.storage(root), path_in(root), metadata, options, on_bytes=on_bytes
        )
        merged = merger.rewrite(inputs, max_fan_in=max_fan_in) if rewrite else merger.append(inputs)
        _, added[:] = merged.totals
        return replace(merged.file, root=root, placed=all(index.file.placed for index in inputs))

    added = np.zeros(metadata.num_subpartitions, np.int64)
    file = roots.first_to_take(sum(index.file.data_bytes for index in inputs), merge)
    for index in inputs:
        added -= index.totals[1]
    return MergedFile(file, sum(len(index.regions) for index in inputs), added)


class PartitionedFileMerger:
    """Merges partitioned files into a new one.

    The output has the codec of its inputs, see :func:`codec_of_file`: when all of their chunks are
    plain Arrow messages it is an Arrow IPC file again.

    Parameters
    ----------
    storage
        Where the output goes.
    path
        Path of its two files without suffix, relative to the storage's root.
    metadata
        What its index records besides the regions; rows are read with its schema.
    options
        Memory, chunk size, level and whether to sync; the codec is ignored.
    on_bytes
        Progress callback: bytes of input data merged since its last call.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
        *,
        on_bytes: Callable[[int], None] = ignore,
    ) -> None:
        self._storage = storage
        self._path = path
        self._metadata = metadata
        self._options = options
        self._on_bytes = on_bytes

    def append(self, inputs: Sequence[PartitionedFileReader]) -> PartitionedFileReader:
        """Copy the regions of all inputs one after the other, chunks as they are stored.

        Chunks of an input with an earlier schema are encoded again.

        Parameters
        ----------
        inputs
            Indexes of the inputs, in reading order.

        Returns
        -------
        PartitionedFileReader
            The index of the output, which was read back and checked.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            An input is damaged or missing, or a newer version wrote it.
        SchemaError
            The inputs are not of one shuffle, or their rows cannot be joined.
        StorageError, OutOfDiskError
            The output could not be written.
        """
        self._check_inputs(inputs)

        def write(writer: PartitionedFileWriter) -> None:
            for index in inputs:
                self._copy(writer, index, range(len(index.regions)))

        return self._merge(inputs, write)

    def rewrite(
        self,
        inputs: Sequence[PartitionedFileReader],
        *,
        max_fan_in: int = MAX_FAN_IN,
    ) -> PartitionedFileReader:
        """Join regions, as many into one as memory allows without decoding many chunks twice.

        Rows of a subpartition stay in reading order, or are merged into one sorted run where
        regions are sorted. Broadcast regions are copied. Memory is that of a map task with the
        same options.

        Parameters
        ----------
        inputs
            As for :meth:`append`, which raises the same errors.
        max_fan_in
            Most regions that become one.
        """
        self._check_inputs(inputs)
        budget = self._options.region_bytes
        unicast = [
            (region, raw_bytes)
            for index in inputs
            for region, raw_bytes in sized_regions(index)
            if region.kind is RegionKind.UNICAST
        ]
        fan_in = plan_fan_in(
            unicast,
            self._metadata.num_subpartitions,
            max_bytes=budget,
            max_fan_in=max_fan_in,
            is_sorted=bool(self._metadata.sort_by),
        )
        runs = plan_runs([index.regions for index in inputs], fan_in)

        def write(writer: PartitionedFileWriter) -> None:
            for run in runs:
                if run.num_regions > 1:
                    joiner = RegionJoiner(inputs, run, self._metadata, budget, self._on_bytes)
                    writer.write_region_in_parts(joiner.parts(), raw_length=joiner.raw_length)
                else:
                    (single,) = run.slices
                    self._copy(writer, inputs[single.source], range(single.first, single.end))

        return self._merge(inputs, write)

    def _merge(
        self,
        inputs: Sequence[PartitionedFileReader],
        write: Callable[[PartitionedFileWriter], None],
    ) -> PartitionedFileReader:
        codec = codec_of_file(set().union(*(index.encodings for index in inputs)))
        options = replace(self._options, codec=codec.name)
        metadata = replace(self._metadata, statistics=_statistics_of_any(inputs, self._metadata))

        def write_rows(writer: PartitionedFileWriter) -> None:
            try:
                write(writer)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                msg = (
                    f"{self._storage.root}: rows of its files cannot be joined: {error}. Nothing "
                    "was merged; rewrite='never' merges the files without joining rows"
                )
                raise SchemaError(msg) from error

        return write_checked(
            self._storage,
            self._path,
            metadata,
            options,
            write=write_rows,
            check=lambda merged: check_merged(merged, inputs),
        )

    def _check_inputs(self, inputs: Sequence[PartitionedFileReader]) -> None:
        ours = self._metadata
        if not inputs:
            msg = "merge of no files; give at least one"
            raise OptionError(msg)
        for index in inputs:
            theirs = index.metadata
            if (
                theirs.num_subpartitions != ours.num_subpartitions
                or theirs.sort_by != ours.sort_by
                or not can_read_as(
                    shared_columns(theirs.data_schema, ours.data_schema), ours.data_schema
                )
            ):
                msg = (
                    f"{index.storage.root}/{index.file.path}: its columns, sort keys or number of "
                    "subpartitions differ from those of the file to merge into; merge only files "
                    "of one shuffle"
                )
                raise SchemaError(msg)

    def _copy(
        self, writer: PartitionedFileWriter, index: PartitionedFileReader, numbers: range
    ) -> None:
        """Copy regions of one input, without the rows that a mask took."""
        copier = RegionCopier(index, self._metadata.data_schema, self._options)
        copier.copy(writer, numbers, self._on_bytes)


def _statistics_of_any(
    inputs: Sequence[PartitionedFileReader], metadata: PartitionedFileMetadata
) -> tuple[str, ...]:
    """Columns that have statistics in some input; those of copied chunks of others stay unknown."""
    known = {name for index in inputs for name in index.metadata.statistics}
    return tuple(name for name in metadata.data_schema.names if name in known)
