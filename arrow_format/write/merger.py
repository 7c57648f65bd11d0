"""Merging partitioned files into one: as they are, or with their regions joined.

The inputs are only read. What was written is read back and compared with them before it is given
out, and on any failure nothing of it is left. Source: FLIP-148, ``PartitionedFileMerger``.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.row_sizes import most_items
from arrow_format.arrays.schema_evolution import is_appendable
from arrow_format.arrays.selection import take
from arrow_format.errors import CorruptShuffleError, OptionError, SchemaError, StorageError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.ipc import byte_schema
from arrow_format.format.totals import subpartition_totals
from arrow_format.keys.spark_order import key_codes
from arrow_format.model import Encoding, RegionKind
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import ObjectNotFoundError
from arrow_format.write.merge_policy import MAX_FAN_IN
from arrow_format.write.partitioned_file import INDEX_RESERVE_BYTES, PartitionedFileWriter
from arrow_format.write.region_joiner import RegionJoiner, sized_regions
from arrow_format.write.rewrite_plan import plan_fan_in, plan_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.model import Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.local_dirs import WriteRoots
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


NUM_COMPARED = 16
"""Subpartitions whose rows are compared."""

MOST_ROWS = 20_000
"""A subpartition with more rows is not compared: all of them would have to be held."""

MOST_BYTES = 64 << 20
"""... nor is one with more bytes, a value inside of a list counting as one byte more."""

ROWS_COMPARED = 256
"""Rows at both ends of a subpartition whose bytes are compared."""


def check_merged(merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader]) -> None:
    """Read a merged file whole and compare it with its inputs.

    Raises
    ------
    CorruptShuffleError
        It cannot be read back as it was written, or its subpartitions have other rows.
    """
    n = merged.metadata.num_subpartitions
    expected = np.zeros(n, np.int64)
    for one in inputs:
        expected += subpartition_totals(one.regions, n, one.file.data_bytes)[0]
    found, _ = subpartition_totals(merged.regions, n, merged.file.data_bytes)
    stored = merged.file.num_rows, merged.file.num_broadcast_rows
    if not np.array_equal(expected, found) or stored != (
        sum(one.file.num_rows for one in inputs),
        sum(one.file.num_broadcast_rows for one in inputs),
    ):
        raise _differs(merged, "the number of rows")
    copied = _are_copies(merged, inputs)
    ChunkReader(merged, ChunkDecoder(merged.metadata.data_schema)).check(decode=not copied)
    if not copied:
        _compare_rows(merged, inputs, expected)


def _compare_rows(
    merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader], rows: Int64Array
) -> None:
    candidates = np.flatnonzero((rows > 0) & (rows <= MOST_ROWS))
    places = np.linspace(0, len(candidates) - 1, min(NUM_COMPARED, len(candidates))).astype(int)
    for one in np.unique(candidates[places]).tolist():
        expected = _rows_at_ends(inputs, merged, one, max_bytes=MOST_BYTES)
        if expected is not None and expected != _rows_at_ends([merged], merged, one):
            raise _differs(merged, f"rows of subpartition {one}")


def _rows_at_ends(
    files: Sequence[PartitionedFileReader],
    merged: PartitionedFileReader,
    subpartition: int,
    *,
    max_bytes: float = inf,
) -> tuple[int, list[pa.RecordBatch]] | None:
    """How many unicast rows a subpartition has, and the bytes of the first and the last.

    Bytes, because NaN is no equal of itself, and not every value has a form in Python. None when
    the rows have more than ``max_bytes``.
    """
    schema, sort_by = merged.metadata.data_schema, merged.metadata.sort_by
    regions = []
    num_bytes = 0
    for file in files:
        chunks = ChunkReader(file, ChunkDecoder(schema))
        for number, region in enumerate(file.regions):
            if region.kind is RegionKind.UNICAST:
                batches = []
                for batch, _ in chunks.rows(number, number + 1, subpartition, subpartition + 1):
                    # Values inside of lists may take no byte at all, and their number is bounded.
                    num_bytes += batch.nbytes + most_items(batch)
                    if num_bytes > max_bytes:
                        return None
                    batches.append(batch)
                table = pa.Table.from_batches(batches, schema).combine_chunks()
                if sort_by and _sorted(table, sort_by) is not table:
                    raise _differs(merged, f"the order of rows of subpartition {subpartition}")
                regions.append(table)
    rows = pa.concat_tables([schema.empty_table(), *regions])
    if sort_by:
        rows = _sorted(rows.combine_chunks(), sort_by)
    ends = [rows.slice(0, ROWS_COMPARED), rows.slice(max(len(rows) - ROWS_COMPARED, 0))]
    return len(rows), [_as_bytes(end) for end in ends]


def _as_bytes(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows with the bytes that their values are: equal where the bytes are."""
    columns = [column.combine_chunks() for column in rows.columns]
    message = pa.RecordBatch.from_arrays(columns, schema=rows.schema).serialize()
    return pa.ipc.read_record_batch(message, byte_schema(rows.schema))


def _sorted(rows: pa.Table, sort_by: SortBy) -> pa.Table:
    """Return rows in the order of the sort keys, stable; the table itself when they are."""
    if len(rows) < 2:
        return rows
    codes = key_codes([rows[name].chunk(0) for name, _ in sort_by], [o for _, o in sort_by])
    order = sort_permutation(codes)
    return rows if bool((order[1:] > order[:-1]).all()) else take(rows, to_arrow(order))


def _are_copies(merged: PartitionedFileReader, inputs: Sequence[PartitionedFileReader]) -> bool:
    """Whether all chunks are those of the inputs, byte for byte."""
    regions = [region.chunks for one in inputs for region in one.regions]
    return len(regions) == len(merged.regions) and all(
        np.array_equal(getattr(region.chunks, name), getattr(chunks, name))
        for region, chunks in zip(merged.regions, regions, strict=True)
        for name in ("first_row", "length", "raw_length", "encoding", "crc32")
    )


def _differs(merged: PartitionedFileReader, what: str) -> CorruptShuffleError:
    return CorruptShuffleError(
        f"{merged.storage.root}/{merged.file.data_path}: {what} differ from the files it was "
        "merged from, which are unharmed. Please report this"
    )


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
    num_bytes = sum(one.file.data_bytes for one in inputs) + INDEX_RESERVE_BYTES
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
