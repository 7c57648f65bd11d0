"""A job is committed or aborted, never both, whatever two processes do at once."""

from __future__ import annotations

import pickle
import shutil

import pyarrow as pa
import pytest

from arrow_format import ColumnPartitioner, CorruptShuffleError, ShuffleError, open_shuffle
from arrow_format.jobs import cleanup
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.decision import decide_abort, decide_commit
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.options import WriteOptions
from arrow_format.storage.local_dirs import ROOT_LIST_NAME
from arrow_format.storage.open import PosixStorage
from tests.support.small_shuffles import files_below

ROWS = pa.record_batch({"k": pa.array([0, 1, 2, 3] * 5), "v": pa.array(range(20))})


def begin(path):
    job = begin_job(
        str(path),
        ROWS.schema,
        num_subpartitions=4,
        partitioner=ColumnPartitioner("k"),
        options=WriteOptions(sync=False),
    )
    return job, [run_map_task(job, 0, 0, [ROWS])]


def test_an_aborted_job_cannot_be_committed(tmp_path):
    job, statuses = begin(tmp_path / "x")
    abort_job(job)
    with pytest.raises(CorruptShuffleError, match=r"is not there, expected .* before the commit"):
        commit_job(job, statuses)
    assert files_below(tmp_path) == []


def test_an_abort_that_has_decided_stops_the_commit(tmp_path):
    job, statuses = begin(tmp_path / "x")
    assert decide_abort(job)
    with pytest.raises(ShuffleError, match="was aborted, and its files are removed"):
        commit_job(job, statuses)
    assert CommitLog(job.storage).newest_version() == 0


def test_a_commit_under_way_is_not_aborted(tmp_path):
    job, statuses = begin(tmp_path / "x")
    decide_commit(job, "c0ffee")
    before = files_below(tmp_path)
    abort_job(job)
    assert files_below(tmp_path) == before
    with pytest.raises(ShuffleError, match="is being committed by another process"):
        commit_job(job, statuses)


def test_an_abort_after_the_commit_changes_nothing(tmp_path):
    job, statuses = begin(tmp_path / "x")
    commit_job(job, statuses)
    before = files_below(tmp_path)
    abort_job(job)
    assert files_below(tmp_path) == before
    assert open_shuffle(tmp_path / "x").verify().ok


class CommitsInBetween(PosixStorage):
    """Lets another process commit the same job just before a decision is put."""

    def put_if_absent(self, path, data, *, sync):
        if path.endswith("/decision") and self.other is not None:
            other, self.other = self.other, None
            other()
        super().put_if_absent(path, data, sync=sync)


def test_a_job_committed_twice_at_once_counts_once(tmp_path):
    first, before = begin(tmp_path / "x")
    commit_job(first, before)
    job, statuses = begin(tmp_path / "x")
    storage = CommitsInBetween(str(tmp_path / "x"))
    storage.other = lambda: commit_job(job, statuses, mode="append")
    slow = pickle.loads(pickle.dumps(job))
    object.__setattr__(slow, "storage", storage)

    receipt = commit_job(slow, statuses, mode="append")

    assert receipt.version == 2
    assert open_shuffle(tmp_path / "x").num_rows == 40


def test_an_abort_that_lost_to_a_commit_leaves_its_files(tmp_path):
    job, statuses = begin(tmp_path / "x")
    storage = CommitsInBetween(str(tmp_path / "x"))
    storage.other = lambda: commit_job(job, statuses)
    slow = pickle.loads(pickle.dumps(job))
    object.__setattr__(slow, "storage", storage)

    abort_job(slow)

    assert open_shuffle(tmp_path / "x").verify().num_rows == 20


def begin_in_local_directory(tmp_path, monkeypatch, path="x"):
    """Begin a job all of whose files lie in a local directory: its own is pruned at the commit."""
    monkeypatch.setattr("arrow_format.write.map_output.first_root", lambda *_: 1)
    job = begin_job(
        str(tmp_path / path), ROWS.schema, num_subpartitions=4, partitioner=ColumnPartitioner("k"),
        options=WriteOptions(sync=False, local_dirs=(str(tmp_path / "local"),)),
    )  # fmt: skip
    open_target(job, "append")
    statuses = [run_map_task(job, 0, 0, [ROWS])]
    assert [file.root for file in statuses[0].output.files] == [1]
    return job, statuses


class CommitsAfterLook(PosixStorage):
    """Lets another process commit right after the first look at a directory or the log."""

    def list(self, path):
        found = super().list(path)
        self.look("list", path)
        return found

    def stat(self, path):
        found = super().stat(path)
        self.look("stat", path)
        return found

    def look(self, what, path):
        if self.other is not None and (what, path.split("/")[0]) == self.moment:
            other, self.other = self.other, None
            other()


@pytest.mark.parametrize("moment", [("list", "commit_log"), ("stat", "map_outputs")])
def test_an_abort_that_lost_to_a_commit_leaves_files_in_local_directories(
    tmp_path, monkeypatch, moment
):
    job, statuses = begin_in_local_directory(tmp_path, monkeypatch)
    storage = CommitsAfterLook(str(tmp_path / "x"))
    storage.moment, storage.other = moment, lambda: commit_job(job, statuses)
    slow = pickle.loads(pickle.dumps(job))
    object.__setattr__(slow, "storage", storage)

    abort_job(slow)

    assert storage.other is None
    assert open_shuffle(tmp_path / "x").verify().num_rows == 20
    assert not list((tmp_path / "x").glob("map_outputs/*")), "nor does its decision stay"


def test_a_commit_tried_again_is_not_aborted_though_its_directory_was_pruned(tmp_path, monkeypatch):
    job, statuses = begin_in_local_directory(tmp_path, monkeypatch)
    real, aborted = CommitLog.append, []

    def fails(self, decide, **how):
        msg = "the store went away"
        raise OSError(msg)

    monkeypatch.setattr(CommitLog, "append", fails)
    with pytest.raises(OSError, match="the store went away"):
        commit_job(job, statuses)
    # Nothing but the list of roots keeps it; it does not depend on that.
    (tmp_path / "x" / job.directory / ROOT_LIST_NAME).unlink()
    (tmp_path / "x" / job.directory).rmdir()

    def abort_meanwhile(self, decide, **how):
        abort_job(job)
        aborted.append(True)
        return real(self, decide, **how)

    monkeypatch.setattr(CommitLog, "append", abort_meanwhile)
    commit_job(job, statuses)
    assert aborted
    assert open_shuffle(tmp_path / "x").verify().num_rows == 20


def test_no_commit_comes_between_the_files_of_an_abort(tmp_path, monkeypatch):
    """Until the last file is gone, also in local directories, the decision stands."""
    job, statuses = begin_in_local_directory(tmp_path, monkeypatch)
    real, refused = cleanup.clear_roots, []

    def clear(*arguments):
        with pytest.raises(ShuffleError, match="was aborted"):
            commit_job(job, statuses)
        refused.append(True)
        real(*arguments)

    monkeypatch.setattr(cleanup, "clear_roots", clear)
    abort_job(job)
    assert refused
    assert files_below(tmp_path) == ["local"]


@pytest.mark.parametrize("opened", [True, False])
def test_an_abort_of_a_job_that_never_wrote_leaves_no_directory(tmp_path, opened):
    job = begin_job(
        str(tmp_path / "x"), ROWS.schema, num_subpartitions=4, partitioner=ColumnPartitioner("k"),
        options=WriteOptions(sync=False, local_dirs=(str(tmp_path / "local"),)),
    )  # fmt: skip
    if opened:
        open_target(job, "append")
    abort_job(job)
    assert files_below(tmp_path) == (["local"] if opened else [])


def test_an_abort_after_the_job_directory_is_gone_clears_local_directories(tmp_path, monkeypatch):
    job, _ = begin_in_local_directory(tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "x")
    abort_job(job)
    assert files_below(tmp_path) == ["local"]


class LosesPower(PosixStorage):
    """Fails behind the moment at which the entry becomes visible."""

    def put_if_absent(self, path, data, *, sync):
        super().put_if_absent(path, data, sync=sync)
        if "commit_log/0" in path:
            msg = "directory could not be synced"
            raise OSError(msg)


def test_a_commit_that_went_through_is_not_told_as_a_failure_to_repeat(tmp_path):
    job, statuses = begin(tmp_path / "x")
    object.__setattr__(job, "storage", LosesPower(str(tmp_path / "x")))
    with pytest.raises(ShuffleError, match=r"committed as version 1, .* Do not write"):
        commit_job(job, statuses)
    assert open_shuffle(tmp_path / "x").verify().num_rows == 20


def test_a_pinned_version_is_that_very_version(tmp_path):
    job, statuses = begin(tmp_path / "x")
    commit_job(job, statuses)
    pinned = pickle.dumps(open_shuffle(tmp_path / "x"))
    assert pickle.loads(pinned).num_rows == 20
    (tmp_path / "x").rename(tmp_path / "y")
    job, statuses = begin(tmp_path / "x")
    commit_job(job, statuses)
    with pytest.raises(CorruptShuffleError, match="the directory was replaced"):
        pickle.loads(pinned)
