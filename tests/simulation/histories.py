"""Long histories: actors that each do many things to one table, drawn by the number of the history.

What one operation leaves behind is met by another one much later: a deletion by a rollback, that by
a merge, a merge by collections that keep some versions and not others.
"""

from __future__ import annotations

import random
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation import actors
from tests.simulation.disks import copied, moved
from tests.simulation.kinds import SECRET
from tests.simulation.layouts import COPY, DISK, NARROW, ON_DISK, WIDE, Layout
from tests.simulation.stage import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.simulation.stage import Act, Stage

NUM_ON_DIRECTORIES, NUM_ON_STORES = 8, 4

NUM_OPERATIONS = 5
"""Of each actor."""


class _Kind(NamedTuple):
    """What the table of a history is when it begins, and how rows are written to it."""

    layout: Layout
    begin: Callable[[Stage], None]
    others: frozenset[str] = frozenset()
    """What is done besides: with a ``copy``, to a ``disk``, or because it was ``moved``."""
    how: Mapping[str, Any] = MappingProxyType({})
    """Of the scenario."""


def _plain(layout: Layout, stage: Stage) -> None:
    stage.layout = layout
    stage.rows(1, SECRET, 3)


_KINDS = {
    "": _Kind(NARROW, partial(_plain, NARROW)),
    " with statistics": _Kind(WIDE, partial(_plain, WIDE), how={"logs_values": True}),
    " on a disk": _Kind(ON_DISK, partial(_plain, ON_DISK)),
    " beside a copy": _Kind(ON_DISK, copied, frozenset({"copy"}), {"another": COPY}),
    " of what was moved": _Kind(ON_DISK, moved, frozenset({"moved"}), {"became": "moved"}),
    # Nobody writes to the disk that vanishes, since that would be lost.
    " of what was moved without its disk": _Kind(
        NARROW,
        moved,
        frozenset({"moved", "disk"}),
        {"became": "moved", "unmounts": True},
    ),
}
_ON_STORES = {name: kind for name, kind in _KINDS.items() if kind.layout is not ON_DISK}
_ON_STORES.pop(" of what was moved without its disk")


def _chosen(chance: random.Random, operations: dict[str, tuple[int, Callable[[], Act]]]) -> Act:
    weights = [weight for weight, _ in operations.values()]
    (make,) = chance.choices([make for _, make in operations.values()], weights)
    return make()


def _operation(chance: random.Random, kind: _Kind, name: str) -> Act:
    """Return something to do; ``name`` is of no other operation of the history."""
    number, layout = chance.randrange(2, 10), kind.layout
    row = 100 + int(name.partition("-")[2])
    operations: dict[str, tuple[int, Callable[[], Act]]] = {
        "append": (3, lambda: actors.write(f"append-{name}", [row], layout=layout)),
        "again": (1, lambda: actors.write(f"again-{name}", [SECRET], layout=layout)),
        "overwrite": (
            1,
            lambda: actors.write(f"overwrite-{name}", [row], "overwrite", layout=layout),
        ),
        "delete": (3, lambda: actors.delete(f"delete-{name}", [SECRET], layout=layout)),
        "mask": (
            3,
            lambda: actors.delete(
                f"mask-{name}", [chance.choice((SECRET, 3))], masks=True, layout=layout
            ),
        ),
        "rollback": (1, lambda: actors.rollback(f"rollback-{name}", number)),
        "undo": (2, lambda: actors.rollback(f"undo-{name}", number, undoes=True)),
        "merge": (2, lambda: actors.merge(f"merge-{name}", layout=layout)),
        "join": (1, lambda: actors.merge(f"join-{name}", "subpartition", layout=layout)),
        "collect": (3, actors.collect),
        "collect old": (2, lambda: actors.collect(24)),
        "compact": (1, lambda: actors.collect(compact_log=True)),
        "tag": (1, lambda: actors.tag(chance.choice("tu"), number)),
        "untag": (1, lambda: actors.untag(chance.choice("tu"))),
        "read": (1, actors.read),
        "rescale": (1, lambda: actors.rescale(f"rescale-{name}", chance.choice((1, 2, 3, 6)))),
        "alter": (
            1,
            lambda: actors.in_turn(
                actors.alter(f"alter-{name}"), actors.alter(f"back-{name}", "v")
            ),
        ),
    }
    if "moved" in kind.others:
        operations["moved"] = (4, lambda: actors.relocate("moved"))
    return _chosen(chance, operations)


def _of_copy(chance: random.Random, number: int) -> Act:
    """Return something that is done to a copy."""
    return _chosen(
        chance,
        {
            "append": (2, lambda: actors.write(f"append-{number}", [200], layout=ON_DISK)),
            "overwrite": (
                2,
                lambda: actors.write(f"overwrite-{number}", [201], "overwrite", layout=ON_DISK),
            ),
            "delete": (1, lambda: actors.delete(f"delete-{number}", [SECRET], layout=ON_DISK)),
            "undo": (1, lambda: actors.rollback(f"undo-{number}", 2, undoes=True)),
            "join": (1, lambda: actors.merge(f"join-{number}", "subpartition", layout=ON_DISK)),
            "collect": (2, actors.collect),
            "compact": (1, lambda: actors.collect(compact_log=True)),
            "copied": (1, lambda: actors.relocate("copied")),
        },
    )


def _history(seed: int, kind: _Kind, stage: Stage) -> dict[str, Act]:
    chance = random.Random(seed)
    kind.begin(stage)
    acts: dict[str, Act] = {
        actor: actors.in_turn(
            *(_operation(chance, kind, f"{actor}-{first + turn}") for turn in range(NUM_OPERATIONS))
        )
        for first, actor in zip((0, 20, 40), "ABC", strict=True)
    }
    if "copy" in kind.others:
        told = [actors.relocate("copied")] * chance.randrange(2)
        later = (_of_copy(chance, number) for number in range(NUM_OPERATIONS))
        acts["D"] = actors.at(COPY, actors.in_turn(*told, *later))
    if "disk" in kind.others:
        acts["D"] = actors.in_turn(actors.unmount(DISK), actors.mount(DISK))
    return acts


def histories(is_store: bool) -> dict[str, Scenario]:
    """Return some histories, of each kind of table in turn, on small segments."""
    kinds = [*(_ON_STORES if is_store else _KINDS).items()]
    found = {}
    for seed in range(NUM_ON_STORES if is_store else NUM_ON_DIRECTORIES):
        what, kind = kinds[seed % len(kinds)]
        name = f"history {seed}{what}" + (" on a store" if is_store else "")
        found[name] = Scenario(
            name,
            partial(_history, seed, kind),
            is_store,
            sizes=(4, 2),
            pauses=2,
            glimpses=True,
            **kind.how,
        )
    return found
