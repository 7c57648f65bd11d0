"""Which process of Spark asks a store whether commits are safe there, and what it says if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import arrow_shuffle
from arrow_format.storage.put_probe import PROBE_DIRECTORY, ROUNDS, WRITERS
from arrow_shuffle import open_shuffle
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.s3_server import S3Server
    from tests.support.store_server import Request

N = 5


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, 1_000, 1, 4).selectExpr("id % 17 k", "id v")


def stored(s3: S3Server) -> dict[str, str]:
    return {f"storage.{name}": value for name, value in s3.options.items()}


def by_function(frame: DataFrame, path: str, s3: S3Server, _: Path) -> None:
    arrow_shuffle.write_shuffle(
        frame, path, keys="k", num_subpartitions=N, mode="append", storage_options=s3.options
    )


def by_data_source(frame: DataFrame, path: str, s3: S3Server, _: Path) -> None:
    writer = frame.write.format("arrow_shuffle").options(keys="k", numSubpartitions=N)
    writer.options(**stored(s3)).mode("append").save(path)


def by_stream(frame: DataFrame, path: str, s3: S3Server, directory: Path) -> None:
    files = str(directory / "files")
    for _ in range(3):
        frame.coalesce(1).write.mode("append").parquet(files)
    stream = frame.sparkSession.readStream.schema(frame.schema).option("maxFilesPerTrigger", 1)
    writer = stream.parquet(files).writeStream.format("arrow_shuffle")
    writer = writer.options(keys="k", numSubpartitions=N, **stored(s3))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start(path)
    assert query.awaitTermination(120)


WAYS: dict[str, Any] = {
    "write_shuffle": by_function,
    "df.write": by_data_source,
    "writeStream": by_stream,
}


def probes(requests: Sequence[Request]) -> int:
    """Return how often a store was asked."""
    puts = [one for one in requests if one.method == "PUT" and PROBE_DIRECTORY in one.path]
    return len(puts) // (WRITERS * ROUNDS)


@guarantee("few requests")
@pytest.mark.parametrize("way", WAYS)
def test_one_process_of_a_write_asks_and_the_others_know(
    spark: SparkSession, s3: S3Server, tmp_path: Path, way: str
):
    bucket = s3.new_bucket()
    with s3.requests(bucket) as requests:
        WAYS[way](rows(spark), f"s3://{bucket}/a", s3, tmp_path)
    read = open_shuffle(f"s3://{bucket}/a", storage_options=s3.options).to_spark(spark)
    assert read.count() == (3_000 if way == "writeStream" else 1_000)
    if way == "writeStream":  # each process of tasks, of which three batches of one task have few
        assert 1 <= probes(requests) <= 3
    else:
        assert probes(requests) == 1
    assert not [key for key in s3.keys(bucket) if PROBE_DIRECTORY in key]


@guarantee("atomic conditions")
@exhaustive()
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["careless", "racy"])
def test_nothing_is_left_on_a_store_on_which_commits_are_not_safe(
    spark: SparkSession, s3: S3Server, tmp_path: Path, way: str, kind: str
):
    bucket = s3.new_bucket(kind)
    with pytest.raises(Exception, match=r"the condition of a put \(If-None-Match\)") as error:
        WAYS[way](rows(spark), f"s3://{bucket}/a", s3, tmp_path)
    assert "not known" not in str(error.value)
    assert s3.keys(bucket) == []
