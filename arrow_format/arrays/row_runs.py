"""Runs of rows: those that together stay within a measure, and where their rows are; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.model import Int64Array


def runs_within(ends: Int64Array, most: int) -> Iterator[tuple[int, int]]:
    """Yield runs ``[start, stop)`` of rows, as long as they may be; all rows, in order.

    Parameters
    ----------
    ends
        Running total of what each row measures, that row included; never falls.
    most
        What the rows of a run may measure together. A row of more is a run of its own.
    """
    start, before = 0, 0
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, before + most, side="right")), start + 1)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def positions_of(starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the positions of all rows of runs, one run after the other.

    Parameters
    ----------
    starts
        First position of each run.
    sizes
        Rows of each, 0 or more.
    """
    ends = np.cumsum(sizes)
    num_rows = int(ends[-1]) if len(ends) else 0
    positions: Int64Array = np.repeat(starts - (ends - sizes), sizes)
    positions += np.arange(num_rows)
    return positions
