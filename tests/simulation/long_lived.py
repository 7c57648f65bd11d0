"""Scenarios of what long-lived tables need: tags, rollback, deletion of rows, repair."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation import actors
from tests.simulation.kinds import SECRET, scenario

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


@scenario("tagged version and gc", kept={"keep": 1})
def _(stage: Stage) -> dict[str, Act]:
    """A version is read by its number and its tag, while it expires."""
    _tagged(stage)
    return {"R": actors.in_turn(actors.read("keep"), actors.read(1)), "G": actors.collect()}


def _tagged(stage: Stage) -> None:
    stage.rows(1, 2)
    stage.run(actors.tag("keep", 1))


@scenario("tag is removed under a reader")
def _(stage: Stage) -> dict[str, Act]:
    _tagged(stage)
    stage.run(actors.collect())
    return {
        "R": actors.read("keep"),
        "U": actors.in_turn(actors.untag("keep"), actors.collect()),
    }


@scenario("tag is set and removed under gc")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {
        "T": actors.tag("t", 1),
        "U": actors.in_turn(actors.untag("t"), actors.tag("t", 2)),
        "G": actors.collect(),
    }


def _newest_is_tagged(stage: Stage) -> dict[str, Act]:
    """A collection lets the newest version expire while a tag of it is being set."""
    stage.rows(1, 2)
    return {
        "T": actors.tag("t"),
        "G": actors.collect(),
        "O": actors.write("overwrite", [21], "overwrite"),
    }


_TAGGED: dict[str, Any] = {"steady": ("O",), "only_log": True}

scenario("tag of the newest version, which expires", **_TAGGED)(_newest_is_tagged)
scenario(
    "tag of the newest version, which expires, a stale listing",
    **_TAGGED,
    prelude="T@entry G@entry",
    faults=1,
    kinds=frozenset({"stale"}),
    faulty=("G",),
    crashes=False,
    fresh=False,
)(_newest_is_tagged)


@scenario("one tag twice")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"T": actors.tag("t", 1), "U": actors.tag("t", 2), "R": actors.read("t")}


@scenario("rollback to a tag and gc", kept={"keep": 1}, must_succeed=frozenset({"rollback"}))
def _(stage: Stage) -> dict[str, Act]:
    """What a rollback needs is kept, whether its version expires before or after it begins."""
    _tagged(stage)
    return {"B": actors.rollback("rollback", 1), "G": actors.collect()}


@scenario("rollback to a tag that is removed")
def _(stage: Stage) -> dict[str, Act]:
    _tagged(stage)
    stage.run(actors.collect())
    return {
        "B": actors.rollback("rollback", 1),
        "U": actors.in_turn(actors.untag("keep"), actors.collect()),
    }


@scenario("rollback and release by name", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"B": actors.rollback("rollback", 1), "D": actors.release()}


@scenario("rollback and pending commit", pending=True, must_succeed=frozenset({"pending"}))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    job = stage.job([3])
    return {
        "B": actors.rollback("rollback", 1),
        "P": actors.commit("pending", job, pending=True),
    }


@scenario("deletion, append and gc")
def _(stage: Stage) -> dict[str, Act]:
    """Rows with the deleted value are appended meanwhile."""
    stage.rows(1, SECRET)
    return {
        "D": actors.delete("delete", [SECRET]),
        "A": actors.write("append", [SECRET]),
        "G": actors.collect(),
    }


@scenario("deletion and consumer", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET, result_type="PIPELINED")
    return {"D": actors.delete("delete", [SECRET]), "K": actors.consumes("k", "K", turns=2)}


@scenario("deletion and release by name", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET)
    return {"D": actors.delete("delete", [SECRET]), "E": actors.release()}


def _damage(how: str, other: str, stage: Stage) -> dict[str, Act]:
    """The third entry is damaged or lost at some moment of a repair and of another actor."""
    stage.rows(1, 2, 3)
    act = actors.read() if other == "reader" else actors.commit("append", stage.job([11]))
    return {
        "V": actors.damage(3, b"{" if how == "damaged" else None),
        "X": actors.repair(),
        "A": act,
    }


for _how in ("damaged", "lost"):
    for _other in ("reader", "writer"):
        scenario(f"{_how} entry, repair and {_other}", damaged=3)(partial(_damage, _how, _other))


def six_on_a_table(stage: Stage) -> dict[str, Act]:
    """Return writers of every kind, a tag, collections and readers."""
    stage.rows(1, SECRET, 3)
    return {
        "A": actors.write("append", [11]),
        "B": actors.in_turn(actors.rollback("rollback", 2), actors.merge("merge")),
        "D": actors.delete("delete", [SECRET]),
        "T": actors.in_turn(actors.tag("t", 2), actors.untag("t"), actors.tag("u")),
        "G": actors.in_turn(actors.collect(24), *[actors.collect()] * 3),
        "R": actors.in_turn(actors.read(), actors.read("t")),
    }
