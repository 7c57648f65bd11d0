"""Nothing below a shuffle's directory leads out of it, and opening never waits."""

import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from arrow_format import (
    CorruptShuffleError,
    StorageError,
    WriteOptions,
    collect_garbage,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.storage import openat
from arrow_format.storage.local_dir_removal import clear_roots
from arrow_format.storage.local_dirs import make_roots
from arrow_format.storage.open import ObjectStat, PosixStorage
from arrow_format.storage.root_owner import MARKER_NAME, Marker, Owner, list_roots
from tests.compat.damages import at_opening
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import (
    begin,
    collect,
    files_below,
    numbered,
    run,
    values,
    write_rows,
    write_tasks,
)

PROJECT = Path(__file__).parents[3]


@pytest.fixture(autouse=True, params=["by one call", "part by part"])
def way(request, monkeypatch):
    """How files are opened to be read."""
    if request.param == "part by part":
        monkeypatch.setattr(openat, "_system_call", None)
    elif openat._system_call is None:
        pytest.skip("this system has no openat2")


@pytest.fixture
def outside(tmp_path):
    """A directory beside the shuffle with a file that nobody may read or remove through it."""
    directory = tmp_path / "outside"
    directory.mkdir()
    (directory / "treasure").write_bytes(b"x" * 100)
    (directory / "empty").mkdir()
    return directory


@pytest.fixture
def storage(tmp_path):
    storage = PosixStorage(str(tmp_path / "root"))
    storage.make_directory("", sync=False)
    return storage


@pytest.fixture
def at_once(tmp_path):
    """Whoever waits for another process to open a pipe fails, where the test would hang."""

    def waited(*_):
        for pipe in filter(Path.is_fifo, tmp_path.rglob("*")):
            os.close(os.open(pipe, os.O_RDWR))  # lets go of threads that wait
        pytest.fail("it waits for a writer of the pipe")

    before = signal.signal(signal.SIGALRM, waited)
    signal.setitimer(signal.ITIMER_REAL, 10, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


ACTIONS = {
    "read": lambda storage, path: storage.get_ranges(path, [(0, 1)]),
    "map": lambda storage, path: storage.open_reader(path, mapped=True),
    "look": lambda storage, path: storage.stat(path),
}
BELOW = {
    **ACTIONS,
    "create": lambda storage, path: storage.open_writer(path + "-new", sync=False),
    "create beside": lambda storage, path: storage.without_new_directories().open_writer(
        path + "-new", sync=False
    ),
    "put": lambda storage, path: storage.put_if_absent(path + "-new", b"", sync=True),
    "delete": lambda storage, path: storage.delete(path),
    "directory": lambda storage, path: storage.make_directory(path + "-new", sync=True),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_link_in_the_place_of_a_file_is_refused(storage, outside, action):
    Path(storage.root, "a").symlink_to(outside / "treasure")
    Path(storage.root, "b").symlink_to("a")
    Path(storage.root, "nowhere").symlink_to("gone")
    for path in ("a", "b", "nowhere"):
        with pytest.raises(CorruptShuffleError, match=f"root/{path}: {path} is a symbolic link"):
            ACTIONS[action](storage, path)


@pytest.mark.parametrize("action", BELOW)
@pytest.mark.parametrize("path", ["d/treasure", "e/d/treasure"])
def test_a_link_in_the_place_of_a_directory_is_refused(storage, outside, action, path):
    link = Path(storage.root, path).parent
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    before = files_below(outside)
    with pytest.raises(CorruptShuffleError, match=r"d is a symbolic link.*Put the file"):
        BELOW[action](storage, path)
    assert files_below(outside) == before


def test_a_link_is_neither_listed_nor_pruned_through(storage, outside):
    Path(storage.root, "d").symlink_to(outside)
    with pytest.raises(CorruptShuffleError, match="d is a symbolic link"):
        storage.list("d")
    storage.prune("d/empty", and_root=False)
    assert files_below(outside) == ["empty", "treasure"]
    # A link itself goes as any other file, and what it led to stays.
    storage.delete("d")
    assert files_below(outside) == ["empty", "treasure"]
    assert storage.list("") == []


@guarantee("paths")
@pytest.mark.parametrize("path", ["../outside/treasure", "a/../../outside/treasure", "/etc/passwd",
                                  "a\0b"])  # fmt: skip
@pytest.mark.parametrize("action", [*BELOW, "list", "prune"])
def test_paths_that_lead_out_are_refused(storage, outside, action, path):
    more = {
        "list": storage.list,
        "prune": lambda path: storage.prune(path, and_root=False),
    }
    act = more.get(action) or (lambda path: BELOW[action](storage, path))
    with pytest.raises(CorruptShuffleError, match="leads out of this directory"):
        act(path)
    assert files_below(outside) == ["empty", "treasure"]


@guarantee("no links")
@pytest.mark.parametrize("kind", ["pipe", "directory", "socket", "device"])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.usefixtures("at_once")
def test_what_is_no_file_is_refused_at_once(storage, kind, mapped):
    path = Path(storage.root, "a")
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)  # opened the usual way, it would wait for a writer for ever
    else:
        what = stat.S_IFSOCK if kind == "socket" else stat.S_IFCHR
        try:
            os.mknod(path, what | 0o666, os.makedev(1, 5))  # /dev/zero: it never ends
        except PermissionError as error:
            pytest.skip(f"cannot make a {kind} here: {error}")
    with pytest.raises((CorruptShuffleError, StorageError), match="root/a"):
        storage.open_reader("a", mapped=mapped)


@pytest.mark.usefixtures("at_once")
def test_a_file_that_another_process_leases_is_waited_for(storage):
    file = Path(storage.root, "a")
    file.write_bytes(b"x")
    given_up = []
    with at_opening(file, lambda: given_up.append(True)):
        (found,) = storage.open_reader("a").get_ranges([(0, 1)])
    assert (bytes(found), given_up) == (b"x", [True])


def test_the_root_itself_may_be_reached_through_links(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    path = tmp_path / "link" / "s"
    write_tasks(path, [[numbered([1, 2, 3])]], 5)
    (tmp_path / "direct").symlink_to(path)
    assert values(path) == values(tmp_path / "direct") == [0, 1, 2]
    assert (tmp_path / "real" / "s").is_dir()


def test_an_empty_file_can_be_mapped(storage):
    Path(storage.root, "a").write_bytes(b"")
    reader = storage.open_reader("a", mapped=True)
    (found,) = reader.get_ranges([(0, 0)])
    assert found.size == 0
    assert storage.stat("a") == ObjectStat(0, is_directory=False)


@guarantee("no links")
@pytest.mark.parametrize("suffix", ["data", "index", "entry"])
@pytest.mark.parametrize("what", ["file", "directory"])
def test_readers_of_a_shuffle_refuse_links(tmp_path, suffix, what):
    path = tmp_path / "s"
    write_tasks(path, [[numbered([1, 2, 3])]], 5)
    (file,) = path.rglob(f"*.{suffix}")
    moved = file if what == "file" else file.parent
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptShuffleError, match="is a symbolic link"):
        values(path)


@guarantee("no links")
@pytest.mark.parametrize("suffix", ["data", "index", "entry"])
@pytest.mark.parametrize("act", [values, partial(merge_shuffle, by="map_output"), collect_garbage])
@pytest.mark.usefixtures("at_once")
def test_a_pipe_in_a_shuffle_makes_nobody_wait(path, suffix, act):
    for start in (0, 3):
        write_tasks(path, [[numbered([1, 2, 3], start)]], 5, mode="append")
    file = sorted(path.rglob(f"*.{suffix}"))[-1]
    file.unlink()
    os.mkfifo(file)
    # A collection reads the log, and nothing else.
    if act is collect_garbage and suffix != "entry":
        act(path)
    else:
        with pytest.raises(CorruptShuffleError, match="is no file; restore it from a copy"):
            act(path)


@guarantee("no removal through links")
@pytest.mark.parametrize("end", ["abort", "commit"])
def test_ending_a_job_removes_nothing_through_a_link(tmp_path, outside, end):
    job = begin(tmp_path / "s")
    status = run(job, 0, [1, 2, 3])
    directory = Path(job.storage.root, job.directory)
    kept = directory.rename(tmp_path / "kept")
    directory.symlink_to(outside)
    with pytest.raises(CorruptShuffleError, match="is a symbolic link"):
        abort_job(job) if end == "abort" else commit_job(job, [status])
    assert files_below(outside) == ["empty", "treasure"]
    assert len(files_below(kept)) == 2


@guarantee("no removal through links")
def test_a_local_root_is_not_cleared_through_a_link(tmp_path, outside):
    root = tmp_path / "disk" / "arrow-shuffle-job"
    listed = list_roots([str(root)], sync=False)
    marker = Marker("job", Owner("shuffle", str(tmp_path), 1))
    shuffle = PosixStorage(str(tmp_path / "s"))
    make_roots(shuffle, "map_outputs/job", listed, marker, sync=False)
    (root / "sub").symlink_to(outside)
    clear_roots(listed, "job")
    assert files_below(outside) == ["empty", "treasure"]
    assert not root.exists()
    # A link in the place of the marker makes it nobody's.
    make_roots(shuffle, "map_outputs/job", listed, marker, sync=False)
    (root / MARKER_NAME).rename(outside / "marker")
    (root / MARKER_NAME).symlink_to(outside / "marker")
    (root / "file").write_bytes(b"")
    with pytest.raises(CorruptShuffleError, match="is a symbolic link"):
        clear_roots(listed, "job")
    assert files_below(outside) == ["empty", "marker", "treasure"]


@guarantee("no linked roots")
def test_a_link_in_the_place_of_a_local_root_is_not_followed(tmp_path):
    """Who may write to a local directory could lead a job's files, or its clean-up, anywhere."""
    path, disk = tmp_path / "s", tmp_path / "disk"
    job = begin(path, options=WriteOptions(sync=False, local_dirs=(str(disk),)))
    statuses = [run(job, task, [1, 2, 3]) for task in range(3)]
    assert any(file.root for one in statuses for file in one.output.files)
    (root,) = disk.glob("arrow-shuffle-*/")
    moved = root.rename(tmp_path / "elsewhere")
    root.symlink_to(moved)
    before = files_below(moved)
    driven = replace(job, has_directory=True)  # tasks only open what the driver made
    assert [file.root for file in run(driven, 4, [1]).output.files] == [""]
    for act in (
        partial(run, job, 3, [1]),
        partial(commit_job, job, statuses),
        partial(abort_job, job),
        partial(collect, path),
        partial(clear_roots, list_roots([str(root)], sync=False), job.job_id),
    ):
        with pytest.raises(CorruptShuffleError, match=f"{root.name} is a symbolic link"):
            act()
    assert files_below(moved) == before


@guarantee("no linked roots")
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_link_in_the_place_of_a_root_that_is_read(tmp_path, when):
    path, disk = tmp_path / "s", tmp_path / "disk"
    job = begin(path, options=WriteOptions(sync=False, local_dirs=(str(disk),)))
    commit_job(job, [run(job, task, [1, 2, 3]) for task in range(3)])
    (root,) = disk.glob("arrow-shuffle-*/")
    shuffle = open_shuffle(path)
    if when == "after":
        assert shuffle.read().read_all().num_rows == 9
    root.symlink_to(root.rename(tmp_path / "elsewhere"))
    with pytest.raises(CorruptShuffleError, match=f"{root.name} is a symbolic link"):
        shuffle.read().read_all()


@guarantee("no linked roots")
def test_local_directories_may_be_reached_through_links(tmp_path):
    (tmp_path / "mounted").mkdir()
    (tmp_path / "disk").symlink_to("mounted")
    path = tmp_path / "s"
    job = begin(path, options=WriteOptions(sync=False, local_dirs=(str(tmp_path / "disk"),)))
    commit_job(job, [run(job, task, [1, 2, 3]) for task in range(3)])
    assert len(values(path)) == 9
    assert any(name.endswith(".data") for name in files_below(tmp_path / "mounted"))
    write_tasks(path, [[numbered([1])]], 5, mode="overwrite")
    collect(path)
    assert files_below(tmp_path / "mounted") == []


WRITE = """
import os, sys
os.umask(int(sys.argv[2], 8))
import pyarrow as pa
import arrow_format.write.map_output as writer
from arrow_format import WriteOptions, write_shuffle
writer.first_root = lambda job_id, turn, num_roots: num_roots - 1
for dirs in ((sys.argv[1] + "/disk",), ()):
    write_shuffle(
        pa.table({"a": [1, 2, 3]}), sys.argv[1] + "/s", keys="a", num_subpartitions=2,
        mode="append", options=WriteOptions(local_dirs=dirs),
    )
"""


@pytest.mark.slow
@guarantee("file modes")
@pytest.mark.parametrize("umask", ["077", "022", "027"])
def test_files_and_directories_get_no_more_than_the_umask_gives(tmp_path, umask):
    subprocess.run([sys.executable, "-c", WRITE, str(tmp_path), umask], check=True, cwd=PROJECT)
    mask = int(umask, 8)
    found = [*tmp_path.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert {modes[path] for path in found if path.is_dir()} == {0o777 & ~mask}
    assert {modes[path] for path in found if path.is_file()} == {0o666 & ~mask}
    kinds = {path.suffix for path in found if path.is_file()}
    assert kinds == {".data", ".index", ".json", ".entry"}
    assert any(path.name == MARKER_NAME for path in found)


def test_a_write_into_a_linked_directory_of_the_shuffle_is_refused(path, outside):
    path.mkdir()
    (path / "map_outputs").symlink_to(outside)
    with pytest.raises(CorruptShuffleError, match="map_outputs is a symbolic link"):
        write_rows(path, [numbered([1, 2])], "p", mode="append")
    assert files_below(outside) == ["empty", "treasure"]
