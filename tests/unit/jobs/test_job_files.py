"""Where the files of a job are: in a store they are spread over prefixes, by the map task."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest

from arrow_format import collect_garbage, delete_rows, merge_shuffle, open_shuffle
from arrow_format.jobs import job_files
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import LISTED_OUTPUTS, commit_job
from arrow_format.jobs.job_files import all_digits, digits_of, job_directory, job_of
from arrow_format.keys.partitioner import HashPartitioner
from arrow_format.storage.object_store import SIGN_SUFFIX
from arrow_format.storage.open import open_storage
from arrow_format.write.merge_policy import MergePolicy
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, N, begin, collect, run

JOB = "0123456789abcdef" * 2
TASKS = (0, 63, 64, 4095, 4096)
"""Map tasks at each edge."""


@pytest.fixture
def storage(s3):
    return open_storage(f"s3://{s3.new_bucket()}/a", s3.options)


@pytest.fixture
def small_folds(monkeypatch):
    """A digit from map task 2 on, and two from 3 on."""
    monkeypatch.setattr(job_files, "FOLD_FROM", (2, 3))


def files_of(storage):
    return storage.files("map_outputs", depth=9)


def spread(storage, tasks=TASKS):
    """Begin a job, and write map outputs of some tasks."""
    job = begin(storage)
    return job, [run(job, task, range(N), start=N * task) for task in tasks]


def listed(requests):
    """How often each place of map outputs was listed, whatever the number of pages."""
    paths = [unquote(one.path) for one in requests if "continuation-token" not in one.path]
    prefixes = [path.partition("prefix=")[2].partition("&")[0] for path in paths]
    return Counter(prefix for prefix in prefixes if prefix.startswith("a/map_outputs"))


class TestNames:
    def test_the_number_of_digits_follows_from_the_map_task(self):
        assert [len(digits_of(JOB, task)) for task in (*TASKS, 10**9)] == [0, 0, 1, 1, 2, 2]

    @pytest.mark.parametrize(
        ("num_map_tasks", "places"),
        [(0, 1), (1, 1), (64, 1), (65, 17), (4096, 17), (4097, 273), (None, 273)],
    )
    def test_a_job_is_in_as_many_places_as_its_map_tasks_say(self, num_map_tasks, places):
        digits = all_digits(num_map_tasks)
        assert len(digits) == len({*digits}) == places
        highest = 9_999 if num_map_tasks is None else num_map_tasks - 1
        assert {digits_of(JOB, task) for task in range(max(highest, 0) + 1)} <= {*digits}

    @pytest.mark.parametrize(("tasks", "places"), [(range(64, 4096), 16), (range(4096, 9000), 256)])
    def test_map_tasks_spread_evenly(self, tasks, places):
        found = Counter(digits_of(JOB, task) for task in tasks)
        assert len(found) == places
        assert max(found.values()) <= 2 * len(tasks) / places

    def test_a_path_says_its_job(self):
        for digits in ("", "0", "af"):
            assert job_of(f"{job_directory(JOB, digits)}/x.data") == JOB
        for directory in (f"map_outputs/xy/{JOB}", "map_outputs/ab", f"map_outputs/{JOB}/{JOB}"):
            assert job_of(f"{directory}/x.data") is None, directory


def test_files_of_a_directory_are_in_one_place(tmp_path):
    spread(open_storage(tmp_path))
    assert len({path.rpartition("/")[0] for path in files_of(open_storage(tmp_path))}) == 1


@guarantee("few requests")
def test_files_in_a_store_are_spread_by_the_map_task(storage):
    job, statuses = spread(storage)
    paths = [file.path for status in statuses for file in status.output.files]
    parts = [path.split("/")[1:-1] for path in paths]
    assert [part[-1] for part in parts] == [job.job_id] * len(TASKS)
    assert [len(part[0]) for part in parts] == [32, 32, 1, 1, 2]
    assert len(files_of(storage)) == 2 * len(TASKS)


class TestAborts:
    @pytest.mark.slow
    @pytest.mark.parametrize("num_map_tasks", [None, 4097])
    def test_an_abort_finds_all_files_and_signs(self, storage, num_map_tasks):
        _, others = spread(storage)
        kept = {*files_of(storage)}
        job, statuses = spread(storage)
        sign = statuses[-1].output.files[0].data_path + SIGN_SUFFIX
        storage.put_if_absent(sign, b"", sync=False)
        abort_job(replace(job, num_map_tasks=num_map_tasks))
        assert {*files_of(storage)} == kept, others

    @pytest.mark.parametrize(("num_map_tasks", "places"), [(1, 1), (64, 1), (65, 17), (None, 273)])
    def test_it_lists_as_many_places_as_the_job_may_have(self, s3, storage, num_map_tasks, places):
        job, _ = spread(storage, [0])
        with s3.requests(storage.root.split("/")[2]) as requests:
            abort_job(replace(job, num_map_tasks=num_map_tasks))
        assert not files_of(storage)
        found = listed(requests)
        assert len([prefix for prefix in found if prefix.endswith(f"{job.job_id}/")]) == places
        assert max(found.values()) <= 2


class TestCommits:
    @pytest.mark.slow
    @pytest.mark.parametrize("tasks", [3, LISTED_OUTPUTS])
    def test_files_of_losers_are_removed_wherever_they_are(self, storage, small_folds, tasks):
        job, statuses = spread(storage, range(tasks))
        for task in range(tasks):
            run(job, task, range(N), attempt=1)
        receipt = commit_job(job, statuses)
        assert receipt.num_map_outputs == tasks
        named = {
            path
            for status in statuses
            for file in status.output.files
            for path in (file.data_path, file.index_path)
        }
        assert {*files_of(storage)} == named
        shuffle = open_shuffle(storage)
        assert shuffle.verify().ok
        assert sorted(shuffle.read().read_all()["v"].to_pylist()) == [*range(tasks * N)]

    def test_a_job_of_65_map_tasks(self, s3, storage):
        job, statuses = spread(storage, range(65))
        run(job, 64, range(N), attempt=1)
        with s3.requests(storage.root.split("/")[2]) as requests:
            commit_job(job, statuses)
        assert {*listed(requests).values()} == {2}, "once for what is there, once for what lost"
        assert len(listed(requests)) == 17
        assert len(files_of(storage)) == 2 * 65
        assert open_shuffle(storage).verify().ok

    @pytest.mark.slow
    def test_merges_and_deletions_spread_their_files_too(self, storage, small_folds):
        for start in range(8):
            job = begin(storage, partitioner=HashPartitioner("v"))
            commit_job(job, [run(job, 0, range(N), start=start * N)], mode="append")
        delete_rows(storage, {"v": [0, 6, 11, 17, 22, 28, 33, 39]}, options=FAST)
        shuffle = open_shuffle(storage)
        digits = [len(output.files[0].path.split("/")[1]) for output in shuffle.map_outputs]
        assert digits == [32, 32, 1, 2, 2, 2, 2, 2]
        merge_shuffle(
            storage,
            policy=MergePolicy(max_fan_in=2, rewrite="always"),
            options=FAST,
            by="map_output",
        )
        collect(storage)
        shuffle = open_shuffle(storage)
        assert shuffle.verify().ok
        assert len(files_of(storage)) == 2 * sum(len(one.files) for one in shuffle.map_outputs)
        assert shuffle.num_rows == 8 * N - 8


class TestCollections:
    def test_a_silent_job_is_given_up_and_its_files_removed_at_each_edge(self, storage):
        job, statuses = spread(storage)
        sign = statuses[3].output.files[0].data_path + SIGN_SUFFIX
        storage.put_if_absent(sign, b"", sync=False)
        report = collect(storage)
        assert report.fenced_jobs == (job.job_id,)
        assert report.num_files == 2 * len(TASKS) + 1
        assert not files_of(storage)

    def test_a_job_all_of_whose_files_have_digits_is_found(self, storage):
        job, _ = spread(storage, [64, 4096])
        assert collect(storage).fenced_jobs == (job.job_id,)
        assert not files_of(storage)

    def test_a_job_with_a_file_that_was_just_written_runs(self, storage):
        job, _ = spread(storage, [4096])
        assert collect_garbage(storage).running_jobs == (job.job_id,)
        assert len(files_of(storage)) == 2

    @guarantee("few requests")
    def test_it_lists_all_jobs_at_once(self, s3, storage):
        spread(storage)
        with s3.requests(storage.root.split("/")[2]) as requests:
            collect(storage)
        assert listed(requests) == {"a/map_outputs/": 1}

    def test_in_a_copy_in_a_directory_nothing_is_left(self, s3, storage, small_folds, tmp_path):
        for _ in range(2):
            job, statuses = spread(storage, range(4))
            commit_job(job, statuses, mode="overwrite")
        prefix, client = "a/", s3.client()
        bucket = storage.root.split("/")[2]
        for key in s3.keys(bucket):
            file = tmp_path / "copy" / key.removeprefix(prefix)
            file.parent.mkdir(parents=True, exist_ok=True)
            client.download_file(bucket, key, str(file))
        copy = open_storage(tmp_path / "copy")
        assert len(files_of(copy)) == 16
        collect(copy)
        named = [file for output in open_shuffle(copy).map_outputs for file in output.files]
        assert {*files_of(copy)} == {
            path for file in named for path in (file.data_path, file.index_path)
        }
        assert len(list(Path(copy.root, "map_outputs").rglob(job.job_id))) == 3, "and no other's"
        shutil.rmtree(copy.root)
