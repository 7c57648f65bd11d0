"""The release of a result: an entry that says up to which version its rows are gone.

Map outputs all of whose rows were added by then are in no later version. Their files are removed
with the versions before the release, which garbage collection lets expire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.jobs.recounted import more_than, totals_of_outputs
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.conflicts import Claims, check_needs
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.pending import last_pending
from arrow_format.log.result import Released
from arrow_format.log.state import PendingNumbers
from arrow_format.read.index_cache import IndexCache

if TYPE_CHECKING:
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.log.totals import Totals
    from arrow_format.storage.open import Storage

CommitIds = tuple[str | None, str | None]
"""Of the newest version of a result and of its last pending commit; None for one it lacks."""


@dataclass(frozen=True, slots=True)
class DueRelease:
    """What is to be released, while it is still due."""

    by: str
    """Who releases it and why, for people."""
    through: int | None = None
    """The last version to release; None for the whole result, with all that is pending, also where
    it has no version yet."""
    expected: CommitIds | None = None
    """The :func:`commit_ids` of the result when it was found to be no longer needed: a newer one is
    not released, since it may be needed. None: release the present one."""
    consumed: int | None = None
    """The version up to which every consumer must have consumed, also one that has registered
    since; without consumers nothing is released. None: do not ask."""

    def __str__(self) -> str:
        what = "the result" if self.through is None else f"what came up to version {self.through}"
        return f"{what}, {self.by}"

    def carry_out(
        self, storage: Storage, *, expected_version: int | None = None, sync: bool = True
    ) -> LogEntry | None:
        """Commit the release, durably if ``sync``; None where it is not due any more.

        Raises CommitConflictError where rows were changed after ``expected_version``, if given.
        """
        log = CommitLog(storage)

        def decide(view: LogView) -> LogEntry | None:
            if self.consumed is not None:
                progress = ConsumerRegistry(storage).all_progress().values()
                if min(progress, default=-1) < self.consumed:
                    return None
            check_needs("release", log, view, Claims(expected_version))
            return self._draft(storage, log, view)

        return log.append(decide, sync=sync)

    def _draft(self, storage: Storage, log: LogReader, view: LogView) -> LogEntry | None:
        state = view.state
        newest = None if state.is_ended else log.newest_entry(view)
        if self.through is not None:
            if newest is None:
                return None
            snapshot = log.content_at(view, newest)
            if not drops_any(snapshot, self.through):
                return None
            released = Released(self.through, self.by, ended=False)
            totals = _dropped(storage, log, snapshot, self.through)
            return draft(view, "release", state={"released": released}, totals=totals)
        waiting = last_pending(log, view)
        shaped = newest or waiting
        if shaped is None or self.expected not in (None, commit_ids(newest, waiting)):
            return None
        earlier = 0 if state.released is None else state.released.through
        changes = {
            "released": Released(newest.version if newest else earlier, self.by, ended=True),
            "shape": shaped.shape,
            "pending": PendingNumbers.of((), state.pending.flushed_at_ms),
        }
        return draft(view, "release", state=changes)


def commit_ids(newest: LogEntry | None, waiting: LogEntry | None) -> CommitIds:
    """Return the ids by which a result is recognised later."""
    return newest.commit_id if newest else None, waiting.commit_id if waiting else None


def _dropped(storage: Storage, log: LogReader, snapshot: Snapshot, through: int) -> Totals:
    """Return what a release adds to the totals of a version, which is what remains less those."""
    left = snapshot.map_outputs.added_after(through)
    totals = totals_of_outputs(log, snapshot.newest, left, IndexCache(storage))
    return more_than(totals, snapshot)


def drops_any(snapshot: Snapshot, through: int) -> bool:
    """Whether a release through a version would drop a map output."""
    return bool(np.any(snapshot.map_outputs.last_versions <= through))
