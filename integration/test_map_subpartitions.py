"""A function per subpartition in real Spark tasks: what it is given, what may go wrong."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructType

import arrow_shuffle
from arrow_format import (
    BroadcastPartitioner,
    OptionError,
    RoundRobinPartitioner,
    SchemaError,
    ShuffleNotFoundError,
)
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST, assert_same_rows
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

N = 40
COUNTS = "subpartition int, task int, left long, right long"


def counted(subpartition: int, *readers: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """One row: how many rows each reader has, and in which process."""
    rows = [sum(batch.num_rows for batch in reader) for reader in readers]
    yield pa.record_batch(
        {
            "subpartition": pa.array([subpartition], pa.int32()),
            "task": pa.array([os.getpid()], pa.int32()),
            "left": [rows[0]],
            "right": [rows[-1]],
        }
    )


def write(df: DataFrame, path: Path, n: int = N, **how: object) -> Path:
    how = how or {"keys": "k"}
    arrow_shuffle.write_shuffle(df, path, num_subpartitions=n, options=FAST, **how)
    return path


@pytest.fixture(scope="module")
def left(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Few keys: most subpartitions are empty."""
    df = spark.range(0, 30_000, 1, 3).selectExpr("id % 9 AS k", "id AS v", "repeat('x', 20) AS s")
    return write(df, tmp_path_factory.mktemp("map") / "left")


@pytest.fixture(scope="module")
def right(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    df = spark.range(0, 3_000, 1, 2).selectExpr("id % 300 AS k", "id AS w")
    return write(df, tmp_path_factory.mktemp("map") / "right")


def test_every_subpartition_once_with_its_rows(spark: SparkSession, left: Path, right: Path):
    out = (
        open_shuffle(left)
        .map_subpartitions(counted, COUNTS, others=open_shuffle(right))
        .to_spark(spark)
    )
    found = out.orderBy("subpartition").collect()
    assert [row.subpartition for row in found] == list(range(N))
    assert [row.left for row in found] == open_shuffle(left).subpartition_rows.to_pylist()
    assert [row.right for row in found] == open_shuffle(right).subpartition_rows.to_pylist()
    assert sum(row.left == 0 for row in found) > 20
    assert os.getpid() not in {row.task for row in found}


def test_rows_columns_and_lazy_versions(spark: SparkSession, left: Path, right: Path):
    def both(_: int, one: pa.RecordBatchReader, other: pa.RecordBatchReader) -> list:
        assert one.schema.names == ["v", "k"]
        assert other.schema.names == ["k", "w"]
        return list(one)

    some = range(2, 30)
    out = (
        open_shuffle(left)
        .select("v", "k", subpartitions=some)
        .map_subpartitions(
            both, "k bigint, v bigint", others=open_shuffle(right).select(subpartitions=some)
        )
        .to_spark(spark)
    )
    expected = open_shuffle(left).select("k", "v", subpartitions=some).to_spark(spark)
    assert out.columns == ["k", "v"]
    assert_same_rows(out.toArrow(), expected.toArrow())


def hours(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Hours as the reader's types have them, an instant that passes through, and those types."""
    table = batches.read_all()
    rows = table.to_pylist()
    inside = [[time.hour for time in row["all"]] for row in rows]
    local = [row["local"].hour for row in rows]
    found = {
        "k": table["k"].combine_chunks(),
        "hour": pa.array(table["at"].to_pandas().dt.hour, pa.int32()),
        "hours": pa.array(inside, pa.list_(pa.int32())),
        "local": pa.array(local, pa.int32()),
        "at": table["at"].combine_chunks(),
        "all": table["all"].combine_chunks(),
    }
    yield pa.record_batch(found)


@guarantee("session time zone")
@pytest.mark.parametrize("zone", ["America/New_York", "GMT+8", "Z"])
def test_timestamps_have_the_zone_of_the_session(spark: SparkSession, tmp_path: Path, zone: str):
    """As in applyInPandas: hours and days are those that the session shows."""
    schema = "k bigint, hour int, hours array<int>, local int, at timestamp, all array<timestamp>"
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        df = spark.range(5).selectExpr(
            "id AS k", "timestamp'2024-07-01 09:00:00' + make_dt_interval(0, id) AS at",
            "array(at) AS all", "timestamp_ntz'2024-07-01 09:00:00' AS local",
        )  # fmt: skip
        path = write(df, tmp_path / "s", 3)
        expected = df.selectExpr(
            "k", "hour(at) AS hour", "array(hour(at)) AS hours", "hour(local) AS local", "at", "all"
        )
        mapped = (
            open_shuffle(path)
            .map_subpartitions(lambda _, rows: hours(rows), schema)
            .to_spark(spark)
        )
        assert sorted(mapped.collect()) == sorted(expected.collect())
        kept = open_shuffle(path)
        joined = kept.join(kept.select("k"), on="k", then=hours, schema=schema).to_spark(spark)
        assert sorted(joined.collect()) == sorted(expected.collect())
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_the_version_is_that_of_the_call(spark: SparkSession, tmp_path: Path):
    df = spark.range(10).withColumnRenamed("id", "k")
    write(df, tmp_path / "s", 4)
    first = open_shuffle(tmp_path / "s").map_subpartitions(counted, COUNTS).to_spark(spark)
    arrow_shuffle.write_shuffle(
        df, tmp_path / "s", keys="k", num_subpartitions=4, mode="append", options=FAST
    )
    second = open_shuffle(tmp_path / "s").map_subpartitions(counted, COUNTS).to_spark(spark)
    again = (
        open_shuffle(tmp_path / "s", 2)
        .map_subpartitions(counted, COUNTS, others=open_shuffle(tmp_path / "s", 1))
        .to_spark(spark)
    )
    assert [x.agg(F.sum("left")).first()[0] for x in (first, second)] == [10, 20]
    assert tuple(again.agg(F.sum("left"), F.sum("right")).first()) == (20, 10)


def test_a_broadcast_shuffle_is_read_by_every_subpartition(
    spark: SparkSession, left: Path, tmp_path: Path
):
    everyone = write(spark.range(7), tmp_path / "b", 3, partitioner=BroadcastPartitioner())
    out = (
        open_shuffle(left)
        .map_subpartitions(counted, COUNTS, others=open_shuffle(everyone))
        .to_spark(spark)
    )
    assert [row.right for row in out.collect()] == [7] * N


def test_tiny_subpartitions_share_few_tasks(spark: SparkSession, tmp_path: Path):
    df = spark.range(0, 40_000, 1, 2).withColumnRenamed("id", "k")
    path = write(df, tmp_path / "s", 20_000)
    out = open_shuffle(path).map_subpartitions(counted, COUNTS).to_spark(spark)
    found = out.withColumn("partition", F.spark_partition_id()).select("partition", "left")
    started = time.perf_counter()
    rows = found.collect()
    assert time.perf_counter() - started < 30
    assert len(rows) == 20_000
    assert sum(row.left for row in rows) == 40_000
    sizes = Counter(row.partition for row in rows)
    assert 2 <= len(sizes) <= 16
    assert min(sizes.values()) > 0.8 * max(sizes.values())


def test_a_huge_subpartition_is_streamed(spark: SparkSession, tmp_path: Path):
    """Half a gigabyte of one key, in a task that takes a fraction of that."""
    rows = spark.range(0, 800_000, 1, 2).selectExpr(
        "1L AS k", "concat(repeat('x', 600), id) AS s", "id AS v"
    )
    path = write(rows, tmp_path / "s", 8)

    def peak(_: int, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        num_rows = num_bytes = 0
        for batch in reader:
            num_rows += batch.num_rows
            num_bytes += batch.nbytes
        if num_rows:
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            columns = {"rows": num_rows, "mib": num_bytes >> 20, "grown": after - before}
            yield pa.record_batch({name: [value] for name, value in columns.items()})

    schema = "rows bigint, mib bigint, grown bigint"
    (found,) = open_shuffle(path).map_subpartitions(peak, schema).to_spark(spark).collect()
    assert found.rows == 800_000
    assert found.mib > 450
    assert found.grown < 256


def test_limit_stops_early_and_closes(spark: SparkSession, left: Path, tmp_path: Path):
    def endless(subpartition: int, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield pa.record_batch({"n": pa.array(range(20_000), pa.int64())})
        finally:
            (tmp_path / f"closed-{subpartition}").touch()

    out = (
        open_shuffle(left)
        .select(subpartitions=range(4))
        .map_subpartitions(endless, "n bigint")
        .to_spark(spark)
    )
    assert out.limit(5).count() == 5
    deadline = time.monotonic() + 20
    closed = {f"closed-{subpartition}" for subpartition in range(4)}  # each by a task of its own
    while {path.name for path in tmp_path.iterdir()} != closed and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {path.name for path in tmp_path.iterdir()} == closed


# What may go wrong -------------------------------------------------------------------------------


def failure(out: DataFrame) -> str:
    with pytest.raises(PythonException) as caught:
        out.collect()
    return str(caught.value)


def test_the_users_exception_arrives_whole(spark: SparkSession, left: Path):
    def divide(subpartition: int, _: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        if subpartition == 3:
            raise ZeroDivisionError(f"no {subpartition}")
        yield from ()

    said = failure(open_shuffle(left).map_subpartitions(divide, "n bigint").to_spark(spark))
    assert "ZeroDivisionError: no 3" in said
    assert "in divide" in said
    assert f"in map_subpartitions, subpartition 3 of {left}" in said


def test_an_empty_subpartition_that_was_not_expected(spark: SparkSession, left: Path):
    def first(_: int, reader: pa.RecordBatchReader) -> list[pa.RecordBatch]:
        return [reader.read_next_batch()]

    empty = open_shuffle(left).subpartition_rows.to_pylist().index(0)
    schema = "k bigint, v bigint, s string"
    said = failure(
        open_shuffle(left)
        .select(subpartitions=empty)
        .map_subpartitions(first, schema)
        .to_spark(spark)
    )
    assert f"RuntimeError: subpartition {empty} of {left}: the function raised Stop" in said
    assert "the subpartition is empty, or the reader at its end" in said
    assert "in first" in said


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda: None, "the function returned None: expected an iterator of pyarrow.RecordBatch"),
        (lambda: pa.record_batch({"n": [1]}), "the function returned a RecordBatch"),
        (lambda: ["x"], "the function yielded a str: expected a pyarrow.RecordBatch"),
        (lambda: [None], "the function yielded None"),
        (
            lambda: [pa.record_batch({"n": [1.5]})],
            "column 'n' is double, not int64; cast it (expected n int64; found n double)",
        ),
        (lambda: [pa.record_batch({"m": [1], "o": [2]})], "it lacks n and it has m, o besides"),
        (
            lambda: [pa.record_batch({"n": pa.array([1, None])})],
            "declared non-nullable but has 1 null(s)",
        ),
    ],
)
def test_results_of_another_schema(spark: SparkSession, left: Path, result: object, message: str):
    def function(*_: object) -> object:
        return result()

    schema = StructType().add("n", LongType(), nullable=False)
    out = (
        open_shuffle(left)
        .select(subpartitions=5)
        .map_subpartitions(function, schema)
        .to_spark(spark)
    )
    said = failure(out)
    assert f"SchemaError: subpartition 5 of {left}: " in said
    assert message in said


def test_results_that_only_look_different(spark: SparkSession, left: Path):
    def encoded(*_: object) -> Iterator[pa.RecordBatch]:
        text = pa.array(["a", "b", "a"])
        yield pa.record_batch({"s": text.dictionary_encode(), "n": pa.array([1, 2, 3], pa.int32())})
        yield pa.record_batch({"n": pa.array([4], pa.int32()), "s": text.cast("large_string")[:1]})
        yield pa.record_batch({"n": pa.array([], pa.int32()), "s": text[:0]})

    schema = StructType().add("n", IntegerType()).add("s", "string")
    out = (
        open_shuffle(left)
        .select(subpartitions=[5])
        .map_subpartitions(encoded, schema)
        .to_spark(spark)
    )
    assert [tuple(row) for row in out.collect()] == [(1, "a"), (2, "b"), (3, "a"), (4, "a")]


def test_what_is_refused_before_any_task(spark: SparkSession, left: Path, tmp_path: Path):
    df = spark.range(10).withColumnRenamed("id", "k")
    other = write(df, tmp_path / "n", N + 1)
    ints = write(df.selectExpr("cast(k AS int) AS k"), tmp_path / "i")
    turns = write(df, tmp_path / "t", partitioner=RoundRobinPartitioner())

    kept = open_shuffle(left)

    def counts(*columns: object, others: object = (), subpartitions: object = None) -> DataFrame:
        rows = kept.select(*columns, subpartitions=subpartitions)
        return rows.map_subpartitions(counted, COUNTS, others=others).to_spark(spark)

    def refused(error: type[Exception], message: str, ask: Callable[[], object]) -> None:
        with pytest.raises(error, match=message):
            ask()

    refused(OptionError, r"has 40, .* has 41, so .* as 1, by 1 task where",
            lambda: counts(others=open_shuffle(other)))  # fmt: skip
    for path, why in [
        (ints, "the left's key 'k' is int64, the right's 'k' is int32, and equal"),
        (turns, "the left is partitioned by hash, the right by roundrobin"),
    ]:
        apart = open_shuffle(path)
        refused(OptionError, f"not co-partitioned: {why}", lambda: counts(others=apart))  # noqa: B023
    refused(ShuffleNotFoundError, "is not there", lambda: open_shuffle(tmp_path / "no"))
    refused(OptionError, "others is int: expected a shuffle", lambda: counts(others=5))
    refused(OptionError, "Open it first: open_shuffle", lambda: counts(others=other))
    refused(OptionError, "Open it first: open_shuffle", lambda: counts(others=[kept, str(other)]))
    refused(SchemaError, "select: column 5: expected names", lambda: counts(5))
    refused(OptionError, "function is int: expected a callable",
            lambda: kept.map_subpartitions(3, COUNTS))  # fmt: skip
    refused(SchemaError, "schema is int: expected a pyarrow schema, text",
            lambda: kept.map_subpartitions(counted, 3))  # fmt: skip
    refused(SchemaError, "column 'x' is not there", lambda: counts("x"))
    refused(SchemaError, r"select: column \['k'\]: expected names", lambda: counts("v", ["k"]))
    refused(SchemaError, "select: the list of columns is empty", lambda: counts([]))
    refused(OptionError, "out of range", lambda: counts(subpartitions=N))
    refused(OptionError, "subpartitions is empty", lambda: counts(subpartitions=[]))
    refused(OptionError, "target_partition_bytes=0",
            lambda: kept.map_subpartitions(counted, COUNTS).to_spark(
                spark, target_partition_bytes=0
            ))  # fmt: skip
