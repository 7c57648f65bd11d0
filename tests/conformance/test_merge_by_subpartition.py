"""CONFORMANCE, group "Commit": a merge by subpartition makes one run of bytes of each of them."""

import shutil
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    BroadcastPartitioner,
    CorruptShuffleError,
    MergePolicy,
    OptionError,
    collect_garbage,
    delete_rows,
    merge_shuffle,
    open_shuffle,
    open_shuffle_changes,
)
from arrow_format.format.regions import RegionKind
from arrow_format.jobs import merge_work
from arrow_format.jobs.merge import plan_merge
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import PosixStorage
from arrow_format.write import merge_policy, region_file
from arrow_format.write.range_plan import Piece
from tests.support.exhaustive import exhaustive, part
from tests.support.guarantees import guarantee
from tests.support.memory_pool import counted_pool
from tests.support.merges import ALWAYS, CODECS, TINY, append_version, contents, files_of
from tests.support.small_shuffles import FAST, files_below, root_numbers, write_rows


@pytest.fixture
def many_ranges(monkeypatch):
    """Let small shuffles have as many ranges as large ones."""
    monkeypatch.setattr(merge_policy, "MIN_RANGE_BYTES", 1)
    monkeypatch.setattr(merge_policy, "INDEX_SHARE", 0)


def by_subpartition(path, policy=ALWAYS, options=TINY, **how):
    return merge_shuffle(path, by="subpartition", policy=policy, options=options, **how)


def write_numbers(path, tasks=20, n=300, rows=500, **how):
    """Map outputs of one region, each with rows of all subpartitions."""
    for start in range(0, tasks * rows, rows):
        numbers = np.arange(start, start + rows)
        table = pa.table({"k": numbers * 7919 % 10_007, "v": numbers, "t": list(map(str, numbers))})
        write_rows(path, table, "k", n=n, mode="append", **how)


@guarantee("merged rows")
@exhaustive()
@CODECS
@pytest.mark.parametrize("broadcast", [False, True], ids=["unicast", "mixed"])
@pytest.mark.parametrize("sort_by", [(), (("s", "descending"), ("v", "ascending"))])
@pytest.mark.parametrize("many", [False, True], ids=["ordered by the reader", "by a map task"])
def test_rows_and_their_order_stay(path, codec, broadcast, sort_by, many, monkeypatch):
    monkeypatch.setattr(merge_work.SubpartitionMerge, "_has_many_regions", lambda *_: many)
    for _ in range(3):
        append_version(
            path, options=replace(TINY, codec=codec), broadcast=broadcast, sort_by=sort_by
        )
    before = open_shuffle(path)
    expected = contents(before)
    reported = []
    report = by_subpartition(path, on_bytes=reported.append)
    merged = open_shuffle(path)
    assert contents(merged) == expected
    assert sum(reported) == report.plan.num_bytes == before.num_bytes
    assert (report.version, merged.version) == (4, 4)
    assert merged.subpartition_rows.equals(before.subpartition_rows)
    assert sum(merged.subpartition_bytes.to_pylist()) == merged.num_bytes == report.after.data_bytes
    assert merged.verify().num_rows == merged.num_rows == before.num_rows
    if not many:  # as a map task with so little memory joins a few regions at a time only
        assert {file.num_regions for file in files_of(merged)} == {1}
    storage = PosixStorage(str(path))
    assert {PartitionedFileReader(storage, file).codec for file in files_of(merged)} == {codec}
    kinds = [
        region.kind
        for file in files_of(merged)
        for region in PartitionedFileReader(storage, file).regions
    ]
    if broadcast and not many:
        assert len(kinds) > 2
        assert all(a is not b for a, b in pairwise(kinds)), "no row moves across broadcast rows"
    elif not broadcast:
        assert set(kinds) == {RegionKind.UNICAST}
    assert contents(open_shuffle(path, version=3)) == expected, "the version before stays"


@pytest.mark.usefixtures("many_ranges")
def test_a_subpartition_is_one_range_of_one_file(path):
    write_numbers(path)
    before, some = open_shuffle(path), part(range(300), 40)
    expected = {number: before.subpartition(number).read_all() for number in some}
    assert len(before.plan(7).reads) > 10
    report = by_subpartition(path, MergePolicy(), FAST)
    assert 40 <= report.plan.num_tasks <= 64, "there are tasks for all cores of a cluster"
    merged = open_shuffle(path)
    files = files_of(merged)
    assert len(files) == report.plan.num_tasks == report.num_map_outputs[1]
    assert all(a.end_subpartition <= b.first_subpartition for a, b in pairwise(files))
    sizes = [file.num_rows for file in files]
    assert max(sizes) < 2 * min(sizes), "ranges of about equal weight"
    for number in some:
        shuffle = open_shuffle(PosixStorage(str(path)))
        assert len(shuffle.plan(number).reads) == 1
        assert shuffle.subpartition(number).read_all().equals(expected[number])


@pytest.mark.usefixtures("many_ranges")
def test_readers_of_a_subpartition_open_its_file_only(path):
    write_numbers(path, tasks=8)
    by_subpartition(path, options=FAST)
    wanted = next(
        file
        for file in files_of(open_shuffle(path))
        if file.first_subpartition <= 7 < file.end_subpartition
    )
    rows = open_shuffle(path).subpartition(7).read_all()
    for name in files_below(path):
        if name.startswith("map_outputs/") and wanted.path not in name and (path / name).is_file():
            (path / name).unlink()
    assert open_shuffle(path).subpartition(7).read_all().equals(rows)


def test_a_range_that_a_map_task_orders(path, monkeypatch):
    """Either way makes the same rows, and one region."""
    write_numbers(path, tasks=6, rows=60_000)
    expected = open_shuffle(path).to_table()
    options = replace(FAST, sort_buffer_bytes=8 << 20)
    for is_many in (False, True):
        always = partial(lambda answer, *_: answer, is_many)
        copy = path.with_name(f"copy-{is_many}")
        shutil.copytree(path, copy)
        with monkeypatch.context() as patch:
            patch.setattr(merge_work.SubpartitionMerge, "_has_many_regions", always)
            by_subpartition(copy, options=options)
        assert open_shuffle(copy).to_table().equals(expected)
        assert len(open_shuffle(copy).plan(7).reads) == 1
    (file,) = files_of(open_shuffle(path.with_name("copy-True")))
    assert file.num_regions == 1, "joined at the end of the task"


def test_when_a_range_is_ordered_by_a_map_task(path):
    """By the memory of the reader, the number of regions and the bytes of their chunks."""
    write_numbers(path, tasks=4, n=3)
    shuffle = open_shuffle(path)
    piece = Piece(RegionKind.UNICAST, range(4), 0, 3, shuffle.num_bytes)
    work = merge_work.SubpartitionMerge(shuffle, (piece,), ())
    assert not work._has_many_regions(piece)
    large = replace(piece, num_bytes=10 * shuffle.options.group_bytes)
    assert not work._has_many_regions(large), "few regions"
    assert work._has_many_regions(replace(large, regions=range(10_000)))
    assert not work._has_many_regions(replace(piece, regions=range(10_000))), "one group"


def test_it_is_done_where_it_is_worth_it_and_once(path):
    write_numbers(path, tasks=7)
    assert by_subpartition(path, MergePolicy(), FAST).plan.merges == (), "few regions"
    write_numbers(path, tasks=1)
    assert by_subpartition(path, MergePolicy(), FAST).version == 9
    for policy in (MergePolicy(), ALWAYS):
        again = by_subpartition(path, policy, FAST)
        assert (again.version, again.plan.num_tasks, again.plan.merges) == (9, 0, ())
    assert by_subpartition(path, MergePolicy(min_read_bytes=1), FAST).version == 9


@pytest.mark.usefixtures("many_ranges")
def test_a_merge_by_map_output_leaves_ranges_alone(path):
    """A subpartition is in one of them: to join them would save no read."""
    write_numbers(path, tasks=12)
    by_subpartition(path, options=FAST)
    shuffle = open_shuffle(path)
    assert len(shuffle.map_outputs) > 8
    assert not any(merge.rewrite for merge in plan_merge(shuffle, MergePolicy()).merges)


def test_what_is_appended_later_is_merged_again(path):
    write_numbers(path, tasks=9)
    by_subpartition(path, MergePolicy(), FAST)
    write_numbers(path, tasks=9)
    some = part(range(300), 40)
    expected = [open_shuffle(path).subpartition(i).read_all() for i in some]
    by_subpartition(path, MergePolicy(), FAST)
    merged = open_shuffle(path)
    assert [merged.subpartition(i).read_all() for i in some] == expected
    (output,) = merged.map_outputs
    assert (output.position.version, output.position.last_version) == (1, 19)


def test_joining_regions_and_a_policy_that_never_does(path):
    append_version(path)
    with pytest.raises(OptionError, match="by='subpartition' joins regions"):
        by_subpartition(path, MergePolicy(rewrite="never"))
    with pytest.raises(OptionError, match="by='key': expected one of 'map_output', 'subpartition'"):
        merge_shuffle(path, by="key")
    assert open_shuffle(path).version == 1


def test_broadcast_rows_alone(path):
    for _ in range(3):
        write_rows(
            path, pa.table({"v": [1, 2]}), n=5, partitioner=BroadcastPartitioner(), mode="append"
        )
    by_subpartition(path)
    merged = open_shuffle(path)
    (file,) = files_of(merged)
    assert (file.num_rows, file.num_broadcast_rows, file.num_regions) == (6, 6, 1)
    assert merged.subpartition(4).read_all()["v"].to_pylist() == [1, 2] * 3
    merged.verify()


@pytest.mark.usefixtures("many_ranges")
def test_a_deletion_rewrites_the_file_of_the_key_only(path):
    write_numbers(path, tasks=9)
    by_subpartition(path, options=FAST)
    before = len(open_shuffle(path).map_outputs)
    receipt = delete_rows(path, {"k": [7919 % 10_007]}, options=FAST)
    assert (receipt.num_rows, receipt.num_files) == (1, 1)
    assert len(open_shuffle(path).map_outputs) == before
    open_shuffle(path).verify()


def test_a_stream_gets_each_row_once(path):
    write_numbers(path, tasks=8)
    by_subpartition(path, options=FAST)
    write_numbers(path, tasks=1)
    added = open_shuffle_changes(path, 5, 10)
    assert added.num_rows == 4 * 500
    assert open_shuffle_changes(path, 8, 9).num_rows == 0
    assert [entry.operation for entry in [open_shuffle(path, 9).snapshot.newest]] == ["merge"]


def test_statistics_stay(path):
    write_numbers(path, tasks=8)
    how = replace(FAST, statistics="all")
    write_rows(
        path, pa.table({"k": [1], "v": [-5], "t": ["x"]}), "k", n=300, mode="append", options=how
    )
    by_subpartition(path)
    merged = open_shuffle(path)
    assert merged.where("v < 0").to_table()["v"].to_pylist() == [-5]
    assert merged.where("v < -5").explain().plan.num_chunks == 0
    merged.verify()


@pytest.mark.usefixtures("many_ranges")
def test_local_directories(tmp_path, path):
    dirs = [tmp_path / name for name in ("one", "two")]
    for one in dirs:
        one.mkdir()
    options = replace(FAST, local_dirs=tuple(map(str, dirs)))
    write_numbers(path, tasks=8)
    expected = open_shuffle(path).to_table()
    by_subpartition(path, options=options)
    merged = open_shuffle(path)
    assert set(root_numbers(files_of(merged), *dirs)) == {0, 1, 2}
    assert merged.to_table().equals(expected)


@pytest.mark.parametrize("sort_by", [(), ("t",)])
def test_memory_is_that_of_a_reader_and_of_its_rows(path, sort_by):
    """Columns in Arrow's pool: 96 MiB to read within, and 6 to write, of 120 MB of rows."""
    for seed in range(10):
        keys = np.random.default_rng(seed).integers(0, 10_000, 100_000)
        table = pa.table({"k": keys, "t": [f"some text of row {i} " * 5 for i in range(100_000)]})
        write_rows(path, table, "k", n=200, mode="append", sort_by=sort_by)
    assert open_shuffle(path).snapshot.raw_bytes > 110_000_000
    with counted_pool() as pool:
        by_subpartition(path, options=replace(FAST, sort_buffer_bytes=16 << 20))
    assert 0 < pool.max_memory() < (96 + 6) << 20
    assert {file.num_regions for file in files_of(open_shuffle(path))} == {1}


def mistaken(batch):
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["v"] = pa.array(np.roll(batch["v"].to_numpy(), 1))
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)


@guarantee("damaged merge")
def test_rows_that_are_not_those_of_the_inputs(path, monkeypatch):
    write_numbers(path, tasks=8, n=3)
    before = files_below(path)
    real = region_file.in_parts
    monkeypatch.setattr(
        region_file,
        "in_parts",
        lambda *rows: ((mistaken(batch), ids) for batch, ids in real(*rows)),
    )
    with pytest.raises(CorruptShuffleError, match="differ from the files it was merged from"):
        by_subpartition(path)
    assert files_below(path) == before


@guarantee("damaged merge")
def test_rows_of_another_subpartition(path, monkeypatch):
    write_numbers(path, tasks=8, n=3)
    before = files_below(path)
    monkeypatch.setattr(merge_work.SubpartitionMerge, "_compare", lambda *_: None)
    cluster = region_file.cluster
    # A row of one subpartition is counted for another.
    monkeypatch.setattr(
        region_file, "cluster", lambda ids, *how: cluster(np.append(ids[1:], ids[-1]), *how)
    )
    with pytest.raises(CorruptShuffleError, match="rows of subpartition 0, version 8 has"):
        by_subpartition(path)
    assert files_below(path) == before


def test_garbage_of_what_was_merged(path):
    write_numbers(path, tasks=8)
    expected = open_shuffle(path).to_table()
    by_subpartition(path, options=FAST)
    collect_garbage(path, retention=timedelta(0))
    assert open_shuffle(path).to_table().equals(expected)
    names = [name for name in files_below(path) if name.startswith("map_outputs/")]
    assert sum(name.endswith(".data") for name in names) == 1
