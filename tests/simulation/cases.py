"""Scenarios that tell a story: writers, merges, releases, flushes, consumers and collections."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from arrow_format.model import Transaction
from tests.simulation import actors
from tests.simulation.kinds import (
    INTERRUPTS,
    KINDS,
    LOST,
    SECRET,
    SMALL,
    collections_of,
    scenario,
)

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


@scenario("stalled append and gc", must_succeed=frozenset({"overwrite-2"}))
def _(stage: Stage) -> dict[str, Act]:
    """The entry of an append expires before the writer looks whether it has won."""
    stage.rows(1)
    job = stage.job([11])
    over = stage.job([22], "overwrite")
    return {
        "A": actors.commit("append-1", job),
        "B": actors.in_turn(actors.commit("overwrite-2", over), actors.collect()),
    }


@scenario("late append and changes", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    """A writer is late, its number is committed, consumed and collected, and a reader looks."""
    stage.rows(1, 2, result_type="PIPELINED")
    stage.run(actors.consumes("c", "prepare"))
    job, more, last = stage.job([777]), stage.job([3]), stage.job([4])
    return {
        "W": actors.commit("late", job),
        "O": actors.in_turn(
            actors.commit("third", more),
            actors.commit("fourth", last),
            actors.advance("c", 3, [3, 777]),
            actors.collect(24),
        ),
        "R": actors.read_changes(2),
    }


@scenario("late merge and read", pauses=1)
def _(stage: Stage) -> dict[str, Act]:
    """A merge is late, and its number is free again when a reader with an old listing comes."""
    stage.rows(1, 2)
    jobs = [stage.job([row]) for row in (3, 4, 5)]
    return {
        "M": actors.merge("merge"),
        "O": actors.in_turn(
            *[actors.commit(f"append-{n}", job) for n, job in enumerate(jobs)], actors.collect(24)
        ),
        "R": actors.read(),
    }


@scenario("interrupted merge", storages=(True,), faults=2, kinds=INTERRUPTS)
def _(stage: Stage) -> dict[str, Act]:
    """A merge is interrupted, and again while it finds out whether its put has succeeded."""
    stage.rows(1, 2)
    return {"M": actors.merge("merge")}


def _append_alone(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    return {"A": actors.commit("append", stage.job([11]))}


scenario("interrupted append", faults=2, kinds=INTERRUPTS)(_append_alone)


scenario("append, one fault", faults=1, kinds=LOST)(_append_alone)
scenario("append, two faults", faults=2, kinds=LOST)(_append_alone)


@scenario("merge, two faults", faults=2, kinds=LOST)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"M": actors.merge("merge")}


def _merge_by_subpartition(other: str, stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, SECRET)
    return {"M": actors.merge("merge", "subpartition"), "O": KINDS[other](stage, 1)}


for _other in ("append", "overwrite", "rollback", "delete", "merge", "gc", "read", "changes"):
    scenario(f"merge by subpartition and {_other}")(partial(_merge_by_subpartition, _other))


@scenario("merge by subpartition, two faults", faults=2, kinds=LOST | INTERRUPTS)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"M": actors.merge("merge", "subpartition")}


@scenario("abort and commit of a job", must_succeed=frozenset())
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    job = stage.job([11])
    return {"A": actors.commit("append", job), "X": actors.abort("append", job)}


@scenario("one job in two processes")
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    job = stage.job([11])
    return {name: actors.commit("append", job, is_alone=False) for name in ("A", "B")}


@scenario("one transaction in two jobs", must_succeed=frozenset({"append"}))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    first, second = stage.job([11]), stage.job([11])
    once = Transaction("query", 1)
    return {
        "A": actors.commit("append", first, transaction=once),
        "B": actors.commit("append", second, transaction=once),
    }


@scenario("one deletion that is repeated", must_succeed=frozenset({"delete"}))
def _(stage: Stage) -> dict[str, Act]:
    """The row comes back before the repetition, which must not delete it."""
    stage.rows(1, SECRET)
    delete = actors.delete("delete", [SECRET], transaction=("app", 1))
    return {"D": delete, "E": actors.in_turn(actors.write("append", [SECRET]), delete)}


@scenario("two consumers", ephemeral=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, result_type="PIPELINED")
    return {"K": actors.consumes("k", "K"), "L": actors.consumes("l", "L")}


@scenario("consumer and append", ephemeral=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, result_type="PIPELINED")
    return {
        "K": actors.consumes("k", "K", turns=2),
        "A": actors.commit("append", stage.job([11])),
    }


@scenario("consumer is taken over", ephemeral=True)
def _(stage: Stage) -> dict[str, Act]:
    """The second process of a name takes it from the first, which seems to be dead."""
    stage.rows(1, result_type="PIPELINED")
    return {
        "K": actors.consumes("k", "K", timeout=90),
        "L": actors.consumes("k", "L", timeout=90),
    }


@scenario("name of a consumer at work", ephemeral=True, repeats=True, skews_ms={"L": 3_600_000})
def _(stage: Stage) -> dict[str, Act]:
    """A process whose clock is an hour ahead wants the name of a consumer that is at work."""
    stage.rows(1, result_type="PIPELINED")
    return {"K": actors.consumes("k", "K"), "L": actors.consumes("k", "L")}


@scenario("release and gc", releases=True, age_days=2)
def _(stage: Stage) -> dict[str, Act]:
    """A release is slow, while its consumers go on and a collection removes what they read."""
    stage.rows(1, result_type="PIPELINED")
    for consumer in "ab":
        stage.run(actors.consumes(consumer, consumer))
    stage.run(actors.collect(24))
    stage.rows(3, 4, 5)
    return {
        "G": actors.collect(24),
        "C": actors.in_turn(
            actors.advance("a", 3, [3]),
            actors.advance("b", 3, [3]),
            actors.advance("a", 5, [4, 5]),
            actors.advance("b", 4, [4]),
        ),
        "H": actors.collect(24),
    }


@scenario("consumer and gc", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, result_type="PIPELINED")
    return {"K": actors.consumes("k", "K"), "G": actors.collect()}


@scenario("release by name and append", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    return {"D": actors.release(), "A": actors.commit("append", stage.job([11]))}


@scenario("release by name and read", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"D": actors.release(), "R": actors.read()}


@scenario("release by name and merge", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"D": actors.release(), "M": actors.merge("merge")}


@scenario("two releases", releases=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {"D": actors.release(), "E": actors.release()}


def make_pending(stage: Stage, row: int) -> None:
    stage.run(actors.commit(f"pending-{row}", stage.job([row]), pending=True))


@scenario("two flushes", pending=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    return {"F": actors.flush("flush-1", [2]), "E": actors.flush("flush-2", [2])}


@scenario("flush and pending commit", pending=True, must_succeed=frozenset({"pending"}))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    job = stage.job([3])
    return {"F": actors.flush("flush", [2]), "P": actors.commit("pending", job, pending=True)}


@scenario("flush and append", pending=True, must_succeed=frozenset({"append"}))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    return {"F": actors.flush("flush", [2]), "A": actors.commit("append", stage.job([11]))}


@scenario("flush and gc", pending=True)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    return {"F": actors.flush("flush", [2]), "G": actors.collect()}


@scenario("stalled append and gc with retention", pauses=2, must_succeed=frozenset({"append-2"}))
def _(stage: Stage) -> dict[str, Act]:
    """A writer is silent for longer than the retention."""
    stage.rows(1)
    return {
        "A": actors.commit("append-1", stage.job([11])),
        "G": actors.in_turn(actors.commit("append-2", stage.job([12])), actors.collect(24)),
    }


@scenario("two writers of one expected version", one_of=frozenset({"overwrite-1", "overwrite-2"}))
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    jobs = [stage.job([20 + number], "overwrite") for number in (1, 2)]
    return {
        name: actors.commit(f"overwrite-{number}", job, expected_version=2)
        for number, name, job in zip((1, 2), "AB", jobs, strict=True)
    }


# Of faults that need several preemptions in places that are far apart: a part of the way is given,
# and one actor is not preempted.
def _late(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    job, over = stage.job([11]), stage.job([21], "overwrite")
    return {
        "W": actors.commit("late", job),
        "O": actors.in_turn(
            actors.commit("overwrite", over), actors.write("append", [12]), collections_of(2)
        ),
    }


@scenario("entry that is put after its segment is removed", steady=("O",), **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    """The number of a writer that was slow is free again."""
    return _late(stage)


_SLOW = {"steady": ("O",), **SMALL}


@scenario("reader of a segment that is removed", prelude="W@entry O@range", **_SLOW)
def _(stage: Stage) -> dict[str, Act]:
    """A reader comes to a number that was free again, and is not taken back yet."""
    return {**_late(stage), "R": actors.read()}


@scenario("job in a segment that is removed", prelude="B@entry#2 O@range", **_SLOW)
def _(stage: Stage) -> dict[str, Act]:
    """A process looks for the end of its job, of which another one is late with an entry."""
    stage.rows(1)
    job = stage.job([11])
    stage.rows(2)
    over = stage.job([21], "overwrite")
    return {
        "B": actors.commit("append", job, is_alone=False),
        "O": actors.in_turn(
            actors.commit("overwrite", over), actors.write("another", [12]), collections_of(2)
        ),
        "A": actors.commit("append", job, is_alone=False),
    }


@scenario("consumer that sleeps", ephemeral=True, only_log=True)
def _(stage: Stage) -> dict[str, Act]:
    """The name is taken over while a process sleeps, and the number of its record is free again."""
    stage.rows(1, result_type="PIPELINED")
    return {
        "K": actors.consumes("k", "K"),
        "L": actors.consumes("k", "L", timeout=90, turns=7),
    }


@scenario("late append and removal", **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    """The segment of an append's number is removed before its put, under a reader."""
    stage.rows(1, 2)
    job, over, last = stage.job([11]), stage.job([21], "overwrite"), stage.job([12])
    return {
        "W": actors.commit("late", job),
        "O": actors.in_turn(
            actors.commit("overwrite", over), actors.commit("append", last), collections_of(3)
        ),
        "R": actors.read(),
    }


@scenario("late merge and removal", **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    over, last = stage.job([21], "overwrite"), stage.job([12])
    return {
        "M": actors.merge("merge"),
        "O": actors.in_turn(
            actors.commit("overwrite", over), actors.commit("append", last), collections_of(3)
        ),
        "R": actors.read_changes(3),
    }


def before_removal(stage: Stage, collections: int) -> None:
    """Prepare a log whose next collection puts a base, or removes a segment."""
    stage.rows(1, 2, 3)
    stage.run(actors.write("prepared-4", [4], "overwrite"))
    stage.rows(SECRET)
    for _ in range(collections):
        stage.run(actors.collect())


@scenario("one job in two processes and a removal", **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    """A job's commit goes on after the segment in which another process committed it is gone."""
    stage.rows(1, 2)
    job, over = stage.job([11]), stage.job([21], "overwrite")
    return {
        "A": actors.commit("append", job, is_alone=False),
        "B": actors.in_turn(
            actors.commit("append", job, is_alone=False),
            actors.commit("overwrite", over),
            collections_of(3),
        ),
    }


@scenario("pending and removal", pending=True, **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    """What is pending holds its segment, until it is flushed."""
    stage.rows(1)
    make_pending(stage, 2)
    before_removal(stage, 2)
    return {"F": actors.flush("flush", [2]), "G": collections_of(2)}


@scenario("consumer and removal", releases=True, **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, 3, 4, 5, result_type="PIPELINED")
    return {"K": actors.consumes("k", "K"), "G": collections_of(3)}


def _clocks(stage: Stage) -> dict[str, Act]:
    """Writers whose clocks go back and ahead, one by decades: a time names what it should."""
    stage.rows(1)
    job, over = stage.job([11]), stage.job([21], "overwrite")
    return {"A": actors.commit("append", job), "O": actors.commit("overwrite", over)}


scenario("a clock that jumps", jumps=1)(_clocks)
scenario("clocks that jump", jumps=2, pauses=1)(_clocks)


@scenario("late checkpoint in a long log", prelude="W@range", glimpses=True, **SMALL)
def _(stage: Stage) -> dict[str, Act]:
    """A checkpoint comes after a base that is within its range, and whose segments go."""
    stage.rows(*range(1, 21))
    stage.wait(days=2)
    stage.rows(21, 22, 23)
    job = stage.job([24])
    return {
        "W": actors.commit("late", job),
        "G": actors.in_turn(*[actors.collect(24)] * 3),
    }


@scenario("late merge, read and gc")
def _(stage: Stage) -> dict[str, Act]:
    """As "late merge and read" with a collection that keeps nothing."""
    stage.rows(1, 2)
    job, last = stage.job([3]), stage.job([4])
    return {
        "M": actors.merge("merge"),
        "O": actors.in_turn(
            actors.commit("append-1", job), actors.commit("append-2", last), actors.collect()
        ),
        "R": actors.read(),
    }


def _and_a_collection(late: str, stage: Stage) -> dict[str, Act]:
    """Files that are to be replaced are replaced by others, and removed, before a late commit."""
    stage.rows(1, 2)
    other = actors.commit("overwrite", stage.job([21], "overwrite"))
    return {"M": KINDS[late](stage, 1), "O": actors.in_turn(other, actors.collect())}


for _kind in ("merge", "delete", "mask"):
    scenario(f"late {_kind}, overwrite and gc")(partial(_and_a_collection, _kind))
