"""A long-lived table: whatever is written, undone, tagged or collected, versions are a model's.

The model is the rows of each version, and the tags. Collections run with retention 0.
"""

from __future__ import annotations

import shutil
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from arrow_format import (
    MergePolicy,
    collect_garbage,
    list_tags,
    merge_shuffle,
    open_shuffle,
    release_shuffle,
    repair_shuffle,
    rollback_shuffle,
    tag_shuffle,
    untag_shuffle,
)
from arrow_format.errors import (
    CommitConflictError,
    ShuffleExistsError,
    ShuffleNotFoundError,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import open_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.storage.open import open_storage
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import CHANGES, dies_after
from tests.support.small_shuffles import FAST, begin, live_files, numbered, run, write_tasks

N = 5
NAMES = st.sampled_from(["a", "b", "c"])
PICKS = st.integers(0, 10)


@guarantee("faults")
class TableMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.path = Path(tempfile.mkdtemp())
        self.versions: dict[int, list[int]] = {}
        self.tags: dict[str, int] = {}
        self.oldest = 1
        self.changed = 0
        self.released = 0
        self.next = 0
        self.turn = 0

    def teardown(self):
        try:
            for version in self.versions:
                self.check(version)
            assert not self.versions or repair_shuffle(self.path).is_sound
        finally:
            shutil.rmtree(self.path, ignore_errors=True)

    def check(self, version):
        if not self.can_be_opened(version):
            with pytest.raises(ShuffleNotFoundError):
                open_shuffle(self.path, version)
            return
        shuffle = open_shuffle(self.path, version)
        rows = sorted(shuffle.read().read_all()["v"].to_pylist())
        assert rows == self.versions[version]
        assert sum(shuffle.subpartition_rows.to_pylist()) == len(rows)

    @property
    def newest(self):
        return max(self.versions, default=0)

    @property
    def is_ended(self):
        return self.versions.get(self.newest) is None

    def wanted(self, pick):
        """Some version that was committed once."""
        known = sorted(self.versions)
        return known[pick % len(known)]

    def can_be_opened(self, version):
        is_kept = version >= self.oldest or version in self.tags.values()
        return is_kept and self.versions[version] is not None

    def can_be_restored(self, version):
        return self.can_be_opened(version) and version > self.released

    def add(self, mode, expected=None):
        self.next += 100
        ids = list(range(N))
        job = begin(self.path)
        try:
            open_target(job, mode, expected_version=expected)
            receipt = commit_job(
                job, [run(job, 0, ids, start=self.next)], mode=mode, expected_version=expected
            )
        except CommitConflictError:
            return False
        before = self.versions.get(self.newest) or [] if mode == "append" else []
        self.versions[receipt.version] = sorted([*before, *range(self.next, self.next + N)])
        self.changed = receipt.version
        return True

    @rule(mode=st.sampled_from(["append", "append", "overwrite"]))
    def write(self, mode):
        assert self.add(mode)

    @precondition(lambda self: self.versions)
    @rule(mode=st.sampled_from(["append", "overwrite"]), pick=PICKS)
    def write_expecting(self, mode, pick):
        expected = self.wanted(pick)
        is_unchanged = expected >= max(self.changed, self.oldest)
        assert self.add(mode, expected) is is_unchanged

    @precondition(lambda self: self.versions and not self.is_ended)
    @rule()
    def merge(self):
        before = self.versions[self.newest]
        report = merge_shuffle(
            self.path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output"
        )
        self.versions[report.version] = before

    @precondition(lambda self: self.versions)
    @rule(pick=PICKS, calls=st.none() | st.integers(0, 3))
    def roll_back(self, pick, calls):
        version = self.wanted(pick)
        if not self.can_be_restored(version):
            with pytest.raises(ShuffleNotFoundError):
                rollback_shuffle(self.path, version)
            return
        if calls is not None and dies_after(calls, lambda: rollback_shuffle(self.path, version)):
            return
        if calls is None:
            rollback_shuffle(self.path, version)
        self.changed = open_shuffle(self.path).version
        self.versions[self.changed] = self.versions[version]

    @precondition(lambda self: self.versions)
    @rule(name=NAMES, pick=PICKS)
    def tag(self, name, pick):
        version = self.wanted(pick)
        if name in self.tags or not self.can_be_restored(version):
            with pytest.raises((ShuffleExistsError, ShuffleNotFoundError)):
                tag_shuffle(self.path, name, version)
            return
        tag_shuffle(self.path, name, version)
        self.tags[name] = version

    @precondition(lambda self: self.versions)
    @rule(name=NAMES)
    def untag(self, name):
        assert untag_shuffle(self.path, name) is (self.tags.pop(name, None) is not None)

    @precondition(lambda self: self.versions and not self.is_ended)
    @rule()
    def release(self):
        last = self.newest
        assert release_shuffle(self.path)
        number = CommitLog(open_storage(self.path)).view().state.ended
        self.versions[number] = None
        self.changed = self.released = self.oldest = number
        assert number > last

    @precondition(lambda self: self.versions)
    @rule(calls=st.none() | st.integers(0, 6), compacts=st.booleans())
    def collect(self, calls, compacts):
        def collect():
            collect_garbage(self.path, retention=timedelta(0), compact_log=compacts)

        if calls is not None:
            dies_after(calls, collect, (*CHANGES, "replace"))
        collect()
        self.oldest = self.newest

    @invariant()
    def every_version_is_that_of_the_model(self):
        if not getattr(self, "versions", None):
            return
        self.turn += 1
        # All of them at the end; here the newest, and another in turn.
        for version in {self.newest, self.wanted(self.turn)}:
            self.check(version)
        for name, version in self.tags.items():
            assert open_shuffle(self.path, name).version == version
        assert {tag.name: tag.version for tag in list_tags(self.path)} == self.tags

    @invariant()
    def nothing_is_left_over(self):
        if not getattr(self, "versions", None) or self.oldest < self.newest:
            return
        kept = {self.newest, *self.tags.values()} - {
            version for version, rows in self.versions.items() if rows is None
        }
        named = set().union(*(live_files(open_shuffle(self.path, version)) for version in kept))
        collect_garbage(self.path, retention=timedelta(0))
        there = {str(file.relative_to(self.path)) for file in self.path.glob("map_outputs/*/*")}
        assert there == named


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(max_examples=times(8, 60), stateful_step_count=25)


def test_a_table_that_is_written_and_undone_many_times(tmp_path):
    path = tmp_path / "table"
    write_tasks(path, [[numbered([0])]], N)
    for _ in range(70):
        write_tasks(path, [[numbered([0])]], N, mode="append")
        rollback_shuffle(path, 1)
    assert open_shuffle(path).num_rows == 1
    collect_garbage(path, retention=timedelta(0))
    assert open_shuffle(path).verify().ok
    assert len(list(path.rglob("*.data"))) == 1
