"""The same operations in Spark's tasks and without Spark: rows, types, functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.programs.datasets import lineitem, orders
from integration.programs.ways import FAST, assert_same_rows
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

N = 30
FEW = {"target_partition_bytes": 200_000}
"""Several tasks."""


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TPC-H ``lineitem`` and ``orders``, with a timestamp and a column that may be null."""
    home = tmp_path_factory.mktemp("kept")
    items = spark.read.parquet(str(lineitem(0.02))).selectExpr(
        "*", "CAST(l_shipdate AS timestamp) + INTERVAL 5 HOURS AS at", "nullif(l_tax, 0) AS tax"
    )
    for name, rows, key in (
        ("items", items, "l_orderkey"),
        ("orders", spark.read.parquet(str(orders(0.02))), "o_orderkey"),
    ):
        arrow_shuffle.write_shuffle(rows, home / name, keys=key, num_subpartitions=N, options=FAST)
    return home


@guarantee("operations in one process")
@pytest.mark.parametrize("how", ["inner", "full", "anti"])
def test_a_join(spark: SparkSession, kept: Path, how: str):
    items = open_shuffle(kept / "items").select(filter="at >= '1995-03-15 05:00'")
    few = open_shuffle(kept / "orders").select(filter="o_orderpriority < '3'")
    joined = items.join(few, [("l_orderkey", "o_orderkey")], how)
    found = joined.to_spark(spark, **FEW).toArrow()
    zone = spark.conf.get("spark.sql.session.timeZone")
    table = joined.read(**FEW, time_zone=zone).read_all()
    assert table.schema.equals(found.schema)
    assert_same_rows(table, found)


@guarantee("operations in one process")
def test_an_aggregation(spark: SparkSession, kept: Path):
    asked = {
        "n": ("*", "count"), "most": ("l_extendedprice", "max"), "tax": ("tax", "sum"),
        "mean": ("tax", "avg"), "first": ("at", "min"), "modes": ("l_shipmode", "count_distinct"),
    }  # fmt: skip
    groups = open_shuffle(kept / "items").aggregate("l_orderkey", asked)
    found = groups.to_spark(spark, **FEW).toArrow()
    table = groups.read(**FEW).read_all()
    assert table.schema.equals(found.schema)
    assert_same_rows(table, found)


def evening(subpartition: int, items: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Hours as the function sees them, in the session's time zone."""
    for batch in items:
        hours = pc.hour(batch["at"]).cast(pa.int32())
        ids = pa.array([subpartition] * batch.num_rows, pa.int32())
        columns = [batch["l_orderkey"], hours, ids, batch["at"]]
        yield pa.RecordBatch.from_arrays(columns, ["l_orderkey", "hour", "subpartition", "at"])


SCHEMA = pa.schema(
    {
        "l_orderkey": pa.int64(), "hour": pa.int32(), "subpartition": pa.int32(),
        "at": pa.timestamp("us", "UTC"),
    }
)  # fmt: skip


@guarantee("operations in one process")
def test_a_function_per_subpartition(spark: SparkSession, kept: Path, tmp_path: Path):
    mapped = open_shuffle(kept / "items").map_subpartitions(evening, SCHEMA)
    zone = spark.conf.get("spark.sql.session.timeZone")
    found = mapped.to_spark(spark, **FEW).toArrow()
    table = mapped.read(**FEW, time_zone=zone).read_all()
    assert table["subpartition"].to_pylist() == found["subpartition"].to_pylist()
    assert_same_rows(table, found)
    mapped.write(tmp_path / "spark", options=FAST, **FEW, spark=spark)
    mapped.write(tmp_path / "here", options=FAST, **FEW, time_zone=zone)
    spark_s, here_s = (open_shuffle(tmp_path / out) for out in ("spark", "here"))
    assert here_s.subpartition_rows.equals(spark_s.subpartition_rows)
    assert here_s.schema.equals(spark_s.schema)
    back = spark.read.format("arrow_shuffle").load(str(tmp_path / "here"))
    assert_same_rows(back.toArrow().select(table.schema.names), table)
