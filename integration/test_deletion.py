"""Rows that Spark wrote are deleted by key; Spark reads the others, and the bytes are gone."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import WriteOptions, collect_garbage
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST, assert_same_rows

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

N = 12
UNPACKED = WriteOptions(sync=False, codec="none")


@pytest.fixture(scope="module")
def orders(spark: SparkSession) -> DataFrame:
    day = F.date_add(F.lit("2026-01-01").cast("date"), (F.col("id") % 10).cast("int"))
    return spark.range(0, 5_000, numPartitions=4).select(
        F.concat(F.lit("customer-"), F.col("id") % 100).alias("customer"),
        day.alias("day"),
        (F.col("id") * 1.5).alias("price"),
        F.col("id").cast("decimal(20,3)").alias("total"),
    )


def test_rows_of_a_customer_are_deleted_and_spark_reads_the_others(
    orders: DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "orders"
    arrow_shuffle.write_shuffle(
        orders, path, keys="customer", num_subpartitions=N, options=UNPACKED
    )
    arrow_shuffle.write_shuffle(
        orders.where("price > 10"),
        path, keys="customer", num_subpartitions=N, options=UNPACKED, mode="append",
    )  # fmt: skip
    before = open_shuffle(path).to_spark(orders.sparkSession)
    expected = before.where("customer not in ('customer-17', 'customer-42')").toArrow()
    keys = {"customer": ["customer-17", "customer-42", "nobody"]}
    receipt = open_shuffle(path).delete(keys, options=FAST)
    after = open_shuffle(path).to_spark(orders.sparkSession)
    assert_same_rows(after.toArrow(), expected)
    assert receipt.num_rows == before.count() - expected.num_rows > 0
    collect_garbage(path, retention=timedelta(0), compact_log=True)
    assert open_shuffle(path).erasure_status(receipt).is_gone
    content = b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
    assert b"customer-17customer" not in content
    assert b"customer-42customer" not in content
    assert b"customer-18customer" in content
    open_shuffle(path).verify()


def test_keys_of_dates_and_decimals_are_placed_as_spark_places_them(
    orders: DataFrame, tmp_path: Path
) -> None:
    keys = ["day", "total"]
    written = orders.withColumn("total", F.col("total") % 7)
    arrow_shuffle.write_shuffle(
        written, tmp_path / "x", keys=keys, num_subpartitions=N, options=FAST
    )
    chosen = written.select(*keys).distinct().orderBy(*keys).limit(9)
    receipt = open_shuffle(tmp_path / "x").delete(chosen.toArrow(), options=FAST)
    left = written.join(chosen, keys, "left_anti")
    after = open_shuffle(tmp_path / "x").to_spark(orders.sparkSession)
    assert_same_rows(after.toArrow(), left.select(*after.columns).toArrow())
    assert receipt.num_rows == 5_000 - left.count() > 0
