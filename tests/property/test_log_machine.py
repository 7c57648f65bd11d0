"""Whatever is written, merged, collected or killed in any order: the rows are those of a model.

The model is a list of rows per version. Collections run with retention 0, so that everything that
may go does.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from arrow_format import collect_garbage, merge_shuffle, open_shuffle
from arrow_format.errors import CommitConflictError, ShuffleNotFoundError
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import open_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import PosixStorage
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import dies_after
from tests.support.small_log import small_segments
from tests.support.small_shuffles import FAST, begin, live_files, numbered, run, write_tasks

N = 5


@guarantee("faults")
class LogMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.path = Path(tempfile.mkdtemp())
        self.small = small_segments(segment=4, interval=2)
        self.small.__enter__()
        self.versions: dict[int, list[int]] = {}
        self.oldest = 1
        self.next = 0
        self.jobs: list[tuple[object, list, list[int]]] = []
        self.fenced: set[str] = set()
        self.pinned = None

    def teardown(self):
        self.small.__exit__(None, None, None)
        shutil.rmtree(self.path, ignore_errors=True)

    def rows(self):
        self.next += 100
        return list(range(self.next, self.next + N))

    @property
    def newest(self):
        return self.versions[max(self.versions)] if self.versions else []

    def committed(self, version, mode, rows):
        assert version not in self.versions
        assert version > max(self.versions, default=0)
        self.versions[version] = [*(self.newest if mode == "append" else []), *rows]

    @rule(mode=st.sampled_from(["append", "append", "overwrite"]))
    def write(self, mode):
        rows = self.rows()
        receipt = write_tasks(self.path, [[numbered(range(N), rows[0])]], N, mode=mode)
        self.committed(receipt.version, mode, rows)

    @rule()
    def begin_a_job(self):
        rows = self.rows()
        job = begin(self.path)
        open_target(job, "append")
        self.jobs.append((job, [run(job, 0, range(N), start=rows[0])], rows))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 9), mode=st.sampled_from(["append", "overwrite"]))
    def commit(self, which, mode):
        job, statuses, rows = self.jobs.pop(which % len(self.jobs))
        if job.job_id in self.fenced:
            with pytest.raises(CommitConflictError, match="was aborted, or given up"):
                commit_job(job, statuses, mode=mode)
            return
        receipt = commit_job(job, statuses, mode=mode)
        self.committed(receipt.version, mode, rows)
        assert commit_job(job, statuses, mode=mode).version == receipt.version

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0, 9))
    def abort(self, which):
        abort_job(self.jobs.pop(which % len(self.jobs))[0])

    @precondition(lambda self: self.versions)
    @rule()
    def merge(self):
        version = merge_shuffle(self.path, options=FAST, by="map_output").version
        self.versions.setdefault(version, self.newest)

    @precondition(lambda self: self.versions)
    @rule(number=st.integers(0, 99))
    def put_a_checkpoint(self, number):
        log = CommitLog(PosixStorage(str(self.path)))
        view = log.view()
        log.put_checkpoint(view.last, view.oldest + number % (view.newest - view.oldest + 1))

    @precondition(lambda self: self.versions)
    @rule()
    def lose_checkpoints(self):
        """As if those who should have put them had died."""
        for file in self.path.glob("commit_log/*/*.range"):
            file.unlink()

    @rule(changes=st.none() | st.integers(0, 12))
    def collect(self, changes):
        if not list(self.path.iterdir()):
            return
        if changes is not None:
            dies_after(changes, partial(collect_garbage, self.path, retention=timedelta(0)))
        report = collect_garbage(self.path, retention=timedelta(0))
        self.fenced.update(job.job_id for job, _, _ in self.jobs)
        self.oldest = max(self.versions, default=1)
        assert report.newest_version == max(self.versions, default=0)
        live = live_files(open_shuffle(self.path)) if self.versions else set()
        there = {str(one.relative_to(self.path)) for one in self.path.glob("map_outputs/*/*")}
        assert there == live

    @precondition(lambda self: self.versions)
    @rule()
    def pin(self):
        self.pinned = open_shuffle(self.path)

    @invariant()
    def rows_are_those_of_the_model(self):
        if not self.versions:
            return
        for version, rows in self.versions.items():
            if version >= self.oldest:
                shuffle = open_shuffle(self.path, version)
                assert sorted(shuffle.read().read_all()["v"].to_pylist()) == sorted(rows)
                assert sum(shuffle.subpartition_rows.to_pylist()) == len(rows)
            else:
                with pytest.raises(ShuffleNotFoundError, match="expired"):
                    open_shuffle(self.path, version)
        assert open_shuffle(self.path).version == max(self.versions)
        if self.pinned is None:
            return
        if self.pinned.version >= self.oldest:
            rows = self.versions[self.pinned.version]
            assert sorted(self.pinned.read().read_all()["v"].to_pylist()) == sorted(rows)


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=times(5, 50), stateful_step_count=12)
