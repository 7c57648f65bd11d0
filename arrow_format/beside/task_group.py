"""What one task of another library reads, and how large that is."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

TASK_BYTES = 64 << 20
"""Bytes in Arrow that a task reads by default, about."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Subpartitions that one task reads, in their order."""

    ranges: tuple[tuple[int, int], ...]
    """Ranges ``[first, end)`` of subpartitions, ascending; none for a task that reads nothing."""
    num_rows: int
    """Rows of these subpartitions; with a filter, those before it."""
    num_bytes: int
    """Estimated bytes of these rows in Arrow, of the columns that are read."""

    @property
    def subpartitions(self) -> list[int]:
        """The subpartitions, ascending."""
        return list(chain.from_iterable(range(*bounds) for bounds in self.ranges))
