"""Merging partitioned files into one: as they are, or with their regions joined.

The inputs are only read. What was written is read back and compared with them before it is given
out, and on any failure nothing of it is left. Source: FLIP-148, ``PartitionedFileMerger``.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.arrays.schema_evolution import is_appendable
from arrow_format.errors import OptionError, SchemaError, StorageError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.model import Encoding, RegionKind
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import ObjectNotFoundError
from arrow_format.write.merge_check import check_merged
from arrow_format.write.merge_policy import MAX_FAN_IN
from arrow_format.write.partitioned_file import PartitionedFileWriter
from arrow_format.write.region_joiner import RegionJoiner, sized_regions
from arrow_format.write.rewrite_plan import plan_fan_in, plan_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrow_format.model import PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Storage


def ignore(num_bytes: int) -> None:
    """Take notice of progress, and do nothing."""


class PartitionedFileMerger:
    """Merges partitioned files into a new one.

    The output has the codec of its inputs: when all of their chunks are plain Arrow messages it is
    an Arrow IPC file again, otherwise a file of codec ``zstd``.

    Parameters
    ----------
    storage
        Where the output goes.
    path
        Path of its two files without suffix, relative to the storage's root.
    metadata
        What its index will say beside the regions; rows are read with its schema.
    options
        Memory, chunk size, level and whether to sync; its codec plays no part.
    on_bytes
        Called now and then with the bytes of input data that were merged since the last call.
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
        """Copy the regions of all inputs behind each other, chunks as they are stored.

        Parameters
        ----------
        inputs
            Indexes of the inputs, in reading order.

        Returns
        -------
        PartitionedFileReader
            The index of the output, which was read back and is sound.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            An input is damaged or missing, or a newer version wrote it.
        SchemaError
            The inputs are not of one shuffle, or rows of theirs cannot be joined.
        StorageError, OutOfDiskError
            The output could not be written.
        """
        self._check_inputs(inputs)

        def write(writer: PartitionedFileWriter) -> None:
            for one in inputs:
                self._copy(writer, one, range(len(one.regions)))

        return self._merge(inputs, write)

    def rewrite(
        self,
        inputs: Sequence[PartitionedFileReader],
        *,
        max_fan_in: int = MAX_FAN_IN,
    ) -> PartitionedFileReader:
        """Join regions, as many at a time as memory allows without much being decoded twice.

        Rows of a subpartition stay in the order in which they were read, or become sorted as a
        whole where regions are sorted. Regions that every subpartition reads are copied. Memory is
        that of a map task with the same options.

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
            pair
            for one in inputs
            for pair in sized_regions(one)
            if pair[0].kind is RegionKind.UNICAST
        ]
        fan_in = plan_fan_in(
            unicast,
            self._metadata.num_subpartitions,
            max_bytes=budget,
            max_fan_in=max_fan_in,
            is_sorted=bool(self._metadata.sort_by),
        )
        runs = plan_runs([one.regions for one in inputs], fan_in)

        def write(writer: PartitionedFileWriter) -> None:
            for run in runs:
                if run.num_regions > 1:
                    joiner = RegionJoiner(inputs, run, self._metadata, budget, self._on_bytes)
                    writer.write_region_in_parts(joiner.parts())
                else:
                    (one,) = run.slices
                    self._copy(writer, inputs[one.source], range(one.first, one.end))

        return self._merge(inputs, write)

    def _merge(
        self,
        inputs: Sequence[PartitionedFileReader],
        write: Callable[[PartitionedFileWriter], None],
    ) -> PartitionedFileReader:
        options = replace(self._options, codec="none" if _are_plain(inputs) else "zstd")
        try:
            with self._open(options) as writer:
                write(writer)
                file = writer.finish()
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            msg = (
                f"{self._storage.root}: rows of its files cannot be joined: {error}. Nothing was "
                "merged; rewrite='never' merges the files without joining rows"
            )
            raise SchemaError(msg) from error
        try:
            merged = PartitionedFileReader(self._storage, file)
            check_merged(merged, inputs)
        except BaseException:
            # Whatever cannot be removed either is named by nobody; the first error is the one told.
            with contextlib.suppress(StorageError):
                self._storage.delete(file.index_path)
                self._storage.delete(file.data_path)
            raise
        return merged

    def _open(self, options: WriteOptions) -> PartitionedFileWriter:
        try:
            return PartitionedFileWriter(self._storage, self._path, self._metadata, options)
        except ObjectNotFoundError as error:
            # Not of an input, whose loss is damage: the directory of the output is gone.
            raise StorageError(str(error)) from error

    def _check_inputs(self, inputs: Sequence[PartitionedFileReader]) -> None:
        ours = self._metadata
        if not inputs:
            msg = "merge of no files; give at least one"
            raise OptionError(msg)
        for one in inputs:
            theirs = one.metadata
            if (
                theirs.num_subpartitions != ours.num_subpartitions
                or theirs.sort_by != ours.sort_by
                or not is_appendable(ours.data_schema, theirs.data_schema)
            ):
                msg = (
                    f"{one.storage.root}/{one.file.path}: has other columns, sort keys or another "
                    "number of subpartitions than the file it shall be merged into"
                )
                raise SchemaError(msg)

    def _copy(
        self, writer: PartitionedFileWriter, source: PartitionedFileReader, numbers: range
    ) -> None:
        """Copy regions of one input as they are stored."""
        chunks = ChunkReader(source, ChunkDecoder(self._metadata.data_schema))
        regions = sized_regions(source)
        for number in numbers:
            region, raw_bytes = regions[number]
            writer.write_stored_region(region, chunks.stored(number, number + 1), raw_bytes)
            self._on_bytes(int(region.chunks.length.sum()))


def _are_plain(inputs: Sequence[PartitionedFileReader]) -> bool:
    """Whether all chunks are Arrow messages as they stand."""
    return all(
        bool((region.chunks.encoding == Encoding.IPC).all())
        for one in inputs
        for region in one.regions
    )
