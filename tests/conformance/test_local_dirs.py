"""CONFORMANCE, group "File": map outputs in several directories, and one that is full or fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    CorruptShuffleError,
    OptionError,
    OutOfDiskError,
    ShuffleError,
    StorageError,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.log.names import entry_path
from arrow_format.storage.local import PosixStorage, PosixWriter
from arrow_format.storage.local_dirs import ROOT_LIST_NAME, make_roots, root_path
from arrow_format.storage.root_owner import MARKER_NAME, LocalRoot, Marker, Owner, to_json
from connector.map_task import ShuffleMapTask, abort_shuffle
from connector.spark_types import spark_schema_of
from tests.support import small_shuffles
from tests.support.broken_methods import break_method
from tests.support.guarantees import guarantee
from tests.support.merges import ALWAYS, files_of
from tests.support.small_shuffles import files_below, root_numbers, write_rows
from tests.support.spread_shuffles import (
    CODECS,
    ROWS,
    N,
    begin,
    check_rows,
    files_in,
    options_of,
    run_tasks,
    table_of,
    write,
)


@pytest.fixture
def dirs(tmp_path):
    return [tmp_path / "d1", tmp_path / "d2"]


def take_first(patch, number):
    """Let each map task begin with this of its directories: 0 is the shuffle's own."""
    patch.setattr("arrow_format.write.map_output.first_root", lambda *_: number)


@CODECS
def test_map_outputs_take_turns_over_the_directories(tmp_path, dirs, codec):
    job = begin(tmp_path / "s", options_of(*dirs, codec=codec))
    size = ROWS // 6
    receipt = commit_job(job, run_tasks(job, 6, size), mode="append")
    assert receipt.num_rows == size * 6
    roots = root_numbers(files_of(check_rows(tmp_path / "s", size * 6)), *dirs)
    assert Counter(roots) == {0: 2, 1: 2, 2: 2}
    assert [(root + 1) % 3 for root in roots[:-1]] == roots[1:]
    for directory in dirs:
        marker, *_ = [p for p in directory.rglob(MARKER_NAME)]
        inode = (tmp_path / "s" / "commit_log").stat().st_ino
        said = json.loads(marker.read_bytes())
        assert said.pop("job_id") == job.job_id
        assert said["owner"] | {"id": ""} == {"id": "", "path": f"{tmp_path}/s", "inode": inode}


@guarantee("full disk")
@CODECS
@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_disk_that_fills_up_mid_way(tmp_path, small_disk, codec, looks_ahead, monkeypatch):
    if not looks_ahead:  # as when another process takes the room between question and write
        monkeypatch.setattr(PosixStorage, "free_bytes", lambda self: None)
    take_first(monkeypatch, 0)
    large = tmp_path / "large"
    path = small_disk / "s"
    receipt = write(path, table_of(), options_of(large, codec=codec))
    shuffle = check_rows(path, ROWS)
    (output,) = shuffle.map_outputs
    if looks_ahead:
        # There is never room for a region and its index on the small one.
        assert set(root_numbers(output.files, large)) == {1}
    else:
        assert root_numbers(output.files, large) == [0, 1]
    assert receipt.counters["failed_directories"] == (0 if looks_ahead else 1)
    if codec == "none":
        for file in output.files:
            with pa.ipc.open_file(str(path / file.root / file.data_path)) as reader:
                assert reader.read_all().num_rows == file.num_rows


@guarantee("full disk")
@CODECS
@pytest.mark.parametrize("first", [0, 1])
def test_regions_before_the_disk_was_full_are_kept(tmp_path, small_disk, codec, first, monkeypatch):
    monkeypatch.setattr(PosixStorage, "free_bytes", lambda self: None)
    take_first(monkeypatch, first)
    path, other = (tmp_path / "s", small_disk) if first else (small_disk / "s", tmp_path / "large")
    receipt = write(path, table_of(), options_of(other, codec=codec), for_spark=False)
    (output,) = check_rows(path, ROWS).map_outputs
    full, rest = output.files
    assert root_numbers(output.files, other) == [first, 1 - first]
    assert full.num_regions >= 3
    assert full.data_bytes < 2 << 20
    assert receipt.counters["failed_directories"] == 1
    assert receipt.counters["num_regions"] == full.num_regions + rest.num_regions
    # The region that did not fit there was written twice, and counts once.
    assert output.raw_bytes == pytest.approx(table_of().nbytes, rel=0.02)
    if codec == "none":
        root = next(other.iterdir()) if first else path
        with pa.ipc.open_file(str(root / full.data_path)) as reader:
            assert reader.read_all().num_rows == full.num_rows


@guarantee("out of disk")
def test_out_of_disk_only_when_none_is_left(tmp_path, small_disk):
    second = tmp_path / "small2"
    second.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(second)], check=True)
    try:
        with pytest.raises(OutOfDiskError, match="no space left"):
            write(small_disk / "s", table_of(), options_of(second))
        assert files_in(small_disk) == files_in(second) == []
    finally:
        subprocess.run(["umount", "--lazy", str(second)], check=True)


@pytest.mark.parametrize("how", ["write_shuffle", "made by the driver", "made by the tasks"])
def test_a_directory_that_cannot_be_made_is_left_out(tmp_path, how):
    (tmp_path / "file").write_text("not a directory")
    good = tmp_path / "good"
    options = options_of(tmp_path / "file" / "d", good)
    path = tmp_path / "s"
    if how == "write_shuffle":
        receipt = write(path, table_of(600), options)
    else:
        job = begin(path, options)
        job = replace(job, has_directory=how == "made by the driver")
        receipt = commit_job(job, run_tasks(job, 3, 200), mode="append")
    shuffle = check_rows(path, 600)
    assert receipt.counters["failed_directories"] == len(shuffle.map_outputs)
    roots = set(root_numbers(files_of(shuffle), *options.local_dirs))
    assert roots <= {0, 2}
    assert how == "write_shuffle" or roots == {0, 2}


def test_a_merge_leaves_out_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    for start in (0, 1000):
        write(tmp_path / "s", table_of(1000, start), options_of())
    options = options_of(tmp_path / "file" / "d", tmp_path / "good")
    report = merge_shuffle(tmp_path / "s", policy=ALWAYS, options=options, by="map_output")
    assert report.version == 3
    check_rows(tmp_path / "s", 2000)


def test_a_disk_that_is_full_at_the_start_is_left_out(tmp_path, small_disk):
    free = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(free.f_bavail * free.f_frsize))
    receipt = write(tmp_path / "s", table_of(), options_of(small_disk))
    assert receipt.counters["failed_directories"] == 1
    check_rows(tmp_path / "s", ROWS)
    assert [one.name for one in small_disk.iterdir()] == ["filler"]


def one_root(tmp_path):
    """Make the root of a job in d1."""
    root = LocalRoot(str(tmp_path / "d1" / "root"), "its directory was made")
    marker = Marker("job", Owner("shuffle", str(tmp_path), 1))
    return make_roots(
        PosixStorage(str(tmp_path / "s")), "map_outputs/job", [root], marker, sync=False
    )


def test_a_root_without_room_for_its_marker_is_not_left_behind(tmp_path, monkeypatch):
    break_method(
        monkeypatch, PosixStorage, "put_if_absent", OutOfDiskError("no space left"),
        lambda _, path, __: path == MARKER_NAME,
    )  # fmt: skip
    assert one_root(tmp_path) == [None]
    assert list((tmp_path / "d1").iterdir()) == []


def test_a_list_that_cannot_be_put_is_no_failing_disk(tmp_path, monkeypatch):
    """The shuffle's storage fails once the roots have directories: no root is left out for that."""
    break_method(
        monkeypatch, PosixStorage, "stat", StorageError("the server is gone"),
        lambda _, path: path.endswith(ROOT_LIST_NAME) and (tmp_path / "d1" / "root").exists(),
    )  # fmt: skip
    with pytest.raises(StorageError, match="the server is gone"):
        one_root(tmp_path)
    assert list((tmp_path / "d1").iterdir()) == []


def test_a_merge_into_a_directory_in_the_shuffle_is_refused(tmp_path):
    for start in (0, 1000):
        write(tmp_path / "s", table_of(1000, start), options_of())
    options = options_of(tmp_path / "s" / "d1")
    with pytest.raises(OptionError, match="lies in the shuffle's own directory"):
        merge_shuffle(tmp_path / "s", policy=ALWAYS, options=options, by="map_output")
    assert not (tmp_path / "s" / "d1").exists()


def test_a_directory_without_a_marker_gets_no_files(tmp_path):
    """A disk that was mounted for the driver, and is not where the task runs."""
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    (marker,) = tmp_path.rglob(MARKER_NAME)
    marker.unlink()
    statuses = run_tasks(job, 2)
    assert [[file.root for file in one.output.files] for one in statuses] == [[""], [""]]
    assert [one.counters["failed_directories"] for one in statuses] == [1, 1]


def test_the_shuffles_own_directory_must_be_there(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="file"):
        write(tmp_path / "file" / "s", table_of(10), options_of(tmp_path / "d1"))
    assert files_in(tmp_path) == ["file"]
    assert not (tmp_path / "d1").exists() or not list((tmp_path / "d1").iterdir())


@pytest.mark.parametrize("place", ["driver", "task"])
def test_a_directory_of_another_job_is_an_error_and_left_alone(tmp_path, dirs, place):
    job = small_shuffles.begin(tmp_path / "s", table_of(0).schema, N, options=options_of(*dirs))
    root = tmp_path / "d1" / f"arrow-shuffle-{job.job_id}"
    root.mkdir(parents=True)
    owner = Owner("shuffle", str(tmp_path), 1)
    (root / MARKER_NAME).write_bytes(to_json(Marker("another", owner)))
    (root / "theirs").write_text("x")
    steps = {
        "driver": lambda: open_target(job, "append"),
        "task": lambda: run_map_task(job, 0, 0, table_of(10).to_batches()),
    }
    with pytest.raises(StorageError, match="directory is another's"):
        steps[place]()
    abort_job(job)
    theirs = [f"d1/{root.name}/{name}" for name in (MARKER_NAME, "theirs")]
    assert files_in(tmp_path) == sorted([*theirs, f"s/{entry_path(1)}"]), "and a fence"


@pytest.mark.parametrize("below", ["", "/", "/sub", "/../s/sub"])
def test_a_directory_in_the_shuffle_is_refused_before_any_row(tmp_path, below):
    def rows():
        yield table_of(10).to_batches()[0]
        pytest.fail("a second batch was asked for")

    path = tmp_path / "s"
    with pytest.raises(OptionError, match="lies in the shuffle's own directory"):
        write_rows(path, rows(), "p", n=N, options=options_of(f"{path}{below}"))
    assert not path.exists()
    write_shuffle(table_of(10), path, num_subpartitions=N, keys="p", options=options_of(f"{path}x"))
    with pytest.raises(OptionError, match="lies in the shuffle's own directory"):
        begin(path, options_of(f"{path}{below}"))


@CODECS
def test_a_directory_that_fails_in_the_middle(tmp_path, codec, monkeypatch):
    """From some write on, its device takes nothing more into the data file."""
    break_method(
        monkeypatch, PosixWriter, "writev", StorageError("Input/output error; cannot write to it"),
        lambda file, _: "/d1/" in str(file._path) and file._path.stat().st_size > 1_000_000,
    )  # fmt: skip
    take_first(monkeypatch, 1)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", codec=codec))
    status = run_map_task(job, 0, 0, table_of().to_batches())
    # A file of codec none cannot get its footer there: its regions move.
    expected = [0] if codec == "none" else [1, 0]
    assert root_numbers(status.output.files, tmp_path / "d1") == expected
    assert status.counters["failed_directories"] == 1
    commit_job(job, [status], mode="append")
    check_rows(tmp_path / "s", ROWS)


def test_a_disk_that_turns_read_only_before_its_first_region(tmp_path, monkeypatch):
    """Neither takes bytes nor lets go of a file."""
    local = tmp_path / "d1"
    read_only = StorageError("Read-only file system")
    job = begin(tmp_path / "s", options_of(local))
    take_first(monkeypatch, 1)
    with monkeypatch.context() as patch:
        refused = [
            break_method(
                patch, PosixWriter, "writev", read_only,
                lambda file, _: str(file._path).startswith(str(local)),
            ),
            break_method(
                patch, PosixStorage, "delete", read_only,
                lambda storage, _: storage.root.startswith(str(local)),
            ),
        ]  # fmt: skip
        # It unlinks too, and takes no notice of failure.
        patch.setattr(PosixWriter, "abort", lambda self: None)
        (status,) = run_tasks(job, 1)
    assert refused == [["writev"], ["delete"]]
    assert [file.root for file in status.output.files] == [""]
    assert len([name for name in files_in(local) if name.endswith(".data")]) == 1
    commit_job(job, [status], mode="append")
    assert files_in(local) == []
    check_rows(tmp_path / "s", 100)


def test_one_file_that_stays_does_not_keep_the_others(tmp_path, monkeypatch):
    """A failed attempt removes what it can, whatever a broken disk refuses to let go of."""

    def failing():
        yield from table_of().to_batches(max_chunksize=1000)
        msg = "the input broke"
        raise RuntimeError(msg)

    monkeypatch.setattr("arrow_format.write.map_output.MAX_INDEX_BYTES", 0)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    break_method(
        monkeypatch, PosixStorage, "delete", StorageError("Read-only file system"),
        lambda storage, _: "/d1/" in f"{storage.root}/",
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="the input broke"):
        run_map_task(job, 0, 0, failing())
    assert len(files_in(tmp_path / "d1")) > 2
    assert files_in(tmp_path / "s") == [f"{job.directory}/{ROOT_LIST_NAME}"]


def test_losers_go_from_the_other_directories_when_one_vanished(tmp_path, dirs):
    job = begin(tmp_path / "s", options_of(*dirs))
    run_tasks(job, 3)
    shutil.rmtree(dirs[0])
    kept = run_tasks(job, 3, attempt=1)
    live = [file for status in kept for file in status.output.files]
    assert set(root_numbers(live, *dirs)) == {0, 2}
    commit_job(job, kept, mode="append")
    check_rows(tmp_path / "s", 300)
    assert not dirs[0].exists()
    for number, place in ((0, tmp_path / "s"), (2, dirs[1])):
        data = [name for name in files_in(place) if name.endswith(".data")]
        assert len(data) == root_numbers(live, *dirs).count(number)


@pytest.mark.parametrize("place", ["another job", "elsewhere"])
def test_a_status_that_names_a_directory_of_no_such_job_is_refused(tmp_path, place):
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    other = begin(tmp_path / "t", options_of(tmp_path / "d1"))
    statuses = run_tasks(job, 2)
    root = other.local_roots[0] if place == "another job" else str(tmp_path)
    (output,) = (one.output for one in statuses if one.output.files[0].root)
    moved = replace(output, files=(replace(output.files[0], root=root),))
    forged = [
        replace(one, output=moved if one.output is output else one.output) for one in statuses
    ]
    with pytest.raises(ShuffleError, match="none of the local directories of the job"):
        commit_job(job, forged, mode="append")
    assert commit_job(job, statuses, mode="append").num_rows == 200


def test_a_commit_that_cannot_clear_a_directory_leaves_the_list_of_them(tmp_path, monkeypatch):
    """No entry names a directory that has none of its files: the next collection asks the list."""
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    take_first(monkeypatch, 1)
    run_tasks(job, 1)
    take_first(monkeypatch, 0)
    statuses = run_tasks(job, 1, attempt=1)
    with monkeypatch.context() as patch:
        break_method(
            patch, PosixStorage, "list", StorageError("Input/output error"),
            lambda storage, _: storage.root == job.local_roots[0],
        )  # fmt: skip
        commit_job(job, statuses, mode="append")
    assert any(name.endswith(".data") for name in files_in(tmp_path / "d1"))
    assert (tmp_path / "s" / job.directory / ROOT_LIST_NAME).exists()
    collect_garbage(tmp_path / "s")
    assert files_below(tmp_path / "d1") == []
    check_rows(tmp_path / "s", 100)


def test_an_abort_when_a_directory_is_broken_clears_the_others(tmp_path, dirs, monkeypatch):
    job = begin(tmp_path / "s", options_of(*dirs))
    run_tasks(job, 3)
    with monkeypatch.context() as patch:
        break_method(
            patch, PosixStorage, "list", StorageError("Input/output error"),
            lambda storage, _: storage.root == root_path(str(dirs[0]), job.job_id),
        )  # fmt: skip
        with pytest.raises(StorageError, match="Input/output error"):
            abort_job(job)
    # Where files are left is still written down.
    assert files_in(tmp_path / "s") == [entry_path(1), f"{job.directory}/{ROOT_LIST_NAME}"]
    assert files_in(dirs[1]) == []
    abort_job(job)
    assert files_in(dirs[0]) == []


def test_abort_removes_the_directories(tmp_path, dirs):
    job = begin(tmp_path / "s", options_of(*dirs))
    run_tasks(job, 3)
    assert files_in(dirs[0])
    abort_job(job, alone=True)
    assert [files_below(directory) for directory in dirs] == [[], []]
    assert files_below(tmp_path / "s") == ["commit_log"], "with the id of the shuffle"


@guarantee("root markers")
@pytest.mark.parametrize("damage", ["gone", "unmarked", "another job's"])
def test_a_directory_without_its_marker_is_not_believed(tmp_path, damage):
    local = tmp_path / "d1"
    job = begin(tmp_path / "s", options_of(local))
    commit_job(job, run_tasks(job, 2), mode="append")
    (marker,) = local.rglob(MARKER_NAME)
    if damage == "gone":
        local.rename(tmp_path / "unmounted")
    elif damage == "unmarked":
        marker.unlink()
    else:
        marker.write_text('{"job_id": "another"}')
    with pytest.raises(CorruptShuffleError, match=rf"does not bear the {MARKER_NAME}.*Mount it"):
        open_shuffle(tmp_path / "s").read().read_all()
    report = open_shuffle(tmp_path / "s").verify(raise_on_damage=False)
    assert len(report.problems) == 1


def test_appends_with_and_without_local_directories(tmp_path):
    for start, dirs in ((0, ("d1",)), (1000, ()), (2000, ("d2", "d3"))):
        write(tmp_path / "s", table_of(1000, start), options_of(*(tmp_path / d for d in dirs)))
    check_rows(tmp_path / "s", 3000)


@pytest.fixture
def hook(tmp_path):
    schema = spark_schema_of(table_of(0).select(["p", "v"]).schema)
    return ShuffleMapTask(
        tmp_path / "s", schema=schema, num_subpartitions=N, keys="p",
        options=options_of(tmp_path / "d1"),
    )  # fmt: skip


def run_hook(hook, attempt):
    rows = table_of(100).select(["p", "v"]).to_batches()
    return [run_map_task(hook.job, task, attempt, rows) for task in range(2)]


def test_an_abort_after_a_bare_hook_leaves_a_fence(tmp_path, hook):
    """The hook opens no target: its tasks make the directories. Only files need a fence."""
    abort_shuffle(hook)
    assert list(tmp_path.iterdir()) == []
    run_hook(hook, 0)
    abort_shuffle(hook)
    assert files_in(tmp_path) == [f"s/{entry_path(1)}"]
    statuses = run_hook(hook, 1)
    with pytest.raises(CommitConflictError, match="was aborted"):
        commit_job(hook.job, statuses)
    abort_shuffle(hook)
    assert files_in(tmp_path) == [f"s/{entry_path(1)}"]


def test_an_abort_after_the_commit_of_a_bare_hook_changes_nothing(tmp_path, hook):
    commit_job(hook.job, run_hook(hook, 1))
    abort_shuffle(hook)
    assert open_shuffle(tmp_path / "s").verify().num_rows == 200
