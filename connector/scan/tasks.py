"""Spreads what is to be scanned over map tasks, by bytes and in order; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

TASK_BYTES = 64 << 20
"""Bytes on disk that a map task scans, about: four to five times as many in memory, which make
several regions, so that what a task costs by itself does not count."""


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """A run of rows of one file that is scanned as a whole."""

    file: int
    """Number of the file in the plan."""
    num_bytes: int
    """Bytes on disk, or an estimate of them."""
    start: int = 0
    """First row group or record batch."""
    stop: int | None = None
    """One past the last; None for all, however many there are."""


def choose_num_tasks(total_bytes: int, parallelism: int) -> int:
    """Return how many map tasks are wanted: of :data:`TASK_BYTES` each, on all cores to the end.

    Parameters
    ----------
    total_bytes
        Bytes on disk of all that is scanned.
    parallelism
        Tasks that run at once.

    Returns
    -------
    int
        A multiple of ``parallelism``; there are fewer tasks where there are not so many units.
    """
    waves = -(-total_bytes // (TASK_BYTES * parallelism))
    return max(1, waves) * parallelism


def most_unit_bytes(total_bytes: int, num_tasks: int) -> int:
    """Bytes beyond which a file should be cut: with smaller units a task has at most half again.

    That is half of a task's share.
    """
    return max(1, total_bytes // (2 * num_tasks))


def spread(units: Sequence[ScanUnit], num_tasks: int) -> list[tuple[ScanUnit, ...]]:
    """Give each map task a run of adjacent units, all of about the same bytes.

    A unit goes to the task in whose share of the bytes its middle lies.

    Parameters
    ----------
    units
        In the order in which their rows are to be written.
    num_tasks
        1 or more.

    Returns
    -------
    list of tuple of ScanUnit
        At most ``num_tasks`` runs and none empty, which joined give ``units``. None has more bytes
        than its share and the largest unit together; a unit counts one byte at least.
    """
    if not units:
        return []
    sizes = np.maximum([unit.num_bytes for unit in units], 1).astype(np.int64)
    ends = np.cumsum(sizes)
    # Doubled, so that the middles are whole numbers; in Python's integers, which do not overflow.
    total = 2 * int(ends[-1])
    middles = (2 * ends - sizes).tolist()
    runs: dict[int, list[ScanUnit]] = {}
    for unit, middle in zip(units, middles, strict=True):
        runs.setdefault(middle * num_tasks // total, []).append(unit)
    return [tuple(run) for run in runs.values()]


def join_adjacent(run: Sequence[ScanUnit]) -> tuple[ScanUnit, ...]:
    """Make one unit of those that follow one another in a file, so that it is opened once."""
    joined: list[ScanUnit] = []
    for unit in run:
        last = joined[-1] if joined else None
        if last is not None and last.file == unit.file and last.stop == unit.start:
            num_bytes = last.num_bytes + unit.num_bytes
            joined[-1] = ScanUnit(unit.file, num_bytes, last.start, unit.stop)
        else:
            joined.append(unit)
    return tuple(joined)
