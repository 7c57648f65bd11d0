"""Long histories: actors that each do many things to one table, drawn by the number of the history.

What one operation leaves behind is met by another one much later: a deletion by a rollback, that by
a merge, a merge by collections that keep some versions and not others.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING

from tests.simulation import actors
from tests.simulation.kinds import SECRET
from tests.simulation.layouts import NARROW, ON_DISK, WIDE, Layout
from tests.simulation.stage import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.stage import Act, Stage

NUM_OPERATIONS = 5
"""Of each actor."""

LAYOUTS = {"": NARROW, " with statistics": WIDE, " on a disk": ON_DISK}


def _operation(chance: random.Random, layout: Layout, name: str) -> Act:
    """Return something to do; ``name`` is of no other operation of the history."""
    number = chance.randrange(2, 10)
    row = 100 + int(name.partition("-")[2])
    operations: dict[str, tuple[int, Callable[[], Act]]] = {
        "append": (3, lambda: actors.write(f"append-{name}", [row], layout=layout)),
        "again": (1, lambda: actors.write(f"again-{name}", [SECRET], layout=layout)),
        "overwrite": (
            1,
            lambda: actors.write(f"overwrite-{name}", [row], "overwrite", layout=layout),
        ),
        "delete": (3, lambda: actors.delete(f"delete-{name}", [SECRET], layout=layout)),
        "rollback": (2, lambda: actors.rollback(f"rollback-{name}", number)),
        "merge": (2, lambda: actors.merge(f"merge-{name}", layout=layout)),
        "join": (1, lambda: actors.merge(f"join-{name}", "subpartition", layout=layout)),
        "collect": (3, actors.collect),
        "collect old": (2, lambda: actors.collect(24)),
        "compact": (1, lambda: actors.collect(compact_log=True)),
        "tag": (1, lambda: actors.tag(chance.choice("tu"), number)),
        "untag": (1, lambda: actors.untag(chance.choice("tu"))),
        "read": (1, actors.read),
    }
    weights = [weight for weight, _ in operations.values()]
    (chosen,) = chance.choices([make for _, make in operations.values()], weights)
    return chosen()


def _history(seed: int, layout: Layout, stage: Stage) -> dict[str, Act]:
    chance = random.Random(seed)
    stage.layout = layout
    stage.rows(1, SECRET, 3)
    return {
        actor: actors.in_turn(
            *(
                _operation(chance, layout, f"{actor}-{first + turn}")
                for turn in range(NUM_OPERATIONS)
            )
        )
        for first, actor in zip((0, 20, 40), "ABC", strict=True)
    }


def histories(count: int, is_store: bool) -> dict[str, Scenario]:
    """Return some histories, of each layout in turn, on small segments."""
    found = {}
    for seed in range(count):
        what, layout = [*LAYOUTS.items()][seed % len(LAYOUTS)]
        if is_store and layout is ON_DISK:
            continue
        name = f"history {seed}{what}" + (" on a store" if is_store else "")
        found[name] = Scenario(
            name,
            partial(_history, seed, layout),
            is_store,
            sizes=(4, 2),
            pauses=2,
            glimpses=True,
            logs_values=layout is WIDE,
        )
    return found
