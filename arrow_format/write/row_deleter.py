"""Writes a partitioned file again without the rows of given keys.

Chunks without such rows are copied as they are stored, unless the file has an earlier schema, or a
mask took some of them: those go too. The others are decoded, filtered and encoded, so their rows
stay in order, and sorted where they were. The new file is read back before it is returned, and what
was encoded is decoded; on any failure it is removed.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.schema_evolution import has_same_columns
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.regions import RegionKind
from arrow_format.options import ignore
from arrow_format.read.fetched_chunks import subpartitions_in
from arrow_format.write.checked_file import write_checked
from arrow_format.write.region_copier import RegionCopier, check_written, chunk_contents

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.keys.key_set import KeySet
    from arrow_format.model import Int32Array, Int64Array, PartitionedFile, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.key_search import Matches
    from arrow_format.read.partitioned_file import PartitionedFileReader
    from arrow_format.storage.local_dirs import WriteRoots
    from arrow_format.write.partitioned_file import PartitionedFileWriter


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

    def write(
        self, index: PartitionedFileReader, matches: Matches, path_in: Callable[[str], str]
    ) -> tuple[PartitionedFile | None, tuple[Int64Array, Int64Array]]:
        """Write a file without the rows that match; no file when none is left.

        It has as many subpartitions as the old one. Also returns the rows and bytes of each that it
        has more than that.
        ``path_in`` returns the path of the file in a root. Raises CorruptShuffleError where the
        input is damaged, or the output cannot be read back; StorageError or OutOfDiskError when no
        root took the file.
        """
        before = index.totals
        if matches.num_rows == index.file.num_rows:
            return None, (-before[0], -before[1])
        n = index.metadata.num_subpartitions
        deleted = np.zeros(n, np.int64)

        def write(root: str) -> PartitionedFileReader:
            deleted[:] = 0
            return write_checked(
                self._roots.storage(root),
                path_in(root),
                metadata,
                options,
                write=partial(self._copy, index, matches, deleted),
                check=lambda written: self._check(written, index, matches, before[0] - deleted),
                root=root,
                placed=index.file.placed,
            )

        schema = self._metadata.data_schema
        options = replace(self._options, codec=index.codec)
        kept = tuple(name for name in index.metadata.statistics if name in schema.names)
        metadata = replace(self._metadata, statistics=kept, num_subpartitions=n)
        written = self._roots.first_to_take(index.file.data_bytes, write)
        after = written.totals
        return written.file, (after[0] - before[0], after[1] - before[1])

    def _copy(
        self,
        index: PartitionedFileReader,
        matches: Matches,
        deleted: Int64Array,
        writer: PartitionedFileWriter,
    ) -> None:
        """Copy what stays, and count the rows that each subpartition lost in ``deleted``."""
        copier = RegionCopier(
            index,
            self._metadata.data_schema,
            self._options,
            loses=lambda chunk: matches.are_in(chunk.region, chunk.chunk),
            keep=partial(self._kept, index, deleted),
        )
        copier.copy(writer, range(len(index.regions)), self._on_bytes)

    def _kept(
        self,
        index: PartitionedFileReader,
        deleted: Int64Array,
        chunk: ChunkRead,
        batch: pa.RecordBatch,
        rows: Int64Array,
    ) -> Int64Array:
        """Return which of some rows of a chunk are kept, and count the others in ``deleted``."""
        ids, are_deleted = self._among(index, chunk, batch)
        gone = are_deleted[rows]
        if ids is None:
            deleted += np.count_nonzero(gone)
        else:
            np.add.at(deleted, ids[rows[gone]], 1)
        return rows[~gone]

    def _among(
        self, index: PartitionedFileReader, chunk: ChunkRead, batch: pa.RecordBatch
    ) -> tuple[Int32Array | None, NDArray[np.bool_]]:
        """Return the subpartition of each row of a chunk, None for all, and whether it matches."""
        n = index.metadata.num_subpartitions
        region = index.regions[chunk.part]
        is_broadcast = region.kind is RegionKind.BROADCAST
        ids = None if is_broadcast else subpartitions_in(region, chunk, n)
        where = ids if index.file.placed else None
        if where is not None:  # the file may have a multiple
            where = where % len(self._keys.wanted)
        return ids, self._keys.among([batch.column(i) for i in self._columns], where)

    def _check(
        self,
        written: PartitionedFileReader,
        index: PartitionedFileReader,
        matches: Matches,
        expected: Int64Array,
    ) -> None:
        """Read a new file back whole: it has all rows but those that match, and none of these."""
        file, schema = written.file, self._metadata.data_schema
        rows, _ = written.totals
        if file.num_rows != index.file.num_rows - matches.num_rows or np.any(rows != expected):
            raise _differs(written, index, "the number of rows differs from that")

        def check_rows(chunk: ChunkRead, batch: pa.RecordBatch) -> None:
            if self._among(written, chunk, batch)[1].any():
                raise _differs(written, index, "it has rows of deleted keys, as those")

        copied = (
            {text for place, text in chunk_contents(index).items() if not matches.are_in(*place)}
            if has_same_columns(index.metadata.data_schema, schema)
            else ()
        )
        check_written(written, copied, schema, check_rows)


def _differs(
    written: PartitionedFileReader, index: PartitionedFileReader, what: str
) -> CorruptShuffleError:
    return CorruptShuffleError(
        f"{written.storage.root}/{written.file.data_path}: {what} of the rows to keep of "
        f"{index.storage.root}/{index.file.data_path}, which is unharmed. Please report this"
    )
