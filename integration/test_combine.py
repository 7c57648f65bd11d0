"""Combined shuffles on real Spark: sums as Spark's SQL has them, through every way in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import OptionError, SchemaError
from arrow_shuffle import open_shuffle
from integration.programs.datasets import lineitem
from integration.programs.ways import FAST, assert_same_rows
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

KEY = "l_suppkey"
COMBINE = {"l_quantity": "sum", "l_extendedprice": "sum", "l_shipdate": "min", "n": "sum",
           "price": "max", "l_comment": "max"}  # fmt: skip
TEXT = ", ".join(f"{name}:{function}" for name, function in COMBINE.items())


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Few suppliers, so that keys repeat; columns whose sums Spark widens."""
    table = spark.read.parquet(str(lineitem(0.01)))
    price = F.col("l_extendedprice").cast("double").alias("price")
    columns = ["l_quantity", "l_extendedprice", "l_shipdate", "l_comment"]
    frame = table.select(KEY, *columns, F.lit(1).cast("int").alias("n"), price)
    return frame.repartition(3).persist()


def expected(rows: DataFrame) -> DataFrame:
    functions = [getattr(F, function)(name).alias(name) for name, function in COMBINE.items()]
    return rows.groupBy(KEY).agg(*functions)


def completed(spark: SparkSession, path: Path) -> DataFrame:
    named = {name: (name, function) for name, function in COMBINE.items()}
    return open_shuffle(str(path)).aggregate(KEY, named).to_spark(spark)


def check(spark: SparkSession, path: Path, wanted: DataFrame, times: int = 1) -> None:
    shuffle = open_shuffle(path)
    assert shuffle.combine == COMBINE
    assert shuffle.num_rows <= times * 3 * 100, "one row per supplier and map task"
    found = completed(spark, path)
    assert found.schema.simpleString() == wanted.schema.simpleString()
    assert_same_rows(found.toArrow(), wanted.toArrow())


@guarantee("combined rows")
def test_every_way_in_gives_the_sums_of_spark(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    wanted = expected(rows)
    arrow_shuffle.write_shuffle(
        rows, tmp_path / "frame", keys=KEY, num_subpartitions=8, combine=COMBINE, options=FAST
    )
    check(spark, tmp_path / "frame", wanted)
    writer = rows.write.format("arrow_shuffle").options(keys=KEY, numSubpartitions=8)
    writer.option("combine", TEXT).mode("append").save(str(tmp_path / "source"))
    check(spark, tmp_path / "source", wanted)
    rows.write.parquet(str(tmp_path / "files"))
    files = ds.dataset(tmp_path / "files")
    arrow_shuffle.write_shuffle(
        files, tmp_path / "lane", keys=KEY, num_subpartitions=8, combine=COMBINE, options=FAST,
        spark=spark, num_map_tasks=3,
    )  # fmt: skip
    check(spark, tmp_path / "lane", wanted)
    back = spark.read.format("arrow_shuffle").load(str(tmp_path / "lane"))
    assert back.schema["n"].dataType.simpleString() == "bigint"
    assert back.schema["l_quantity"].dataType == wanted.schema["l_quantity"].dataType


def test_appends_take_over_what_is_combined(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    arrow_shuffle.write_shuffle(
        rows, tmp_path / "x", keys=KEY, num_subpartitions=8, combine=COMBINE, options=FAST
    )
    open_shuffle(tmp_path / "x").append(rows, options=FAST)
    rows.write.format("arrow_shuffle").mode("append").save(str(tmp_path / "x"))
    check(spark, tmp_path / "x", expected(rows.union(rows).union(rows)), times=3)
    with pytest.raises(SchemaError, match="cannot append"):
        arrow_shuffle.write_shuffle(
            rows, tmp_path / "x", keys=KEY, num_subpartitions=8, mode="append", options=FAST
        )


def test_partial_results_are_not_counted(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    arrow_shuffle.write_shuffle(
        rows, tmp_path / "x", keys=KEY, num_subpartitions=8, combine=COMBINE, options=FAST
    )
    for asked in ({"*": "count"}, {"l_quantity": "avg"}):
        with pytest.raises(OptionError, match="written with combine"):
            open_shuffle(str(tmp_path / "x")).aggregate(KEY, asked).to_spark(spark)
    with pytest.raises(OptionError, match="filter"):
        open_shuffle(str(tmp_path / "x")).select(filter="price > 7").aggregate(
            KEY, {"n": "sum"}
        ).to_spark(spark)


def test_a_column_that_is_neither_key_nor_combined_is_named(
    rows: DataFrame, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="column 'price' is neither a key nor combined"):
        arrow_shuffle.write_shuffle(
            rows.select(KEY, "n", "price"), tmp_path / "x", keys=KEY, num_subpartitions=8,
            combine={"n": "sum"},
        )  # fmt: skip


def test_collations_and_flush_intervals_are_refused(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    collated = rows.select(KEY, F.expr("l_comment COLLATE UNICODE_CI AS c"))
    with pytest.raises(SchemaError, match="has the collation UNICODE_CI"):
        arrow_shuffle.write_shuffle(
            collated, tmp_path / "x", keys=KEY, num_subpartitions=8, combine={"c": "max"}
        )
    rows.select(KEY, "n").write.parquet(str(tmp_path / "files"))
    stream = spark.readStream.schema(rows.select(KEY, "n").schema).parquet(str(tmp_path / "files"))
    query = (
        stream.writeStream.format("arrow_shuffle")
        .options(keys=KEY, numSubpartitions=8, combine="n:sum")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    query.start(str(tmp_path / "sums")).awaitTermination()
    found = open_shuffle(str(tmp_path / "sums")).aggregate(KEY, {"n": ("n", "sum")}).to_spark(spark)
    wanted = rows.groupBy(KEY).agg(F.sum("n").alias("n"))
    assert_same_rows(found.toArrow(), wanted.toArrow())
    with pytest.raises(Exception, match=r"option combine: with flush\.maxInterval"):
        query.option("flush.maxInterval", "1s").option(
            "checkpointLocation", str(tmp_path / "other")
        ).start(str(tmp_path / "latest")).awaitTermination()


@guarantee("one attempt")
def test_a_task_that_is_tried_again_counts_once(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    marker = str(tmp_path / "failed")

    def fails_once(batches):  # type: ignore[no-untyped-def]
        import os

        yield from batches
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        msg = "after all rows"
        raise RuntimeError(msg)

    tried = rows.mapInArrow(fails_once, rows.schema)
    arrow_shuffle.write_shuffle(
        tried, tmp_path / "x", keys=KEY, num_subpartitions=8, combine=COMBINE, options=FAST
    )
    assert max(output.attempt for output in open_shuffle(tmp_path / "x").map_outputs) > 0
    check(spark, tmp_path / "x", expected(rows))
