"""What is tried on each change, what by turns, and what every night.

On each change, a part of what is exhaustive is tried: the same part each time, in which each value
of each parameter occurs. A night tries all of it (``NIGHTLY=1``, ``make nightly``). A test says
how, by one of these:

- ``@exhaustive("codec", "threads")`` keeps of its cases the fewest that have each value of these
  parameters, those of fixtures too; without names of all, with ``but="store"`` of all others;
- :func:`part` of what it loops over, :func:`every` of what it counts until there is no more,
  :func:`times` of what it repeats, :func:`examples` of what hypothesis makes;
- ``@nightly`` where a test without this mark has one case of the same behaviour.

Of that, ``TURN`` leaves one case in four, of scenarios of the simulation and of tests through Spark
one in eight (:data:`TURNS`).
``make`` takes the turn from the commit, so that it is always tested in the same way, and commits
that follow each other in all. Each unit test keeps a case, and each in :data:`DEAR` that proves a
guarantee. A module marked ``together``, whose tests look at what one long program did, has them all
at one turn. Without ``TURN``, as where tests are chosen, all are run.
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from itertools import count, repeat
from typing import TYPE_CHECKING, TypeVar

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Case = TypeVar("Case")

IS_NIGHT = os.environ.get("NIGHTLY", "") not in ("", "0")
"""Whether all of it is tried."""

IS_TURN = bool(os.environ.get("TURN"))
"""Whether cases are left out until the turn of another commit."""

DEAR = ("tests/conformance/", "tests/property/", "tests/simulation/")
"""Directories of tests of which some are left out at a turn: histories and interleavings."""

TURNS = {
    **dict.fromkeys(("tests/unit/", *DEAR, "tests/compat/test_damaged_kit.py"), 4),
    **dict.fromkeys(("tests/simulation/", "integration/"), 8),
}
"""After how many turns all cases of a directory have been run. Golden files take none, but for
their random damages."""

nightly = pytest.mark.nightly
"""Mark a test that only a night tries."""

_chosen = pytest.StashKey[bool]()


def exhaustive(*parameters: str, but: str = "", least: int = 1) -> pytest.MarkDecorator:
    """Mark a test of many cases, of which a change tries a part.

    Parameters
    ----------
    parameters
        Names of the parameters of which each value occurs in that part; none: all.
    but
        Those whose values need not occur, as in ``"store, codec"``: tests differ in what they get.
    least
        How many cases the part has at least.
    """
    return pytest.mark.exhaustive(parameters, but, least)


def part(cases: Sequence[Case], most: int) -> Sequence[Case]:
    """Return at most so many of some cases, spread from the first to the last; at night all."""
    if IS_NIGHT or len(cases) <= most:
        return cases
    return [cases[number * (len(cases) - 1) // max(most - 1, 1)] for number in range(most)]


def every(nth: int, start: int = 0) -> Iterator[int]:
    """Count without end, by so many from the start; at night all from 0."""
    return count() if IS_NIGHT else count(start, nth)


def times(on_change: int, at_night: int) -> int:
    """Return how often something is tried now."""
    return at_night if IS_NIGHT else on_change


def examples(on_change: int, at_night: int) -> int:
    """Return how many examples hypothesis makes now; at a turn three in five of those of a change.

    They are the same at each turn, so that many more than reach each branch find nothing new:
    ``make explore`` looks for others.
    """
    return times(-(-3 * on_change // 5) if IS_TURN else on_change, at_night)


def covering(
    cases: Sequence[dict[str, str]],
    parameters: Sequence[str] = (),
    but: str = "",
    least: int = 1,
    *,
    start: int = 0,
) -> list[int]:
    """Choose few cases in which each value of some parameters occurs.

    Parameters
    ----------
    cases
        Value by parameter.
    parameters, but
        Those whose values must occur, none: all; and those of them whose values need not.
    least
        How many are chosen at least, where there are as many.
    start
        Where to begin: with another, other cases are taken of those that would do.

    Returns
    -------
    list
        Positions in ``cases``, ascending. Of several that would do, those are taken that have new
        values of other parameters too, and that are spread.
    """
    left = sorted(range(len(cases)), key=lambda one: _halving((one + start) % len(cases)))
    names = {*(parameters or {name for case in cases for name in case})} - {*but.split(", ")}
    needed = {pair for case in cases for pair in case.items() if pair[0] in names}
    unseen = {pair for case in cases for pair in case.items()}
    chosen: list[int] = []
    while left and (needed & unseen or len(chosen) < least):
        best = max(
            left,
            key=lambda one: (
                len(needed & unseen & cases[one].items()),
                len(unseen & cases[one].items()),
            ),
        )
        left.remove(best)
        chosen.append(best)
        unseen -= cases[best].items()
    return sorted(chosen)


def _halving(number: int) -> int:
    """Reverse the bits, so that numbers in order of it are spread, however many are taken."""
    return int(f"{number:032b}"[::-1], 2)


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what only a night tries; once, however many directories ask for it."""
    if IS_NIGHT or config.stash.get(_chosen, False):
        return
    config.stash[_chosen] = True
    left_out = {item for item in items if item.get_closest_marker("nightly")}
    several: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("exhaustive"):
            several[item.nodeid.partition("[")[0]].append(item)
    for name, cases in several.items():
        mark = cases[0].get_closest_marker("exhaustive")
        assert mark is not None
        start = zlib.crc32(name.encode())
        chosen = covering([_values(item) for item in cases], *mark.args, start=start)
        left_out |= {*cases} - {cases[number] for number in chosen}
    turn = turn_of(os.environ.get("TURN", ""))
    if turn is not None:
        left_out |= _of_other_turns([item for item in items if item not in left_out], turn)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def turn_of(text: str) -> int | None:
    """Return the turn that ``TURN`` has: a number, or a commit, in hexadecimal; None for all."""
    return int(text, 16) % max(TURNS.values()) if text else None


def _of_other_turns(items: Sequence[pytest.Item], turn: int) -> set[pytest.Item]:
    by_file: dict[str, list[pytest.Item]] = defaultdict(list)
    by_test: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        file, _, rest = item.nodeid.partition("::")
        by_file[file].append(item)
        by_test[f"{file}::{rest.partition('[')[0]}"].append(item)
    left_out = set()
    for file, cases in by_file.items():
        turns = next((TURNS[name] for name in TURNS if file.startswith(name)), 1)
        # Files of few tests do not all begin at the same turn.
        first = zlib.crc32(file.encode())
        are_together = cases[0].get_closest_marker("together") is not None
        numbers = repeat(first) if are_together else count(first)
        left_out |= {item for i, item in zip(numbers, cases, strict=False) if (i - turn) % turns}
    for name, cases in by_test.items():
        proves = cases[0].get_closest_marker("guarantee") is not None
        keeps_one = name.startswith("tests/unit/") or (proves and name.startswith(DEAR))
        if keeps_one and left_out.issuperset(cases):
            left_out.remove(cases[turn % len(cases)])
    return left_out


def _values(item: pytest.Item) -> dict[str, str]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else {name: repr(v) for name, v in callspec.params.items()}
