"""POSIX storage: exclusive creation, whole or nothing, honest errors."""

import errno
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pytest

from arrow_format import (
    MergePolicy,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    OutOfDiskError,
    StorageError,
)
from arrow_format.storage import local
from arrow_format.storage.local import PROBED
from arrow_format.storage.open import (
    ObjectExistsError,
    ObjectNotFoundError,
    PosixStorage,
    open_storage,
)
from arrow_format.streaming.lease import take_lease
from tests.support.consumers import ConsumerRegistry
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, collect, files_below, write_rows
from tests.support.stores import put

PROJECT = Path(__file__).parents[3]


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(str(tmp_path / "root"))


@pytest.fixture
def root(storage):
    return Path(storage.root)


# Writing ------------------------------------------------------------------------------------------


def test_a_file_system_that_takes_little_at_a_time(storage, root, monkeypatch):
    writev, write = os.writev, os.write
    calls = []

    def short_writev(handle, views):
        calls.append(len(views))
        return writev(handle, [b"".join(views)[:11]])

    monkeypatch.setattr(os, "writev", short_writev)
    monkeypatch.setattr(os, "write", lambda handle, view: write(handle, bytes(view)[:5]))
    pieces = [bytes([i]) * i for i in range(40)]
    writer = storage.open_writer("a", sync=False)
    writer.writev(pieces)
    writer.close()
    assert calls
    assert (root / "a").read_bytes() == b"".join(pieces)


def test_an_existing_object_is_left_alone(storage, root):
    put(storage, "a", b"first")
    with pytest.raises(ObjectExistsError, match="root/a: exists already"):
        storage.open_writer("a", sync=False)
    assert (root / "a").read_bytes() == b"first"


def test_a_full_disk_has_its_own_error(storage, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = storage.open_writer("a", sync=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "writev", full)
        with pytest.raises(OutOfDiskError, match="root/a: no space left"):
            writer.writev([b"x"])
    writer.abort()


def test_other_failures_of_the_disk_name_the_file(storage, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    writer = storage.open_writer("a", sync=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(StorageError, match="root/a: Input/output error; cannot finish it"):
            writer.close()
    writer.abort()
    assert files_below(Path(storage.root)) == []


@guarantee("order of syncs")
def test_sync_makes_file_then_directory_durable_and_only_when_asked(storage, monkeypatch):
    synced = []
    fsync = os.fsync

    def recording(handle):
        synced.append(Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", recording)
    storage.make_directory("d", sync=True)
    synced.clear()
    put(storage, "d/a", b"x", sync=True)
    assert synced == ["a", "d"]
    synced.clear()
    storage.put_if_absent("d/b", b"x", sync=True)
    assert synced[0].startswith(".tmp-b")
    assert synced[-1] == "d"
    synced.clear()
    put(storage, "d/c", b"x")
    storage.put_if_absent("d/e", b"x", sync=False)
    assert synced == []


# Reading ------------------------------------------------------------------------------------------


def test_short_reads_are_gone_on_with(storage, monkeypatch):
    put(storage, "a", bytes(range(100)))
    preadv, pread = os.preadv, os.pread
    monkeypatch.setattr(
        os, "preadv", lambda handle, views, offset: preadv(handle, [views[0][:7]], offset)
    )
    monkeypatch.setattr(os, "pread", lambda handle, _, offset: pread(handle, 7, offset))
    assert bytes(storage.get_ranges("a", [(3, 90)])[0]) == bytes(range(3, 93))
    assert storage.read("a") == bytes(range(100))


@guarantee("allocation limits")
@pytest.mark.parametrize("bad", [(0, 101), (100, 1), (1 << 62, 8), (8, 1 << 62), (-1, 5), (5, -1)])
def test_a_range_outside_is_refused_before_anything_is_allocated(storage, monkeypatch, bad):
    put(storage, "a", bytes(100))
    monkeypatch.setattr(local.pa, "allocate_buffer", None)
    with pytest.raises(CorruptShuffleError, match="root/a: has 100 bytes, expected"):
        storage.get_ranges("a", [bad])


def test_a_file_that_shrinks_while_it_is_read(storage, monkeypatch):
    put(storage, "a", bytes(100))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(CorruptShuffleError, match="ended 10 bytes early"):
        storage.get_ranges("a", [(0, 10)])


def test_reading_leaves_no_file_open(storage):
    put(storage, "a", bytes(100))
    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    storage.get_ranges("a", [(0, 100)])
    with pytest.raises(CorruptShuffleError):
        storage.get_ranges("a", [(0, 101)])
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


# Looking and removing -----------------------------------------------------------------------------


def test_a_file_tells_when_it_was_changed(storage, root):
    put(storage, "a", b"12345")
    assert storage.stat("a").modified_ms == (root / "a").stat().st_mtime_ns // 10**6


def test_prune_removes_empty_directories_only(storage, root):
    put(storage, "a/b/c/x", b"")
    put(storage, "a/y", b"")
    storage.delete("a/b/c/x")
    storage.prune("a/b/c", and_root=True)
    assert files_below(root) == ["a", "a/y"]
    storage.delete("a/y")
    storage.prune("a", and_root=False)
    assert files_below(root) == []
    assert root.exists()
    storage.prune("a", and_root=True)
    assert not root.exists()


def test_make_directory(storage, root):
    storage.make_directory("a/b", sync=True)
    storage.make_directory("a/b", sync=False)
    assert files_below(root) == ["a", "a/b"]
    put(storage, "file", b"")
    with pytest.raises(StorageError, match="root/file"):
        storage.make_directory("file/below", sync=False)


def test_a_directory_is_made_though_another_prunes_the_way_to_it(storage, root, monkeypatch):
    real = local.make_directories
    pruned = []

    def prune_first(*arguments, **how):
        if not pruned:
            storage.prune("", and_root=True)
            pruned.append(not root.exists())
        real(*arguments, **how)

    monkeypatch.setattr(local, "make_directories", prune_first)
    storage.make_directory("a/b", sync=True)
    assert pruned == [True]
    assert files_below(root) == ["a", "a/b"]


# Opening ------------------------------------------------------------------------------------------


def test_open_storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert open_storage("x").root == str(tmp_path / "x")
    for path in (tmp_path / "x", str(tmp_path / "x"), f"file://{tmp_path}/x", f"file:{tmp_path}/x"):
        assert open_storage(path).root == str(tmp_path / "x")
    assert open_storage(f"file://localhost{tmp_path}/x").root == str(tmp_path / "x")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("file://{}/a%20b", "a b"),
        ("file:{}/a%20b", "a b"),
        ("file://localhost{}/a%20b", "a b"),
        ("FILE://{}/a", "a"),
        ("file://{}/%C3%A4%2Fb", "ä/b"),
        ("file://{}/a%2520b", "a%20b"),
        ("file://{}/100%", "100%"),
        ("file://{}/ä b", "ä b"),
        ("file://{}/a\nb", "a\nb"),
        ("file://{}/a?b#c", "a?b#c"),
        ("{}/a%20b", "a%20b"),
    ],
)
def test_a_file_uri_is_decoded_and_a_path_is_not(tmp_path, path, name):
    assert open_storage(path.format(tmp_path)).root == f"{tmp_path}/{name}"


def test_bytes_that_are_no_text_stay_what_they_are(tmp_path):
    name = os.fsdecode(b"\xff a")
    for path in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}", f"file://{tmp_path}/%FF%20a"):
        assert open_storage(path).root == f"{tmp_path}/{name}"


@pytest.mark.parametrize("path", ["file://elsewhere/x", "file://", "file://localhost", "file:x"])
def test_files_of_other_machines(path):
    with pytest.raises(OptionError, match=f"^path='{path}': expected file:///directory"):
        open_storage(path)


def test_a_file_uri_that_is_no_name(tmp_path):
    with pytest.raises(OptionError, match="no name holds a NUL"):
        open_storage(f"file://{tmp_path}/a%00b")


SCHEMES = ["ftp", "dbfs", "s3a", "abfss", "a", "C", "x-1.y+z"]
HOST = "user:password@host/x"


@guarantee("foreign URIs")
@pytest.mark.parametrize(
    "path",
    [
        *(f"{scheme}://{HOST}" for scheme in SCHEMES),
        *(f"hdfs:{slashes}{HOST}" for slashes in ("", "/", "//", "///")),
        *(PurePosixPath(f"{scheme}://{HOST}") for scheme in ("hdfs", "C")),
    ],
    ids=repr,
)
def test_what_looks_like_a_uri_and_is_none_of_ours_is_refused(path):
    """It would be a directory below the working directory, where no reader looks for it."""
    scheme = re.escape(str(path).partition(":")[0].lower())
    with pytest.raises(OptionError, match=rf"^path={scheme}:\.\.\.: .*; use s3://.* \./") as error:
        open_storage(path)
    assert "password" not in str(error.value)


@pytest.mark.parametrize("path", ["s3:/bucket/x", "gs:bucket", PurePosixPath("az://container/x")])
def test_a_store_without_its_two_slashes(path):
    scheme = str(path)[:2]
    with pytest.raises(OptionError, match=f"^path={scheme}:...: expected {scheme}://"):
        open_storage(path)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("./a:b", "a:b"),
        ("./s3:/b/x", "s3:/b/x"),
        ("d/a:b", "d/a:b"),
        ("d/a://b", "d/a:/b"),
        ("2024-01-01T10:30", "2024-01-01T10:30"),
        ("a b:c", "a b:c"),
        (":a", ":a"),
        ("ä:b", "ä:b"),
    ],
)
def test_a_local_path_may_have_a_colon(tmp_path, monkeypatch, path, name):
    monkeypatch.chdir(tmp_path)
    for text in (path, f"{tmp_path}/{path}"):
        assert open_storage(text).root == f"{tmp_path}/{name}"


def test_a_directory_takes_no_storage_options(tmp_path):
    with pytest.raises(OptionError, match="only object stores"):
        open_storage(tmp_path, {"aws_region": "us-east-1"})


@pytest.mark.parametrize("path", ["", b"x", "a\0b", "a\ud800b"])
def test_what_is_no_path(path):
    with pytest.raises(OptionError, match=r"expected (a|the) directory"):
        open_storage(path)


# Without permission -------------------------------------------------------------------------------

AS_NOBODY = """
import os, sys
from arrow_format.storage.open import PosixStorage
from arrow_format.errors import StorageError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
storage = PosixStorage(sys.argv[1])
actions = {
    "read": lambda: storage.get_ranges("a", [(0, 1)]),
    "create": lambda: storage.open_writer("new", sync=False),
    "put": lambda: storage.put_if_absent("new", b"", sync=False),
    "delete": lambda: storage.delete("a"),
    "directory": lambda: storage.make_directory("d/e", sync=False),
    "list": lambda: storage.list("closed"),
    "look": lambda: storage.stat("closed/x"),
}
for name, act in actions.items():
    try:
        act()
    except StorageError as error:
        assert type(error) is StorageError, repr(error)
        print(name, error)
    else:
        print(name, "was allowed")
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_refusals_name_the_path_and_what_to_do():
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "root"
        (root / "closed").mkdir(parents=True)
        (root / "a").write_bytes(b"x")
        (root / "a").chmod(0o600)
        (root / "closed").chmod(0o700)
        root.chmod(0o755)
        root.parent.chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, str(root)],
            capture_output=True,
            text=True,
            check=False,
            cwd=PROJECT,
        )
    assert done.returncode == 0, done.stderr
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert list(found) == ["read", "create", "put", "delete", "directory", "list", "look"]
    for message in found.values():
        assert message.startswith(f"{root}/")
        assert "permission denied" in message
        assert "Give this user access" in message


def test_a_put_whose_temporary_file_is_collected_is_repeated(storage, monkeypatch):
    lost = []
    usual = os.link

    def link(source, *args, **kwargs):
        if not lost:
            lost.append(source)
            os.unlink(source, dir_fd=kwargs["src_dir_fd"])
        usual(source, *args, **kwargs)

    monkeypatch.setattr(os, "link", link)
    storage.put_if_absent("a/b", b"x", sync=False)
    assert len(lost) == 1
    assert storage.list("a") == ["b"]


@pytest.mark.parametrize("put", ["put_if_absent", "replace"])
def test_a_directory_that_is_gone_is_not_made_again_by_a_put(storage, put):
    storage.make_directory("a", sync=False)
    with pytest.raises(ObjectNotFoundError, match=r"b/\.tmp-c-.*: not there"):
        getattr(storage.without_new_directories(), put)("b/c", b"x", sync=True)
    getattr(storage.without_new_directories(), put)("a/c", b"x", sync=True)
    assert storage.list("a") == ["c"]
    assert "b" not in storage.list("")


def without_links(monkeypatch, number=errno.EPERM):
    def link(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(storage, monkeypatch, number):
    """Put-if-absent cannot be made of anything else there: two writers would both win."""
    without_links(monkeypatch, number)
    with pytest.raises(StorageError, match=r"has no hard links .* exactly one wins"):
        storage.put_if_absent("a/b", b"x", sync=False)
    assert storage.list("a") == []


def test_a_job_does_not_begin_on_a_file_system_without_hard_links(path, monkeypatch):
    rows = pa.table({"k": [1, 2]}).to_reader()
    with monkeypatch.context() as patch:
        without_links(patch)
        with pytest.raises(StorageError, match=r"has no hard links .* exactly one wins"):
            write_rows(path, rows, "k")
    assert not path.exists()
    write_rows(path, rows, "k")
    assert open_shuffle(path).num_rows == 2, "none was read before"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_who_may_write_below_a_root_alone_is_not_refused(tmp_path):
    root = PosixStorage(str(tmp_path))
    root.make_directory("a", sync=False)
    root.make_directory(PROBED, sync=False)
    (tmp_path / PROBED).chmod(0o500)
    try:
        root.check_puts()
        root.put_if_absent("a/b", b"x", sync=False)
    finally:
        (tmp_path / PROBED).chmod(0o700)


def test_what_asking_for_links_left_is_collected(tmp_path):
    write_rows(tmp_path, pa.table({"k": [1]}), "k")
    assert not list(tmp_path.rglob(".tmp-*"))
    left = tmp_path / PROBED / ".tmp-links-0"
    left.touch()
    assert collect(tmp_path).num_files == 1
    assert not left.exists()


# Links whose answer gets lost, as over NFS --------------------------------------------------------


def lose_answers(monkeypatch, number, of=lambda name: True):
    """Let `link` succeed and answer with an error, as where the server carries it out twice."""
    usual, lost = os.link, []

    def link(source, target, **how):
        usual(source, target, **how)
        if of(target):
            lost.append(target)
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    return lost


LOST = pytest.mark.parametrize("number", [errno.EEXIST, errno.ETIMEDOUT, errno.EIO])


@LOST
def test_a_put_that_was_carried_out_has_succeeded_whatever_link_answers(
    storage, monkeypatch, number
):
    assert lose_answers(monkeypatch, number) == []
    storage.put_if_absent("a/b", b"x", sync=True)
    assert storage.read("a/b") == b"x"
    assert storage.list("a") == ["b"]


def test_equal_bytes_of_another_are_not_taken_for_a_put_of_ones_own(storage):
    storage.put_if_absent("a/b", b"x", sync=False)
    with pytest.raises(ObjectExistsError):
        storage.put_if_absent("a/b", b"x", sync=False)


@guarantee("retried put")
@LOST
@pytest.mark.parametrize("what", ["0", ""])
def test_a_write_whose_links_lose_their_answers_is_committed(tmp_path, monkeypatch, number, what):
    path = str(tmp_path / "s")
    lost = lose_answers(monkeypatch, number, lambda name: name.startswith(what))
    table = pa.table({"k": [1, 2]})
    for _ in range(2):
        write_rows(path, table, "k", mode="append")
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")
    assert open_shuffle(path).verify().num_rows == 4
    assert not [name for name in files_below(tmp_path) if ".tmp-" in name]
    assert lost


@guarantee("retried put")
@LOST
def test_a_name_whose_link_loses_its_answer_is_held(tmp_path, monkeypatch, number):
    lost = lose_answers(monkeypatch, number)
    storage = PosixStorage(str(tmp_path))
    for _ in range(2):
        lease = take_lease(storage, "a")
        lease.put()
        lease.end()
    assert ConsumerRegistry(storage).register("a", 3) == 3
    assert len(lost) == 7, "two are taken, shown and given back, and one registers"


def test_who_comes_second_has_lost_though_the_first_has_kept_its_temporary_name(
    storage, root, monkeypatch
):
    """The winner's file has two names, as that of a writer whose link was carried out twice."""
    with monkeypatch.context() as patch:
        patch.setattr(local, "unlink", lambda *_: None)
        storage.put_if_absent("a", b"1", sync=False)
    assert len(list(root.iterdir())) == 2
    with pytest.raises(ObjectExistsError, match="exists already"):
        storage.put_if_absent("a", b"2", sync=False)
    assert storage.read("a") == b"1"
