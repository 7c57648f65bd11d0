"""Shuffles written when format version 1 was made are read, for ever, as they were then."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from arrow_format import open_shuffle
from arrow_format.applications import find_transaction
from arrow_format.commit_log import CommitLog
from arrow_format.consumers import ConsumerRegistry
from arrow_format.errors import ShuffleNotFoundError
from arrow_format.log_entry import LogEntry
from arrow_format.log_record import LastCommit, Pending, PendingNumbers
from arrow_format.model import Encoding, RegionKind, Transaction
from arrow_format.partitioned_file import PartitionedFileReader
from arrow_format.pending import pending_numbers, pending_outputs
from arrow_format.result_description import Released, ResultDescription
from arrow_format.result_type import ResultPartitionType
from arrow_format.storage import PosixStorage

HERE = Path(__file__).parent
GOLDEN = sorted(path for path in HERE.glob("v*/*") if path.is_dir())
EXPECTED = sorted(HERE.glob("v*/*/expected-*.arrow"))


def named(path):
    return path.relative_to(HERE).as_posix()


def expected_of(path):
    return pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()


def regions_of(name):
    """Regions of every data file of the newest version."""
    path = HERE / name / "shuffle"
    storage = PosixStorage(str(path))
    return [
        PartitionedFileReader(storage, file).regions
        for output in open_shuffle(path).map_outputs
        for file in output.files
    ]


@pytest.mark.parametrize("expected", EXPECTED, ids=named)
def test_a_golden_shuffle_reads_as_it_was_written(expected):
    version = int(expected.stem.removeprefix("expected-"))
    shuffle = open_shuffle(expected.parent / "shuffle", version)
    rows = expected_of(expected)

    report = shuffle.verify()
    stored = len(rows) // 3 if "broadcast" in str(expected) else len(rows)
    assert (report.num_rows, shuffle.num_rows) == (stored, stored)
    found = shuffle.read(with_subpartition=True).read_all()
    assert found.schema.equals(rows.schema)
    assert found.combine_chunks().equals(rows)

    ids = rows["_subpartition"].to_pylist()
    assert shuffle.subpartition_rows.to_pylist() == [
        counts.get(s, 0)
        for counts in [{s: ids.count(s) for s in set(ids)}]
        for s in range(shuffle.num_subpartitions)
    ]
    for s in set(ids):
        alone = shuffle.subpartition(s, with_subpartition=True).read_all()
        assert alone.combine_chunks().equals(
            rows.filter(pa.array([one == s for one in ids])).combine_chunks()
        )


def test_the_newest_version_is_the_last():
    for path in GOLDEN:
        newest = open_shuffle(path / "shuffle").version
        first = 4 if path.name == "collected" else 1
        expected = sorted(path.glob("expected-*.arrow"))
        log = CommitLog(PosixStorage(str(path / "shuffle")))
        assert [one.name for one in expected] == [
            f"expected-{v}.arrow"
            for v in range(first, newest + 1)
            if isinstance(log.record(v), LogEntry)
        ]


def test_the_files_have_what_they_are_kept_for():
    for codec in ("zstd", "none"):
        first, second = regions_of(f"v1/regions_{codec}")
        assert len(first) > 1
        assert max(len(region.chunks) for region in first) > 1
        assert {region.first_subpartition for region in first} == {0}
        assert {region.first_subpartition for region in second} == {7919 % 5}
    ((region,),) = regions_of("v1/noise")
    assert region.chunks.encoding.tolist() == [Encoding.ZSTD, Encoding.IPC]
    ((region,),) = regions_of("v1/noise_packed")
    assert region.chunks.encoding.tolist() == [Encoding.PACKED_ZSTD, Encoding.PACKED]
    ((region,),) = regions_of("v1/types_packed")
    assert set(region.chunks.encoding.tolist()) <= {Encoding.PACKED, Encoding.PACKED_ZSTD}
    assert [r.kind for (r,) in regions_of("v1/broadcast")] == [RegionKind.BROADCAST] * 2
    operations = [open_shuffle(HERE / "v1/merged/shuffle", v).entries[-1].operation for v in (3, 4)]
    assert operations == ["replace", "replace"]
    assert [len(regions) for regions in regions_of("v1/merged")] == [1]
    assert open_shuffle(HERE / "v1/regions_sorted/shuffle").sort_by == (("id", "ascending"),)
    entries = open_shuffle(HERE / "v1/versions/shuffle", 2).entries
    assert [entry.operation for entry in entries] == ["overwrite", "append"]
    assert [len(output.files) for output in entries[1].map_outputs] == [0, 1]
    assert regions_of("v1/no_rows") == []
    ((region,),) = regions_of("v1/many_subpartitions")
    assert region.ranks.max() > 1 << 16


def test_what_expired_and_what_was_fenced_is_known():
    path = HERE / "v1/collected/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    index = log.index()
    assert (index.oldest, index.newest, sorted(index.entries), sorted(index.checkpoints)) == (
        4, 4, [4], [3],
    )  # fmt: skip
    with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
        open_shuffle(path, 2)
    ends = log.checkpoint(3).jobs
    assert sorted((end.version, end.fenced) for end in ends.values()) == [
        (1, False), (2, False), (3, True),
    ]  # fmt: skip
    assert {log.find_job(job_id) for job_id in ends} == set(ends.values())
    assert len(open_shuffle(path).entries[0].map_outputs) == 3


def test_what_applications_committed_is_known():
    path = HERE / "v1/transactions/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    assert [log.entry(version).transaction for version in (1, 3, 4)] == [
        Transaction("a-query", 0), None, Transaction("a-query", 2),
    ]  # fmt: skip
    assert log.checkpoint(3).applications == {"a-query": LastCommit(2, 1)}
    assert find_transaction(log, Transaction("a-query", 1)) == LastCommit(4, 2)
    assert find_transaction(log, Transaction("a-query", 3)) is None


def test_what_was_consumed_released_and_flushed_is_known():
    path = HERE / "v1/results/shuffle"
    storage = PosixStorage(str(path))
    log = CommitLog(storage)
    assert open_shuffle(path).result == ResultDescription(
        ResultPartitionType.PIPELINED_BOUNDED, 1 << 20, 2
    )
    assert ConsumerRegistry(storage).all_progress() == {"a": 1}
    assert log.entry(3).released == Released(through=1, by="consumed by a", ended=False)
    pending = [log.record(number) for number in (4, 5)]
    assert all(isinstance(one, Pending) for one in pending)
    assert log.entry(6).flushed == 5
    assert pending_outputs(log, log.index()).entries == ()


def test_what_is_pending_is_known_with_the_checkpoint_and_without():
    path = HERE / "v1/waiting/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    index = log.index()
    assert index.checkpoints == {5}
    expected = PendingNumbers((5,), 1_700_000_000_000)
    assert log.checkpoint(5).pending == expected
    for checkpoints in (index.checkpoints, frozenset()):
        assert pending_numbers(log, replace(index, checkpoints=checkpoints)) == expected
    assert pending_outputs(log, index).entries[0].transaction == Transaction("a-query", 2)
    # Those that were written before either say that there were no queries, or leave it open.
    for name, said in (("collected", PendingNumbers()), ("transactions", None)):
        older = CommitLog(PosixStorage(str(HERE / "v1" / name / "shuffle"))).checkpoint(3)
        assert older.pending == said


def test_codec_none_is_an_arrow_file_for_everyone():
    path = HERE / "v1/regions_none"
    files = sorted(path.rglob("*.shuffle.data"))
    assert len(files) == 2
    tables = [pa.ipc.open_file(pa.py_buffer(file.read_bytes())).read_all() for file in files]
    found = pa.concat_tables(tables).sort_by("id")
    expected = expected_of(path / "expected-1.arrow").drop_columns("_subpartition").sort_by("id")
    assert found.combine_chunks().equals(expected.combine_chunks())
    for table, regions in zip(tables, regions_of("v1/regions_none"), strict=True):
        assert table["id"].num_chunks == sum(len(region.chunks) for region in regions)


def test_every_index_is_an_arrow_file_that_says_how_to_read_its_data():
    indexes = sorted(HERE.rglob("v1/**/*.shuffle.index"))
    assert len(indexes) > 8
    for file in indexes:
        table = pa.ipc.open_file(pa.py_buffer(file.read_bytes())).read_all()
        described = json.loads(table.schema.metadata[b"arrow_shuffle"])
        assert described["format_version"] == 1
        data = file.with_suffix(".data")
        assert described["data_bytes"] == data.stat().st_size


def test_the_golden_files_are_small():
    size = sum(path.stat().st_size for path in HERE.rglob("v*/**/*") if path.is_file())
    assert size < 450_000
