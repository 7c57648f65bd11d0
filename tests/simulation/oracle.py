"""Judges schedules by a plain model: which rows a version has, and who may see what.

What actors say of themselves (:func:`~tests.simulation.process.note`):

``begins op kind rows``
    A commit begins: ``append`` or ``overwrite`` of these rows, ``keep`` of all there are,
    ``rollback`` to a version in their place, or ``delete`` of the rows with these values.
``pends op rows number``
    Its rows wait for a flush, as that number of the log.
``is op version`` / ``does nothing op`` / ``fails op error`` / ``unknown op``
    It returned a version; it had nothing to do; it raised, and nothing may be in the log; or it is
    not known.
``deletes op searched unsearched receipt``
    A deletion searched a version; rows that were appended up to another one may have been kept.
``undoes op version``
    A rollback to a version is about to bring rows back that were deleted since.
``gone rows``
    The bytes of deleted rows are said to be gone.
``tags name version`` / ``untags name``
    A version has got a tag; a tag is about to be removed.
``repairs numbers``
    A repair gave up numbers of the log.
``reads version rows newest`` / ``finds nothing`` / ``expired version error``
    A reader got rows, of a version that it asked for or of the newest; or found none.
``lost version error``
    A reader held a version, and it could not be read.
``consumes consumer rows``
    A consumer is about to record rows that it got before the schedule.
``gets consumer version rows turn slept`` / ``ends consumer`` / ``records consumer version turn``
    A consumer got rows, having slept for some seconds; it is about to record them, or failed; it
    has recorded that they are consumed.
``gives up error``
    An actor ended with an error that says nothing of a commit.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from arrow_format.log.names import (
    CONSUMER_DIRECTORY,
    DAMAGED_DIRECTORY,
    READER_PREFIX,
    entry_path,
)
from tests.simulation.actors import at
from tests.simulation.explorer import PAUSE_MS, State, World, Wrong
from tests.simulation.files import (
    FAILED,
    INTERRUPTED,
    all_mounted,
    carry_out,
    has_unmounted,
)
from tests.simulation.layouts import DISK, ORIGINAL
from tests.simulation.model import (
    Deletion,
    Left,
    check_gone,
    check_repaired,
    roots_of_another,
    rows_added,
    rows_after,
)
from tests.simulation.observers import (
    Rows,
    Seen,
    as_of,
    collect,
    flush,
    glimpse,
    is_gone,
    newest_rows,
    observe,
    relocate,
    repair,
    settle,
    verify,
)
from tests.simulation.programs import Node, Program

if TYPE_CHECKING:
    from tests.simulation.files import Files

ROUNDED_MS = 10_000
"""What a storage may take off a time, and more."""

_COLLECTED = ("map_outputs/", "commit_log/", f"{DISK}/", f"{CONSUMER_DIRECTORY}/{READER_PREFIX}")
"""Where nothing is left after collections but what is named."""

SILENCE_S = 60
"""For how long a consumer must have been silent before another takes its name."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is right in a scenario."""

    must_succeed: frozenset[str] = frozenset()
    """Commits that fail for no reason but a fault."""
    releases: bool = False
    """Whether rows may be released during the schedule, once they are consumed or by name;"""
    ephemeral: bool = False
    """or by the collections at the end."""
    pending: bool = False
    """Whether commits wait for a flush."""
    repeats: bool = False
    """Whether a consumer may record rows that the process before it recorded too."""
    fresh: bool = True
    """Whether a reader gets what was committed before it began."""
    glimpses: bool = False
    """Look only at the newest version after each step, and at the others at the end."""
    one_of: frozenset[str] = frozenset()
    """Commits of which one succeeds, and no other."""
    kept: dict[str, int] = field(default_factory=dict)
    """Versions that stay readable, by the name of the tag that keeps them."""
    damaged: int = 0
    """The number of the log that is damaged or lost during the schedule; 0: none is."""
    unmounts: bool = False
    """Whether a disk may vanish, and come back: meanwhile rows cannot be read. In the end it is
    there."""
    logs_values: bool = False
    """Whether the log has values of rows, so that those that were deleted are not gone for a
    time."""
    became: Literal["moved", "copied"] | None = None
    """What is still to be said of the shuffle, and perhaps said by an actor: that it was moved to
    where it is, or that it is a copy."""
    another: str = ""
    """Where another shuffle is that names the same local directories: a copy of this one, or the
    original, which must keep its rows."""


class Oracle:
    """Judges the schedules of one world.

    Parameters
    ----------
    rules
        What is right in it.
    events
        What was said before the schedule.
    collections
        How many it takes until nothing is left over.
    """

    def __init__(
        self,
        world: World,
        rules: Rules,
        *,
        events: tuple[tuple[Any, ...], ...] = (),
        collections: int = 2,
    ) -> None:
        self._world = world
        self._rules = rules
        self._events = events
        self._ephemeral = rules.ephemeral or rules.releases
        store = world.is_store
        self._observer = Program("observer", observe, is_store=store)
        self._watcher = (
            Program("watcher", glimpse, is_store=store) if rules.glimpses else self._observer
        )
        self._collectors = [
            Program(f"last-gc-{n}", collect, is_store=store) for n in range(collections)
        ]
        self._verifier = Program("verifier", verify, is_store=store)
        self._flusher = Program("last-flush", flush, is_store=store)
        self._repairer = Program("last-repair", repair, is_store=store)
        self._relocators = (
            [Program("last-relocation", relocate(rules.became))] if rules.became else []
        )
        self._others = [Program("another", settle(rules.another))] if rules.another else []
        self._erasures: dict[str, Program] = {}
        self._by_time: dict[str, Program] = {}
        self._seen: dict[tuple[str, int, int], Any] = {}
        self._left: dict[tuple[int, int, object], str | None] = {}
        self._first = self.seen(world.files, world.start().now_ms)
        self._first_of_original: Rows = ()
        if rules.another == ORIGINAL:
            reader = Program("original", at(ORIGINAL, newest_rows))
            self._first_of_original = reader.run_alone(world.files)[1].result

    def close(self) -> None:
        """End all threads."""
        for program in (
            self._observer,
            self._watcher,
            self._verifier,
            self._flusher,
            self._repairer,
            *self._relocators,
            *self._others,
            *self._erasures.values(),
            *self._by_time.values(),
            *self._collectors,
        ):
            program.close()

    def seen(self, files: Files, now_ms: int, observer: Program | None = None) -> Any:
        """Return what can be read, a :class:`Seen`, or what another observer says.

        Raises Wrong where that fails.
        """
        files, observer = files.finished(), observer or self._observer
        key = observer.name, files.key, now_ms
        if key not in self._seen:
            self._seen[key] = self._run(observer, files, now_ms)[1].result
        return self._seen[key]

    def _run(self, program: Program, files: Files, now_ms: int) -> tuple[Files, Node]:
        files, node = program.run_alone(files, now_ms)
        if node.error is not None:
            msg = f"{program.name}: {type(node.error).__name__}: {node.error}"
            raise Wrong(msg)
        return files, node

    def on_step(self, before: State, after: State) -> State:
        """Check that a step takes nothing away that was committed, and changes no version."""
        for old, new in zip(before.nodes, after.nodes, strict=True):
            if new is not old and new.error is not None:
                self._check_error(new)
            for event in new.events[len(old.events) :]:
                if event[0] == "gone":
                    check_gone(event[1], after.files, self._roots_of_another(after.files))
                if event[0] == "gets":
                    self._check_alone(event, [node for node in before.nodes if node is not old])
        if before.files is after.files or self._rules.damaged:
            return after
        if self._rules.unmounts and (has_unmounted(before.files) or has_unmounted(after.files)):
            return after
        was = self.seen(before.files, after.now_ms, self._watcher)
        now = self.seen(after.files, after.now_ms, self._watcher)
        if was is now:
            return after
        if now.newest < was.newest and not (self._rules.releases and now.newest == 0):
            raise Wrong(f"the newest version was {was.newest}, and is {now.newest} after a step")
        expired = dict(after.expired)
        for version, rows in was.versions.items():
            later = now.versions.get(version)
            if rows is not None and later is None:
                expired[version] = rows
            if rows is None and later is not None:
                raise Wrong(f"version {version} appeared again, with rows {later}")
            if rows is not None and later is not None and rows != later:
                raise Wrong(f"version {version} had rows {rows}, and has {later} after a step")
        return after._replace(expired=tuple(sorted(expired.items())))

    def _check_alone(self, event: tuple[Any, ...], others: list[Node]) -> None:
        """Check that a consumer did not take its name over from one that was just at work.

        Of two that are at work, the later one must have waited.
        """
        _, consumer, _, _, _, slept_s = event
        for node in others:
            work = [each for each in node.events if each[0] in ("gets", "ends")]
            if work and work[-1][:2] == ("gets", consumer):
                longest_s = max(slept_s, work[-1][5])
                if longest_s < SILENCE_S:
                    raise Wrong(
                        f"consumer {consumer} was taken over after {longest_s} s from a process "
                        "that is at work"
                    )

    def _check_error(self, node: Node) -> None:
        if isinstance(node.error, KeyboardInterrupt) and any(
            answer.how == "interrupted" for _, answer in node.history()
        ):
            return
        raise Wrong(
            f"an actor ended with {type(node.error).__name__}: {node.error}"
        ) from node.error

    def on_end(self, state: State) -> None:
        """Check the end of a schedule: all actors have ended, or never run again."""
        if self._rules.unmounts:
            state = state._replace(files=all_mounted(state.files))
        events = [*self._events, *(event for node in state.nodes for event in node.events)]
        has_faults = state.faults < self._world.faults or self._rules.unmounts
        for node in state.nodes:
            if node.parent is None and node.error is not None:  # before its first call
                self._check_error(node)
        if self._rules.damaged:
            self._check_repaired(state, events)
            return
        for event in events:
            if event[0] == "fails" and event[1] in self._rules.must_succeed and not has_faults:
                raise Wrong(f"{event[1]} failed: {event[2]}")
            if event[0] in ("gives up", "fails") and "Corrupt" in event[-1] and not has_faults:
                raise Wrong(f"an actor saw damage: {event[-1]}")
            if event[0] == "lost":
                raise Wrong(f"version {event[1]} was held by a reader: {event[2]}")
            if event[0] == "expired" and event[1] in {
                *self._rules.kept,
                *self._rules.kept.values(),
            }:
                raise Wrong(f"a reader of version {event[1]}, which has a tag: {event[2]}")
        if self._rules.one_of:
            won = [
                event[1] for event in events if event[0] == "is" and event[1] in self._rules.one_of
            ]
            if len(won) > 1 or (not won and all(state.have_ended) and not has_faults):
                raise Wrong(f"of {sorted(self._rules.one_of)} one must succeed, and {won} did")
        seen = self.seen(state.files, state.now_ms)
        seen = seen._replace(versions=seen.versions | dict(state.expired))
        contents = self._explain(events, seen)
        self._check_readers(state, contents, seen)
        if self._world.jumps:
            self._check_times(state, seen)
        self._check_consumers(events, contents, _unsure_consumers(state))
        sure = _sure_of_pending(events)
        untagged = {event[1] for event in events if event[0] == "untags"}
        may_be_tagged = {event[2] for event in events if event[0] == "tags"}
        tagged = {event[2] for event in events if event[0] == "tags" and event[1] not in untagged}
        deletions = _deletions(events)
        kept = {*self._rules.kept.values()}
        left = Left(
            sure,
            tuple(sorted(tagged | kept)),
            tuple(sorted(may_be_tagged | kept)),
            tuple(sorted(deletions)),
        )
        key = state.files.key, state.now_ms, (state.late, left)
        if key not in self._left:
            self._left[key] = self._left_over(state, left)
        if self._left[key] is not None:
            raise Wrong(str(self._left[key]))

    def _explain(self, events: list[tuple[Any, ...]], seen: Seen) -> dict[int, set[Rows]]:
        """Return the rows that each version may have; raises Wrong where nothing explains it."""
        commits = {event[1]: (event[2], event[3]) for event in events if event[0] == "begins"}
        # Several processes may commit one job.
        unended = Counter(event[1] for event in events if event[0] == "begins")
        unended.subtract(event[1] for event in events if event[0] in ("fails", "does nothing"))
        known: dict[int, str] = {}
        for event in events:
            if event[0] == "is":
                for version, op in known.items():
                    if op == event[1] and version != event[2]:
                        raise Wrong(f"{op} is both version {version} and {event[2]}")
                if known.get(event[2], event[1]) != event[1]:
                    raise Wrong(f"{event[1]} and {known[event[2]]} both are version {event[2]}")
                known[event[2]] = event[1]
        searched = {event[1]: event[2:4] for event in events if event[0] == "deletes"}
        # Also those that are pending: a flush publishes them.
        open_ends = frozenset(op for op in commits if unended[op] > 0 and op not in known.values())
        consumed = self._may_go(events)
        first = self._first.versions.get(self._first.newest) or ()
        # A version that no commit returned can be a merge of unknown end, a flush or a release; a
        # collection takes numbers too, but these are no versions.
        may_keep = self._rules.releases or self._rules.pending
        may_keep |= any(commits[op][0] == "keep" for op in open_ends)
        possible: set[tuple[Rows, frozenset[str]]] = {(first, frozenset())}
        contents: dict[int, set[Rows]] = {
            version: {rows} for version, rows in self._first.versions.items() if rows is not None
        }
        last = max([seen.newest, self._first.newest, *known])
        for version in range(self._first.newest + 1, last + 1):
            following: set[tuple[Rows, frozenset[str]]] = set()
            for rows, used in possible:
                if version in known:
                    op = known[version]
                    after = rows_after(rows, *commits[op], contents, searched.get(op))
                    following.update((each, used) for each in after)
                    continue
                if may_keep or seen.versions.get(version) is None:
                    following.add((rows, used))
                if self._rules.releases:
                    following.add((tuple(row for row in rows if row not in consumed), used))
                left = sorted(open_ends - used)
                for count in range(1, len(left) + 1 if self._rules.pending else 2):
                    for ops in combinations(left, count):
                        after = {rows}
                        for op in ops:
                            after = {
                                each
                                for before in after
                                for each in rows_after(before, *commits[op], contents)
                            }
                        following.update((each, used | {*ops}) for each in after)
            if not following:
                raise Wrong(f"version {version} is in the log, and no commit said so")
            actual = seen.versions.get(version)
            if actual is not None:
                matching = {each for each in following if self._fits(each[0], actual, consumed)}
                if not matching:
                    expected = sorted({rows for rows, _ in following})
                    raise Wrong(f"version {version} has rows {actual}, expected one of {expected}")
                following = {(actual, used) for _, used in matching}
            possible = following
            contents[version] = {rows for rows, _ in possible}
        if max(known, default=0) > seen.newest and not self._rules.releases:
            raise Wrong(f"version {max(known)} was committed; the newest is {seen.newest}")
        return contents

    def _may_go(self, events: list[tuple[Any, ...]]) -> frozenset[int]:
        """Return the rows that a release may have taken."""
        if not self._rules.releases:
            return frozenset()
        if any(event[0] == "releases" for event in events):
            return frozenset(
                [row for rows in self._first.versions.values() for row in rows or ()]
                + [row for event in events if event[0] == "begins" for row in event[3]]
            )
        got = (event[3] for event in events if event[0] == "gets")
        before = (event[2] for event in events if event[0] == "consumes")
        return frozenset(row for rows in (*got, *before) for row in rows)

    def _fits(self, rows: Rows, actual: Rows, consumed: frozenset[int]) -> bool:
        if rows == actual:
            return True
        gone = Counter(rows) - Counter(actual)
        return (
            self._rules.releases and not Counter(actual) - Counter(rows) and consumed >= set(gone)
        )

    def _check_times(self, state: State, seen: Seen) -> None:
        """Check that a time names no version before the newest that was put by then.

        Whatever clocks the writers had: times may be rounded.
        """
        puts = {
            version: state.files.entries[entry_path(version)].modified_ms
            for version, rows in seen.versions.items()
            if rows is not None and entry_path(version) in state.files.entries
        }
        for when_ms in sorted({*puts.values()}):
            newest = max(version for version, put_ms in puts.items() if put_ms <= when_ms)
            asked_ms = when_ms + ROUNDED_MS
            name = f"as of {asked_ms}"
            if name not in self._by_time:
                act = as_of(asked_ms)
                self._by_time[name] = Program(name, act, is_store=self._world.is_store)
            found = self.seen(state.files, state.now_ms, self._by_time[name])
            if found < newest:
                raise Wrong(f"{asked_ms} ms names version {found}; {newest} was put by {when_ms}")

    def _check_readers(self, state: State, contents: dict[int, set[Rows]], seen: Seen) -> None:
        for actor, node in enumerate(state.nodes):
            before = [
                event[2]
                for other, earlier in enumerate(state.nodes)
                if state.began[actor] > 0 and state.began[actor] >> other & 1
                for event in earlier.events
                if event[0] == "is"
            ]
            floor = max([self._first.newest, *before]) if self._rules.fresh else 0
            for event in node.events:
                if event[0] == "reads":
                    _, version, rows, is_newest = event
                    if rows not in contents.get(version, ()):
                        raise Wrong(
                            f"a reader of version {version} got rows {rows}, expected "
                            f"{sorted(contents.get(version, ()))}"
                        )
                    if is_newest and version < floor:
                        raise Wrong(f"a reader got version {version} after {floor} was committed")
                elif event[0] == "finds nothing" and floor and not self._rules.releases:
                    raise Wrong(f"a reader found nothing after version {floor} was committed")
                elif event[0] == "changes":
                    _, after, version, rows = event
                    if after not in contents:
                        continue  # it had expired before
                    expected = rows_added(contents, after, version)
                    if rows not in expected:
                        raise Wrong(
                            f"a reader of what came after version {after} up to {version} got "
                            f"rows {rows}, expected {sorted(expected)}"
                        )

    def _check_consumers(
        self,
        events: list[tuple[Any, ...]],
        contents: dict[int, set[Rows]],
        unsure: frozenset[str],
    ) -> None:
        """Check that what each consumer recorded covers each row once."""
        got = {(event[1], event[2], event[4]): event[3] for event in events if event[0] == "gets"}
        recorded: dict[str, list[int]] = {}
        last: dict[str, int] = {}
        for event in events:
            if event[0] == "records":
                rows = got[event[1], event[2], event[3]]
                recorded.setdefault(event[1], []).extend(rows)
                last[event[1]] = max(last.get(event[1], 0), event[2])
        for consumer, rows in recorded.items():
            twice = sorted(row for row, count in Counter(rows).items() if count > 1)
            if twice and not self._rules.repeats:
                raise Wrong(f"consumer {consumer} recorded rows {twice} as consumed twice")
            whole = contents.get(last[consumer], set())
            sure = not twice and not self._rules.releases and consumer not in unsure
            if sure and whole and tuple(sorted(rows)) not in whole:
                raise Wrong(
                    f"consumer {consumer} has recorded version {last[consumer]} with rows "
                    f"{sorted(rows)}, expected {sorted(whole)}"
                )

    def _check_repaired(self, state: State, events: list[tuple[Any, ...]]) -> None:
        """Repair the log, and check that no more is given up than repairs say."""
        files, node = self._run(self._repairer, state.files.finished(), state.now_ms)
        seen = self.seen(files, state.now_ms)
        # A repair that died has moved numbers aside, and not said so.
        aside = [path for path in files.paths() if path.startswith(f"{DAMAGED_DIRECTORY}/")]
        moved = {int(path.rpartition("/")[2].partition("-")[0]) for path in aside}
        check_repaired(events, self._first, seen, self._rules.damaged, moved | {*node.result})
        for collector in self._collectors:
            files, _ = self._run(collector, files, state.now_ms)
        after = self.seen(files, state.now_ms)
        if after.versions.get(after.newest) != seen.versions.get(seen.newest):
            raise Wrong(f"a collection after a repair changed version {seen.newest}")

    def _left_over(self, state: State, left: Left) -> str | None:
        """Collect what is left, and return what no version names; None where nothing is left."""
        try:
            return self._left_after_gc(state, left)
        except Wrong as wrong:
            return f"after the end: {wrong}"

    def _left_after_gc(self, state: State, expected: Left) -> str | None:
        files, now_ms = state.files, state.now_ms
        if self._rules.pending:
            files, _ = self._run(self._flusher, files, now_ms)
        for relocator in self._relocators:
            files, _ = self._run(relocator, files, now_ms)
        before = self.seen(files, now_ms)
        lost = Counter(expected.pending) - Counter(before.versions.get(before.newest) or ())
        if lost:
            return f"pending rows {sorted(lost)} are not in version {before.newest} after a flush"
        for collector in self._collectors:
            files, _ = self._run(collector, files, now_ms)
            now_ms += PAUSE_MS
        theirs: frozenset[str] = frozenset()
        anothers = self._roots_of_another(files)
        for other in self._others:
            files, node = self._run(other, files, now_ms)
            named, rows = node.result
            if named is not None:
                theirs, anothers = named, anothers[:1]
            lost = Counter(self._first_of_original) - Counter(rows)
            if lost:
                return f"the original has rows {rows}, and had {self._first_of_original}"
        after = self.seen(files, now_ms)
        if not self._ephemeral:
            was, is_now = before.versions.get(before.newest), after.versions.get(after.newest)
            if was != is_now:
                return f"the newest version had rows {was}, and has {is_now} after a collection"
        for version in expected.tagged:
            if after.versions.get(version) is None:
                return f"version {version} has a tag, and cannot be read after a collection"
        problem = self._not_erased(files, now_ms, after, expected)
        if problem:
            return problem
        return self._left_files(state, files, now_ms, theirs, anothers)

    def _not_erased(self, files: Files, now_ms: int, seen: Seen, expected: Left) -> str | None:
        """Return which deleted row a file still has; its receipt must say the same."""
        rows = {row for rows in seen.versions.values() for row in rows or ()}
        for receipt, keys, is_only, unsearched, searched, is_undone in expected.deletions:
            if receipt not in self._erasures:
                name = f"erasure-{len(self._erasures)}"
                act = is_gone(receipt)
                self._erasures[receipt] = Program(name, act, is_store=self._world.is_store)
            _, node = self._run(self._erasures[receipt], files, now_ms)
            if not keys:
                continue
            is_kept = bool(rows & set(keys))
            # A receipt does not say whether a tagged version has such rows.
            has_old = any(version < searched for version in expected.may_be_tagged)
            may_last = unsearched or not is_only or self._rules.logs_values or has_old or is_undone
            # Files that a copy was made with are its original's to remove.
            may_last = may_last or self._rules.another == ORIGINAL
            if node.result == is_kept and (is_kept or not may_last):
                return f"rows {keys} were deleted, of {sorted(rows)}; is_gone: {node.result}"
            if node.result:
                check_gone(keys, files, self._roots_of_another(files))
        return None

    def _roots_of_another(self, files: Files) -> tuple[str, ...]:
        return roots_of_another(files, self._world.files, self._rules.another)

    def _left_files(
        self,
        state: State,
        files: Files,
        now_ms: int,
        theirs: frozenset[str],
        anothers: tuple[str, ...],
    ) -> str | None:
        """Return which files nothing names, here or in another shuffle, whose paths are known."""
        _, node = self._run(self._verifier, files, now_ms)
        named, segments = node.result
        left = [
            path
            for path in files.paths()
            if path not in named | theirs
            and (path.startswith(_COLLECTED) or ".tmp-" in path)
            and not path.startswith(anothers)
            and not (".tmp-" in path and path.startswith(segments))
            and not path.startswith(DAMAGED_DIRECTORY)
        ]
        if left:
            return f"files are left over that nothing names: {left}"
        for call in state.late:
            files, _ = carry_out(files, call, now_ms, not self._world.is_store)
            self.seen(files, now_ms)
        return None


def _deletions(events: list[tuple[Any, ...]]) -> set[Deletion]:
    """Return the deletions, and which of their values no commit has added after them."""
    numbers = {event[1]: event[2] for event in events if event[0] == "is"}
    numbers |= {event[1]: event[3] for event in events if event[0] == "pends"}
    begun = {event[1]: event[2:] for event in events if event[0] == "begins"}
    kinds = ("append", "insert", "upsert", "newest", "overwrite")
    added = {op: set(rows) for op, (kind, rows) in begun.items() if kind in kinds}
    undone = {event[1]: event[2] for event in events if event[0] == "undoes"}
    for event in events:
        if event[0] == "fails":
            added.pop(event[1], None)
            undone.pop(event[1], None)
    after = min(undone.values(), default=0)
    until = max((numbers.get(op, inf) for op in undone), default=0)
    deletions = set()
    for event in events:
        if event[0] == "deletes":
            _, op, searched, unsearched, receipt = event
            number = numbers.get(op, searched)
            # One of unknown number may have come after it.
            later: set[int] = set()
            before: set[int] = set()
            for each, rows in added.items():
                (later if numbers.get(each, inf) > number else before).update(rows)
            keys = tuple(key for key in begun[op][1] if key not in later)
            # What only a mask took is never said to be gone.
            is_only = json.loads(receipt)["erases"] and before.isdisjoint(keys)
            is_undone = after < number < until
            deletions.add(Deletion(receipt, keys, is_only, unsearched, searched, is_undone))
    return deletions


def _sure_of_pending(events: list[tuple[Any, ...]]) -> tuple[int, ...]:
    """Return the rows of pending commits that a flush must publish, or has published.

    Unless a deletion of the row may have come after the flush: one whose receipt does not have the
    commit as pending, or one of unknown end, which has none.
    """
    numbers = {event[1]: event[2] for event in events if event[0] == "is"}
    numbers |= {event[1]: 0 for event in events if event[0] in ("fails", "does nothing")}
    receipts = {event[1]: json.loads(event[4]) for event in events if event[0] == "deletes"}
    deleted = [event[1:] for event in events if event[:1] + event[2:3] == ("begins", "delete")]
    return tuple(
        sorted(
            rows[0]
            for rows, number in (event[2:] for event in events if event[0] == "pends")
            if not any(
                rows[0] in keys
                and numbers.get(op, inf) > number
                and number not in receipts.get(op, {"pending": ()})["pending"]
                for op, _, keys in deleted
            )
        )
    )


def _unsure_consumers(state: State) -> frozenset[str]:
    """Return the consumers that cannot know whether their progress was recorded."""
    return frozenset(
        call[1].split("/")[1]
        for node in state.nodes
        for call, answer in node.history()
        # Of the put, or of the listing that says whether it counts.
        if answer.how in (FAILED, INTERRUPTED) and str(call[1]).startswith("consumers/")
    )
