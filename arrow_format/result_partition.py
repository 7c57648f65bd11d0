"""The result partition of one map task: the entry of the write path.

Batches and their subpartitions go into the sort buffer; a full buffer becomes a region; finishing
gives the map output. Source: FLIP-148, ``SortMergeResultPartition``.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from arrow_format.errors import ClosedError
from arrow_format.model import MapOutput, MapStatus, PartitionedFile, PartitionedFileMetadata
from arrow_format.partitioned_file import PartitionedFileWriter
from arrow_format.sort_buffer import SortBuffer
from arrow_format.totals import subpartition_totals

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from arrow_format.options import WriteOptions
    from arrow_format.storage import Storage

MAX_REGION_BYTES = 1 << 30
"""A region stays far below the 2 GiB that 32-bit offsets of an Arrow string column can address."""

MAX_INDEX_BYTES = 16 << 20
"""A partitioned file whose index grows past this is finished and the next one is begun, so that the
memory for indexes is bounded however much a map task writes."""


@dataclass(slots=True)
class _Counters:
    """What a map task did, as it is reported in its map output."""

    num_batches: int = 0
    full_buffer_flushes: int = 0
    final_flushes: int = 0
    large_batches: int = 0
    cluster_ns: int = 0
    write_ns: int = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class SortMergeResultPartition:
    """Writes the rows of one attempt of a map task, in bounded memory and few files.

    Use it as a context manager: leaving it before :meth:`finish` (an exception, or nothing more to
    say) removes every file it wrote.

    Parameters
    ----------
    storage
        Where the files go.
    directory
        Directory of the map outputs of the job, relative to the storage's root.
    metadata
        Identity, data schema and number of subpartitions, as every index will carry them.
    options
        Memory, codec, chunk size, write order, sync.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
    ) -> None:
        self._storage = storage
        self._metadata = metadata
        self._options = options
        # A random id, so that two attempts never share a name whatever numbers they were given.
        self._stem = (
            f"{directory}/{metadata.map_task:05d}-{metadata.attempt}-{secrets.token_hex(6)}"
        )
        capacity = min(options.sort_buffer_bytes * 3 // 8, MAX_REGION_BYTES)
        self._buffer = SortBuffer(metadata.data_schema, capacity, metadata.num_subpartitions)
        self._capacity = capacity
        self._writer: PartitionedFileWriter | None = None
        self._files: list[PartitionedFile] = []
        n = metadata.num_subpartitions
        self._totals = (np.zeros(n, np.int64), np.zeros(n, np.int64))
        self._counters = _Counters()
        self._closed = False

    @property
    def first_subpartition(self) -> int:
        """The subpartition this map task writes first.

        With rotated order it differs from task to task, so that consumers of many map outputs do
        not all start at the same end.
        """
        n = self._metadata.num_subpartitions
        if self._options.write_order == "natural":
            return 0
        return self._metadata.map_task * 7919 % n

    def emit(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> None:
        """Take all rows of ``batch``; a full buffer is written out as a region on the way.

        Parameters
        ----------
        batch
            Rows of the data schema, any number.
        subpartitions
            One per row, in ``[0, num_subpartitions)``.

        Raises
        ------
        ClosedError
            Finished or closed.
        StorageError, OutOfDiskError
            A region could not be written; the partition cannot be used further.
        """
        if self._closed:
            msg = f"map task {self._metadata.map_task}: result partition is finished or closed"
            raise ClosedError(msg)
        self._counters.num_batches += 1
        if self._buffer.append(batch, subpartitions):
            return
        if self._buffer.has_remaining:
            self._counters.full_buffer_flushes += 1
            self._flush()
        if not self._buffer.append(batch, subpartitions):
            self._counters.large_batches += 1
            self._emit_large(batch, subpartitions)

    def _emit_large(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> None:
        """Write a batch that is larger than an empty buffer as regions of its own.

        Halves are tried until they fit, since a few rows may hold most of the bytes.
        """
        waiting = [(0, batch.num_rows)]
        while waiting:
            start, stop = waiting.pop()
            piece = batch.slice(start, stop - start)
            ids = subpartitions[start:stop]
            if self._buffer.append(piece, ids):
                continue
            if self._buffer.has_remaining:
                self._counters.full_buffer_flushes += 1
                self._flush()
                waiting.append((start, stop))
            elif stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            else:
                self._flush_row(piece, ids)

    def _flush_row(self, row: pa.RecordBatch, ids: npt.NDArray[np.integer]) -> None:
        """Write one row larger than the buffer; it needs the memory it has already."""
        metadata = self._metadata
        buffer = SortBuffer(metadata.data_schema, 1 << 62, metadata.num_subpartitions)
        buffer.append(row, ids)
        self._write(buffer)

    def _flush(self) -> None:
        """Write the rows of the buffer as one region and start a new buffer."""
        self._write(self._buffer)
        metadata = self._metadata
        self._buffer = SortBuffer(metadata.data_schema, self._capacity, metadata.num_subpartitions)

    def _write(self, buffer: SortBuffer) -> None:
        started = time.perf_counter_ns()
        buffer.finish()
        region = buffer.take_region(self.first_subpartition)
        buffer.release()
        clustered = time.perf_counter_ns()
        if self._writer is None:
            self._writer = PartitionedFileWriter(
                self._storage,
                f"{self._stem}-{len(self._files)}",
                self._metadata,
                self._options,
            )
        self._writer.write_region(region.batch, region.clustering)
        if self._writer.index_bytes > MAX_INDEX_BYTES:
            self._finish_file()
        self._counters.cluster_ns += clustered - started
        self._counters.write_ns += time.perf_counter_ns() - clustered

    def _finish_file(self) -> None:
        if self._writer is None:
            return
        started = time.perf_counter_ns()
        writer, self._writer = self._writer, None
        file = writer.finish()
        self._files.append(file)
        n = self._metadata.num_subpartitions
        for total, added in zip(
            self._totals, subpartition_totals(writer.regions, n, file.data_bytes), strict=True
        ):
            total += added
        self._counters.write_ns += time.perf_counter_ns() - started

    def finish(self) -> MapStatus:
        """Write what is left and finish the files.

        Returns
        -------
        MapStatus
            The map output (without files when there were no rows) and its totals per
            subpartition, for the commit.

        Raises
        ------
        ClosedError
            Finished or closed before.
        """
        if self._closed:
            msg = f"map task {self._metadata.map_task}: result partition is finished or closed"
            raise ClosedError(msg)
        try:
            if self._buffer.has_remaining:
                self._counters.final_flushes += 1
                self._flush()
            self._finish_file()
        except BaseException:
            self.close()
            raise
        self._closed = True
        self._buffer.release()
        return MapStatus(
            MapOutput(
                self._metadata.job_id,
                self._metadata.map_task,
                self._metadata.attempt,
                tuple(self._files),
                self._counters.as_dict(),
            ),
            *self._totals,
        )

    def close(self) -> None:
        """Unless finished, remove everything written; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._buffer.release()
        if self._writer is not None:
            self._writer.release()
        for file in self._files:
            self._storage.delete(file.index_path)
            self._storage.delete(file.data_path)

    def __enter__(self) -> SortMergeResultPartition:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
