"""Appends with other columns: what is refused, what changes, and who may still read and write."""

import re
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pytest

from arrow_format import (
    MergePolicy,
    RangePartitioner,
    RoundRobinPartitioner,
    flush_pending,
    merge_shuffle,
    open_shuffle,
)
from arrow_format.errors import SchemaError
from arrow_format.format.regions import RegionKind
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.log.names import CHECKPOINT_INTERVAL
from arrow_format.model import BROADCAST
from arrow_format.options import WriteOptions
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.storage.open import open_storage
from tests.support.guarantees import guarantee
from tests.support.logs import log_of, put
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import begun_with, collect, files_below, write_rows

N = 4
KEEPS = WriteOptions(sync=False)
EVOLVES = WriteOptions(sync=False, schema_evolution=True)


def append(path, table, options=EVOLVES, **how):
    table = table if isinstance(table, pa.Table) else pa.table(table)
    keys = None if "partitioner" in how else "k"
    return write_rows(path, table, n=N, mode="append", options=options, **{"keys": keys, **how})


def rows(path, version=None, **how):
    return sorted(open_shuffle(path, version=version).read(**how).read_all().to_pylist(), key=str)


def small(values):
    return pa.array(values, pa.int8())


@pytest.fixture
def path(tmp_path):
    """Version 1 has k and a; version 2 added b."""
    append(tmp_path, {"k": [1, 2], "a": small([10, None])}, KEEPS)
    append(tmp_path, {"b": ["x"], "k": [3], "a": small([30])})
    return tmp_path


def test_order_missing_columns_and_narrower_ones_need_no_option(path):
    append(path, {"a": small([40]), "k": [4]}, KEEPS)
    assert rows(path)[-1] == {"k": 4, "a": 40, "b": None}
    assert open_shuffle(path).schema.equals(open_shuffle(path, version=2).schema)


@guarantee("evolved schema")
def test_an_earlier_version_keeps_its_columns(path):
    append(path, {"k": [4], "a": [1 << 40]})
    assert open_shuffle(path, version=1).schema.names == ["k", "a"]
    assert [v.schema.field("a").type for v in map(lambda n: open_shuffle(path, n), (1, 2, 3))] == [
        pa.int8(),
        pa.int8(),
        pa.int64(),
    ]
    assert rows(path, 2) == [
        {"k": 1, "a": 10, "b": None},
        {"k": 2, "a": None, "b": None},
        {"k": 3, "a": 30, "b": "x"},
    ]


@pytest.mark.slow
@guarantee("evolved schema")
def test_collected_checkpointed_and_merged_it_is_the_same(path):
    append(path, {"k": [4], "c": [0.5], "a": [1 << 40]})
    expected = rows(path)
    for _ in range(CHECKPOINT_INTERVAL):
        append(path, {"k": pa.array([], pa.int64())}, KEEPS)
    assert rows(path) == expected
    merge_shuffle(path, policy=MergePolicy(rewrite="never"), options=KEEPS, by="map_output")
    collect(path)
    assert rows(path) == expected
    (output,) = open_shuffle(path).map_outputs
    (file,) = output.files
    entry = open_shuffle(path).snapshot.newest
    index = IndexCache(open_storage(path)).index_of(entry, output, file)
    assert index.metadata.data_schema.equals(open_shuffle(path).schema)


@guarantee("refused append")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"k": [1], "a": ["text"]}, "column 'a' is int8 there, string here, and neither holds all"),
        ({"k": [1], "a": [0.5]}, "column 'a' is int8 there, double here, and neither holds all"),
        ({"k": pa.array([1], "i4")}, "column 'k' is int64 there, int32 here, and must keep its"),
        ({"k": [1], "A": [1]}, "column 'A' (int64) is not in the shuffle, and 'a' differs only"),
        ({"k": [1], "b": [b"bytes"]}, "column 'b' is string there, binary here"),
    ],
)
def test_what_evolution_refuses_too(path, columns, message):
    before = files_below(path)
    for options in (KEEPS, EVOLVES):
        with pytest.raises(SchemaError, match=f"{path}: cannot.*{re.escape(message)}.*: (cast|re)"):
            append(path, columns, options)
    assert files_below(path) == before


@guarantee("refused append")
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"k": [1], "bb": ["x"]}, "column 'bb' (string) is not in the shuffle"),
        ({"k": [1], "a": [1]}, "column 'a' is int8 there, int64 here"),
    ],
)
def test_without_the_option_the_columns_stay(path, columns, message):
    before = files_below(path)
    option = re.escape("schema_evolution=True (option mergeSchema)")
    with pytest.raises(SchemaError, match=f"{re.escape(message)}.*{option}"):
        append(path, columns, KEEPS)
    assert files_below(path) == before
    append(path, columns)


def test_a_column_that_is_not_nullable_cannot_be_left_out(tmp_path):
    schema = pa.schema([("k", pa.int64()), pa.field("a", pa.int64(), nullable=False)])
    append(tmp_path, pa.table({"k": [1], "a": [1]}, schema=schema))
    with pytest.raises(SchemaError, match=r"column 'a' \(int64\) is missing, and is not nullable"):
        append(tmp_path, {"k": [2]})
    # One that is new is null in all rows before it, whatever the appended rows promise.
    schema = pa.schema([*schema, pa.field("b", pa.int64(), nullable=False)])
    append(tmp_path, pa.table({"k": [2], "a": [2], "b": [2]}, schema=schema))
    assert open_shuffle(tmp_path).schema.field("b").nullable
    assert rows(tmp_path) == [{"k": 1, "a": 1, "b": None}, {"k": 2, "a": 2, "b": 2}]


# Columns that decide where a row is ---------------------------------------------------------------


BY_A = OwnPartitioner(
    lambda batch, n: batch["a"].to_numpy().astype(np.int64) % n, {"kind": "by_a"}, "a"
)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"keys": "a"}, "equal values of other types have other hashes"),
        (
            {"partitioner": RangePartitioner("a", bounds=[[1], [2], [3]])},
            "it decides the subpartition of each row",
        ),
        ({"partitioner": BY_A}, r"the partitioner \{'kind': 'by_a'\} may place"),
    ],
)
def test_partition_keys_keep_their_type(tmp_path, how, reason):
    append(tmp_path, {"a": pa.array([1, 2, 3], pa.int32()), "b": small([1, 2, 3])}, **how)
    for wider in (True, False):
        other = pa.array([1], pa.int64() if wider else pa.int8())
        with pytest.raises(SchemaError, match=f"column 'a' is int32 there.*because .*{reason}"):
            append(tmp_path, {"a": other, "b": small([1])}, **how)
    append(tmp_path, {"a": pa.array([1], pa.int32()), "new": [1]}, **how)
    assert open_shuffle(tmp_path).subpartition_rows.to_pylist().count(0) < N - 1


def test_any_column_may_widen_where_no_value_decides(tmp_path):
    how = {"partitioner": RoundRobinPartitioner()}
    append(tmp_path, {"a": small([1])}, **how)
    append(tmp_path, {"a": [1 << 40]}, **how)
    assert rows(tmp_path) == [{"a": 1 << 40}, {"a": 1}]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["ascending", "descending", "descending nulls first"])
def test_runs_of_sort_keys_of_different_types_are_merged_in_order(tmp_path, order):
    """More rows of one subpartition than are sorted in memory: regions are merged as they are."""
    rng = np.random.default_rng(3)
    num_rows = 200_000
    for i, dtype in enumerate((pa.int8(), pa.int32(), pa.int16(), pa.int64())):
        a = pa.array(rng.integers(-100, 100, num_rows) * (1 if i == 0 else 3), dtype, safe=False)
        table = pa.table({"k": np.zeros(num_rows, np.int64), "a": a, "i": [i] * num_rows})
        small_regions = WriteOptions(sync=False, schema_evolution=True, sort_buffer_bytes=4 << 20)
        append(tmp_path, table, small_regions, sort_by=[("a", order)])

    def read():
        shuffle = open_shuffle(tmp_path)
        assert shuffle.schema.field("a").type == pa.int64()
        whole = shuffle.reader(0, N, ["a"])
        runs = whole.runs(1 << 20, 0)
        assert len(runs) > 4
        del runs
        return shuffle.read(columns=["a", "i"]).read_all()

    before = read()
    a = before["a"].to_numpy()
    assert (np.diff(a) >= 0).all() if order == "ascending" else (np.diff(a) <= 0).all()
    # Rows of equal keys in the order of writing: by append.
    same = a[1:] == a[:-1]
    assert (np.diff(before["i"].to_numpy())[same] >= 0).all()
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite="always"), options=KEEPS, by="map_output")
    assert open_shuffle(tmp_path).read(columns=["a", "i"]).read_all().equals(before)


@pytest.mark.slow
def test_regions_of_rows_that_grow_are_read_in_slices_that_fit(tmp_path):
    """Rows of 9 bytes become rows of 169 with the columns that were added since."""
    num_rows = 400_000
    table = pa.table({"k": np.zeros(num_rows, np.int64), "a": pa.nulls(num_rows, pa.int8())})
    append(tmp_path, table)
    append(tmp_path, {"k": [0]} | {f"new_{i}": [float(i)] for i in range(20)})
    max_bytes = 8 << 20
    reader = open_shuffle(tmp_path).reader(0, N)
    batches = [run.batch for runs in reader.runs(max_bytes) for run in runs]
    assert sum(batch.num_rows for batch in batches) == num_rows + 1
    assert max(batch.nbytes for batch in batches) < max_bytes // 2


# Merges -------------------------------------------------------------------------------------------


def some_to_all(batch, n):
    """Every third row to everyone."""
    v = batch["v"].to_numpy()
    return np.where(v % 3 == 0, BROADCAST, v % n)


@pytest.mark.slow
@pytest.mark.parametrize("rewrite", ["never", "always"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_merge_of_files_with_other_columns_has_one_schema(tmp_path, rewrite, codec):
    """Unicast and broadcast regions of several chunks; copied where columns agree."""
    num_rows = 500_000
    options = WriteOptions(sync=False, schema_evolution=True, codec=codec)
    v = pa.array(np.arange(num_rows), pa.int64())
    how = {"partitioner": OwnPartitioner(some_to_all)}
    append(tmp_path, {"v": v}, options, **how)
    append(tmp_path, {"s": v.cast(pa.string()), "v": v}, options, **how)
    append(tmp_path, {"v": v, "s": v.cast(pa.string())}, options, **how)
    before = open_shuffle(tmp_path).read(with_subpartition=True).read_all()
    merge_shuffle(tmp_path, policy=MergePolicy(rewrite=rewrite), options=KEEPS, by="map_output")
    shuffle = open_shuffle(tmp_path)
    assert shuffle.read(with_subpartition=True).read_all().equals(before)
    shuffle.verify()
    (output,) = shuffle.map_outputs
    (file,) = output.files
    index = IndexCache(shuffle.storage).index_of(shuffle.snapshot.newest, output, file)
    assert index.metadata.data_schema.equals(shuffle.schema)
    assert {region.kind for region in index.regions} == {*RegionKind}
    has_several_chunks = [len(region.chunks) > 1 for region in index.regions]
    assert all(has_several_chunks) if codec == "none" else any(has_several_chunks)
    if codec == "none":
        with pa.memory_map(str(tmp_path / file.data_path)) as mapped:
            assert pa.ipc.open_file(mapped).read_all().num_rows == 3 * num_rows


# Several writers ----------------------------------------------------------------------------------


def test_of_two_that_add_a_column_with_other_types_the_second_is_refused(path):
    tables = [pa.table({"k": [9], "c": column}) for column in (["x"], [1])]
    (first, statuses), (second, others) = (
        begun_with(path, table, n=N, options=EVOLVES) for table in tables
    )
    commit_job(first, statuses, mode="append")
    with pytest.raises(SchemaError, match="column 'c' is string there, int64 here"):
        commit_job(second, others, mode="append")
    abort_job(second)
    assert rows(path)[-1] == {"k": 9, "a": None, "b": None, "c": "x"}


def test_two_that_add_different_columns_both_succeed(path):
    tables = [pa.table({"k": [8], "c": [1]}), pa.table({"k": [9], "d": [2]})]
    for begun in [begun_with(path, table, n=N, options=EVOLVES) for table in tables]:
        commit_job(*begun, mode="append")
    assert open_shuffle(path).schema.names == ["k", "a", "b", "c", "d"]
    nothing = {"a": None, "b": None}
    assert rows(path)[-2:] == [
        {"k": 8, **nothing, "c": 1, "d": None},
        {"k": 9, **nothing, "c": None, "d": 2},
    ]


# Pending batches ----------------------------------------------------------------------------------

KV = pa.schema([("k", pa.int64()), ("v", pa.int8())])
WITH_B = pa.schema([("b", pa.string()), ("v", pa.int32()), ("k", pa.int64())])


def test_pending_batches_with_other_columns_are_flushed_together(tmp_path):
    path = tmp_path / "s"
    put(path, [(1, 1), (2, 2)], schema=KV)
    put(path, [("x", 2_000, 2), ("y", 3_000, 3)], schema=WITH_B, schema_evolution=True)
    put(path, [(3, 3), (4, 4)], schema=KV)
    flush_pending(path, options=KEEPS)
    assert open_shuffle(path).schema.equals(
        pa.schema([("k", pa.int64()), ("v", pa.int32()), ("b", pa.string())])
    )
    assert rows(path) == [
        {"k": 1, "v": 1, "b": None},
        {"k": 2, "v": 2_000, "b": "x"},
        {"k": 3, "v": 3, "b": None},
        {"k": 4, "v": 4, "b": None},
    ]


@guarantee("refused batch")
def test_a_column_must_fit_what_is_pending_too(tmp_path):
    path = tmp_path / "s"
    put(path, [(1, 1)], schema=KV, pending=False)
    put(path, [("x", 2_000, 2)], schema=WITH_B, schema_evolution=True)
    put(path, [(5, 5)], schema=KV)  # the last pending batch lacks the column, and still has it
    with pytest.raises(SchemaError, match=r"column 'b' is string there.*wait to be flushed"):
        put(path, [(1, 1)], schema=KV.set(1, pa.field("b", pa.int8())), schema_evolution=True)
    # A version must not get it either, or the batches could never be flushed.
    with pytest.raises(SchemaError, match=r"column 'b' is string there.*wait to be flushed"):
        append(path, {"k": [1], "b": [1]})
    append(path, {"k": [1], "c": [1]})
    assert len(log_of(path).view().state.pending.numbers) == 2
    flush_pending(path, options=KEEPS)
    assert open_shuffle(path).schema.names == ["k", "v", "c", "b"]
    assert {"k": 2, "v": 2_000, "b": "x", "c": None} in rows(path)


# Chunks -------------------------------------------------------------------------------------------


def num_chunks(path):
    """Chunks of the largest file of the newest version."""
    storage, shuffle = open_storage(path), open_shuffle(path)
    files = (file for output in shuffle.map_outputs for file in output.files)
    largest = PartitionedFileReader(storage, max(files, key=attrgetter("num_rows")))
    return sum(len(region.chunks) for region in largest.regions)


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("rewrite", ["never", "always"])
def test_a_large_region_that_is_written_in_small_parts_has_no_smaller_chunks(
    tmp_path, rewrite, codec
):
    small_chunks = replace(EVOLVES, chunk_bytes=16 << 10, codec=codec)
    random = np.random.default_rng(7)
    keys = random.integers(0, 1 << 20, 100_000)
    values = pa.array(random.random(len(keys)))
    how = {"n": 500, "mode": "append", "options": small_chunks}
    write_rows(tmp_path, pa.table({"k": keys, "v": values}), "k", **how)
    before = num_chunks(tmp_path)
    assert before > 32
    write_rows(tmp_path, pa.table({"k": [1], "v": [0.5], "b": ["x"]}), "k", **how)
    policy = MergePolicy(rewrite=rewrite, min_regions=2)
    merge_shuffle(tmp_path, policy=policy, options=small_chunks, by="map_output")
    assert open_shuffle(tmp_path).num_rows == len(keys) + 1
    assert num_chunks(tmp_path) <= 2.2 * before  # a part ends where its last chunk does


# Types that Spark lacks ---------------------------------------------------------------------------


def test_new_columns_are_stored_for_spark_unless_the_shuffle_is_not(tmp_path):
    ours, theirs = tmp_path / "spark", tmp_path / "other"
    unsigned = pa.array([1], pa.uint8())
    for path, for_spark in ((ours, True), (theirs, False)):
        append(path, {"k": [1], "u": unsigned}, for_spark=for_spark)
        append(path, {"k": [1], "u": pa.array([1], pa.uint16()), "w": unsigned})
    assert open_shuffle(ours).schema.types == [pa.int64(), pa.int32(), pa.int16()]
    assert open_shuffle(theirs).schema.types == [pa.int64(), pa.uint16(), pa.uint8()]
