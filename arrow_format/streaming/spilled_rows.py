"""Rows spilled to disk: a map output by hash of the keys, in a scratch directory.

Spilled rows are written as any map output, so they are compressed, checksummed and read by
subpartition; only they are never committed. Equal keys are in one subpartition, in the order in
which they came.
"""

from __future__ import annotations

import uuid
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.gather import gathered
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.format.regions import RegionKind
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.model import PartitionedFileMetadata
from arrow_format.options import WriteOptions
from arrow_format.read.chunk_plan import group_adjacent
from arrow_format.read.chunk_reader import READ_AHEAD_BYTES, ChunkReader
from arrow_format.read.fetched_chunks import ONE_CHUNK, read_rows
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.scratch import ScratchDirectory
from arrow_format.write.clustering import cluster
from arrow_format.write.counters import MapCounters
from arrow_format.write.map_output import MapOutputWriter
from arrow_format.write.sort_buffer import SortedRegion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.model import Int64Array

NUM_SUBPARTITIONS = 256
"""Rows of up to about so many times the memory are read back in one pass per subpartition."""

DIRECTORY = "spilled"
"""Directory of the files, in the scratch directory."""


class SpilledRows:
    """A map output that is written, read any number of times, and removed.

    It has one key column or more. ``directory`` is where to make the scratch directory; the
    system's for temporary files when None. Raises StorageError where that cannot be made.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], directory: str | None) -> None:
        self._schema = schema
        partitioner = HashPartitioner(list(keys))
        self._assign = partitioner.bind(schema, NUM_SUBPARTITIONS, 0)
        self._counters = MapCounters()
        scratch = ScratchDirectory(directory)
        name = uuid.uuid4().hex
        metadata = PartitionedFileMetadata(
            shuffle_id=name,
            job_id=name,
            map_task=0,
            attempt=0,
            data_schema=schema,
            num_subpartitions=NUM_SUBPARTITIONS,
            partitioner=partitioner.describe(),
        )
        options = WriteOptions(sync=False)
        self._writer = MapOutputWriter(
            scratch.storage, DIRECTORY, metadata, options, (), self._counters
        )
        self._storage = scratch.storage
        self._files: list[PartitionedFileReader] = []
        self._rows: Int64Array = np.zeros(NUM_SUBPARTITIONS, np.int64)
        self.num_rows = 0
        """Rows written, including those that are replaced by later ones."""
        # When this object is dropped, an open file is closed and all are removed.
        self._remove = weakref.finalize(self, _remove, self._writer, scratch)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files, once they are finished."""
        return self._counters.stored_bytes

    @property
    def num_regions(self) -> int:
        """Regions written so far."""
        return self._counters.num_regions

    def write(self, taken: list[pa.RecordBatch]) -> None:
        """Write one batch as a region, and empty the list, so that columns are freed in turn.

        Raises StorageError where it could not be written; then all spilled rows are lost.
        """
        batch = taken.pop()
        if batch.num_rows == 0:
            return
        ids = self._assign(batch).astype(np.int32, copy=False)
        clustering = cluster(ids, NUM_SUBPARTITIONS)
        del ids
        self.num_rows += batch.num_rows
        columns = batch.columns
        del batch
        if clustering.permutation is not None:
            indices = to_arrow(clustering.permutation)
            for i, column in enumerate(columns):
                columns[i] = gathered(column, indices)
                del column
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        del columns
        self._writer.write_region(RegionKind.UNICAST, SortedRegion(rows, clustering))

    def finish(self) -> None:
        """Finish the files, so that rows can be read; raises as :meth:`write`."""
        status = self._writer.finish()
        self._files = [PartitionedFileReader(self._storage, file) for file in status.output.files]
        if status.subpartition_rows is not None:
            self._rows = status.subpartition_rows

    def ranges(self, max_bytes: int, row_bytes: int) -> list[tuple[int, int, int]]:
        """Return ranges of subpartitions to read together: first, end, and number of rows of each.

        A range has up to ``max_bytes`` raw bytes, about, unless a single subpartition has more; a
        row counts at least ``row_bytes``.
        """
        raw = sum(reader.file.raw_bytes for reader in self._files)
        per_row = max(raw / max(self.num_rows, 1), row_bytes)
        weights = (self._rows * per_row).astype(np.int64)
        ranges = group_adjacent(weights, max_bytes, np.flatnonzero(self._rows).tolist())
        return [(first, end, int(self._rows[first:end].sum())) for first, end in ranges]

    def read(self, first: int, end: int, ahead_bytes: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of subpartitions ``[first, end)``, each in the order in which they came.

        ``ahead_bytes`` are stored bytes that may be read ahead. Raises CorruptShuffleError where a
        file was damaged or removed.
        """
        decoder = ChunkDecoder(self._schema)
        for file in self._files:
            chunks = ChunkReader(
                file,
                decoder,
                read_ahead_bytes=min(ahead_bytes, READ_AHEAD_BYTES),
                wanted="rows that were spilled",
            )
            regions = 0, len(file.regions)
            for batch, _ in read_rows([(chunks, *regions)], first, end, most_bytes=ONE_CHUNK):
                yield batch

    def remove(self) -> None:
        """Remove all files and their directory; calling it again does nothing."""
        self._files = []
        self._remove()


def _remove(writer: MapOutputWriter, scratch: ScratchDirectory) -> None:
    if scratch.is_ours:
        writer.release()
    scratch.remove()
