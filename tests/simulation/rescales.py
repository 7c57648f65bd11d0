"""Scenarios of a shuffle that gets another number of subpartitions beside whatever others do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.cases import make_pending
from tests.simulation.kinds import INTERRUPTS, LOST, SECRET, scenario
from tests.simulation.layouts import NARROW, UNIQUE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.layouts import Layout
    from tests.simulation.stage import Act, Stage

_HASHED = replace(NARROW, num_subpartitions=2)

_OTHERS: dict[str, Callable[[Stage], Act]] = {
    # Its files have the number that it began with.
    "append": lambda stage: actors.commit("append-2", stage.job([12])),
    "overwrite": lambda stage: actors.commit("overwrite-2", stage.job([22], "overwrite")),
    "write": lambda stage: actors.write("write-2", [32], layout=stage.layout),
    "merge": lambda stage: actors.merge("merge-2", layout=stage.layout),
    "rewriting merge": lambda stage: actors.merge("merge-2", "subpartition", layout=stage.layout),
    "rescale": lambda _: actors.rescale("rescale-2", 3),
    "mask": lambda stage: actors.delete("mask-2", [SECRET], masks=True, layout=stage.layout),
    "delete": lambda stage: actors.delete("delete-2", [SECRET], layout=stage.layout),
    "rollback": lambda stage: actors.rollback("rollback-2", stage.before_newest),
    "gc": lambda _: actors.collect(),
    "read": lambda _: actors.in_turn(actors.read(), actors.read()),
    "changes": lambda _: actors.read_changes(1),
}


def _grows(layout: Layout) -> Act:
    """Another number, and a merge by which the version gets it."""
    return actors.in_turn(
        actors.rescale("rescale-1", 6), actors.merge("merge-1", "map_output", layout=layout)
    )


def _beside(other: str, stage: Stage) -> dict[str, Act]:
    stage.layout = _HASHED
    stage.rows(1, SECRET)
    return {"A": _grows(_HASHED), "B": _OTHERS[other](stage)}


for _name in _OTHERS:
    scenario(f"rescale and merge+{_name}", preemptions=2)(partial(_beside, _name))
    if _name in ("append", "merge", "mask"):
        _how = {"faults": 1, "kinds": LOST | INTERRUPTS, "preemptions": 1}
        scenario(f"rescale and merge+{_name}, a fault", **_how)(partial(_beside, _name))


def _begun(other: str, stage: Stage) -> dict[str, Act]:
    """A job that began before the rescale, beside what follows it."""
    stage.layout = _HASHED
    stage.rows(1, SECRET)
    job = stage.job([12])
    stage.run(actors.rescale("rescale", 3))
    return {"A": actors.commit("append-1", job), "B": _OTHERS[other](stage)}


for _name in ("merge", "rewriting merge", "mask", "delete", "rescale", "write"):
    scenario(f"a job of another number+{_name}")(partial(_begun, _name))


def _upsert_of_two(stage: Stage) -> dict[str, Act]:
    """An upsert of a key that is there, and of a new one."""
    stage.layout = UNIQUE
    stage.rows(100, 111)
    return {"A": actors.write("upsert-1", [101, 121], mode="upsert", layout=UNIQUE)}


@scenario("an upsert, and a rescale with its merge", preemptions=2)
def _(stage: Stage) -> dict[str, Act]:
    return {
        **_upsert_of_two(stage),
        "B": _grows(UNIQUE),
    }


@scenario("two upserts of a new key, and a rescale", preemptions=2)
def _(stage: Stage) -> dict[str, Act]:
    return {
        **_upsert_of_two(stage),
        "B": actors.write("upsert-2", [122], mode="upsert", layout=UNIQUE),
        "C": actors.rescale("rescale-1", 3),
    }


@scenario("what is pending, a flush, and a rescale", pending=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    job = stage.job([3])
    return {
        "P": actors.commit("pending-3", job, pending=True),
        "F": actors.flush("flush", [2]),
        "A": actors.rescale("rescale-1", 2),
    }
