"""A dataset of files written without entering the JVM: what the DataFrame of the same files gives.

Spark Connect is in ``test_connect.py``.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import arrow_shuffle
from arrow_format import RangePartitioner, WriteOptions
from arrow_format.errors import OptionError, SchemaError
from arrow_format.ingest.scan import plan_scan
from arrow_format.jobs.job import run_map_task
from arrow_format.keys.partitioner import HashPartitioner
from arrow_shuffle import open_shuffle
from connector.session import default_parallelism
from connector.write import begin_scan_job
from integration.programs.datasets import flights, lineitem
from integration.programs.ways import FAST, assert_same_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROJECT = Path(__file__).resolve().parents[1]
N = 16


def rows_of(path: Path) -> pa.Table:
    return open_shuffle(path).read(with_subpartition=True).read_all()


def write(source: object, path: Path, **arguments: Any):
    arguments = {"num_subpartitions": N, "options": FAST, "spark": True, **arguments}
    return arrow_shuffle.write_shuffle(source, path, **arguments)


def assert_alike(lane: Path, frame: Path) -> None:
    """Same rows in the same subpartitions, and nothing else that tells the two apart."""
    ours, theirs = open_shuffle(lane), open_shuffle(frame)
    assert ours.schema.equals(theirs.schema, check_metadata=True)
    assert ours.partitioner.describe() == theirs.partitioner.describe()
    assert_same_rows(rows_of(lane), rows_of(frame))


# The same as through Spark -----------------------------------------------------------------------


def test_lineitem(spark: SparkSession, tmp_path: Path):
    files = lineitem(0.02)
    df = spark.read.parquet(str(files))
    receipt = write(ds.dataset(files), tmp_path / "lane", keys="l_orderkey")
    write(df, tmp_path / "frame", keys="l_orderkey")
    assert receipt.num_map_outputs == default_parallelism(spark) == 2
    assert_alike(tmp_path / "lane", tmp_path / "frame")
    assert open_shuffle(tmp_path / "lane").to_spark(spark).schema == df.schema
    # Either appends to the other.
    write(df.limit(10), tmp_path / "lane", keys="l_orderkey", mode="append")
    write(ds.dataset(files), tmp_path / "frame", keys="l_orderkey", mode="append")
    assert open_shuffle(tmp_path / "lane").num_rows == receipt.num_rows + 10
    assert open_shuffle(tmp_path / "frame").num_rows == 2 * receipt.num_rows


def test_flights_in_ranges_of_some_columns_and_rows(spark: SparkSession, tmp_path: Path):
    columns, keys = ["dest", "time_hour", "distance"], ["time_hour", ("dest", "descending")]
    dataset = ds.dataset(flights()).filter(ds.field("origin") == "JFK")
    df = spark.read.parquet(str(flights())).filter("origin = 'JFK' AND month <= 6")
    write(
        dataset,
        tmp_path / "lane",
        partitioner=RangePartitioner(keys=keys),
        sort_by=keys,
        columns=columns,
        filter=ds.field("month") <= 6,
        spark=spark,
    )
    shuffle = open_shuffle(tmp_path / "lane")
    write(df.select(columns), tmp_path / "frame", partitioner=shuffle.partitioner, sort_by=keys)
    assert_alike(tmp_path / "lane", tmp_path / "frame")
    # The sample was of these rows: about as many in each range.
    share = shuffle.num_rows / N
    assert all(share * 0.8 < rows < share * 1.2 for rows in shuffle.subpartition_rows.to_pylist())
    found = shuffle.read(columns=["time_hour"]).read_all()["time_hour"].to_numpy()
    assert (np.diff(found) >= np.timedelta64(0)).all()


def test_types_come_back_as_spark_reads_them(spark: SparkSession, tmp_path: Path):
    moments = [dt.datetime(1900, 1, 1, 1, 2, 3, 4), None, dt.datetime(2400, 7, 1)] * 50
    rows = pa.table(
        {
            "k": pa.array(range(150), pa.int16()),
            "legacy": pa.array(moments, pa.timestamp("us")),
            "nested": [[{"at": one}] if one else None for one in moments],
        }
    )
    (tmp_path / "in" / "p=1").mkdir(parents=True)
    (tmp_path / "in" / "p=2").mkdir()
    pq.write_table(
        rows, tmp_path / "in/p=1/a.parquet", use_deprecated_int96_timestamps=True, row_group_size=40
    )
    second = rows.slice(0, 30).append_column("more", pa.array(["x"] * 30).dictionary_encode())
    pq.write_table(second, tmp_path / "in/p=2/b.parquet", use_deprecated_int96_timestamps=True)
    schema = second.schema.append(pa.field("p", pa.int32()))
    dataset = ds.dataset(tmp_path / "in", schema=schema, partitioning="hive")
    df = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "in"))
    df = df.select(dataset.schema.names)
    write(dataset, tmp_path / "lane", keys=["k", "legacy", "p"])
    found = open_shuffle(tmp_path / "lane").to_spark(spark)
    assert found.schema["nested"].simpleString() == "nested:array<struct<at:timestamp>>"
    assert found.schema == df.schema
    assert found.exceptAll(df).count() == df.exceptAll(found).count() == 0
    assert found.count() == 180


def test_csv_and_arrow_files(spark: SparkSession, tmp_path: Path):
    rows = pa.table({"k": range(1_000), "s": [f"é {i % 7}" for i in range(1_000)]})
    for kind in ("csv", "ipc"):
        ds.write_dataset(rows, tmp_path / f"in-{kind}", format=kind, max_rows_per_file=400,
                         max_rows_per_group=100)  # fmt: skip
        dataset = ds.dataset(tmp_path / f"in-{kind}", format=kind)
        write(dataset, tmp_path / kind, keys="k", num_map_tasks=3)
    write(spark.createDataFrame(rows).repartition(2), tmp_path / "frame", keys="k")
    for kind in ("csv", "ipc"):
        assert_alike(tmp_path / kind, tmp_path / "frame")
        assert len(open_shuffle(tmp_path / kind).map_outputs) == 3


def test_nothing_passes_the_filter(spark: SparkSession, tmp_path: Path):
    dataset = ds.dataset(flights())
    receipt = write(dataset, tmp_path / "a", keys="dest", filter=ds.field("month") > 12)
    assert receipt.num_rows == 0
    none = ds.dataset([], schema=dataset.schema, format="parquet")
    assert write(none, tmp_path / "b", keys="dest").num_rows == 0
    for name in "ab":
        found = open_shuffle(tmp_path / name).to_spark(spark)
        assert found.schema == spark.read.parquet(str(flights())).schema
        assert found.count() == 0


def test_types_that_spark_lacks_are_written_all_the_same(spark: SparkSession, tmp_path: Path):
    digits = pa.array([Decimal(1), Decimal(2)], pa.decimal256(39, 0))
    pq.write_table(pa.table({"h": digits, "k": [1, 2]}), tmp_path / "x.parquet")
    write(ds.dataset(tmp_path / "x.parquet"), tmp_path / "s", keys="k")
    assert sorted(rows_of(tmp_path / "s")["h"].to_pylist()) == [1, 2]
    with pytest.raises(SchemaError, match=r"'h' has type decimal256\(39, 0\), which Spark cannot"):
        open_shuffle(tmp_path / "s").to_spark(spark)


# What goes wrong ---------------------------------------------------------------------------------


def test_a_damaged_file_is_named_and_nothing_is_left(spark: SparkSession, tmp_path: Path):
    for name in "abc":
        pq.write_table(pa.table({"k": np.arange(20_000)}), tmp_path / f"{name}.parquet")
    dataset = ds.dataset([tmp_path / f"{name}.parquet" for name in "abc"])
    with (tmp_path / "b.parquet").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 50_000)
    with pytest.raises(Exception, match=r"StorageError: \S*b\.parquet: cannot be read as parquet"):
        write(dataset, tmp_path / "s", keys="k", num_map_tasks=3)
    assert not (tmp_path / "s").exists()


def test_arguments_that_do_not_go_together(spark: SparkSession, tmp_path: Path):
    df, dataset = spark.range(5), ds.dataset(flights())
    for name, value in {
        "columns": ["id"],
        "filter": ds.field("id") > 1,
        "num_map_tasks": 3,
    }.items():
        with pytest.raises(OptionError, match=f"{name}: only for a pyarrow dataset"):
            write(df, tmp_path / "s", keys="id", **{name: value})
    with pytest.raises(SchemaError, match="key column 'dest' is not there; columns are origin"):
        write(dataset, tmp_path / "s", keys="dest", columns=["origin"])
    with pytest.raises(SchemaError, match="Table: expected a Spark DataFrame, a pyarrow"):
        write(pa.table({"k": [1]}), tmp_path / "s", keys="k")
    assert not (tmp_path / "s").exists()


NO_SESSION = """
import sys, arrow_shuffle, pyarrow.dataset as ds
files = ds.dataset(sys.argv[1])
arrow_shuffle.write_shuffle(files, "s", keys="dest", num_subpartitions=2, spark=True)
"""


def test_without_a_session(tmp_path: Path):
    done = run_python("-c", NO_SESSION, str(flights()), check=False)
    assert (
        "OptionError: no Spark session is active: start one, give it as spark=session"
        in done.stderr
    )


# Retries, memory ------------------------------------------------------------------------


def test_a_retried_task_writes_the_same_bytes(tmp_path: Path):
    scan = plan_scan(ds.dataset(lineitem(0.02)), parallelism=2)
    options = WriteOptions(sync=False, sort_buffer_bytes=4 << 20)
    begun = begin_scan_job(
        tmp_path, scan.schema, num_subpartitions=N, partitioner=HashPartitioner("l_orderkey"),
        options=options,
    )  # fmt: skip
    assert scan.num_tasks == 2
    for number in range(scan.num_tasks):
        digests = set()
        for attempt in range(2):
            job, reading = pickle.loads(pickle.dumps((begun, scan)))
            status = run_map_task(job, number, attempt, reading.read(number))
            (file,) = status.output.files
            assert file.num_regions > 2
            digests.add(hashlib.sha256((tmp_path / file.data_path).read_bytes()).hexdigest())
        assert len(digests) == 1


MEMORY = """
import sys, pyarrow as pa, pyarrow.dataset as ds
from arrow_format import WriteOptions, write_shuffle
from arrow_format.ingest.scan import plan_scan
from arrow_format.ingest.files import BATCH_BYTES
from tests.support.memory import forget_peak, resident_bytes

pa.set_cpu_count(1)
source, tiny, out = sys.argv[1:]
BUFFER = 16 << 20

def write(path, name):
    scan = plan_scan(ds.dataset(path), parallelism=1)
    rows = pa.RecordBatchReader.from_batches(scan.schema, scan.read(0))
    options = WriteOptions(sync=False, sort_buffer_bytes=BUFFER)
    return write_shuffle(rows, out + name, num_subpartitions=500, keys="k", options=options)

write(tiny, "/tiny")
base = resident_bytes()
forget_peak()
assert write(source, "/big").counters["num_regions"] > 10
print(base, resident_bytes(), BUFFER, BATCH_BYTES)
"""


@pytest.mark.parametrize("kind", ["parquet"])
def test_memory_does_not_follow_the_row_group(tmp_path: Path, kind: str):
    num_rows = 3_000_000
    random = np.random.default_rng(1)
    words = pa.array([f"furiously ironic {i:05d} accounts"[: 10 + i % 24] for i in range(5_000)])
    rows = pa.table(
        {
            "k": random.integers(0, 1 << 40, num_rows),
            "v": random.random(num_rows),
            "s": words.take(pa.array(random.integers(0, 5_000, num_rows))),
        }
    )
    pq.write_table(rows, tmp_path / "big.parquet", row_group_size=num_rows)
    pq.write_table(rows.slice(0, 100), tmp_path / "tiny.parquet")
    assert pq.read_metadata(tmp_path / "big.parquet").num_row_groups == 1
    arguments = (str(tmp_path / f"{name}.{kind}") for name in ("big", "tiny"))
    done = run_python("-c", MEMORY, *arguments, str(tmp_path))
    base, peak, buffer, batch = map(int, done.stdout.split())
    allowed = buffer * 5 // 4 + (64 << 20) + batch
    assert rows.nbytes > allowed, "decoding the row group as a whole would break the bound"
    assert peak - base <= allowed, f"{peak - base >> 20} MiB over base, {allowed >> 20} allowed"
    assert peak - base > buffer // 8


def run_python(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=PROJECT,
        env={name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        timeout=300,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr[-4000:]
    return done
