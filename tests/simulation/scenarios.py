"""All scenarios: each is a storage with some content, and actors on it.

Besides those that tell a story there are all pairs of actors, on logs as they are and on logs whose
segments are removed meanwhile, pairs with listings that are not of their moment, some with a call
that fails, and groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from tests.simulation import (
    actors,
    cases,
    disks,
    drops,
    erasures,
    held,
    long_lived,
    rescales,
    upserts,
)
from tests.simulation.cases import before_removal, make_pending
from tests.simulation.histories import histories
from tests.simulation.kinds import (
    INTERRUPTS,
    KINDS,
    LOST,
    REGISTERED,
    SECRET,
    SMALL,
    SURE,
    collections_of,
)
from tests.simulation.stage import Scenario

if TYPE_CHECKING:
    from tests.simulation.stage import Act, Stage


_ONLY_READ = {"read", "changes"}


def _pair(first: str, second: str, stage: Stage) -> dict[str, Act]:
    stage.rows(1, SECRET)
    return {"A": KINDS[first](stage, 1), "B": KINDS[second](stage, 2)}


def _pairs(is_store: bool) -> dict[str, Scenario]:
    scenarios = {}
    for first, second in combinations_with_replacement(KINDS, 2):
        if {first, second} <= _ONLY_READ:
            continue
        # A collection with retention 0 gives up every job that is at work.
        ops = {f"{first}-1", f"{second}-2"}
        sure = {op for op in ops if op.partition("-")[0] in SURE}
        if {first, second} in ({"rollback", "delete"}, {"rollback", "mask"}):
            sure = {op for op in sure if not op.startswith("rollback")}  # refused after a deletion
        if "alter" in (first, second):  # they name the column when they begin
            sure = {op for op in sure if not op.startswith(("write", "delete", "mask"))}
        name = f"{first}+{second}" + (" on a store" if is_store else "")
        scenarios[name] = Scenario(
            name,
            partial(_pair, first, second),
            is_store=is_store,
            must_succeed=frozenset(() if "gc" in (first, second) else sure),
        )
    return scenarios


def _removal(kind: str, collections: int, stage: Stage) -> dict[str, Act]:
    before_removal(stage, collections)
    act = actors.read_changes(4) if kind == "changes" else KINDS[kind](stage, 1)
    return {"A": act, "G": collections_of(2)}


def _removals() -> dict[str, Scenario]:
    """Return pairs with collections that put a base and the list of a segment, and remove it."""
    scenarios = {}
    for kind in KINDS:
        for collections, what in ((1, "a base and a removal"), (2, "a removal")):
            for is_store in (False, True):
                name = f"{kind}+{what}" + (" on a store" if is_store else "")
                begin = partial(_removal, kind, collections)
                scenarios[name] = Scenario(name, begin, is_store=is_store, **SMALL)
    for kind in ("append", "merge", "read", "changes", "gc"):
        for listing in ("stale", "torn"):
            name = f"{kind}+a base and a removal, a {listing} listing"
            scenarios[name] = Scenario(
                name,
                partial(_removal, kind, 1),
                faults=1,
                kinds=frozenset({listing}),
                crashes=False,
                fresh=listing != "stale",
                preemptions=1,
                **SMALL,
            )
    return scenarios


def _listings(kind: str) -> dict[str, Scenario]:
    """Return pairs one of whose listings is not of its moment."""
    scenarios = {}
    for first, second in (
        ("append", "append"),
        ("append", "overwrite"),
        ("append", "merge"),
        ("append", "read"),
        ("overwrite", "read"),
        ("merge", "read"),
        ("gc", "read"),
        ("gc", "changes"),
        ("gc", "append"),
        ("gc", "gc"),
        ("gc", "tag"),
        ("gc", "rollback"),
        ("gc", "delete"),
        ("delete", "append"),
        ("delete", "merge"),
        ("rollback", "append"),
    ):
        name = f"{first}+{second}, a {kind} listing"
        scenarios[name] = Scenario(
            name,
            partial(_pair, first, second),
            faults=1,
            kinds=frozenset({kind}),
            crashes=False,
            fresh=kind != "stale",
        )
    return scenarios


def _with_faults(scenarios: dict[str, Scenario]) -> dict[str, Scenario]:
    """Return some scenarios with one call that fails, is lost or late, or is interrupted."""
    names = (
        "append+append",
        "append+overwrite",
        "append+merge",
        "append+rollback",
        "append+delete",
        "append+tag",
        "abort and commit of a job",
        "one job in two processes",
        "one transaction in two jobs",
        "one deletion that is repeated",
        "two consumers",
        "consumer and append",
        "release by name and append",
        "two flushes",
        "flush and pending commit",
        "flush and append",
    )
    found = {}
    for name in names:
        for on in ("", " on a store"):
            full = f"{name}, one fault{on}"
            found[full] = replace(
                scenarios[name + on],
                name=full,
                faults=1,
                kinds=LOST | INTERRUPTS,
                crashes=False,
                preemptions=1,
            )
    return found


def _partly_removed(scenarios: dict[str, Scenario]) -> dict[str, Scenario]:
    """Return scenarios on a store, one of whose removals of several objects stops on the way."""
    names = (
        "append+gc",
        "overwrite+gc",
        "gc+gc",
        "tag+gc",
        "rollback+gc",
        "erasure and gc",
        "erasure and append",
        "release by name and append",
        "consumer and gc",
        "gc+a base and a removal",
        "read+a removal",
        "pending and removal",
    )
    found = {}
    for name in names:
        full = f"{name}, removed in part on a store"
        found[full] = replace(
            scenarios[f"{name} on a store"],
            name=full,
            faults=1,
            kinds=frozenset({"partial"}),
            crashes=False,
            preemptions=1,
        )
    return found


def _five_on_a_table(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2)
    return {
        "A": actors.in_turn(
            actors.commit("append-1", stage.job([11])), actors.write("write-1", [12])
        ),
        "B": actors.commit("append-2", stage.job([13])),
        "O": actors.commit("overwrite", stage.job([21], "overwrite")),
        "M": actors.merge("merge"),
        "G": actors.in_turn(actors.collect(24), *[actors.collect()] * 3),
        "R": actors.in_turn(actors.read(), actors.read()),
    }


def _five_on_a_result(stage: Stage) -> dict[str, Act]:
    stage.rows(1, 2, result_type="PIPELINED")
    return {
        "A": actors.in_turn(
            actors.commit("append-1", stage.job([11])), actors.commit("append-2", stage.job([12]))
        ),
        "B": actors.commit("append-3", stage.job([13])),
        "K": actors.consumes("k", "K", turns=3),
        "L": actors.consumes("l", "L", turns=2),
        "G": actors.in_turn(actors.collect(24), actors.collect(24)),
        "R": actors.read_changes(1),
    }


def _five_with_pending(stage: Stage) -> dict[str, Act]:
    stage.rows(1)
    make_pending(stage, 2)
    job = stage.job([3])
    return {
        "P": actors.commit("pending-3", job, pending=True),
        "F": actors.flush("flush-1", [2]),
        "E": actors.flush("flush-2", [2]),
        "A": actors.commit("append", stage.job([11])),
        "G": actors.collect(24),
        "R": actors.in_turn(actors.read(), actors.read()),
    }


def _groups(is_store: bool) -> dict[str, Scenario]:
    kinds = LOST | {"torn", "interrupted", "partial"}
    on = " on a store" if is_store else ""
    scenarios = (
        Scenario(f"five on a table{on}", _five_on_a_table, is_store),
        Scenario(f"six on a long-lived table{on}", long_lived.six_on_a_table, is_store, walks=25),
        Scenario(f"five on a result{on}", _five_on_a_result, is_store, releases=True),
        Scenario(f"five with pending{on}", _five_with_pending, is_store, pending=True),
    )
    small = [replace(each, name=f"{each.name}, small segments", sizes=(4, 2)) for each in scenarios]
    groups = {
        each.name: replace(each, faults=1, kinds=kinds, pauses=1, glimpses=True)
        for each in (*scenarios, *small)
    }
    return groups | histories(is_store)


_REGISTER = (cases, long_lived, erasures, disks, drops, upserts, rescales, held)
"""Modules whose scenarios are registered when they are imported."""

SCENARIOS: dict[str, Scenario] = (
    _pairs(False) | _pairs(True) | REGISTERED | _listings("torn") | _listings("stale")
) | _removals()
SCENARIOS |= _with_faults(SCENARIOS) | _partly_removed(SCENARIOS)
"""Two or three actors, gone through whole."""

GROUPS: dict[str, Scenario] = _groups(False) | _groups(True)
"""Five and more actors, of whose schedules some are taken at random."""
