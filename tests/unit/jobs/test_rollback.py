"""Rollback: content and order of the earlier version, readers of changes, collectors, races."""

from datetime import timedelta

import pytest

from arrow_format import collect_garbage
from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    ResultReleasedError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.rollback import rollback_shuffle
from arrow_format.options import ResultPartitionType, WriteOptions
from arrow_format.read.shuffle import open_shuffle
from arrow_format.read.shuffle_changes import open_shuffle_changes
from arrow_format.streaming.consumption import release_shuffle
from arrow_shuffle import consume
from tests.support.interrupted_storage import (
    before_first_entry,
)
from tests.support.logs import log_of, start_job
from tests.support.small_shuffles import collect, numbered, values, write_tasks


def append(path, start, num_tasks=2):
    tasks = [[numbered([0, 1], start + 2 * task)] for task in range(num_tasks)]
    write_tasks(path, tasks, 5, mode="append")


@pytest.fixture
def path(path):
    for start in (0, 10, 20):
        append(path, start)
    return path


def test_the_new_version_has_rows_order_shape_and_totals_of_the_earlier_one(path):
    before = open_shuffle(path, 2)
    receipt = rollback_shuffle(path, 2)
    after = open_shuffle(path)
    assert receipt.version == after.version == 4
    assert after.read().read_all() == before.read().read_all()
    assert receipt.subpartition_rows == after.subpartition_rows == before.subpartition_rows
    assert receipt.subpartition_bytes == after.subpartition_bytes == before.subpartition_bytes
    assert (receipt.num_rows, receipt.num_map_outputs) == (8, 4)
    assert [output.position[:2] for output in after.map_outputs] == [(4, n) for n in range(4)]
    assert after.verify().ok
    append(path, 90)
    assert values(path) == [*values(path, 4)[:4], 90, 92, *values(path, 4)[4:], 91, 93]


def test_to_a_version_of_another_shape(path):
    write_tasks(path, [[numbered([0, 1, 2])]], 3, mode="overwrite")
    rollback_shuffle(path, 3)
    assert open_shuffle(path).num_subpartitions == 5
    append(path, 50)
    assert len(values(path)) == 16


def test_it_is_an_overwrite_for_readers_of_changes(path):
    rollback_shuffle(path, 1)
    with pytest.raises(ShuffleOverwrittenError, match="version 4 overwrote"):
        open_shuffle_changes(path, 2)
    changes = open_shuffle_changes(path, 3, overwrites="deliver")
    assert changes.read().read_all()["v"].to_pylist() == values(path, 1)
    # From the beginning the rows come once each, however the versions are cut.
    whole = open_shuffle_changes(path, 0, overwrites="deliver").read().read_all()["v"].to_pylist()
    parts = [
        value
        for start in range(4)
        for value in open_shuffle_changes(path, start, start + 1, overwrites="deliver")
        .read()
        .read_all()["v"]
        .to_pylist()
    ]
    assert sorted(whole) == sorted(parts)


def test_the_collector_keeps_what_a_version_in_between_restored(path, monkeypatch):
    expected = values(path, 1)
    write_tasks(path, [[numbered([0], 70)]], 5, mode="overwrite")
    rollback_shuffle(path, 1)  # version 5
    write_tasks(path, [[numbered([0], 80)]], 5, mode="overwrite")
    monkeypatch.setattr("arrow_format.jobs.gc_plan.Planner._first_recent", lambda *_: 5)
    collect(path)
    assert values(path, 5) == expected
    assert values(path, 4) == [70]
    with pytest.raises(ShuffleNotFoundError, match="has expired"):
        values(path, 1)


def test_to_an_expired_version_nothing_changes(path):
    collect(path)
    number = log_of(path).newest_version()
    for version, problem in [(1, "version 1 has expired"), (9, "version 9 is not there")]:
        with pytest.raises(ShuffleNotFoundError, match=problem):
            rollback_shuffle(path, version)
    with pytest.raises(ShuffleNotFoundError, match="no version has the tag"):
        rollback_shuffle(path, "nothing")
    assert log_of(path).newest_version() == number


def test_a_version_that_expires_meanwhile_is_refused(path):
    with (
        before_first_entry(lambda: collect(path)),
        pytest.raises(ShuffleNotFoundError, match="version 1 has expired"),
    ):
        rollback_shuffle(path, 1)
    assert len(values(path)) == 12


def test_without_a_file_of_the_version_nothing_changes(path):
    data = open_shuffle(path, 1).map_outputs[0].files[0].data_path
    (path / data).unlink()
    with pytest.raises(CorruptShuffleError, match=r"is not there.*needed for the rollback"):
        rollback_shuffle(path, 1)
    assert log_of(path).newest_version() == 3


def test_a_released_result_is_not_rolled_back(path):
    release_shuffle(path)
    for version in (3, 4):
        with pytest.raises(ResultReleasedError, match="released by name"):
            rollback_shuffle(path, version)
    append(path, 60)
    with pytest.raises(ResultReleasedError):
        rollback_shuffle(path, 2)
    assert values(path) == [60, 62, 61, 63]


def test_consumed_versions_are_not_rolled_back_to(tmp_path):
    path = tmp_path / "pipelined"
    options = WriteOptions(sync=False, result_type=ResultPartitionType.PIPELINED)
    for start in (0, 10, 20):
        write_tasks(path, [[numbered([0], start)]], 5, mode="append", options=options)
    with consume(path, consumer="c") as consumption:
        consumption.shuffle.read().read_all()
    collect_garbage(path, retention=timedelta(days=1))
    with pytest.raises(ShuffleNotFoundError):
        rollback_shuffle(path, 1)


def test_pending_commits_are_flushed_first(path):
    job, statuses = start_job(path)
    commit_job(job, statuses, mode="append", pending=True)
    with pytest.raises(CommitConflictError, match=r"1 commit\(s\) of a stream wait to be flushed"):
        rollback_shuffle(path, 1)
    assert log_of(path).newest_version() == 4


def test_without_a_shuffle(tmp_path):
    with pytest.raises(ShuffleNotFoundError, match="is not there"):
        rollback_shuffle(tmp_path / "none", 1)
    with pytest.raises(ShuffleNotFoundError, match="holds no committed shuffle"):
        rollback_shuffle(tmp_path, 1)
