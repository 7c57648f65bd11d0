"""Contenders of the benchmarks that run without Spark, on a few rows."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from integration.bench import count, read, threads
from integration.bench.buffer import BUFFERED, COUNTED, HELD_ROWS, LABELS, measure_once, updates_of
from integration.bench.engine import CONTENDERS, write_once
from tests.support.exhaustive import nightly

pytestmark = nightly  # most of it is how DuckDB, Polars and PyArrow read and write


@pytest.fixture
def stream(tmp_path):
    """An IPC stream of a hundred rows that have the columns which are read."""
    rows = pa.record_batch({"l_orderkey": range(100), "l_shipmode": ["AIR", "RAIL"] * 50})
    path = tmp_path / "in"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as out:
        out.write_batch(rows)
    return str(path)


@pytest.mark.parametrize("columns", [None, ["l_shipmode", "l_orderkey"]])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_all_readers_read_all_rows(tmp_path, stream, codec, columns):
    for kind, n in (("ours", 7), ("IPC", None)):
        path = str(tmp_path / kind)
        read.write_all(stream, path, codec, num_subpartitions=n)
        assert read.read_all(path, kind, columns)["num_rows"] == 100


@pytest.mark.parametrize("contender", CONTENDERS)
def test_all_writers_write_all_rows(tmp_path, stream, contender):
    answer = write_once(contender, stream, str(tmp_path / "scratch"), num_subpartitions=7)
    assert (answer["num_rows"], answer["num_files"] > 0, answer["num_bytes"] > 0) == (
        100,
        True,
        True,
    )
    assert answer["counters"].get("num_rows", 100) == 100


def test_all_that_count_find_all_rows(tmp_path, stream):
    path = str(tmp_path / "both")
    count.write_both(stream, path, num_subpartitions=7)
    assert {count.count(path, label)["num_rows"] for label in count.LABELS} == {100}


def test_updates_are_as_many_per_key_as_they_say():
    rows = pa.Table.from_batches(updates_of("integers", 10, HELD_ROWS, HELD_ROWS))
    counts = rows["page"].value_counts().flatten()[1]
    assert len(counts) == HELD_ROWS // 10
    assert set(counts.to_pylist()) == {10}


@pytest.mark.parametrize("label", LABELS)
def test_every_buffered_contender_runs(label, tmp_path):
    answer = measure_once(label, "texts", 10, 20_000, 40_000, str(tmp_path))
    assert answer["num_rows"] == (4_000 if label in (COUNTED, BUFFERED) else 40_000)
    assert answer["seconds"] > 0


@pytest.mark.parametrize("contender", threads.CONTENDERS)
def test_all_writers_of_files_write_all_of_them(tmp_path, contender):
    files = [str(tmp_path / f"{i}.parquet") for i in range(3)]
    for file in files:
        pq.write_table(pa.table({"l_orderkey": range(100), "t": ["some"] * 100}), file)
    answer = threads.write_once(contender, files, str(tmp_path / "scratch"), 7, 2)
    assert (answer["num_rows"], answer["num_files"] > 1, answer["num_bytes"] > 0) == (
        300,
        True,
        True,
    )
