"""Writes a partitioned file again without the rows of given keys.

Regions without such rows are copied as they are stored, unless the file has an earlier schema, or a
mask took some of them: those go too. The others are decoded, filtered and
encoded a few chunks at a time, so their rows stay in order, and sorted where they were. The new
file is read back before it is returned; on any failure it is removed.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.row_sizes import most_items
from arrow_format.arrays.schema_evolution import has_same_columns
from arrow_format.arrays.selection import joined, keep
from arrow_format.errors import CorruptShuffleError, StorageError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.format.regions import RegionKind
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.key_search import search, subpartitions_in
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.plan import plan_chunks
from arrow_format.storage.open import ObjectNotFoundError
from arrow_format.write.clustering import Clustering, cluster
from arrow_format.write.merger import ignore
from arrow_format.write.partitioned_file import INDEX_RESERVE_BYTES, PartitionedFileWriter
from arrow_format.write.region_joiner import region_statistics, sized_regions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from arrow_format.keys.key_set import KeySet
    from arrow_format.model import Int32Array, Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.read.key_search import Matches
    from arrow_format.storage.local_dirs import WriteRoots
    from arrow_format.storage.open import Storage
    from arrow_format.write.region_joiner import Part

PART_BYTES = 8 << 20
"""Rows that are encoded together, at most a quarter of a region's memory: more than a chunk, so
that chunks do not become small."""


class RowDeleter:
    """Writes files without the rows of some keys, into the first directory that takes each.

    ``metadata`` is what the indexes record, and rows are read with its schema. ``options`` give
    memory, chunk size, level and sync; a file keeps its codec. ``on_bytes`` gets the stored bytes
    of the input that were dealt with.
    """

    def __init__(
        self,
        keys: KeySet,
        roots: WriteRoots,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
        on_bytes: Callable[[int], None] = ignore,
    ) -> None:
        self._keys = keys
        self._roots = roots
        self._metadata = metadata
        self._options = options
        self._on_bytes = on_bytes
        self._columns = [metadata.data_schema.get_field_index(name) for name in keys.names]
        self._decoders = ChunkDecoders(metadata.data_schema)
        self._part_bytes = max(min(PART_BYTES, options.region_bytes // 4), 1)

    def write(
        self, index: PartitionedFileReader, matches: Matches, path_in: Callable[[str], str]
    ) -> tuple[PartitionedFile | None, tuple[Int64Array, Int64Array]]:
        """Write a file without the rows that match; no file when none is left.

        Also returns the rows and bytes per subpartition that the new file has more than the old.
        ``path_in`` returns the path of the file in a root. Raises CorruptShuffleError where the
        input is damaged, or the output cannot be read back; StorageError or OutOfDiskError when no
        root took the file.
        """
        before = index.totals
        if matches.num_rows == index.file.num_rows:
            return None, (-before[0], -before[1])
        while True:
            root = self._roots.choose(index.file.data_bytes + INDEX_RESERVE_BYTES)
            storage = self._roots.storage(root)
            try:
                file, deleted = self._write(storage, path_in(root), index, matches)
            except StorageError as error:
                self._roots.leave_out(root, error)
                continue
            written = self._checked(storage, file, index, matches, before[0] - deleted)
            after = written.totals
            file = replace(file, root=root, placed=index.file.placed)
            return file, (after[0] - before[0], after[1] - before[1])

    def _write(
        self, storage: Storage, path: str, index: PartitionedFileReader, matches: Matches
    ) -> tuple[PartitionedFile, Int64Array]:
        """Write the file; also return how many rows each subpartition lost."""
        deleted = np.zeros(self._metadata.num_subpartitions, np.int64)
        stored, schema = index.metadata.data_schema, self._metadata.data_schema
        chunks = ChunkReader(index, self._decoders.of(stored))
        is_stored_alike = has_same_columns(stored, schema)
        options = replace(self._options, codec=index.codec)
        statistics = region_statistics(index)
        kept = tuple(name for name in index.metadata.statistics if name in schema.names)
        metadata = replace(self._metadata, statistics=kept)
        try:
            writer = PartitionedFileWriter(storage, path, metadata, options)
        except ObjectNotFoundError as error:
            # The directory of the output is gone. A missing input would be damage instead.
            raise StorageError(str(error)) from error
        with writer:
            for number, (region, raw_bytes) in enumerate(sized_regions(index)):
                is_whole = number not in matches.regions and not index.is_masked(number)
                if not is_whole or not is_stored_alike:
                    parts = self._kept(index, chunks, number, deleted)
                    writer.write_region_in_parts(parts, region.kind, raw_length=region.raw_length)
                else:
                    as_stored = chunks.stored(number, number + 1)
                    writer.write_stored_region(region, as_stored, raw_bytes, statistics(number))
                self._on_bytes(int(region.chunks.length.sum()))
            return writer.finish(), deleted

    def _kept(
        self, index: PartitionedFileReader, chunks: ChunkReader, number: int, deleted: Int64Array
    ) -> Iterator[Part]:
        """Yield the rows of a region that are kept, in order; count the others in ``deleted``."""
        n = self._metadata.num_subpartitions
        region = index.regions[number]
        batches: list[pa.RecordBatch] = []
        parts: list[Int32Array] = []
        num_bytes = 0
        plan = plan_chunks([region], 0, n, n, first_region=number)
        for chunk, decoded in chunks.decoded(plan):
            batch = decoded.slice(chunk.first_row, chunk.end_row - chunk.first_row)
            ids = subpartitions_in(region, chunk, n)
            where = ids if index.file.placed else None
            is_deleted = self._keys.among([batch.column(i) for i in self._columns], where)
            is_new = is_deleted
            left = chunks.rows_left(chunk)
            if left is not None:
                is_left = np.zeros(len(is_deleted), np.bool_)
                is_left[left] = True
                is_new, is_deleted = is_deleted & is_left, is_deleted | ~is_left
            if ids is None:
                deleted += np.count_nonzero(is_new)
                ids = np.zeros(batch.num_rows, np.int32)
            else:
                np.add.at(deleted, ids[is_new], 1)
            if is_deleted.any():
                batch, ids = keep(batch, to_arrow(~is_deleted)), ids[~is_deleted]
            batches.append(batch)
            parts.append(ids)
            num_bytes += batch.nbytes + most_items(batch)
            del batch, decoded
            if num_bytes >= self._part_bytes:
                yield self._part(region.kind, region.first_subpartition, batches, parts)
                num_bytes = 0
        if batches:
            yield self._part(region.kind, region.first_subpartition, batches, parts)

    def _part(
        self,
        kind: RegionKind,
        first_subpartition: int,
        batches: list[pa.RecordBatch],
        parts: list[Int32Array],
    ) -> Part:
        """Join rows, which are in the order of a region, and empty their lists."""
        batch, ids = joined(batches), np.concatenate(parts)
        batches.clear()
        parts.clear()
        if kind is RegionKind.BROADCAST:
            return batch, Clustering(0, None, None, np.array([0, len(ids)], np.int32))
        return batch, cluster(ids, self._metadata.num_subpartitions, first_subpartition)

    def _checked(
        self,
        storage: Storage,
        file: PartitionedFile,
        index: PartitionedFileReader,
        matches: Matches,
        expected: Int64Array,
    ) -> PartitionedFileReader:
        """Read a new file back whole: it has all rows but those that match, and none of these.

        Raises CorruptShuffleError otherwise, and removes the file.
        """
        try:
            written = PartitionedFileReader(storage, replace(file, placed=index.file.placed))
            self._check(written, index, matches, expected)
        except BaseException:
            # No log entry names a file that stays here; the first error is the one to raise.
            with contextlib.suppress(StorageError):
                storage.delete(file.index_path)
                storage.delete(file.data_path)
            raise
        return written

    def _check(
        self,
        written: PartitionedFileReader,
        index: PartitionedFileReader,
        matches: Matches,
        expected: Int64Array,
    ) -> None:
        file, schema = written.file, self._metadata.data_schema
        ChunkReader(written, ChunkDecoder(schema)).check()
        rows, _ = written.totals
        if file.num_rows != index.file.num_rows - matches.num_rows or np.any(rows != expected):
            raise _differs(written, index, "the number of rows differs from that")
        if search([written], self._keys, schema, ignore):
            raise _differs(written, index, "it has rows of deleted keys, as those")


def _differs(
    written: PartitionedFileReader, index: PartitionedFileReader, what: str
) -> CorruptShuffleError:
    return CorruptShuffleError(
        f"{written.storage.root}/{written.file.data_path}: {what} of the rows to keep of "
        f"{index.storage.root}/{index.file.data_path}, which is unharmed. Please report this"
    )
