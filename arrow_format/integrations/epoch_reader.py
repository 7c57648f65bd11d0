"""Reads the batches of an epoch. Which rows these are is decided by ``epochs``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.batches import in_batches_of
from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.arrays.selection import take
from arrow_format.integrations.epochs import slices
from arrow_format.integrations.mixing import advised_subpartitions, fault_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from arrow_format.integrations.epochs import Epochs
    from arrow_format.model import Int64Array
    from arrow_format.read.shuffle import Shuffle

SHARD_BYTES = 8 << 20
"""Bytes in Arrow of a shard, about. Of smaller ones, a chunk would be decoded for each."""


class EpochReader:
    """Shards of a shuffle, which are adjacent subpartitions, and their rows.

    Where not all rows are read, what decides that is read once to count them. Batches that are not
    mixed well are warned of (:class:`UserWarning`), with what is known of them and what to do.
    """

    def __init__(self, rows: Shuffle, columns: Sequence[str], epochs: Epochs) -> None:
        self._rows, self._columns, self._epochs = rows, columns, epochs
        groups = rows.task_groups(SHARD_BYTES, columns=columns)
        self._shards = [group.subpartitions for group in groups]
        self._shard_rows = (
            np.array([group.num_rows for group in groups], np.int64)
            if rows.is_whole
            else _counted(rows, self._shards)
        )
        _warn_unless_mixed(rows, epochs)

    @property
    def num_rows(self) -> int:
        """Rows of an epoch."""
        return int(self._shard_rows.sum())

    def batches(
        self, epoch: int, reader: int, num_readers: int, skip: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield a reader's batches of an epoch, without the first ``skip`` of them.

        The share of a reader, and the order, are those of :class:`Epochs`. One window of rows is in
        memory. Raises ShuffleError as for reading.
        """
        epochs, size = self._epochs, self._epochs.batch_size
        start, stop = epochs.extent(self.num_rows, reader, num_readers)
        windows, inside = divmod(skip, epochs.window_batches)
        window_rows = epochs.window_batches * size
        start += windows * window_rows
        for window in in_batches_of(self._in_order(epoch, start, stop), window_rows):
            if epochs.seed is not None:
                order = epochs.row_order(window.num_rows, epoch, start)
                window = take(window, to_arrow(order))
            start += window.num_rows
            for first in range(inside * size, window.num_rows, size):
                yield window.slice(first, size)
            inside = 0

    def _in_order(self, epoch: int, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows ``[start, stop)`` of an epoch, not shuffled within shards."""
        order = self._epochs.shard_order(len(self._shards), epoch)
        for shard, first, end in slices(self._shard_rows, order, start, stop):
            before = 0
            with self._rows.read(self._shards[shard], self._columns) as reader:
                for batch in reader:
                    low, high = max(first - before, 0), min(end - before, batch.num_rows)
                    if low < high:
                        yield batch.slice(low, high - low)
                    before += batch.num_rows
                    if before >= end:
                        break


def _warn_unless_mixed(rows: Shuffle, epochs: Epochs) -> None:
    sizes = to_numpy(rows.subpartition_rows)
    fault = fault_of(sizes, rows.partitioner, epochs)
    if fault is not None:
        n = advised_subpartitions(int(sizes.sum()), epochs)
        warnings.warn(
            f"{rows.path}: batches of an epoch are not mixed well: {fault}. To mix them, keep the"
            f" rows dealt in turn: write_shuffle(open_shuffle({rows.path!r}).read(), NEW_PATH,"
            f" partitioner=RoundRobinPartitioner(), num_subpartitions={n}), or raise shuffle_rows",
            stacklevel=5,
        )


def _counted(rows: Shuffle, shards: Sequence[Sequence[int]]) -> Int64Array:
    """Count the rows of each shard that are delivered, by reading what decides that."""
    counts = np.zeros(rows.num_subpartitions, np.int64)
    with rows.read(columns=[], with_subpartition=True) as reader:
        for batch in reader:
            counts += np.bincount(to_numpy(batch.column(0)), minlength=len(counts))
    return np.array([counts[shard].sum() for shard in shards], np.int64)
