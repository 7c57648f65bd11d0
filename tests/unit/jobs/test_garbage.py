"""Garbage collection: what goes, what stays, who is told, and that it may die anywhere."""

import errno
import os
import pickle
import shutil
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import collect_garbage, merge_shuffle, open_shuffle, relocate_shuffle
from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    OptionError,
    ShuffleError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import entry_path, segment_path
from arrow_format.log.version_names import first_true
from arrow_format.storage import local_dirs
from arrow_format.storage.local import PosixReader
from arrow_format.storage.open import PosixStorage
from arrow_format.storage.root_owner import Marker, read_marker, to_json
from tests.support.exhaustive import every, times
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import (
    CHANGES,
    before_call,
    before_calls,
    dies_after,
)
from tests.support.logs import log_of, start_job
from tests.support.recording_storage import RecordingStorage
from tests.support.results import child
from tests.support.small_shuffles import (
    FAST,
    N,
    begin,
    collect,
    files_below,
    make_old,
    numbered,
    run,
    sorted_values,
    values,
    write_tasks,
)

DAY = timedelta(days=1)


def write(path, start, mode="append", rows=10):
    return write_tasks(path, [[numbered([i % N for i in range(rows)], start)]], N, mode=mode)


def write_each(path, starts, mode="append"):
    for start in starts:
        write(path, start, mode)


class TestVersions:
    @guarantee("retention")
    def test_what_was_superseded_goes_and_the_newest_stays(self, tmp_path):
        write_each(tmp_path, (0, 100, 200), "overwrite")
        report = collect(tmp_path)
        assert report.expired_versions == (1, 2)
        assert (report.oldest_version, report.newest_version) == (3, 3)
        assert sorted_values(tmp_path) == list(range(200, 210))
        assert open_shuffle(tmp_path).verify().ok
        assert len(list(tmp_path.glob("map_outputs/*/*"))) == 2
        assert report.num_files == 4
        assert report.num_bytes == sum(file.num_bytes for file in report.files) > 0
        assert not any(Path(file.path).exists() for file in report.files)
        assert "; expired: 2 versions" in str(report)
        assert collect(tmp_path).num_files == 0

    @guarantee("incomplete newest version")
    @pytest.mark.parametrize("suffix", ["data", "index"])
    @pytest.mark.parametrize("dry_run", [False, True])
    def test_nothing_goes_while_the_newest_lacks_a_file(self, tmp_path, suffix, dry_run):
        write_each(tmp_path, (0, 100, 200), "overwrite")
        (output,) = open_shuffle(tmp_path).map_outputs
        lost = tmp_path / f"{output.files[0].path}.shuffle.{suffix}"
        content = lost.read_bytes()
        lost.unlink()
        with pytest.raises(CorruptShuffleError, match=r"is not there.*nothing was removed"):
            collect(tmp_path, dry_run=dry_run)
        assert sorted_values(tmp_path, 2) == list(range(100, 110))
        lost.write_bytes(content[:-1])
        with pytest.raises(CorruptShuffleError, match=rf"has {len(content) - 1} bytes"):
            collect(tmp_path, dry_run=dry_run)
        write(tmp_path, 300, "overwrite")
        assert collect(tmp_path).expired_versions == (1, 2, 3)

    def test_what_appends_added_is_part_of_the_newest(self, tmp_path):
        write_each(tmp_path, (0, 100, 200))
        before = sorted_values(tmp_path)
        files = set(tmp_path.glob("map_outputs/*/*"))
        report = collect(tmp_path)
        assert report.expired_versions == (1, 2)
        assert set(tmp_path.glob("map_outputs/*/*")) == files
        assert sorted_values(tmp_path) == before
        assert open_shuffle(tmp_path).subpartition_rows.to_pylist() == [6] * N
        assert write(tmp_path, 300).version == 5, "after an entry that says what expired"
        assert sorted_values(tmp_path) == sorted([*before, *range(300, 310)])

    def test_within_the_retention_everything_stays(self, tmp_path):
        write_each(tmp_path, (0, 100), "overwrite")
        start_job(tmp_path)
        before = files_below(tmp_path)
        report = collect_garbage(tmp_path)
        assert (report.num_files, report.expired_versions, report.fenced_jobs) == (0, (), ())
        assert len(report.running_jobs) == 1
        assert files_below(tmp_path) == before

    @guarantee("retention")
    def test_retention_counts_from_when_another_took_its_place(self, tmp_path):
        write(tmp_path, 0, "overwrite")
        time.sleep(0.3)
        write(tmp_path, 100, "overwrite")
        report = collect_garbage(tmp_path, retention=timedelta(seconds=0.25))
        assert report.expired_versions == ()
        assert sorted_values(tmp_path, 1) == list(range(10))

    def test_a_writer_whose_clock_is_far_ahead_keeps_nothing_for_long(self, tmp_path, monkeypatch):
        write(tmp_path, 0, "overwrite")
        years_ahead = time.time_ns() + 70 * 365 * 24 * 3600 * 10**9
        with monkeypatch.context() as patch:
            patch.setattr(time, "time_ns", lambda: years_ahead)
            write(tmp_path, 100, "overwrite")
        assert collect_garbage(tmp_path, retention=timedelta(hours=2)).expired_versions == ()
        for file in (tmp_path / "commit_log").rglob("*.entry"):
            os.utime(file, (time.time() - 4 * 3600,) * 2)
        assert collect_garbage(tmp_path, retention=timedelta(hours=2)).expired_versions == (1,)

    @guarantee("expired versions")
    def test_an_expired_version_says_so(self, tmp_path):
        write(tmp_path, 0, "overwrite")
        pinned = open_shuffle(tmp_path)
        halfway = iter(open_shuffle(tmp_path).rows())
        sent = pickle.dumps(pinned)
        write(tmp_path, 100, "overwrite")
        collect(tmp_path)
        for use in (
            lambda: open_shuffle(tmp_path, 1),
            lambda: pinned.read().read_all(),
            lambda: pinned.verify(),
            lambda: pinned.verify(raise_on_damage=False),
            lambda: pinned.plan(),
            lambda: list(halfway),
            lambda: pickle.loads(sent).read().read_all(),
        ):
            with pytest.raises(ShuffleNotFoundError, match="version 1 has expired and was removed"):
                use()
        assert pinned.subpartition_rows.to_pylist() == [2] * N, "the log said so when it was opened"

    def test_an_expired_version_says_so_where_an_open_file_is_stale(self, tmp_path, monkeypatch):
        """As over NFS, where another client has removed it."""
        write(tmp_path, 0)
        write(tmp_path, 100, "overwrite")
        pinned = open_shuffle(tmp_path, 1)
        preadv, get_ranges, stale = os.preadv, PosixReader.get_ranges, []

        def collecting(reader, ranges):
            if reader._path.endswith(".data"):
                collect(tmp_path)
            return get_ranges(reader, ranges)

        def on_nfs(handle, *arguments):
            if os.fstat(handle).st_nlink == 0:
                stale.append(handle)
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            return preadv(handle, *arguments)

        monkeypatch.setattr(PosixReader, "get_ranges", collecting)
        monkeypatch.setattr(os, "preadv", on_nfs)
        with pytest.raises(ShuffleNotFoundError, match="version 1 has expired and was removed"):
            pinned.subpartition(1).read_all()
        assert stale

    def test_damage_of_a_version_that_stays_is_damage(self, tmp_path):
        write(tmp_path, 0, "overwrite")
        write(tmp_path, 100, "overwrite")
        collect(tmp_path)
        (data,) = tmp_path.glob("map_outputs/*/*.data")
        data.unlink()
        with pytest.raises(CorruptShuffleError):
            open_shuffle(tmp_path).read().read_all()

    def test_a_pinned_reader_of_a_version_that_stays_goes_on(self, tmp_path):
        """Also where the entries that it was opened from are gone."""
        write_each(tmp_path, (0, 100, 200))
        pinned = open_shuffle(tmp_path)
        sent = pickle.dumps(pinned)
        collect(tmp_path)
        assert pinned.subpartition_rows.to_pylist() == [6] * N
        assert sorted(pinned.read().read_all()["v"].to_pylist()) == sorted_values(tmp_path)
        assert pickle.loads(sent).num_rows == 30

    def test_merged_files_replace_their_inputs(self, tmp_path):
        write_each(tmp_path, range(0, 500, 100))
        before = sorted_values(tmp_path)
        merge_shuffle(tmp_path, by="map_output")
        assert len(list(tmp_path.glob("map_outputs/*/*.data"))) > 5
        collect(tmp_path)
        assert len(list(tmp_path.glob("map_outputs/*/*.data"))) == 1
        assert sorted_values(tmp_path) == before

    def test_a_merge_after_a_fence_tells_its_own_number(self, tmp_path):
        write_each(tmp_path, range(0, 500, 100))
        start_job(tmp_path)
        collect(tmp_path)
        assert (
            merge_shuffle(tmp_path, by="map_output").version == open_shuffle(tmp_path).version == 8
        )

    def test_a_job_of_an_expired_version_is_not_committed_again(self, tmp_path):
        job, statuses = start_job(tmp_path)
        commit_job(job, statuses)
        write(tmp_path, 0, "overwrite")
        collect(tmp_path)
        with pytest.raises(ShuffleNotFoundError, match="version 1 has expired"):
            commit_job(job, statuses, mode="append")
        abort_job(job)
        assert sorted_values(tmp_path) == list(range(10))

    def test_a_gap_is_noticed_all_the_same(self, tmp_path):
        write_each(tmp_path, range(5), "overwrite")
        collect(tmp_path)
        write(tmp_path, 7)
        write(tmp_path, 8)
        (tmp_path / entry_path(7)).unlink()
        with pytest.raises(CorruptShuffleError, match=r"0007\.entry: is not there, and the"):
            open_shuffle(tmp_path)

    def test_a_damaged_log_is_left_alone(self, tmp_path):
        write_each(tmp_path, range(3), "overwrite")
        (tmp_path / entry_path(2)).write_bytes(b"damaged")
        before = files_below(tmp_path)
        with pytest.raises(CorruptShuffleError):
            collect(tmp_path)
        assert files_below(tmp_path) == before


class TestJobs:
    @guarantee("fences")
    def test_a_silent_job_is_fenced_and_fails_at_commit(self, tmp_path):
        write(tmp_path, 0)
        job, statuses = start_job(tmp_path)
        make_old(tmp_path / job.directory, 2 * DAY)
        report = collect_garbage(tmp_path)
        assert report.fenced_jobs == (job.job_id,)
        assert not (tmp_path / job.directory).exists()
        with pytest.raises(CommitConflictError, match=rf"{job.job_id} was aborted, or given up"):
            commit_job(job, statuses, mode="append")
        assert not (tmp_path / job.directory).exists()
        assert sorted_values(tmp_path) == list(range(10))
        assert write(tmp_path, 50).version == 3, "the fence took a number"
        assert collect_garbage(tmp_path).fenced_jobs == ()

    def test_a_fence_is_durable_before_files_go(self, tmp_path):
        write(tmp_path, 0)
        job, _ = start_job(tmp_path)
        make_old(tmp_path / job.directory, 2 * DAY)
        storage = RecordingStorage(str(tmp_path))
        assert collect_garbage(storage).fenced_jobs == (job.job_id,)
        assert storage.durable[:1] == [entry_path(2)]

    @pytest.mark.parametrize("where", ["data", "directory"])
    def test_a_job_that_wrote_of_late_is_not(self, tmp_path, where):
        job, statuses = start_job(tmp_path)
        make_old(tmp_path / job.directory, 2 * DAY)
        for one in (tmp_path / job.directory).glob(f"*{where}") if where == "data" else ():
            one.touch()
        if where != "data":
            (tmp_path / job.directory).touch()
        report = collect_garbage(tmp_path)
        assert report.running_jobs == (job.job_id,)
        assert commit_job(job, statuses).num_rows == N

    @pytest.mark.slow
    @guarantee("killed collection")
    def test_collections_at_any_step_of_another(self, tmp_path):
        """And others that overwrite: no error, and nothing is left that nothing needs."""
        for step in every(3):
            path = tmp_path / str(step)
            write(path, 0)
            start_job(path)
            write(path, 100, "overwrite")

            def overtake(path=path):
                write(path, 200, "overwrite")
                collect(path)

            calls = ("put_if_absent", "stat", "list", "read", "delete_all")
            with before_call(step, overtake, calls) as came:
                collect(path)
            rows = range(200, 210) if came else range(100, 110)
            assert sorted_values(path) == list(rows)
            collect(path)
            assert len(list(path.glob("map_outputs/*/*"))) == 2
            if not came:
                break
        assert step > 20

    def test_before_the_first_version(self, tmp_path):
        job, statuses = start_job(tmp_path)
        report = collect(tmp_path)
        assert (report.oldest_version, report.newest_version) == (0, 0)
        assert report.fenced_jobs == (job.job_id,)
        with pytest.raises(CommitConflictError, match="given up"):
            commit_job(job, statuses)
        with pytest.raises(ShuffleNotFoundError, match="no committed shuffle"):
            open_shuffle(tmp_path)
        assert write(tmp_path, 0, "errorifexists").version == 2
        assert collect(tmp_path).newest_version == 2
        assert sorted_values(tmp_path) == list(range(10))

    @pytest.mark.slow
    @guarantee("fences")
    def test_at_any_step_of_a_commit_one_of_both_wins(self, tmp_path):
        """A collection between any two operations of a commit: all rows are there, or none."""
        for step in count():
            if not self.collected_at(step, tmp_path / str(step)):
                break
        assert step >= 7

    def collected_at(self, step, path):
        """Commit, with a collection before operation `step`; whether there was one so late."""
        write(path, 0)
        job, statuses = start_job(path)
        names = ("put_if_absent", "stat", "list", "read", "delete", "delete_all", "prune")
        with before_call(step, partial(collect, path), names) as collected:
            try:
                receipt = commit_job(job, statuses, mode="append")
            except ShuffleError as error:
                receipt, said = None, str(error)
        log = log_of(path)
        if receipt is None:
            assert "given up by garbage" in said or "is not there" in said
            assert log.find_job(job.job_id).fenced
            assert sorted_values(path) == list(range(10))
        else:
            assert not log.find_job(job.job_id).fenced
            assert sorted_values(path) == [*range(10), *range(1000, 1005)]
        assert open_shuffle(path).verify().ok
        return bool(collected)

    def test_a_job_that_commits_before_its_fence_is_not_fenced(self, tmp_path, monkeypatch):
        write(tmp_path, 0)
        job, statuses = start_job(tmp_path)
        real = CommitLog.append

        def append(self, decide, **how):
            if how.get("job_id") is None:
                commit_job(job, statuses, mode="append")
            return real(self, decide, **how)

        monkeypatch.setattr(CommitLog, "append", append)
        report = collect(tmp_path)
        assert (report.fenced_jobs, report.newest_version) == ((), 2)
        assert commit_job(job, statuses, mode="append").version == 2
        assert sorted_values(tmp_path) == [*range(10), *range(1000, 1005)]

    def test_a_fenced_merge_changes_nothing(self, tmp_path, monkeypatch):
        write_each(tmp_path, range(0, 500, 100))
        before = sorted_values(tmp_path)
        real = CommitLog.append

        def late(self, decide, **how):
            if how.get("job_id"):
                collect(tmp_path)
            return real(self, decide, **how)

        monkeypatch.setattr(CommitLog, "append", late)
        with pytest.raises(CommitConflictError, match="given up"):
            merge_shuffle(tmp_path, by="map_output")
        assert sorted_values(tmp_path) == before
        assert len(list(tmp_path.glob("map_outputs/*/*.data"))) == 5

    def test_attempts_that_lost_go(self, tmp_path):
        job = begin(tmp_path)
        open_target(job, "append")
        run(job, 0, [1, 2], attempt=0)
        commit_job(job, [run(job, 0, [1, 2], attempt=1)])
        run(job, 0, [1, 2], attempt=2)
        assert collect_garbage(tmp_path).num_files == 0, "a task may still write"
        report = collect(tmp_path)
        assert report.num_files == 2
        assert all("00000-2-" in file.path for file in report.files)
        assert values(tmp_path) == [0, 1]

    def test_local_roots(self, tmp_path):
        disks = (str(tmp_path / "a"), str(tmp_path / "b"))
        path = tmp_path / "x"
        first, statuses = start_job(path, local_dirs=disks)
        statuses += [run_map_task(first, i, 0, [numbered(range(N), i)]) for i in range(1, 4)]
        commit_job(first, statuses)
        dead, _ = start_job(path, local_dirs=disks)
        for i in range(1, 4):
            run_map_task(dead, i, 0, [numbered(range(N), i)])
        collect_garbage(path)
        assert open_shuffle(path).verify().ok
        report = collect(path)
        assert report.fenced_jobs == (dead.job_id,)
        assert open_shuffle(path).verify().ok
        assert not [one for one in files_below(tmp_path) if dead.job_id in one]
        write(path, 0, "overwrite")
        collect(path)
        assert files_below(tmp_path / "a") == files_below(tmp_path / "b") == []

    def test_local_roots_that_only_a_checkpoint_remembers(self, tmp_path):
        path = tmp_path / "s"
        write(path, 0)
        job, statuses = start_job(path, local_dirs=(str(tmp_path / "a"), str(tmp_path / "b")))
        statuses += [run(job, task, range(N)) for task in (1, 2)]  # one in each root
        commit_job(job, statuses, mode="append")
        write(path, 100)
        collect(path)  # the entry that names the roots goes
        assert len(sorted_values(path)) == 20 + 3 * N
        write(path, 200, mode="overwrite")
        collect(path)
        assert [files_below(tmp_path / name) for name in "ab"] == [[], []]

    def test_two_local_directories_that_are_one(self, tmp_path):
        (tmp_path / "a").mkdir()
        (tmp_path / "b").symlink_to(tmp_path / "a")
        path = tmp_path / "x"
        job, statuses = start_job(path, local_dirs=(str(tmp_path / "a"), str(tmp_path / "b")))
        statuses += [run_map_task(job, i, 0, [numbered(range(N), i)]) for i in range(1, 6)]
        commit_job(job, statuses)
        assert collect(path).num_files == 0
        assert len(sorted_values(path)) == 6 * N

    @pytest.mark.parametrize(
        "said", ['["a\\u0000"]', '["/\\ud800"]', "[" * 100_000, '["s3://b/x"]', '["x"]', "victim"]
    )
    def test_a_list_of_roots_that_no_job_wrote(self, tmp_path, said):
        path = tmp_path / "x"
        job, _ = start_job(path)
        (tmp_path / "victim").mkdir()
        text = f'["{tmp_path}/victim"]' if said == "victim" else said
        (path / job.directory / "local-roots.json").write_text(text)
        with pytest.raises(CorruptShuffleError, match="is no list of directories"):
            collect(path)
        assert (tmp_path / "victim").exists()

    def test_another_jobs_directory_is_left_alone(self, tmp_path):
        path = tmp_path / "x"
        job, _ = start_job(path, local_dirs=(str(tmp_path / "a"),))
        (marker,) = tmp_path.glob("a/*/arrow-shuffle-root.json")
        owner = read_marker(PosixStorage(str(marker.parent))).owner
        marker.write_bytes(to_json(Marker("another", owner)))
        before = files_below(tmp_path / "a")
        assert collect(path).fenced_jobs == (job.job_id,)
        assert files_below(tmp_path / "a") == before


class TestLateFiles:
    """A task that outlives its job puts a file into a local root while that is being cleared."""

    def job(self, path, ended):
        """A job with files in a local root, and rows that stay."""
        job, statuses = start_job(path, local_dirs=(f"{path}-disk",))
        statuses += [run(job, task, range(N)) for task in (1, 2)]
        assert any(file.root for one in statuses for file in one.output.files)
        if ended == "expired":
            commit_job(job, statuses, mode="append")
        write(path, 100, "overwrite")
        return job

    def act(self, job, ended, step, then):
        """Collect or abort; a file comes just before that call of storage. Whether it came."""
        (root,) = map(Path, job.local_roots)
        calls, late = [0], []

        def call():
            calls[0] += 1
            if calls[0] == step and root.is_dir():
                late.append(root / "00007-0-late.shuffle.data")
                late[0].write_bytes(b"late")
            if calls[0] > step and late and then == "dies":
                msg = "killed"
                raise StorageError(msg)

        with before_calls(call, ("list", "stat", "put_if_absent", "delete", "prune")):
            try:
                if ended == "aborted":
                    abort_job(job)
                else:
                    collect(job.storage.root)
            except StorageError:
                assert then == "dies"
        return bool(late), calls[0] < step

    @pytest.mark.slow
    @guarantee("late files")
    @pytest.mark.parametrize("ended", ["silent", "expired", "aborted"])
    @pytest.mark.parametrize("then", ["goes on", "dies"])
    def test_the_next_collection_finds_them(self, tmp_path, ended, then):
        """The file comes at any step; in part, others where it dies than where it goes on."""
        num_late = 0
        for step in every(6, start=1 if then == "dies" else 3):
            path = tmp_path / str(step) / "x"
            path.parent.mkdir()
            job = self.job(path, ended)
            came, done = self.act(job, ended, step, then)
            num_late += came
            collect(path)
            assert files_below(Path(f"{path}-disk")) == [], f"left by step {step}"
            assert [one.name for one in (path / "map_outputs").iterdir()] == [
                next(iter(open_shuffle(path).map_outputs.job_ids))
            ]
            assert sorted_values(path) == [*range(100, 110)]
            shutil.rmtree(path.parent)
            if done:
                break
        assert num_late >= times(1, 12)

    @guarantee("late files")
    def test_a_root_that_a_task_makes_while_the_list_goes(self, path, monkeypatch):
        """Tasks of a bare hook make their roots; each finds the list there, and it goes then."""
        write(path, 0)
        job, _ = start_job(path, local_dirs=(f"{path}-disk",))
        real = local_dirs.open_made_directory

        def late(*arguments, **how):
            with monkeypatch.context() as patch:
                patch.setattr(local_dirs, "open_made_directory", real)
                collect(path)
            assert files_below(Path(f"{path}-disk")) == []
            return real(*arguments, **how)

        with monkeypatch.context() as patch:
            patch.setattr(local_dirs, "open_made_directory", late)
            run(job, 1, range(N))
        # Found again, not made: no task puts the list again.
        found = replace(job, has_directory=True)
        for task in (2, 3):
            run(found, task, range(N))
        assert any(".data" in name for name in files_below(Path(f"{path}-disk")))
        collect(path)
        assert files_below(Path(f"{path}-disk")) == []

    @guarantee("late files")
    @pytest.mark.parametrize("before", ["make_directory", "put_if_absent"])
    def test_a_driver_that_dies_in_a_root_whose_list_went(self, path, monkeypatch, before):
        """The job is given up before its root is there, or before that has its first file."""
        write(path, 0)
        real, disk = getattr(PosixStorage, before), f"{path}-disk/arrow-shuffle-"

        def late(storage, *arguments, **how):
            if storage.root.startswith(disk):
                monkeypatch.setattr(PosixStorage, before, real)
                collect(path)
                assert not Path(storage.root).exists()
            return real(storage, *arguments, **how)

        monkeypatch.setattr(PosixStorage, before, late)
        options = replace(FAST, local_dirs=(f"{path}-disk",))
        open_target(begin(path, options=options), "append")  # and the driver dies
        collect(path)
        assert files_below(Path(f"{path}-disk")) == []


COLLECT = """
import sys
from datetime import timedelta
from arrow_format import collect_garbage
print("ready", flush=True)
collect_garbage(sys.argv[1], retention=timedelta(0))
"""


class TestTheRun:
    def garbage(self, path):
        """Versions that expired, a dead job with a local root, a dead put, totals of nobody."""
        spread, statuses = start_job(path, local_dirs=(f"{path}-disk",))
        for task in (1, 2, 3):
            statuses.append(run(spread, task, range(N)))
        commit_job(spread, statuses)
        assert any(file.root for one in statuses for file in one.output.files)
        write(path, 100, "overwrite")
        write(path, 200)
        job, _ = start_job(path, local_dirs=(f"{path}-disk",))
        (path / segment_path(0) / ".tmp-x").write_bytes(b"dead")
        (path / "map_outputs" / job.directory[-32:] / "foreign").write_bytes(b"dead")
        return job

    def test_a_dry_run_changes_nothing_and_says_what_would(self, tmp_path):
        path = tmp_path / "x"
        self.garbage(path)
        before = {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")}
        said = collect(path, dry_run=True)
        assert {one: one.stat().st_mtime_ns for one in tmp_path.rglob("*")} == before
        assert "would be removed" in str(said)
        done = collect(path)
        assert sorted(f.path for f in said.files) == sorted(f.path for f in done.files)
        assert said.expired_versions == done.expired_versions == (1, 2)
        assert said.fenced_jobs == done.fenced_jobs
        assert (said.num_bytes, said.oldest_version) == (done.num_bytes, done.oldest_version)

    @pytest.mark.slow
    def test_one_that_dies_anywhere_is_finished_by_the_next(self, tmp_path):
        path, disk, kept = tmp_path / "x", tmp_path / "x-disk", tmp_path / "kept"
        self.garbage(path)
        shutil.copytree(tmp_path, kept)
        rows = sorted([*range(100, 110), *range(200, 210)])
        seen, dies = [], True
        while dies:
            for one in (path, disk):
                shutil.rmtree(one, ignore_errors=True)
                shutil.copytree(kept / one.name, one)
            relocate_shuffle(path, "moved")
            dies = dies_after(len(seen), partial(collect, path), (*CHANGES, "prune"))
            assert sorted_values(path) == rows
            collect(path)
            assert sorted_values(path) == rows
            assert open_shuffle(path).verify().ok
            assert files_below(disk) == []
            seen.append(files_below(path))
        assert len(seen) > 20
        # A fence that was put before the death takes no second number.
        assert all(one == seen[-1] for one in seen)

    @pytest.mark.slow
    @guarantee("killed collection")
    @pytest.mark.parametrize("delay", [0.0, 0.004, 0.02])
    def test_one_that_is_killed_is_finished_by_the_next(self, path, delay):
        write_each(path, range(0, 300, 10), "overwrite")
        job, statuses = start_job(path)
        with child(COLLECT, path):
            time.sleep(delay)
        assert sorted_values(path) == list(range(290, 300))
        collect(path)
        assert open_shuffle(path).verify().ok
        assert sorted_values(path) == list(range(290, 300))
        assert len(list(path.glob("map_outputs/*/*"))) == 2
        with pytest.raises(CommitConflictError, match="given up"):
            commit_job(job, statuses, mode="append")

    @pytest.mark.parametrize("retention", [timedelta(seconds=-1), 3600, "1h", None])
    def test_a_bad_retention(self, tmp_path, retention):
        with pytest.raises(OptionError, match="retention="):
            collect_garbage(tmp_path, retention=retention)

    def test_what_is_no_shuffle_is_left_alone(self, tmp_path):
        (tmp_path / "precious").write_bytes(b"x")
        for path in (tmp_path, tmp_path / "precious", tmp_path / "absent"):
            with pytest.raises(ShuffleNotFoundError):
                collect(path)
        assert (tmp_path / "precious").exists()


@given(first=st.integers(0, 50), length=st.integers(0, 50), at=st.integers(-10, 120))
def test_the_first_number_of_which_something_holds(first, length, at):
    asked = []
    found = first_true(first, first + length, lambda number: asked.append(number) or number >= at)
    assert found == min(max(at, first), first + length)
    assert len(asked) <= length.bit_length()


class TestReadersInBetween:
    def test_a_collection_misses_nothing_that_a_listing_does_not_show(self, tmp_path, monkeypatch):
        """It shows an entry and not the one before: nothing of that is garbage."""
        write_each(tmp_path, (0, 100, 200))
        listed = PosixStorage.list
        hidden = entry_path(2).rpartition("/")[2]
        monkeypatch.setattr(
            PosixStorage, "list",
            lambda self, path: [name for name in listed(self, path) if name != hidden],
        )  # fmt: skip
        assert collect_garbage(tmp_path).num_files == 0
        assert len(sorted_values(tmp_path)) == 30

    def test_a_put_whose_temporary_file_was_collected_starts_anew(self, tmp_path, monkeypatch):
        write(tmp_path, 0)
        real = os.link
        collected = []

        def link(source, target, *, src_dir_fd, dst_dir_fd):
            if target == entry_path(2).rpartition("/")[2] and not collected:
                os.utime(source, (0, 0), dir_fd=src_dir_fd)
                collected.append(collect_garbage(tmp_path).files)
            real(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

        job, statuses = start_job(tmp_path)
        monkeypatch.setattr(os, "link", link)
        assert commit_job(job, statuses, mode="append").version == 2
        assert sorted_values(tmp_path) == [*range(10), *range(1000, 1005)]
        assert [".tmp-" in file.path for files in collected for file in files] == [True]
