"""Reading through Spark: skewed subpartitions, what a plan says, early stops, memory."""

from __future__ import annotations

import threading
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import arrow_format
import arrow_shuffle
from arrow_format import BROADCAST, ColumnPartitioner, HashPartitioner, ReadOptions, WriteOptions
from arrow_format.errors import SchemaError
from arrow_shuffle import open_shuffle
from connector.source.described import MOST_CHARACTERS, describe
from connector.source.reader import ShuffleSourceReader
from integration.programs.ways import FAST, assert_same_rows
from tests.support.exhaustive import exhaustive

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

N = 6
HOT = 4
NUM_ROWS = 60_000

SMALL_REGIONS = WriteOptions(sync=False, sort_buffer_bytes=1 << 20, chunk_bytes=16 << 10)


@pytest.fixture(scope="module")
def skewed(spark: SparkSession) -> DataFrame:
    """Nine of ten rows belong to subpartition 4."""
    return (
        spark.range(0, NUM_ROWS, 1, 5)
        .withColumn("p", F.when(F.col("id") % 10 == 0, F.col("id") / 10 % N).otherwise(HOT))
        .selectExpr("CAST(p AS int) p", "id", "repeat(sha2(CAST(id AS string), 256), 2) s")
    )


@pytest.fixture(scope="module")
def written(skewed: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("skewed") / "s"
    arrow_shuffle.write_shuffle(
        skewed,
        path,
        partitioner=ColumnPartitioner("p"),
        num_subpartitions=N,
        options=SMALL_REGIONS,
    )
    return path


def by_spark_partition(df: DataFrame) -> list[tuple[int, list[int]]]:
    """Subpartitions and ids of each Spark partition."""
    rows = df.withColumn("task", F.spark_partition_id()).collect()
    tasks: dict[int, list] = {}
    for row in rows:
        tasks.setdefault(row["task"], []).append((row["_subpartition"], row["id"]))
    return [
        (sorted({subpartition for subpartition, _ in found}), [id_ for _, id_ in found])
        for _, found in sorted(tasks.items())
    ]


def test_a_skewed_subpartition_is_split_and_each_row_comes_once(
    spark: SparkSession, skewed: DataFrame, written: Path
) -> None:
    weight = open_shuffle(written).subpartition_bytes[HOT].as_py()
    df = open_shuffle(written).to_spark(
        spark, split_skewed=True, target_partition_bytes=weight // 4, with_subpartition=True
    )
    tasks = by_spark_partition(df)
    assert sum(found == [HOT] for found, _ in tasks) >= 4
    assert all(found == [HOT] or HOT not in found for found, _ in tasks)
    order = [subpartition for found, _ in tasks for subpartition in found]
    assert order == sorted(order)
    assert_same_rows(df.drop("_subpartition").toArrow(), skewed.toArrow())
    # In reading order: one after the other, the parts are what one task would have read.
    hot = [id_ for found, ids in tasks if found == [HOT] for id_ in ids]
    assert hot == open_shuffle(written).subpartition(HOT, ["id"]).read_all()["id"].to_pylist()


def test_without_the_option_it_is_one_task(spark: SparkSession, written: Path) -> None:
    df = open_shuffle(written).to_spark(
        spark, target_partition_bytes=1 << 10, with_subpartition=True
    )
    assert [found for found, _ in by_spark_partition(df)] == [[one] for one in range(N)]


def test_the_option_of_the_source_splits_too(
    spark: SparkSession, skewed: DataFrame, written: Path
) -> None:
    df = (
        spark.read.format("arrow_shuffle")
        .option("splitSkewed", "true")
        .option("targetPartitionBytes", "64k")
        .load(str(written))
    )
    assert df.rdd.getNumPartitions() > N
    assert_same_rows(df.toArrow(), skewed.toArrow())


class MostForAll(HashPartitioner):
    """Sends every third row to all subpartitions."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "most_for_all"}

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int):
        by_hash = super().bind(schema, num_subpartitions, map_task)

        def assign(batch: pa.RecordBatch) -> np.ndarray:
            ids = np.array(by_hash(batch))
            ids[::3] = BROADCAST
            return ids

        return assign


def test_broadcast_rows_of_a_split_subpartition_come_once(
    spark: SparkSession, skewed: DataFrame, tmp_path: Path
) -> None:
    arrow_shuffle.write_shuffle(
        skewed,
        tmp_path / "s",
        partitioner=MostForAll(["id"]),
        num_subpartitions=3,
        options=SMALL_REGIONS,
    )
    read = {
        split: open_shuffle(tmp_path / "s").to_spark(
            spark, split_skewed=split, target_partition_bytes=256 << 10, with_subpartition=True
        )
        for split in (True, False)
    }
    assert read[True].rdd.getNumPartitions() > read[False].rdd.getNumPartitions() == 3
    assert_same_rows(read[True].toArrow(), read[False].toArrow())


def test_each_part_of_a_sorted_subpartition_is_in_order(
    spark: SparkSession, skewed: DataFrame, tmp_path: Path
) -> None:
    arrow_shuffle.write_shuffle(
        skewed,
        tmp_path / "s",
        partitioner=ColumnPartitioner("p"),
        num_subpartitions=N,
        sort_by=[("s", "descending")],
        options=SMALL_REGIONS,
    )
    weight = open_shuffle(tmp_path / "s").subpartition_bytes[HOT].as_py()
    df, whole = (
        open_shuffle(tmp_path / "s").to_spark(
            spark, split_skewed=split, target_partition_bytes=weight // 3, with_subpartition=True
        )
        for split in (True, False)
    )
    assert df.rdd.getNumPartitions() >= whole.rdd.getNumPartitions() + 2
    for part in df.rdd.glom().collect():
        for _, rows in groupby(part, key=lambda row: row["_subpartition"]):
            texts = [row["s"] for row in rows]
            assert texts == sorted(texts, reverse=True)
    assert_same_rows(df.drop("_subpartition").toArrow(), skewed.toArrow())


def test_a_plan_says_what_is_read(
    spark: SparkSession, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_shuffle(written, 1).select(subpartitions=[1, 2, 4]).to_spark(spark).explain()
    assert f"BatchScan arrow_shuffle {written} version 1 subpartitions 1-2,4" in (
        capsys.readouterr().out
    )
    open_shuffle(written).to_spark(spark).explain()
    assert f"BatchScan arrow_shuffle {written} version 1[" in capsys.readouterr().out


def test_a_long_list_of_subpartitions_is_cut() -> None:
    selection = ",".join(map(str, range(0, 2_000, 2)))
    described = describe("/s", 3, selection)
    assert described.startswith("arrow_shuffle /s version 3 subpartitions 0,2,4,")
    assert described.endswith(",...")
    assert len(described) < 50 + MOST_CHARACTERS


def is_from_cache(frame: DataFrame) -> bool:
    return "InMemoryTableScan" in frame._jdf.queryExecution().executedPlan().toString()


def test_an_equal_read_uses_what_another_has_cached(spark: SparkSession, written: Path) -> None:
    """Spark sees that they are equal; each is a DataFrame of its own all the same."""
    shuffle = open_shuffle(written)
    read = partial(shuffle.to_spark, spark)
    cached = read().cache()
    try:
        assert cached.count() == read().count()
        assert is_from_cache(read())
        assert is_from_cache(read().groupBy(read().columns[0]).count())
        assert not is_from_cache(shuffle.select(subpartitions=0).to_spark(spark))
        assert not is_from_cache(shuffle.select(read().columns[0]).to_spark(spark))
        assert not is_from_cache(read(target_partition_bytes=1 << 20))
        one, other = read(), read()
        pairs = one.join(other, (one["id"] == other["id"]) & (one["p"] < other["p"]))
        assert pairs.count() == 0
        assert one.schema == cached.schema
    finally:
        cached.unpersist()
    assert not is_from_cache(read())


@exhaustive(but="name", least=2)
@pytest.mark.parametrize("name", ["with space", "Upper.Case", "quote'\"`", "日本語", "a%20b,c"])
def test_any_path_can_be_described(
    spark: SparkSession, skewed: DataFrame, tmp_path: Path, name: str
) -> None:
    arrow_shuffle.write_shuffle(
        skewed.limit(20), tmp_path / name, keys="id", num_subpartitions=2, options=FAST
    )
    assert open_shuffle(tmp_path / name).to_spark(spark).count() == 20


def test_a_limit_stops_early(spark: SparkSession, written: Path) -> None:
    df = open_shuffle(written).to_spark(spark, target_partition_bytes=1 << 40)
    assert len(df.limit(3).collect()) == 3
    assert df.count() == NUM_ROWS


def test_a_reader_that_is_left_leaves_nothing_behind(written: Path) -> None:
    options = {"path": str(written), "memoryBytes": "96m"}
    from connector.source.reader import spark_schema

    reader = ShuffleSourceReader(options, spark_schema(open_shuffle(written)))
    (first, *_) = reader.partitions()
    # The process keeps what the log says of a pinned version.
    assert sum(batch.num_rows for batch in reader.read(first)) > 0
    before = pa.total_allocated_bytes()
    batches = reader.read(first)
    next(batches)
    batches.close()  # what Spark does once a limit is reached
    del batches
    deadline = threading.Event()
    for _ in range(100):
        if pa.total_allocated_bytes() == before and not _reading_ahead():
            break
        deadline.wait(0.05)
    assert pa.total_allocated_bytes() == before
    assert not _reading_ahead()


def _reading_ahead() -> list[str]:
    return [t.name for t in threading.enumerate() if "read-ahead" in t.name]


@pytest.mark.parametrize(
    "options", [ReadOptions(memory_bytes=96 << 20), ReadOptions(memory_map=True)]
)
def test_options_of_reading_change_no_row(
    spark: SparkSession, skewed: DataFrame, written: Path, options: ReadOptions
) -> None:
    assert_same_rows(
        open_shuffle(written, options=options).to_spark(spark).toArrow(), skewed.toArrow()
    )


def test_a_column_that_is_not_asked_for_does_not_matter(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Spark lacks the type of `t`, and reads the others."""
    moments = pa.array([1, 2, 3], pa.timestamp("ns"))
    path = tmp_path / "s"
    arrow_format.write_shuffle(
        pa.table({"k": [1, 2, 2], "v": [3, 4, 5], "t": moments}),
        path,
        keys="k",
        num_subpartitions=2,
        for_spark=False,
        options=FAST,
    )
    source = spark.read.format("arrow_shuffle")
    columns = ["k", "v"]
    for df in (
        open_shuffle(path).select(*columns).to_spark(spark),
        source.schema("k bigint, v bigint").load(str(path)),
        open_shuffle(path)
        .select(*columns)
        .map_subpartitions(lambda _, rows: rows, "k bigint, v bigint")
        .to_spark(spark),
    ):
        assert sorted(tuple(row) for row in df.collect()) == [(1, 3), (2, 4), (2, 5)]
    joined = open_shuffle(path).select("v").join(open_shuffle(path).select("k")).to_spark(spark)
    assert sorted(tuple(row) for row in joined.collect()) == [(1, 3), *[(2, 4)] * 2, *[(2, 5)] * 2]
    sums = open_shuffle(path).aggregate("k", [("v", "max")]).to_spark(spark)
    assert sorted(tuple(row) for row in sums.collect()) == [(1, 3), (2, 5)]
    with pytest.raises(SchemaError, match=r"column 't' has type timestamp\[ns\], which Spark"):
        open_shuffle(path).to_spark(spark)
