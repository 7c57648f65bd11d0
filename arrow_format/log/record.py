"""What one number of the log holds: an entry, which publishes a version, a fence, or neither.

A *fence* names jobs that can never commit from there on. It has a number of the log like any entry,
so that a job's commit and its fence can never both succeed: the later one sees the earlier.
See ``docs/adr/0008-garbage-collection.md``. *Pending* map outputs are committed and durable, and
readers do not see them until another entry publishes them: the buffer of a stream with a flush
interval.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.log.entry import (
    MALFORMED,
    OPERATIONS,
    LogEntry,
    entry_from_json,
    entry_to_json,
    safe_name,
)
from arrow_format.log.framing import from_lines, to_lines
from arrow_format.model import FORMAT_VERSION
from arrow_format.strict_json import natural, text

if TYPE_CHECKING:
    from collections.abc import Mapping

FENCE = "fence"
"""The operation of a fence."""
PENDING, PENDING_OVERWRITE = "pending", "pending-overwrite"
"""The operations of map outputs that wait to be flushed. The second overwrites the newest version,
and all that is pending before it."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Jobs that were given up: they are not committed before it, and cannot be after it."""

    version: int
    """Its number in the log; it changes no rows."""
    commit_id: str
    committed_at_ms: int
    """Milliseconds since 1970 by the clock of the machine that put it."""
    job_ids: tuple[str, ...]
    failed: bool = False
    """Whether the jobs themselves reported that they failed, for consumers that wait for them; else
    garbage collection gave them up."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Map outputs that are committed and wait to be flushed: in no version, and never garbage."""

    entry: LogEntry
    """As that of a version, with the operation :data:`PENDING` or :data:`PENDING_OVERWRITE`."""

    @property
    def version(self) -> int:
        """Its number in the log; it changes no rows until it is flushed."""
        return self.entry.version

    @property
    def commit_id(self) -> str:
        """Id of the commit."""
        return self.entry.commit_id

    @property
    def committed_at_ms(self) -> int:
        """Milliseconds since 1970 by the clock of the machine that put it."""
        return self.entry.committed_at_ms


LogRecord: TypeAlias = LogEntry | Fence | Pending


def entry_of(record: LogRecord) -> LogEntry | None:
    """Return the entry of a version or of pending map outputs; None of a fence."""
    if isinstance(record, Pending):
        return record.entry
    return record if isinstance(record, LogEntry) else None


def numbered(record: LogRecord, number: int) -> LogRecord:
    """Return a record with its number in the log set."""
    if isinstance(record, Pending):
        return Pending(replace(record.entry, version=number))
    return replace(record, version=number)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended, according to the log."""

    version: int
    """Number of the entry that committed it, or of its fence."""
    fenced: bool


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The newest commit of an application, according to the log."""

    version: int
    """Number of the entry."""
    number: int
    """The largest committed one, see :attr:`arrow_format.model.Transaction.number`."""


@dataclass(frozen=True, slots=True)
class PendingNumbers:
    """What waits to be flushed, according to the log."""

    numbers: tuple[int, ...] = ()
    """Numbers of the log that are pending, ascending."""
    flushed_at_ms: int | None = None
    """When the last flush was committed, milliseconds since 1970; None before the first."""

    def begins_with(self, numbers: tuple[int, ...]) -> bool:
        """Whether these numbers are still pending, and none before them."""
        return bool(numbers) and self.numbers[: len(numbers)] == numbers


def ends_of(record: LogRecord) -> dict[str, JobEnd]:
    """Return the jobs that a record commits or fences."""
    if isinstance(record, Fence):
        return {job_id: JobEnd(record.version, fenced=True) for job_id in record.job_ids}
    entry = record.entry if isinstance(record, Pending) else record
    return {entry.job_id: JobEnd(entry.version, fenced=False)}


def encode_record(record: LogRecord) -> bytes:
    """Encode a record as the bytes of its file."""
    if not isinstance(record, Fence):
        entry = record.entry if isinstance(record, Pending) else record
        return to_lines(entry_to_json(entry))
    value = {
        "format_version": FORMAT_VERSION,
        "version": record.version,
        "operation": FENCE,
        "commit_id": record.commit_id,
        "committed_at_ms": record.committed_at_ms,
        "job_ids": list(record.job_ids),
    }
    return to_lines({**value, "failed": True} if record.failed else value)


def decode_record(data: bytes) -> LogRecord:
    """Verify and parse a record.

    Raises CorruptShuffleError where any byte differs from what was written, and FormatVersionError
    where a newer release wrote it, or its operation is unknown.
    """
    value = from_lines(data)
    try:
        operation = text(value["operation"])
        if operation == FENCE:
            return _fence(value)
        if operation in (PENDING, PENDING_OVERWRITE):
            return Pending(entry_from_json(value))
        if operation in OPERATIONS:
            return entry_from_json(value)
    except MALFORMED as error:
        msg = f"log entry is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    msg = (
        f"log entry has operation {operation!r}, this arrow-shuffle knows "
        f"{', '.join((*OPERATIONS, PENDING, PENDING_OVERWRITE, FENCE))}; read it with a newer one"
    )
    raise FormatVersionError(msg)


def _fence(value: Mapping[str, Any]) -> Fence:
    return Fence(
        version=natural(value["version"]),
        commit_id=safe_name(value["commit_id"]),
        committed_at_ms=natural(value["committed_at_ms"]),
        job_ids=tuple(map(safe_name, value["job_ids"])),
        failed=value.get("failed") is True,
    )
