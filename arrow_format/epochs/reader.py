"""Reads the batches of an epoch. Which rows come when is decided by ``lanes`` and ``schedule``."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from arrow_format.arrays.batches import in_batches_of
from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.arrays.selection import joined, take
from arrow_format.epochs.blocks import EpochBlocks, OpenBlocks
from arrow_format.epochs.chunks import VersionChunks
from arrow_format.epochs.lanes import Lanes, Pieces, deal, pieces_of, readers_lanes
from arrow_format.epochs.mixing import MOST_DISTANCE, advised_subpartitions, distance, rows_of_a_key
from arrow_format.epochs.schedule import Schedule, one_by_one, schedule
from arrow_format.read.chunk_plan import cut_evenly

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.epochs.options import Epochs
    from arrow_format.epochs.position import Position
    from arrow_format.model import Int64Array
    from arrow_format.read.shuffle import Shuffle

AHEAD = 2
"""Threads that read the next blocks, where a storage answers several requests at a time: else 1."""

SMALL_BLOCKS = 5
"""Bytes of a shuffle whose chunks are cut where they are fewer than lanes, in blocks. It is read at
once, and so are three times its bytes in memory meanwhile."""


class EpochReader:
    """The rows of one version, in the order of any epoch, for any number of readers.

    It can be pickled and forked; each process reads the indexes itself. Where a filter says which
    rows there are, they are counted once, in the process that made it.
    """

    def __init__(self, rows: Shuffle, columns: Sequence[str], epochs: Epochs) -> None:
        self._rows, self._epochs = rows, epochs
        self.columns = columns
        """Names of the columns of the batches."""
        self._counted: Int64Array | None = None
        self._known: tuple[int, VersionChunks] | None = None
        self._dealt: tuple[int, Lanes, Pieces | None] | None = None
        self.num_rows = int(self.chunks.num_rows.sum())
        """Rows of an epoch, of all readers."""
        self._num_bytes = int(self.chunks.num_bytes.sum())
        if rows.filter is not None:
            self._counted = self.chunks.num_rows

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_known": None, "_dealt": None}

    @property
    def chunks(self) -> VersionChunks:
        """The chunks of the version, as this process knows them."""
        if self._known is None or self._known[0] != os.getpid():
            chunks = VersionChunks(self._rows, self.columns, self._counted)
            self._known = os.getpid(), chunks
        return self._known[1]

    @property
    def fingerprint(self) -> int:
        """A checksum of the rows of each chunk: that of other rows of the version differs."""
        counts = self.chunks.num_rows
        return crc32(counts[counts > 0].tobytes())

    def lanes(self, epoch: int) -> Lanes:
        """Return the lanes of an epoch."""
        return self._of_epoch(epoch)[0]

    def _of_epoch(self, epoch: int) -> tuple[Lanes, Pieces | None]:
        dealt = self._dealt
        if dealt is None or dealt[0] != epoch:
            dealt = self._dealt = epoch, *self._deal(epoch)
        return dealt[1:]

    def _deal(self, epoch: int) -> tuple[Lanes, Pieces | None]:
        epochs = self._epochs
        if epochs.seed is None:
            return self._in_order(), None
        chunks = self.chunks
        few = int(np.count_nonzero(chunks.num_rows))
        is_small = 0 < few < epochs.lanes and chunks.raw_bytes <= SMALL_BLOCKS * epochs.block_bytes
        cut = -(-epochs.lanes // few) if is_small else 1
        pieces = pieces_of(self._strata, chunks.num_rows, chunks.num_bytes, cut)
        lanes = deal(pieces, epochs.lanes, epochs.block_bytes, epochs.seed, epoch)
        return lanes, pieces

    @property
    def fault(self) -> str | None:
        """What is wrong with the mixing of an epoch, with the figure and what to do; None: none."""
        rows, epochs = self._rows, self._epochs
        chunk_rows = self.num_rows / max(int(np.count_nonzero(self.chunks.num_rows)), 1)
        row_bytes = self._num_bytes / max(self.num_rows, 1)
        sizes = to_numpy(rows.subpartition_rows)
        found = distance(sizes, rows.partitioner, chunk_rows, row_bytes, epochs)
        if found <= MOST_DISTANCE:
            return None
        n = advised_subpartitions(self.num_rows, chunk_rows)
        return (
            f"{rows.path}: batches of an epoch are not mixed well: the shares of keys in a batch "
            f"of {epochs.batch_size:,} rows are about {found:.1f} times as far from those of all "
            f"rows as in a random batch, since rows of a key fill chunks of {chunk_rows:,.0f} "
            f"rows, of which memory_bytes={epochs.memory_bytes:,} have room for few. To mix them, "
            f"keep them dealt in turn: write_shuffle(open_shuffle({rows.path!r}).epochs("
            f"batch_size={epochs.batch_size}), NEW_PATH, partitioner=RoundRobinPartitioner(), "
            f"num_subpartitions={n}), or raise "
            "memory_bytes"
        )

    @property
    def _strata(self) -> Int64Array:
        """Their subpartitions, if rows with one key fill chunks; else chunks differ by arrival."""
        sizes, partitioner = to_numpy(self._rows.subpartition_rows), self._rows.partitioner
        chunk_rows = self.num_rows / max(len(self.chunks.num_rows), 1)
        fill = sizes.any() and rows_of_a_key(sizes, partitioner) >= chunk_rows
        return self.chunks.subpartition if fill else np.zeros_like(self.chunks.subpartition)

    def _in_order(self) -> Lanes:
        """Return lanes of adjacent subpartitions, each a block, in the order of reading."""
        n = self._rows.num_subpartitions
        counts = to_numpy(self._rows.subpartition_rows)
        if self._rows.filter is not None or not self._rows.is_whole:
            counts = np.zeros(n, np.int64)
            with self._rows.read(columns=[], with_subpartition=True) as reader:
                for batch in reader:
                    counts += np.bincount(to_numpy(batch.column(0)), minlength=n)
        cuts = [*cut_evenly(np.maximum(counts, 1), min(self._epochs.lanes, n))]
        edges = np.array([0, *(end for _, end in cuts)])
        rows = np.diff(np.append(0, np.cumsum(counts))[edges])
        block_edges = np.minimum(np.arange(self._epochs.lanes + 1), len(cuts))
        return Lanes(np.arange(n), edges, block_edges, rows, np.ones_like(rows))

    def schedule(self, position: Position, reader: int) -> Schedule:
        """Return when a reader of a position draws from which blocks."""
        lanes, epochs = self.lanes(position.epoch), self._epochs
        if epochs.seed is None:
            own = np.arange(reader, epochs.lanes, position.num_readers)
            return one_by_one(lanes, own, position.origin)
        own = readers_lanes(lanes, reader, position.num_readers, epochs.open_bytes)
        return schedule(lanes, own, position.origin, epochs.open_bytes, epochs.batch_size)

    def num_batches(self, position: Position) -> list[int]:
        """Return the batches that each reader gets from the origin of a position on."""
        size, lane_rows = self._epochs.batch_size, self.lanes(position.epoch).lane_rows
        left = lane_rows - position.origin
        rows = [int(left[i :: position.num_readers].sum()) for i in range(position.num_readers)]
        each = [-(-of // size) for of in rows]
        if self._epochs.drop_last:
            return [min(of // size for of in rows)] * len(rows)
        return [max(each)] * len(rows) if self._epochs.pad else each

    def advanced(self, position: Position, batches: Int64Array) -> Position:
        """Return a position after its readers have taken so many batches since its origin each."""
        lanes, size = self.lanes(position.epoch), self._epochs.batch_size
        taken = position.taken.copy()
        for reader in np.flatnonzero(batches != position.batches).tolist():
            plan = self.schedule(position, reader)
            of_blocks = lanes.taken_of_blocks(position.origin)
            of_blocks[plan.block] += plan.taken(min(int(batches[reader]) * size, plan.total_rows))
            own = slice(reader, None, position.num_readers)
            taken[own] = lanes.taken_of_lanes(of_blocks)[own]
        return replace(position, taken=taken, batches=batches.copy())

    def batches(self, position: Position, reader: int, skip: int) -> Iterator[pa.RecordBatch]:
        """Yield a reader's batches from the origin of a position on, but the first ``skip``.

        At most the memory of :class:`Epochs` is held. Raises ShuffleError as for reading.
        """
        size, count = self._epochs.batch_size, self.num_batches(position)[reader]
        plan = self.schedule(position, reader)
        start = min(skip * size, plan.total_rows)
        with closing(self._drawn(position.epoch, plan, start)) as own:
            rows: Iterator[pa.RecordBatch] = own  # in batches, if drawn from blocks
            if self._epochs.pad:
                padding = self._padding(position, reader, max(skip * size - start, 0))
                rows = in_batches_of(chain(own, padding), size)
            elif self._epochs.seed is None:
                rows = in_batches_of(own, size)
            yield from islice(rows, max(count - skip, 0))

    def _padding(self, position: Position, reader: int, skip: int) -> Iterator[pa.RecordBatch]:
        """Yield rows that a reader gets again: its own, or another's where it has none; for ever.

        All but the first ``skip``.
        """
        plan = self.schedule(position, reader)
        others = iter(range(position.num_readers))
        while not plan.total_rows:
            plan = self.schedule(position, next(others))
        skip %= plan.total_rows
        while True:
            yield from self._drawn(position.epoch, plan, skip)
            skip = 0

    def _drawn(self, epoch: int, plan: Schedule, start: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a schedule from the row ``start`` on, in its order."""
        epochs, (lanes, pieces) = self._epochs, self._of_epoch(epoch)
        if epochs.seed is None or pieces is None:
            yield from self._read_in_order(lanes, plan, start)
            return
        size, most_bytes = epochs.batch_size, epochs.block_bytes
        most_rows = most_bytes // 2 * self.num_rows // max(self._num_bytes, 1)
        # What threads read is fixed here: this object may go on to another epoch meanwhile.
        of_epoch = EpochBlocks(self.chunks, lanes, pieces, epochs.seed, epoch, self._rows.path)
        threads = min(AHEAD, self._rows.storage.max_requests)
        with OpenBlocks(of_epoch, plan, start, most_bytes, threads) as blocks:
            for drawn in plan.rounds(start, size, most_rows):
                batch = take(joined(blocks.rows(drawn)), to_arrow(drawn.order), boundscheck=False)
                for first in range(0, batch.num_rows, size):
                    yield batch.slice(first, size)

    def _read_in_order(self, lanes: Lanes, plan: Schedule, start: int) -> Iterator[pa.RecordBatch]:
        taken = plan.taken(start)
        for number, skip in zip(plan.block.tolist(), (plan.skipped + taken).tolist(), strict=True):
            if skip == lanes.num_rows[number]:
                continue
            with self._rows.read(lanes.block(number).tolist(), self.columns) as reader:
                for batch in reader:
                    if skip < batch.num_rows:
                        yield batch.slice(skip)
                    skip = max(skip - batch.num_rows, 0)
