"""Map outputs spread over several directories, and what happens when one fills up or fails."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CorruptShuffleError,
    OutOfDiskError,
    StorageError,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from arrow_format import storage as storage_module
from arrow_format.commit import abort_job, commit_job
from arrow_format.job import begin_job, run_map_task
from arrow_format.partitioner import ColumnPartitioner
from arrow_format.roots import MARKER_NAME
from arrow_format.target import open_target

N = 20
ROWS = 40_000
CODECS = pytest.mark.parametrize("codec", ["none", "zstd"])


def table_of(num_rows=ROWS, start=0):
    """Rows that do not compress: 100 bytes each."""
    rng = np.random.default_rng(start)
    noise = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(84), num_rows, [None, pa.py_buffer(rng.bytes(84 * num_rows))]
    )
    v = np.arange(start, start + num_rows)
    return pa.table({"p": pa.array(v % N, pa.int32()), "v": v, "noise": noise})


def options_of(*dirs, codec="zstd", **more):
    return WriteOptions(
        codec=codec, sync=False, sort_buffer_bytes=1 << 20, local_dirs=tuple(map(str, dirs)), **more
    )


def begin(path, options, mode="append"):
    job = begin_job(
        str(path), table_of(0).schema, num_subpartitions=N, partitioner=ColumnPartitioner("p"),
        options=options,
    )  # fmt: skip
    open_target(job, mode)
    return replace(job, has_directory=True)


def check_rows(path, num_rows):
    shuffle = open_shuffle(path)
    assert shuffle.verify().num_rows == num_rows
    assert [shuffle.subpartition(p).read_all()["v"].to_pylist() for p in range(N)] == [
        list(range(p, num_rows, N)) for p in range(N)
    ]
    return shuffle


def files_in(directory):
    return sorted(str(p.relative_to(directory)) for p in Path(directory).rglob("*") if p.is_file())


@CODECS
def test_map_outputs_take_turns_over_the_directories(tmp_path, codec):
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    job = begin(tmp_path / "s", options_of(*dirs, codec=codec))
    size = ROWS // 6
    table = table_of(size * 6)
    statuses = [
        run_map_task(job, task, 0, table.slice(task * size, size).to_batches()) for task in range(6)
    ]
    receipt = commit_job(job, statuses, mode="append")
    assert receipt.num_rows == size * 6
    shuffle = check_rows(tmp_path / "s", size * 6)
    roots = [file.root for output in shuffle.map_outputs for file in output.files]
    assert Counter(roots) == {0: 2, 1: 2, 2: 2}
    assert [(root + 1) % 3 for root in roots[:-1]] == roots[1:]
    for directory in dirs:
        marker, *_ = [p for p in directory.rglob(MARKER_NAME)]
        assert json.loads(marker.read_bytes()) == {"job_id": job.job_id}


@pytest.fixture
def small_disk(tmp_path):
    """A directory on a disk of 2 MB."""
    directory = tmp_path / "small"
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"cannot mount a small disk here: {made.stderr.strip()}")
    yield directory
    subprocess.run(["umount", str(directory)], check=True)


@CODECS
@pytest.mark.parametrize("looks_ahead", [True, False])
def test_a_disk_that_fills_up_mid_way(tmp_path, small_disk, codec, looks_ahead, monkeypatch):
    if not looks_ahead:  # as when another process takes the room between question and write
        monkeypatch.setattr(storage_module.PosixStorage, "free_bytes", lambda self: None)
    large = tmp_path / "large"
    path = small_disk / "s"
    write_shuffle(
        table_of(), path, num_subpartitions=N, partitioner=ColumnPartitioner("p"),
        options=options_of(large, codec=codec),
    )  # fmt: skip
    shuffle = check_rows(path, ROWS)
    (output,) = shuffle.map_outputs
    if looks_ahead:
        # There is never room for a region and its index on the small one.
        assert {file.root for file in output.files} == {1}
    else:
        assert 1 in {file.root for file in output.files}
        assert output.counters["failed_directories"] <= 1
    if codec == "none":
        for file in output.files:
            root = path if file.root == 0 else next(large.iterdir())
            with pa.ipc.open_file(str(root / file.data_path)) as reader:
                assert reader.read_all().num_rows == file.num_rows


@CODECS
@pytest.mark.parametrize("first", [0, 1])
def test_regions_before_the_disk_was_full_are_kept(tmp_path, small_disk, codec, first, monkeypatch):
    monkeypatch.setattr(storage_module.PosixStorage, "free_bytes", lambda self: None)
    monkeypatch.setattr("arrow_format.map_output_writer.first_root", lambda *_: first)
    path, other = (tmp_path / "s", small_disk) if first else (small_disk / "s", tmp_path / "large")
    write_shuffle(
        table_of(), path, num_subpartitions=N, partitioner=ColumnPartitioner("p"),
        options=options_of(other, codec=codec),
    )  # fmt: skip
    (output,) = check_rows(path, ROWS).map_outputs
    full, rest = output.files
    assert (full.root, rest.root) == (first, 1 - first)
    assert full.num_regions >= 3
    assert full.data_bytes < 2 << 20
    assert output.counters["failed_directories"] == 1
    assert output.counters["num_regions"] == full.num_regions + rest.num_regions
    if codec == "none":
        root = next(other.iterdir()) if first else path
        with pa.ipc.open_file(str(root / full.data_path)) as reader:
            assert reader.read_all().num_rows == full.num_rows


def test_out_of_disk_only_when_none_is_left(tmp_path, small_disk):
    second = tmp_path / "small2"
    second.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(second)], check=True)
    try:
        with pytest.raises(OutOfDiskError, match="no space left"):
            write_shuffle(
                table_of(), small_disk / "s", num_subpartitions=N,
                partitioner=ColumnPartitioner("p"), options=options_of(second),
            )  # fmt: skip
        assert files_in(small_disk) == files_in(second) == []
    finally:
        subprocess.run(["umount", str(second)], check=True)


def test_a_directory_that_fails_from_the_start_is_an_error(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match="file"):
        write_shuffle(
            table_of(10), tmp_path / "s", num_subpartitions=N, partitioner=ColumnPartitioner("p"),
            options=options_of(tmp_path / "file" / "d"),
        )  # fmt: skip
    assert not (tmp_path / "s").exists()


@CODECS
def test_a_directory_that_fails_in_the_middle(tmp_path, codec, monkeypatch):
    """From some write on, its device takes nothing more into the data file."""
    real = storage_module._PosixWriter.writev

    def writev(self, buffers):
        if "/d1/" in str(self._path) and self._path.stat().st_size > 1_000_000:
            msg = f"{self._path}: Input/output error; cannot write to it"
            raise StorageError(msg)
        real(self, buffers)

    monkeypatch.setattr(storage_module._PosixWriter, "writev", writev)
    monkeypatch.setattr("arrow_format.map_output_writer.first_root", lambda _, turn, n: 1 - turn)
    job = begin(tmp_path / "s", options_of(tmp_path / "d1", codec=codec))
    attempt = 0
    if codec == "none":
        # The file could not get its footer: this attempt is lost, and the next begins elsewhere.
        with pytest.raises(StorageError, match="Input/output error") as raised:
            run_map_task(job, 0, 0, table_of().to_batches())
        assert "could not be kept" in raised.value.__notes__[0]
        assert files_in(tmp_path / "d1") == [f"arrow-shuffle-{job.job_id}/{MARKER_NAME}"]
        attempt = 1
    status = run_map_task(job, 0, attempt, table_of().to_batches())
    commit_job(job, [status], mode="append")
    check_rows(tmp_path / "s", ROWS)


def test_abort_removes_the_directories(tmp_path):
    dirs = [tmp_path / "d1", tmp_path / "d2"]
    job = begin(tmp_path / "s", options_of(*dirs))
    for task in range(3):
        run_map_task(job, task, 0, table_of(100).to_batches())
    assert files_in(dirs[0])
    abort_job(job)
    assert [list(d.iterdir()) for d in dirs] == [[], []]
    assert not (tmp_path / "s").exists()


def test_losing_attempts_go_at_the_commit(tmp_path):
    local = tmp_path / "d1"
    job = begin(tmp_path / "s", options_of(local))
    kept = [run_map_task(job, task, 1, table_of(100).to_batches()) for task in range(2)]
    for task in range(2):
        run_map_task(job, task, 0, table_of(100).to_batches())
    commit_job(job, kept, mode="append")
    assert open_shuffle(tmp_path / "s").verify().num_rows == 200
    assert len([name for name in files_in(local) if name.endswith(".data")]) == 1


@pytest.mark.parametrize("damage", ["gone", "unmarked", "another job's"])
def test_a_directory_without_its_marker_is_not_believed(tmp_path, damage):
    local = tmp_path / "d1"
    job = begin(tmp_path / "s", options_of(local))
    statuses = [run_map_task(job, task, 0, table_of(100).to_batches()) for task in range(2)]
    commit_job(job, statuses, mode="append")
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
        write_shuffle(
            table_of(1000, start), tmp_path / "s", num_subpartitions=N, mode="append",
            partitioner=ColumnPartitioner("p"), options=options_of(*(tmp_path / d for d in dirs)),
        )  # fmt: skip
    check_rows(tmp_path / "s", 3000)
