"""When ephemeral results go: as soon as their consumers have consumed them, or their owner is dead.

Decided from what the log and the consumers say, again and again and by anyone: the consumer that
has just committed, and garbage collection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.log.changes import ADD_NOTHING
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.pending import last_pending
from arrow_format.log.release import (
    are_all,
    commit_ids,
    release_versions,
    unconsumed_entries,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.release import CommitIds
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.process_identity import ProcessIdentity
    from arrow_format.storage.open import Storage

RELEASED_TOGETHER = 10
"""Consumed versions of a pipelined result that its consumers release together: each release is one
more number of the log."""


@dataclass(frozen=True, slots=True)
class DueRelease:
    """What may go, as it was found: see :func:`~arrow_format.log.release.release_versions`."""

    by: str
    through: int | None = None
    expected: CommitIds | None = None
    consumed: int | None = None

    def __str__(self) -> str:
        what = "the result" if self.through is None else f"what came up to version {self.through}"
        return f"{what}, {self.by}"

    def carry_out(self, storage: Storage, *, sync: bool = True) -> LogEntry | None:
        """Release it; return the release, or None where it is no longer due."""
        return release_versions(
            storage,
            by=self.by,
            through=self.through,
            expected=self.expected,
            consumed=self.consumed,
            sync=sync,
        )


def release_consumed(storage: Storage, *, at_least: int = 1, sync: bool = True) -> LogEntry | None:
    """Release what every consumer of an ephemeral result has consumed.

    Parameters
    ----------
    storage
        Where it is.
    at_least
        Of a pipelined result: how many versions there must be to be released, about.
    sync
        Whether the release is durable on return.

    Returns
    -------
    LogEntry or None
        The release; None where nothing is to be released.
    """
    due = find_consumed(storage, at_least=at_least)
    return None if due is None else due.carry_out(storage, sync=sync)


def find_consumed(storage: Storage, *, at_least: int = 1) -> DueRelease | None:
    """Find what every consumer of an ephemeral result has consumed; see :func:`release_consumed`.

    Returns
    -------
    DueRelease or None
        None where nothing is to be released.
    """
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
        # Nobody has consumed what is pending: it is still to become a version.
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
    """Whether there may be so many versions that were consumed and not released: pure.

    Of versions that a checkpoint or a merge stands for nobody can tell from this.
    """
    first = newest.entries[0]
    if first.released is not None:
        return consumed - first.released.through >= at_least
    return consumed < first.version or consumed - first.version + 1 >= at_least


def owners_are_gone(owners: Iterable[ProcessIdentity], committed_ms: int, cutoff_ms: int) -> bool:
    """Whether a result belongs to applications that have all ended, as far as can be told.

    Parameters
    ----------
    owners
        Those that wrote it; a result without any belongs to nobody, and stays.
    committed_ms
        When it was committed last, milliseconds since 1970.
    cutoff_ms
        What was committed then or before counts as given up, where nobody can tell from here
        whether an owner runs.
    """
    alive = {one.is_alive() for one in owners}
    if not alive or True in alive:
        return False
    return alive == {False} or committed_ms <= cutoff_ms


def first_to_keep(versions: Sequence[LogEntry], oldest: int, slowest: int | None) -> int:
    """Return the oldest version to keep: pure.

    What was released goes whatever its age. Of a pipelined result what a consumer has before it
    stays, unless that was released as a whole; of others consumers hold nothing back. Of a bounded
    one, what waits for its first consumer stays too: the bound counts versions.

    Parameters
    ----------
    versions
        All versions that can be opened, ascending, at least one.
    oldest
        The one of them that retention keeps.
    slowest
        Up to where the slowest consumer has consumed; None where there is none.
    """
    newest = versions[-1]
    kind = newest.result.type
    releases = [(one.version, one.released) for one in versions if one.released is not None]
    ended = max((version for version, released in releases if released.ended), default=0)
    if ended == newest.version:
        return ended
    if kind.is_persistent:
        return oldest
    wanted = max(oldest, max((version for version, _ in releases), default=0))
    if kind.has_back_pressure and slowest is None:
        # What was overwritten before anybody came nobody gets.
        anew = [one.version - 1 for one in versions if one.operation == "overwrite"]
        slowest = max([*(released.through for _, released in releases), *anew], default=0)
    if kind.is_pipelined and slowest is not None:
        # Who has consumed nothing begins with a whole version, whatever brought it.
        before = (
            one.version
            for one in versions
            if one.version > ended
            and (slowest == 0 or (one.version > slowest and one.operation not in ADD_NOTHING))
        )
        wanted = min(wanted, next(before, wanted))
    return max(
        (one.version for one in versions if one.version <= wanted), default=versions[0].version
    )
