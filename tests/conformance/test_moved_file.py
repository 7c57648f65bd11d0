"""CONFORMANCE, group "File": regions of a file on a full disk move to another directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import OutOfDiskError, StorageError
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import run_map_task
from arrow_format.storage.local import PosixReader, PosixWriter
from arrow_format.storage.open import PosixStorage
from tests.support.broken_methods import break_method
from tests.support.small_shuffles import root_numbers
from tests.support.spread_shuffles import (
    CODECS,
    ROWS,
    begin,
    check_rows,
    files_in,
    options_of,
    table_of,
)


def break_disk(patch, name, *fails, max_bytes=None):
    """Make operations fail in one local directory: those that are named, or all from a size on.

    Of index, fsync, truncate, read, damage.
    """
    full = OutOfDiskError("no space left")

    def is_there(path, suffix=""):
        return f"/{name}/" in str(path) and str(path).endswith(suffix)

    def is_full(file, _):
        return is_there(file._path, ".data") and Path(file._path).stat().st_size > max_bytes

    def is_index(storage, path):
        return is_there(f"{storage.root}/{path}", ".index")

    if max_bytes is not None:
        break_method(patch, PosixWriter, "writev", full, is_full)
    if "truncate" in fails:
        break_method(patch, PosixWriter, "truncate", full, lambda file, *_: is_there(file._path))
    if "index" in fails:
        break_method(patch, PosixStorage, "open_writer", full, is_index)
    if "read" in fails:
        error = StorageError("Input/output error")
        break_method(
            patch, PosixReader, "get_ranges", error, lambda file, *_: is_there(file._path, ".data")
        )
    if "damage" in fails:
        patch.setattr(PosixReader, "get_ranges", zeroed(PosixReader.get_ranges, is_there))
    if "fsync" in fails:
        patch.setattr(os, "fsync", refused(os.fsync, is_there))


def zeroed(get_ranges, is_there):
    def read(file, *arguments):
        found = get_ranges(file, *arguments)
        is_zero = is_there(file._path, ".data")
        return [pa.py_buffer(bytes(len(one))) for one in found] if is_zero else found

    return read


def refused(fsync, is_there):
    def sync(handle):
        if is_there(Path(f"/proc/self/fd/{handle}").readlink(), ".data"):
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        fsync(handle)

    return sync


@pytest.fixture(autouse=True)
def in_turn_from_the_local_ones(monkeypatch):
    monkeypatch.setattr("arrow_format.write.map_output.first_root", lambda *_: 1)


def roots_of(status, tmp_path):
    return root_numbers(status.output.files, tmp_path / "d1", tmp_path / "d2")


def data_files(directory):
    return [name for name in files_in(directory) if name.endswith((".data", ".index"))]


@CODECS
@pytest.mark.parametrize("fails", ["index", "truncate"])
def test_regions_move_when_a_full_disk_takes_no_end(tmp_path, monkeypatch, codec, fails):
    break_disk(monkeypatch, "d1", fails, max_bytes=1_000_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", codec=codec))
    status = run_map_task(job, 0, 0, table_of().to_batches())
    assert roots_of(status, tmp_path) == [0]
    assert data_files(tmp_path / "d1") == []
    counters = status.counters
    assert counters["failed_directories"] == 1
    assert counters["num_rows"] == ROWS
    assert counters["num_regions"] == sum(file.num_regions for file in status.output.files)
    # A region that was written twice counts once.
    assert counters["raw_bytes"] == pytest.approx(table_of().nbytes, rel=0.02)
    commit_job(job, [status], mode="append")
    check_rows(tmp_path / "s", ROWS)


@CODECS
@pytest.mark.parametrize("fails", ["index", "fsync"])
def test_regions_move_when_the_end_of_the_task_finds_the_disk_full(
    tmp_path, monkeypatch, codec, fails
):
    break_disk(monkeypatch, "d1", fails)
    options = options_of(tmp_path / "d1", codec=codec)
    object.__setattr__(options, "sync", fails == "fsync")
    job = begin(tmp_path / "s", options)
    status = run_map_task(job, 0, 0, table_of().to_batches())
    assert roots_of(status, tmp_path) == [0]
    assert data_files(tmp_path / "d1") == []
    commit_job(job, [status], mode="append")
    check_rows(tmp_path / "s", ROWS)


@CODECS
def test_regions_move_once_more_when_the_next_disk_is_full_too(tmp_path, monkeypatch, codec):
    break_disk(monkeypatch, "d1", "index", max_bytes=1_000_000)
    break_disk(monkeypatch, "d2", max_bytes=400_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", tmp_path / "d2", codec=codec))
    status = run_map_task(job, 0, 0, table_of().to_batches())
    assert roots_of(status, tmp_path) == [0]
    assert status.counters["failed_directories"] == 2
    assert data_files(tmp_path / "d1") == data_files(tmp_path / "d2") == []
    commit_job(job, [status], mode="append")
    check_rows(tmp_path / "s", ROWS)


@pytest.mark.parametrize("fails", ["read", "damage"])
def test_regions_that_cannot_be_read_back_fail_the_attempt(tmp_path, monkeypatch, fails):
    break_disk(monkeypatch, "d1", "index", fails, max_bytes=1_000_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    with pytest.raises(OutOfDiskError, match="no space left") as raised:
        run_map_task(job, 0, 0, table_of().to_batches())
    assert "could not be kept" in raised.value.__notes__[0]
    assert data_files(tmp_path) == []


def test_none_takes_the_regions(tmp_path, monkeypatch):
    break_disk(monkeypatch, "d1", "index", max_bytes=1_000_000)
    break_disk(monkeypatch, "s", max_bytes=400_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    with pytest.raises(OutOfDiskError, match="none of 2 directories has free space"):
        run_map_task(job, 0, 0, table_of().to_batches())
    assert data_files(tmp_path) == []


def test_no_two_files_of_an_attempt_share_a_name(tmp_path, monkeypatch):
    """What a broken disk keeps of a file that moved must not pass for the live one."""
    break_disk(monkeypatch, "d1", "index", max_bytes=1_000_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", tmp_path / "d2"))
    with monkeypatch.context() as patch:
        break_method(
            patch, PosixStorage, "delete", StorageError("Input/output error"),
            lambda storage, _: "/d1/" in storage.root,
        )  # fmt: skip
        patch.setattr(PosixWriter, "abort", lambda self: setattr(self, "_handle", None))
        status = run_map_task(job, 0, 0, table_of().to_batches())
    assert len(data_files(tmp_path / "d1")) == 1
    assert roots_of(status, tmp_path) == [2]
    commit_job(job, [status], mode="append")
    assert files_in(tmp_path / "d1") == []
    check_rows(tmp_path / "s", ROWS)
