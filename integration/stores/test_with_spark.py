"""The life of a shuffle in each store with Spark. A docstring is a row of the guide's table."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING, Any

import arrow_shuffle

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.stored_shuffle import StoredShuffle

ROWS = 20_000


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).selectExpr("id % 97 k", "id v")


def source(stored: StoredShuffle) -> dict[str, str]:
    """Options of the data source; those that hide a secret by their name."""
    return {
        f"storage.secret.{name}" if is_secret(name) else f"storage.{name}": value
        for name, value in stored.options.items()
    }


def is_secret(name: str) -> bool:
    return re.search("secret|_key$|token", name) is not None


def check_told(stored: StoredShuffle, *told: object) -> None:
    """No secret is in what Spark and we tell."""
    text = "\n".join(map(str, told))
    for name, value in stored.options.items():
        assert not is_secret(name) or value not in text, name


def plan(frame: DataFrame) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        frame.explain(mode="extended")
        frame.explain(mode="formatted")
    return out.getvalue()


def test_functions(spark, stored):
    """Spark: `write_shuffle`, `to_spark`, filter, aggregation, join, merge"""
    how: dict[str, Any] = {"keys": "k", "num_subpartitions": 8, **stored.given}
    receipt = arrow_shuffle.write_shuffle(rows(spark), stored.path, **how)
    arrow_shuffle.write_shuffle(rows(spark), stored.path, mode="append", **how)
    shuffle = arrow_shuffle.open_shuffle(stored.path, **stored.given)
    read = shuffle.to_spark(spark)
    check_told(stored, receipt, repr(receipt), plan(read))
    assert read.count() == 2 * ROWS
    assert shuffle.select(filter="v < 10").to_spark(spark).count() == 20
    assert shuffle.aggregate("k", {"n": ("*", "count")}).to_spark(spark).count() == 97
    shuffle.merge(spark=spark)
    assert read.count() == 2 * ROWS
    merged = shuffle.newest()
    joined = merged.select("v").join(merged.select("k"), suffixes=("_l", "_r"))
    assert joined.to_spark(spark).count() > ROWS


def test_data_source(spark, stored):
    """Spark: `df.write` and `spark.read`"""
    options = source(stored)
    writer = rows(spark).write.format("arrow_shuffle").options(keys="k", numSubpartitions=8)
    writer = writer.options(**options)
    writer.mode("append").save(stored.path)
    writer.mode("append").save(stored.path)
    read = spark.read.format("arrow_shuffle").options(**options).load(stored.path)
    check_told(stored, plan(read))
    assert read.count() == 2 * ROWS
    writer.mode("overwrite").save(stored.path)
    assert read.count() == 2 * ROWS, "pinned"
    again = spark.read.format("arrow_shuffle").options(**options).load(stored.path)
    assert again.count() == ROWS


def test_streams(spark, stored, tmp_path: Path):
    """Spark: sink and source of streams, a consumer of their result"""
    options = source(stored)
    files = str(tmp_path / "in")
    rows(spark).repartition(3).write.parquet(files)
    schema = rows(spark).schema
    sink = spark.readStream.schema(schema).parquet(files).writeStream.format("arrow_shuffle")
    sink = sink.options(keys="k", numSubpartitions=4, resultType="PIPELINED", **options)
    sink = sink.option("checkpointLocation", str(tmp_path / "one"))
    query = sink.trigger(availableNow=True).start(stored.path)
    query.awaitTermination(120)
    check_told(stored, query.recentProgress, query.exception())
    seen: list[int] = []
    stream = spark.readStream.format("arrow_shuffle").options(**options).load(stored.path)
    reader = stream.writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
    reader = reader.option("checkpointLocation", str(tmp_path / "two"))
    query = reader.trigger(availableNow=True).start()
    query.awaitTermination(120)
    check_told(stored, query.recentProgress, query.exception())
    assert sum(seen) == ROWS
    with arrow_shuffle.consume(spark, stored.path, consumer="c", **stored.given) as consumption:
        assert consumption.read().count() == ROWS


def test_doctor(spark, stored):
    """Spark: doctor"""
    report = arrow_shuffle.check_environment(spark, stored.path, **stored.given)
    check_told(stored, report, repr(report))
    assert report.ok, report
