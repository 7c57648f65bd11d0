"""Samples of rows that arrive in parts of unknown length: a reservoir for each, and their union.

Source: Spark's ``RangePartitioner.sketch``, whose tasks fill a reservoir each and send it with the
number of their rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take
from arrow_format.keys.sampling import SEED

if TYPE_CHECKING:
    from numpy.typing import NDArray

OVERSAMPLING = 3
"""So many times its share is what a part keeps: parts differ in length."""

LEAST_ROWS = 100
"""Rows that a part keeps at least."""


def reservoir_size(size: int, part: int) -> int:
    """Return how many rows part number ``part`` keeps for a sample of ``size``.

    A part knows its number, and so that there are as many parts before it, but not how many follow.
    All keep ``3 * size * ln(parts)`` together, and not ``size`` each.
    """
    return max(-(-OVERSAMPLING * size // (part + 1)), LEAST_ROWS)


class Reservoir:
    """A random sample of the rows of one part, in random order; the same for the same rows.

    Parameters
    ----------
    size
        Rows to keep at most.
    part
        Number of the part, which the random numbers depend on.
    """

    def __init__(self, size: int, part: int) -> None:
        self._size, self._random = size, np.random.default_rng([SEED, part])
        self._kept: list[pa.RecordBatch] = []
        self._draws = np.zeros(0)
        self._limit = 1.0
        self.num_rows = 0
        """Rows that were added."""

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; those that are kept are copied."""
        draws = self._random.random(batch.num_rows)
        chosen = np.flatnonzero(draws < self._limit)
        self.num_rows += batch.num_rows
        if len(chosen):
            self._kept.append(take(batch, to_arrow(chosen)))
            self._draws = np.append(self._draws, draws[chosen])
            if len(self._draws) > 2 * self._size:
                self._cut()

    def rows(self) -> pa.RecordBatch:
        """Return the sample; of no rows, if none were added, a KeyError."""
        if not self._kept:
            msg = "no rows were added"
            raise KeyError(msg)
        self._cut()
        return self._kept[0]

    def _cut(self) -> None:
        """Keep the rows with the smallest numbers, in the order of these."""
        smallest = np.argsort(self._draws, kind="stable")[: self._size]
        self._kept = [take(pa.concat_batches(self._kept), to_arrow(smallest))]
        self._draws = self._draws[smallest]
        if len(smallest) == self._size:
            self._limit = float(self._draws[-1])


def proportional(
    rows: pa.Table, parts: NDArray[np.integer], num_rows: NDArray[np.integer], size: int
) -> pa.Table:
    """Return about ``size`` rows of several parts, of each as many as its length is a share of all.

    Where the sample of a part is too small for its share, its rows are repeated, each as often.

    Parameters
    ----------
    rows
        Samples of all parts, each in random order.
    parts, num_rows
        Of each row the number of its part, and the rows of that.
    size
        Rows wanted; where there are fewer, all.
    """
    order = np.argsort(parts, kind="stable")
    starts = np.flatnonzero(np.diff(parts[order], prepend=-1))
    lengths = num_rows[order][starts]
    ends = np.append(starts[1:], len(order))
    share = min(size / max(lengths.sum(), 1), 1.0)
    chosen = [
        start + np.arange(wanted) * min(end - start, wanted) // max(wanted, 1)
        for start, end, wanted in zip(
            starts.tolist(), ends.tolist(), np.rint(lengths * share).astype(int).tolist(),
            strict=True,
        )
    ]  # fmt: skip
    return take(rows, to_arrow(order[np.concatenate([np.zeros(0, int), *chosen])]))
