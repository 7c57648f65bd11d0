"""Pending map outputs: the durable buffer of a stream that is flushed once per interval.

A micro-batch is committed as pending, exactly once like any other, and no reader sees it. A flush
takes up all that is pending and makes one version of it. Between the two, and wherever a process
dies, the log says what is pending. Source: FLIP-365, with a log in the place of a state backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.log_entry import LogEntry
from arrow_format.log_record import PENDING_OVERWRITE, Pending

if TYPE_CHECKING:
    from arrow_format.log_index import LogIndex
    from arrow_format.log_reader import LogReader


@dataclass(frozen=True, slots=True)
class PendingOutputs:
    """What waits to be flushed."""

    entries: tuple[LogEntry, ...]
    """Of each commit that is pending, oldest first."""
    flushed_at_ms: int | None
    """When the last flush was committed, milliseconds since 1970; None: there was none."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the log that are pending, ascending."""
        return tuple(entry.version for entry in self.entries)

    @property
    def raw_bytes(self) -> int:
        """Bytes that the rows that count take in Arrow."""
        return sum(output.raw_bytes for entry in self.counting for output in entry.map_outputs)

    @property
    def begins_anew(self) -> bool:
        """Whether the version that comes of it takes the place of what is there."""
        return any(entry.operation == PENDING_OVERWRITE for entry in self.entries)

    @property
    def counting(self) -> tuple[LogEntry, ...]:
        """The entries whose rows count: from the last one on that begins anew, if any does."""
        anew = (
            place
            for place, entry in enumerate(self.entries)
            if entry.operation == PENDING_OVERWRITE
        )
        return self.entries[max(anew, default=0) :]

    def begins_with(self, numbers: tuple[int, ...]) -> bool:
        """Whether these numbers are pending still, and none before them is."""
        return bool(numbers) and self.numbers[: len(numbers)] == numbers


def pending_outputs(log: LogReader, index: LogIndex) -> PendingOutputs:
    """Return what is pending according to a listing of the log."""
    found: list[LogEntry] = []
    flushed_at_ms: int | None = None
    number, last = index.newest, index.oldest - 1
    while number > last:
        record = log.record(number)
        if isinstance(record, Pending):
            found.append(record.entry)
        elif isinstance(record, LogEntry) and record.flushed is not None:
            # What was put while it was flushed stands before it, and is pending still.
            last = max(last, record.flushed)
            flushed_at_ms = flushed_at_ms or record.committed_at_ms
        elif isinstance(record, LogEntry) and record.released and record.released.ended:
            last = number  # the result was given up as a whole, with what was pending
        number -= 1
    return PendingOutputs(tuple(reversed(found)), flushed_at_ms)
