"""What scenarios are made of: actors by what they do, kinds of faults, and where each is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation import actors
from tests.simulation.stage import Act, Scenario, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

LOST = frozenset({"lost", "failed", "late"})
INTERRUPTS = frozenset({"interrupted", "interrupted-lost", "interrupted-late"})

SECRET = 0x5EC2E7_5EC2E7
"""The row that deletions take: its bytes are nowhere by chance."""

SURE = frozenset({"append", "overwrite", "write", "rollback", "delete", "mask"})
"""Kinds of commits that succeed, unless a collection is too fast for them."""


# Actors of a table of two versions, by what they do. Each gets the stage and a number.
def _append(stage: Stage, number: int) -> Act:
    return actors.commit(f"append-{number}", stage.job([10 + number]))


def _overwrite(stage: Stage, number: int) -> Act:
    return actors.commit(f"overwrite-{number}", stage.job([20 + number], "overwrite"))


def _write(stage: Stage, number: int) -> Act:
    return actors.write(f"write-{number}", [30 + number], layout=stage.layout)


def _merge(stage: Stage, number: int) -> Act:
    return actors.merge(f"merge-{number}", layout=stage.layout)


def _collect(stage: Stage, number: int) -> Act:
    return actors.collect()


def _read(stage: Stage, number: int) -> Act:
    return actors.read()


def _changes(stage: Stage, number: int) -> Act:
    return actors.read_changes(1)


def _rollback(stage: Stage, number: int) -> Act:
    return actors.rollback(f"rollback-{number}", stage.before_newest)


def _alter(stage: Stage, number: int) -> Act:
    return actors.alter(f"alter-{number}")


def _delete(stage: Stage, number: int) -> Act:
    return actors.delete(f"delete-{number}", [SECRET], layout=stage.layout)


def _mask(stage: Stage, number: int) -> Act:
    return actors.delete(f"mask-{number}", [SECRET], masks=True, layout=stage.layout)


def _tag(stage: Stage, number: int) -> Act:
    return actors.tag(f"tag-{number}", stage.before_newest)


KINDS = {
    "append": _append,
    "overwrite": _overwrite,
    "write": _write,
    "merge": _merge,
    "rollback": _rollback,
    "delete": _delete,
    "mask": _mask,
    "alter": _alter,
    "tag": _tag,
    "gc": _collect,
    "read": _read,
    "changes": _changes,
}

# Of logs of small segments: collections remove some, so that numbers are free again.
SMALL = {"sizes": (4, 2), "only_log": True}


def collections_of(count: int) -> Act:
    return actors.in_turn(*[actors.collect()] * count)


REGISTERED: dict[str, Scenario] = {}


def scenario(name: str, **how: Any) -> Callable[[Callable[[Stage], dict[str, Act]]], None]:
    """Register what a function prepares as scenarios on both kinds of storage, or on one."""
    storages = how.pop("storages", (False, True))

    def register(begin: Callable[[Stage], dict[str, Act]]) -> None:
        for is_store in storages:
            full = name + (" on a store" if is_store else "")
            REGISTERED[full] = Scenario(full, begin, is_store=is_store, **how)

    return register
