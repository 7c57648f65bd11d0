"""A version by value, for tasks: the driver opened it, and they read nothing of its log.

It is a range of the log from its beginning, as a tag has one, without what readers of rows do not
need. Larger ones go by name. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import structs

from arrow_format.log.entry import decode_entry, encode_entry, with_range
from arrow_format.log.snapshot import LaterColumns, Snapshot, VersionSpan
from arrow_format.log.state import NOTHING_PENDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.model import Int64Array

CARRIED_BYTES = 64 << 10
"""A task carries no more than this by value."""

ALL_CARRIED_BYTES = 16 << 20
"""Nor do all tasks together, by estimate, where each has a part of its own."""

MAX_LOOKED_AT = 50_000_000
"""Parts are made by looking at each file and subpartition for each task: no more often than this,
which takes some seconds."""

_LEAST_OUTPUT_BYTES, _FILE_BYTES, _TOTALS_BYTES = 12, 64, 16
"""What a map output takes at least, a file and the totals of a subpartition about."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Ranges ``[first, end)`` of subpartitions, ascending."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A version or a part of it by value, of :data:`CARRIED_BYTES` at most; to be pickled."""

    data: bytes
    span: VersionSpan | None
    oldest_needed: int
    later: LaterColumns | None
    ranges: Ranges | None

    @staticmethod
    def of(snapshot: Snapshot) -> Carried | None:
        """Return a version by value; None where that is too large."""
        if len(snapshot.map_outputs) > CARRIED_BYTES // _LEAST_OUTPUT_BYTES:
            return None
        data = encode_entry(with_range(_bare(snapshot.newest), snapshot.whole))
        if len(data) > CARRIED_BYTES:
            return None
        rest = snapshot.span, snapshot.oldest_needed, snapshot.later, snapshot.ranges
        return Carried(data, *rest)

    def snapshot(self) -> Snapshot:
        """Return the version; raises CorruptShuffleError where it arrived damaged."""
        entry = decode_entry(self.data, "a version that a task carries")
        return replace(
            Snapshot.of(entry, entry.delta),
            span=self.span,
            oldest_needed=self.oldest_needed,
            later=self.later,
            ranges=self.ranges,
        )


def _bare(entry: LogEntry) -> LogEntry:
    """Return an entry without what only a writer, or a reader of the log, needs."""
    state = structs.replace(
        entry.state,
        shape=entry.shape,
        applications={},
        jobs={},
        pending=NOTHING_PENDING,
        tags={},
        restored=(),
        last_column_id=max(entry.state.last_column_id, *entry.shape.column_ids),
    )
    return structs.replace(entry, state=state, gives_up=())


def parts_of(snapshot: Snapshot, tasks: Sequence[Ranges]) -> list[Snapshot] | None:
    """Return what each of several tasks reads of a version, by their ranges of subpartitions.

    None where all of them together are too large to be carried, or take too long to be made: where
    most files have rows of most ranges, each would repeat nearly all.
    """
    outputs, n = snapshot.map_outputs, snapshot.newest.num_subpartitions
    if len(tasks) * (outputs.num_files + n) > MAX_LOOKED_AT:
        return None
    firsts, ends = (np.sort(outputs.of_files(f"{side}_subpartition")) for side in ("first", "end"))
    hulls: Int64Array = np.array([(task[0][0], task[-1][1]) for task in tasks if task], np.int64)
    starts, stops = hulls.reshape(-1, 2).T
    num_files = np.searchsorted(firsts, stops) - np.searchsorted(ends, starts, side="right")
    num_bytes = _FILE_BYTES * num_files.sum() + _TOTALS_BYTES * (stops - starts).sum()
    if num_bytes > ALL_CARRIED_BYTES:
        return None
    return [snapshot.part(ranges) for ranges in tasks]
