"""Versions by number, time and tag through Spark, and writes that expect a version."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from pyspark.errors import PySparkException

import arrow_format
import arrow_shuffle
from arrow_format.errors import CommitConflictError, ShuffleNotFoundError
from arrow_shuffle import open_shuffle
from tests.support.spark_session import SESSION_TIME_ZONE

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

FORMAT = "arrow_shuffle"


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:
    """Version 1 of ten rows, with a tag (number 2), and a second later version 3 of twenty."""
    path = tmp_path / "shuffle"
    arrow_shuffle.write_shuffle(spark.range(10), path, keys="id", num_subpartitions=4)
    arrow_format.tag_shuffle(path, "first")
    time.sleep(1)
    arrow_shuffle.write_shuffle(
        spark.range(10), path, keys="id", num_subpartitions=4, mode="append"
    )
    return path


def rows(frame: DataFrame) -> int:
    return frame.count()


def between(path: Path) -> datetime:
    """Half a second after the first version."""
    entry = arrow_format.open_shuffle(path, 1).snapshot.newest
    return datetime.fromtimestamp(entry.committed_at_ms / 1000, UTC) + timedelta(seconds=0.5)


def test_a_version_by_time_and_tag(spark: SparkSession, path: Path):
    moment = between(path)
    here = moment.astimezone(ZoneInfo(SESSION_TIME_ZONE))
    for version in (here, str(here), moment, moment.isoformat(), "first", 1):
        assert rows(open_shuffle(path, version).to_spark(spark)) == 10
    assert rows(open_shuffle(path, here + timedelta(days=1)).to_spark(spark)) == 20
    with pytest.raises(ShuffleNotFoundError, match="was committed at"):
        open_shuffle(path, here - timedelta(seconds=1)).to_spark(spark)


def test_the_option_takes_times_with_a_zone_and_tags(spark: SparkSession, path: Path):
    moment = between(path).isoformat()
    for version, expected in [(moment, 10), ("first", 10), (1, 10), (3, 20)]:
        frame = spark.read.format(FORMAT).option("version", version).load(str(path))
        assert rows(frame) == expected
        view = f"CREATE OR REPLACE TEMPORARY VIEW v USING {FORMAT} OPTIONS "
        spark.sql(f"{view} (path '{path}', version '{version}')")
        assert spark.sql("SELECT count(*) FROM v").first()[0] == expected
    with pytest.raises(PySparkException, match="expected a time with a zone"):
        spark.read.format(FORMAT).option("version", "2026-11-20 12:00").load(str(path))


def test_writes_that_expect_a_version(spark: SparkSession, path: Path):
    def write(expected: int) -> None:
        writer = spark.range(5).write.format(FORMAT).option("expectedVersion", expected)
        writer.mode("append").save(str(path))

    write(3)
    assert arrow_format.open_shuffle(path).num_rows == 25
    with pytest.raises(PySparkException, match="expected_version=3: version 3 was followed by"):
        write(3)
    how = {"keys": "id", "num_subpartitions": 4, "mode": "append", "expected_version": 3}
    with pytest.raises(CommitConflictError, match="expected_version=3"):
        arrow_shuffle.write_shuffle(spark.range(5), path, **how)
    task = arrow_shuffle.ShuffleMapTask(
        path, schema=spark.range(5).schema, keys="id", num_subpartitions=4
    )
    statuses = spark.range(5).mapInArrow(task, task.status_schema).collect()
    with pytest.raises(CommitConflictError, match="expected_version=3"):
        arrow_shuffle.commit_shuffle(task, statuses, mode="append", expected_version=3)
    receipt = arrow_shuffle.commit_shuffle(task, statuses, mode="append", expected_version=4)
    assert (receipt.version, arrow_format.open_shuffle(path).num_rows) == (5, 30)
