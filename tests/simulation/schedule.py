"""Schedules as words: printed where one goes wrong, and carried out again.

``A*3`` is three calls of the actor A, ``A$`` all until it ends, ``A@entry`` all before the next
call of that one of :data:`POINTS` and ``A@entry#2`` before the second such call; ``A!lost`` a call
of A with a fault, ``land/0`` a late put that lands, and ``pause`` the clock that moves.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.simulation.explorer import State, World
    from tests.simulation.files import Call
    from tests.simulation.programs import Program


class Move(NamedTuple):
    """One step of a schedule."""

    actor: int
    """The actor that goes on; -1 for an event of the storage."""
    how: str = ""
    """A fault of its call, or ``jump`` of its clock; of the storage ``pause``, or ``land`` of a
    late put."""
    which: int = 0
    """Which late put lands, which jump it is, or how many contents back a stale listing is."""


def words_of(moves: Sequence[Move], programs: Sequence[Program]) -> str:
    """Print a schedule; :func:`run_words` reads it."""
    words = []
    for move, same in groupby(moves):
        count = len(list(same))
        name = "" if move.actor < 0 else programs[move.actor].name
        if not move.how:
            words.append(f"{name}*{count}")
        elif move.actor < 0:
            words += [f"{move.how}/{move.which}" if move.which else move.how] * count
        else:
            words += [f"{name}!{move.how}" + (f"/{move.which}" if move.which else "")] * count
    return " ".join(words)


_WORD = re.compile(
    r"(?P<event>pause|land)(?:/(?P<event_which>\d+))?"
    r"|(?P<name>[\w-]+)(?:\*(?P<count>\d+)|(?P<end>\$)|@(?P<point>[\w-]+)(?:#(?P<nth>\d+))?"
    r"|!(?P<fault>[a-z-]+)(?:/(?P<which>\d+))?)"
)

_NUMBER = r"commit_log/\d+/\d+"

POINTS: dict[str, re.Pattern[str]] = {
    "entry": re.compile(r"(temp|put) commit_log/\d+/(\.tmp-)?\d+\.entry\S*"),
    "entry-link": re.compile(rf"(link|put) {_NUMBER}\.entry"),
    "range": re.compile(rf"(link|put) {_NUMBER}\.range"),
    "expired": re.compile(r"(link|put) commit_log/expired/\d+"),
    "list-log": re.compile(r"list commit_log"),
    "read-entry": re.compile(rf"read {_NUMBER}\.entry"),
    "read-expired": re.compile(r"read commit_log/expired/\d+"),
    "delete-log": re.compile(r"delete(_all)? \S*commit_log/.*"),
    "delete-output": re.compile(r"delete(_all)? .*\.shuffle\..*"),
    "record": re.compile(r"(link|put) consumers/[^/]+/\d+\.json"),
    "list-consumer": re.compile(r"list consumers/\S+"),
    "holds": re.compile(r"list consumers"),
    "collects": re.compile(r"list "),
    "blank": re.compile(rf"upload {_NUMBER}\.entry"),
    "jobs": re.compile(r"(list|files) map_outputs"),
    "job": re.compile(r"(mkdir|put|upload) map_outputs/.*"),
    "read-index": re.compile(r"read map_outputs/.*\.index"),
    "root": re.compile(r"mkdir /disk/arrow-shuffle-\S+"),
    "marker-link": re.compile(r"link /disk/\S*/arrow-shuffle-root\.json"),
    "read-marker": re.compile(r"read /disk/\S*/arrow-shuffle-root\.json"),
    "sleep": re.compile(r"sleep.*"),
    "removes": re.compile(r"delete(_all)? .*"),
}
"""Moments of an actor before a call, by what they are for. A schedule that names them survives a
change of the number of calls."""


def run_words(schedule: str, world: World, on_step: Callable[[State, State], State]) -> State:
    """Carry out a schedule; return the state after it."""
    state = world.start()
    names = [program.name for program in world.programs]
    for word in schedule.split():
        match = _WORD.fullmatch(word)
        if match is None or (match["name"] and match["name"] not in names):
            raise ValueError(f"{word!r}: no word of a schedule of {', '.join(names)}")
        if match["event"]:
            moves: Iterator[Move] = iter([Move(-1, match["event"], int(match["event_which"] or 0))])
        else:
            moves = _moves_of_actor(names.index(match["name"]), match)
        point = match["point"] and POINTS[match["point"]]
        skips = int(match["nth"] or 1) - 1 if point else 0
        for move in moves:
            call = state.nodes[move.actor].call if move.actor >= 0 else ()
            if call is None:
                if point:
                    raise ValueError(f"{word}: the actor ended before that")
                if match["end"]:
                    break
                raise ValueError(f"{word}: the actor has ended")
            if point and point.fullmatch(_described(call)):
                if not skips:
                    break
                skips -= 1
            state = on_step(state, world.after(state, move))
    return state


def _described(call: Call) -> str:
    return " ".join(map(str, call[:2]))


def _moves_of_actor(actor: int, match: re.Match[str]) -> Iterator[Move]:
    if match["fault"]:
        yield Move(actor, match["fault"], int(match["which"] or 0))
        return
    count = int(match["count"]) if match["count"] else 100_000
    for _ in range(count):
        yield Move(actor)
