"""When ephemeral results are released: once all consumers consumed them, or their owners ended.

A consumer that has just acknowledged decides this, and every garbage collection, each from what the
log and the consumers' progress say then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.jobs.release import DueRelease, commit_ids, drops_any
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.pending import last_pending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.log.state import LogState
    from arrow_format.process_identity import ProcessIdentity
    from arrow_format.storage.open import Storage

RELEASED_TOGETHER = 10
"""Consumed versions of a pipelined result per release by its consumers: each release takes a number
of the log."""


def release_consumed(storage: Storage, *, at_least: int = 1, sync: bool = True) -> LogEntry | None:
    """Release what every consumer of an ephemeral result has consumed; None: nothing.

    Of a pipelined result, wait for about ``at_least`` versions. With ``sync``, the release is
    durable on return.
    """
    log = CommitLog(storage)
    due = log.read(lambda view: find_consumed(storage, log, view, at_least=at_least))
    return None if due is None else due.carry_out(storage, sync=sync)


def find_consumed(
    storage: Storage, log: LogReader, view: LogView, *, at_least: int = 1
) -> DueRelease | None:
    """Find what :func:`release_consumed` would release; None: nothing."""
    state = view.state
    newest = None if state.is_ended else log.newest_entry(view)
    if newest is None or newest.result.type.is_persistent:
        return None
    progress = ConsumerRegistry(storage).all_progress()
    if not progress:
        return None
    consumed = min(progress.values())
    by = f"consumed by {', '.join(sorted(progress))}"
    if newest.result.type.is_blocking:
        # What is pending is not consumed: it is still to become a version.
        if state.content > consumed or state.pending.numbers:
            return None
        return DueRelease(by, expected=commit_ids(newest, None), consumed=state.content)
    through = min(consumed, newest.version)
    released = 0 if state.released is None else state.released.through
    if through - released < at_least or not drops_any(log.content_at(view, newest), through):
        return None
    return DueRelease(by, through=through, consumed=through)


def find_abandoned(
    log: LogReader, view: LogView, is_old: Callable[[LogEntry], bool]
) -> DueRelease | None:
    """Find a result whose applications have all ended; None: there is none.

    Where no process here can say whether an application runs, it counts as ended if ``is_old`` says
    of the result's last commits that they are past the retention.
    """
    newest = None if view.state.is_ended else log.newest_entry(view)
    waiting = last_pending(log, view)  # a result may have nothing else
    parts = [entry for entry in (newest, waiting) if entry is not None]
    if not all(part.result.owners for part in parts):
        return None  # a result without owners is kept, and a release takes both
    owners = dict.fromkeys(owner for part in parts for owner in part.result.owners)
    if not owners_are_gone(owners, lambda: all(map(is_old, parts))):
        return None
    by = f"the application that made it has ended: {', '.join(map(str, owners))}"
    return DueRelease(by, expected=commit_ids(newest, waiting))


def owners_are_gone(owners: Iterable[ProcessIdentity], are_old: Callable[[], bool]) -> bool:
    """Whether a result belongs to applications that have all ended; one without owners never does.

    ``are_old`` decides where no process here can say whether an owner runs.
    """
    alive = {owner.is_alive() for owner in owners}
    if not alive or True in alive:
        return False
    return alive == {False} or are_old()


def first_wanted(state: LogState, slowest: int | None) -> int | None:
    """Return a number after which versions with rows are kept, whatever their age; None: none.

    Pure. Of a pipelined result these are what a consumer has not consumed, unless the result was
    released as a whole; of others consumers keep nothing. The slowest consumer has consumed up to
    ``slowest``; None where no consumer is waited for.
    """
    shape = state.shape
    if shape is None or state.is_ended or not shape.result.type.is_pipelined:
        return None
    if slowest is None:
        return None
    released = 0 if state.released is None else state.released.through
    return max(slowest, released, state.ended)
