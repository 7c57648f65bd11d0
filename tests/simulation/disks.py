"""Scenarios of local directories: disks that vanish, and shuffles that share them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.kinds import KINDS, SECRET, scenario
from tests.simulation.layouts import ON_DISK

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage

COPY = "/copy"
"""Where a copy of the shuffle is."""


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
