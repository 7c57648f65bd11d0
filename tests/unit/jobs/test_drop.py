"""A shuffle that is removed for good: all of it goes, the log last, and who is told what."""

import contextlib
import itertools
import shutil
import time
from functools import partial

import pytest

from arrow_format import (
    DropReceipt,
    OptionError,
    WriteOptions,
    collect_garbage,
    drop_shuffle,
    open_shuffle,
    release_shuffle,
    relocate_shuffle,
    repair_shuffle,
    tag_shuffle,
)
from arrow_format.errors import (
    CommitConflictError,
    ConsumerError,
    CorruptShuffleError,
    ResultReleasedError,
    ShuffleError,
    ShuffleNotFoundError,
    StorageError,
)
from arrow_format.jobs.commit import commit_job
from arrow_format.keys.partitioner import ColumnPartitioner
from arrow_format.log.names import entry_path
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import open_storage
from arrow_format.storage.protocol import DeniedError
from arrow_shuffle import consume
from tests.conformance.test_crashes import some_come_back
from tests.support.exhaustive import part
from tests.support.guarantees import guarantee
from tests.support.interrupted_storage import CHANGES, dies_after
from tests.support.logs import start_job
from tests.support.results import child
from tests.support.small_log import small_segments
from tests.support.small_shuffles import (
    N,
    collect,
    files_below,
    numbered,
    sorted_values,
    write_rows,
    write_tasks,
)
from tests.support.system_calls import FAULTS, SystemCalls

ROWS = [*range(30)]


def write(path, first, mode="append", *, storage_options=None, **options):
    """Write ten rows, of which one has the value ``first``."""
    return write_rows(
        path, numbered([i % N for i in range(10)], first), partitioner=ColumnPartitioner("p"),
        mode=mode, options=WriteOptions(sync=False, **options), storage_options=storage_options,
    )  # fmt: skip


def prepared(directory):
    """A shuffle of three versions, with a local directory, a tag and a consumer that is done."""
    path, disk = directory / "x", directory / "disk"
    for first in (0, 10, 20):
        # Of two map tasks one writes to the disk.
        tasks = [[numbered(range(N), start)] for start in (first, first + N)]
        options = WriteOptions(sync=False, local_dirs=(str(disk),))
        write_tasks(path, tasks, N, mode="append", options=options)
    tag_shuffle(path, "kept", 1)
    with consume(path, consumer="done") as consumption:
        consumption.commit()
    return path


def check_gone(path, ignores="/"):
    """Nothing is there but the id of the local directory, which stays as of any job."""
    assert not path.exists()
    left = {name for name in files_below(path.parent) if not name.startswith(ignores)}
    assert left <= {"disk", "kept"}


@guarantee("dropped shuffle")
def test_all_of_it_goes(tmp_path):
    path = prepared(tmp_path)
    before = open_shuffle(path)
    num_files = sum(one.is_file() for one in tmp_path.rglob("*"))
    reported = []
    receipt = drop_shuffle(path, on_bytes=reported.append)
    check_gone(path)
    assert receipt == DropReceipt(
        str(path), 3, {"kept": 1}, ("done",), receipt.num_files, sum(reported)
    )
    # With the entry that the removal put, and without the id of the disk.
    assert receipt.num_files == num_files + 1 - 1
    assert receipt.is_complete
    first, *rest = str(receipt).splitlines()
    assert first.startswith(f"{path}: dropped (last version 3); {receipt.num_files} files of ")
    assert rest == ["  tag kept: version 1", "  consumer done"]
    for act in (
        partial(sorted_values, path),
        partial(sorted_values, path, "kept"),
        before.read().read_all,
    ):
        with pytest.raises(ShuffleNotFoundError):
            act()
    with pytest.raises(ShuffleNotFoundError, match="is not there"):
        drop_shuffle(path)
    write(path, 40)
    assert sorted_values(path) == [*range(40, 50)]


def test_what_is_no_shuffle_is_refused(tmp_path):
    (tmp_path / "precious").write_bytes(b"x")
    log = tmp_path / "git" / "commit_log"
    log.mkdir(parents=True)
    (log / "precious").write_bytes(b"x")
    for path in (tmp_path, tmp_path / "precious", tmp_path / "absent", log.parent):
        with pytest.raises(ShuffleNotFoundError):
            drop_shuffle(path)
    assert (tmp_path / "precious").exists()
    assert (log / "precious").exists()


def test_files_of_others_are_left_and_named(tmp_path):
    path = prepared(tmp_path)
    job = next((path / "map_outputs").iterdir()).name
    ours = {"notes.txt", "commit_log/notes.txt", "map_outputs/notes", f"map_outputs/{job}/a/b"}
    for name in ours:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"mine")
    receipt = drop_shuffle(path)
    assert {*receipt.left} == {f"{path}/{name}" for name in ours}
    assert f"\n  left, as none of a shuffle: {receipt.left[0]}" in str(receipt)
    assert {name for name in files_below(path) if (path / name).is_file()} == ours
    with pytest.raises(ShuffleNotFoundError, match="holds no shuffle"):
        drop_shuffle(path)


def test_a_consumer_is_not_robbed_unless_told_so(path):
    write(path, 0)
    with pytest.raises(OptionError, match="force"):
        drop_shuffle(path, force="yes")
    with consume(path, consumer="reads") as consumption:
        before = files_below(path)
        with pytest.raises(ConsumerError, match="'reads' is held by process"):
            drop_shuffle(path)
        assert files_below(path) == before
        consumption.commit()
    write(path, 10)
    with pytest.raises(ConsumerError, match="'reads' has consumed version 1, and version 2 has"):
        drop_shuffle(path)
    assert sorted_values(path) == ROWS[:20]
    with consume(path, consumer="reads") as consumption:
        assert drop_shuffle(path, force=True).consumers == ("reads",)
        with pytest.raises(ShuffleError):
            consumption.shuffle.read().read_all()
        with pytest.raises(ConsumerError):
            consumption.commit()
    check_gone(path)


def test_a_released_shuffle_has_nobody_to_wait_for(path):
    write(path, 0)
    with consume(path, consumer="late"):
        pass
    release_shuffle(path)
    assert drop_shuffle(path).last_version == 1
    check_gone(path)


def test_a_job_that_runs_cannot_commit(path):
    write(path, 0)
    job, statuses = start_job(path)
    drop_shuffle(path)
    with pytest.raises(CommitConflictError, match="was removed, with the files of job"):
        commit_job(job, statuses, mode="append")
    check_gone(path)


def test_a_first_job_that_runs_cannot_commit(path):
    job, statuses = start_job(path)
    assert str(drop_shuffle(path)).startswith(f"{path}: dropped (no version); ")
    with pytest.raises(ShuffleError, match="Write the rows again"):
        commit_job(job, statuses, mode="append")
    check_gone(path)


@guarantee("dropped shuffle")
def test_until_the_end_nobody_reads_or_writes_and_all_are_told_why(tmp_path):
    path = prepared(tmp_path)
    job, statuses = start_job(path)
    assert dies_after(1, partial(drop_shuffle, path), CHANGES)
    for version in (None, 5):  # a tag has taken a number too
        with pytest.raises(ResultReleasedError, match="removed by drop_shuffle"):
            open_shuffle(path, version)
    for version in (1, "kept"):
        with pytest.raises(ShuffleNotFoundError, match=r"has expired|no tag|'kept'"):
            open_shuffle(path, version)
    for act in (
        partial(write, path, 1),
        partial(write, path, 1, "overwrite"),
        partial(commit_job, job, statuses, mode="append"),
        partial(collect_garbage, path),
        partial(tag_shuffle, path, "t"),
    ):
        with pytest.raises(ShuffleError, match=r"is being removed by drop_shuffle|removed by drop"):
            act()
    # A consumer that waits for it now does not keep it.
    assert drop_shuffle(path).last_version == 3
    check_gone(path)


@pytest.fixture
def again(tmp_path):
    """What puts the prepared shuffle to its place again; returns where that is."""
    path, kept = prepared(tmp_path), tmp_path / "kept"
    for one in ("x", "disk"):
        shutil.copytree(tmp_path / one, kept / one)

    def put():
        for one in ("x", "disk"):
            shutil.rmtree(tmp_path / one, ignore_errors=True)
            shutil.copytree(kept / one, tmp_path / one)
        relocate_shuffle(path, "moved")
        return path

    return put


def check_died(path):
    """Readers get all rows, or an error that is no damage; the next call finishes it."""
    for version, rows in ((None, ROWS), (2, ROWS[:20]), ("kept", ROWS[:10])):
        with contextlib.suppress(ShuffleNotFoundError):
            assert sorted_values(path, version) == rows
    if path.exists() and any(path.iterdir()):
        assert drop_shuffle(path).is_complete
    elif path.exists():
        path.rmdir()
    check_gone(path, ignores="kept/")


@pytest.mark.slow
@guarantee("dropped shuffle")
def test_one_that_dies_anywhere_is_finished_by_the_next(again):
    number, dies = 0, True
    while dies:
        path = again()
        dies = dies_after(number, partial(drop_shuffle, path), (*CHANGES, "prune"))
        check_died(path)
        number += 1
    assert number > 25


@pytest.mark.slow
@guarantee("dropped shuffle")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_call_of_the_system(again, fault):
    path = again()
    calls = SystemCalls(path.parent)
    with calls.installed():
        drop_shuffle(path)
    numbers = range(len(calls.names))
    assert len(numbers) > 40
    for number in part(numbers, 8):
        path = again()
        calls = SystemCalls(path.parent)
        calls.fail(number, fault)
        with calls.installed(), contextlib.suppress(ShuffleError):
            drop_shuffle(path)
        check_died(path)


@pytest.mark.slow
@guarantee("dropped shuffle", "power failure")
def test_a_power_failure_at_any_call_brings_no_part_of_it_back(tmp_path, monkeypatch):
    path, kept = tmp_path / "x", tmp_path / "kept"
    for first in (0, 10, 20):
        write(kept, first)
    tag_shuffle(kept, "kept", 1)
    for number in itertools.count():
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, path)
        calls = SystemCalls(tmp_path)
        calls.fail(number, "dies after")
        with calls.installed(), contextlib.suppress(ShuffleError):
            drop_shuffle(path)
        calls.lose_power(some_come_back(number))
        check_died(path)
        if not calls.is_dead and number > len(calls.names):
            break
    assert number > 20


DROP = """
import sys
import arrow_format
drop = arrow_format.drop_shuffle
print("ready", flush=True)
drop(sys.argv[1])
"""


@pytest.mark.slow
@guarantee("dropped shuffle")
@pytest.mark.parametrize("delay", [0.0, 0.004, 0.02])
def test_one_that_is_killed_is_finished_by_the_next(again, delay):
    path = again()
    with child(DROP, path):
        time.sleep(delay)
    check_died(path)


def test_a_disk_that_is_not_there_keeps_the_log_until_it_is(tmp_path):
    path, disk, away = prepared(tmp_path), tmp_path / "disk", tmp_path / "away"
    assert files_below(disk)
    disk.rename(away)
    receipt = drop_shuffle(path)
    assert not receipt.is_complete
    assert "not dropped to its end (last version 3" in str(receipt)
    assert f"  kept by unseen local directory {disk}" in str(receipt)
    with pytest.raises(ResultReleasedError):
        open_shuffle(path)
    away.rename(disk)
    assert drop_shuffle(path).is_complete
    check_gone(path)


def test_a_copy_leaves_local_directories_to_the_original(tmp_path):
    path, copy = prepared(tmp_path), tmp_path / "copy"
    shutil.copytree(path, copy)
    receipt = drop_shuffle(copy)
    assert not receipt.is_complete
    assert "this one was moved or is a copy" in str(receipt)
    relocate_shuffle(copy, "copied")
    assert drop_shuffle(copy).is_complete
    assert not copy.exists()
    assert sorted_values(path) == ROWS


def test_what_a_repair_moved_aside_goes_too(path):
    for first in range(3):
        write(path, first)
    (path / entry_path(3)).write_bytes(b"damaged")
    with pytest.raises(CorruptShuffleError):
        drop_shuffle(path)
    repair_shuffle(path, dry_run=False)
    assert drop_shuffle(path).left == ()
    check_gone(path)


def test_a_shuffle_whose_first_segments_are_gone(path):
    with small_segments(4, 2):
        for first in range(9):
            write(path, first, "overwrite")
        collect(path)
        assert drop_shuffle(path).last_version == 9
    check_gone(path)


@pytest.fixture
def on_s3(s3, monkeypatch):
    path = f"s3://{s3.new_bucket('drop')}/x"
    for first in (0, 10, 20):
        write(path, first, storage_options=s3.options)
    return path


@guarantee("dropped shuffle")
def test_an_object_store(on_s3, s3):
    how = {"storage_options": s3.options}
    before = open_shuffle(on_s3, **how)
    tag_shuffle(on_s3, "kept", 1, **how)
    receipt = drop_shuffle(on_s3, **how)
    assert (receipt.last_version, receipt.tags, receipt.is_complete) == (3, {"kept": 1}, True)
    assert open_storage(on_s3, s3.options).files("", depth=9) == {}
    for act in (before.read().read_all, partial(open_shuffle, on_s3, **how)):
        with pytest.raises(ShuffleNotFoundError):
            act()
    with pytest.raises(ShuffleNotFoundError):
        drop_shuffle(on_s3, **how)


@pytest.mark.parametrize(("kept", "num_files"), [(".data", 6), ("1.entry", 3)])
def test_a_store_that_lets_nobody_delete_keeps_the_log(on_s3, s3, monkeypatch, kept, num_files):
    how = {"storage_options": s3.options}
    real = ObjectStorage.delete_all

    def denied(storage, paths):
        if any(path.endswith(kept) for path in paths):
            msg = f"{paths[0]}: AccessDenied"
            raise DeniedError(msg)
        real(storage, paths)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "delete_all", denied)
        with pytest.raises(StorageError, match=f"{num_files} files may not be removed with"):
            drop_shuffle(on_s3, **how)
    with pytest.raises(ResultReleasedError, match="removed by drop_shuffle"):
        open_shuffle(on_s3, **how)
    assert drop_shuffle(on_s3, **how).is_complete


def test_a_store_of_which_only_some_files_went(on_s3, s3, monkeypatch):
    """Then the newest entry of the log alone says that the others are gone."""
    how = {"storage_options": s3.options}
    real, last = ObjectStorage.delete_all, entry_path(4)

    def delete_all(storage, paths):
        if last in paths:
            msg = "killed"
            raise StorageError(msg)
        real(storage, paths)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStorage, "delete_all", delete_all)
        with pytest.raises(StorageError, match="killed"):
            drop_shuffle(on_s3, **how)
    left = open_storage(on_s3, s3.options).files("", depth=9)
    assert [*left] == [last]
    with pytest.raises(ResultReleasedError, match="removed by drop_shuffle"):
        open_shuffle(on_s3, **how)
    assert drop_shuffle(on_s3, **how).num_files == 1
