"""The result partition of one map task: the entry of the write path.

Batches and their subpartitions go into the sort buffer; a full buffer becomes a region; finishing
gives the map output. Source: FLIP-148, ``SortMergeResultPartition``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from arrow_format.errors import ClosedError
from arrow_format.model import RegionKind
from arrow_format.write.counters import MapCounters
from arrow_format.write.map_output import MapOutputWriter
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import pyarrow as pa

    from arrow_format.model import MapStatus, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Storage


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
    local_roots
        Further roots, from 1, to spread files over; None stands for one that cannot be used. One
        that is full or fails is given up: its file is closed with the regions it has, or moved, and
        the next opens in another root.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
        local_roots: Sequence[Storage | None] = (),
    ) -> None:
        self._metadata = metadata
        self._options = options
        self.counters = MapCounters()
        """What was done so far; the caller may add what it did itself."""
        self._output = MapOutputWriter(
            storage, directory, metadata, options, local_roots, self.counters
        )
        self._capacity = options.region_bytes
        self._kind = RegionKind.UNICAST
        self._buffer = self._new_buffer()
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
        self._emit(RegionKind.UNICAST, batch, subpartitions)

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Take all rows of ``batch`` for every subpartition; they are stored once.

        Rows for one subpartition and rows for all are never in the buffer together: what is there
        of the other kind is written out first. Raises as :meth:`emit`.

        Source: FLIP-148, ``SortMergeResultPartition.broadcast``.
        """
        self._emit(RegionKind.BROADCAST, batch, np.zeros(batch.num_rows, np.int32))

    def _emit(
        self, kind: RegionKind, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]
    ) -> None:
        if self._closed:
            msg = f"map task {self._metadata.map_task}: result partition is finished or closed"
            raise ClosedError(msg)
        self.counters.num_batches += 1
        if kind is not self._kind:
            if self._buffer.has_remaining:
                self.counters.switch_flushes += 1
                self._write(self._buffer)
            self._kind = kind
            self._buffer = self._new_buffer()
        if self._append(batch, subpartitions):
            return
        if self._buffer.has_remaining:
            self.counters.full_buffer_flushes += 1
            self._flush()
        if not self._append(batch, subpartitions):
            self.counters.large_batches += 1
            self._emit_large(batch, subpartitions)

    def _append(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> bool:
        started = time.perf_counter_ns()
        taken = self._buffer.append(batch, subpartitions)
        self.counters.gather_ns += time.perf_counter_ns() - started
        return taken

    def _new_buffer(self, capacity_bytes: int | None = None) -> SortBuffer:
        unicast = self._kind is RegionKind.UNICAST
        return SortBuffer(
            self._metadata.data_schema,
            capacity_bytes or self._capacity,
            self._metadata.num_subpartitions if unicast else 1,
            self._metadata.sort_by,
        )

    def _emit_large(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> None:
        """Write a batch that is larger than an empty buffer as regions of its own.

        Halves are tried until they fit, since a few rows may hold most of the bytes.
        """
        waiting = [(0, batch.num_rows)]
        while waiting:
            start, stop = waiting.pop()
            piece = batch.slice(start, stop - start)
            ids = subpartitions[start:stop]
            if self._append(piece, ids):
                continue
            if self._buffer.has_remaining:
                self.counters.full_buffer_flushes += 1
                self._flush()
                waiting.append((start, stop))
            elif stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            else:
                self._flush_row(piece, ids)

    def _flush_row(self, row: pa.RecordBatch, ids: npt.NDArray[np.integer]) -> None:
        """Write one row larger than the buffer; it needs the memory it has already."""
        buffer = self._new_buffer(1 << 62)
        buffer.append(row, ids)
        self.counters.large_row_flushes += 1
        self._write(buffer)

    def _flush(self) -> None:
        """Write the rows of the buffer as one region and start a new buffer."""
        self._write(self._buffer)
        self._buffer = self._new_buffer()

    def _write(self, buffer: SortBuffer) -> None:
        """Write a buffer as one region; when that fails its rows are gone, and all is undone."""
        try:
            self._write_region(buffer)
        except BaseException:
            self.close()
            raise

    def _write_region(self, buffer: SortBuffer) -> None:
        started = time.perf_counter_ns()
        buffer.finish()
        unicast = self._kind is RegionKind.UNICAST
        region = buffer.take_region(self.first_subpartition if unicast else 0)
        buffer.release()
        self.counters.gather_ns += time.perf_counter_ns() - started
        self._output.write_region(self._kind, region)

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
                self.counters.final_flushes += 1
                self._flush()
            status = self._output.finish()
        except BaseException:
            self.close()
            raise
        self._closed = True
        self._buffer.release()
        return status

    def close(self) -> None:
        """Unless finished, remove everything written; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._buffer.release()
        self._output.release()

    def __enter__(self) -> SortMergeResultPartition:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
