"""Reads the blocks of an epoch, and keeps those that a reader draws from open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.row_sizes import runs_within
from arrow_format.arrays.selection import joined, ranges, take
from arrow_format.concurrency import Workers
from arrow_format.epochs.lanes import row_order
from arrow_format.errors import CorruptShuffleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from arrow_format.epochs.chunks import VersionChunks
    from arrow_format.epochs.lanes import Lanes, Pieces
    from arrow_format.epochs.schedule import Round, Schedule
    from arrow_format.model import Int64Array


@dataclass(frozen=True, slots=True)
class EpochBlocks:
    """The blocks of one epoch. Several threads may read them."""

    chunks: VersionChunks
    lanes: Lanes
    pieces: Pieces
    seed: int
    epoch: int
    path: str
    """Of the shuffle, for a message."""

    def read(self, numbers: Sequence[int]) -> list[pa.RecordBatch]:
        """Return the rows of blocks, in their orders. Chunks that they share are read once."""
        pieces, each = self.pieces, [self.lanes.block(number) for number in numbers]
        chunks = np.unique(pieces.chunk[np.concatenate(each)])
        counts = self.chunks.num_rows[chunks]
        read = [*self.chunks.read(chunks)]
        found = sum(batch.num_rows for batch in read)
        if found != counts.sum():
            msg = (
                f"{self.path}: {found:,} rows were read of chunks that have {counts.sum():,}, as "
                "was counted before"
            )
            raise CorruptShuffleError(msg)
        whole = joined(read)
        del read
        starts = np.cumsum(counts) - counts
        blocks = []
        for number, of in zip(numbers, each, strict=True):
            first = starts[np.searchsorted(chunks, pieces.chunk[of])] + pieces.first_row[of]
            sizes = pieces.num_rows[of]
            order = row_order(int(sizes.sum()), self.seed, self.epoch, number)
            blocks.append(take(whole, to_arrow(ranges(first, sizes)[order]), boundscheck=False))
        return blocks

    def groups(self, plan: Schedule, start: int, most_bytes: int) -> Iterator[Int64Array]:
        """Yield the blocks of a schedule that are read together, if they have rows to come.

        Those have ``most_bytes`` together, or are one; of a small shuffle they are all, since each
        group would decode nearly all chunks.
        """
        left = np.flatnonzero(plan.taken(start) < plan.num_rows)
        if self.pieces.are_cut:
            yield left
            return
        weights = np.cumsum(self.lanes.num_bytes[plan.block[left]])
        for first, end in runs_within(weights, most_bytes):
            yield left[first:end]


class OpenBlocks:
    """The open blocks of a reader, and the next ones, which threads read ahead.

    ``plan`` says when it draws from which block; what comes before the row ``start`` of it has been
    taken. Blocks are read in groups of ``most_bytes``, by ``num_threads`` besides the calling one.
    """

    def __init__(
        self, blocks: EpochBlocks, plan: Schedule, start: int, most_bytes: int, num_threads: int
    ) -> None:
        self._blocks, self._plan = blocks, plan
        self._open: dict[int, pa.RecordBatch] = {}
        self._workers = Workers(num_threads)
        self._read = self._workers.map(self._group, blocks.groups(plan, start, most_bytes))

    def rows(self, drawn: Round) -> list[pa.RecordBatch]:
        """Return the rows of a round, block by block; drop blocks of which they are the last."""
        found = []
        for at, first, end in zip(*(each.tolist() for each in drawn[:3]), strict=True):
            while at not in self._open:
                self._open.update(next(self._read))
            found.append(self._open[at].slice(int(self._plan.skipped[at]) + first, end - first))
            if end == self._plan.num_rows[at]:
                del self._open[at]
        return found

    def _group(self, group: Int64Array) -> dict[int, pa.RecordBatch]:
        blocks = self._blocks.read(self._plan.block[group].tolist())
        return dict(zip(group.tolist(), blocks, strict=True))

    def __enter__(self) -> OpenBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
