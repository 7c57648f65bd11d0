"""What goes in comes out: every row, in its subpartition, in order, whatever the options."""

import tempfile
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from arrow_format import HashPartitioner, RoundRobinPartitioner, open_shuffle, write_shuffle
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.options import WriteOptions
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import FAST, write_rows, write_tasks
from tests.support.tables import counted, frozen, tables

OPTIONS = st.builds(
    WriteOptions,
    sync=st.just(False),
    codec=st.sampled_from(["zstd", "none"]),
    sort_buffer_bytes=st.sampled_from([1 << 10, 1 << 12, 1 << 20]),
    chunk_bytes=st.sampled_from([1, 64, 1_000, 256 << 10]),
    statistics=st.sampled_from([None, "all"]),
    write_order=st.sampled_from(["rotated", "natural"]),
)
NUMBERS = st.sampled_from([1, 2, 3, 7, 100, 20_000, 65_537])


def assigned(table, partitioner, n, map_task=0):
    """`(subpartition, row)` as the partitioner says, in order of arrival."""
    assign = partitioner.bind(data_schema(table.schema), n, map_task)
    rows = []
    for batch in table.to_batches():
        plain = normalise(batch, data_schema(table.schema))
        rows += zip(assign(plain).tolist(), plain.to_pylist(), strict=True)
    return rows


def read_with_ids(shuffle, **what):
    rows = []
    for batch in shuffle.read(with_subpartition=True, **what):
        batch.validate(full=True)
        rows += [(row.pop("_subpartition"), row) for row in batch.to_pylist()]
    return rows


def check_against(shuffle, written):
    """Same multiset; ascending subpartitions; within one, order of arrival."""
    found = read_with_ids(shuffle)
    assert counted(found) == counted(written)
    assert all(one[0] <= two[0] for one, two in pairwise(found))
    arrival = sorted(range(len(written)), key=lambda i: written[i][0])
    assert [frozen(row) for _, row in found] == [frozen(written[i][1]) for i in arrival]
    return found


@guarantee("row order")
@given(tables(), NUMBERS, OPTIONS)
def test_rows_land_where_the_partitioner_says_in_order_of_arrival(table, n, options):
    with tempfile.TemporaryDirectory() as directory:
        receipt = write_rows(directory, table, "v", n=n, for_spark=False, options=options)
        shuffle = open_shuffle(directory)
        assert shuffle.schema.equals(data_schema(table.schema))
        written = assigned(table, HashPartitioner("v"), n)
        found = check_against(shuffle, written)

        rows = np.bincount([s for s, _ in written], minlength=n) if written else np.zeros(n, int)
        assert shuffle.subpartition_rows.to_pylist() == rows.tolist()
        assert sum(receipt.subpartition_bytes.to_pylist()) == receipt.num_bytes
        assert shuffle.verify().num_rows == table.num_rows

        # One subpartition at a time is the same as all at once.
        alone = [
            (int(s), row)
            for s in np.sort([*np.flatnonzero(rows), *np.flatnonzero(rows == 0)[:3]])
            for row in shuffle.subpartition(s).read_all().to_pylist()
        ]
        assert [(s, frozen(row)) for s, row in alone] == [(s, frozen(row)) for s, row in found]


@guarantee("row order")
@given(tables(max_rows=15), st.integers(1, 4), st.data(), OPTIONS)
def test_several_map_outputs_and_versions(table, num_tasks, data, options):
    n = data.draw(st.sampled_from([1, 5, 300]))
    tasks = [table.slice(data.draw(st.integers(0, table.num_rows))) for _ in range(num_tasks)]
    partitioner = RoundRobinPartitioner()
    with tempfile.TemporaryDirectory() as directory:
        written = []
        for _ in range(2):
            write_tasks(
                directory, [task.to_batches() for task in tasks], n, mode="append",
                schema=table.schema, partitioner=partitioner, options=options,
            )  # fmt: skip
            for number, task in enumerate(tasks):
                written += assigned(task, partitioner, n, number)
        shuffle = open_shuffle(directory)
        found = check_against(shuffle, written)

        # A coalesced range is its subpartitions one after the other.
        first = data.draw(st.integers(0, n - 1))
        end = data.draw(st.integers(first + 1, n))
        in_range = [(s, frozen(row)) for s, row in found if first <= s < end]
        together = read_with_ids(shuffle, subpartitions=range(first, end))
        assert [(s, frozen(row)) for s, row in together] == in_range
        single = [
            (s, frozen(row))
            for s in sorted({s for s, _ in in_range})
            for row in shuffle.subpartition(s).read_all().to_pylist()
        ]
        assert single == in_range


MANY = pa.table(
    {
        "k": pa.array(np.random.default_rng(5).integers(0, 500, 30_000)),
        "s": pa.array([None if i % 11 == 0 else f"text {i}" * (i % 4) for i in range(30_000)]),
        "l": pa.array([[i, None] if i % 3 else [] for i in range(30_000)]),
    }
)


@pytest.mark.parametrize("codec", ["zstd", "none"])
@pytest.mark.parametrize("n", [1, 40, 5_000])
def test_two_hundred_regions_read_back_as_one(tmp_path, codec, n):
    found = []
    for name, sort_buffer_bytes in (("many", 24 << 10), ("one", 64 << 20)):
        options = WriteOptions(sync=False, codec=codec, sort_buffer_bytes=sort_buffer_bytes)
        batches = MANY.to_batches(max_chunksize=100)
        write_shuffle(batches, tmp_path / name, num_subpartitions=n, keys="k", options=options)
        shuffle = open_shuffle(tmp_path / name)
        (output,) = shuffle.map_outputs
        found.append((sum(f.num_regions for f in output.files), shuffle.read().read_all()))
    (many, left), (one, right) = found
    assert many >= 200
    assert one == 1
    assert left.equals(right)


# Fixed cases --------------------------------------------------------------------------------------


def written_and_read(tmp_path, table, n, keys="k", options=FAST, sort="v"):
    """Write, verify, and return what comes back, ordered as it was written."""
    receipt = write_shuffle(table, tmp_path / "x", num_subpartitions=n, keys=keys, options=options)
    shuffle = open_shuffle(tmp_path / "x")
    assert receipt.num_rows == shuffle.verify().num_rows == shuffle.num_rows
    return shuffle, shuffle.read().read_all().sort_by(sort)


@pytest.mark.parametrize("n", [1, 20_000])
def test_no_rows(tmp_path, n):
    table = pa.table({"k": pa.array([], pa.int64()), "v": pa.array([], pa.list_(pa.string()))})
    write_shuffle(table, tmp_path / "x", num_subpartitions=n, keys="k", options=FAST)
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.num_rows == shuffle.num_bytes == 0
    assert shuffle.read().read_all().equals(table)
    assert shuffle.subpartition(n - 1).read_all().equals(table)
    assert shuffle.subpartition_rows.to_pylist() == [0] * n
    assert shuffle.verify().num_files == 0


def test_one_batch_of_two_million_rows(tmp_path):
    values = np.arange(2_000_000, dtype=np.int32)
    batch = pa.record_batch({"k": values})
    options = WriteOptions(sync=False, sort_buffer_bytes=32 << 20)
    receipt = write_rows(tmp_path / "x", [batch], "k", n=200, options=options)
    shuffle = open_shuffle(tmp_path / "x")
    assert receipt.num_rows == 2_000_000
    assert receipt.counters["large_batches"] == 1
    found = np.concatenate([b["k"].to_numpy() for b in shuffle.read()])
    assert np.array_equal(np.sort(found), values)
    expected = HashPartitioner("k").bind(batch.schema, 200, 0)(batch)
    counts = np.bincount(expected, minlength=200)
    assert shuffle.subpartition_rows.to_pylist() == counts.tolist()
    assert np.array_equal(
        shuffle.subpartition(17).read_all()["k"].to_numpy(), values[expected == 17]
    )


def test_keys_that_are_all_null(tmp_path):
    table = pa.table({"k": pa.nulls(500, pa.string()), "v": list(range(500))})
    shuffle, found = written_and_read(tmp_path, table, 9)
    assert found.equals(table)
    assert sorted(shuffle.subpartition_rows.to_pylist()) == [0] * 8 + [500]
    assert shuffle.subpartition(42 % 9).read_all().num_rows == 500, "the hash of null is the seed"


def test_empty_strings(tmp_path):
    table = pa.table({"k": [""] * 500, "b": [b""] * 500, "v": list(range(500))})
    shuffle, found = written_and_read(tmp_path, table, 9)
    assert found.equals(table)
    assert max(shuffle.subpartition_rows.to_pylist()) == 500


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_three_hundred_columns(tmp_path, codec):
    columns = {f"c{i}": [f"{i}-{row}" if i % 2 else None for row in range(50)] for i in range(298)}
    table = pa.table({"k": list(range(50)), **columns, "v": list(range(50))})
    options = WriteOptions(sync=False, codec=codec)
    shuffle, found = written_and_read(tmp_path, table, 4, options=options)
    assert found.select(table.column_names).equals(table.cast(found.schema))
    assert shuffle.subpartition(1, columns=["c297", "c0"]).read_all().column_names == ["c297", "c0"]


def test_strings_of_a_megabyte(tmp_path):
    texts = [chr(97 + i) * (1 << 20) for i in range(12)]
    table = pa.table({"k": list(range(12)), "s": texts, "v": list(range(12))})
    options = WriteOptions(sync=False, sort_buffer_bytes=8 << 20)
    shuffle, found = written_and_read(tmp_path, table, 3, options=options)
    assert found.equals(table)
    assert shuffle.map_outputs[0].files[0].num_regions > 1
