"""What every storage promises: the same tests on a file system and on stores of each protocol."""

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format.errors import ClosedError, CorruptShuffleError
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStat,
    PosixStorage,
    open_storage,
)
from tests.support import azure_server, store_server
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.stores import put

PROJECT = Path(__file__).parents[3]


SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("s3", "azure", "gs")]


@pytest.fixture(params=["posix", *SERVERS])
def storage(request, tmp_path):
    if request.param == "posix":
        return PosixStorage(str(tmp_path / "root"))
    server = request.getfixturevalue(request.param)
    return ObjectStorage(f"{server.scheme}://{server.new_bucket()}/some/root", server.options)


def whole(storage, path):
    (found,) = storage.get_ranges(path, [(0, storage.stat(path).num_bytes)])
    return found.to_pybytes()


# Writing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [False, True])
def test_pieces_of_all_kinds_become_one_object(storage, sync):
    writer = storage.open_writer("a/b/c", sync=sync)
    writer.writev([b"one", bytearray(b"two"), memoryview(b"three"), pa.py_buffer(b"four"), b""])
    writer.writev([])
    writer.writev([b"%d" % i for i in range(2_500)])
    writer.close()
    assert whole(storage, "a/b/c") == b"onetwothreefour" + b"".join(b"%d" % i for i in range(2_500))


def test_an_object_of_several_parts(storage):
    pieces = [bytes([i]) * (3 << 20) for i in range(9)]
    writer = storage.open_writer("large", sync=False)
    for piece in pieces:
        writer.writev([piece])
    writer.close()
    assert whole(storage, "large") == b"".join(pieces)


@pytest.mark.parametrize("num_bytes", [1, 30 << 20])
def test_what_is_given_up_is_not_there(storage, num_bytes):
    writer = storage.open_writer("a/b", sync=False)
    writer.writev([bytes(num_bytes)])
    writer.abort()
    writer.abort()
    assert storage.stat("a/b") is None
    assert storage.list("a") == []
    with pytest.raises(ClosedError, match="a/b: already closed"):
        writer.writev([b"y"])


def test_what_is_closed_stays(storage):
    writer = storage.open_writer("a", sync=False)
    writer.writev([b"x"])
    writer.close()
    writer.close()
    writer.abort()
    assert whole(storage, "a") == b"x"


# Put if absent ------------------------------------------------------------------------------------


def test_put_if_absent(storage):
    storage.put_if_absent("log/1", b"mine", sync=True)
    with pytest.raises(ObjectExistsError, match="root/log/1: exists already"):
        storage.put_if_absent("log/1", b"yours", sync=False)
    assert whole(storage, "log/1") == b"mine"
    assert storage.list("log") == ["1"], "nothing else is left"


RACE = """
import pickle, sys
from arrow_format.storage.open import ObjectExistsError
storage = pickle.loads(bytes.fromhex(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for version in range(20):
    try:
        storage.put_if_absent(f"log/{version}", sys.argv[2].encode() * 200_000, sync=False)
    except ObjectExistsError:
        continue
    print(version)
"""


@pytest.mark.slow
@guarantee("racing writers")
@exhaustive(but="storage", least=2)
def test_racing_processes_have_one_winner_and_readers_see_all_of_it(storage):
    writers = {
        name: subprocess.Popen(
            [sys.executable, "-c", RACE, pickle.dumps(storage).hex(), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=PROJECT,
        )
        for name in "abc"
    }
    for writer in writers.values():
        assert writer.stdout.readline() == "ready\n"
    for writer in writers.values():
        writer.stdin.write("go\n")
        writer.stdin.flush()
    num_looks = 0
    while any(writer.poll() is None for writer in writers.values()):
        for version in storage.list("log"):
            if not version.startswith("."):
                assert len(whole(storage, f"log/{version}")) == 200_000
                num_looks += 1
    assert num_looks > 0
    won = {}
    for name, writer in writers.items():
        output, _ = writer.communicate()
        assert writer.returncode == 0
        for version in output.split():
            assert version not in won, "two were told that they had won"
            won[version] = name
    assert sorted(won, key=int) == [str(version) for version in range(20)]
    for version, name in won.items():
        assert whole(storage, f"log/{version}") == name.encode() * 200_000
    assert len(storage.list("log")) == 20


# Reading ------------------------------------------------------------------------------------------


def test_ranges(storage):
    put(storage, "a", bytes(range(100)))
    ranges = [(50, 10), (0, 3), (99, 1), (100, 0), (53, 10), (3, 5)]
    for found in (storage.get_ranges("a", ranges), storage.open_reader("a").get_ranges(ranges)):
        assert [bytes(buffer) for buffer in found] == [
            bytes(range(100))[offset : offset + length] for offset, length in ranges
        ]
        assert all(buffer.address % 8 == 0 for buffer in found if buffer.size)
    assert storage.get_ranges("a", []) == []


@pytest.mark.parametrize("bad", [(0, 101), (100, 1), (1 << 62, 8), (8, 1 << 62), (-1, 5), (5, -1)])
def test_a_range_outside_is_damage(storage, bad):
    put(storage, "a", bytes(100))
    with pytest.raises(CorruptShuffleError, match="root/a: has 100 bytes, expected"):
        storage.get_ranges("a", [(0, 1), bad])


def test_what_is_not_there(storage):
    with pytest.raises(ObjectNotFoundError, match="root/a: not there; cannot read it"):
        storage.get_ranges("a", [(0, 1)])
    with pytest.raises(ObjectNotFoundError, match="root/a: not there; cannot read it"):
        storage.open_reader("a").get_ranges([(0, 1)])
    assert issubclass(ObjectNotFoundError, CorruptShuffleError)
    assert storage.stat("a") is None
    assert storage.stat("a/b") is None
    assert storage.stat("") is None
    assert storage.list("a") == []


# Looking and removing -----------------------------------------------------------------------------


def test_stat_and_list(storage):
    put(storage, "a/c", b"12345")
    put(storage, "a/b", b"")
    put(storage, "a/d/e/f", b"")
    put(storage, "ab", b"")
    assert storage.list("a") == ["b", "c", "d"]
    assert storage.list("") == ["a", "ab"]
    assert storage.stat("a/c") == ObjectStat(5, is_directory=False)
    assert storage.stat("a").is_directory
    assert storage.stat("a/d").is_directory
    assert storage.stat("").is_directory
    assert storage.stat("a/c/d") is None
    assert storage.list("a/c") == []


def test_a_listing_is_complete_however_long(storage):
    for number in range(17):
        storage.put_if_absent(f"log/{number:02}", b"%d" % number, sync=False)
        put(storage, f"map_outputs/{number:02}/file", b"")
    assert storage.list("log") == [f"{number:02}" for number in range(17)]
    assert storage.list("map_outputs") == [f"{number:02}" for number in range(17)]


def test_delete(storage):
    put(storage, "a/b", b"x")
    storage.delete("a/b")
    storage.delete("a/b")
    storage.delete("no/such/directory")
    assert storage.stat("a/b") is None


def test_many_are_deleted_at_once(storage):
    for path in ("a/b", "a/c", "d"):
        put(storage, path, b"x")
    storage.delete_all(["a/b", "a/gone", "d"])
    storage.delete_all([])
    assert list(storage.files("", depth=2)) == ["a/c"]


def test_files_are_listed_with_what_a_look_at_each_says(storage):
    for number, path in enumerate(["a/c", "a/b", "a/d/e", "a/d/f/g", "ab", "h"]):
        put(storage, path, bytes(number))
    assert list(storage.files("a")) == ["a/b", "a/c"]
    assert list(storage.files("a", depth=2)) == ["a/b", "a/c", "a/d/e"]
    assert list(storage.files("")) == ["ab", "h"]
    assert list(storage.files("", depth=2)) == ["a/b", "a/c", "ab", "h"]
    assert storage.files("a/c", depth=2) == storage.files("no/such") == {}
    for path, found in storage.files("", depth=3).items():
        looked_at = storage.stat(path)
        assert found == looked_at
        assert abs(found.modified_ms - looked_at.modified_ms) < 1_000, "HTTP has whole seconds"


def test_a_whole_object_is_read(storage):
    put(storage, "a/b", b"12345")
    put(storage, "a/empty", b"")
    assert storage.read("a/b") == b"12345"
    assert storage.read("a/empty") == b""
    assert storage.read("a/b", num_bytes=5) == b"12345"
    for name, there, expected in (("a/b", 5, 4), ("a/b", 5, 6), ("a/empty", 0, 1)):
        message = f"root/{name}: has {there} bytes, expected {expected}; it was"
        with pytest.raises(CorruptShuffleError, match=message):
            storage.read(name, num_bytes=expected)
    with pytest.raises(ObjectNotFoundError, match="root/a/none: not there; cannot read it"):
        storage.read("a/none")


def test_a_root_that_is_a_file(storage):
    put(storage, "a", b"x")
    inside = open_storage(f"{storage.root}/a", storage.options)
    assert inside.stat("") == ObjectStat(1, is_directory=False)


def test_names_of_all_kinds(storage):
    for name in ("with space", "with+plus%20", "Ümlaut", "a=b,c"):
        put(storage, f"d/{name}", name.encode())
        assert whole(storage, f"d/{name}") == name.encode()
        root = open_storage(f"{storage.root}/d/{name}", storage.options)
        assert root.stat("").num_bytes == len(name.encode())
    assert storage.list("d") == sorted(["with space", "with+plus%20", "Ümlaut", "a=b,c"])


def test_directories_come_and_go_without_a_word(storage):
    storage.make_directory("a/b", sync=True)
    put(storage, "a/b/c", b"")
    storage.delete("a/b/c")
    storage.prune("a/b", and_root=True)
    assert storage.stat("") is None


def test_a_storage_travels_and_is_equal_to_itself(storage):
    found = pickle.loads(pickle.dumps(storage))
    put(storage, "a", b"x")
    assert found.list("") == ["a"]
    assert found == storage
    assert hash(found) == hash(storage)
    assert found != open_storage(f"{storage.root}x", storage.options)
    assert open_storage(storage) is storage


@pytest.mark.parametrize(
    ("script", "message"),
    [("exit 3", r"ended with status 3"), ("exec sleep 60", r"takes no connection")],
)
def test_a_server_that_does_not_run_is_named(tmp_path, script, message):
    program = tmp_path / "no-server"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with (
        pytest.raises(RuntimeError, match=f"the Azure server {message}; try: {program}"),
        azure_server.serving(str(program), patience_s=0.3),
    ):
        pytest.fail("it was taken for one that runs")


@pytest.mark.parametrize(
    ("ci", "ends"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_server_that_is_not_installed_is_skipped_but_fails_in_ci(monkeypatch, tmp_path, ci, ends):
    monkeypatch.setattr(store_server, "INSTALLED", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("AZURITE", raising=False)
    with pytest.raises(ends, match=r"az:// is not run: there is no azurite-blob; install it with"):
        store_server.installed("azurite-blob", "AZURITE", "az://")
    program = tmp_path / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    program.parent.mkdir(parents=True)
    program.touch()
    assert store_server.installed("azurite-blob", "AZURITE", "az://") == str(program)
