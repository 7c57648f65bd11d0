"""Back pressure of a bounded result: its producer waits for its slowest consumer.

A commit waits while what nobody, or not everybody, has consumed would be more than the bounds of
the result. One version is let through whatever its size: it could never be committed otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.concurrency import poll_until
from arrow_format.errors import BackPressureTimeoutError
from arrow_format.jobs.receipt import format_bytes
from arrow_format.log.checkpoint import compose
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import LogEntry
from arrow_format.log.release import unconsumed_entries

if TYPE_CHECKING:
    from arrow_format.log.names import LogIndex
    from arrow_format.log.result import ResultDescription
    from arrow_format.storage.open import Storage

DEFAULT_TIMEOUT = 600.0
"""Seconds for which a producer waits for consumers where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Unconsumed:
    """What the slowest consumer has still before it."""

    consumer: str | None
    """The slowest one; None while none is registered."""
    consumed: int
    """The version up to which it has consumed."""
    num_versions: int
    num_bytes: int


def unconsumed(storage: Storage, log: CommitLog | None = None) -> Unconsumed:
    """Return what is unconsumed of a result, for the consumer that has most of it before it.

    Whoever looks again and again gives the same log, which reads each of its entries once.
    """
    progress = ConsumerRegistry(storage).all_progress()
    slowest = min(progress, key=lambda name: progress[name], default=None)
    return unconsumed_after(
        log or CommitLog(storage), 0 if slowest is None else progress[slowest], slowest
    )


def unconsumed_after(log: CommitLog, consumed: int, consumer: str | None) -> Unconsumed:
    """Return what a consumer that has consumed up to a version has still before it."""

    def measure(index: LogIndex) -> Unconsumed:
        entries = unconsumed_entries(log, index, consumed, apart=False)
        if entries is None:  # expired before anybody asked: the oldest counts for what it holds
            entries = (
                *_left_of_oldest(log, index, consumed),
                *(unconsumed_entries(log, index, index.oldest, apart=False) or ()),
            )
        if consumer is None:  # what was overwritten before anybody came nobody gets
            anew = [place for place, one in enumerate(entries) if one.operation == "overwrite"]
            entries = entries[max(anew, default=0) :]
        return Unconsumed(
            consumer, consumed, len(entries), sum(entry.num_bytes for entry in entries)
        )

    return log.read(measure)


def _left_of_oldest(log: CommitLog, index: LogIndex, consumed: int) -> tuple[LogEntry, ...]:
    """Return the oldest version as one entry; nothing where all of it was consumed or released."""
    whole = log.content_at(index, index.oldest)
    if whole is None or whole.newest.content_version <= consumed or not whole.map_outputs:
        return ()
    last = whole.newest.content_version
    for record in log.records(range(index.oldest + 1, index.newest + 1)).values():
        if isinstance(record, LogEntry) and record.released and record.released.through >= last:
            return ()
    return (compose(whole.entries),)


def has_room(result: ResultDescription, there: Unconsumed, num_bytes: int) -> bool:
    """Whether a version of so many bytes may be added: pure."""
    if there.num_versions == 0:
        return True
    max_bytes, most_versions = result.max_unconsumed_bytes, result.max_unconsumed_versions
    return (most_versions is None or there.num_versions < most_versions) and (
        max_bytes is None or there.num_bytes + num_bytes <= max_bytes
    )


def await_room(
    storage: Storage, result: ResultDescription, num_bytes: int, timeout: float | None = None
) -> None:
    """Wait until a version of so many bytes may be added to a bounded result.

    Parameters
    ----------
    storage
        Where the result is.
    result
        Its bounds.
    num_bytes
        Stored bytes of the version.
    timeout
        Seconds to wait; :data:`DEFAULT_TIMEOUT` when None.

    Raises
    ------
    BackPressureTimeoutError
        There was no room in time; the message names the consumer that was waited for.
    """
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    last: list[Unconsumed] = []
    log = CommitLog(storage)

    def look() -> bool | None:
        last[:] = [unconsumed(storage, log)]
        return has_room(result, last[0], num_bytes) or None

    if poll_until(look, timeout) is None:
        raise BackPressureTimeoutError(_message(storage, result, last[0], num_bytes, timeout))


def _message(
    storage: Storage,
    result: ResultDescription,
    there: Unconsumed,
    num_bytes: int,
    timeout: float,
) -> str:
    if there.consumer is None:
        whom = "any consumer: none is registered"
        advice = "Start one"
    else:
        whom = f"consumer {there.consumer!r}, which has consumed up to version {there.consumed}"
        advice = (
            "See whether it runs, forget it where it never comes back (arrow-shuffle consumers "
            "--forget)"
        )
    bounds = [
        f"{result.max_unconsumed_versions} versions" if result.max_unconsumed_versions else "",
        format_bytes(result.max_unconsumed_bytes) if result.max_unconsumed_bytes else "",
    ]
    return (
        f"{storage.root}: waited {timeout:g} s for {whom}; {there.num_versions} versions of "
        f"{format_bytes(there.num_bytes)} are unconsumed, {format_bytes(num_bytes)} were to come, "
        f"and the bounds are {' and '.join(filter(None, bounds))}. Nothing was committed. "
        f"{advice}, wait longer (backPressureTimeout; arrow-shuffle flush --timeout), or set wider "
        "bounds"
    )
