"""CONFORMANCE, group "File": one partitioned file, its regions and its index, in that order."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.errors import ClosedError, CorruptShuffleError, ShuffleError
from arrow_format.format.regions import PrefixSums, Region, RegionKind
from arrow_format.options import WriteOptions, ignore
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import ObjectExistsError, PosixStorage
from arrow_format.write.clustering import Clustering, cluster
from arrow_format.write.partitioned_file import PartitionedFileWriter
from arrow_format.write.region_copier import RegionCopier
from tests.support.small_shuffles import (
    FAST,
    SCHEMA,
    files_below,
    metadata_of,
    numbered,
    read_range,
    write_file,
    write_region,
)

CODECS = [WriteOptions(sync=False, codec=codec, chunk_bytes=200) for codec in ("zstd", "none")]
both_codecs = pytest.mark.parametrize("options", CODECS, ids=["zstd", "none"])


def ten_by_ten():
    """Ten rotated regions of ten rows in each of ten subpartitions, in random order of arrival."""
    shuffled = random.Random(1)
    return [(shuffled.sample(list(range(10)) * 10, 100), number) for number in range(10)]


def expected(regions, first, end):
    """What a range of those regions holds: `{subpartition: [v, ...]}` in order of arrival."""
    found, start = {}, 0
    for ids, _ in regions:
        for row, subpartition in enumerate(ids, start):
            if first <= subpartition < end:
                found.setdefault(subpartition, []).append(row)
        start += len(ids)
    return found


def by_subpartition(rows):
    found = {}
    for subpartition, row in rows:
        assert row["p"] == subpartition
        assert row["s"] == f"row {row['v']}" * (row["v"] % 3)
        found.setdefault(subpartition, []).append(row["v"])
    return found


@both_codecs
@given(
    regions=st.lists(
        st.tuples(st.lists(st.integers(0, 8), max_size=40), st.integers(0, 8)), max_size=6
    ),
    ranges=st.lists(st.tuples(st.integers(0, 8), st.integers(1, 9)), min_size=3, max_size=3),
)
def test_ranges_of_any_regions_come_back(tmp_path_factory, options, regions, ranges):
    """Rotated regions, subpartitions without rows, and regions without any."""
    storage = PosixStorage(str(tmp_path_factory.mktemp("regions")))
    file, _ = write_file(storage, regions, 9, options=options)
    assert file.num_rows == sum(len(ids) for ids, _ in regions)
    for first, size in [(0, 9), *ranges, *((one, 1) for one in range(9))]:
        end = min(first + size, 9)
        found = by_subpartition(read_range(storage, file, 9, first, end))
        assert found == expected(regions, first, end)


@pytest.mark.parametrize("first_subpartition", [0, 4])
@pytest.mark.parametrize("kind", ["unicast", "broadcast"])
def test_a_range_is_one_extent_or_two(storage, first_subpartition, kind):
    ids = [s for s in range(10) for _ in range(s + 1)]
    _, writer = write_file(storage, [(ids, first_subpartition)], 10)
    (region,) = writer.regions
    if kind == "broadcast":
        none = PrefixSums(np.empty(0, np.uint8))
        region = Region(RegionKind.BROADCAST, 55, 0, None, none, region.chunks)
    for first in range(10):
        for end in range(first + 1, 11):
            extents = region.row_extents(first, end, 10)
            crosses = kind == "unicast" and first < first_subpartition < end
            assert len(extents) == (2 if crosses else 1)
            rows = sum(hi - lo for lo, hi in extents)
            assert rows == (55 if kind == "broadcast" else sum(range(first + 1, end + 1)))
            if kind == "unicast":
                found = np.concatenate(
                    [region.subpartitions_of_rows(lo, hi, 10) for lo, hi in extents]
                )
                counts = np.bincount(found, minlength=10).tolist()
                assert counts == [s + 1 if first <= s < end else 0 for s in range(10)]


@pytest.mark.parametrize(
    "interleaved",
    [
        Clustering(0, None, np.array([1, 2, 1], np.int32), np.array([0, 1, 2, 3], np.int32)),
        Clustering(0, None, np.array([2, 1], np.int32), np.array([0, 1, 3], np.int32)),
        Clustering(0, None, np.array([1, 2], np.int32), np.array([0, 3, 3], np.int32)),
        Clustering(0, None, np.array([1, 2], np.int32), np.array([0, 1, 2], np.int32)),
    ],
)
def test_rows_of_a_subpartition_must_stand_together(storage, interleaved):
    with (
        PartitionedFileWriter(storage, "f", metadata_of(5), FAST) as writer,
        pytest.raises(ShuffleError, match="must be contiguous"),
    ):
        writer.write_region(numbered([1, 2, 1]), interleaved)
    assert files_below(storage._root) == []


def test_write_after_finish_and_finish_twice(storage):
    with PartitionedFileWriter(storage, "f", metadata_of(5), FAST) as writer:
        write_region(writer, numbered([1]), [1], 5)
        file = writer.finish()
        for again in (lambda: write_region(writer, numbered([1]), [1], 5), writer.finish):
            with pytest.raises(ClosedError, match=r"f\.shuffle\.data: finished or released"):
                again()
    assert len(read_range(storage, file, 5, 0, 5)) == 1, "and the file is whole"


@pytest.mark.parametrize("end", ["finish", "roll_back"])
def test_a_stored_region_is_not_written_after_the_end_of_a_file(storage, end):
    with PartitionedFileWriter(storage, "source", metadata_of(5), FAST) as writer:
        write_region(writer, numbered([1]), [1], 5)
        source = PartitionedFileReader(storage, writer.finish())
    copier = RegionCopier(source, source.metadata.data_schema, FAST)
    with PartitionedFileWriter(storage, "f", metadata_of(5), FAST) as writer:
        write_region(writer, numbered([2]), [2], 5)
        getattr(writer, end)()
        with pytest.raises(ClosedError, match="no region can be written"):
            copier.copy(writer, range(1), ignore)
        with pytest.raises(ClosedError, match="no region can be written"):
            write_region(writer, numbered([3]), [3], 5)


def test_a_file_that_was_rolled_back_can_be_finished(storage):
    with PartitionedFileWriter(storage, "f", metadata_of(5), FAST) as writer:
        write_region(writer, numbered([2]), [2], 5)
        writer.roll_back()
        file = writer.finish()
    assert file.num_rows == 1
    assert len(read_range(storage, file, 5, 0, 5)) == 1


def test_write_and_finish_after_release(storage):
    writer = PartitionedFileWriter(storage, "f", metadata_of(5), FAST)
    writer.release()
    writer.release()
    assert files_below(storage._root) == []
    with pytest.raises(ClosedError):
        write_region(writer, numbered([1]), [1], 5)
    with pytest.raises(ClosedError):
        writer.finish()


@both_codecs
def test_a_file_without_rows_is_valid(storage, options):
    file, _ = write_file(storage, [], 5, options=options)
    assert (file.num_rows, file.num_regions, file.raw_bytes) == (0, 0, 0)
    assert PartitionedFileReader(storage, file).regions == ()
    assert read_range(storage, file, 5, 0, 5) == []
    if options.codec == "none":
        data = (storage._root / file.data_path).read_bytes()
        assert pa.ipc.open_file(data).read_all().equals(SCHEMA.empty_table())


@pytest.mark.parametrize("suffix", [".shuffle.data", ".shuffle.index"])
def test_an_existing_file_is_not_overwritten(storage, suffix):
    there = storage._root / f"f{suffix}"
    there.write_bytes(b"mine")
    with pytest.raises(ObjectExistsError, match=f"f{suffix}: exists already"):
        write_file(storage, [([1], 0)], 5, path="f")
    assert there.read_bytes() == b"mine"
    assert files_below(storage._root) == [f"f{suffix}"]


@both_codecs
def test_a_region_without_rows_leaves_no_trace(storage, options):
    with_empty, _ = write_file(
        storage, [([], 0), ([1], 0), ([], 2), ([2], 1), ([], 0)], 5, options=options, path="a"
    )
    without, _ = write_file(storage, [([1], 0), ([2], 1)], 5, options=options, path="b")
    for suffix in (".shuffle.data", ".shuffle.index"):
        a, b = (storage._root / f"{name}{suffix}" for name in "ab")
        assert a.read_bytes() == b.read_bytes()
    assert with_empty.num_regions == without.num_regions == 2


def test_chunks_start_at_multiples_of_eight_and_follow_each_other(storage):
    for number, options in enumerate(CODECS):
        regions = ten_by_ten()
        file, writer = write_file(storage, regions, 10, options=options, path=f"f{number}")
        end = 0
        for region in writer.regions:
            assert len(region.chunks) > 1
            for offset, length in zip(region.chunks.offset, region.chunks.length, strict=True):
                assert offset % 8 == 0
                assert offset >= end
                end = offset + length
        assert end <= file.data_bytes == (storage._root / file.data_path).stat().st_size


@both_codecs
def test_no_chunk_exceeds_4_mib_unless_one_row_does(storage, options):
    schema = pa.schema([("b", pa.binary())])
    # The average row is small; a few rows hold nearly all bytes.
    values = [b"x"] * 3_000 + [b"y" * (1 << 20)] * 9 + [b"z" * (5 << 20)] + [b"x"] * 3_000
    batch = pa.record_batch([values], schema=schema)
    wide = WriteOptions(sync=False, codec=options.codec, chunk_bytes=4 << 20)
    with PartitionedFileWriter(storage, "f", metadata_of(1, schema), wide) as writer:
        writer.write_region(batch, cluster(np.zeros(len(values), np.int32), 1))
        writer.finish()
    (region,) = writer.regions
    rows = np.diff(region.chunks.row_edges)
    raw = region.chunks.raw_length
    too_large = raw > (4 << 20) + 1_000  # the message has a header too
    assert rows[too_large].tolist() == [1]
    assert rows.sum() == len(values)


def test_an_index_that_is_not_the_one_committed(storage):
    file, _ = write_file(storage, [([1, 2], 0)], 5, path="a")
    other, _ = write_file(storage, [([2, 1], 0)], 5, path="b")
    a, b = storage._root / file.index_path, storage._root / other.index_path
    b.write_bytes(a.read_bytes().ljust(other.index_bytes, b"\0"))
    with pytest.raises(CorruptShuffleError, match=r"b\.shuffle\.index"):
        PartitionedFileReader(storage, other)
