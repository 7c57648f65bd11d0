"""CONFORMANCE, group "Commit": full, read-only or closed disks give an error, nothing visible."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from arrow_format import (
    OutOfDiskError,
    ShuffleNotFoundError,
    StorageError,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.storage.open import PosixStorage
from tests.support import spread_shuffles
from tests.support.guarantees import guarantee
from tests.support.spread_shuffles import CODECS, check_rows, files_in, options_of, table_of

PROJECT = Path(__file__).parents[2]
ROWS = 8_000  # about 0.8 MB, more than one region


def write(path, num_rows=ROWS, start=0, codec="zstd"):
    return spread_shuffles.write(path, table_of(num_rows, start), options_of(codec=codec))


def fill(disk, leave=0):
    """Leave so many bytes on a disk; return the file that takes the others."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        with contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(file.tell() - leave, 0))
    return filler


@guarantee("disk full at any step")
@CODECS
@pytest.mark.parametrize("leave", [0, 4096, 200_000, 600_000])
def test_a_disk_that_fills_up_while_a_map_task_writes(small_disk, codec, leave):
    path = small_disk / "s"
    filler = fill(small_disk, leave)
    with pytest.raises(OutOfDiskError, match=r"no space left.*Free space or write elsewhere"):
        write(path, codec=codec)
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(path)
    assert files_in(small_disk) == ["filler"]
    filler.unlink()
    write(path, codec=codec)
    check_rows(path, ROWS)


STEPS = {
    "index": ("open_writer", ".shuffle.index"),
    "log entry": ("put_if_absent", ".entry"),
}


@pytest.fixture
def full_at(small_disk, monkeypatch):
    """Fill the disk up when a file of some name is about to be written."""

    def arrange(step):
        method, part = STEPS[step]
        real = getattr(PosixStorage, method)

        def filling(self, path, *arguments, **named):
            if part in path and not (small_disk / "filler").exists():
                fill(small_disk)
            return real(self, path, *arguments, **named)

        monkeypatch.setattr(PosixStorage, method, filling)
        return monkeypatch

    return arrange


@guarantee("disk full at any step")
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("appends", [False, True])
def test_a_disk_that_fills_up_before_a_step_of_the_write(small_disk, full_at, step, appends):
    path = small_disk / "s"
    if appends:
        write(path, 1000)
    before = files_in(path) if appends else []
    patch = full_at(step)
    with pytest.raises(OutOfDiskError, match="no space left"):
        write(path, start=1000 if appends else 0)
    if appends:
        check_rows(path, 1000)
    else:
        with pytest.raises(ShuffleNotFoundError):
            open_shuffle(path)
    assert files_in(path) == before, "nothing is left of what was not committed"
    # A retry works once there is room.
    patch.undo()
    (small_disk / "filler").unlink()
    assert write(path, start=1000 if appends else 0).version == (2 if appends else 1)
    check_rows(path, ROWS + (1000 if appends else 0))


@guarantee("disk full in a merge")
@pytest.mark.parametrize("step", ["index", "log entry"])
def test_a_disk_that_fills_up_during_a_merge(small_disk, full_at, step):
    path = small_disk / "s"
    write(path, 2000)
    write(path, 2000, 2000)
    before = files_in(path)
    patch = full_at(step)
    with pytest.raises(OutOfDiskError, match="no space left"):
        merge_shuffle(path, options=options_of(), by="map_output")
    assert files_in(path) == before
    check_rows(path, 4000)
    patch.undo()
    (small_disk / "filler").unlink()
    assert merge_shuffle(path, options=options_of(), by="map_output").version == 3
    check_rows(path, 4000)


@guarantee("read-only disk")
def test_a_disk_that_is_read_only(small_disk):
    path = small_disk / "s"
    write(path, 1000)
    before = files_in(path)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        with pytest.raises(StorageError, match="Read-only file system"):
            write(path, 1000, 1000)
        check_rows(path, 1000)
        assert files_in(path) == before
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    write(path, 1000, 1000)
    check_rows(path, 2000)


AS_NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[2])
from tests.conformance.test_full_disks import check_rows, write
from arrow_format.errors import StorageError
# First, all that is imported on the way: this user may not be able to enter the directory it is in.
check_rows(sys.argv[1], 1000)
write(sys.argv[3], 1000)
os.setgroups([]); os.setgid(65534); os.setuid(65534)
check_rows(sys.argv[1], 1000)
try:
    write(sys.argv[1], 1000, 1000)
except StorageError as error:
    assert type(error) is StorageError, repr(error)
    print(error)
else:
    print("was allowed")
check_rows(sys.argv[1], 1000)
"""


@guarantee("read-only disk")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("closed", ["", "commit_log/000000000000000000", "map_outputs"])
def test_directories_that_this_user_may_only_read(closed):
    """A shuffle of somebody else: it can be read, and a write says why not."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        try_as_nobody(Path(directory) / "s", Path(directory) / "scratch", closed)


def try_as_nobody(path, scratch, closed):
    write(path, 1000)
    for directory in (path, *path.rglob("*")):
        if directory.is_dir():
            directory.chmod(0o777)
    (path / closed).chmod(0o555)
    if not closed:
        (path / "map_outputs").chmod(0o555)
    before = files_in(path)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(path), str(PROJECT), str(scratch)],
        capture_output=True, text=True, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "permission denied" in done.stdout, done.stdout
    assert "Give this user access" in done.stdout
    assert files_in(path) == before
    assert stat.S_IMODE((path / closed).stat().st_mode) == 0o555
