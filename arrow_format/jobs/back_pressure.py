"""Back pressure of a bounded result: its producer waits for its slowest consumer.

A commit waits while the versions that not all consumers have consumed would exceed the bounds of
the result. One version is let through whatever its size: it could never be committed otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.concurrency import poll_until
from arrow_format.errors import BackPressureTimeoutError
from arrow_format.log.changes import entries_of
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.read.presentation import count_of, format_bytes

if TYPE_CHECKING:
    from arrow_format.log.reader import LogView
    from arrow_format.log.result import ResultDescription
    from arrow_format.storage.open import Storage

DEFAULT_TIMEOUT = 600.0
"""Seconds for which a producer waits for consumers by default."""


@dataclass(frozen=True, slots=True)
class Unconsumed:
    """What the slowest consumer has not consumed yet."""

    consumer: str | None
    """The slowest one; None while none is registered."""
    consumed: int
    """The version up to which it has consumed."""
    num_versions: int
    num_bytes: int


def unconsumed(storage: Storage, log: CommitLog | None = None) -> Unconsumed:
    """Return what the slowest consumer has not consumed; pass ``log`` again when polling."""
    progress = ConsumerRegistry(storage).all_progress()
    slowest = min(progress, key=lambda name: progress[name], default=None)
    return unconsumed_after(
        log or CommitLog(storage), 0 if slowest is None else progress[slowest], slowest
    )


def unconsumed_after(log: CommitLog, consumed: int, consumer: str | None) -> Unconsumed:
    """Return what a consumer that has consumed up to a version has not consumed yet.

    Also what was merged or overwritten since.
    """

    def measure(view: LogView) -> Unconsumed:
        released = view.state.released
        start = max(consumed, 0 if released is None else released.through)
        sizes: list[int] = []
        if start + 1 < view.oldest and view.state.version:
            # Of versions that have expired, what the oldest one still has counts as one.
            left = log.version_at(view, view.oldest).map_outputs.added_after(start)
            sizes = [left.num_bytes] if len(left) else []
            start = view.oldest
        for entry in entries_of(log, range(start + 1, view.newest + 1)):
            if entry.adds_rows:
                if entry.overwrites and consumer is None:
                    sizes.clear()  # a first consumer does not get what was overwritten before
                sizes.append(entry.own_sums[2])
        return Unconsumed(consumer, consumed, len(sizes), sum(sizes))

    return log.read(measure)


def fits_bounds(result: ResultDescription, waiting: Unconsumed, num_bytes: int) -> bool:
    """Whether a version of ``num_bytes`` may be added to a bounded result: pure."""
    if waiting.num_versions == 0:
        return True
    max_bytes, max_versions = result.max_unconsumed_bytes, result.max_unconsumed_versions
    return (max_versions is None or waiting.num_versions < max_versions) and (
        max_bytes is None or waiting.num_bytes + num_bytes <= max_bytes
    )


def await_consumers(
    storage: Storage, result: ResultDescription, num_bytes: int, timeout: float | None = None
) -> None:
    """Wait until a version of ``num_bytes`` stored bytes may be added to a bounded result.

    Raises BackPressureTimeoutError, which names the slowest consumer, after ``timeout`` seconds
    (:data:`DEFAULT_TIMEOUT` when None).
    """
    timeout = DEFAULT_TIMEOUT if timeout is None else timeout
    last: list[Unconsumed] = []
    log = CommitLog(storage)

    def poll() -> bool | None:
        last[:] = [unconsumed(storage, log)]
        return fits_bounds(result, last[0], num_bytes) or None

    if poll_until(poll, timeout) is None:
        raise BackPressureTimeoutError(_message(storage, result, last[0], num_bytes, timeout))


def _message(
    storage: Storage, result: ResultDescription, waiting: Unconsumed, num_bytes: int, timeout: float
) -> str:
    whom, advice = "any consumer: none is registered", "Start one"
    if waiting.consumer is not None:
        whom = f"consumer {waiting.consumer!r}, which has consumed up to version {waiting.consumed}"
        advice = (
            "Check that it runs, forget it if it never comes back (arrow-shuffle consumers "
            "--forget)"
        )
    max_bytes, max_versions = result.max_unconsumed_bytes, result.max_unconsumed_versions
    bounds = [
        count_of(max_versions, "version") if max_versions else "",
        format_bytes(max_bytes) if max_bytes else "",
    ]
    versions = count_of(waiting.num_versions, "version")
    return (
        f"{storage.root}: waited {timeout:g} s for {whom}; {versions} of "
        f"{format_bytes(waiting.num_bytes)} unconsumed, {format_bytes(num_bytes)} to add; bounds: "
        f"{' and '.join(filter(None, bounds))}. "
        f"Nothing was committed. {advice}, wait longer (backPressureTimeout; arrow-shuffle flush "
        "--timeout), or set wider bounds"
    )
