"""CONFORMANCE, group "Commit": a map task that merges its own files."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pytest

from arrow_format import (
    CorruptShuffleError,
    SchemaError,
    SortMergeResultPartition,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.write.region_joiner import RegionJoiner
from arrow_format.write.rewrite_plan import MIN_FAN_IN
from tests.support.merges import (
    ALWAYS,
    CODECS,
    TINY,
    Failing,
    N,
    append_version,
    contents,
    files_of,
    ids_of,
    numbered_batches,
    rows_in,
)
from tests.support.small_shuffles import (
    files_below,
    metadata_of,
    root_numbers,
)


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
    assert many.num_regions == plain.counters["num_regions"]
    assert 1 < file.num_regions <= -(-many.num_regions // MIN_FAN_IN)
    index, unmerged = PartitionedFileReader(storage, file), PartitionedFileReader(storage, many)
    assert rows_in(index) == rows_in(unmerged)
    counters = status.counters
    assert counters["num_regions"] == file.num_regions
    assert counters["merged_regions"] == many.num_regions > 10
    assert counters["merge_ns"] > 0
    assert counters["stored_bytes"] == status.output.num_bytes == status.subpartition_bytes.sum()
    assert counters["raw_bytes"] == file.raw_bytes
    assert status.subpartition_rows.tolist() == plain.subpartition_rows.tolist()


def test_by_default_it_leaves_them(storage):
    status = run_task(storage, TINY)
    assert status.counters["merged_regions"] == status.counters["merge_ns"] == 0
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
    assert file.num_regions < status.counters["merged_regions"] // 4
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
        assert status.counters["merged_regions"] == 0
        assert status.counters["merge_ns"] > 0
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
    assert file.num_regions == status.counters["num_regions"] > 10
    assert status.counters["merged_regions"] == 0
    assert status.counters["failed_rewrites"] == 1
    assert status.subpartition_bytes.sum() == status.output.num_bytes
    assert len(files_below(storage._root / "out")) == 2, "no half of a merged file"
    assert len(rows_in(PartitionedFileReader(storage, file))) == 600


def test_a_merge_that_arrow_refuses_is_an_error_of_ours(path, monkeypatch):
    append_version(path)

    def fail(joiner):
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(RegionJoiner, "parts", fail)
    with pytest.raises(SchemaError, match=r"cannot be joined: offset overflow.*rewrite='never'"):
        merge_shuffle(path, policy=ALWAYS, options=TINY, by="map_output")
    assert open_shuffle(path).version == 1


def test_files_of_local_directories_become_one(tmp_path):
    local = tmp_path / "local"
    local.mkdir()
    options = replace(REWRITING, local_dirs=(str(local),))
    for i, how in enumerate((replace(options, rewrite="never"), options)):
        append_version(tmp_path / str(i), num_tasks=3, rows=500, options=how)
    unmerged, merged = (open_shuffle(tmp_path / str(i)) for i in range(2))
    assert contents(merged) == contents(unmerged)
    assert set(root_numbers(files_of(merged), local)) == {0, 1}
    for one, many in zip(files_of(merged), files_of(unmerged), strict=True):
        assert one.num_regions < many.num_regions
    merged.verify()
