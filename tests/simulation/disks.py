"""Scenarios of local directories: disks that vanish, and shuffles that share them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation import actors
from tests.simulation.kinds import KINDS, SECRET, scenario
from tests.simulation.layouts import COPY, DISK, ON_DISK, ORIGINAL
from tests.simulation.storage import copy_shuffle, move_shuffle
from tests.simulation.traces import files_with

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


def _on_disk(stage: Stage) -> None:
    stage.layout = ON_DISK
    stage.rows(1, SECRET, 3, 4)


def _erasure(other: str, stage: Stage) -> dict[str, Act]:
    _on_disk(stage)
    return {
        "E": actors.delete("erase", [SECRET], erases=True, layout=ON_DISK),
        "O": KINDS[other](stage, 1),
    }


for _other in ("append", "write", "rollback", "merge", "gc", "read"):
    scenario(f"erasure on a disk and {_other}", storages=(False,))(partial(_erasure, _other))


def _vanishing(stage: Stage) -> dict[str, Act]:
    """What cannot be seen is not taken for removed, whoever collects meanwhile."""
    stage.rows(1)
    stage.run(actors.write("prepared-on-disk", [SECRET], layout=ON_DISK))
    stage.rows(3)
    assert [*files_with(stage.files, [SECRET], DISK)], "the deleted row is not on the disk"
    # Nobody writes meanwhile: what is written below a mount point is lost.
    asks = actors.ask(stage.deletion([SECRET]), [SECRET])
    return {
        "G": actors.in_turn(actors.collect(), asks, actors.collect(), asks),
        "U": actors.in_turn(actors.unmount(DISK), actors.mount(DISK)),
    }


_VANISHES: dict[str, Any] = {"storages": (False,), "unmounts": True}
scenario("a disk that vanishes and comes back", **_VANISHES)(_vanishing)
scenario("a disk that comes back", prelude="U*1", **_VANISHES)(_vanishing)


def copied(stage: Stage) -> None:
    """Prepare a copy, which names the local directories of the original."""
    _on_disk(stage)
    stage.run(lambda storage: copy_shuffle(storage, COPY))


def _with_copy(other: str, stage: Stage) -> dict[str, Act]:
    """A copy is overwritten and collected."""
    copied(stage)
    over = actors.write("elsewhere", [21], "overwrite")
    return {
        "C": actors.at(COPY, actors.in_turn(over, actors.collect(), actors.collect())),
        "O": KINDS[other](stage, 1),
    }


_COPIED: dict[str, Any] = {"storages": (False,), "another": COPY}
for _other in ("append", "rollback", "gc", "read"):
    scenario(f"copy that is collected and {_other}", **_COPIED)(partial(_with_copy, _other))


def _with_told_copy(other: str, stage: Stage) -> dict[str, Act]:
    """A copy is told so, and writes to the local directory of both before it is collected."""
    copied(stage)
    acts = (
        actors.relocate("copied"),
        actors.write("elsewhere", [21], layout=ON_DISK),
        actors.merge("merged elsewhere", "subpartition", layout=ON_DISK),
        actors.collect(),
    )
    erases = actors.delete("erase", [SECRET], erases=True, layout=ON_DISK)
    return {
        "C": actors.at(COPY, actors.in_turn(*acts)),
        "O": erases if other == "erasure" else KINDS[other](stage, 1),
    }


for _other in ("write", "erasure", "gc"):
    scenario(f"copy that is told and {_other}", **_COPIED)(partial(_with_told_copy, _other))


@scenario("copy that erases", storages=(False,), another=ORIGINAL, became="copied")
def _(stage: Stage) -> dict[str, Act]:
    """Its receipt names files of the original, which goes on, and keeps all of its rows."""
    stage.where = ORIGINAL
    _on_disk(stage)
    stage.moves_here(copy_shuffle)
    return {
        "C": actors.in_turn(
            actors.relocate("copied"),
            actors.delete("erase", [SECRET], erases=True, layout=ON_DISK),
            actors.merge("merge", "subpartition", layout=ON_DISK),
            actors.collect(),
        ),
        "O": actors.at(
            ORIGINAL,
            actors.in_turn(actors.write("elsewhere", [21], layout=ON_DISK), actors.collect()),
        ),
    }


def moved(stage: Stage) -> None:
    """Prepare a shuffle that is not where it was when it was written."""
    stage.where = ORIGINAL
    _on_disk(stage)
    stage.moves_here(move_shuffle)


def _moved(other: str, stage: Stage) -> dict[str, Act]:
    """It is said that the shuffle was moved, beside another, and once more where that dies."""
    moved(stage)
    erases = actors.delete("erase", [SECRET], erases=True, layout=ON_DISK)
    tells = actors.relocate("moved")
    if other == "told twice":  # nothing else may use it meanwhile, so nothing is removed
        return {"M": tells, "O": tells}
    return {"M": actors.in_turn(tells, erases), "O": KINDS[other](stage, 1)}


_MOVED: dict[str, Any] = {"storages": (False,), "became": "moved"}
for _other in ("write", "merge", "gc", "read", "told twice"):
    scenario(f"shuffle that was moved and {_other}", **_MOVED)(partial(_moved, _other))


@scenario("shuffle that was moved while a disk was away", unmounts=True, **_MOVED)
def _(stage: Stage) -> dict[str, Act]:
    moved(stage)
    asks = actors.ask(stage.deletion([SECRET]), [SECRET])
    return {
        "M": actors.in_turn(*[actors.relocate("moved"), actors.collect(), asks] * 2),
        "U": actors.in_turn(actors.unmount(DISK), actors.mount(DISK)),
    }


@scenario("original that comes back", another=COPY, **_MOVED)
def _(stage: Stage) -> dict[str, Act]:
    """Its files were taken over by what was restored in its place; it is the copy now."""
    stage.where = ORIGINAL
    _on_disk(stage)
    stage.run(lambda storage: copy_shuffle(storage, COPY))
    stage.moves_here(move_shuffle)
    stage.run(actors.relocate("moved"))
    over = actors.write("elsewhere", [21], "overwrite", layout=ON_DISK)
    return {
        "C": actors.at(
            COPY,
            actors.in_turn(
                actors.relocate("moved"), actors.relocate("copied"), over, actors.collect()
            ),
        ),
        "E": actors.delete("erase", [SECRET], erases=True, layout=ON_DISK),
    }
