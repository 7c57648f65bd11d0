"""When ephemeral results go: as soon as their consumers have consumed them, or their owner is dead.

Decided from what the log and the consumers say, again and again and by anyone: the consumer that
has just committed, and garbage collection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.commit_log import CommitLog
from arrow_format.consumers import ConsumerRegistry
from arrow_format.result_release import release_versions, unconsumed_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.log_entry import LogEntry
    from arrow_format.snapshot import Snapshot
    from arrow_format.storage import Storage

RELEASED_TOGETHER = 10
"""Consumed versions of a pipelined result that its consumers release together: each release is one
more number of the log."""


def release_consumed(storage: Storage, *, at_least: int = 1, sync: bool = True) -> LogEntry | None:
    """Release what every consumer of an ephemeral result has consumed.

    Parameters
    ----------
    storage
        Where it is.
    at_least
        Of a pipelined result: how many versions there must be to be released.
    sync
        Whether the release is durable on return.

    Returns
    -------
    LogEntry or None
        The release; None where nothing is to be released.
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
        if newest.newest.content_version > consumed:
            return None
        # Nobody has consumed what is pending: it is still to become a version.
        return release_versions(
            storage, by=by, only=newest.newest.commit_id, unless_pending=True, sync=sync
        )
    left = log.read(lambda index: unconsumed_entries(log, index, consumed))
    if left is None or len(newest.entries) - len(left) < at_least:
        return None
    return release_versions(storage, by=by, through=min(consumed, newest.version), sync=sync)


def owner_is_gone(newest: Snapshot, committed_ms: int, cutoff_ms: int) -> bool:
    """Whether a result belongs to an application that has ended, as far as can be told: pure.

    Parameters
    ----------
    newest
        The result.
    committed_ms
        When it was committed last, milliseconds since 1970.
    cutoff_ms
        What was committed then or before counts as given up, where nobody can tell from here
        whether its owner runs.
    """
    owner = newest.newest.result.owner
    if owner is None or newest.ended is not None:
        return False
    is_alive = owner.is_alive()
    return committed_ms <= cutoff_ms if is_alive is None else not is_alive


def first_to_keep(
    versions: Sequence[int], oldest: int, newest: Snapshot, last_release: int, slowest: int | None
) -> int:
    """Return the oldest version to keep: pure.

    What was released goes whatever its age. Of a pipelined result what a consumer has before it
    stays; of others consumers hold nothing back.

    Parameters
    ----------
    versions
        Numbers of all versions that can be opened, ascending, at least one.
    oldest
        The one of them that retention keeps.
    newest
        The newest version.
    last_release
        Number of the last release; 0 when there was none.
    slowest
        Up to where the slowest consumer has consumed; None where there is none.
    """
    if newest.ended is not None:
        return newest.version
    kind = newest.newest.result.type
    if kind.is_persistent:
        return oldest
    wanted = max(oldest, last_release)
    if kind.is_pipelined and slowest is not None:
        wanted = min(wanted, slowest + 1)
    return max((one for one in versions if one <= wanted), default=versions[0])
