"""CONFORMANCE, group "File": rows that every subpartition reads are stored once, next to others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import (
    BroadcastPartitioner,
    ColumnPartitioner,
    OptionError,
    SortMergeResultPartition,
    SortMergeSubpartitionReader,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from arrow_format.format.regions import RegionKind
from arrow_format.model import BROADCAST
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.support.guarantees import guarantee
from tests.support.merges import CODECS, FROM_COLUMN
from tests.support.small_shuffles import SCHEMA, entry_of, metadata_of, numbered, write_rows


def of_each(shuffle):
    """Values of ``v`` in each subpartition, in reading order."""
    return [
        shuffle.subpartition(i).read_all()["v"].to_pylist()
        for i in range(shuffle.num_subpartitions)
    ]


@guarantee("broadcast rows")
@CODECS
@pytest.mark.parametrize("num_rows", [1, 5_000])
def test_every_subpartition_reads_every_row_and_the_file_holds_it_once(tmp_path, codec, num_rows):
    table = pa.table(numbered(range(num_rows)))
    options = WriteOptions(codec=codec, sync=False)
    n = 40
    receipt = write_rows(
        tmp_path / "b", table, n=n, partitioner=BroadcastPartitioner(), options=options
    )
    shuffle = open_shuffle(tmp_path / "b")
    assert of_each(shuffle) == [list(range(num_rows))] * n
    assert shuffle.partitioner == BroadcastPartitioner()
    assert receipt.num_rows == shuffle.num_rows == num_rows
    assert receipt.subpartition_rows.to_pylist() == [num_rows] * n
    assert sum(receipt.subpartition_bytes.to_pylist()) == receipt.num_bytes == shuffle.num_bytes
    assert shuffle.read().read_all().num_rows == num_rows * n
    ranged = shuffle.read(range(3, 7), ["v"], with_subpartition=True).read_all()
    assert ranged["_subpartition"].to_pylist() == np.repeat(range(3, 7), num_rows).tolist()
    assert ranged["v"].to_pylist() == list(range(num_rows)) * 4
    assert shuffle.verify().num_rows == num_rows
    copies = pa.concat_tables([table] * n).append_column(
        "to", pa.array(np.repeat(np.arange(n, dtype=np.int32), num_rows))
    )
    copied = write_rows(
        tmp_path / "c", copies, n=n, partitioner=ColumnPartitioner("to"), options=options
    )
    assert receipt.num_bytes < copied.num_bytes / (1 if num_rows == 1 else 10)


def test_a_reader_of_one_subpartition_reads_what_is_stored_for_all(tmp_path):
    rows = numbered([*range(4)] * 1000 + [BROADCAST] * 4000)
    for name, wanted in (("both", rows), ("one each", rows.slice(0, 4000))):
        write_shuffle(
            [wanted], tmp_path / name, num_subpartitions=4, partitioner=FROM_COLUMN,
            options=WriteOptions(codec="none", sync=False),
        )  # fmt: skip
    both, one_each = (open_shuffle(tmp_path / name) for name in ("both", "one each"))
    assert one_each.read_bytes.equals(one_each.subpartition_bytes)
    for found in both.read_bytes.to_pylist():
        assert 0.6 < found / both.num_bytes < 0.65  # a quarter of a half, and a half


@CODECS
@given(
    batches=st.lists(st.lists(st.integers(-1, 5), max_size=30), min_size=1, max_size=6),
    small=st.booleans(),
)
def test_mixed_rows_reach_whom_they_are_for_in_order(tmp_path_factory, codec, batches, small):
    starts = np.cumsum([0, *map(len, batches)])
    given_batches = [numbered(ids, s) for ids, s in zip(batches, starts[:-1], strict=True)]
    path = tmp_path_factory.mktemp("mixed") / "s"
    receipt = write_shuffle(
        pa.Table.from_batches(given_batches, SCHEMA),
        path,
        num_subpartitions=6,
        partitioner=FROM_COLUMN,
        options=WriteOptions(codec=codec, sync=False, sort_buffer_bytes=2048 if small else 1 << 20),
    )
    ids = [i for batch in batches for i in batch]
    shuffle = open_shuffle(path)
    for one, values in enumerate(of_each(shuffle)):
        assert sorted(values) == [v for v, i in enumerate(ids) if i in (one, BROADCAST)]
        # Among themselves the rows of each kind keep the order in which they came.
        for kind in (one, BROADCAST):
            of_kind = [v for v in values if ids[v] == kind]
            assert of_kind == sorted(of_kind)
    assert receipt.num_rows == len(ids)
    assert sum(receipt.subpartition_rows.to_pylist()) == len(ids) + 5 * ids.count(BROADCAST)
    assert sum(receipt.subpartition_bytes.to_pylist()) == receipt.num_bytes
    assert shuffle.verify().ok


@CODECS
def test_switching_writes_out_the_other_rows_first(tmp_path, codec):
    storage = PosixStorage(str(tmp_path))
    options = WriteOptions(codec=codec, sync=False)
    with SortMergeResultPartition(storage, "job", metadata_of(4), options) as partition:
        partition.emit(numbered([0, 1]), np.array([0, 1]))
        partition.emit(numbered([3], 2), np.array([3]))
        partition.broadcast(numbered([9], 3))
        partition.broadcast(numbered([9], 4))
        partition.emit(numbered([2], 5), np.array([2]))
        status = partition.finish()
    (file,) = status.output.files
    regions = PartitionedFileReader(storage, file).regions
    assert [region.kind for region in regions] == [
        RegionKind.UNICAST, RegionKind.BROADCAST, RegionKind.UNICAST,
    ]  # fmt: skip
    assert [region.num_rows for region in regions] == [3, 2, 1]
    counters = status.counters
    assert (counters["switch_flushes"], counters["final_flushes"]) == (2, 1)
    assert (counters["num_regions"], counters["num_broadcast_regions"]) == (3, 1)
    assert counters["num_rows"] == file.num_rows == 6
    assert file.num_broadcast_rows == 2
    assert status.subpartition_rows.tolist() == [3, 3, 3, 3]
    assert int(status.subpartition_bytes.sum()) == file.data_bytes


def test_emitted_broadcast_rows_are_collected_and_come_before_later_broadcasts(tmp_path):
    storage = PosixStorage(str(tmp_path))
    options = WriteOptions(sync=False)
    with SortMergeResultPartition(storage, "job", metadata_of(2), options) as partition:
        for start in (0, 3):
            ids = [0, BROADCAST, 1]
            partition.emit(numbered(ids, start), np.array(ids))
        partition.broadcast(numbered([9], 6))
        with pytest.raises(OptionError, match="2 subpartitions for 1 rows"):
            partition.emit(numbered([0], 7), np.array([BROADCAST, 0]))
        with pytest.raises(OptionError, match="subpartitions up to 2; expected -1 to 1"):
            partition.emit(numbered([7, 8], 8), np.array([BROADCAST, 2]))
        status = partition.finish()
    (file,) = status.output.files
    regions = PartitionedFileReader(storage, file).regions
    assert [(region.kind, region.num_rows) for region in regions] == [
        (RegionKind.UNICAST, 4), (RegionKind.BROADCAST, 3),
    ]  # fmt: skip
    assert status.subpartition_rows.tolist() == [5, 5]
    version = entry_of(file, 2)
    reader = SortMergeSubpartitionReader(storage, version, version.map_outputs, 0, 1)
    values = [v for run in reader for v in run.batch["v"].to_pylist()]
    assert values == [0, 3, 1, 4, 6], "broadcast rows in the order in which they came"


def test_a_broadcast_larger_than_the_buffer_becomes_several_regions(tmp_path):
    storage = PosixStorage(str(tmp_path))
    options = WriteOptions(sync=False, sort_buffer_bytes=4096)
    with SortMergeResultPartition(storage, "job", metadata_of(3), options) as partition:
        partition.broadcast(numbered(range(500)))
        status = partition.finish()
    assert status.counters["large_batches"] == 1
    assert status.counters["num_broadcast_regions"] > 3
    assert status.subpartition_rows.tolist() == [500] * 3


def test_rows_for_all_among_others_do_not_cut_regions_to_pieces(tmp_path):
    # Every batch of 1,000 rows has one for everybody; regions still fill the buffer.
    batches = [numbered([BROADCAST, *[i % 6 for i in range(999)]], k * 1000) for k in range(50)]
    receipt = write_rows(tmp_path / "s", batches, n=6, partitioner=FROM_COLUMN)
    assert receipt.counters["num_regions"] == 2


def test_ids_below_broadcast_are_refused(tmp_path):
    with pytest.raises(OptionError, match="from 0 to 2, or -1 for all of them"):
        write_rows(tmp_path / "s", [numbered([0, -2])], n=3, partitioner=FROM_COLUMN)
