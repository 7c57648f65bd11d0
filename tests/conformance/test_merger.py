"""CONFORMANCE, group "Commit": merged files equal their inputs; a failure changes nothing."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    CorruptShuffleError,
    OptionError,
    OutOfDiskError,
    PartitionedFileMerger,
    SchemaError,
    SortMergeResultPartition,
)
from arrow_format.format.regions import RegionKind
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.write.partitioned_file import PartitionedFileWriter
from tests.support.guarantees import guarantee
from tests.support.merges import CODECS, TINY, Failing, N, ids_of, rows_in
from tests.support.small_shuffles import (
    SCHEMA,
    files_below,
    metadata_of,
    numbered,
    write_file,
    write_region,
)

KINDS = pytest.mark.parametrize("kind", ["append", "rewrite"])


REGIONS = [
    ([([5, 0, 3, 3, 1, 1], 2), ([0, 2, 2, 4], 5)]),
    ([([4, 4, 4], 0)]),
    ([([1, 0, 5, 4, 3, 2] * 9, 3), ([2], 1), ([5, 0], 4)]),
]


def written(storage, codecs=("zstd",) * 3):
    indexes = []
    for i, (regions, codec) in enumerate(zip(REGIONS, codecs, strict=True)):
        options = replace(TINY, codec=codec)
        file, _ = write_file(storage, regions, N, path=f"here/{i}", options=options)
        indexes.append(PartitionedFileReader(storage, file))
    return indexes


def merger_in(storage, path="there/merged", options=TINY, told=None, **changes):
    on_bytes = (told if told is not None else []).append
    metadata = metadata_of(N, **changes)
    return PartitionedFileMerger(storage, path, metadata, options, on_bytes=on_bytes)


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
        for name in ("first_row", "length", "raw_length", "encoding", "frame_crc32"):
            assert np.array_equal(getattr(found.chunks, name), getattr(expected.chunks, name))
    assert merged.file.raw_bytes == sum(one.file.raw_bytes for one in inputs)
    offsets = np.concatenate([region.chunks.offset for region in merged.regions])
    assert (np.diff(offsets) > 0).all()
    assert (offsets % 8 == 0).all()
    assert merged.metadata.job_id == "the-job"


def test_rewriting_makes_one_region(storage):
    merged = merger_in(storage).rewrite(written(storage))
    (region,) = merged.regions
    assert region.first_subpartition == 3, "where the rows of the first region begin"
    assert region.rank_gaps is None


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
    told: list[int] = []
    merger = merger_in(storage, options=options, told=told)
    merged = merger.rewrite([index])
    (region,) = merged.regions
    assert sum(told) == sum(int(region.chunks.length.sum()) for region in index.regions)
    assert min(told) >= 0
    assert rows_in(merged) == rows_in(index)
    assert region.rank_extent(3, 4) == (5 + 1, 5 + 1 + 1_206)


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
        metadata_of(N, pa.schema([("p", pa.int32()), ("v", pa.string())])),
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
