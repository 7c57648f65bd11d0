"""Scenarios of rows that are deleted for good: what brings them back, and what still has them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.kinds import INTERRUPTS, KINDS, LOST, SECRET, scenario
from tests.simulation.layouts import RANGES, WIDE, Layout

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


def _erasure(other: str, stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET)
    return {"E": actors.delete("erase", [SECRET], erases=True), "O": KINDS[other](stage, 1)}


for _other in ("append", "overwrite", "rollback", "tag", "merge", "delete", "mask", "gc", "read"):
    scenario(f"erasure and {_other}")(partial(_erasure, _other))


def _logged(layout: Layout, other: str, stage: Stage) -> dict[str, Act]:
    """The log has bounds of deleted rows: of files, of ranges, and of files that were merged."""
    stage.layout = layout
    stage.run(actors.write("prepared", [1, 6, SECRET, 7], layout=layout))
    stage.rows(3)
    if other == "merge":
        stage.run(actors.merge("prepared-merge", layout=layout))
        stage.rows(4)
    return {
        "E": actors.delete("erase", [SECRET], erases=True, layout=layout),
        "O": KINDS[other](stage, 1),
    }


for _what, _layout in (("statistics", WIDE), ("bounds of ranges", RANGES)):
    for _other in ("write", "merge", "gc"):
        scenario(f"erasure with {_what} and {_other}", logs_values=True)(
            partial(_logged, _layout, _other)
        )


@scenario("erasure with statistics and collections that compact the log", logs_values=True)
def _(stage: Stage) -> dict[str, Act]:
    """What the log still says of the deleted rows is removed at once, under a writer."""
    stage.layout = WIDE
    stage.rows(1, SECRET, 3)
    asks = actors.ask(stage.deletion([SECRET]), [SECRET])
    compacts = actors.collect(compact_log=True)
    return {
        "G": actors.in_turn(compacts, asks, compacts, asks),
        "A": actors.write("append", [4], layout=WIDE),
    }


@scenario(
    "erasure with statistics and segments that are compacted and removed",
    logs_values=True,
    sizes=(4, 2),
)
def _(stage: Stage) -> dict[str, Act]:
    """Entries that are blank stay for some minutes after the list of their segment is put."""
    stage.layout = WIDE
    stage.rows(1, SECRET, 3)
    asks = actors.ask(stage.deletion([SECRET]), [SECRET])
    compacts = actors.collect(compact_log=True)
    stage.run(compacts)
    stage.rows(4, 5)
    return {
        "G": actors.in_turn(compacts, asks, compacts, asks),
        "A": actors.write("append", [6], layout=WIDE),
    }


def _undone(stage: Stage, *between: Act) -> Act:
    """Return a deletion, a rollback to before it, a merge, and a collection."""
    return actors.in_turn(
        actors.delete("delete", [SECRET]),
        *between,
        actors.rollback("rollback", stage.before_newest),
        actors.merge("merge"),
        actors.collect(),
    )


@scenario("erasure, rollback and merge")
def _(stage: Stage) -> dict[str, Act]:
    """Deleted rows come back by a rollback, and a merge writes them into another file."""
    stage.rows(1, SECRET, 3)
    return {"E": _undone(stage), "A": actors.write("append", [11])}


@scenario("erasure, rollback and merge, collected meanwhile")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET, 3)
    return {"E": _undone(stage), "G": actors.in_turn(actors.collect(), actors.collect())}


@scenario("erasure, rollback to a tag and merge")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET, 3)
    stage.run(actors.tag("keep", stage.before_newest))
    return {
        "E": _undone(stage, actors.collect()),
        "U": actors.in_turn(actors.untag("keep"), actors.collect()),
    }


@scenario("erasure and rollback that undoes it")
def _(stage: Stage) -> dict[str, Act]:
    """The receipt of the deletion that is undone is never gone; that of the next one may be."""
    stage.rows(1, SECRET)
    before = stage.before_newest + 1
    stage.rows(3)
    return {
        "E": actors.delete("erase", [SECRET], erases=True),
        "U": actors.in_turn(
            actors.rollback("undo", before, undoes=True),
            actors.delete("again", [SECRET], erases=True),
        ),
    }


@scenario("erasure that is undone and collections that compact the log", logs_values=True)
def _(stage: Stage) -> dict[str, Act]:
    """What is remembered of the rollback outlives all that it was made of."""
    stage.layout = WIDE
    stage.rows(1, SECRET, 3)
    asks = actors.ask(stage.deletion([SECRET]), [SECRET])
    before = stage.before_newest
    compacts = actors.collect(compact_log=True)
    return {
        "U": actors.in_turn(
            actors.rollback("undo", before, undoes=True),
            actors.merge("merge", layout=WIDE),
        ),
        "G": actors.in_turn(compacts, asks, compacts, asks),
    }


def _beside_pending(mode: str, stage: Stage) -> dict[str, Act]:
    """Rows with the deleted value are committed while the deletion runs, and not published."""
    stage.rows(1, SECRET)
    job = stage.job([SECRET], mode)
    return {
        "D": actors.delete("delete", [SECRET]),
        "P": actors.commit("pending", job, pending=True),
    }


for _mode in ("append", "overwrite"):
    scenario(f"deletion and pending {_mode}", pending=True)(partial(_beside_pending, _mode))


@scenario("deletion, pending append and flush", pending=True)
def _(stage: Stage) -> dict[str, Act]:
    """What is pending is published before the deletion is committed, or after it."""
    return {**_beside_pending("append", stage), "F": actors.flush("flush", [SECRET])}


def _masked(stage: Stage, *acts: Act) -> dict[str, Act]:
    """A file of several rows, of which one is masked, and what else is done to it."""
    stage.run(actors.write("prepared-1", [1, SECRET, 3]))
    stage.rows(4)
    first = actors.delete("mask", [SECRET], masks=True)
    return {"M": first, **dict(zip("ABC", acts, strict=False))}


_MASKED = {
    "a merge": lambda: actors.merge("merge"),
    "a merge by subpartition": lambda: actors.merge("merge", "subpartition"),
    "a second mask": lambda: actors.delete("second", [3], masks=True),
    "an erasure": lambda: actors.delete("erase", [SECRET], erases=True),
    "a rollback": lambda: actors.rollback("undo", 2, undoes=True),
    "collections": lambda: actors.in_turn(actors.collect(), actors.collect(24)),
    "a mask that is undone": lambda: actors.in_turn(
        actors.rollback("undo", 2, undoes=True), actors.delete("again", [4], masks=True)
    ),
}
for _what, _make in _MASKED.items():
    scenario(f"a mask and {_what}")(lambda stage, make=_make: _masked(stage, make()))


@scenario("a mask, a merge, a second mask and a rollback")
def _(stage: Stage) -> dict[str, Act]:
    wanted = ("a merge", "a second mask", "a rollback")
    return _masked(stage, *(_MASKED[what]() for what in wanted))


@scenario("a mask, two faults", faults=2, kinds=LOST | INTERRUPTS)
def _(stage: Stage) -> dict[str, Act]:
    return _masked(stage)
