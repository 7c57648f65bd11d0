"""Goes through the interleavings of several programs on one storage.

A :class:`State` is the content of the storage and where each program is. Two schedules that lead to
the same state continue in the same way, so each state is gone through once; how many schedules that
covers is counted on the way back. A schedule is printed as words, see
:mod:`~tests.simulation.schedule`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tests.simulation.files import (
    CHANGES,
    EXISTS,
    FAILED,
    INTERRUPTED,
    LISTINGS,
    OK,
    PUTS,
    Answer,
    Call,
    Files,
    carry_out,
)
from tests.simulation.process import START_MS
from tests.simulation.schedule import Move, words_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from tests.simulation.programs import Node, Program

PAUSE_MS = 2 * 86_400_000
"""How far a pause moves the clock: longer than the default retention."""

JUMPS_MS = (-3 * 3_600_000, 3 * 3_600_000, 30 * 365 * 86_400_000)
"""How far a clock jumps: back, ahead, and to where no date is right for decades."""

PAST = 3
"""Contents before the present one that a stale listing may show."""

FAULTS = {
    "lost": "carried out, but the answer is an error",
    "failed": "not carried out, and the answer is an error",
    "late": "the answer is an error, and the put is carried out later or never",
    "exists": "carried out, and the answer is that it exists: a link over NFS, asked for twice",
    "interrupted": "KeyboardInterrupt, not carried out",
    "interrupted-lost": "KeyboardInterrupt, carried out",
    "interrupted-late": "KeyboardInterrupt, and the put is carried out later or never",
    "stale": "a listing of an earlier moment",
    "torn": "a listing during which others went on: its first half is from when it began",
    "partial": "some of the objects of one request are removed, and the answer is an error",
}


class State(NamedTuple):
    """A moment of a schedule."""

    files: Files
    nodes: tuple[Node, ...]
    began: tuple[int, ...]
    """Of each actor the others that had ended when it made its first call, as bits; -1 before."""
    late: tuple[Call, ...] = ()
    past: tuple[Files, ...] = ()
    """Earlier contents, the last one first."""
    since: tuple[int, ...] = ()
    """How many of these are later than the last answer of each actor."""
    faults: int = 0
    """How many more there may be."""
    pauses: int = 0
    jumps: int = 0
    """How often a clock may still jump."""
    jumped_ms: tuple[int, ...] = ()
    """How far the clock of each actor has jumped."""
    now_ms: int = START_MS
    expired: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Versions that could be read and cannot any more, with their rows."""

    def key(self) -> tuple[object, ...]:
        past = (tuple(files.key for files in self.past), self.since) if self.faults else ()
        numbers = tuple([node.number for node in self.nodes])
        left = self.faults, self.pauses, self.jumps, self.jumped_ms
        return (self.files.key, numbers, self.began, self.late, past, left, self.expired)

    @property
    def have_ended(self) -> list[bool]:
        return [node.call is None for node in self.nodes]


@dataclass(frozen=True)
class World:
    """Programs on a storage, and what may go wrong."""

    programs: tuple[Program, ...]
    files: Files
    is_store: bool = False
    faults: int = 0
    """Faults per schedule."""
    kinds: frozenset[str] = frozenset()
    """Of :data:`FAULTS`."""
    faulty: tuple[int, ...] | None = None
    """Actors whose calls have faults; None: all."""
    pauses: int = 0
    """How often the clock may move by :data:`PAUSE_MS`."""
    jumps: int = 0
    """How often the clock of an actor may jump."""
    start_ms: int = START_MS
    steady: frozenset[int] = frozenset()
    """Actors that are not preempted: they go on until they sleep or end."""
    prelude: State | None = None
    """Where an exploration begins, if actors have come to some point before it."""

    def start(self) -> State:
        """Return the state before the first step."""
        if self.prelude is not None:
            return self.prelude
        nodes = tuple(program.root for program in self.programs)
        began = (-1,) * len(nodes)
        return State(
            self.files,
            nodes,
            began,
            since=(0,) * len(nodes),
            faults=self.faults,
            pauses=self.pauses,
            jumps=self.jumps,
            jumped_ms=(0,) * len(nodes),
            now_ms=self.start_ms,
        )

    def moves(self, state: State) -> Iterator[Move]:
        """Yield what may come next; first of all without a fault."""
        for actor, node in enumerate(state.nodes):
            if node.call is not None:
                yield Move(actor)
        for which in range(len(state.late)):
            yield Move(-1, "land", which)
        if state.pauses and not all(state.have_ended):
            yield Move(-1, "pause")
        if state.jumps:
            for actor, node in enumerate(state.nodes):
                if node.call is not None:
                    yield from (Move(actor, "jump", which) for which in range(len(JUMPS_MS)))
        if state.faults:
            for actor, node in enumerate(state.nodes):
                if node.call is not None and (self.faulty is None or actor in self.faulty):
                    yield from self._faults_of(state, actor, node.call)

    def _faults_of(self, state: State, actor: int, call: Call) -> Iterator[Move]:
        kind = call[0]
        if kind == "sleep":
            return
        if kind in LISTINGS:
            for how in sorted(self.kinds & {"stale", "torn"}):
                for which in range(state.since[actor] if how == "torn" else len(state.past)):
                    if (
                        carry_out(state.past[which], call, 0, True)[1]
                        != (carry_out(state.files, call, 0, True)[1])
                    ):
                        yield Move(actor, how, which)
        for how in sorted(self.kinds - {"stale", "torn"}):
            if how == "exists":
                if kind in PUTS and call[1] not in state.files.entries:
                    yield Move(actor, how)
            elif how == "partial":
                if kind == "delete_all" and len(call[1]) > 1:
                    yield from (Move(actor, how, which) for which in (0, 1))
            elif how.endswith("late"):
                if kind in PUTS and self.is_store:
                    yield Move(actor, how)
            elif how.endswith("lost"):
                if kind in CHANGES:
                    yield Move(actor, how)
            else:
                yield Move(actor, how)

    def after(self, state: State, move: Move) -> State:
        """Return the state after a step."""
        actor, how, which = move
        has_directories = not self.is_store
        if how == "pause":
            return state._replace(now_ms=state.now_ms + PAUSE_MS, pauses=state.pauses - 1)
        if how == "land":
            call = state.late[which]
            files, _ = carry_out(state.files, call, state.now_ms, has_directories)
            late = state.late[:which] + state.late[which + 1 :]
            return self._with_files(state._replace(late=late), files)
        if how == "jump":
            jumped = [*state.jumped_ms]
            jumped[actor] += JUMPS_MS[which]
            return state._replace(jumped_ms=tuple(jumped), jumps=state.jumps - 1)
        node = state.nodes[actor]
        assert node.call is not None
        call = node.call
        files, answer = carry_out(state.files, call, state.now_ms, has_directories)
        if how:
            error = INTERRUPTED if how.startswith("interrupted") else FAILED
            if how == "stale" or how == "torn":
                answer = _stale(state.past[which], answer, call, torn=how == "torn")
            elif how == "exists":
                answer = Answer(state.now_ms, EXISTS)
            elif how == "partial":
                some = (call[0], call[1][which::2])
                files, _ = carry_out(state.files, some, state.now_ms, has_directories)
                answer = Answer(state.now_ms, FAILED, "some objects could not be removed")
            elif how.endswith("lost"):
                answer = Answer(state.now_ms, error, "the answer was lost")
            else:
                files, answer = state.files, Answer(state.now_ms, error, "no answer in time")
            if how.endswith("late"):
                state = state._replace(late=(*state.late, call))
            state = state._replace(faults=state.faults - 1)
        answer = answer._replace(jumped_ms=state.jumped_ms[actor])
        reached = self.programs[actor].after(node, answer)
        nodes = (*state.nodes[:actor], reached, *state.nodes[actor + 1 :])
        began = state.began
        if began[actor] < 0:
            ended = sum(1 << other for other, node in enumerate(nodes) if node.call is None)
            began = (*began[:actor], ended & ~(1 << actor), *began[actor + 1 :])
        return self._with_files(state._replace(nodes=nodes, began=began), files, actor)

    def _with_files(self, state: State, files: Files, actor: int = -1) -> State:
        changes = files.key != state.files.key
        if not (state.faults and self.kinds & {"stale", "torn"}):
            return state._replace(files=files) if changes else state
        since = [min(count + changes, PAST) for count in state.since]
        if actor >= 0:
            since[actor] = 0
        past = (state.files, *state.past)[:PAST] if changes else state.past
        return state._replace(files=files, past=past, since=tuple(since))


def _stale(past: Files, answer: Answer, call: Call, *, torn: bool) -> Answer:
    """Return the answer of a listing that shows an earlier moment, in its first half or whole."""
    old = carry_out(past, call, answer.now_ms, True)[1]
    if not torn:
        return old
    by_name = {_name(item): item for item in answer.value}
    names = sorted({*by_name, *map(_name, old.value)})
    middle = names[len(names) // 2]
    first = [item for item in old.value if _name(item) < middle]
    return Answer(
        answer.now_ms, OK, (*first, *(by_name[name] for name in by_name if name >= middle))
    )


def _name(item: object) -> str:
    return item[0] if isinstance(item, tuple) else str(item)


class Wrong(AssertionError):
    """The oracle found something wrong."""


@dataclass
class Found:
    """What an exploration did."""

    schedules: int = 0
    """Schedules that were covered."""
    states: int = 0
    steps: int = 0
    ends: int = 0
    """Ends of schedules that differ: in what an actor saw, or in what is stored."""
    is_whole: bool = True
    wrong: str | None = None
    schedule: str | None = None
    """How to come to what is wrong."""

    def text(self, name: str) -> str:
        """Describe it, for people."""
        parts = [f"{_large(self.schedules)} schedules"]
        if self.states:
            parts += [f"{self.ends:,} different ends", f"{self.states:,} states"]
        whole = "" if self.is_whole else " (not all)"
        wrong = ""
        if self.wrong:
            wrong = f"\n  WRONG: {self.wrong}\n  --replay '{name}: {self.schedule}'\n "
        return ", ".join(parts) + whole + wrong


def _large(number: int) -> str:
    return f"{number:,}" if number < 10**9 else f"{float(number):.1e}"


def explore(
    world: World,
    on_step: Callable[[State, State], State],
    on_end: Callable[[State], None],
    *,
    crashes: bool = False,
    preemptions: int | None = None,
    only_log: bool = False,
    most_states: int | None = None,
    is_late: Callable[[], bool] = lambda: False,
) -> Found:
    """Go through all schedules, each state once.

    Parameters
    ----------
    world
        Who takes part.
    on_step, on_end
        Judge each step, of which they return the state after it, and each state in which all actors
        have ended; raise :class:`Wrong`.
    crashes
        Whether one actor may never run again: each state in which the others have ended is an end.
    preemptions
        Most switches from an actor that has not ended; None: any number.
    only_log
        Switch from an actor only before its calls on the log and on consumers' files: fewer
        schedules, of which more matter.
    most_states, is_late
        When to stop.
    """
    found = Found()
    counts: dict[tuple[object, ...], int] = {}
    path: list[Move] = []
    ends: set[tuple[object, ...]] = set()

    def moves_from(state: State, last: int, left: int | None) -> list[tuple[Move, int, int | None]]:
        moves = []
        for move in world.moves(state):
            after, rest = last, left
            if move.actor >= 0:
                after = move.actor
                if left is not None and last not in (-1, after) and not _yields(state, last):
                    if left == 0 or last in world.steady:
                        continue
                    if only_log and not _is_shared(state, last):
                        continue
                    rest = left - 1
            moves.append((move, after, rest))
        return moves

    def enter(state: State, last: int, left: int | None) -> tuple[tuple[object, ...], bool]:
        key = state.key() if left is None else (*state.key(), last, left)
        if key in counts:
            return key, False
        counts[key] = 0
        found.states += 1
        ended = state.have_ended
        if all(ended) or (crashes and sum(ended) == len(ended) - 1):
            ends.add(state.key())
            on_end(state)
            if all(ended) and not state.late:
                counts[key] = 1
        return key, True

    start = world.start()
    try:
        key, _ = enter(start, -1, preemptions)
        stack = [(key, start, iter(moves_from(start, -1, preemptions)))]
        while stack:
            key, state, moves = stack[-1]
            step = next(moves, None)
            if step is None or not found.is_whole:
                stack.pop()
                if path:
                    path.pop()
                if stack:
                    counts[stack[-1][0]] += counts[key]
                continue
            move, last, left = step
            path.append(move)
            found.steps += 1
            reached = on_step(state, world.after(state, move))
            below, is_new = enter(reached, last, left)
            if is_new:
                stack.append((below, reached, iter(moves_from(reached, last, left))))
            else:
                counts[key] += counts[below]
                path.pop()
            if (most_states and found.states >= most_states) or is_late():
                found.is_whole = False
        found.schedules = counts[key]
    except Wrong as wrong:
        found.wrong, found.schedule = str(wrong), words_of(path, world.programs)
    found.ends = len(ends)
    return found


def _is_shared(state: State, actor: int) -> bool:
    """Whether the next call of an actor is on what others write too."""
    call = state.nodes[actor].call
    return call is not None and call[0] != "temp" and bool(_SHARED.match(str(call[1])))


_SHARED = re.compile(r"(/\w+/)?(commit_log|consumers)|/disk|$")


def _yields(state: State, actor: int) -> bool:
    """Whether an actor has ended or sleeps, so that another goes on in any case."""
    call = state.nodes[actor].call
    return call is None or call[0] == "sleep"


def walk(
    world: World,
    on_step: Callable[[State, State], State],
    on_end: Callable[[State], None],
    chance: random.Random,
    *,
    crash: float = 0.0,
    switch: float = 0.2,
    fault: float = 0.02,
) -> tuple[str, str | None]:
    """Run one random schedule; return it, and what is wrong."""
    state, path, last = world.start(), [], -1
    crashed: set[int] = set()
    dies = chance.randrange(len(state.nodes)) if chance.random() < crash else -1
    dies_at = chance.randrange(1, 60)
    steps: Counter[int] = Counter()
    try:
        while True:
            moves = [move for move in world.moves(state) if move.actor not in crashed]
            plain = [move for move in moves if move.actor >= 0 and not move.how]
            if not plain:
                break
            events = [move for move in moves if move.actor < 0 or move.how]
            if events and chance.random() < fault:
                move = chance.choice(events)
            else:
                same = [move for move in plain if move.actor == last]
                stays = same and (chance.random() > switch or not _is_shared(state, last))
                move = same[0] if stays else chance.choice(plain)
                last = move.actor
            path.append(move)
            state = on_step(state, world.after(state, move))
            steps[move.actor] += 1
            if move.actor == dies and steps[dies] >= dies_at:
                crashed.add(dies)
        on_end(state)
    except Wrong as wrong:
        return words_of(path, world.programs), str(wrong)
    return words_of(path, world.programs), None
