"""Spreads what is to be scanned over map tasks, by bytes and in order; pure.

Apart from the scan, which reads files, so that it is tested without any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa

TASK_BYTES = 64 << 20
"""Bytes on disk for one map task, about: four to five times as many in memory, which is several
regions, so that the fixed cost of a task is small."""

MEMORY_PER_BYTE = 4
"""Bytes in memory for one on disk, about, of files that are compressed by column."""


class Scan(Protocol):
    """The rows of a source as map tasks read them. Of files and tables, tasks get it by pickle."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the rows that come out."""

    @property
    def num_bytes(self) -> int | None:
        """Bytes of the rows in memory, about; None where only reading them tells."""

    @property
    def num_tasks(self) -> int:
        """Number of map tasks."""

    def read(self, task: int) -> Iterable[pa.RecordBatch]:
        """Read the rows of map task ``task``; of files and tables equal ones each time."""


@dataclass(frozen=True, slots=True)
class ScanUnit:
    """Adjacent row groups or record batches of one file, scanned together."""

    file: int
    """Number of the file in the plan."""
    num_bytes: int
    """Bytes on disk, or an estimate of them."""
    start: int = 0
    """First row group or record batch."""
    stop: int | None = None
    """One past the last; None for all, however many there are."""


def choose_num_tasks(total_bytes: int, parallelism: int) -> int:
    """Return how many map tasks to plan: a multiple of ``parallelism``, :data:`TASK_BYTES` each.

    Fewer run where there are fewer units.
    """
    waves = -(-total_bytes // (TASK_BYTES * parallelism))
    return max(1, waves) * parallelism


def most_unit_bytes(total_bytes: int, num_tasks: int) -> int:
    """Return the bytes above which a file is split: half of a task's share.

    Then no task has more than one and a half shares.
    """
    return max(1, total_bytes // (2 * num_tasks))


def spread(units: Sequence[ScanUnit], num_tasks: int) -> list[tuple[ScanUnit, ...]]:
    """Assign runs of adjacent units to at most ``num_tasks`` tasks, balanced by bytes.

    A unit goes to the task in whose share of the bytes its middle lies. The runs are not empty, and
    joined they give ``units``. No run has more bytes than its share plus the largest unit; a unit
    counts one byte at least.
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
    """Join units that are adjacent in a file, so that it is opened once."""
    joined: list[ScanUnit] = []
    for unit in run:
        last = joined[-1] if joined else None
        if last is not None and last.file == unit.file and last.stop == unit.start:
            num_bytes = last.num_bytes + unit.num_bytes
            joined[-1] = ScanUnit(unit.file, num_bytes, last.start, unit.stop)
        else:
            joined.append(unit)
    return tuple(joined)
