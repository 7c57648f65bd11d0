"""What each round is to be: everything random follows from the seed and the round's number."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from arrow_format.options import MERGE_BY
from integration.torture.operations import PHASES, Operation
from integration.torture.spark_program import SPARK_PHASES

ROUNDS_PER_SHUFFLE = 10
"""So many rounds go to one shuffle, which starts from nothing."""

SPARK_EVERY = 5
"""Of so many rounds one is Spark's, in which an executor or the driver takes a few seconds to come
back; in the others the engine alone takes a fraction of one."""

ROWS_PER_ROUND = 1_000_000
"""Numbers of rows that a round may use."""

SLACK = 1.1
"""Blows are aimed at up to this many times the usual length of a phase, so that its very end is hit
as well."""

_VICTIMS = [
    ("driver JVM", "driver Python")[turn // 5 % 2]
    if turn % 5 == 2
    else ("Python worker", "executor JVM")[turn % 2]
    for turn in range(10)
]
"""Spark's victims in turn, so that few rounds hit every part; a driver is slow to come back."""

_ENGINE_KINDS = {"append": 8, "overwrite": 4, "read": 3, "merge": 4, "gc": 4}
_SPARK_KINDS = {"append": 5, "overwrite": 3, "read": 2, "merge": 4}
_AIMED_AT = {"begin": 1, "map": 2, "commit": 4, "published": 2}
"""How much more often than others a phase is struck: what happens in commits matters most."""


@dataclass(frozen=True, slots=True)
class Round:
    """One operation and the blow it gets."""

    number: int
    operation: Operation
    through_spark: bool
    victim: str
    """``process``: the one that does it all; ``map task``: one attempt of one of its map tasks; or
    one of Spark's."""
    phase: str
    """In which it is struck."""
    moment: float
    """When, as a part of the usual length of that phase."""
    seed: str
    """For what is chosen only when it is struck: which of several workers."""

    def __str__(self) -> str:
        how = f"{self.operation.way} in Spark" if self.through_spark else "engine"
        return (
            f"round {self.number}: {self.operation.kind} ({how}), {self.victim} killed in "
            f"{self.phase} at {self.moment:.0%}"
        )


def shuffle_of(number: int) -> int:
    """Return which shuffle a round works on."""
    return number // ROUNDS_PER_SHUFFLE


def plan_round(
    seed: int, number: int, *, spark: bool = True, local_dirs: tuple[str, ...] = ()
) -> Round:
    """Decide what a round is.

    Parameters
    ----------
    spark
        Whether there is a cluster for Spark's rounds; without, the engine takes them.
    local_dirs
        Where some writes may put files as well.
    """
    name = f"{seed}-{number}"
    random = Random(name)
    through_spark = spark and number % SPARK_EVERY == SPARK_EVERY - 1
    kinds = _SPARK_KINDS if through_spark else _ENGINE_KINDS
    (kind,) = random.choices(list(kinds), list(kinds.values()))
    if number % ROUNDS_PER_SHUFFLE == 0 and kind not in ("append", "overwrite"):
        kind = "append"  # there is nothing yet to read, merge or collect
    is_write = kind in ("append", "overwrite")
    operation = Operation(
        kind,
        first=number * ROWS_PER_ROUND,
        count=random.randrange(5_000, 40_000) if is_write else 0,
        num_tasks=random.randrange(2, 5) if is_write else 1,
        way=random.choice(["hook", "function", "df.write"]) if through_spark else "engine",
        by=random.choice(MERGE_BY),
        local_dirs=local_dirs if is_write and random.random() < 0.25 else (),
    )
    if through_spark:
        victim = _VICTIMS[number // SPARK_EVERY % len(_VICTIMS)]
        phases = SPARK_PHASES["write" if is_write else kind, operation.way if is_write else ""]
    else:
        victim = "map task" if is_write and random.random() < 0.3 else "process"
        phases = ("map",) if victim == "map task" else PHASES[kind]
    return Round(
        number,
        operation,
        through_spark,
        victim,
        phase=random.choices(phases, [_AIMED_AT.get(phase, 1) for phase in phases])[0],
        moment=random.uniform(0, SLACK),
        seed=name,
    )
