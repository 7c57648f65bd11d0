"""Scenarios of shuffles that are removed for good, under writers, readers and consumers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation import actors
from tests.simulation.cases import before_removal, make_pending
from tests.simulation.kinds import INTERRUPTS, KINDS, LOST, SECRET, SMALL, scenario
from tests.simulation.layouts import ON_DISK

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage

_READS = ("read", "changes")


def _drops(name: str, **how: Any) -> Any:
    return scenario(name, drops=True, **how)


def _drop_and(kind: str, stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET)
    return {"A": KINDS[kind](stage, 1), "D": actors.drop()}


for _kind in KINDS:
    _drops(f"drop and {_kind}", storages=(False,))(partial(_drop_and, _kind))
    # In a store no writer learns that the log went after it looked.
    _steady = () if _kind in _READS else ("A",)
    _drops(f"drop and {_kind}", storages=(True,), steady=_steady)(partial(_drop_and, _kind))


def _on_disk(kind: str, stage: Stage) -> dict[str, Act]:
    stage.layout = ON_DISK
    stage.rows(1, SECRET, 3)
    return {"A": KINDS[kind](stage, 1), "D": actors.drop()}


for _kind in ("append", "write", "gc", "read"):
    _drops(f"drop on a disk and {_kind}", storages=(False,))(partial(_on_disk, _kind))


def _of_small_segments(kind: str, stage: Stage) -> dict[str, Act]:
    before_removal(stage, 1)
    return {"A": KINDS[kind](stage, 1), "D": actors.drop()}


for _kind in ("append", "read"):
    _drops(f"drop of small segments and {_kind}", storages=(False,), **SMALL)(
        partial(_of_small_segments, _kind)
    )


@_drops("drop and two first writers", storages=(False,))
def _(stage: Stage) -> dict[str, Act]:
    """Both began where nothing was, and the log is empty again when the later one commits."""
    jobs = [stage.job([row]) for row in (11, 12)]
    return {
        "A": actors.commit("append-1", jobs[0]),
        "B": actors.commit("append-2", jobs[1]),
        "D": actors.drop(),
    }


@_drops("two drops and append", storages=(False,))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    return {
        "A": actors.commit("append", stage.job([11])),
        "D": actors.drop(),
        "E": actors.drop(),
    }


@_drops("two drops and read")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"D": actors.drop(), "E": actors.drop(), "R": actors.read()}


@_drops("drop and consumer")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, result_type="PIPELINED")
    return {"C": actors.consumes("c", "C"), "D": actors.drop(force=True)}


@_drops("drop of what is pending and flush", storages=(False,))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    return {"F": actors.flush("flush", [2]), "D": actors.drop()}


def _alone(stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET)
    stage.run(actors.advance("c", 2, [1, SECRET]))
    return {"D": actors.in_turn(actors.drop(), actors.drop()), "R": actors.read()}


# Nor can anything be said of a put that comes after the end.
_FAULTS = (LOST | INTERRUPTS) - {"late", "interrupted-late"}
_drops("drop, two faults", faults=2, kinds=_FAULTS)(_alone)
_drops("drop, removed in part", storages=(True,), faults=2, kinds=frozenset({"partial"}))(_alone)
