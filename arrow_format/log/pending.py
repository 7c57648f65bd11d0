"""Pending map outputs: the durable buffer of a stream that is flushed once per interval.

A micro-batch is committed as pending, exactly once like any other, and readers do not see it. A
flush publishes all that is pending as one version. Between the two, and wherever a process dies,
the log says what is pending. Source: FLIP-365, with a log in the place of a state backend.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.concurrency import ReadAhead
from arrow_format.errors import CorruptShuffleError, ShuffleNotFoundError
from arrow_format.log.entry import LogEntry
from arrow_format.log.names import LogIndex, entry_path
from arrow_format.log.record import PENDING_OVERWRITE, Pending, PendingNumbers

if TYPE_CHECKING:
    from arrow_format.log.reader import LogReader


@dataclass(frozen=True, slots=True)
class PendingOutputs:
    """What waits to be flushed."""

    entries: tuple[LogEntry, ...]
    """Of each pending commit, oldest first."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of the log that are pending, ascending."""
        return tuple(entry.version for entry in self.entries)

    @property
    def raw_bytes(self) -> int:
        """Bytes that the rows of :attr:`counting` take in Arrow."""
        return sum(output.raw_bytes for entry in self.counting for output in entry.map_outputs)

    @property
    def overwrites(self) -> bool:
        """Whether the flushed version overwrites the newest one."""
        return any(entry.operation == PENDING_OVERWRITE for entry in self.entries)

    @property
    def counting(self) -> tuple[LogEntry, ...]:
        """The entries whose rows are flushed: from the last one that overwrites, if any."""
        overwrites = (
            position
            for position, entry in enumerate(self.entries)
            if entry.operation == PENDING_OVERWRITE
        )
        return self.entries[max(overwrites, default=0) :]


def pending_numbers(log: LogReader, index: LogIndex, number: int | None = None) -> PendingNumbers:
    """Return what was pending at ``number`` of the log, or is at the newest: few reads."""
    number = index.newest if number is None else number
    numbers: list[int] = []
    flushed_at_ms: int | None = None
    last = 0
    ahead = ReadAhead(log.record, log.max_requests, index.checkpoints, floor=index.oldest - 1)
    while number > last:
        before = log.checkpoint(number).pending if number in index.checkpoints else None
        if before is not None:
            numbers += (earlier for earlier in reversed(before.numbers) if earlier > last)
            if flushed_at_ms is None:
                flushed_at_ms = before.flushed_at_ms
            break
        if number < index.oldest:  # what is pending does not expire
            break
        ahead.come_to(number)
        record = log.record(number)
        if isinstance(record, Pending):
            numbers.append(number)
        elif isinstance(record, LogEntry) and record.flushed is not None:
            # What was put during that flush comes before it, and is still pending.
            last = max(last, record.flushed)
            if flushed_at_ms is None:
                flushed_at_ms = record.committed_at_ms
        elif isinstance(record, LogEntry) and record.released and record.released.ended:
            last = number  # the result was released as a whole, with what was pending
        number -= 1
    return PendingNumbers(tuple(reversed(numbers)), flushed_at_ms)


def pending_outputs(log: LogReader, index: LogIndex) -> PendingOutputs:
    """Return what is pending according to a listing of the log, with all its entries."""
    numbers = pending_numbers(log, index).numbers
    log.records(numbers)
    return PendingOutputs(tuple(pending_entry(log, number) for number in numbers))


def pending_by_entries(log: LogReader, index: LogIndex) -> PendingOutputs:
    """Return what is pending, without checkpoints; for a collector, which reads all entries.

    Deletion must not rely on a checkpoint, so read the entries themselves.
    """
    return pending_outputs(log, replace(index, checkpoints=frozenset()))


def no_version_error(log: LogReader, advice: str) -> ShuffleNotFoundError:
    """Return the error of a reader that finds no version, with ``advice`` if nothing is pending."""
    waiting = len(log.read(partial(pending_numbers, log)).numbers)
    if waiting:
        advice = (
            f"{waiting} commit(s) of a stream are pending and no version yet: its next flush makes "
            f"one of them, or `arrow-shuffle flush {log.root}`"
        )
    return ShuffleNotFoundError(f"{log.root}: holds no committed shuffle; {advice}")


def last_pending(log: LogReader) -> LogEntry | None:
    """Return the entry of the last pending commit, if any."""

    def last(index: LogIndex) -> LogEntry | None:
        numbers = pending_numbers(log, index).numbers
        return pending_entry(log, numbers[-1]) if numbers else None

    return log.read(last)


def pending_entry(log: LogReader, number: int) -> LogEntry:
    """Read the entry of a pending number; CorruptShuffleError if it is not pending."""
    record = log.record(number)
    if not isinstance(record, Pending):
        msg = (
            f"{log.root}/{entry_path(number)}: is not pending, as a checkpoint after it says. "
            "Restore the log from a copy"
        )
        raise CorruptShuffleError(msg)
    return record.entry
