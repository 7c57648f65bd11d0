"""Scenarios of local directories: disks that vanish, and shuffles that share them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation import actors
from tests.simulation.kinds import KINDS, SECRET, scenario
from tests.simulation.layouts import COPY, DISK, ON_DISK
from tests.simulation.storage import copy_shuffle
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


def _with_copy(other: str, stage: Stage) -> dict[str, Act]:
    """A copy, which names the local directories of the original, is overwritten and collected."""
    _on_disk(stage)
    stage.run(lambda storage: copy_shuffle(storage, COPY))
    over = actors.write("elsewhere", [21], "overwrite")
    return {
        "C": actors.at(COPY, actors.in_turn(over, actors.collect(), actors.collect())),
        "O": KINDS[other](stage, 1),
    }


for _other in ("append", "rollback", "gc", "read"):
    scenario(f"copy that is collected and {_other}", storages=(False,))(partial(_with_copy, _other))
