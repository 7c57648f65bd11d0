"""Garbage collection of the log: a base for what goes, then lists, then segments are removed."""

from __future__ import annotations

from datetime import timedelta

import pytest

from arrow_format import ShuffleNotFoundError, StorageError, collect_garbage, open_shuffle
from arrow_format.jobs import garbage
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.gc_plan import SWEPT_TOGETHER
from arrow_format.jobs.tags import tag_shuffle
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.job_ends import JobEnd
from tests.support.guarantees import guarantee
from tests.support.logs import add, log_of, start_job
from tests.support.recording_storage import RecordingStorage
from tests.support.small_log import SEGMENT
from tests.support.small_shuffles import (
    N,
    collect,
    make_old,
    run,
    sorted_values,
    values,
)

pytestmark = pytest.mark.usefixtures("small_log")


def reads_of_open(path):
    storage = RecordingStorage(str(path))
    open_shuffle(storage)
    return [name for name in storage.others if name.startswith("commit_log/")]


@pytest.mark.slow
@guarantee("checkpoints")
def test_a_collected_log_is_opened_with_few_reads_however_it_goes_on(tmp_path):
    """Also by checkpoints that begin before the base, and hold what it holds."""
    for number in range(10 * SEGMENT):
        add(tmp_path, number * N)
        if number in (25, 27, 60):
            collect(tmp_path)
        assert len(reads_of_open(tmp_path)) <= 10
    assert sorted_values(tmp_path) == list(range(10 * SEGMENT * N))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_a_job_that_ended_long_ago_is_not_committed_again(tmp_path, killed, monkeypatch):
    """Nor where the collection died before it put the list of what the segment held."""
    job, statuses = start_job(tmp_path)
    commit_job(job, statuses)
    for start in range(3 * SEGMENT):
        add(tmp_path, start, mode="overwrite")
    collect(tmp_path)  # the log goes with the next one, after the files
    with monkeypatch.context() as patch:
        if killed:
            patch.setattr(garbage._Collection, "_segments", dies)
            patch.setattr(garbage._Collection, "_remove_files", lambda *_: [])
            with pytest.raises(StorageError, match="killed"):
                collect(tmp_path)
        else:
            collect(tmp_path)
    log = log_of(tmp_path)
    assert log.view().state.base > SEGMENT
    assert log.find_job(job.job_id) == JobEnd(1, fenced=False)
    with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
        commit_job(job, statuses, mode="append")
    abort_job(job)
    assert len(values(tmp_path)) == N
    report = collect(tmp_path)
    assert (report.fenced_jobs, report.running_jobs) == ((), ())
    assert list_of_jobs(tmp_path) == jobs_of_newest(tmp_path)


def dies(*_):
    msg = "killed"
    raise StorageError(msg)


def list_of_jobs(path):
    return sorted(one.name for one in (path / "map_outputs").iterdir())


def jobs_of_newest(path):
    return sorted(open_shuffle(path).map_outputs.job_ids)


@pytest.mark.slow
@guarantee("fences")
@pytest.mark.parametrize("committed", [True, False])
def test_files_of_a_late_task_of_a_job_whose_segment_is_gone(tmp_path, committed):
    """The job ended, so it is not given up; one that did not is, however long the log."""
    job, statuses = start_job(tmp_path)
    if committed:
        commit_job(job, statuses)
    else:
        make_old(tmp_path / job.directory, timedelta(hours=0))
    for start in range(3 * SEGMENT):
        add(tmp_path, start, mode="overwrite")
        if start % 10 == 9 and committed:
            collect(tmp_path)
    if not committed:
        collect_garbage(tmp_path, retention=timedelta(hours=1))
    for _ in range(2 * committed):
        collect(tmp_path)
    segments = sorted(one.name for one in (tmp_path / "commit_log").iterdir())
    assert (f"{0:018d}" in segments) is not committed
    run(job, 1, range(N))
    kept = collect_garbage(tmp_path, retention=timedelta(hours=1))
    assert kept.running_jobs == (job.job_id,)
    make_old(tmp_path / job.directory, timedelta(hours=2))
    newest = open_shuffle(tmp_path).version
    said = collect_garbage(tmp_path, retention=timedelta(hours=1), dry_run=True)
    done = collect_garbage(tmp_path, retention=timedelta(hours=1))
    assert said.fenced_jobs == done.fenced_jobs == (() if committed else (job.job_id,))
    assert not (tmp_path / job.directory).exists()
    assert CommitLog(job.storage).find_job(job.job_id).fenced is not committed
    assert open_shuffle(tmp_path).version == newest
    assert len(values(tmp_path)) == N


@pytest.mark.slow
def test_a_collection_does_not_read_what_collections_have_removed(tmp_path):
    """Entries that change no version pass the retention, right after a segment that is gone."""
    for number in range(SEGMENT):
        add(tmp_path, number * N, mode="overwrite")
    collect(tmp_path)
    state = log_of(tmp_path).view().state
    assert state.oldest == state.base == SEGMENT
    make_old(tmp_path / "commit_log" / "expired", timedelta(hours=1))
    collect(tmp_path)
    assert not (tmp_path / "commit_log" / f"{0:018d}").exists()
    for number in range(SWEPT_TOGETHER):
        tag_shuffle(tmp_path, f"t{number}")
    assert collect(tmp_path).num_files == 0
    assert len(values(tmp_path)) == N
