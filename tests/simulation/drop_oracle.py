"""Judges schedules in which a shuffle is removed for good.

Readers get all rows of a version or an error that is no damage, and a commit that succeeds is in a
version that can be read, or was before the removal. Once it is at its end nothing is there but what
was written after it, and after another removal nothing at all.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from arrow_format.log.names import EXPIRED_DIRECTORY
from arrow_format.storage.root_owner import DIRECTORY_ID_NAME
from tests.simulation.explorer import State, Wrong
from tests.simulation.layouts import DISK
from tests.simulation.observers import Rows, Seen, drop
from tests.simulation.oracle import Oracle, Rules
from tests.simulation.programs import Program

if TYPE_CHECKING:
    from tests.simulation.explorer import World

_PUT_BEFORE = re.compile(
    r"consumers/|commit_log/identity/|.*\.range$|.*/local-roots\.json$|.*/arrow-shuffle-root\.json$"
)
_ENTRY = re.compile(r"^commit_log/[0-9]{18}/([0-9]{20})\.entry$")


class DropOracle(Oracle):
    """Judges the schedules of one world, one of whose actors removes the shuffle."""

    def __init__(self, world: World, rules: Rules, **how: Any) -> None:
        super().__init__(world, rules, **how)
        self._dropper = Program("last-drop", drop, is_store=world.is_store)
        self._ends: dict[tuple[object, int], str | None] = {}

    def close(self) -> None:
        """End all threads."""
        super().close()
        self._dropper.close()

    def on_step(self, before: State, after: State) -> State:
        """Check that a step takes nothing away but all, and changes no version."""
        for old, new in zip(before.nodes, after.nodes, strict=True):
            if new is not old and new.error is not None:
                self._check_error(new)
        if before.files is after.files:
            return after
        was, now = self._looked(before), self._looked(after)
        if was is None or now is None or was is now:
            return after
        if now.newest and now.newest < was.newest:
            raise Wrong(f"the newest version was {was.newest}, and is {now.newest} after a step")
        expired = dict(after.expired)
        for version, rows in was.versions.items():
            later = now.versions.get(version)
            if rows is not None and later is None:
                expired[hash((version, rows))] = rows
            if rows is not None and later is not None and rows != later:
                raise Wrong(f"version {version} had rows {rows}, and has {later} after a step")
        return after._replace(expired=tuple(sorted(expired.items())))

    def _looked(self, state: State) -> Seen | None:
        """Return what can be read; None where a late entry is about to be taken back.

        Its writer had looked at the log before that was removed.
        """
        paths = state.files.finished().paths()
        numbers = [int(match[1]) for match in map(_ENTRY.search, paths) if match]
        is_late = numbers and (min(numbers) > 1 or len(numbers) == 1)
        try:
            seen: Seen = self.seen(state.files, state.now_ms)
        except Wrong:
            if is_late and not any(path.startswith(EXPIRED_DIRECTORY) for path in paths):
                return None
            raise
        return seen

    def on_end(self, state: State) -> None:
        """Check the end of a schedule: all actors have ended, or never run again."""
        events = [event for node in state.nodes for event in node.events]
        has_faults = state.faults < self._world.faults
        for event in () if has_faults else events:
            if "Corrupt:" in str(event[-1]) and "before the commit. Write" not in event[-1]:
                raise Wrong(f"an actor saw damage: {event}")
        for event in events:
            if event[0] == "reads":
                self._check_whole(event[2], events)
        is_dropped = any(event[0] == "dropped" for event in events)
        seen = self._looked(state)
        if seen is None and all(state.have_ended):
            raise Wrong("what is there at the end cannot be read")
        if seen is not None:
            self._check_commits(events, [*seen.versions.values(), *dict(state.expired).values()])
        if is_dropped and all(state.have_ended) and not any(e[0] == "is" for e in events):
            left = self._remaining(state.files.finished().paths())
            # What is put before a commit is its writer's, and a consumer may wait for rows to come.
            left = [path for path in left if not _PUT_BEFORE.match(path)]
            if left:
                raise Wrong(f"files are left over after the end: {left}")
        key = state.files.key, state.now_ms
        if key not in self._ends:
            files, _ = self._run(self._dropper, state.files, state.now_ms)
            left = self._remaining(files.paths())
            self._ends[key] = f"files are left over after another removal: {left}" if left else None
        if self._ends[key] is not None:
            raise Wrong(str(self._ends[key]))

    @staticmethod
    def _remaining(paths: list[str]) -> list[str]:
        return [path for path in paths if path != f"{DISK}/{DIRECTORY_ID_NAME}"]

    def _check_whole(self, rows: Rows, events: list[tuple[Any, ...]]) -> None:
        """Check that rows are all that there were, or none of them, and others whole commits."""
        first = {*(self._first.versions.get(self._first.newest) or ())}
        began = {row for event in events if event[0] == "begins" for row in event[3]}
        old = first - began
        if old & {*rows} not in (set(), old) or not {*rows} <= first | began:
            raise Wrong(
                f"a reader got rows {rows}, of {sorted(old)} and commits of {sorted(began)}"
            )

    @staticmethod
    def _check_commits(events: list[tuple[Any, ...]], contents: list[Rows | None]) -> None:
        """Check that the rows of each commit that succeeded can be read, or could be."""
        known = {row for rows in contents for row in rows or ()}
        ended = {event[1] for event in events if event[0] == "is"}
        for event in events:
            if event[0] == "begins" and event[1] in ended and event[2] in ("append", "overwrite"):
                lost = {*event[3]} - known
                if lost:
                    raise Wrong(
                        f"{event[1]} succeeded, and its rows {sorted(lost)} were never read"
                    )
