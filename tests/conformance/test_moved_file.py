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


class Disk:
    """Makes operations fail in one local directory: those that are named, or all from a size on."""

    def __init__(self, monkeypatch, name, *, fails=(), max_bytes=None):
        self.fails = fails
        """Of index, fsync, truncate, read, damage."""
        self.max_bytes = max_bytes
        self.mark = f"/{name}/"
        for kind, method in (
            (PosixWriter, "writev"),
            (PosixWriter, "truncate"),
            (PosixStorage, "open_writer"),
            (PosixReader, "get_ranges"),
        ):
            self.patch(monkeypatch, kind, method)
        fsync = os.fsync

        def broken(handle):
            path = Path(f"/proc/self/fd/{handle}").readlink()
            if self.mark in str(path) and path.suffix == ".data" and "fsync" in self.fails:
                raise OSError(errno.EDQUOT, "Disk quota exceeded")
            fsync(handle)

        monkeypatch.setattr(os, "fsync", broken)

    def patch(self, monkeypatch, kind, method):
        real = getattr(kind, method)

        def patched(this, *arguments, **named):
            path = str(getattr(this, "_path", None) or f"{this.root}/{arguments[0]}")
            if self.mark in path:
                self.check(method, path)
            found = real(this, *arguments, **named)
            if path.endswith(".data") and method == "get_ranges" and self.damages(path):
                return [pa.py_buffer(bytes(len(one))) for one in found]
            return found

        monkeypatch.setattr(kind, method, patched)

    def damages(self, path):
        return self.mark in path and "damage" in self.fails

    def check(self, method, path):
        full = (
            method == "writev"
            and self.max_bytes is not None
            and path.endswith(".data")
            and Path(path).stat().st_size > self.max_bytes
        )
        if (
            full
            or (method == "open_writer" and path.endswith(".index") and "index" in self.fails)
            or (method == "truncate" and "truncate" in self.fails)
        ):
            msg = f"{path}: no space left"
            raise OutOfDiskError(msg)
        if method == "get_ranges" and path.endswith(".data") and "read" in self.fails:
            msg = f"{path}: Input/output error"
            raise StorageError(msg)


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
    Disk(monkeypatch, "d1", fails=[fails], max_bytes=1_000_000)
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
    Disk(monkeypatch, "d1", fails=[fails])
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
    Disk(monkeypatch, "d1", fails=["index"], max_bytes=1_000_000)
    Disk(monkeypatch, "d2", max_bytes=400_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", tmp_path / "d2", codec=codec))
    status = run_map_task(job, 0, 0, table_of().to_batches())
    assert roots_of(status, tmp_path) == [0]
    assert status.counters["failed_directories"] == 2
    assert data_files(tmp_path / "d1") == data_files(tmp_path / "d2") == []
    commit_job(job, [status], mode="append")
    check_rows(tmp_path / "s", ROWS)


@pytest.mark.parametrize("fails", ["read", "damage"])
def test_regions_that_cannot_be_read_back_fail_the_attempt(tmp_path, monkeypatch, fails):
    Disk(monkeypatch, "d1", fails=["index", fails], max_bytes=1_000_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    with pytest.raises(OutOfDiskError, match="no space left") as raised:
        run_map_task(job, 0, 0, table_of().to_batches())
    assert "could not be kept" in raised.value.__notes__[0]
    assert data_files(tmp_path) == []


def test_none_takes_the_regions(tmp_path, monkeypatch):
    Disk(monkeypatch, "d1", fails=["index"], max_bytes=1_000_000)
    Disk(monkeypatch, "s", max_bytes=400_000)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1"))
    with pytest.raises(OutOfDiskError, match="none of 2 directories has free space"):
        run_map_task(job, 0, 0, table_of().to_batches())
    assert data_files(tmp_path) == []


def test_no_two_files_of_an_attempt_share_a_name(tmp_path, monkeypatch):
    """What a broken disk keeps of a file that moved must not pass for the live one."""
    Disk(monkeypatch, "d1", fails=["index"], max_bytes=1_000_000)
    delete = PosixStorage.delete
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", tmp_path / "d2"))
    with monkeypatch.context() as patch:
        patch.setattr(
            PosixStorage,
            "delete",
            lambda self, path: None if "/d1/" in self.root else delete(self, path),
        )
        patch.setattr(
            PosixWriter,
            "abort",
            lambda self: setattr(self, "_handle", None),
        )
        status = run_map_task(job, 0, 0, table_of().to_batches())
    assert len(data_files(tmp_path / "d1")) == 1
    assert roots_of(status, tmp_path) == [2]
    commit_job(job, [status], mode="append")
    assert files_in(tmp_path / "d1") == []
    check_rows(tmp_path / "s", ROWS)
