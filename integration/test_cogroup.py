"""A function per key of two kept shuffles against ``cogroup(...).applyInPandas`` of their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST, assert_same_rows

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd
    from pyspark.sql import SparkSession

SCHEMA = "customer bigint, orders bigint, spent double, first timestamp, visits bigint, page string"


def summed(key: tuple[Any, ...], orders: pd.DataFrame, visits: pd.DataFrame) -> pd.DataFrame:
    """Return a row of a customer, of what there is."""
    import pandas as pd

    row = {
        "customer": key[0],
        "orders": len(orders),
        "spent": orders["price"].sum(),
        "first": orders["at"].min(),
        "visits": len(visits),
        "page": visits["page"].max() if len(visits) else None,
    }
    return pd.DataFrame([row])


def test_the_result_is_that_of_cogroup_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    orders = spark.range(0, 3_000, 1, 3).selectExpr(
        "IF(id % 50 = 7, NULL, id % 97) AS customer",
        "CAST(id % 11 AS DOUBLE) AS price",
        "timestamp_seconds(1700000000 + id) AS at",
    )
    visits = spark.range(0, 1_000, 1, 2).selectExpr(
        "IF(id % 40 = 3, NULL, id % 131) AS who", "concat('p', id % 13) AS page"
    )
    for name, rows, key in (("orders", orders, "customer"), ("visits", visits, "who")):
        how = {"keys": key, "num_subpartitions": 6, "options": FAST}
        arrow_shuffle.write_shuffle(rows, tmp_path / name, **how)
    kept = [open_shuffle(tmp_path / name) for name in ("orders", "visits")]
    cogroup = kept[0].cogroup(kept[1]).map_groups(summed, SCHEMA)
    pair = orders.groupBy("customer").cogroup(visits.groupBy("who"))
    expected = pair.applyInPandas(summed, SCHEMA).toArrow()
    assert_same_rows(cogroup.to_spark(spark).toArrow(), expected)
    cogroup.write(tmp_path / "made", spark=spark, options=FAST)
    assert_same_rows(open_shuffle(tmp_path / "made").to_spark(spark).toArrow(), expected)
