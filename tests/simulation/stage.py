"""Prepares storages for actors, and says what a scenario is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from arrow_format import DeletionReceipt
from tests.simulation import actors
from tests.simulation.drop_oracle import DropOracle
from tests.simulation.explorer import World
from tests.simulation.files import EMPTY, Files
from tests.simulation.layouts import NARROW, Layout
from tests.simulation.oracle import Oracle, Rules
from tests.simulation.process import START_MS
from tests.simulation.programs import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.storage.open import Storage

Act = Any


@dataclass
class Stage:
    """A storage that is being prepared."""

    is_store: bool
    files: Files = EMPTY
    events: tuple[tuple[Any, ...], ...] = ()
    versions: list[int] = field(default_factory=list)
    """Those that were committed, ascending."""
    layout: Layout = NARROW
    """How rows are written."""
    where: str = ""
    """Where the shuffle is until it is moved to its place, or copied to it; "": there."""
    now_ms: int = START_MS
    """The storage's clock; the schedule begins at that."""
    _count: int = 0

    def run(self, act: Callable[[Storage], Any]) -> Any:
        """Run something before the schedule begins; return its result."""
        self._count += 1
        if self.where:
            act = actors.at(self.where, act, is_another=False)
        program = Program(f"prepare-{self._count}", act, is_store=self.is_store)
        self.files, node = program.run_alone(self.files, self.now_ms)
        if node.error is not None:
            raise node.error
        self.events += tuple(event for event in node.events if event[0] in ("gets", "records"))
        if any(event[0] in ("pends", "deletes") for event in node.events):
            self.events += node.events
        self.versions += [event[2] for event in node.events if event[0] == "is"]
        failed = [event for event in node.events if event[0] in ("fails", "gives up")]
        assert not failed, failed
        return node.result

    def moves_here(self, how: Callable[[Storage, str], None]) -> None:
        """Move the shuffle from :attr:`where` to its place, or copy it."""
        self.run(lambda storage: how(storage, ""))
        self.where = ""

    def deletion(self, rows: list[int]) -> DeletionReceipt:
        """Delete rows; what is written instead has no layout of its own."""
        self.run(actors.delete(f"prepared-deletion-{self._count}", rows))
        (*_, receipt) = (event[4] for event in self.events if event[0] == "deletes")
        return DeletionReceipt.from_json(receipt)

    def wait(self, days: int) -> None:
        """Let time pass."""
        self.now_ms += days * 86_400_000

    @property
    def before_newest(self) -> int:
        """The version before the newest."""
        return self.versions[-2]

    def rows(self, *versions: int, **options: Any) -> None:
        """Append a version of one row for each."""
        for row in versions:
            self.run(actors.write(f"prepared-{row}", [row], layout=self.layout, **options))

    def job(self, rows: list[int], mode: str = "append", **options: Any) -> actors.Prepared:
        """Write the map outputs of a job."""
        prepared: actors.Prepared = self.run(
            actors.prepare(rows, mode, layout=self.layout, **options)
        )
        return prepared


@dataclass(frozen=True)
class Scenario(Rules):
    """A group of actors on a storage, and what is right there.

    ``begin`` prepares the storage, and returns the actors by name.
    """

    name: str
    begin: Callable[[Stage], dict[str, Act]]
    is_store: bool = False
    faults: int = 0
    kinds: frozenset[str] = frozenset()
    faulty: tuple[str, ...] | None = None
    pauses: int = 0
    jumps: int = 0
    crashes: bool = True
    drops: bool = False
    """Whether an actor removes the shuffle for good."""
    skews_ms: dict[str, int] = field(default_factory=dict)
    preemptions: int = 2
    """Switches from an actor that has not ended, for the tests."""
    sizes: tuple[int, int] | None = None
    """Numbers of a segment of the log and of a checkpoint; None: those in use."""
    only_log: bool = False
    """Whether actors go on in turn only before calls on the log and on consumers' files."""
    walks: int = 4
    """Schedules at random that the tests run, of a group, or of actors that do much."""
    age_days: int = 0
    """How long ago the storage was prepared."""
    steady: tuple[str, ...] = ()
    """Actors that are not preempted."""
    prelude: str = ""
    """Words of a schedule: how far actors have come before each schedule begins."""

    def stage(self) -> tuple[World, Oracle]:
        """Prepare the storage; return it with the actors, and who judges them."""
        stage = Stage(self.is_store)
        acts = self.begin(stage)
        programs = tuple(
            Program(name, act, is_store=self.is_store, skew_ms=self.skews_ms.get(name, 0))
            for name, act in acts.items()
        )
        names = list(acts)
        world = World(
            programs,
            stage.files,
            self.is_store,
            self.faults,
            self.kinds,
            None if self.faulty is None else tuple(names.index(name) for name in self.faulty),
            self.pauses,
            self.jumps,
            stage.now_ms + self.age_days * 86_400_000,
            frozenset(map(names.index, self.steady)),
        )
        collections = 2 if self.sizes is None else 4
        judge = DropOracle if self.drops else Oracle
        oracle = judge(world, self, events=stage.events, collections=collections)
        return world, oracle
