"""Pending map outputs: the durable buffer of a stream that is flushed once per interval.

A micro-batch is committed as pending, exactly once like any other, and readers do not see it. A
flush publishes all that is pending as one version. Between the two, and wherever a process dies,
the log says what is pending. Source: FLIP-365, with a log in the place of a state backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError, ShuffleNotFoundError
from arrow_format.log.entry import PENDING_OVERWRITE, LogEntry
from arrow_format.log.names import entry_path

if TYPE_CHECKING:
    from arrow_format.log.reader import LogReader, LogView


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
        return sum(entry.map_outputs.raw_bytes for entry in self.counting)

    @property
    def overwrites(self) -> bool:
        """Whether the flushed version overwrites the newest one."""
        return any(entry.operation == PENDING_OVERWRITE for entry in self.entries)

    @property
    def counting(self) -> tuple[LogEntry, ...]:
        """The entries whose rows are flushed: from the last one that overwrites, if any."""
        names = [entry.operation for entry in self.entries]
        overwrites = [at for at, name in enumerate(names) if name == PENDING_OVERWRITE]
        return self.entries[max(overwrites, default=0) :]


def pending_outputs(log: LogReader, view: LogView) -> PendingOutputs:
    """Return what is pending, with all its entries."""
    entries = tuple(log.records(view.state.pending.numbers).values())
    for entry in entries:
        if not entry.is_pending:
            msg = (
                f"{log.root}/{entry_path(entry.version)}: is not pending, as an entry after it "
                "says. Restore the log from a copy"
            )
            raise CorruptShuffleError(msg)
    return PendingOutputs(entries)


def last_pending(log: LogReader, view: LogView) -> LogEntry | None:
    """Return the entry of the last pending commit, if any."""
    numbers = view.state.pending.numbers
    return log.record(numbers[-1]) if numbers else None


def no_version_error(
    log: LogReader, advice: str = "nothing was written, or not committed"
) -> ShuffleNotFoundError:
    """Return the error of a reader that finds no version, with ``advice`` if nothing is pending."""
    waiting = log.read(lambda view: len(view.state.pending.numbers))
    if waiting:
        advice = (
            f"{waiting} commit(s) of a stream are pending and no version yet: its next flush makes "
            f"one of them, or `arrow-shuffle flush {log.root}`"
        )
    return ShuffleNotFoundError(f"{log.root}: holds no committed shuffle; {advice}")
