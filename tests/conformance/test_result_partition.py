"""CONFORMANCE, group "Result partition", as far as unicast rows go, in that order."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format.errors import ClosedError, OutOfDiskError
from arrow_format.options import WriteOptions
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.write.result_partition import SortMergeResultPartition
from tests.support.small_shuffles import (
    SCHEMA,
    files_below,
    metadata_of,
    numbered,
    read_range,
)

N = 6
TINY = WriteOptions(sync=False, sort_buffer_bytes=4_096, chunk_bytes=300)


def partition_in(storage, options=TINY, n=N, schema=SCHEMA, **changes):
    return SortMergeResultPartition(storage, "out", metadata_of(n, schema, **changes), options)


def emit(partition, ids, start=0):
    batch = numbered(ids, start)
    partition.emit(batch, batch["p"].to_numpy())


def emit_many(partition, num_batches=50, rows=10):
    ids = [(i * 5 + i // 7) % N for i in range(num_batches * rows)]
    for start in range(0, len(ids), rows):
        emit(partition, ids[start : start + rows], start)
    return [(s, v) for v, s in enumerate(ids)]


def run_task(storage, **how):
    """Write many rows; return the status, and the rows."""
    with partition_in(storage, **how) as partition:
        written = emit_many(partition)
        return partition.finish(), written


def rows_in(storage, status):
    """Rows of all files: of each subpartition they are in the order in which they came."""
    found = [
        (s, row["v"])
        for file in status.output.files
        for s, row in read_range(storage, file, N, 0, N)
    ]
    for s in range(N):
        values = [v for one, v in found if one == s]
        assert values == sorted(values), "first in, first out"
    return found


def test_round_trip_in_many_regions(storage):
    status, written = run_task(storage)
    assert status.output.files[0].num_regions > 10
    assert sorted(rows_in(storage, status)) == sorted(written)


def test_counters_equal_what_a_reader_finds(storage):
    status, written = run_task(storage)
    output = status.output
    (file,) = output.files
    regions = PartitionedFileReader(storage, file).regions
    assert output.num_rows == file.num_rows == len(written) == sum(r.num_rows for r in regions)
    assert output.num_bytes == (storage._root / file.data_path).stat().st_size
    # What the rows take in memory, region by region: 12 bytes of numbers, text and its offsets.
    text = sum(len(f"row {v}" * (v % 3)) for _, v in written)
    assert 0 <= output.raw_bytes - (len(written) * (12 + 4) + text) <= 32 * len(regions)
    assert file.index_bytes == (storage._root / file.index_path).stat().st_size
    counters = status.counters
    assert counters["num_rows"] == output.num_rows
    assert counters["raw_bytes"] == output.raw_bytes
    assert counters["stored_bytes"] == output.num_bytes
    assert counters["num_regions"] == len(regions)
    assert min(counters[name] for name in ("gather_ns", "encode_ns", "write_ns")) > 0
    assert counters["num_batches"] == 50
    assert counters["final_flushes"] == 1
    assert counters["full_buffer_flushes"] + 1 == file.num_regions == len(regions)
    assert counters["large_batches"] == 0
    assert status.subpartition_rows.tolist() == [sum(s == i for s, _ in written) for i in range(N)]
    assert status.subpartition_bytes.sum() == output.num_bytes


def test_a_batch_larger_than_the_buffer_becomes_regions_within_the_bound(storage):
    ids = [i % N for i in range(5_000)]
    with partition_in(storage) as partition:
        emit(partition, [0, 1], 0)
        emit(partition, ids, 2)
        emit(partition, [5, 4], 5_002)
        status = partition.finish()
    assert status.counters["large_batches"] == 1
    (file,) = status.output.files
    for region in PartitionedFileReader(storage, file).regions:
        assert region.num_rows * 16 <= 4_096 * 3 // 8
    assert sorted(v for _, v in rows_in(storage, status)) == list(range(5_004))


def test_one_row_larger_than_the_buffer(storage):
    with partition_in(storage) as partition:
        emit(partition, [3], 0)
        row = pa.record_batch([[2], [1], ["x" * 100_000]], schema=SCHEMA)
        partition.emit(row, np.array([2], np.int32))
        emit(partition, [3], 2)
        status = partition.finish()
    (file,) = status.output.files
    assert file.num_regions == 3
    found = dict(read_range(storage, file, N, 2, 3))
    assert found[2]["s"] == "x" * 100_000
    assert [row["v"] for _, row in read_range(storage, file, N, 3, 4)] == [0, 2]


@pytest.mark.parametrize("batches", [0, 1, 5])
def test_no_rows_make_no_file(storage, batches):
    with partition_in(storage) as partition:
        for _ in range(batches):
            emit(partition, [])
        status = partition.finish()
    assert status.output.files == ()
    assert files_below(storage._root) == []
    assert status.subpartition_rows.tolist() == status.subpartition_bytes.tolist() == [0] * N


def test_write_order(storage):
    for order, task, first in (("rotated", 0, 0), ("rotated", 1, 7919 % N), ("natural", 1, 0)):
        options = WriteOptions(sync=False, write_order=order)
        with partition_in(storage, options, map_task=task) as partition:
            emit(partition, [0, 1, 2, 3, 4, 5])
            assert partition.first_subpartition == first
            (file,) = partition.finish().output.files
        (region,) = PartitionedFileReader(storage, file).regions
        assert region.first_subpartition == first


def test_rotation_spreads_over_tasks(storage):
    tasks = (partition_in(storage, n=20_000, map_task=task) for task in range(100))
    assert len({partition.first_subpartition for partition in tasks}) == 100


def test_an_index_that_grows_large_closes_its_file(storage, monkeypatch):
    monkeypatch.setattr("arrow_format.write.map_output.MAX_INDEX_BYTES", 300)
    status, written = run_task(storage)
    assert len(status.output.files) > 3
    assert sorted(rows_in(storage, status)) == sorted(written)
    assert status.subpartition_rows.sum() == 500
    assert status.subpartition_bytes.sum() == status.output.num_bytes


def test_close_while_writing_removes_everything(storage, monkeypatch):
    monkeypatch.setattr("arrow_format.write.map_output.MAX_INDEX_BYTES", 300)
    partition = partition_in(storage)
    emit_many(partition)
    assert len(files_below(storage._root)) > 3
    partition.close()
    partition.close()
    assert files_below(storage._root) == ["out"]
    with pytest.raises(ClosedError, match="map task 3: result partition is finished or closed"):
        emit(partition, [1])
    with pytest.raises(ClosedError, match="map task 3"):
        partition.finish()


def test_finished_files_outlive_the_writer(storage):
    with partition_in(storage) as partition:
        emit_many(partition)
        status = partition.finish()
        partition.close()
        with pytest.raises(ClosedError):
            partition.finish()
        with pytest.raises(ClosedError):
            emit(partition, [1])
    del partition
    assert len(rows_in(storage, status)) == 500


def test_an_exception_inside_with_leaves_no_file(storage):
    def failing():
        with partition_in(storage) as partition:
            emit_many(partition)
            assert len(files_below(storage._root)) > 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert files_below(storage._root) == ["out"]


@pytest.mark.parametrize("fails_at", [1, 2, 3, 5, 9, "index"])
def test_a_disk_that_fills_up_at_any_write_leaves_nothing(storage, monkeypatch, fails_at):
    writes, failed = 0, False
    writev = os.writev
    monkeypatch.setattr("arrow_format.write.chunk_writer.WRITE_BYTES", 500)

    def filling(handle, views):
        nonlocal writes, failed
        writes += 1
        name = Path(f"/proc/self/fd/{handle}").readlink().suffix
        if not failed and (writes == fails_at or name == f".{fails_at}"):
            failed = True
            writev(handle, [b"".join(views)[:7]])
            raise OSError(errno.ENOSPC, "No space left on device")
        return writev(handle, views)

    monkeypatch.setattr(os, "writev", filling)

    with pytest.raises(OutOfDiskError, match="no space left"):
        run_task(storage)
    assert files_below(storage._root) == ["out"]
    assert len(rows_in(storage, run_task(storage)[0])) == 500, "and a retry succeeds"


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_after_a_failed_write_nothing_can_be_finished(storage, monkeypatch, codec):
    """The rows of the region that failed are gone: a map output without them must not exist."""
    real, fail = os.writev, []

    def writev(handle, buffers):
        if fail:
            raise OSError(errno.ENOSPC, fail.pop())
        return real(handle, buffers)

    monkeypatch.setattr(os, "writev", writev)
    partition = partition_in(storage, replace(TINY, codec=codec))
    emit_many(partition, 20)
    fail.append("no space")
    with pytest.raises(OutOfDiskError):
        emit_many(partition, 20)
    with pytest.raises(ClosedError):
        partition.finish()
    with pytest.raises(ClosedError):
        emit(partition, [1])
    assert [path for path in storage._root.rglob("*") if path.is_file()] == []


def test_attempts_never_share_a_name(storage):
    statuses = []
    for _ in range(20):
        with partition_in(storage) as partition:
            emit(partition, [1])
            statuses.append(partition.finish())
    paths = {status.output.files[0].path for status in statuses}
    assert len(paths) == 20
    assert all(path.startswith("out/00003-1-") for path in paths)
