"""A dataset as the source of a write without Spark: its rows and types, with threads or not."""

import threading

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from arrow_format import (
    OptionError,
    RangePartitioner,
    SchemaError,
    StorageError,
    WriteOptions,
    append_shuffle,
    open_shuffle,
)
from tests.support.own_partitioner import OwnPartitioner
from tests.support.small_shuffles import write_rows

TABLE = pa.table({
    "k": np.arange(200_000) % 1_013,
    "day": [f"2024-01-{1 + i % 4:02d}" for i in range(200_000)],
    "s": [f"row {i} of many" for i in range(200_000)],
})  # fmt: skip
THREADS = [1, 2]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    path = tmp_path_factory.mktemp("files")
    ds.write_dataset(
        TABLE, path, format="parquet", partitioning=["day"], partitioning_flavor="hive"
    )
    return path


@pytest.fixture
def dataset(files):
    return ds.dataset(files, partitioning="hive")


def write(source, path, threads=2, **more):
    options = WriteOptions(threads=threads, sort_buffer_bytes=4 << 20, sync=False)
    keys = None if "partitioner" in more else "k"
    return write_rows(path, source, keys, n=9, options=options, **more)


def rows(path):
    return open_shuffle(path).read().read_all()


def in_order(table):
    return pa.table(table.select(["k", "day", "s"]).sort_by("s").to_pydict())


@pytest.mark.slow
@pytest.mark.parametrize("threads", THREADS)
def test_all_rows_of_partitioned_files(dataset, tmp_path, threads):
    before = set(threading.enumerate())
    receipt = write(dataset, tmp_path / "x", threads)
    assert receipt.num_rows == 200_000
    assert in_order(rows(tmp_path / "x")).equals(in_order(TABLE))
    assert set(threading.enumerate()) == before


@pytest.mark.slow
def test_the_same_bytes_with_and_without_threads(dataset, tmp_path):
    contents = []
    for threads in (1, 2, 3):
        write(dataset, tmp_path / f"{threads}", threads)
        (data,) = (tmp_path / f"{threads}").rglob("*.data")
        contents.append(data.read_bytes())
    assert contents[0] == contents[1] == contents[2]


def test_the_filter_of_a_dataset_holds(dataset, tmp_path):
    dataset = dataset.filter((ds.field("day") == "2024-01-02") & (ds.field("k") < 5))
    write(dataset, tmp_path / "x")
    assert in_order(rows(tmp_path / "x")).equals(in_order(dataset.to_table()))


@pytest.mark.parametrize("threads", THREADS)
def test_columns_and_a_filter_are_chosen(dataset, tmp_path, threads):
    dataset = dataset.filter(ds.field("k") < 50)
    wanted = (ds.field("day") == "2024-01-02") & (ds.field("k") != 7)
    write(dataset, tmp_path / "x", threads, columns=["s", "k"], filter=wanted)
    written = rows(tmp_path / "x")
    assert written.schema.names == ["s", "k"]
    expected = dataset.to_table(columns=["s", "k"], filter=wanted)
    assert 0 < len(expected) < len(dataset.to_table())
    assert written.sort_by("s").to_pydict() == expected.sort_by("s").to_pydict()
    append_shuffle(dataset, tmp_path / "x", columns=["k", "s"], filter=ds.field("k") == 7)
    assert set(rows(tmp_path / "x")["k"].to_pylist()) == set(range(50))


def test_bounds_are_sampled_of_the_rows_of_the_filter(dataset, tmp_path):
    partitioner = RangePartitioner(keys=["k"])
    wanted = (ds.field("day") == "2024-01-01") & (ds.field("k") >= 900)
    write(dataset, tmp_path / "x", partitioner=partitioner, columns=["k"], filter=wanted)
    shuffle = open_shuffle(tmp_path / "x")
    assert shuffle.num_rows == dataset.count_rows(filter=wanted)
    assert all(shuffle.subpartition(i).read_all().num_rows for i in range(9))


def test_columns_and_filters_that_do_not_fit_are_refused(files, tmp_path):
    dataset = ds.dataset(files, partitioning="hive")
    with pytest.raises(SchemaError, match="columns: column 'absent'"):
        write(dataset, tmp_path / "x", columns=["k", "absent"])
    with pytest.raises(SchemaError, match="'k'"):
        write(dataset, tmp_path / "x", columns=["s"])
    with pytest.raises(OptionError, match=r"filter .* does not fit the dataset"):
        write(dataset, tmp_path / "x", filter=ds.field("absent") > 1)
    for source in (TABLE, TABLE.to_reader(), ds.InMemoryDataset(TABLE)):
        for part in ({"columns": ["k"]}, {"filter": ds.field("k") > 1}):
            with pytest.raises(OptionError, match="for a pyarrow dataset of files, and source"):
                write(source, tmp_path / "x", **part)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("make", [
    lambda path: ds.dataset(TABLE),
    lambda path: ds.dataset([ds.dataset(TABLE), ds.dataset(TABLE.slice(0, 0))]),
    lambda path: ds.dataset([ds.dataset(path, partitioning="hive")]),
])  # fmt: skip
def test_other_datasets(files, tmp_path, make):
    assert write(make(files), tmp_path / "x").num_rows == 200_000


def test_types_are_those_that_spark_reads_or_those_of_the_files(tmp_path):
    times = pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns"))
    pq.write_table(
        pa.table({"k": [1, 2], "t": times, "u": pa.array([3, 4], pa.uint32())}),
        tmp_path / "f.parquet",
    )
    dataset = ds.dataset(tmp_path / "f.parquet")
    write(dataset, tmp_path / "spark")
    assert rows(tmp_path / "spark").schema.types == [pa.int64(), pa.timestamp("us"), pa.int64()]
    assert rows(tmp_path / "spark")["t"].cast(pa.int64()).drop_null().to_pylist() == [
        1_700_000_000_123_456
    ]
    write(dataset, tmp_path / "plain", for_spark=False)
    found = rows(tmp_path / "plain").sort_by("k")
    assert found.schema.types == [pa.int64(), pa.timestamp("ns"), pa.uint32()]
    assert found["t"].equals(pa.chunked_array([times]))
    write(dataset, tmp_path / "plain", mode="append")
    assert open_shuffle(tmp_path / "plain").num_rows == 4


def test_ranges_are_sampled_of_files(dataset, tmp_path):
    write(dataset, tmp_path / "x", partitioner=RangePartitioner("k"))
    sizes = open_shuffle(tmp_path / "x").subpartition_rows.to_pylist()
    assert len(sizes) == 9
    assert max(sizes) < 1.3 * 200_000 / 9


def test_a_dataset_is_appended(dataset, tmp_path):
    write(TABLE.slice(0, 10), tmp_path / "x")
    assert append_shuffle(dataset, tmp_path / "x").num_rows == 200_000
    assert open_shuffle(tmp_path / "x").num_rows == 200_010


@pytest.mark.parametrize("threads", THREADS)
def test_a_damaged_file_leaves_nothing(tmp_path, threads):
    for name in ("a", "b"):
        pq.write_table(
            TABLE.drop_columns("day"), tmp_path / f"{name}.parquet", row_group_size=50_000
        )
    with (tmp_path / "b.parquet").open("r+b") as file:
        file.seek(200_000)
        file.write(b"\xff" * 400_000)
    before = set(threading.enumerate())
    dataset = ds.dataset([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])
    with pytest.raises(StorageError, match=r"b\.parquet: cannot be read"):
        write(dataset, tmp_path / "x", threads)
    assert set(threading.enumerate()) == before
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("threads", THREADS)
def test_a_write_that_fails_ends_the_thread_that_reads_ahead(dataset, tmp_path, threads):
    refusing = OwnPartitioner(lambda batch, n: np.full(batch.num_rows, 99))
    before = set(threading.enumerate())
    with pytest.raises(OptionError, match="to 99; expected one whole"):
        write(dataset, tmp_path / "x", threads, partitioner=refusing)
    assert set(threading.enumerate()) == before


def test_what_is_no_rows_is_refused(tmp_path):
    with pytest.raises(
        SchemaError, match="expected a table, a reader, a frame, a dataset or record batches"
    ):
        write(17, tmp_path / "x")
