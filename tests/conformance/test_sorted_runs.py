"""CONFORMANCE, group "Result partition": sorted runs of regions, and subpartitions in order."""

from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arrow_format import (
    OptionError,
    ReadOptions,
    SchemaError,
    WriteOptions,
    open_shuffle,
    write_shuffle,
)
from arrow_format.format.codecs import ChunkDecoder
from arrow_format.keys.partitioner import BroadcastPartitioner, ColumnPartitioner, RangePartitioner
from arrow_format.keys.sort_keys import ORDERS, normalise_sort_by
from arrow_format.keys.spark_order import sorting_bytes
from arrow_format.read.chunk_plan import plan_chunks
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.partitioned_file import PartitionedFileReader
from arrow_format.read.subpartition_reader import files_of
from arrow_format.storage.open import PosixStorage
from arrow_format.write.sort_buffer import ROW_OVERHEAD_BYTES, SortBuffer
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import write_rows, write_tasks
from tests.support.spark_order_model import compare_rows, sorted_rows
from tests.unit.keys.test_spark_order import columns

TINY = WriteOptions(sync=False, sort_buffer_bytes=8_192, chunk_bytes=300)
SORT_BY = (("a", "descending"), ("s", "ascending nulls last"))
SCHEMA = pa.schema([("p", pa.int32()), ("v", pa.int64()), ("a", pa.float64()), ("s", pa.string())])


def some_rows(num_rows, n, seed=0):
    random = np.random.default_rng(seed)
    numbers = random.choice([0.0, -0.0, np.nan, 1.5, -7.0, np.inf], num_rows)
    texts = random.choice(["", "b", "ba", "b\x00", "a rather long text, " * 3], num_rows)
    return pa.table(
        [
            pa.array(random.integers(0, n, num_rows), pa.int32()),
            pa.array(np.arange(num_rows)),
            pa.array(numbers, mask=random.random(num_rows) < 0.2),
            pa.array(texts, mask=random.random(num_rows) < 0.2),
        ],
        schema=SCHEMA,
    )


def in_order(table, keys):
    """The rows by subpartition, keys and arrival, as the slow model sorts them."""
    columns = [table["p"].to_pylist(), *(table[name].to_pylist() for name, _ in keys)]
    rows = list(zip(*columns, strict=True))
    order = sorted_rows(rows, ["ascending", *(order for _, order in keys)])
    return table.take(pa.array(order, pa.int64()))


def write(path, table, n, sort_by=SORT_BY, options=TINY, **more):
    return write_shuffle(
        table.to_batches(max_chunksize=97), path, num_subpartitions=n,
        partitioner=ColumnPartitioner("p"), sort_by=sort_by, options=options, **more,
    )  # fmt: skip


def regions_of(shuffle):
    """Each region as its rows in stored order, and the subpartition of each row."""
    storage = PosixStorage(shuffle.path)
    n = shuffle.num_subpartitions
    for one in files_of(shuffle.map_outputs):
        index = PartitionedFileReader(storage, one.file)
        regions = index.regions
        rows = [[] for _ in regions]
        chunks = ChunkReader(index, ChunkDecoder(shuffle.schema))
        for chunk, batch in chunks.decoded(plan_chunks(regions, 0, n, n)):
            rows[chunk.region].append(batch)
        for region, batches in zip(regions, rows, strict=True):
            yield (
                pa.Table.from_batches(batches),
                region.subpartitions_of_rows(0, region.num_rows, n),
            )


# Writing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("order", ["rotated", "natural"])
def test_runs_of_every_region_are_sorted_and_stable(tmp_path, codec, order):
    options = WriteOptions(sync=False, sort_buffer_bytes=60_000, codec=codec, write_order=order)
    write(tmp_path / "x", some_rows(2_000, 5), 5, options=options)
    regions = list(regions_of(open_shuffle(tmp_path / "x")))
    assert len(regions) > 4
    orders = [order for _, order in SORT_BY]
    for table, ids in regions:
        rows = list(zip(table["a"].to_pylist(), table["s"].to_pylist(), strict=True))
        arrivals = table["v"].to_pylist()
        for i in np.flatnonzero(np.diff(ids) == 0).tolist():
            found = compare_rows(rows[i], rows[i + 1], orders)
            assert found < 0 or (found == 0 and arrivals[i] < arrivals[i + 1])


def test_log_and_index_say_how_rows_are_sorted(tmp_path):
    write(tmp_path / "x", some_rows(50, 3), 3, sort_by=["a", ("s", "descending")])
    shuffle = open_shuffle(tmp_path / "x")
    expected = (("a", "ascending"), ("s", "descending"))
    assert shuffle.sort_by == expected
    (file,) = shuffle.map_outputs[0].files
    assert PartitionedFileReader(PosixStorage(shuffle.path), file).metadata.sort_by == expected
    assert shuffle.verify().ok


def test_sort_keys_are_checked_before_anything_is_written(tmp_path):
    for sort_by, error, message in [
        (["q"], SchemaError, "sort_by: column 'q' is not there; columns are p, v, a, s"),
        ([("a", "up")], OptionError, "order 'up' is not one of"),
        (["a", "a"], OptionError, "a column is named twice"),
    ]:
        with pytest.raises(error, match=message):
            write(tmp_path / "x", some_rows(5, 1), 1, sort_by=sort_by)
    assert not (tmp_path / "x").exists()


def test_sorting_is_charged():
    schema = pa.schema([("a", pa.int64())])
    batch = pa.record_batch({"a": np.arange(1_000)})
    plain = SortBuffer(schema, 1 << 30, 1)
    sorting = SortBuffer(schema, 1 << 30, 1, normalise_sort_by("a"))
    for buffer in (plain, sorting):
        buffer.append(batch, np.zeros(1_000, np.int32))
    assert plain.num_bytes == 8_000 + 1_000 * ROW_OVERHEAD_BYTES
    assert sorting.num_bytes == plain.num_bytes + 1_000 * sorting_bytes([pa.int64()])


def test_rows_that_come_sorted_need_no_permutation():
    buffer = SortBuffer(pa.schema([("a", pa.int64())]), 1 << 30, 2, normalise_sort_by("a"))
    buffer.append(pa.record_batch({"a": [1, 5, 2, 2]}), np.array([0, 0, 1, 1], np.int32))
    buffer.finish()
    region = buffer.take_region()
    assert region.clustering.permutation is None
    assert region.batch["a"].to_pylist() == [1, 5, 2, 2]


# Reading -----------------------------------------------------------------------------------------


WAYS = {"held": None, "one by one": 20_000, "merged": 40_000, "in pieces": 100}
"""Groups of subpartitions are sorted in memory, or one by one, or merged as they are read, chunk by
chunk or in pieces of chunks; by how many bytes may be held."""


@contextmanager
def reading(way):
    with pytest.MonkeyPatch.context() as patch:
        if bound := WAYS[way]:
            patch.setattr(ReadOptions, "group_bytes", bound)
            patch.setattr("arrow_format.keys.merge_runs.MIN_ROWS", 10)
            patch.setattr("arrow_format.read.subpartition_reader.MIN_SLICE_BYTES", 2_000)
            # Puts them together, so that it is the reader who finds out that they are too large.
            patch.setattr("arrow_format.read.version_reader.group_adjacent", all_in_one_group)
        yield


def all_in_one_group(weights, most, wanted, *, origin):
    del most
    if wanted is None:
        return [(origin, origin + len(weights))]
    return [(one, one + 1) for one in wanted]


@pytest.fixture(params=WAYS)
def way(request):
    with reading(request.param):
        yield


@guarantee("sort order")
@pytest.mark.usefixtures("way")
def test_every_subpartition_comes_back_in_order(tmp_path):
    table = some_rows(3_000, 6)
    write(tmp_path / "x", table, 6)
    expected = in_order(table, SORT_BY)
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.map_outputs[0].files[0].num_regions > 20

    found = shuffle.read(with_subpartition=True).read_all()

    assert found["v"].to_pylist() == expected["v"].to_pylist()
    assert found["_subpartition"].to_pylist() == expected["p"].to_pylist()
    assert found.drop_columns("_subpartition").schema.equals(SCHEMA)
    for one in range(6):
        mine = expected.filter(pc.equal(expected["p"], one))
        assert shuffle.subpartition(one).read_all()["v"].to_pylist() == mine["v"].to_pylist()


@pytest.mark.usefixtures("way")
def test_sort_keys_need_not_be_asked_for(tmp_path):
    table = some_rows(1_000, 4)
    write(tmp_path / "x", table, 4)
    expected = in_order(table, SORT_BY)
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.read(columns=["v"]).read_all().equals(expected.select(["v"]))
    assert shuffle.read(columns="v").read_all().equals(expected.select(["v"]))
    some = shuffle.read([1, 3], columns=["s", "v"]).read_all()
    wanted = expected.filter(pc.is_in(expected["p"], pa.array([1, 3], pa.int32())))
    assert some.equals(wanted.select(["s", "v"]))
    assert shuffle.read(columns=[]).read_all().num_rows == 1_000


@pytest.mark.usefixtures("way")
def test_several_map_outputs_and_versions_are_merged(tmp_path):
    tables = [some_rows(1_600, 3).slice(start, 400) for start in range(0, 1_600, 400)]
    for pair in (tables[:2], tables[2:]):
        tasks = [table.to_batches() for table in pair]
        write_tasks(tmp_path / "x", tasks, 3, mode="append", sort_by=SORT_BY, options=TINY)
    # Rows whose keys agree come by version, map task and arrival: as they were concatenated.
    expected = in_order(pa.concat_tables(tables), SORT_BY)
    found = open_shuffle(tmp_path / "x").read().read_all()
    assert found["v"].to_pylist() == expected["v"].to_pylist()


@pytest.mark.usefixtures("way")
def test_rows_for_every_subpartition_are_sorted_in(tmp_path):
    table = some_rows(300, 1)
    write_shuffle(
        table.to_batches(max_chunksize=50), tmp_path / "x", num_subpartitions=3,
        partitioner=BroadcastPartitioner(), sort_by=SORT_BY, options=TINY,
    )  # fmt: skip
    expected = in_order(table, SORT_BY)["v"].to_pylist()
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.read().read_all()["v"].to_pylist() == expected * 3
    assert shuffle.subpartition(2).read_all()["v"].to_pylist() == expected


@settings(max_examples=30)
@given(
    st.lists(columns(max_rows=60), min_size=1, max_size=3),
    st.lists(st.sampled_from(ORDERS), min_size=3, max_size=3),
    st.integers(1, 4),
    st.sampled_from(sorted(WAYS)),
    st.randoms(use_true_random=False),
)
def test_any_types_and_orders(tmp_path_factory, keys, orders, n, way, random):
    num_rows = min(map(len, keys))
    names = [f"k{i}" for i in range(len(keys))]
    table = pa.table(
        [*(key.slice(0, num_rows) for key in keys),
         pa.array([random.randrange(n) for _ in range(num_rows)], pa.int32()),
         pa.array(range(num_rows))],
        names=[*names, "p", "v"],
    )  # fmt: skip
    path = tmp_path_factory.mktemp("types") / "x"
    sort_by = list(zip(names, orders, strict=False))
    options = WriteOptions(sync=False, sort_buffer_bytes=2_048, chunk_bytes=64)
    write_shuffle(
        table, path, num_subpartitions=n, partitioner=ColumnPartitioner("p"), sort_by=sort_by,
        for_spark=False, options=options,
    )  # fmt: skip
    with reading(way):
        found = open_shuffle(path).read(columns=["v"]).read_all()
    assert found["v"].to_pylist() == in_order(table, sort_by)["v"].to_pylist()


def test_ranges_of_the_sort_keys_put_everything_in_order(tmp_path):
    table = some_rows(5_000, 1)
    write_rows(
        tmp_path / "x", table, n=7, sort_by=SORT_BY, partitioner=RangePartitioner(keys=SORT_BY)
    )
    found = open_shuffle(tmp_path / "x").read().read_all()
    assert found["v"].to_pylist() == in_order(table, SORT_BY)["v"].to_pylist()


def test_memory_of_a_merge_is_that_of_a_piece_per_region(tmp_path, monkeypatch):
    monkeypatch.setattr("arrow_format.write.clustering.SPLIT_CHUNK_BYTES", 50_000)
    rows = 1_500_000
    table = pa.table(
        {"p": np.zeros(rows, np.int32), "k": np.random.default_rng(0).permutation(rows)}
    )
    options = WriteOptions(sync=False, sort_buffer_bytes=32 << 20, chunk_bytes=50_000)
    write_rows(
        tmp_path / "x", table, n=1, partitioner=ColumnPartitioner("p"), sort_by="k", options=options
    )
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.map_outputs[0].files[0].num_regions > 5
    for size in ("group_bytes", "fetched_bytes", "batch_bytes"):
        monkeypatch.setattr(ReadOptions, size, 100_000)
    shuffle = open_shuffle(tmp_path / "x")
    before = pa.total_allocated_bytes()
    most = seen = 0
    del table
    for batch in shuffle.read(columns=["k"]):
        assert batch["k"][0].as_py() == seen
        seen += batch.num_rows
        del batch
        most = max(most, pa.total_allocated_bytes() - before)
    assert seen == rows
    assert most < rows * 12 / 6


# Appending ---------------------------------------------------------------------------------------


@guarantee("refused append")
def test_another_sort_order_cannot_be_appended(tmp_path):
    table = some_rows(20, 2)
    write(tmp_path / "x", table, 2)
    for sort_by in [(), ["a"], [("a", "descending"), "s"]]:
        with pytest.raises(
            SchemaError, match=r"is sorted by \[\('a', 'descending'\).*Give the same"
        ):
            write(tmp_path / "x", table, 2, sort_by=sort_by, mode="append")
    write(tmp_path / "x", table, 2, mode="append")
    assert open_shuffle(tmp_path / "x").num_rows == 40
    write(tmp_path / "x", table, 2, sort_by=(), mode="overwrite")
    assert open_shuffle(tmp_path / "x").sort_by == ()
    with pytest.raises(SchemaError, match=r"is sorted by \[\]; cannot append rows sorted by"):
        write(tmp_path / "x", table, 2, mode="append")
