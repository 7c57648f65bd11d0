"""Scenarios of rows that replace each other: upserts beside all that may change the same rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.kinds import INTERRUPTS, LOST, scenario
from tests.simulation.layouts import SEQUENCED, UNIQUE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tests.simulation.stage import Act, Stage

_OLD, _NEW = range(100, 110), range(120, 130)
"""Rows of one key each, of which the shuffle has the first of the old ones."""

_upsert = partial(actors.write, mode="upsert", layout=UNIQUE)

_OTHERS: dict[str, Callable[[Stage], Act]] = {
    "upsert": lambda _: _upsert("upsert-2", [_OLD[3], _NEW[3]]),
    "insert": lambda _: actors.write("insert-2", [_NEW[3]], layout=UNIQUE),
    "merge": lambda _: actors.merge("merge-2", layout=UNIQUE),
    "rewriting merge": lambda _: actors.merge("merge-2", "subpartition", layout=UNIQUE),
    "mask": lambda _: actors.delete("mask-2", _OLD, masks=True, layout=UNIQUE),
    "delete": lambda _: actors.delete("delete-2", _OLD, layout=UNIQUE),
    "rollback": lambda stage: actors.rollback("rollback-2", stage.before_newest),
    "tag": lambda stage: actors.tag("tag", stage.before_newest),
    "gc": lambda _: actors.collect(),
    "read": lambda _: actors.in_turn(actors.read(), actors.read()),
}


def _beside(other: str, stage: Stage) -> dict[str, Act]:
    stage.layout = UNIQUE
    stage.rows(_OLD[0], 111)
    return {"A": _upsert("upsert-1", [_OLD[1], _NEW[1]]), "B": _OTHERS[other](stage)}


def _with_each(
    name: str,
    others: Iterable[str],
    beside: Callable[[str, Stage], dict[str, Act]],
    with_a_fault: Collection[str],
) -> None:
    """Make a scenario of an upsert beside each of some others, and with a fault beside a few."""
    for other in others:
        sure = frozenset() if other in ("rollback", "gc") else frozenset({"upsert-1"})
        scenario(f"{name}+{other}, of rows that are there", must_succeed=sure)(
            partial(beside, other)
        )
        if other in with_a_fault:
            scenario(f"{name}+{other}, a fault", faults=1, kinds=LOST | INTERRUPTS, preemptions=1)(
                partial(beside, other)
            )


_with_each("upsert", _OTHERS, _beside, ("upsert", "insert", "merge", "mask"))


@scenario("three upserts of a new key", preemptions=2)
def _(stage: Stage) -> dict[str, Act]:
    """Each searches what the others brought: one row of the key stays."""
    stage.layout = UNIQUE
    stage.rows(111)
    return {name: _upsert(f"upsert-{name}", [_NEW[i]]) for i, name in enumerate("ABC")}


_upsert_newest = partial(actors.write, mode="upsert", layout=SEQUENCED)

_LATE: dict[str, Callable[[Stage], Act]] = {
    "newer": lambda _: _upsert_newest("upsert-2", [_OLD[5], _NEW[5]]),
    "older": lambda _: _upsert_newest("upsert-2", [_OLD[1], _NEW[1]]),
    "insert": lambda _: actors.write("insert-2", [_NEW[5]], layout=SEQUENCED),
    "merge": lambda _: actors.merge("merge-2", layout=SEQUENCED),
    "rewriting merge": lambda _: actors.merge("merge-2", "subpartition", layout=SEQUENCED),
    "mask": lambda _: actors.delete("mask-2", _OLD, masks=True, layout=SEQUENCED),
    "delete": lambda _: actors.delete("delete-2", _OLD, layout=SEQUENCED),
    "rollback": lambda stage: actors.rollback("rollback-2", stage.before_newest),
}


def _beside_newest(other: str, stage: Stage) -> dict[str, Act]:
    """Several changes of a key, in any order, beside others of the same keys."""
    stage.layout = SEQUENCED
    stage.rows(_OLD[2], 111)
    changes = [_NEW[3], _OLD[3], _OLD[0], _NEW[2], 110]
    return {"A": _upsert_newest("upsert-1", changes), "B": _LATE[other](stage)}


_with_each("upsert by sequence", _LATE, _beside_newest, ("newer", "older"))

_feed = partial(_upsert_newest, row_kind="op")

_BURIED: dict[str, Callable[[Stage], Act]] = {
    "older": lambda _: _upsert_newest("upsert-2", [_OLD[3], _NEW[3]]),
    "deletions": lambda _: _feed("feed-2", [-_OLD[6], _NEW[2], -_NEW[1], 112]),
    "merge": lambda _: actors.merge("merge-2", layout=SEQUENCED),
    "rewriting merge": lambda _: actors.merge("merge-2", "subpartition", layout=SEQUENCED),
    "mask": lambda _: actors.delete("mask-2", _OLD, masks=True, layout=SEQUENCED),
    "erasure": lambda _: actors.delete(
        "delete-2", [*_OLD, *(-row for row in _OLD)], layout=SEQUENCED
    ),
    "rollback": lambda stage: actors.rollback("rollback-2", stage.before_newest),
    "gc": lambda _: actors.collect(),
}


def _beside_deletions(other: str, stage: Stage) -> dict[str, Act]:
    """Deletions in any order, where some were before, beside others of the same keys."""
    stage.layout = SEQUENCED
    stage.rows(_OLD[2], 111, 150, 160)  # of which a merge has something to do
    stage.run(_feed("feed-0", [-_OLD[4], 113]))
    stage.run(_feed("feed-1", [_OLD[3], -140]))
    changes = [_NEW[3], -_OLD[5], -_NEW[4], _NEW[2], 110]
    return {"A": _feed("upsert-1", changes), "B": _BURIED[other](stage)}


_with_each("deletions by sequence", _BURIED, _beside_deletions, ("older", "merge", "deletions"))
