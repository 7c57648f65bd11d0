"""Scenarios of readers that hold a version: what they hold stays, beside all that would remove it.

Actors see each other as processes of other machines do: a reader that was killed lives for an hour
for the others, and the collections of the end come later than that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.kinds import INTERRUPTS, KINDS, LOST, SECRET, SMALL, collections_of, scenario

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


def _beside(other: str, stage: Stage) -> dict[str, Act]:
    """A reader of the newest version, and who supersedes that and collects."""
    stage.rows(1, SECRET)
    return {
        "H": actors.holds(moves=True),
        "O": actors.in_turn(KINDS[other](stage, 1), actors.collect()),
    }


for _other in ("append", "overwrite", "merge", "rollback", "delete", "mask", "gc"):
    scenario(f"hold, {_other} and gc")(partial(_beside, _other))


@scenario("hold, overwrite and gc that has looked", prelude="G@holds G*1", only_log=True)
def _(stage: Stage) -> dict[str, Act]:
    """The held version is superseded once a collection has seen no hold."""
    stage.rows(1, 2)
    over = stage.job([21], "overwrite")
    return {
        "H": actors.holds(),
        "O": actors.commit("overwrite", over),
        "G": actors.collect(),
    }


@scenario("hold of an earlier version and gc")
def _(stage: Stage) -> dict[str, Act]:
    """A collection may be about to let the version expire, and have seen no hold."""
    stage.rows(1, 2, 3)
    return {"H": actors.holds(2), "G": actors.collect()}


@scenario("hold of an earlier version, overwrite and gc", only_log=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    over = stage.job([21], "overwrite")
    return {
        "H": actors.holds(1),
        "O": actors.commit("overwrite", over),
        "G": collections_of(2),
    }


@scenario("two holds and gc", only_log=True)
def _(stage: Stage) -> dict[str, Act]:
    """One reader moves on, the other stays."""
    stage.rows(1, 2)
    return {"H": actors.holds(1, moves=True), "I": actors.holds(), "G": actors.collect()}


@scenario("hold and erasure")
def _(stage: Stage) -> dict[str, Act]:
    """The rows are said to be gone only once no reader holds them."""
    stage.rows(1, SECRET, 3)
    return {
        "H": actors.holds(moves=True),
        "E": actors.delete("erase", [SECRET], erases=True),
    }


@scenario("hold, erasure and merge", only_log=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET, 3)
    return {
        "H": actors.holds(),
        "E": actors.delete("erase", [SECRET], erases=True),
        "M": actors.in_turn(actors.merge("merge"), actors.collect()),
    }


@scenario("hold and consumer", releases=True, only_log=True)
def _(stage: Stage) -> dict[str, Act]:
    """What a consumer has consumed and released stays for the reader."""
    stage.rows(1, 2, result_type="PIPELINED")
    return {
        "H": actors.holds(),
        "K": actors.in_turn(
            actors.consumes("k", "K"), actors.write("append", [3]), actors.consumes("k", "L")
        ),
        "G": actors.collect(),
    }


@scenario("hold and removal", **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    """Segments of the log are removed, up to what a held version is collected from."""
    stage.rows(1, 2, 3, 4)
    over = stage.job([21], "overwrite")
    return {
        "H": actors.holds(),
        "O": actors.in_turn(actors.commit("overwrite", over), collections_of(3)),
    }


@scenario("hold and collections that compact the log", **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, 3, 4)
    over = stage.job([21], "overwrite")
    compacts = actors.collect(compact_log=True)
    return {
        "H": actors.holds(3),
        "O": actors.in_turn(actors.commit("overwrite", over), compacts, compacts),
    }


@scenario("hold and gc, one fault", faults=1, kinds=LOST | INTERRUPTS, crashes=False, preemptions=1)
def _(stage: Stage) -> dict[str, Act]:
    """A record or an answer is lost: a reader holds its version, or says that it does not."""
    stage.rows(1, 2)
    return {"H": actors.holds(1), "G": actors.collect()}
