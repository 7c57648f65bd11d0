"""Writes the files of one map output, in one or several directories.

There are several files where an index grows large, or where a directory fills up or fails. A file
that its directory cannot finish is moved to another one.
Source: FLIP-148, ``PartitionedFileWriter`` as ``SortMergeResultPartition`` drives it.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import CorruptShuffleError, StorageError
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.regions import RegionKind
from arrow_format.format.totals import subpartition_totals
from arrow_format.model import MapOutput, MapStatus, PartitionedFile, PartitionedFileMetadata
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.whole_file import check_file
from arrow_format.storage.local_dirs import WriteRoots, first_root
from arrow_format.write.merge_policy import MergePolicy
from arrow_format.write.merger import merge_files
from arrow_format.write.partitioned_file import PartitionedFileWriter, remove_file
from arrow_format.write.region_copier import RegionCopier

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from arrow_format.concurrency import OrderedMap
    from arrow_format.format.codec import EncodedChunk
    from arrow_format.options import WriteOptions
    from arrow_format.read.partitioned_file import UnfinishedFile
    from arrow_format.storage.open import Storage
    from arrow_format.write.counters import MapCounters
    from arrow_format.write.sort_buffer import SortedRegion

MAX_INDEX_BYTES = 16 << 20
"""A file whose regions take more in memory is finished and the next one is begun: a map task may
write any number of bytes, and encoding its index takes some six times as much (124 MB for 20)."""


class MapOutputWriter:
    """Writes the regions of one attempt of a map task, to another directory when one fails.

    ``storage`` is the shuffle, where files go below ``directory``; ``local_roots`` are further
    roots, None for one that cannot be used. ``counters`` are updated on the way. ``in_order`` packs
    columns and encodes chunks, as ``map`` does.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
        local_roots: Sequence[Storage | None],
        counters: MapCounters,
        in_order: OrderedMap = map,
    ) -> None:
        # A random id, so that two attempts never share a name whatever numbers they were given.
        self._name = f"{metadata.map_task:05d}-{metadata.attempt}-{secrets.token_hex(6)}"
        self._directory = directory
        self._metadata = metadata
        self._options = options
        # A retried attempt begins at another root than the one whose disk may have failed it.
        turn = metadata.map_task + metadata.attempt
        start = first_root(metadata.job_id, turn, 1 + len(local_roots))
        self._roots = WriteRoots(storage, local_roots, start)
        self._root = ""
        self._writer: PartitionedFileWriter | None = None
        self._num_begun = 0
        self._files: list[PartitionedFile] = []
        n = metadata.num_subpartitions
        self._totals = (np.zeros(n, np.int64), np.zeros(n, np.int64))
        self._counters = counters
        self._in_order = in_order

    def write_region(self, kind: RegionKind, region: SortedRegion) -> None:
        """Append a region to the current file, or to one in another directory when this one fails.

        Raises StorageError or OutOfDiskError when no directory took it; the map output is then of
        no use any more.
        """
        num_bytes = region.batch.nbytes
        if self._writer is not None and self._roots.should_leave(self._root, num_bytes):
            self._finish_file()
        while True:
            if self._writer is None:
                self._writer = self._roots.first_to_take(num_bytes, self._open)
            writer = self._writer
            try:
                self._append(writer, kind, region)
            except StorageError as error:
                self._leave_directory(error)
            else:
                break
        self._counters.num_regions += 1
        self._counters.num_broadcast_regions += kind is RegionKind.BROADCAST
        if writer.index_bytes > MAX_INDEX_BYTES:
            self._finish_file()

    def _append(
        self, writer: PartitionedFileWriter, kind: RegionKind, region: SortedRegion
    ) -> None:
        before = writer.write_ns
        try:
            with self._counters.time("encode"):
                writer.write_region_in_parts([(region.batch, region.clustering)], kind)
        finally:
            written = writer.write_ns - before
            self._counters.write_ns += written
            self._counters.encode_ns -= written

    def _open(self, root: str) -> PartitionedFileWriter:
        """Begin a file in a root, which becomes the current one."""
        self._root = root
        storage, path = self._roots.storage(root), self._new_path(root)
        return PartitionedFileWriter(storage, path, self._metadata, self._options, self._in_order)

    def _new_path(self, root: str) -> str:
        # No number twice, not even in two roots: a file that a broken disk does not let us delete
        # must not be taken for the live file of that name.
        name = f"{self._name}-{self._num_begun}"
        self._num_begun += 1
        return name if root else f"{self._directory}/{name}"

    def _leave_directory(self, error: StorageError) -> None:
        """Give the current directory up, and keep the whole regions of the current file.

        Raises ``error`` when no other directory is left, or the written regions cannot be kept.
        """
        self._roots.leave_out(self._root, error)
        writer = self._writer
        if writer is None:
            return
        if writer.num_regions == 0:
            self._writer = None
            writer.release()
            return
        try:
            writer.roll_back()
            self._finish(writer)
        except StorageError:
            self._move(writer, error)

    def _move(self, source: PartitionedFileWriter, error: StorageError) -> None:
        """Continue with a copy of the current file in another directory; it cannot be finished.

        Raises StorageError when no other directory takes the copy, ``error`` when the regions
        cannot be read back.
        """

        def copy(root: str) -> PartitionedFileWriter:
            target = self._open(root)
            try:
                move_regions(source.unfinished(), target, self._options)
            except BaseException:
                target.release()
                raise
            return target

        try:
            with self._counters.time("write"):
                self._writer = self._roots.first_to_take(source.num_bytes, copy)
        except CorruptShuffleError as damage:
            error.add_note(f"and the regions written before could not be kept: {damage}")
            raise error from damage
        finally:
            source.release()

    def _finish_file(self) -> None:
        """Finish the current file, in another directory where this one does not take its end."""
        while self._writer is not None:
            try:
                self._finish(self._writer)
            except StorageError as error:
                self._roots.leave_out(self._root, error)
                self._move(self._writer, error)

    def _finish(self, writer: PartitionedFileWriter) -> None:
        with self._counters.time("write"):
            file = replace(writer.finish(), root=self._root)
        self._writer = None
        self._files.append(file)
        n = self._metadata.num_subpartitions
        for total, added in zip(
            self._totals, subpartition_totals(writer.regions, n, file.data_bytes), strict=True
        ):
            total += added

    def finish(self) -> MapStatus:
        """Finish the files and return their description; without a region there are no files.

        Raises CorruptShuffleError when regions were to be joined and cannot be read back.
        """
        self._finish_file()
        counters = self._counters
        counters.failed_directories = self._roots.num_failed
        self._rewrite()
        counters.num_rows = sum(file.num_rows for file in self._files)
        counters.raw_bytes = sum(file.raw_bytes for file in self._files)
        counters.stored_bytes = sum(file.data_bytes for file in self._files)
        return MapStatus(
            MapOutput(
                self._metadata.job_id,
                self._metadata.map_task,
                self._metadata.attempt,
                tuple(self._files),
            ),
            *self._totals,
            counters.as_dict(),
        )

    def _rewrite(self) -> None:
        """Join the regions of all files, where the options ask for it and it is worth it."""
        n = self._metadata.num_subpartitions
        policy = MergePolicy(rewrite=self._options.rewrite)
        if policy.plan_map_task(self._files, n) is None:
            return
        inputs: list[PartitionedFileReader] = []
        with self._counters.time("merge"):
            try:
                inputs += (
                    PartitionedFileReader(self._roots.storage(file.root), file)
                    for file in self._files
                )
                merged = merge_files(
                    inputs,
                    rewrite=True,
                    max_fan_in=policy.max_fan_in,
                    roots=self._roots,
                    path_in=self._new_path,
                    metadata=self._metadata,
                    options=self._options,
                )
            except StorageError:
                # No space for a second copy, say. The files are whole and readable as they are.
                self._counters.failed_rewrites += 1
                return
            except Exception:
                # Rows that cannot be joined, or not within memory, can be read as they are all the
                # same, unless they are damaged: that fails the task.
                if len(inputs) < len(self._files):
                    raise
                for index in inputs:
                    check_file(ChunkReader(index, ChunkDecoder(self._metadata.data_schema)))
                self._counters.failed_rewrites += 1
                return
        files, self._files = self._files, [merged.file]
        self._totals[1][:] += merged.added_bytes
        self._counters.merged_regions += merged.num_merged_regions
        self._counters.num_regions = merged.file.num_regions
        self._delete(files)

    def release(self) -> None:
        """Remove everything written, as far as that is possible."""
        if self._writer is not None:
            self._writer.release()
        self._delete(self._files)

    def _delete(self, files: Iterable[PartitionedFile]) -> None:
        for file in files:
            remove_file(self._roots.storage(file.root), file)


def move_regions(
    source: UnfinishedFile, target: PartitionedFileWriter, options: WriteOptions
) -> None:
    """Append all regions of ``source`` to ``target``, chunks as they are stored, each verified.

    Raises CorruptShuffleError when ``source`` cannot be read back as it was written, StorageError
    when ``target`` cannot be written.
    """
    copier = RegionCopier(source, source.metadata.data_schema, options)
    for number, region in enumerate(source.regions):
        stored = _read_back(copier.chunks.stored(copier.chunks.plan(number, number + 1)))
        part = copier.stored_part(number, 0, len(region.chunks), stored)
        target.write_region_in_parts([part], region.kind)


def _read_back(chunks: Iterator[EncodedChunk]) -> Iterator[EncodedChunk]:
    """Yield chunks; a read error must not pass for a failure of the storage written to."""
    try:
        yield from chunks
    except StorageError as error:
        raise CorruptShuffleError(str(error)) from error
