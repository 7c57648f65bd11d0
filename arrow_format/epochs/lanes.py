"""Deals the chunks of a version to lanes, for an epoch; pure.

A lane is a stream of rows that does not depend on who reads it: its chunks are known, and in which
order their rows come. A reader reads some lanes, any number of readers share them, and a chunk is
in one lane, so that no two readers decode it.

Whatever the rows are kept by, and in whatever order they arrived, the blocks that a reader has open
have some of each stratum, which is what the rows are kept by, and of each part of the order of
arrival in it, in proportion to its rows. Chunks by stratum and arrival are cut into as many runs as
a block has chunks. Each run is dealt to all lanes in turn, so that lanes which are evenly spread
have evenly spread parts of it, and each block gets one chunk of each run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from arrow_format.model import Int64Array

DEAL, ROWS = 0, 1
"""What a random order is of, so that the orders of an epoch differ."""

EVENED_TOGETHER = 8
"""Adjacent lanes of which the one with the fewest rows gets the largest of as many chunks."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of chunks, the units that are dealt: whole chunks, unless there are few."""

    stratum: Int64Array
    """Pieces of one are alike, as those are that arrived together; ``(num_pieces,)``, as others."""
    num_rows: Int64Array
    """Rows to deliver; 1 at least."""
    num_bytes: Int64Array
    """Bytes of these in Arrow, by estimate."""
    chunk: Int64Array
    """Number of the chunk."""
    first_row: Int64Array
    """First row of the piece among those to deliver of its chunk."""

    @property
    def are_cut(self) -> bool:
        """Whether some are not whole chunks."""
        return bool(self.first_row.any())

    def __len__(self) -> int:
        return len(self.num_rows)


def pieces_of(
    stratum: Int64Array, num_rows: Int64Array, num_bytes: Int64Array, pieces: int = 1
) -> Pieces:
    """Return chunks that have rows, each cut into so many pieces of about equally many rows.

    They are in the order of arrival.
    """
    number = np.repeat(np.arange(len(num_rows)), pieces)
    part = np.tile(np.arange(pieces), len(num_rows))
    first, end = (num_rows[number] * edge // pieces for edge in (part, part + 1))
    kept = end > first
    number, first, rows = number[kept], first[kept], (end - first)[kept]
    share = num_bytes[number] * rows // num_rows[number]
    return Pieces(stratum[number], rows, share, number, first)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The blocks of all lanes, by lane: runs of pieces whose rows are mixed among one another."""

    pieces: Int64Array
    """Numbers of the pieces, by block; shape ``(num_pieces,)``."""
    piece_edges: Int64Array
    """Where each block begins among the pieces, then their number; ``(num_blocks + 1,)``."""
    block_edges: Int64Array
    """Where each lane begins among the blocks, then their number; ``(num_lanes + 1,)``."""
    num_rows: Int64Array
    """Rows of each block."""
    num_bytes: Int64Array
    """Bytes of each block, by estimate."""

    @property
    def num_lanes(self) -> int:
        """Number of lanes; some may have no block."""
        return len(self.block_edges) - 1

    @property
    def lane_rows(self) -> Int64Array:
        """Rows of each lane."""
        return np.diff(_before(self.num_rows)[self.block_edges])

    @property
    def lane(self) -> Int64Array:
        """The lane of each block."""
        return np.repeat(np.arange(self.num_lanes), np.diff(self.block_edges))

    def block(self, number: int) -> Int64Array:
        """Return the pieces of a block."""
        return self.pieces[self.piece_edges[number] : self.piece_edges[number + 1]]

    def taken_of_blocks(self, taken: Int64Array) -> Int64Array:
        """Return how many rows were taken of each block, given those taken of each lane."""
        before = _before(self.num_rows)
        starts = before[:-1] - before[self.block_edges[:-1]][self.lane]
        return np.clip(taken[self.lane] - starts, 0, self.num_rows)

    def taken_of_lanes(self, taken: Int64Array) -> Int64Array:
        """Return how many rows were taken of each lane, given those taken of each block."""
        return np.diff(_before(taken)[self.block_edges])


def deal(pieces: Pieces, num_lanes: int, block_bytes: int, seed: int, epoch: int) -> Lanes:
    """Deal pieces to the blocks of lanes, in an order that seed and epoch decide.

    Parameters
    ----------
    pieces
        What is dealt.
    num_lanes
        How many lanes there are.
    block_bytes
        Bytes that a block has at most, about, unless one piece has more.
    seed, epoch
        Whole numbers from 0.
    """
    random = np.random.default_rng([seed, DEAL, epoch])
    num_pieces, num_bytes = len(pieces), int(pieces.num_bytes.sum())
    _, of = np.unique(pieces.stratum, return_inverse=True)
    order = np.argsort(random.permutation(int(of.max(initial=-1)) + 1)[of], kind="stable")
    num_blocks = max(-(-num_bytes // (num_lanes * block_bytes)), 1)
    num_runs = max(num_pieces // (num_lanes * num_blocks), 1)
    run = np.arange(num_pieces) * num_runs // max(num_pieces, 1)
    sizes = np.bincount(run, minlength=num_runs)
    place = np.arange(num_pieces) - (np.cumsum(sizes) - sizes)[run]
    begin = random.random(num_runs)[run]
    lane = ((place / sizes[run] + begin) % 1 * num_lanes).astype(np.int64)
    # Neighbours are in one lane: of each run, each block of it gets one.
    block = (place + random.integers(num_blocks, size=num_runs)[run]) % num_blocks
    lane = evened(lane, run * num_blocks + block, pieces.num_rows[order], num_lanes)
    by_block = np.lexsort((block, lane))
    order, number = order[by_block], (lane * num_blocks + block)[by_block]
    begins = np.flatnonzero(np.diff(number, prepend=-1))
    edges = np.append(begins, num_pieces)
    block_edges = np.searchsorted(number[begins], np.arange(num_lanes + 1) * num_blocks)
    rows, of_bytes = (
        np.diff(_before(each[order])[edges]) for each in (pieces.num_rows, pieces.num_bytes)
    )
    return Lanes(order, edges, block_edges, rows, of_bytes)


def evened(
    lane: Int64Array, together: Int64Array, num_rows: Int64Array, num_lanes: int
) -> Int64Array:
    """Return the lane of each piece: those of adjacent lanes are exchanged to even their rows.

    Only among pieces that are ``together``, which ascends within each lane.
    """
    filled, dealt = np.zeros(num_lanes, np.int64), np.empty_like(lane)
    order = np.lexsort((lane, together))
    for part in np.split(order, np.flatnonzero(np.diff(together[order])) + 1):
        near = lane[part] // EVENED_TOGETHER
        emptiest = np.lexsort((filled[lane[part]], near))
        largest = np.lexsort((-num_rows[part], near))
        dealt[part[largest]] = lane[part][emptiest]
        np.add.at(filled, dealt[part], num_rows[part])
    return dealt


def row_order(num_rows: int, seed: int, epoch: int, block: int) -> Int64Array:
    """Return the order of the rows of a block: a random permutation."""
    return np.random.default_rng([seed, ROWS, epoch, block]).permutation(num_rows)


def readers_lanes(lanes: Lanes, reader: int, num_readers: int, open_bytes: int) -> Int64Array:
    """Return the lanes of a reader, in the order in which it opens them: evenly spread.

    Of as many blocks as have ``open_bytes``, one after the other in this order, the lanes are as
    far from one another as can be. Which of them come first, and so are drawn from faster at times,
    does not go with where they are.
    """
    own = np.arange(reader, lanes.num_lanes, num_readers)
    num_bytes = int(lanes.num_bytes.sum())
    num_open = open_bytes * len(lanes.num_bytes) // max(num_bytes, 1)
    step = max(len(own) // max(num_open, 1), 1)
    spread = (own[first::step] for first in range(step))
    return np.concatenate([each[_scattered(len(each))] for each in spread])


def _scattered(count: int) -> Int64Array:
    """Return numbers from 0 on as the multiples of the golden ratio lie on a circle."""
    return np.argsort(np.arange(count) * ((5**0.5 - 1) / 2) % 1)


def _before(sizes: Int64Array) -> Int64Array:
    """Return the sum of what is before each, then of all."""
    return np.concatenate(([0], np.cumsum(sizes)))
