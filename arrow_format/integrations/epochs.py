"""Which rows each reader of an epoch gets, and in which order; pure.

An epoch puts the shards in an order. Their rows, one shard after the other, are numbered in that
order, and each reader gets an extent of the numbers. It shuffles them window by window, so that it
holds one window, and can go on at any window without reading those before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import OptionError
from arrow_format.options import check_flag, check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.model import Int64Array

SHARDS, ROWS = 0, 1
"""What a random order is of, so that both orders of an epoch differ."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """How rows are dealt to readers and shuffled."""

    batch_size: int
    """Rows of each batch; the last of a reader may have fewer."""
    seed: int | None = 0
    """Decides the order, with the number of the epoch; None for the order of the shards."""
    shuffle_rows: int = 1 << 16
    """Rows of a window, about; rounded to whole batches, one at least."""
    drop_last: bool = False
    """Whether all readers get equally many batches, all of ``batch_size`` rows."""

    def __post_init__(self) -> None:
        check_integer("batch_size", self.batch_size, 1, 1 << 31, "rows")
        check_integer("shuffle_rows", self.shuffle_rows, 1, 1 << 31, "rows")
        if self.seed is not None:
            check_integer("seed", self.seed, 0, (1 << 63) - 1, "any kind")
        check_flag("drop_last", self.drop_last)

    @property
    def window_batches(self) -> int:
        """Batches of a window."""
        return max(1, self.shuffle_rows // self.batch_size)

    def shard_order(self, num_shards: int, epoch: int) -> Int64Array:
        """Return the numbers of all shards in the order of an epoch."""
        if self.seed is None:
            return np.arange(num_shards)
        return np.random.default_rng([self.seed, SHARDS, epoch]).permutation(num_shards)

    def row_order(self, num_rows: int, epoch: int, start: int) -> Int64Array:
        """Return the order of the rows of the window that begins at row ``start`` of an epoch."""
        if self.seed is None:
            return np.arange(num_rows)
        return np.random.default_rng([self.seed, ROWS, epoch, start]).permutation(num_rows)

    def extent(self, num_rows: int, reader: int, num_readers: int) -> tuple[int, int]:
        """Return the rows ``[start, stop)`` of an epoch that a reader gets.

        Extents are adjacent. They differ by a row at most, and are all rows unless ``drop_last``
        cuts each to whole batches.
        """
        each, more = divmod(num_rows, num_readers)
        start = reader * each + min(reader, more)
        if self.drop_last:
            return start, start + each // self.batch_size * self.batch_size
        return start, start + each + (reader < more)

    def num_batches(self, num_rows: int, reader: int, num_readers: int) -> int:
        """Return the batches of an epoch that a reader gets."""
        start, stop = self.extent(num_rows, reader, num_readers)
        return -(-(stop - start) // self.batch_size)


def slices(
    shard_rows: Int64Array, order: Int64Array, start: int, stop: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the shards that hold the rows ``[start, stop)`` of an epoch, in its order.

    Yields the number of each shard, and which of its own rows, ``[first, end)``.
    """
    ends = np.cumsum(shard_rows[order])
    for i in range(int(np.searchsorted(ends, start, side="right")), len(order)):
        before = int(ends[i]) - int(shard_rows[order[i]])
        if before >= stop:
            return
        first, end = max(start - before, 0), min(stop, int(ends[i])) - before
        if first < end:
            yield int(order[i]), first, end


def taken_of_each(taken: int, num_batches: Sequence[int]) -> tuple[list[int], int]:
    """Return how many of ``taken`` batches came from each reader, and whose turn is next.

    Batches were taken in turns, without readers that had no more. ``num_batches`` are those of
    each reader, which differ by one at most.

    Raises
    ------
    OptionError
        There are not as many batches.
    """
    if not 0 <= taken <= sum(num_batches):
        msg = f"{taken:,} batches were taken, and an epoch has {sum(num_batches):,}"
        raise OptionError(msg)
    rounds, turn = divmod(taken, len(num_batches))
    fewest = min(num_batches)
    if rounds < fewest:
        return [rounds + (reader < turn) for reader in range(len(num_batches))], turn
    left = taken - fewest * len(num_batches)
    of_each = []
    for own in num_batches:
        last = min(left, own - fewest)
        left -= last
        of_each.append(fewest + last)
    return of_each, 0
