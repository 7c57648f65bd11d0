"""CONFORMANCE, group "Commit": merged equals unmerged; a merge that fails changes nothing."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CommitConflictError,
    CorruptShuffleError,
    MergePolicy,
    OptionError,
    OutOfDiskError,
    PartitionedFileMerger,
    SchemaError,
    ShuffleNotFoundError,
    SortMergeResultPartition,
    StorageError,
    WriteOptions,
    merge_shuffle,
    open_shuffle,
    write_shuffle,
)
from arrow_format.jobs import merge
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.log.commit_log import CommitLog
from arrow_format.model import BROADCAST, RegionKind
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.shuffle import Shuffle
from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader
from arrow_format.storage.open import PosixStorage
from arrow_format.write.partitioned_file import PartitionedFileWriter
from arrow_format.write.region_joiner import RegionJoiner
from arrow_format.write.rewrite_plan import MIN_FAN_IN
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import (
    SCHEMA,
    entry_of,
    files_below,
    metadata_of,
    numbered,
    write_file,
    write_region,
    write_tasks,
)

N = 6
TINY = WriteOptions(sync=False, sort_buffer_bytes=4_096, chunk_bytes=300)
CODECS = pytest.mark.parametrize("codec", ["none", "zstd"])
KINDS = pytest.mark.parametrize("kind", ["append", "rewrite"])
NEVER, ALWAYS = MergePolicy(rewrite="never"), MergePolicy(rewrite="always")
POLICIES = pytest.mark.parametrize("policy", [NEVER, ALWAYS], ids=["append", "rewrite"])

ROOT = Path(__file__).resolve().parents[2]


class FromColumn:
    """Takes the ids from column `p`, BROADCAST among them."""

    def describe(self):
        return {"kind": "from_column"}

    def check(self, schema):
        schema.field("p")

    def bind(self, schema, num_subpartitions, map_task):
        return lambda batch: batch["p"].to_numpy()


def ids_of(num_rows, seed=0, n=N, broadcast=False):
    ids = np.random.default_rng(seed).integers(0, n, num_rows)
    if broadcast:
        ids[(np.arange(num_rows) // 25) % 3 == 1] = BROADCAST
    return ids.tolist()


def append_version(path, num_tasks=2, rows=150, options=TINY, broadcast=False, n=N, sort_by=()):
    """Commit one version more: map tasks of several regions each, rotated."""
    job = begin_job(
        str(path),
        SCHEMA,
        num_subpartitions=n,
        partitioner=FromColumn(),
        options=options,
        sort_by=sort_by,
    )
    open_target(job, "append")
    seed = job.base_version * 100
    statuses = [
        run_map_task(
            job,
            task,
            0,
            numbered_batches(ids_of(rows, seed + task, n, broadcast), 1_000 * (seed + task)),
        )
        for task in range(num_tasks)
    ]
    return commit_job(job, statuses, mode="append")


def numbered_batches(ids, start, rows=10):
    return [numbered(ids[i : i + rows], start + i) for i in range(0, len(ids), rows)]


def contents(shuffle: Shuffle):
    """Rows of each subpartition in reading order, and of a range that is read together."""
    return [
        *(shuffle.subpartition(i).read_all() for i in range(shuffle.num_subpartitions)),
        shuffle.read(range(1, 4), with_subpartition=True).read_all(),
    ]


def index_of(path, file):
    return PartitionedFileReader(PosixStorage(str(path)), file)


def files_of(shuffle):
    return [file for output in shuffle.map_outputs for file in output.files]


# Files --------------------------------------------------------------------------------------------


REGIONS = [
    ([([5, 0, 3, 3, 1, 1], 2), ([0, 2, 2, 4], 5)]),
    ([([4, 4, 4], 0)]),
    ([([1, 0, 5, 4, 3, 2] * 9, 3), ([2], 1), ([5, 0], 4)]),
]


@pytest.fixture
def storage(tmp_path):
    return PosixStorage(str(tmp_path))


def written(storage, codecs=("zstd",) * 3):
    return [
        PartitionedFileReader(
            storage,
            write_file(storage, regions, N, path=f"here/{i}", options=replace(TINY, codec=codec))[
                0
            ],
        )
        for i, (regions, codec) in enumerate(zip(REGIONS, codecs, strict=True))
    ]


def rows_in(*indexes):
    """`(subpartition, v)` by subpartition, in the order a reader gives."""
    found = []
    for one in range(N):
        for index in indexes:
            entry = entry_of(index.file, N)
            for run in SortMergeSubpartitionReader(index.storage, [entry], one, one + 1):
                found += [(one, v) for v in run.batch["v"].to_pylist()]
    return found


def merger_in(storage, path="there/merged", options=TINY, **changes):
    return PartitionedFileMerger(storage, path, metadata_of(N, **changes), options)


@KINDS
@pytest.mark.parametrize(
    "codecs", [("zstd",) * 3, ("none",) * 3, ("none", "zstd", "none")], ids="-".join
)
def test_merged_is_read_as_its_inputs_were(storage, kind, codecs):
    inputs = written(storage, codecs)
    before = files_below(storage._root / "here")
    merged = getattr(merger_in(storage), kind)(inputs)
    assert rows_in(merged) == rows_in(*inputs)
    assert merged.file.num_rows == sum(one.file.num_rows for one in inputs)
    assert merged.file.raw_bytes == pytest.approx(sum(i.file.raw_bytes for i in inputs), rel=0.2)
    assert files_below(storage._root / "here") == before
    assert len(files_below(storage._root / "there")) == 2
    path = storage._root / merged.file.data_path
    if set(codecs) == {"none"}:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        assert table.num_rows == merged.file.num_rows
    else:
        assert path.read_bytes().startswith(b"ASHFDAT1")


@CODECS
def test_appending_keeps_regions_and_stored_bytes(storage, codec):
    inputs = written(storage, (codec,) * 3)
    merged = merger_in(storage).append(inputs)
    regions = [region for one in inputs for region in one.regions]
    assert len(merged.regions) == merged.file.num_regions == 6
    for found, expected in zip(merged.regions, regions, strict=True):
        assert found.first_subpartition == expected.first_subpartition
        assert np.array_equal(found.row_offsets, expected.row_offsets)
        for name in ("first_row", "length", "raw_length", "encoding", "crc32"):
            assert np.array_equal(getattr(found.chunks, name), getattr(expected.chunks, name))
    assert merged.file.raw_bytes == sum(one.file.raw_bytes for one in inputs)
    offsets = np.concatenate([region.chunks.offset for region in merged.regions])
    assert (np.diff(offsets) > 0).all()
    assert (offsets % 8 == 0).all()
    assert merged.metadata.job_id == "the-job"


def test_rewriting_makes_one_region(storage):
    merged = merger_in(storage).rewrite(written(storage))
    (region,) = merged.regions
    assert region.first_subpartition == 2, "where the first region began"
    assert region.ranks is None


def test_rewriting_joins_at_most_so_many_regions(storage):
    inputs = written(storage)
    merged = merger_in(storage).rewrite(inputs, max_fan_in=2)
    assert len(merged.regions) == 3
    assert rows_in(merged) == rows_in(*inputs)


@KINDS
def test_regions_for_everyone_stay_where_they_are(storage, kind):
    with SortMergeResultPartition(storage, "here", metadata_of(N), TINY) as partition:
        for i in range(6):
            batch = numbered(ids_of(20, i), 100 * i)
            partition.emit(batch, batch["p"].to_numpy())
            partition.emit(numbered([0], 100 * i + 50), np.array([3]))
            if i % 2:
                partition.broadcast(numbered([0], 100 * i + 60))
        (file,) = partition.finish().output.files
    index = PartitionedFileReader(storage, file)
    merged = getattr(merger_in(storage), kind)([index])
    assert rows_in(merged) == rows_in(index)
    assert merged.file.num_broadcast_rows == file.num_broadcast_rows == 3
    kinds = [region.kind for region in merged.regions]
    assert kinds.count(RegionKind.BROADCAST) == 3
    if kind == "rewrite":
        assert kinds == [RegionKind.UNICAST, RegionKind.BROADCAST] * 3


@pytest.mark.parametrize("sort_buffer_bytes", [1 << 10, 1 << 20])
def test_a_subpartition_larger_than_memory(storage, sort_buffer_bytes):
    options = replace(TINY, sort_buffer_bytes=sort_buffer_bytes)
    file, _ = write_file(storage, [([3] * 400 + [1, 5], 0), ([0, 3, 3, 4], 0)] * 3, N)
    index = PartitionedFileReader(storage, file)
    merged = merger_in(storage, options=options).rewrite([index])
    (region,) = merged.regions
    assert rows_in(merged) == rows_in(index)
    assert region.rank_rows(3, 4) == (5 + 1, 5 + 1 + 1_206) or region.num_rows == 1_224


def test_rows_much_larger_than_their_neighbours(storage):
    """Sizes are estimated by the average row; what does not fit is tried in halves."""
    ids = [0, 1, 2, 3, 4, 5]
    with PartitionedFileWriter(storage, "here/x", metadata_of(N), TINY) as writer:
        for i in range(3):
            texts = ["x" * (3_000 if one == 2 else 1) for one in ids]
            batch = pa.record_batch([ids, [i * 10 + one for one in ids], texts], schema=SCHEMA)
            write_region(writer, batch, ids, N)
        index = PartitionedFileReader(storage, writer.finish())
    merged = merger_in(storage).rewrite([index])
    assert len(merged.regions) == 1
    assert rows_in(merged) == rows_in(index)


def test_no_regions_at_all(storage):
    file, _ = write_file(storage, [], N)
    merged = merger_in(storage).rewrite([PartitionedFileReader(storage, file)])
    assert merged.regions == ()


@KINDS
def test_files_of_another_shape_are_refused(storage, kind):
    inputs = written(storage)
    for metadata in (
        metadata_of(7),
        metadata_of(N, sort_by=(("v", "ascending"),)),
        metadata_of(N, pa.schema([("p", pa.int32())])),
    ):
        merger = PartitionedFileMerger(storage, "x", metadata, TINY)
        with pytest.raises(SchemaError, match="its columns, sort keys or number of"):
            getattr(merger, kind)(inputs)
    with pytest.raises(OptionError, match="merge of no files"):
        getattr(merger, kind)([])
    assert "x.shuffle.data" not in files_below(storage._root)


@guarantee("damaged merge")
@KINDS
@CODECS
def test_every_flipped_byte_of_an_input_is_found_and_never_copied(storage, kind, codec):
    """Bytes that no checksum of a chunk covers are not copied, so they do no harm."""
    inputs = written(storage, (codec,) * 3)
    expected = rows_in(*inputs)
    path = storage._root / inputs[0].file.data_path
    sound = path.read_bytes()
    chunks = inputs[0].regions[0].chunks, inputs[0].regions[1].chunks
    inside = {
        at
        for table in chunks
        for offset, length in zip(table.offset.tolist(), table.length.tolist(), strict=True)
        for at in range(offset, offset + length)
    }
    for at in range(0, len(sound), 3):
        damaged = bytearray(sound)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        if at in inside:
            with pytest.raises(CorruptShuffleError, match=r"map task 3, attempt 1\), region \d"):
                getattr(merger_in(storage), kind)(inputs)
            assert not files_below(storage._root / "there")
    path.write_bytes(sound[: len(sound) // 2])
    with pytest.raises(CorruptShuffleError):
        getattr(merger_in(storage), kind)(inputs)
    path.unlink()
    with pytest.raises(CorruptShuffleError, match="not there"):
        getattr(merger_in(storage), kind)(inputs)
    path.write_bytes(sound)
    assert rows_in(getattr(merger_in(storage), kind)(inputs)) == expected


@KINDS
def test_what_was_written_wrong_is_noticed_before_it_is_given_out(storage, kind, monkeypatch):
    inputs = written(storage)
    writev = os.writev

    def flipping(handle, views):
        pieces = [bytearray(view) for view in views]
        if "there" in str(Path(f"/proc/self/fd/{handle}").readlink()) and len(pieces) > 1:
            pieces[1][0] ^= 1
        return writev(handle, pieces)

    monkeypatch.setattr(os, "writev", flipping)
    with pytest.raises(CorruptShuffleError):
        getattr(merger_in(storage), kind)(inputs)
    assert not files_below(storage._root / "there")


# Failures of the storage --------------------------------------------------------------------------


class Failing:
    """Counts calls of `os` functions that change files, and makes one of them fail."""

    def __init__(self, monkeypatch, names=("writev", "fsync", "open", "link")):
        self.calls = 0
        self.fails_at = None
        for name in names:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, function):
        def call(*arguments, **how):
            reads = function.__name__ == "open" and not arguments[1] & os.O_CREAT
            if not reads:
                self.calls += 1
                if self.calls == self.fails_at:
                    raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **how)

        return call


@KINDS
@CODECS
def test_a_disk_that_fails_at_any_step_leaves_the_inputs_alone(storage, monkeypatch, kind, codec):
    inputs = written(storage, (codec,) * 3)
    before = files_below(storage._root)
    options = replace(TINY, sync=True)
    (storage._root / "there").mkdir()
    with monkeypatch.context() as context:
        failing = Failing(context)
        getattr(merger_in(storage, "there/counted", options), kind)(inputs)
        steps = failing.calls
        for path in (storage._root / "there").iterdir():
            path.unlink()
        assert steps > 5
        for failing.fails_at in range(1, steps + 1):
            failing.calls = 0
            with pytest.raises(OutOfDiskError, match="no space left"):
                getattr(merger_in(storage, options=options), kind)(inputs)
            assert files_below(storage._root) == [*before, "there"]
    assert rows_in(getattr(merger_in(storage), kind)(inputs)) == rows_in(*inputs)


# The end of a map task ----------------------------------------------------------------------------


def run_task(storage, options, rows=600, schema_changes=None):
    with SortMergeResultPartition(storage, "out", metadata_of(N), options) as partition:
        for batch in numbered_batches(ids_of(rows), 0):
            partition.emit(batch, batch["p"].to_numpy())
        return partition.finish()


REWRITING = replace(TINY, rewrite="auto")


@CODECS
def test_a_map_task_joins_its_regions(storage, codec):
    plain = run_task(storage, replace(TINY, codec=codec))
    before = files_below(storage._root)
    status = run_task(storage, replace(REWRITING, codec=codec))
    assert len(files_below(storage._root)) == len(before) + 2, "the files of before are gone"
    (file,), (many,) = status.output.files, plain.output.files
    assert many.num_regions == plain.output.counters["num_regions"]
    assert file.num_regions == -(-many.num_regions // MIN_FAN_IN)
    index, unmerged = PartitionedFileReader(storage, file), PartitionedFileReader(storage, many)
    assert rows_in(index) == rows_in(unmerged)
    counters = status.output.counters
    assert counters["num_regions"] == file.num_regions
    assert counters["merged_regions"] == many.num_regions > 10
    assert counters["merge_ns"] > 0
    assert counters["stored_bytes"] == status.output.num_bytes == status.subpartition_bytes.sum()
    assert counters["raw_bytes"] == file.raw_bytes
    assert status.subpartition_rows.tolist() == plain.subpartition_rows.tolist()


def test_by_default_it_leaves_them(storage):
    status = run_task(storage, TINY)
    assert status.output.counters["merged_regions"] == status.output.counters["merge_ns"] == 0
    assert status.output.files[0].num_regions > 10


def test_it_leaves_few_regions_unless_told_otherwise(storage):
    few = run_task(storage, REWRITING, rows=150)
    assert 1 < few.output.files[0].num_regions < 8
    always = run_task(storage, replace(TINY, rewrite="always"), rows=150)
    assert always.output.files[0].num_regions == 1


def test_files_that_were_rolled_over_become_one(storage, monkeypatch):
    monkeypatch.setattr("arrow_format.write.map_output.MAX_INDEX_BYTES", 300)
    status = run_task(storage, REWRITING)
    (file,) = status.output.files
    assert file.num_regions < status.output.counters["merged_regions"] // 4
    assert status.subpartition_rows.sum() == 600
    assert len(files_below(storage._root / "out")) == 2


def test_a_disk_without_room_for_both_keeps_what_is_there(storage, monkeypatch):
    options = replace(REWRITING, sync=True)
    with monkeypatch.context() as context:
        failing = Failing(context)
        run_task(storage, replace(options, rewrite="never"))
        unmerged = failing.calls
        failing.calls = 0
        run_task(storage, options)
        steps = failing.calls
    shutil.rmtree(storage._root / "out")
    for at in range(unmerged + 1, steps + 1):
        with monkeypatch.context() as context:
            failing = Failing(context)
            failing.fails_at = at
            status = run_task(storage, options)
        (file,) = status.output.files
        assert file.num_regions > 1
        assert status.output.counters["merged_regions"] == 0
        assert status.output.counters["merge_ns"] > 0
        assert status.subpartition_bytes.sum() == status.output.num_bytes
        assert len(files_below(storage._root / "out")) == 2, "no half of a merged file"
        PartitionedFileReader(storage, file)
        shutil.rmtree(storage._root / "out")


def test_a_map_output_that_is_damaged_already_fails_the_task(storage, monkeypatch):
    finish = PartitionedFileReader.__init__

    def damage_first(self, storage, file):
        path = storage._root / file.data_path
        stored = bytearray(path.read_bytes())
        stored[len(stored) // 2] ^= 1
        path.write_bytes(stored)
        finish(self, storage, file)

    monkeypatch.setattr(PartitionedFileReader, "__init__", damage_first)
    with pytest.raises(CorruptShuffleError):
        run_task(storage, REWRITING)
    assert files_below(storage._root) == ["out"]


@pytest.mark.parametrize(
    "error",
    [
        pa.ArrowInvalid("offset overflow while concatenating arrays"),
        pa.ArrowMemoryError("malloc failed"),
        MemoryError(),
        OverflowError("date value out of range"),
        SchemaError("columns do not fit"),
        CorruptShuffleError("rows differ from the files it was merged from"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("rewrite", ["auto", "always"])
def test_regions_that_cannot_be_joined_stay_as_they_are(storage, monkeypatch, error, rewrite):
    def fail(joiner):
        raise error

    monkeypatch.setattr(RegionJoiner, "parts", fail)
    status = run_task(storage, replace(TINY, rewrite=rewrite))
    (file,) = status.output.files
    assert file.num_regions == status.output.counters["num_regions"] > 10
    assert status.output.counters["merged_regions"] == 0
    assert status.output.counters["failed_rewrites"] == 1
    assert status.subpartition_bytes.sum() == status.output.num_bytes
    assert len(files_below(storage._root / "out")) == 2, "no half of a merged file"
    assert len(rows_in(PartitionedFileReader(storage, file))) == 600


def test_a_merge_that_arrow_refuses_is_an_error_of_ours(path, monkeypatch):
    append_version(path)

    def fail(joiner):
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(RegionJoiner, "parts", fail)
    with pytest.raises(SchemaError, match=r"cannot be joined: offset overflow.*rewrite='never'"):
        merge_shuffle(path, policy=ALWAYS, options=TINY)
    assert open_shuffle(path).version == 1


def test_files_of_local_directories_become_one(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    options = replace(REWRITING, local_dirs=(str(local),))
    for i, how in enumerate((replace(options, rewrite="never"), options)):
        append_version(tmp_path / str(i), num_tasks=3, rows=500, options=how)
    unmerged, merged = (open_shuffle(tmp_path / str(i)) for i in range(2))
    assert contents(merged) == contents(unmerged)
    assert {file.root for file in files_of(merged)} == {0, 1}
    for one, many in zip(files_of(merged), files_of(unmerged), strict=True):
        assert one.num_regions < many.num_regions
    merged.verify()


# Committed shuffles -------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return tmp_path / "shuffle"


@guarantee("merged rows")
@POLICIES
@CODECS
@pytest.mark.parametrize("broadcast", [False, True], ids=["unicast", "mixed"])
def test_a_merged_version_has_the_same_rows_in_the_same_order(path, policy, codec, broadcast):
    for _ in range(3):
        append_version(path, options=replace(TINY, codec=codec), broadcast=broadcast)
    before = open_shuffle(path)
    expected = contents(before)
    told: list[int] = []
    report = merge_shuffle(path, policy=policy, options=TINY, on_bytes=told.append)
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert sum(told) == report.plan.num_bytes
    assert (report.version, merged.version) == (4, 4)
    assert report.num_map_outputs == (6, 1)
    assert merged.subpartition_rows.equals(before.subpartition_rows)
    assert sum(merged.subpartition_bytes.to_pylist()) == merged.num_bytes == report.after.data_bytes
    assert merged.verify().num_rows == merged.num_rows == before.num_rows
    (file,) = files_of(merged)
    assert (report.before.num_files, report.after.num_files) == (6, 1)
    if policy is NEVER:
        assert file.num_regions == sum(one.num_regions for one in files_of(before))
    elif not broadcast:
        assert file.num_regions == -(-report.before.num_regions // MIN_FAN_IN)
    else:
        kinds = [region.kind for region in index_of(path, file).regions]
        assert (RegionKind.UNICAST, RegionKind.UNICAST) not in set(pairwise(kinds))
    assert contents(open_shuffle(path, version=3)) == expected, "the version before stays"


@POLICIES
def test_versions_of_different_codecs(path, policy):
    for codec in ("none", "zstd", "none"):
        append_version(path, options=replace(TINY, codec=codec))
    expected = contents(open_shuffle(path))
    merge_shuffle(path, policy=policy, options=TINY)
    merged = open_shuffle(path)
    assert contents(merged) == expected
    merged.verify()


def test_the_entry_names_everything(path):
    append_version(path)
    append_version(path)
    first = open_shuffle(path).entries[0]
    report = merge_shuffle(path, policy=NEVER, options=TINY)
    entry = open_shuffle(path).entries[-1]
    assert open_shuffle(path).entries == (entry,)
    assert entry.operation == "replace"
    assert entry.shuffle_id == first.shuffle_id
    assert entry.partitioner == first.partitioner
    (output,) = entry.map_outputs
    assert output.job_id == entry.job_id != first.job_id
    assert CommitLog(PosixStorage(str(path))).find_job(first.job_id).version == 1
    metadata = index_of(path, output.files[0]).metadata
    assert (metadata.job_id, metadata.map_task, metadata.attempt) == (output.job_id, 0, 0)
    assert report.plan.num_bytes == report.before.data_bytes


def test_appending_and_overwriting_go_on_after_a_merge(path):
    append_version(path)
    append_version(path)
    merge_shuffle(path, policy=ALWAYS, options=TINY)
    append_version(path)
    shuffle = open_shuffle(path)
    assert [entry.operation for entry in shuffle.entries] == ["replace", "append"]
    expected = contents(shuffle)
    merge_shuffle(path, policy=ALWAYS, options=TINY)
    assert contents(open_shuffle(path)) == expected
    write_tasks(path, [[numbered([1])]], N, mode="overwrite")
    assert open_shuffle(path).num_rows == 1
    open_shuffle(path).verify()


def test_nothing_to_merge_commits_nothing(path):
    append_version(path, num_tasks=1, rows=20)
    before = files_below(path)
    report = merge_shuffle(path)
    assert report.plan.merges == ()
    assert (report.version, report.num_map_outputs) == (1, (1, 1))
    assert files_below(path) == before


def test_map_tasks_without_rows_and_no_rows_at_all(path):
    write_tasks(path, [[numbered([])], [numbered([1])], [numbered([])], [numbered([2], 1)]], N)
    merge_shuffle(path, policy=ALWAYS, options=TINY)
    assert open_shuffle(path).read().read_all()["v"].to_pylist() == [0, 1]
    assert len(open_shuffle(path).map_outputs) == 1
    write_tasks(path, [[numbered([])]] * 2, N, mode="overwrite")
    assert merge_shuffle(path, policy=ALWAYS).plan.merges == ()


def test_several_merges_are_one_version(path):
    for _ in range(4):
        append_version(path)
    expected = contents(open_shuffle(path))
    sizes = [file.data_bytes for file in files_of(open_shuffle(path))]
    policy = MergePolicy(rewrite="never", target_file_bytes=3 * max(sizes))
    report = merge_shuffle(path, policy=policy, options=TINY)
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert len(report.plan.merges) > 1
    assert report.version == 5
    assert len({output.map_task for output in merged.map_outputs}) == len(merged.map_outputs)
    merged.verify()


def test_progress_adds_up_to_the_plan(path):
    for policy in (NEVER, ALWAYS):
        append_version(path)
        append_version(path)
        seen = []
        report = merge_shuffle(path, policy=policy, options=TINY, on_bytes=seen.append)
        assert sum(seen) == pytest.approx(report.plan.num_bytes, rel=0.2)
        assert len(seen) > 1


def test_local_directories(tmp_path, path):
    dirs = [tmp_path / name for name in ("one", "two")]
    for one in dirs:
        one.mkdir()
    options = replace(TINY, local_dirs=tuple(map(str, dirs)))
    for _ in range(2):
        append_version(path, num_tasks=4, options=options)
    append_version(path)
    before = open_shuffle(path)
    assert {file.root for file in files_of(before)} == {0, 1, 2}
    expected = contents(before)
    policy = MergePolicy(rewrite="never", target_file_bytes=before.num_bytes // 3)
    merge_shuffle(path, policy=policy, options=options)
    merged = open_shuffle(path)
    assert contents(merged) == expected
    merged.verify()
    entry = merged.entries[-1]
    assert len(entry.roots) == len(set(entry.roots)) == max(f.root for f in files_of(merged))


def test_a_pinned_reader_goes_on(path):
    append_version(path, num_tasks=3)
    pinned = open_shuffle(path)
    reader = pinned.subpartition(1)
    expected = contents(pinned)
    merge_shuffle(path, policy=ALWAYS, options=TINY)
    assert reader.read_all() == expected[1]
    assert contents(pinned) == expected


def test_sorted_shuffles_stay_sorted(path):
    sort_by = (("s", "descending"), ("v", "ascending"))
    for _ in range(2):
        append_version(path, sort_by=sort_by, rows=400)
    expected = contents(open_shuffle(path))
    num_regions = sum(file.num_regions for file in files_of(open_shuffle(path)))
    merge_shuffle(path, policy=ALWAYS, options=TINY)
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert files_of(merged)[0].num_regions <= num_regions // 2 + 1, "two at a time fit in here"
    merge_shuffle(path, policy=ALWAYS, options=replace(TINY, sort_buffer_bytes=1 << 20))
    assert contents(open_shuffle(path)) == expected
    (file,) = files_of(open_shuffle(path))
    assert file.num_regions == 1
    for table in expected[:N]:
        order = table.sort_by([("s", "descending"), ("v", "ascending")])
        assert order.equals(table.combine_chunks())


# Races --------------------------------------------------------------------------------------------


def meanwhile(monkeypatch, action):
    """Run `action` once, between the merge and its commit."""
    replace_outputs, done = merge.replace_outputs, []

    def late(*arguments):
        result = replace_outputs(*arguments)
        if not done:
            done.append(True)
            action()
        return result

    monkeypatch.setattr(merge, "replace_outputs", late)


@guarantee("concurrent merge")
@POLICIES
def test_rows_appended_meanwhile_stay(path, policy, monkeypatch):
    append_version(path)
    append_version(path)
    meanwhile(monkeypatch, lambda: append_version(path))
    report = merge_shuffle(path, policy=policy, options=TINY)
    assert report.version == 4
    assert report.num_map_outputs == (6, 3)
    merged = open_shuffle(path)
    assert merged.entries[0].operation == "replace"
    assert contents(merged) == contents(open_shuffle(path, version=3))
    merged.verify()
    assert len(list(path.glob("commit_log/totals-*"))) == 4, "those of the lost round are gone"


@guarantee("concurrent merge")
@pytest.mark.parametrize("what", ["overwrite", "merge"])
def test_an_overwrite_or_another_merge_meanwhile_fails_it(path, what, monkeypatch):
    append_version(path)
    append_version(path)
    left = []

    def other():
        monkeypatch.undo()
        if what == "merge":
            merge_shuffle(path, policy=ALWAYS, options=TINY)
        else:
            write_tasks(path, [[numbered([1])]], N, mode="overwrite")
        left.append(set(files_below(path)))

    meanwhile(monkeypatch, other)
    with pytest.raises(CommitConflictError, match="overwrote or merged the shuffle meanwhile"):
        merge_shuffle(path, policy=NEVER, options=TINY)
    mine = left[0] - set(files_below(path))
    assert set(files_below(path)) < left[0]
    assert {name.rpartition(".")[2] for name in mine if "." in name} == {"data", "index"}
    assert open_shuffle(path).version == 3
    open_shuffle(path).verify()


def test_merging_while_others_append(path):
    append_version(path)
    stop = threading.Event()
    errors = []

    def appending():
        try:
            while not stop.is_set():
                append_version(path, num_tasks=1, rows=30)
                time.sleep(0.05)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=appending)
    thread.start()
    try:
        for _ in range(5):
            merge_shuffle(path, policy=ALWAYS, options=TINY)
    finally:
        stop.set()
        thread.join()
    assert not errors
    shuffle = open_shuffle(path)
    rows = 0
    for version in range(1, shuffle.version + 1):
        entry = CommitLog(PosixStorage(str(path))).entry(version)
        rows += 0 if entry.operation == "replace" else entry.num_rows
    assert shuffle.num_rows == rows
    shuffle.verify()


# Crashes ------------------------------------------------------------------------------------------


@POLICIES
def test_a_disk_that_fails_anywhere_leaves_the_version_whole(path, policy, monkeypatch):
    options = replace(TINY, sync=True)
    append_version(path)
    append_version(path)
    expected = contents(open_shuffle(path))
    with monkeypatch.context() as context:
        failing = Failing(context)
        shutil.copytree(path, path.with_name("counted"))
        failing.calls = 0
        merge_shuffle(path.with_name("counted"), policy=policy, options=options)
        steps = failing.calls
        before = files_below(path)
        for failing.fails_at in range(1, steps + 1):
            failing.calls = 0
            try:
                merge_shuffle(path, policy=policy, options=options)
            except OutOfDiskError:
                assert files_below(path) == before
                assert open_shuffle(path).version == 2
                continue
            except StorageError as error:
                # The entry was there already when making it durable failed.
                if "committed as version 3" not in str(error):
                    raise
            break
    assert contents(open_shuffle(path)) == expected
    open_shuffle(path).verify()


CHILD = """
import os, sys, signal
from arrow_format import MergePolicy, WriteOptions, merge_shuffle
path, die_at = sys.argv[1], int(sys.argv[2])
calls = 0
def dying(function):
    def call(*arguments, **how):
        global calls
        calls += 1
        if calls == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **how)
    return call
for name in ("writev", "fsync", "link", "unlink"):
    setattr(os, name, dying(getattr(os, name)))
options = WriteOptions(sort_buffer_bytes=4096, chunk_bytes=300)
merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=options)
print(calls)
"""


@pytest.mark.parametrize("die_at", [1, 3, 5, 8, 12, 16, 20, 24, 26, 28, 30, 33, 36])
def test_a_killed_merge_leaves_a_whole_version_and_can_be_run_again(path, die_at):
    append_version(path)
    append_version(path)
    expected = contents(open_shuffle(path))
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(die_at)],
        cwd=ROOT,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode() + child.stdout.decode()
    shuffle = open_shuffle(path)
    assert contents(shuffle) == expected
    shuffle.verify()
    report = merge_shuffle(path, policy=ALWAYS, options=TINY)
    assert contents(open_shuffle(path)) == expected
    assert len(open_shuffle(path).map_outputs) == 1
    assert report.version == shuffle.version + bool(report.plan.merges)


@POLICIES
def test_a_damaged_version_is_not_merged(path, policy):
    append_version(path)
    append_version(path)
    file = files_of(open_shuffle(path))[2]
    for damaged in (path / file.data_path, path / file.index_path):
        sound = damaged.read_bytes()
        damaged.write_bytes(sound[:100] + bytes([sound[100] ^ 1]) + sound[101:])
        before = files_below(path)
        with pytest.raises(CorruptShuffleError, match=damaged.name):
            merge_shuffle(path, policy=policy, options=TINY)
        assert files_below(path) == before
        damaged.write_bytes(sound)
    assert merge_shuffle(path, policy=policy, options=TINY).version == 3


def test_there_is_nothing_to_merge(tmp_path):
    with pytest.raises(ShuffleNotFoundError):
        merge_shuffle(tmp_path / "nowhere")
    with pytest.raises(OptionError, match=r"policy is str: expected arrow_format.MergePolicy"):
        merge_shuffle(tmp_path, policy="always")
    with pytest.raises(OptionError, match=r"options is dict: expected arrow_format.WriteOptions"):
        merge_shuffle(tmp_path, options={"sync": False})


# Memory -------------------------------------------------------------------------------------------


@CODECS
@pytest.mark.parametrize("n", [1, 40, 5_000])
def test_memory_is_that_of_a_map_task(path, codec, n):
    """Columns in Arrow's pool; what NumPy and zstd take is small beside them."""
    batch = pa.record_batch(
        {
            "k": np.random.default_rng(1).integers(0, 10_000, 200_000),
            "s": [f"some text of row {i}" for i in range(200_000)],
        }
    )
    options = WriteOptions(sync=False, codec=codec, sort_buffer_bytes=4 << 20, chunk_bytes=32 << 10)
    write_shuffle(
        (batch.slice(i, 4_000) for i in range(0, 200_000, 4_000)),
        path,
        num_subpartitions=n,
        keys="k",
        options=options,
    )
    expected = open_shuffle(path).read().read_all()
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    default = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        merge_shuffle(path, policy=ALWAYS, options=options)
    finally:
        pa.set_memory_pool(default)
    # Three quarters of the buffer, a read ahead of it, and a round of chunks.
    assert 0 < pool.max_memory() < 0.75 * (4 << 20) + (8 << 20) + (2 << 20)
    assert open_shuffle(path).read().read_all().equals(expected)
    (file,) = files_of(open_shuffle(path))
    assert file.num_regions == 1
