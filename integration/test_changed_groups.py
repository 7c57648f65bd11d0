"""``map_groups(since="last")`` in tasks of Spark, with frames: equal to ``applyInPandas``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST, assert_same_rows
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "customer bigint, day date, orders bigint, spent double"


def features(key: tuple[Any, ...], orders: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each day of a customer, and none for those who spent little."""
    if orders["price"].sum() < 20:
        return pd.DataFrame({name: [] for name in ("customer", "day", "orders", "spent")})
    days = orders.groupby("day")["price"].agg(["count", "sum"]).reset_index()
    days.columns = ["day", "orders", "spent"]
    return days.assign(customer=key[0])[["customer", "day", "orders", "spent"]]


def orders(spark: SparkSession, first: int, last: int) -> DataFrame:
    return spark.range(first, last, 1, 3).selectExpr(
        "id * id % 97 AS customer", "id AS number",
        "date_add(DATE'2026-01-01', CAST(id % 7 AS INT)) AS day",
        "CAST(id % 11 AS DOUBLE) AS price",
    )  # fmt: skip


@guarantee("changed groups")
@pytest.mark.parametrize("runs_in_spark", [True, False])
def test_groups_that_changed_are_made_again_by_tasks_of_spark(
    spark: SparkSession, tmp_path: Path, runs_in_spark: bool
) -> None:
    source, result = tmp_path / "orders", tmp_path / "features"
    how = {"keys": "customer", "num_subpartitions": 6, "unique": ["customer", "number"]}
    arrow_shuffle.write_shuffle(orders(spark, 0, 900), source, options=FAST, **how)
    where = spark if runs_in_spark else None

    def compute():
        groups = open_shuffle(source).map_groups(features, SCHEMA, since="last")
        explained = str(groups.explain(where, into=result))
        receipt = groups.write(result, mode="replace_groups", spark=where, options=FAST)
        rows = open_shuffle(source).to_spark(spark)
        expected = rows.groupBy("customer").applyInPandas(features, SCHEMA)
        assert_same_rows(open_shuffle(result).to_spark(spark).toArrow(), expected.toArrow())
        return receipt, explained

    receipt, _ = compute()
    assert "all groups" in receipt.notes[0]
    shuffle = open_shuffle(source)
    shuffle.append(orders(spark, 900, 906), options=FAST)
    shuffle.newest().upsert(orders(spark, 1, 4).selectExpr("*").withColumn("price", _zero()))
    shuffle.newest().delete({"customer": [4]}, options=FAST)
    receipt, explained = compute()
    changed = {number * number % 97 for number in (*range(1, 4), *range(900, 906))} | {4}
    assert f"computed {len(changed)} groups" in receipt.notes[0]
    assert f"computed {len(changed)} groups" in explained
    assert "their rows are in" in explained
    assert explained.startswith("in Spark" if runs_in_spark else "in this process")
    receipt, _ = compute()
    assert receipt.is_repetition
    shuffle.newest().rename_columns({"number": "line"})
    receipt, _ = compute()
    assert receipt.num_rows == 0


def _zero() -> Any:
    from pyspark.sql import functions as F

    return F.lit(0.0)


def test_keys_that_are_null_or_nan_are_groups_that_change(
    spark: SparkSession, tmp_path: Path
) -> None:
    def rows_of(*keys: float | None) -> pa.Table:
        return pa.table({"k": pa.array(keys, pa.float64())})

    def counted(key: tuple[Any, ...], rows: pa.Table) -> pa.Table:
        return pa.table({"k": pa.array([key[0].as_py()], pa.float64()), "n": [rows.num_rows]})

    nan, path, result = float("nan"), tmp_path / "s", tmp_path / "counted"
    first = rows_of(None, nan, 0.0, 1.0)
    arrow_shuffle.write_shuffle(first, path, keys="k", num_subpartitions=3, options=FAST)
    for new in ([], [None, -0.0], [nan]):
        open_shuffle(path).append(rows_of(*new), options=FAST)
        groups = open_shuffle(path).map_groups(counted, "k double, n bigint", since="last")
        receipt = groups.write(result, mode="replace_groups", spark=spark, options=FAST)
        if new:
            assert receipt.num_replaced == len(new)
        expected = open_shuffle(path).aggregate("k", {"n": ("*", "count")})
        found = open_shuffle(result).to_table().to_pylist()  # NaN equals nothing
        assert sorted(map(str, found)) == sorted(map(str, expected.to_table().to_pylist()))
