"""Scenarios of rows that are deleted for good: what brings them back, and what still has them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.kinds import KINDS, SECRET, scenario

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


def _erasure(other: str, stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET)
    return {"E": actors.delete("erase", [SECRET], erases=True), "O": KINDS[other](stage, 1)}


for _other in ("append", "overwrite", "rollback", "tag", "merge", "delete", "gc", "read"):
    scenario(f"erasure and {_other}")(partial(_erasure, _other))
