"""Runs rounds: an operation, a blow in the middle of it, and then everything must still be true."""

from __future__ import annotations

import statistics
import time
from collections import Counter, defaultdict, deque
from random import Random
from typing import TYPE_CHECKING

from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from integration.torture.checks import (
    TortureError,
    check_state,
    files_beside,
    numbers_of,
    uncommitted,
)
from integration.torture.children import Message, child, map_task, operation
from integration.torture.operations import Operation, State, begin, collect_garbage, task_batches
from integration.torture.rounds import ROWS_PER_ROUND, Round
from integration.torture.spark_driver import SparkDriver, wait_until_gone
from integration.torture.watching import Outcome, watch

if TYPE_CHECKING:
    from pathlib import Path

    from integration.programs.cluster import Cluster

UNKNOWN_S = 0.8
"""Length of a phase that was never seen whole: only those of Spark's first rounds are not."""

GIVEN_UP_BY_SPARK = "Authorized committer"
"""How the reason begins for which Spark's scheduler ends a write that it could have tried again."""


class Harness:
    """The shuffles that rounds work on, what is in them, and what was seen so far.

    Parameters
    ----------
    directory
        Where the shuffles and the logs of Spark's drivers go.
    cluster
        For Spark's rounds; None where there are none.
    """

    def __init__(self, directory: Path, cluster: Cluster | None) -> None:
        self._directory = directory
        self._cluster = cluster
        self._driver: SparkDriver | None = None
        self._lengths: dict[tuple[str, ...], deque[float]] = defaultdict(lambda: deque(maxlen=9))
        self.state: State = None
        """What is in the shuffle of the current round."""
        self.hits: Counter[tuple[str, str, str, str]] = Counter()
        """How often who was killed in what: ``(engine or Spark, victim, operation, phase)``."""
        self.kept: Counter[bool] = Counter()
        """Whether the version of a write or merge whose process died was there, or was not."""
        self.collected = 0
        """Files that were left behind, and removed."""
        self.collects = True
        """Whether there is a collector of garbage."""

    @property
    def has_cluster(self) -> bool:
        """Whether there are rounds of Spark's."""
        return self._cluster is not None

    @property
    def local_dirs(self) -> tuple[str, ...]:
        """Further directories for map outputs."""
        return (str(self._directory / "disk-1"), str(self._directory / "disk-2"))

    def path(self, shuffle: int) -> str:
        """Return where a shuffle is."""
        return str(self._directory / f"shuffle-{shuffle:05d}")

    def start_shuffle(self) -> None:
        """Begin with a shuffle that is not there."""
        self.state = None

    def calibrate(self, path: str) -> None:
        """See how long the engine takes for everything, on a shuffle that is for nothing else."""
        self.start_shuffle()
        for number, kind in enumerate(["append", "overwrite", "merge", "read", "gc"] * 2):
            is_write = kind in ("append", "overwrite")
            one = Operation(kind, number * ROWS_PER_ROUND, 20_000 * is_write, 3)
            self._prepare(one, path)
            self._do(one, path)

    def close(self) -> None:
        """End what runs."""
        if self._driver is not None:
            self._driver.stop()
            self._driver = None

    # One round -----------------------------------------------------------------------------------

    def run(self, planned: Round, path: str) -> str:
        """Run one round; return in which phase its victim was hit.

        Raises
        ------
        TortureError, ShuffleError
            Something that was promised is not so.
        """
        one = planned.operation
        self._prepare(one, path)
        before = self.state
        after = one.after(before)
        if planned.through_spark:
            outcome = self._in_spark(planned, path)
        elif planned.victim == "map task":
            outcome = self._with_a_killed_task(planned, path)
        else:
            with child(*operation(path, one)) as process:
                outcome = watch(
                    process,
                    planned.phase,
                    self._delay(planned),
                    lambda: process.kill() or [],
                )
        self._learn(one, outcome)
        self._note(planned, outcome)
        where, hit = "Spark" if planned.through_spark else "engine", outcome.hit
        self.hits[where, planned.victim, one.kind, hit] += 1
        self._check_survival(planned, outcome)

        # The last committed version reads whole and verified: this one, or the one before.
        # What said itself that it failed, and lost no driver, committed nothing either.
        is_undone = outcome.failed and "driver" not in planned.victim
        allowed = [after] if outcome.done else [before] if is_undone else [before, after]
        self.state = check_state(path, allowed)
        if not outcome.done and before != after:
            self.kept[self.state == after] += 1
        self._check_read(one, outcome)

        # A rerun succeeds.
        again = one.again(one.first + ROWS_PER_ROUND // 2)
        self.state = again.after(self.state)
        outcome = self._unharmed(again, path, through_spark=planned.through_spark)
        self._check_read(again, outcome)
        check_state(path, [self.state])

        # Nothing is left behind.
        self._collect(path)
        check_state(path, [self.state])
        return hit

    def _prepare(self, one: Operation, path: str) -> None:
        """Give operations that need it something to do."""
        first = one.first + ROWS_PER_ROUND // 4
        if one.kind == "merge":
            self._do(Operation("append", first, 6_000, 3), path)
        elif one.kind == "gc":
            self._do(Operation("overwrite", first, 3_000, 2), path)
            dead = Operation("append", first + 3_000, 3_000, 1, local_dirs=self.local_dirs)
            run_map_task(begin(dead, path), 0, 0, task_batches(dead, 0))

    def _do(self, one: Operation, path: str) -> None:
        self.state = one.after(self.state)
        self._unharmed(one, path)

    def _unharmed(self, one: Operation, path: str, *, through_spark: bool = False) -> Outcome:
        """Do an operation undisturbed: it must go through."""
        if through_spark:
            driver = self._living_driver()
            driver.order(path, one)
            outcome = watch(driver)
        else:
            with child(*operation(path, one)) as process:
                outcome = watch(process)
        if not outcome.done:
            msg = f"{path}: {one.kind} failed undisturbed: {outcome.failure}"
            raise TortureError(msg)
        self._learn(one, outcome)
        self._note(f"{one} undisturbed", outcome)
        return outcome

    def _check_survival(self, planned: Round, outcome: Outcome) -> None:
        """What only Spark's workers or one attempt suffered, a job must survive."""
        if not outcome.failed or "driver" in planned.victim:
            return
        # Spark gives a write up whose task had been allowed to commit when its executor was lost:
        # it cannot know whether that took effect, and does not try again. No process announces that
        # it allows it, so a blow cannot be aimed before it; but the reason it gives is its own, and
        # goes for no other way to write and no other victim. (A Python worker has no part in it: it
        # has ended its task before the executor asks.)
        may_fail = (
            planned.operation.way == "df.write"
            and planned.victim == "executor JVM"
            and GIVEN_UP_BY_SPARK in outcome.failure
        )
        if not may_fail:
            msg = f"{planned}: the job failed all the same: {outcome.failure}"
            raise TortureError(msg)

    def _check_read(self, one: Operation, outcome: Outcome) -> None:
        """Check what a read that came to its end had found."""
        if one.kind == "read" and outcome.done:
            numbers = numbers_of(self.state)
            expected = [len(numbers), int(numbers.sum())]
            if list(outcome.value) != expected:
                msg = f"a read found rows and sum {outcome.value}, expected {expected}"
                raise TortureError(msg)

    def _collect(self, path: str) -> None:
        before = files_beside(path, self.local_dirs)
        self.collects = collect_garbage(path)
        left = files_beside(path, self.local_dirs)
        self.collected += len(before) - len(left)
        orphans = left if self.collects else uncommitted(path, left)
        if orphans:
            msg = f"{path}: {len(orphans)} orphans, such as {orphans[:4]}"
            raise TortureError(msg)

    def _note(self, planned: object, outcome: Outcome) -> None:
        """Write down what happened, so that a failed round can be explained."""
        start = outcome.messages[0].at if outcome.messages else 0.0
        steps = [f"{m.at - start:.3f} {m.kind} {str(m.value)[-2000:]}" for m in outcome.messages]
        struck = outcome.struck_at and f"{outcome.struck_at - start:.3f}"
        with (self._directory / "journal.txt").open("a") as journal:
            print(planned, f"struck at {struck}", *steps, sep="\n  ", file=journal)

    # Timing --------------------------------------------------------------------------------------

    def _learn(self, one: Operation, outcome: Outcome) -> None:
        """Remember how long the phases took that were not disturbed."""
        if outcome.struck_at is None:
            for phase, length in outcome.lengths().items():
                self._lengths[one.kind, one.way, phase].append(length)

    def _delay(self, planned: Round) -> float:
        """Seconds after the phase began at which to strike."""
        one = planned.operation
        seen = self._lengths[one.kind, one.way, planned.phase]
        return planned.moment * (statistics.median(seen) if seen else UNKNOWN_S)

    # Ways to die ---------------------------------------------------------------------------------

    def _with_a_killed_task(self, planned: Round, path: str) -> Outcome:
        """Run map tasks as processes of their own; kill one attempt and try again."""
        one = planned.operation
        job = begin(one, path)
        unlucky = Random(planned.seed).randrange(one.num_tasks)
        statuses, result = [], Outcome()
        delay_s = self._delay(planned) / one.num_tasks
        for number in range(one.num_tasks):
            with child(*map_task(job, one, number, 0)) as process:
                if number == unlucky:
                    result = watch(process, "map", delay_s, lambda p=process: p.kill() or [])
                else:
                    statuses.append(watch(process).value)
            if number == unlucky:
                # Also when it had come to its end: its status never arrived.
                with child(*map_task(job, one, number, 1)) as process:
                    statuses.append(watch(process).value)
        if any(status is None for status in statuses):
            msg = f"{planned}: a map task failed undisturbed"
            raise TortureError(msg)
        commit_job(job, statuses, mode=one.kind)
        left = [name for name in files_beside(path, self.local_dirs) if job.job_id in name]
        if left:
            msg = f"{planned}: the commit left files of the attempt that died: {left[:4]}"
            raise TortureError(msg)
        end = time.monotonic()
        result.messages = [m for m in result.messages if m.kind == "phase"]
        result.messages.append(Message("done", None, end))
        return result

    def _living_driver(self) -> SparkDriver:
        if self._driver is not None and not self._driver.is_alive:
            self._driver.bury()
            self._driver = None
        if self._driver is None:
            assert self._cluster is not None
            self._cluster.check()
            self._driver = SparkDriver(self._cluster, self._directory / "spark")
        return self._driver

    def _in_spark(self, planned: Round, path: str) -> Outcome:
        """Have Spark do it, and kill one of its processes meanwhile."""
        driver = self._living_driver()
        random = Random(planned.seed)
        driver.order(path, planned.operation)
        outcome = watch(
            driver,
            planned.phase,
            self._delay(planned),
            lambda: driver.strike(planned.victim, random),
        )
        if "driver" in planned.victim:
            # Tasks may run on without it: what they leave must be collected, and harm nothing.
            if self.state is not None:
                collect_garbage(path)
            driver.bury()
            self._driver = None
        wait_until_gone(outcome.dying)
        return outcome
