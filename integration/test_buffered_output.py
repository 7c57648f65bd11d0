"""The stage that holds rows back, in batch and in a stream, on several executors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from arrow_format.storage.scratch import PREFIX
from connector import BufferedOutput
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

ROWS, KEYS = 200_000, 500


@pytest.fixture
def updates(spark: SparkSession) -> DataFrame:
    """Numbered updates of some keys, over four Spark partitions."""
    return spark.range(0, ROWS, 1, 4).selectExpr(
        f"id * 7919 % {KEYS} AS k", "id AS number", "CAST(id AS string) AS text"
    )


def in_order(updates: DataFrame) -> DataFrame:
    """All updates of a key in one Spark partition, in their order."""
    return updates.repartition(3, "k").sortWithinPartitions("number")


def latest(updates: DataFrame) -> list[tuple]:
    """What is right, by Spark."""
    found = updates.groupBy("k").agg(F.max("number"), F.max_by("text", "number"))
    return sorted(map(tuple, found.collect()))


@guarantee("buffered stage")
@pytest.mark.parametrize("memory_buffer_only", [False, True])
def test_the_latest_row_of_each_key(updates, memory_buffer_only):
    stage = BufferedOutput(keys=["k"], max_interval="10min", memory_buffer_only=memory_buffer_only)
    found = in_order(updates).mapInArrow(stage, updates.schema).collect()
    assert sorted(map(tuple, found)) == latest(updates)


def test_rows_of_a_key_in_several_partitions_stay_several(updates):
    stage = BufferedOutput(keys=["k"], max_interval="10min")
    found = updates.mapInArrow(stage, updates.schema)
    assert found.count() == 4 * KEYS
    # The same output behind a shuffle by key is one row for each again.
    again = in_order(found).mapInArrow(stage, updates.schema)
    assert sorted(map(tuple, again.collect())) == latest(updates)


def test_a_short_interval_emits_more_and_ends_the_same(updates):
    stage = BufferedOutput(keys=["k"], max_interval="1ms")
    found = in_order(updates).mapInArrow(stage, updates.schema).cache()
    assert KEYS < found.count() <= ROWS
    assert latest(found) == latest(updates)
    found.unpersist()


@pytest.mark.parametrize("options", [{}, {"max_interval": None}])
def test_without_an_interval_rows_pass_through(updates, options):
    stage = BufferedOutput(keys=["k"], **options)
    found = updates.mapInArrow(stage, updates.schema)
    assert found.count() == ROWS
    assert found.exceptAll(updates).isEmpty()


class Measured:
    """A stage with a look at memory and disk after each batch, written down for each task."""

    def __init__(self, stage: BufferedOutput, notes: Path) -> None:
        self._stage = stage
        self._notes = str(notes)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        base, most, spilled = pa.total_allocated_bytes(), 0, 0

        def look() -> None:
            nonlocal most, spilled
            most = max(most, pa.total_allocated_bytes() - base)
            spilled = max(spilled, len(scratch()))

        def seen() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                look()

        for batch in self._stage(seen()):
            look()
            yield batch
        task = TaskContext.get()
        name = f"{task.stageId()}-{task.partitionId()}"
        Path(self._notes, name).write_text(f"{most} {spilled} {len(scratch())}")


def scratch() -> list[Path]:
    """Scratch directories of this executor."""
    directories = os.environ["SPARK_LOCAL_DIRS"].split(",")
    return [one for place in directories for one in Path(place).glob(f"{PREFIX}*")]


@guarantee("buffered stage")
def test_more_keys_than_memory_go_to_disk_and_nothing_stays(spark, tmp_path):
    rows = spark.range(0, 400_000, 1, 4).selectExpr(
        "id * 7919 % 200000 AS k", "id AS number", "repeat('x', 50) AS text"
    )
    stage = BufferedOutput(keys=["k"], max_interval="10min", max_buffered_bytes=4 << 20)
    found = in_order(rows).mapInArrow(Measured(stage, tmp_path), rows.schema)
    counted = found.agg(F.count("*"), F.countDistinct("k"), F.min("number"), F.max("number"))
    assert tuple(counted.first()) == (200_000, 200_000, 200_000, 399_999)
    notes = [tuple(map(int, one.read_text().split())) for one in tmp_path.iterdir()]
    assert len(notes) == 3
    for most, spilled, left in notes:
        # A batch from Spark, and one for Spark, stand beside what is buffered.
        assert most < (4 << 20) + 2 * 10_000 * 80 + (2 << 20), most
        assert spilled >= 1
        assert left == 0 or left < spilled  # the other task of the executor may have one


def test_a_limit_leaves_nothing_on_disk(spark):
    rows = spark.range(0, 200_000, 1, 2).selectExpr("id AS k", "repeat('x', 50) AS text")
    stage = BufferedOutput(keys=["k"], max_interval="10min", max_buffered_bytes=1 << 20)
    assert len(rows.mapInArrow(stage, rows.schema).limit(5).collect()) == 5

    def left(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch({"left": [len(scratch())]})

    found = spark.range(0, 8, 1, 8).mapInArrow(left, "left bigint").collect()
    assert {row.left for row in found} == {0}


def test_every_kind_of_column_comes_back(spark):
    rows = spark.range(0, 100, 1, 1).selectExpr(
        "id % 3 AS k",
        "timestamp_micros(id * 1000001) AS instant",
        "CAST('2020-02-02 02:02:02' AS timestamp_ntz) AS local",
        "CAST(id AS decimal(30, 3)) AS amount",
        "array(named_struct('a', id, 'b', map('x', unhex(hex(id))))) AS nested",
        "parse_json('{\"a\": 1}') AS variant",
        "INTERVAL '1' DAY * id AS span",
        "CAST(NULL AS double) AS missing",
    )
    stage = BufferedOutput(keys=["k"], max_interval="10min")
    found = rows.mapInArrow(stage, rows.schema).orderBy("instant").collect()
    assert str(found) == str(rows.filter("id > 96").orderBy("instant").collect())


def test_errors_name_what_was_found(spark, updates):
    stage = BufferedOutput(keys=["page"], max_interval="10min")
    rows = spark.range(0, 10, 1, 1)
    with pytest.raises(PySparkException, match=r"SchemaError.*'page' is not there"):
        rows.mapInArrow(stage, rows.schema).count()
    alone = BufferedOutput(max_interval="10min", parallelism=1)
    rows = spark.range(0, 10, 1, 2)
    with pytest.raises(PySparkException, match=r"parallelism=1, but this is Spark partition 1"):
        rows.mapInArrow(alone, rows.schema).count()
    found = updates.coalesce(1).mapInArrow(alone, updates.schema).collect()
    assert [row.number for row in found] == [ROWS - 1]


@guarantee("buffered stage")
def test_in_a_stream_each_micro_batch_gives_one_row_per_key(spark, tmp_path):
    source, batches, keys = tmp_path / "in", 4, 50
    for number in range(batches):
        rows = spark.range(number * 1_000, (number + 1) * 1_000, 1, 1)
        rows.selectExpr(f"id % {keys} AS k", "id AS number").write.mode("append").parquet(
            str(source)
        )
    stage = BufferedOutput(keys=["k"], max_interval="10min")
    updates = (
        spark.readStream.schema("k bigint, number bigint")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
    )
    query = (
        updates.repartition(2, "k")
        .mapInArrow(stage, updates.schema)
        .writeStream.format("memory")
        .queryName("buffered_updates")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    found = spark.table("buffered_updates")
    assert found.count() == batches * keys
    final = found.groupBy("k").agg(F.max("number").alias("number")).orderBy("k").collect()
    assert [row.number for row in final] == list(range(3_950, 4_000))
    spark.catalog.dropTempView("buffered_updates")
