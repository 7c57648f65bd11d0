"""Shuffles written when format version 1 was made are read, for ever, as they were then."""

import json
import pickle
import struct
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import zstandard

from arrow_format import DeletionReceipt, open_shuffle, open_shuffle_changes, relocate_shuffle
from arrow_format.errors import (
    CorruptShuffleError,
    FormatVersionError,
    ResultReleasedError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.format.chunk_table import MESSAGE
from arrow_format.format.codec_zstd import ZstdCodec
from arrow_format.format.masks import PIECE_ROWS, RowMask
from arrow_format.format.regions import RegionKind
from arrow_format.format.statistics import UNKNOWN
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log import carried
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import decode_entry
from arrow_format.log.names import entry_path, range_path
from arrow_format.log.pending import pending_outputs
from arrow_format.log.result import Released, ResultDescription
from arrow_format.log.state import LastCommit, PendingNumbers
from arrow_format.log.transactions import find_transaction
from arrow_format.model import Transaction
from arrow_format.operators.net_changes import read_changes
from arrow_format.options import ResultPartitionType
from arrow_format.read.chunk_plan import adjacent_ranges
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from tests.compat.kit import as_bits, copied, in_some_order
from tests.support.guarantees import guarantee

HERE = Path(__file__).parent
REFUSED = ("unknown", "contradictions")
"""Begins of names of shuffles of which not all versions are read."""
GOLDEN = sorted(path for path in HERE.glob("v*/*") if not path.name.startswith(REFUSED))
EXPECTED = sorted(HERE.glob("v*/*/expected-*.arrow"))


STORED = (
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(),
    pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.decimal32(9),
    pa.decimal64(18), pa.decimal128(38), pa.decimal256(76), pa.date32(), pa.date64(),
    pa.time32("s"), pa.time64("us"), pa.timestamp("s"), pa.duration("s"),
    pa.month_day_nano_interval(), pa.string(), pa.binary(), pa.binary(4), pa.list_(pa.int8()),
    pa.list_(pa.int8(), 2), pa.map_(pa.int8(), pa.int8()), pa.struct([("a", pa.int8())]),
)  # fmt: skip


def named(path):
    return path.relative_to(HERE).as_posix()


def rows_of(path):
    return pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()


def in_place(path, tmp_path):
    """Return a golden shuffle; one with further roots is copied to where its log says they are."""
    return copied(path, tmp_path / path.name) if (path / "disk").exists() else path


def regions_of(name):
    """Regions of every data file of the newest version."""
    path = HERE / name / "shuffle"
    storage = PosixStorage(str(path))
    return [
        PartitionedFileReader(storage, file).regions
        for output in open_shuffle(path).map_outputs
        for file in output.files
    ]


@guarantee("older files")
@pytest.mark.parametrize("expected", EXPECTED, ids=named)
def test_a_golden_shuffle_reads_as_it_was_written(expected, tmp_path):
    version = int(expected.stem.removeprefix("expected-"))
    shuffle = open_shuffle(in_place(expected.parent, tmp_path) / "shuffle", version)
    rows = rows_of(expected)

    report = shuffle.verify()
    files = [file for output in shuffle.map_outputs for file in output.files]
    more = (shuffle.num_subpartitions - 1) * sum(file.num_broadcast_rows for file in files)
    stored = len(rows) - more
    assert (report.num_rows, shuffle.num_rows) == (stored, stored)
    found = shuffle.read(with_subpartition=True).read_all()
    assert found.schema.equals(rows.schema)
    if shuffle.combine:  # combined rows of a region are in no order
        rows, found = (in_some_order(table) for table in (rows, found))
    assert as_bits(found).equals(as_bits(rows))

    ids = rows["_subpartition"].to_numpy()
    counts = np.bincount(ids, minlength=shuffle.num_subpartitions)
    assert shuffle.subpartition_rows.to_pylist() == counts.tolist()
    for s in np.unique(ids).tolist()[:: len(ids) // 1000 + 1]:
        alone = shuffle.subpartition(s, with_subpartition=True).read_all()
        if shuffle.combine:
            alone = in_some_order(alone)
        # The rows of a subpartition stand together: they are a slice, whatever their types.
        first = int(np.flatnonzero(ids == s)[0])
        assert as_bits(alone).equals(as_bits(rows.slice(first, len(alone))))
        assert len(alone) == counts[s]


@pytest.mark.slow
@pytest.mark.parametrize("expected", EXPECTED, ids=named)
def test_tasks_that_carry_a_golden_shuffle_read_it(expected, tmp_path, monkeypatch):
    version = int(expected.stem.removeprefix("expected-"))
    shuffle = open_shuffle(in_place(expected.parent, tmp_path) / "shuffle", version)
    rows = shuffle.read(with_subpartition=True).read_all()
    carried_rows = pickle.loads(pickle.dumps(shuffle)).read(with_subpartition=True).read_all()
    assert as_bits(carried_rows) == as_bits(rows)
    monkeypatch.setattr(carried, "CARRIED_BYTES", 0)
    n = shuffle.num_subpartitions
    halves = [range(n // 2), range(n // 2, n)]
    fresh = open_shuffle(shuffle.path, version)
    parts = fresh.for_tasks([adjacent_ranges(half) for half in halves])
    monkeypatch.undo()
    found = [
        pickle.loads(pickle.dumps(part)).read(half, with_subpartition=True).read_all()
        for part, half in zip(parts, halves, strict=True)
    ]
    assert as_bits(pa.concat_tables(found)) == as_bits(rows)


def test_the_newest_version_is_the_last():
    for path in GOLDEN:
        log = CommitLog(PosixStorage(str(path / "shuffle")))
        view = log.view()
        if path.name != "gone":
            assert open_shuffle(path / "shuffle").version == view.state.version
        records = log.records(range(view.oldest, view.newest + 1)).values()
        tagged = {tag.version for tag in view.state.tags.values() if tag.version < view.oldest}
        kept = [
            one.version
            for one in records
            if one.is_version and not (one.released and one.released.ended)
        ]
        assert {one.name for one in path.glob("expected-*.arrow")} == {
            f"expected-{version}.arrow" for version in [*tagged, *kept]
        }


def test_a_long_log_has_what_replaces_a_segment():
    path = HERE / "v1/long_log/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    view = log.view()
    assert (view.state.base, view.state.oldest, view.newest) == (512, 512, 529)
    assert {name: tag.version for name, tag in view.state.tags.items()} == {"two": 2}
    found = {int(file.stem): file for file in path.glob("commit_log/*/*.range")}
    ends = {number: decode_entry(file.read_bytes()).span.after for number, file in found.items()}
    assert ends == {2: 0, 512: 0, 528: 512}
    assert not (path / entry_path(511)).exists()
    assert len(log.removed(0).commit_ids) == 511
    assert log.removed(0).receipts == {3: {"what": "a deletion returned"}}
    assert log.find_job(log.removed(0).jobs["job_id"][0].as_py(), after=0).version == 1
    assert len(open_shuffle(path, "two").map_outputs) == 2
    assert [piece.version for piece in log.pieces(view, 529)] == [512, 528, 529]


def test_ranges_are_merged_by_subpartition():
    shuffle = open_shuffle(HERE / "v1/ranges/shuffle")
    assert isinstance(shuffle.partitioner, RangePartitioner)
    assert [len(regions) for regions in regions_of("v1/ranges")] == [1]


def test_the_files_have_what_they_are_kept_for():
    for codec in ("zstd", "none"):
        first, second = regions_of(f"v1/regions_{codec}")
        assert len(first) > 1
        assert max(len(region.chunks) for region in first) > 1
        assert {region.first_subpartition for region in first + second} == {0}
    wrapped = [region.first_subpartition for of in regions_of("v1/sorted_down") for region in of]
    assert any(wrapped), wrapped
    ((region,),) = regions_of("v1/noise")
    assert (region.chunks.length > region.chunks.raw_length).tolist() == [False, True]
    for name in ("types", "wide", "regions_zstd"):
        encodings = [set(r.chunks.encoding.tolist()) for (r, *_) in regions_of(f"v1/{name}")]
        assert encodings == [{ZstdCodec.encoding}] * len(encodings)
    assert [r.kind for (r,) in regions_of("v1/broadcast")] == [RegionKind.BROADCAST] * 2
    operations = [
        open_shuffle(HERE / "v1/merged/shuffle", v).snapshot.newest.operation for v in (3, 4)
    ]
    assert operations == ["merge", "merge"]
    assert [len(regions) for regions in regions_of("v1/merged")] == [1]
    assert open_shuffle(HERE / "v1/regions_sorted/shuffle").sort_by == (("id", "ascending"),)
    entries = CommitLog(PosixStorage(str(HERE / "v1/versions/shuffle"))).records(range(1, 5))
    operations = ["overwrite", "append", "overwrite", "append"]
    assert [entry.operation for entry in entries.values()] == operations
    assert [len(output.files) for output in entries[2].map_outputs] == [0, 1]
    assert regions_of("v1/no_rows") == []
    ((region,),) = regions_of("v1/many_subpartitions")
    assert region.rank_gaps.total > 1 << 16


def test_statistics_that_are_cut_absent_and_unknown():
    path = HERE / "v1/statistics/shuffle"
    for version, names in ((1, ["id", "text", "x"]), (2, ["text"]), (3, [])):
        shuffle = open_shuffle(path, version)
        ids = [shuffle.snapshot.newest.columns.by_name[name] for name in names]
        file = shuffle.map_outputs[-1].files[0]
        assert file.statistics.field("column").to_pylist() == ids
    shuffle = open_shuffle(path)
    ((file,),) = (output.files for output in shuffle.map_outputs)
    index = PartitionedFileReader(shuffle.storage, file)
    known = index.of_ranges([(0, 1 << 20)]).chunk_statistics(["text", "x"], shuffle.schema)
    assert index.metadata.statistics == ("id", "text", "x")
    is_unknown = known["x"].null_count == UNKNOWN
    assert is_unknown.any()
    assert not is_unknown.all()
    assert {len(text) for text in known["text"].maximum.to_pylist() if text} == {16}
    assert (known["text"].maximum.is_null().to_numpy(False) & (known["text"].null_count == 0)).any()
    bounds = shuffle.map_outputs.file_statistics(["text"], shuffle.snapshot.newest.columns)["text"]
    assert bounds.null_count.tolist() == [UNKNOWN]


def test_what_expired_and_what_was_fenced_is_known():
    path = HERE / "v1/collected/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    view = log.view()
    assert (view.oldest, view.newest, view.state.version) == (4, 5, 4)
    assert log.record(5).operation == "expire"
    with pytest.raises(ShuffleNotFoundError, match="version 2 has expired"):
        open_shuffle(path, 2)
    ends = log.ended_jobs(view).to_pylist()
    assert [(end["number"], end["fenced"], end["num_outputs"]) for end in ends] == [
        (1, False, 1), (2, False, 2), (3, True, 0), (4, False, 1),
    ]  # fmt: skip
    assert [log.find_job(end["job_id"]).version for end in ends] == [1, 2, 3, 4]
    assert len(open_shuffle(path).map_outputs) == 4


def test_what_applications_committed_is_known():
    path = HERE / "v1/transactions/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    assert [log.entry(version).transaction for version in (1, 3, 4)] == [
        Transaction("a-query", 0), None, Transaction("a-query", 2),
    ]  # fmt: skip
    piece = decode_entry((path / range_path(2)).read_bytes())
    assert piece.state.applications == {"a-query": LastCommit(2, 1)}
    versions = [find_transaction(log, Transaction("a-query", n)).version for n in range(3)]
    assert versions == [1, 2, 4]
    assert find_transaction(log, Transaction("a-query", 3)) is None
    counts = []
    for number in (1, 2):
        found = find_transaction(log, Transaction("forget", number), deletes=True)
        receipt = DeletionReceipt.from_log(found.receipt, str(path))
        counts.append((found.version, receipt.num_keys, receipt.num_rows, receipt.num_files))
    assert counts == [(5, 1, 1, 1), (7, 1, 0, 0)]


def test_what_was_consumed_released_and_flushed_is_known():
    path = HERE / "v1/results/shuffle"
    storage = PosixStorage(str(path))
    log = CommitLog(storage)
    assert open_shuffle(path).result == ResultDescription(
        ResultPartitionType.PIPELINED_BOUNDED, 1 << 20, 2
    )
    assert ConsumerRegistry(storage).all_progress() == {"a": 1}
    assert log.entry(3).released == Released(through=1, by="consumed by a", ended=False, at=3)
    assert [log.record(number).operation for number in (4, 5)] == ["pending", "pending"]
    assert log.record(5).state.pending.numbers == (4, 5)
    assert pending_outputs(log, log.view()).entries == ()


def test_owners_and_failures_are_known():
    path = HERE / "v1/of_no_reader/shuffle"
    (owner,) = open_shuffle(path).result.owners
    assert (owner.host, owner.boot, owner.pid, owner.started) == ("a", "b pid:[1]", 1, 2)
    fence = CommitLog(PosixStorage(str(path))).record(2)
    assert (fence.gives_up, fence.failed) == (("a",), True)


def test_what_is_pending_is_known_with_the_checkpoint_and_without():
    path = HERE / "v1/waiting/shuffle"
    log = CommitLog(PosixStorage(str(path)))
    view = log.view()
    assert view.checkpoint == 4
    assert view.state.pending == PendingNumbers.of((5,), 1_700_000_000_000)
    assert pending_outputs(log, view).entries[0].transaction == Transaction("a-query", 2)
    assert find_transaction(log, Transaction("a-query", 2)).version == 5
    for checkpoint in (4, 0):
        snapshot = log.snapshot_of(replace(view, checkpoint=checkpoint))
        assert snapshot.map_outputs.versions.tolist() == [1, 4, 6]


def test_a_fence_is_stepped_over():
    path = HERE / "v1/fenced/shuffle"
    fence = CommitLog(PosixStorage(str(path))).record(2)
    assert (fence.operation, len(fence.gives_up)) == ("fence", 1)
    assert open_shuffle(path).map_outputs.versions.tolist() == [1, 3]
    with pytest.raises(ShuffleNotFoundError, match="version 2 is not there"):
        open_shuffle(path, 2)


@pytest.mark.parametrize("name", ["ended", "gone"])
def test_what_was_given_up_is_no_version(name):
    path = HERE / "v1" / name / "shuffle"
    log = CommitLog(PosixStorage(str(path)))
    assert log.entry(2).released == Released(through=1, by="its owner", ended=True, at=2)
    with pytest.raises(ResultReleasedError, match="its owner"):
        open_shuffle(path, 2)
    if name == "gone":  # what is pending after it does not make it a version again
        assert log.record(3).is_pending
        with pytest.raises(ResultReleasedError, match="its owner"):
            open_shuffle(path)
    else:
        assert open_shuffle(path).map_outputs.versions.tolist() == [3, 4]


def test_equal_values_take_a_byte_each():
    (regions,) = regions_of("v1/constants")
    for region in regions:
        assert np.diff(region.chunks.row_edges).max() > 800_000
        rows = np.diff(region.chunks.row_edges)
        assert (region.chunks.raw_length == 16 + -(-rows // 8) * 8).all()
    ((region,),) = regions_of("v1/large_rows")
    assert region.chunks.first_row.tolist() == [0, 1]
    small, large = region.chunks.raw_length.tolist()
    assert 6_000_000 < small < 6_001_000
    assert large > (10_000_000 + (9 << 20)) > 8 << 20
    assert set(region.chunks.encoding.tolist()) == {ZstdCodec.encoding}


def test_files_in_further_roots_are_named_by_the_log(tmp_path):
    path = in_place(HERE / "v1/roots", tmp_path) / "shuffle"
    outputs = open_shuffle(path).map_outputs
    roots = {file.root for output in outputs for file in output.files}
    assert len(roots) == 3, "of the shuffle, and of each of its two jobs"
    assert all(root.startswith(str(tmp_path)) for root in roots - {""})
    with pytest.raises(CorruptShuffleError, match="arrow-shuffle-golden"):
        open_shuffle(HERE / "v1/roots/shuffle").read().read_all()


def test_further_roots_say_whose_they_are(tmp_path):
    path = in_place(HERE / "v1/roots", tmp_path) / "shuffle"
    told = relocate_shuffle(path, "moved")  # another directory has the same name
    assert len(told.taken) == 2
    assert told.unseen == ()
    assert relocate_shuffle(path, "moved").taken == ()


def test_every_stored_type_is_there_in_both_layouts():
    for name, encoding in (("none", MESSAGE), ("zstd", ZstdCodec.encoding)):
        ((region,),) = regions_of(f"v1/other_types_{name}")
        assert set(region.chunks.encoding.tolist()) == {encoding}
    names = ("types", "other_types_zstd")
    schemas = [open_shuffle(HERE / f"v1/{name}/shuffle").schema for name in names]
    there = {field.type.id for schema in schemas for field in schema}
    assert {type_.id for type_ in STORED} - there == set()


def test_a_region_of_an_unknown_kind_is_named_with_its_file():
    path = HERE / "v1/unknown_region/shuffle"
    (*_, last) = open_shuffle(path).map_outputs
    where = f"{last.files[0].index_path}: region 0 has kind 2"
    with pytest.raises(FormatVersionError, match=where):
        open_shuffle(path).read().read_all()
    with pytest.raises(FormatVersionError, match=where):
        open_shuffle(path).verify()


def test_a_large_mask_has_an_object_and_several_pieces():
    path = HERE / "v1/large_mask/shuffle"
    (output,) = open_shuffle(path).map_outputs
    mask = output.files[0].mask
    assert mask.frame == b""
    assert mask.length > (path / entry_path(2)).stat().st_size
    pieces = RowMask.decode((path / mask.path).read_bytes(), mask.num_rows, 1, 70_000)
    assert max(pieces.rows()[0]) > PIECE_ROWS


def test_streams_refuse_an_upsert_and_changes_have_its_rows():
    path = HERE / "v1/upsert/shuffle"
    entry = decode_entry((path / entry_path(2)).read_bytes())
    masked = [bool(output.files[0].mask) for output in entry.map_outputs]
    assert masked == [True, True, False]
    message = r"version 2 replaced rows by an upsert, .*changes\(since=1\) says"
    for overwrites in ("fail", "deliver"):
        with pytest.raises(ShuffleOverwrittenError, match=message):
            open_shuffle_changes(path, 1, overwrites=overwrites)
    before, after = (open_shuffle(path, version).to_table().to_pylist() for version in (1, 2))
    changed = read_changes(open_shuffle(path), 1).read_all().to_pylist()
    kinds = {row["id"]: [] for row in changed}
    for row in changed:
        kinds[row["id"]].append(row.pop("_change_type"))
    ids = [*range(2, 60, 5)]
    assert kinds == {70: ["insert"]} | {id_: ["delete", "insert"] for id_ in ids}
    assert [row for row in after if row["id"] in kinds] == [
        row for row in changed if row["carrier"] == "new"
    ]
    assert all(row in before for row in changed if row["carrier"] != "new")


@pytest.mark.parametrize("name", ["masks", "merged", "rescaled", "undone", "versions", "widened"])
def test_old_rows_and_what_changed_are_the_new_rows(name):
    """Also where files, or versions, are of other numbers of subpartitions."""
    path = HERE / "v1" / name / "shuffle"
    newest = open_shuffle(path).version
    rows = {
        number: counted(open_shuffle(path, number).to_table()) for number in range(1, newest + 1)
    }
    for since, now in combinations(rows, 2):
        changed = read_changes(open_shuffle(path, now), since).read_all()
        of = {
            kind: counted(changed.filter(pc.field("_change_type") == kind))
            for kind in ("insert", "delete", "erase")
        }
        assert of["insert"] == rows[now] - rows[since]
        gone = rows[since] - rows[now]
        assert of["delete"] <= gone
        assert of["erase"].total() == (gone - of["delete"]).total()
        assert not of["erase"] or name in ("masks", "undone")


def counted(found):
    """The first three columns of rows, which versions of these shuffles have, and how often."""
    return Counter(tuple(map(repr, [*row.values()][:3])) for row in found.to_pylist())


def test_sort_keys_may_be_structs_and_descend():
    assert all(len(regions) > 1 for regions in regions_of("v1/sorted_down"))
    assert open_shuffle(HERE / "v1/sorted_down/shuffle").sort_by == (
        ("s", "descending"), ("id", "ascending nulls last"),
    )  # fmt: skip


def test_combined_columns_are_in_the_log():
    shuffle = open_shuffle(HERE / "v1/combined/shuffle")
    assert shuffle.combine == {"id": "sum", "delay": "max"}
    assert [output.num_rows for output in shuffle.map_outputs] == [5, 5, 5]


def test_codec_none_is_an_arrow_file_for_everyone():
    path = HERE / "v1/regions_none"
    files = sorted(path.rglob("*.shuffle.data"))
    assert len(files) == 2
    tables = [pa.ipc.open_file(pa.py_buffer(file.read_bytes())).read_all() for file in files]
    found = pa.concat_tables(tables).sort_by("id")
    expected = rows_of(path / "expected-1.arrow").drop_columns("_subpartition").sort_by("id")
    assert found.combine_chunks().equals(expected.combine_chunks())
    for table, regions in zip(tables, regions_of("v1/regions_none"), strict=True):
        assert table["id"].num_chunks == sum(len(region.chunks) for region in regions)


def test_every_index_says_how_to_read_its_data():
    indexes = [file for path in GOLDEN for file in path.rglob("*.shuffle.index")]
    assert len(indexes) > 8
    for file in indexes:
        index = file.read_bytes()
        length, _, magic = struct.unpack("<II8s", index[-16:])
        assert magic == b"ASHFIDX1"
        described = json.loads(zstandard.decompress(index[-16 - length : -16]))
        assert described["format_version"] == 1
        data = file.with_suffix(".data")
        assert described["data_bytes"] == data.stat().st_size


def test_the_golden_files_are_small():
    size = sum(path.stat().st_size for path in HERE.rglob("v*/**/*") if path.is_file())
    assert size < 3_000_000
