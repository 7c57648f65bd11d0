"""When ephemeral results are released: once all consumers consumed them, or their owners ended.

A consumer that has just acknowledged decides this, and every garbage collection, each from what the
log and the consumers' progress say then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.log.changes import ADD_NOTHING
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.pending import last_pending
from arrow_format.log.release import are_all, commit_ids, release_versions, unconsumed_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.release import CommitIds
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.process_identity import ProcessIdentity
    from arrow_format.storage.open import Storage

RELEASED_TOGETHER = 10
"""Consumed versions of a pipelined result per release by its consumers: each release takes a number
of the log."""


@dataclass(frozen=True, slots=True)
class DueRelease:
    """What may be released: see :func:`~arrow_format.log.release.release_versions`."""

    by: str
    through: int | None = None
    expected: CommitIds | None = None
    consumed: int | None = None

    def __str__(self) -> str:
        what = "the result" if self.through is None else f"what came up to version {self.through}"
        return f"{what}, {self.by}"

    def carry_out(self, storage: Storage, *, sync: bool = True) -> LogEntry | None:
        """Return the release, or None where it is no longer due."""
        return release_versions(
            storage,
            by=self.by,
            through=self.through,
            expected=self.expected,
            consumed=self.consumed,
            sync=sync,
        )


def release_consumed(storage: Storage, *, at_least: int = 1, sync: bool = True) -> LogEntry | None:
    """Release what every consumer of an ephemeral result has consumed; None: nothing.

    Of a pipelined result, wait for about ``at_least`` versions. With ``sync``, the release is
    durable on return.
    """
    due = find_consumed(storage, at_least=at_least)
    return None if due is None else due.carry_out(storage, sync=sync)


def find_consumed(storage: Storage, *, at_least: int = 1) -> DueRelease | None:
    """Find what :func:`release_consumed` would release; None: nothing."""
    log = CommitLog(storage)
    newest = log.snapshot()
    if newest is None or newest.ended is not None or newest.newest.result.type.is_persistent:
        return None
    progress = ConsumerRegistry(storage).all_progress()
    if not progress:
        return None
    consumed = min(progress.values())
    by = f"consumed by {', '.join(sorted(progress))}"
    if newest.newest.result.type.is_blocking:
        needed = newest.newest.content_version
        # What is pending is not consumed: it is still to become a version.
        if needed > consumed or last_pending(log) is not None:
            return None
        return DueRelease(by, expected=commit_ids(newest.newest, None), consumed=needed)
    if not _is_worth_a_release(newest, consumed, at_least):
        return None
    left = log.read(lambda index: unconsumed_entries(log, index, consumed))
    if left is None or are_all(newest, left):
        return None
    through = min(consumed, newest.version)
    return DueRelease(by, through=through, consumed=through)


def _is_worth_a_release(newest: Snapshot, consumed: int, at_least: int) -> bool:
    """Whether ``at_least`` versions may have been consumed and not released: pure.

    True also where a checkpoint or merge hides how many there are.
    """
    first = newest.entries[0]
    if first.released is not None:
        return consumed - first.released.through >= at_least
    return consumed < first.version or consumed - first.version + 1 >= at_least


def owners_are_gone(owners: Iterable[ProcessIdentity], committed_ms: int, cutoff_ms: int) -> bool:
    """Whether a result belongs to applications that have all ended.

    One without owners never does. Where no process here can tell whether an owner runs, it counts
    as ended if the result was last committed (ms since 1970) by the cutoff.
    """
    alive = {owner.is_alive() for owner in owners}
    if not alive or True in alive:
        return False
    return alive == {False} or committed_ms <= cutoff_ms


def first_to_keep(versions: Sequence[LogEntry], oldest: int, slowest: int | None) -> int:
    """Return the oldest version to keep: pure.

    What was released is removed whatever its age. Of a pipelined result, versions that a consumer
    has not consumed are kept, unless the result was released as a whole; of others consumers keep
    nothing. Of a bounded one, versions that wait for the first consumer are kept too: the bound
    counts versions.

    ``versions`` can all be opened, ascending, at least one. ``oldest`` is the oldest of them within
    the retention. The slowest consumer has consumed up to ``slowest``; None without consumers.
    """
    newest = versions[-1]
    kind = newest.result.type
    releases = [(entry.version, entry.released) for entry in versions if entry.released]
    ended = max((version for version, released in releases if released.ended), default=0)
    if ended == newest.version:
        return ended
    if kind.is_persistent:
        return oldest
    wanted = max(oldest, max((version for version, _ in releases), default=0))
    if kind.has_back_pressure and slowest is None:
        # A first consumer does not get what was overwritten before.
        before = [entry.version - 1 for entry in versions if entry.operation == "overwrite"]
        slowest = max([*(released.through for _, released in releases), *before], default=0)
    if kind.is_pipelined and slowest is not None:
        # A consumer that has consumed nothing starts with a whole version, whatever it added.
        needed = (
            entry.version
            for entry in versions
            if entry.version > ended
            and (slowest == 0 or (entry.version > slowest and entry.operation not in ADD_NOTHING))
        )
        wanted = min(wanted, next(needed, wanted))
    numbers = (entry.version for entry in versions if entry.version <= wanted)
    return max(numbers, default=versions[0].version)
