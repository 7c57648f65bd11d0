"""CONFORMANCE, group "Commit": any sequence of operations against a plain dict of lists.

Jobs begin, run attempts of their map tasks, commit and abort in any order and beside each other;
versions are merged, collected and read. Any of it may meet with a fault at any system call: an
error, or the death of the process that did it. The dict says what must be there.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from arrow_format import (
    MergePolicy,
    ShuffleError,
    ShuffleNotFoundError,
    WriteOptions,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import ShuffleJob, run_map_task
from arrow_format.jobs.target import open_target
from tests.conformance.test_crashes import files_there
from tests.support.exhaustive import examples
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import begin, live_files, numbered
from tests.support.system_calls import FAULTS, SystemCalls

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.model import MapStatus

N = 3
OPTIONS = WriteOptions(sync=False, sort_buffer_bytes=4_096, chunk_bytes=200)
AT_ONCE = timedelta(0)
NO_FAULT = (0, "")

faults = st.one_of(
    st.just(NO_FAULT), st.tuples(st.integers(0, 40), st.sampled_from([*FAULTS, "dies after"]))
)


@dataclass
class Job:
    """A job, and the rows and status of each map task whose attempt went through."""

    job: ShuffleJob
    mode: str
    statuses: list[MapStatus] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    is_over: bool = False
    """Committed, aborted or given up."""
    is_swept: bool = False
    """It began before a collection without retention, which no task of it should outlive."""


def rows_of(path: Path, version: int | None = None) -> list[int]:
    shuffle = open_shuffle(path, version)
    assert shuffle.verify().ok
    return sorted(shuffle.read().read_all()["v"].to_pylist())


@guarantee("faults")
class ShuffleMachine(RuleBasedStateMachine):
    """The operations, and the dict of what each version holds."""

    jobs = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="arrow-shuffle-model-"))
        self.path = self.directory / "s"
        self.versions: dict[int, list[int]] = {}
        self.oldest = 0
        """Versions before it may have been collected."""
        self.next_row = 0
        self.begun: list[Job] = []
        self.late: set[str] = set()
        """Directories of jobs that had a task after they were swept."""

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    # What is there --------------------------------------------------------------------------------

    @property
    def newest(self) -> list[int]:
        return self.versions[max(self.versions)] if self.versions else []

    def attempt(
        self, fault: tuple[int, str], operation: Callable[[], object]
    ) -> tuple[bool, ShuffleError | None]:
        """Carry out an operation with a fault; whether its process died, and its error."""
        calls = SystemCalls(self.directory)
        if fault[1]:
            calls.fail(*fault)
        error = None
        with calls.installed():
            try:
                operation()
            except ShuffleError as found:
                error = found
        return calls.is_dead, error

    def changed(self, after: list[int], *, surely: bool) -> bool:
        """Note the newest version, which is the one before or holds `after`; True if it does."""
        try:
            shuffle = open_shuffle(self.path)
        except ShuffleNotFoundError:
            assert not surely
            assert not self.versions
            return False
        if shuffle.version == max(self.versions, default=0):
            assert not surely
            return False
        assert rows_of(self.path) == sorted(after)
        self.versions[shuffle.version] = sorted(after)
        return True

    @invariant()
    def the_newest_version_is_whole(self) -> None:
        if self.versions:
            assert rows_of(self.path) == self.newest
        else:
            try:
                open_shuffle(self.path)
            except ShuffleNotFoundError:
                return
            raise AssertionError

    # Operations -----------------------------------------------------------------------------------

    @rule(target=jobs, mode=st.sampled_from(["append", "overwrite"]), made=st.booleans())
    def begin(self, mode: str, made: bool) -> Job:
        job = begin(self.path, n=N, options=OPTIONS)
        open_target(job, mode)
        if made:
            job.make_directories()
        self.begun.append(Job(job, mode))
        return self.begun[-1]

    @rule(one=jobs, count=st.integers(0, 60), fault=faults)
    def run_task(self, one: Job, count: int, fault: tuple[int, str]) -> None:
        """An attempt of its next map task; one that fails or dies is followed by another."""
        first = self.next_row
        self.next_row += count
        batches = [numbered([v % N for v in range(first, self.next_row)], first)]
        status = []
        task = len(one.statuses)
        if one.is_swept:
            self.late.add(one.job.directory)
        self.attempt(fault, lambda: status.append(run_map_task(one.job, task, 0, batches)))
        if not status:
            try:
                status.append(run_map_task(one.job, task, 1, batches))
            except ShuffleError:
                assert one.is_over  # its directory is gone
                return
        one.statuses.append(status[0])
        one.rows += range(first, self.next_row)

    @rule(one=jobs, fault=faults)
    def commit(self, one: Job, fault: tuple[int, str]) -> None:
        after = [*self.newest, *one.rows] if one.mode == "append" else [*one.rows]
        was_over = one.is_over
        died, error = self.attempt(fault, lambda: commit_job(one.job, one.statuses, mode=one.mode))
        told = error is not None and "committed as version" not in str(error)
        changed = self.changed(after, surely=not (died or told or was_over))
        assert not (changed and (was_over or told))
        one.is_over = one.is_over or changed

    @rule(one=jobs, fault=faults)
    def abort(self, one: Job, fault: tuple[int, str]) -> None:
        died, error = self.attempt(fault, lambda: abort_job(one.job))
        # Where it had written nothing there is nothing that an abort could take away.
        one.is_over = one.is_over or (bool(one.rows) and not (died or error))
        assert not self.changed([], surely=False)

    @rule(one=consumes(jobs))
    def forget(self, one: Job) -> None:
        """The driver is gone: its job neither commits nor aborts."""

    @precondition(lambda self: self.versions)
    @rule(fault=faults, rewrite=st.sampled_from(["always", "never"]))
    def merge(self, fault: tuple[int, str], rewrite: str) -> None:
        policy = MergePolicy(rewrite=rewrite)
        self.attempt(
            fault, lambda: merge_shuffle(self.path, policy=policy, options=OPTIONS, by="map_output")
        )
        self.changed(self.newest, surely=False)

    @precondition(lambda self: self.versions)
    @rule(fault=faults, keeps=st.booleans())
    def collect(self, fault: tuple[int, str], keeps: bool) -> None:
        retention = timedelta(hours=1) if keeps else AT_ONCE
        self.attempt(fault, lambda: collect_garbage(self.path, retention=retention))
        if not keeps:
            self.collected_at_once()

    def collected_at_once(self) -> None:
        self.oldest = max(self.versions)
        for job in self.begun:
            job.is_swept = True

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def read_a_version(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)))
        try:
            found = rows_of(self.path, version)
        except ShuffleNotFoundError:
            assert version < self.oldest
        else:
            assert found == self.versions[version]

    @precondition(lambda self: self.versions)
    @rule()
    def collect_everything(self) -> None:
        """No orphan is left: only the files that the newest version names.

        What a task puts later than the retention after its job was swept stays until the segment of
        the log that ends the job is removed.
        """
        collect_garbage(self.path, retention=AT_ONCE)
        self.collected_at_once()
        there, live = files_there(self.path), live_files(open_shuffle(self.path))
        assert live <= there
        assert {file.rpartition("/")[0] for file in there - live} <= self.late


TestModel = ShuffleMachine.TestCase
TestModel.settings = settings(max_examples=examples(20, 200), stateful_step_count=30)
