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


KINDS: dict[str, Callable[[Stage, int], Act]] = {
    "append": lambda stage, n: actors.commit(f"append-{n}", stage.job([10 + n])),
    "overwrite": lambda stage, n: actors.commit(f"overwrite-{n}", stage.job([20 + n], "overwrite")),
    "write": lambda stage, n: actors.write(f"write-{n}", [30 + n], layout=stage.layout),
    "merge": lambda stage, n: actors.merge(f"merge-{n}", layout=stage.layout),
    "rollback": lambda stage, n: actors.rollback(f"rollback-{n}", stage.before_newest),
    "delete": lambda stage, n: actors.delete(f"delete-{n}", [SECRET], layout=stage.layout),
    "mask": lambda stage, n: actors.delete(f"mask-{n}", [SECRET], masks=True, layout=stage.layout),
    "alter": lambda _, n: actors.alter(f"alter-{n}"),
    "tag": lambda stage, n: actors.tag(f"tag-{n}", stage.before_newest),
    "gc": lambda *_: actors.collect(),
    "read": lambda *_: actors.read(),
    "changes": lambda *_: actors.read_changes(1),
}
"""Actors of a table of two versions, by what they do. Each gets the stage and a number."""

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
