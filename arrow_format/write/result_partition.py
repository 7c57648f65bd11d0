"""The result partition of one map task: the entry of the write path.

Batches and their subpartitions go into the sort buffer; a full buffer becomes a region; finishing
returns the map output. Source: FLIP-148, ``SortMergeResultPartition``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import keep
from arrow_format.concurrency import Workers, available_cores
from arrow_format.errors import ClosedError, OptionError
from arrow_format.format.regions import RegionKind
from arrow_format.model import BROADCAST
from arrow_format.write.combining import CombiningBuffer
from arrow_format.write.counters import MapCounters
from arrow_format.write.map_output import MapOutputWriter
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from arrow_format.model import MapStatus, PartitionedFileMetadata
    from arrow_format.options import WriteOptions
    from arrow_format.storage.open import Storage
    from arrow_format.write.combining import Combiner

    Subpartitions: TypeAlias = npt.NDArray[np.integer] | None

BROADCAST_BYTES, BROADCAST_BATCHES = 4 << 20, 1024
"""Broadcast rows that arrive among others are collected up to this much before they are broadcast:
each change from one kind of rows to the other writes a region."""

READ_AHEAD_BYTES = 32 << 20
"""Rows that are read ahead while others are written: about as many as are read meanwhile."""


def workers_of(options: Iterable[WriteOptions]) -> Workers:
    """Return the threads of writes of the same rows: those of the one that has the most."""
    return Workers(max(each.threads or available_cores() for each in options) - 1)


class SortMergeResultPartition:
    """Writes the rows of one attempt of a map task, in bounded memory and few files.

    Use it as a context manager: leaving it before :meth:`finish`, or with an exception, removes
    every file it wrote.

    Parameters
    ----------
    storage
        Where the files go.
    directory
        Directory of the map outputs of the job, relative to the storage's root.
    metadata
        Identity, data schema and number of subpartitions, as every index records them.
    options
        Memory, codec, chunk size, write order, sync.
    local_roots
        Further roots to spread files over; None for one that cannot be used. A
        root that is full or fails is not used again: its file is finished with the regions it has,
        or moved, and the next file opens in another root.
    combiner
        Combines rows of equal keys, which then come without subpartitions; None where rows are
        written as they are.
    workers
        Threads that it shares with other result partitions of its map task, in the place of
        ``options.threads`` of its own; who made them closes them, or the first that fails.

    With ``options.threads`` a region is written while the next buffer is filled. An error of
    writing it is raised by a later call, :meth:`finish` at the latest.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        metadata: PartitionedFileMetadata,
        options: WriteOptions,
        local_roots: Sequence[Storage | None] = (),
        combiner: Combiner | None = None,
        workers: Workers | None = None,
    ) -> None:
        self._metadata = metadata
        self._combiner = combiner
        self._options = options
        self.counters = MapCounters()
        """What was done so far; the caller may add its own work."""
        self._shares_workers = workers is not None
        self._workers = workers or workers_of([options])
        self._output = MapOutputWriter(
            storage, directory, metadata, options, local_roots, self.counters, self._workers.map
        )
        self._flushing: Future[None] | None = None
        self._kind = RegionKind.UNICAST
        self._buffer = self._new_buffer()
        self._broadcasts: list[pa.RecordBatch] = []
        self._broadcast_bytes = 0
        self._closed = False
        self._is_finished = False

    @property
    def first_subpartition(self) -> int:
        """The subpartition this map task writes first.

        In rotated order it differs from task to task, so that consumers of many map outputs do not
        all start at the same end.
        """
        n = self._metadata.num_subpartitions
        if self._options.write_order == "natural":
            return 0
        return self._metadata.map_task * 7919 % n

    def ahead(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches in order; threads of this write that are free take the next ones.

        Those that wait have :data:`READ_AHEAD_BYTES` at most, plus a batch. After :meth:`close` no
        thread takes any.
        """
        return self._workers.ahead(batches, lambda batch: int(batch.nbytes), READ_AHEAD_BYTES)

    def combine(self, batch: pa.RecordBatch) -> None:
        """Write the rows of ``batch``, combined with others; only where there is a combiner.

        Raises the errors of :meth:`emit`.
        """
        self._check_open()
        self._add(RegionKind.UNICAST, batch, None)

    def emit(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> None:
        """Write the rows of ``batch`` to their subpartitions; each full buffer becomes a region.

        Parameters
        ----------
        batch
            Rows of the data schema, any number.
        subpartitions
            One per row, in ``[0, num_subpartitions)``, or :data:`~arrow_format.BROADCAST` for a
            row that every subpartition reads. Such rows are collected and broadcast later, at the
            latest by :meth:`finish`.

        Raises
        ------
        ClosedError
            The partition is finished or closed.
        OptionError
            There is not one subpartition per row, or one is out of range.
        StorageError, OutOfDiskError
            A region could not be written; the partition cannot be used further.
        """
        self._check_open()
        if self._flushing is not None and self._flushing.done():
            self._finish_flush()
        if len(subpartitions) != batch.num_rows or subpartitions.min(initial=0) != BROADCAST:
            self._add(RegionKind.UNICAST, batch, subpartitions)
            return
        n = self._metadata.num_subpartitions
        if subpartitions.max() >= n:  # before any row is taken: a refused batch leaves none
            msg = f"subpartitions up to {subpartitions.max()}; expected {BROADCAST} to {n - 1}"
            raise OptionError(msg)
        for_all = subpartitions == BROADCAST
        self._broadcasts.append(batch if for_all.all() else keep(batch, to_arrow(for_all)))
        self._broadcast_bytes += self._broadcasts[-1].nbytes
        if not for_all.all():
            unicast = keep(batch, to_arrow(~for_all))
            self._add(RegionKind.UNICAST, unicast, subpartitions[~for_all])
        if self._broadcast_bytes >= BROADCAST_BYTES or len(self._broadcasts) >= BROADCAST_BATCHES:
            self._add_broadcasts()

    def broadcast(self, batch: pa.RecordBatch) -> None:
        """Write the rows of ``batch`` for every subpartition; they are stored once.

        Unicast and broadcast rows are never in the buffer together: rows of the other kind are
        written first. Raises the errors of :meth:`emit`.

        Source: FLIP-148, ``SortMergeResultPartition.broadcast``.
        """
        self._check_open()
        self._add_broadcasts()
        self._add(RegionKind.BROADCAST, batch, np.zeros(batch.num_rows, np.int32))

    def _add_broadcasts(self) -> None:
        """Add the broadcast rows collected so far to the buffer."""
        batches, self._broadcasts, self._broadcast_bytes = self._broadcasts, [], 0
        for batch in batches:
            self._add(RegionKind.BROADCAST, batch, np.zeros(batch.num_rows, np.int32))

    def _add(self, kind: RegionKind, batch: pa.RecordBatch, subpartitions: Subpartitions) -> None:
        self.counters.num_batches += 1
        if kind is not self._kind:
            if self._buffer.has_remaining:
                self.counters.switch_flushes += 1
                self._flush(self._buffer)
            self._kind = kind
            self._buffer = self._new_buffer()
        if self._append(batch, subpartitions):
            return
        if self._buffer.has_remaining:
            self.counters.full_buffer_flushes += 1
            self._flush(self._buffer)
        if not self._append(batch, subpartitions):
            self.counters.large_batches += 1
            self._add_large(batch, subpartitions)

    def _append(self, batch: pa.RecordBatch, subpartitions: Subpartitions) -> bool:
        return self._append_to(self._buffer, batch, subpartitions)

    def _append_to(
        self, buffer: SortBuffer, batch: pa.RecordBatch, subpartitions: Subpartitions
    ) -> bool:
        if subpartitions is None and self._combiner and not isinstance(buffer, CombiningBuffer):
            with self.counters.time("partition"):
                subpartitions = self._combiner.assign(batch)
        with self.counters.time("gather"):
            # A buffer that combines rows assigns subpartitions to what is left of them.
            return (
                buffer.add(batch) if subpartitions is None else buffer.append(batch, subpartitions)
            )

    def _new_buffer(self, capacity_bytes: int | None = None) -> SortBuffer:
        unicast = self._kind is RegionKind.UNICAST
        if self._combiner and not self._combiner.stopped and unicast and not capacity_bytes:
            return CombiningBuffer(
                self._metadata.data_schema,
                self._options.region_bytes,
                self._metadata.num_subpartitions,
                self._metadata.sort_by,
                self._combiner,
            )
        return SortBuffer(
            self._metadata.data_schema,
            capacity_bytes or self._options.region_bytes,
            self._metadata.num_subpartitions if unicast else 1,
            self._metadata.sort_by,
        )

    def _add_large(self, batch: pa.RecordBatch, subpartitions: Subpartitions) -> None:
        """Write a batch that is larger than an empty buffer as separate regions.

        It is halved until the halves fit, since a few rows may hold most of the bytes. A single row
        that does not fit is written alone; it needs no more memory than it has already.
        """
        waiting = [(0, batch.num_rows)]
        while waiting:
            start, stop = waiting.pop()
            rows = batch.slice(start, stop - start)
            ids = None if subpartitions is None else subpartitions[start:stop]
            if self._append(rows, ids):
                continue
            if self._buffer.has_remaining:
                self.counters.full_buffer_flushes += 1
                self._flush(self._buffer)
                waiting.append((start, stop))
            elif stop - start > 1:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
            else:
                buffer = self._new_buffer(1 << 62)
                self._append_to(buffer, rows, ids)
                self.counters.large_row_flushes += 1
                self._flush(buffer)

    def _flush(self, buffer: SortBuffer) -> None:
        """Write a buffer as one region, and start a new buffer.

        With threads another one writes them, as soon as the region before was written. When that
        fails, the rows are lost and the partition is closed.
        """
        try:
            with self.counters.time("gather"):
                buffer.finish()
                unicast = self._kind is RegionKind.UNICAST
                first = self.first_subpartition if unicast else 0
                region = [buffer.take_region(first, self._workers.map)]
                buffer.release()
            self._finish_flush()
            # Taken out of the list by the call: no other reference keeps the rows in memory.
            kind = self._kind
            self._flushing = self._workers.begin(
                lambda: self._output.write_region(kind, region.pop())
            )
            if self._flushing is None:
                self._output.write_region(kind, region.pop())
        except BaseException:
            self.close()
            raise
        self._buffer = self._new_buffer()

    def _finish_flush(self) -> None:
        """Wait until the region that is being written is; when that failed, close and raise."""
        flushing, self._flushing = self._flushing, None
        if flushing is None:
            return
        try:
            self._workers.result(flushing)
        except BaseException:
            self.close()
            raise

    def finish(self) -> MapStatus:
        """Write what is buffered and finish the files.

        Returns
        -------
        MapStatus
            The map output (without files when there were no rows) and its totals per
            subpartition, for the commit.

        Raises
        ------
        ClosedError
            The partition is finished or closed.
        StorageError, OutOfDiskError
            The rest could not be written; every file is removed.
        """
        self._check_open()
        try:
            self._add_broadcasts()
            if self._buffer.has_remaining:
                self.counters.final_flushes += 1
                self._flush(self._buffer)
            if self._combiner is not None:
                self.counters.combined_rows = self._combiner.num_absorbed
            self._finish_flush()
            if not self._shares_workers:
                self._workers.close()
            status = self._output.finish()
        except BaseException:
            self.close()
            raise
        self._closed = self._is_finished = True
        self._buffer.release()
        return status

    def _check_open(self) -> None:
        if self._closed:
            msg = f"map task {self._metadata.map_task}: result partition is finished or closed"
            raise ClosedError(msg)

    def close(self) -> None:
        """Unless finished, remove everything written; calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        self._broadcasts = []
        # First: what a thread still writes must be removed too.
        self._workers.close()
        self._buffer.release()
        self._output.release()

    def __enter__(self) -> SortMergeResultPartition:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not None and self._is_finished:
            self._output.release()
        self.close()
