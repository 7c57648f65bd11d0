"""One write from begin to commit: retries, attempts, races, and nothing left by failure."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    ColumnPartitioner,
    CorruptShuffleError,
    SchemaError,
    ShuffleError,
    ShuffleExistsError,
    open_shuffle,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.target import open_target
from arrow_format.log.names import entry_path, segment_path
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import (
    SCHEMA,
    N,
    begin,
    files_below,
    numbered,
    run,
    values,
    write_rows,
    write_tasks,
)

# Commit -------------------------------------------------------------------------------------------


@guarantee("atomic commit")
def test_readers_see_nothing_before_the_commit_and_all_after_it(path):
    write_tasks(path, [[numbered([1])]], N)
    job = begin(path)
    statuses = [run(job, task, [task], start=task + 1) for task in range(4)]
    assert values(path) == [0]
    commit_job(job, statuses, mode="append")
    assert sorted(values(path)) == [0, 1, 2, 3, 4]


@guarantee("repeated commit")
def test_a_job_committed_twice_gives_the_first_receipt(path):
    job = begin(path)
    status = run(job, 0, [1, 2, 2])
    first = commit_job(job, [status])
    write_tasks(path, [[numbered([0], 3)]], N, mode="append")
    before = files_below(path)
    for mode in ("errorifexists", "append", "overwrite", "ignore"):
        again = commit_job(pickle.loads(pickle.dumps(job)), [status], mode=mode)
        assert (again.version, again.num_rows) == (first.version, 3)
        assert again.subpartition_bytes.equals(first.subpartition_bytes)
    assert files_below(path) == before
    assert len(values(path)) == 4


def test_map_outputs_are_read_by_map_task_whatever_order_they_came_in(path):
    job = begin(path)
    statuses = [run(job, task, [1], start=task) for task in range(5)]
    commit_job(job, statuses[::-1], expected_map_outputs=5)
    assert values(path) == [0, 1, 2, 3, 4]


@guarantee("whole map outputs")
@pytest.mark.parametrize(
    ("tasks", "expected", "message"),
    [
        ([0, 2], None, r"each of 2 map tasks, found 2 \(missing: \[1\]"),
        ([1], None, r"found 1 \(missing: \[0\]"),
        ([0, 0], None, r"missing: \[1\], more than once: \[0\]"),
        ([0, 1, 1], None, r"missing: \[2\], more than once: \[1\]"),
        ([0, 1], 3, r"each of 3 map tasks, found 2 \(missing: \[2\]"),
        ([0, 1], 1, r"each of 1 map tasks, found 2"),
        ([], 1, r"found 0 \(missing: \[0\]"),
    ],
)
def test_a_set_of_map_outputs_that_is_not_whole(path, tasks, expected, message):
    job = begin(path)
    statuses = [run(job, task, [1], attempt) for attempt, task in enumerate(tasks)]
    with pytest.raises(ShuffleError, match=message):
        commit_job(job, statuses, expected_map_outputs=expected)
    assert not (path / "commit_log").exists()


@guarantee("whole map outputs")
def test_a_map_output_of_another_job(path):
    job, other = begin(path), begin(path)
    with pytest.raises(ShuffleError, match=f"map task 1 is of job {other.job_id}, not of"):
        commit_job(job, [run(job, 0, [1]), run(other, 1, [1])])


@pytest.mark.parametrize(
    ("attempt", "also_own"),
    [
        pytest.param(1, True, id="files of both"),
        pytest.param(1, False, id="files of the other"),
        pytest.param(0, True, id="two attempts of one number, as a stage that is retried has them"),
    ],
)
def test_mixed_attempts_of_a_map_task_cannot_be_committed(path, attempt, also_own):
    job = begin(path)
    one, other = run(job, 0, [1, 2], attempt=0), run(job, 0, [1, 2], attempt=attempt)
    files = one.output.files * also_own + other.output.files
    mixed = replace(one, output=replace(one.output, files=files), subpartition_rows=None)
    with pytest.raises(ShuffleError, match=r"map task 0, attempt 0, has the files .* which are"):
        commit_job(job, [mixed])
    assert not (path / "commit_log").exists()
    assert commit_job(job, [one]).num_rows == 2


def test_a_file_that_is_named_twice_is_no_map_output(path):
    job = begin(path)
    status = run(job, 0, [1, 2])
    twice = replace(status.output, files=status.output.files * 2)
    with pytest.raises(ShuffleError, match=r"readers would refuse \(a file is named twice"):
        commit_job(job, [replace(status, output=twice, subpartition_rows=None)])


@guarantee("one attempt")
def test_exactly_one_attempt_counts_and_late_ones_change_nothing(path):
    job = begin(path)
    lost = run(job, 0, [1], attempt=0)
    won = run(job, 0, [1], attempt=1)
    twin = run(job, 0, [1], attempt=1)
    commit_job(job, [won])
    live = [file.data_path for file in won.output.files] + [f.index_path for f in won.output.files]
    assert [f for f in files_below(path / "map_outputs") if "." in f] == sorted(
        one.removeprefix("map_outputs/") for one in live
    )
    run(job, 0, [2, 2], attempt=2)
    assert values(path) == [0]
    open_shuffle(path).verify()
    for status in (lost, twin):
        assert commit_job(job, [status]).num_rows == 1


def test_totals_are_read_from_the_indexes_when_a_status_has_none(path):
    job = begin(path)
    statuses = [run(job, 0, [1, 2]), run(job, 1, []), run(job, 2, [2])]
    bare = [replace(s, subpartition_rows=None, subpartition_bytes=None) for s in statuses]
    receipt = commit_job(job, bare)
    assert receipt.subpartition_rows.to_pylist() == [0, 1, 2, 0, 0]
    assert sum(receipt.subpartition_bytes.to_pylist()) == receipt.num_bytes
    open_shuffle(path).verify()


def test_no_map_tasks_at_all(path):
    receipt = commit_job(begin(path), [], expected_map_outputs=0)
    assert (receipt.num_rows, receipt.num_map_outputs) == (0, 0)
    assert open_shuffle(path).read().read_all().equals(SCHEMA.empty_table())


def test_a_job_travels_to_its_tasks(path):
    job = begin(path)
    status = pickle.loads(pickle.dumps(run(pickle.loads(pickle.dumps(job)), 0, [1, 2])))
    assert commit_job(job, [status]).num_rows == 2


# Racing -------------------------------------------------------------------------------------------


def test_of_racing_new_writers_one_wins(path):
    def work(number):
        try:
            return write_tasks(path, [[numbered([1], number)]], N)
        except ShuffleExistsError:
            return None

    with ThreadPoolExecutor(4) as pool:
        receipts = [*pool.map(work, range(4))]
    (won,) = [number for number, receipt in enumerate(receipts) if receipt]
    assert values(path) == [won]


@guarantee("snapshots")
def test_readers_finish_on_their_version(path):
    write_tasks(path, [[numbered([0, 1, 2, 3, 4] * 20)]], N)
    pinned = open_shuffle(path)
    reader = pinned.subpartition(1)
    write_tasks(path, [[numbered([1], 777)]], N, mode="overwrite")
    write_tasks(path, [[numbered([1], 778)]], N, mode="append")
    assert reader.read_all().num_rows == 20
    assert pinned.version == 1
    assert pinned.read().read_all().num_rows == 100
    assert values(path) == [777, 778]


# Failure ------------------------------------------------------------------------------------------


def failing_batches():
    yield numbered([1] * 1_000)
    msg = "the input broke"
    raise RuntimeError(msg)


@guarantee("failed write")
def test_a_failed_write_leaves_nothing(path):
    with pytest.raises(RuntimeError, match="the input broke"):
        write_rows(path, failing_batches(), "p")
    assert not path.exists()


@guarantee("failed write")
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_failed_write_leaves_what_was_there(path, mode):
    write_tasks(path, [[numbered([1])]], N)
    before = files_below(path)
    with pytest.raises(RuntimeError, match="the input broke"):
        write_rows(path, failing_batches(), partitioner=ColumnPartitioner("p"), mode=mode)
    assert files_below(path) == before
    assert values(path) == [0]


def test_a_commit_that_fails_leaves_nothing(path, monkeypatch):
    put = PosixStorage.put_if_absent

    def broken(self, target, data, *, sync):
        if target == entry_path(1):
            self.make_directory(segment_path(0), sync=False)
            msg = "the store went away"
            raise RuntimeError(msg)
        put(self, target, data, sync=sync)

    monkeypatch.setattr(PosixStorage, "put_if_absent", broken)
    with pytest.raises(RuntimeError, match="the store went away"):
        write_rows(path, pa.table([numbered([1])[0]], ["p"]), "p")
    assert not path.exists()


def test_abort_removes_the_jobs_files_alone(path):
    one, two = begin(path), begin(path)
    open_target(one, "append")
    statuses = [run(one, 0, [1]), run(one, 1, [2])]
    kept = run(two, 0, [3])
    abort_job(one)
    abort_job(one)
    commit_job(two, [kept])
    assert values(path) == [0]
    assert statuses[0].output.files[0].data_path not in files_below(path)


def test_a_damaged_log_stops_writers_too(path):
    write_tasks(path, [[numbered([1])]], N)
    entry = path / entry_path(1)
    entry.write_bytes(entry.read_bytes()[:-1])
    before = files_below(path)
    for mode in ("append", "overwrite", "ignore", "errorifexists"):
        with pytest.raises(CorruptShuffleError, match=str(entry)):
            write_tasks(path, [[numbered([1])]], N, mode=mode)
    assert files_below(path) == before


# Input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ids",
    [
        [0, 1],
        [0, 1, 2, 3],
        [0, 1, N],
        [0, -2, 2],
        [0, 1 << 32, 2],
        [[0, 1, 2]],
        None,
        [0.5] * 3,
    ],
)
def test_a_partitioner_that_answers_nonsense_is_caught(path, ids):
    wrong = OwnPartitioner(lambda batch, n: np.array(ids))
    with pytest.raises(ShuffleError, match="partitioner"):
        write_rows(path, [numbered([0, 1, 2])], partitioner=wrong)
    assert not path.exists()


@pytest.mark.parametrize("batches", [[], ["no batch"], [{"a": [1]}]])
def test_input_without_a_schema(path, batches):
    with pytest.raises(SchemaError, match="expected Arrow record batches"):
        write_rows(path, batches, "p")
    assert not path.exists()


@pytest.mark.parametrize("item", [None, {"p": [1]}, pa.table({"p": [1]})], ids=type)
def test_a_later_item_that_is_no_batch_is_named(path, item):
    message = f"item 2 of batches .from 0. is {type(item).__name__}: expected Arrow record batches"
    with pytest.raises(SchemaError, match=message):
        write_rows(path, [numbered([1]), numbered([2], 1), item], "p")
    assert not files_below(path)


def test_batches_of_different_schemas(path):
    other = pa.record_batch({"p": [1]})
    with pytest.raises(SchemaError):
        write_rows(path, iter([numbered([1]), other]), "p")
    assert not path.exists()


@pytest.mark.parametrize(
    ("table", "keys", "message"),
    [
        (pa.table([[1], [2]], ["a", "a"]), "a", "'a'"),
        (pa.table({"a": [1], "b": [2]}), "c", "key column 'c' is not there; columns are a, b"),
        (pa.table({}), "c", "no columns"),
    ],
)
def test_columns_that_do_not_fit(path, table, keys, message):
    with pytest.raises(SchemaError, match=message):
        write_rows(path, table, keys)
    assert not path.exists()
