"""What one number of the commit log holds: an entry, which publishes a version, or a fence.

A *fence* names jobs that can never commit from there on. It has a number of the log like any entry,
so that a job's commit and its fence can never both succeed: whichever is later sees the earlier.
See ``docs/adr/0008-garbage-collection.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from arrow_format.errors import CorruptShuffleError, FormatVersionError, OptionError, SchemaError
from arrow_format.json_text import natural, text
from arrow_format.log_entry import OPERATIONS, LogEntry, entry_from_json, entry_to_json, safe_name
from arrow_format.log_lines import from_lines, to_lines
from arrow_format.model import FORMAT_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

FENCE = "fence"
"""The operation of a fence."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Jobs that were given up: none of them is committed before, and none after."""

    version: int
    """Its number in the log; the rows of the shuffle stay those of the version before."""
    commit_id: str
    committed_at_ms: int
    """Milliseconds since 1970 by the clock of the machine that put it."""
    job_ids: tuple[str, ...]
    failed: bool = False
    """Whether these jobs failed, by their own account, of which whoever waits for them learns; else
    garbage collection has given them up."""


LogRecord: TypeAlias = LogEntry | Fence


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
    """The largest that is committed, see :class:`~arrow_format.model.Transaction`."""


def ends_of(record: LogRecord) -> dict[str, JobEnd]:
    """Return the jobs that ended with a record."""
    if isinstance(record, Fence):
        return {job_id: JobEnd(record.version, fenced=True) for job_id in record.job_ids}
    return {record.job_id: JobEnd(record.version, fenced=False)}


def encode_record(record: LogRecord) -> bytes:
    """Bytes of a record."""
    if isinstance(record, LogEntry):
        return to_lines(entry_to_json(record))
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

    Raises
    ------
    CorruptShuffleError
        Any byte differs from what was written.
    FormatVersionError
        A newer version wrote it, or its operation is not known here.
    """
    value = from_lines(data)
    try:
        operation = text(value["operation"])
        if operation == FENCE:
            return _fence(value)
        if operation in OPERATIONS:
            return entry_from_json(value)
    except (
        KeyError, TypeError, ValueError, AttributeError, pa.ArrowException, OSError, OptionError,
        SchemaError,
    ) as error:  # fmt: skip
        msg = f"log entry is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    msg = (
        f"log entry has operation {operation!r}, this arrow-shuffle knows "
        f"{', '.join((*OPERATIONS, FENCE))}; read it with a newer one"
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
