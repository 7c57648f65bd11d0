"""TPC-H Q3, Q5 and Q18 from kept shuffles, written in between only where keys change, and as SQL.

Each returns the DataFrame of its last step, which is not computed yet; the steps before are. The
result is neither sorted nor limited, on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import arrow_shuffle
from arrow_format import BroadcastPartitioner
from arrow_shuffle import open_shuffle
from integration.programs.datasets import lineitem, orders, tpch_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PRICE = ["l_extendedprice", "l_discount"]
REVENUE = "CAST(sum(l_extendedprice * (1 - l_discount)) AS decimal(38,4)) AS revenue"

SQL = {
    "Q3": (
        f"SELECT l_orderkey, o_orderdate, o_shippriority, {REVENUE} "
        "FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' "
        "AND c_custkey = o_custkey AND l_orderkey = o_orderkey "
        "AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' GROUP BY 1, 2, 3"
    ),
    "Q5": (
        f"SELECT n_name, {REVENUE} "
        "FROM customer, orders, lineitem, supplier, nation, region WHERE c_custkey = o_custkey "
        "AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey "
        "AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA' "
        "AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01' GROUP BY n_name"
    ),
    "Q18": (
        "SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS "
        "quantity FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM "
        "lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > {quantity}) AND c_custkey = "
        "o_custkey AND o_orderkey = l_orderkey GROUP BY 1, 2, 3, 4, 5"
    ),
}
"""Queries by name; the quantity of Q18 is to be filled in, 300 in the standard's example."""


def register_tables(spark: SparkSession, scale: float) -> None:
    """Make views of the tables' Parquet files."""
    paths = {"lineitem": lineitem(scale), "orders": orders(scale)}
    for name in ("customer", "supplier", "nation", "region"):
        paths[name] = tpch_table(name, scale)
    for name, path in paths.items():
        spark.read.parquet(str(path)).createOrReplaceTempView(name)


def keep(spark: SparkSession, home: Path, scale: float, num_subpartitions: int, **how: Any) -> None:  # noqa: ANN401
    """Write the shuffles that the queries begin with: three tables whole, and suppliers of Asia.

    Orders and customers are kept by customer, lines by order; needs the views.
    """
    for name, table, key in [
        ("lineitem", lineitem(scale), "l_orderkey"),
        ("orders", orders(scale), "o_custkey"),
        ("customer", tpch_table("customer", scale), "c_custkey"),
    ]:
        arrow_shuffle.write_shuffle(
            ds.dataset(table), home / name, keys=key, num_subpartitions=num_subpartitions,
            spark=spark, **how,
        )  # fmt: skip
    asia = spark.sql(
        "SELECT s_suppkey, s_nationkey, n_name FROM supplier JOIN nation ON s_nationkey = "
        "n_nationkey JOIN region ON n_regionkey = r_regionkey WHERE r_name = 'ASIA'"
    )
    everyone = BroadcastPartitioner()
    arrow_shuffle.write_shuffle(
        asia, home / "asia", partitioner=everyone, num_subpartitions=1, **how
    )


def q3(spark: SparkSession, home: Path, out: Path, **how: Any) -> DataFrame:  # noqa: ANN401
    """Two joins and an aggregation by three columns, without an exchange.

    ``how`` are options of each step, here and below; results are written below ``out``.
    """
    columns = ["o_orderdate", "o_shippriority"]
    early = open_shuffle(home / "orders").select(
        "o_orderkey", *columns, filter="o_orderdate < DATE '1995-03-15'"
    )
    builders = open_shuffle(home / "customer").select(filter="c_mktsegment = 'BUILDING'")
    early.join(builders, on=[("o_custkey", "c_custkey")], how="semi").write(
        out / "orders", keys="o_orderkey", spark=spark, **how
    )
    late = open_shuffle(home / "lineitem").select(
        "l_orderkey", *PRICE, filter="l_shipdate > DATE '1995-03-15'"
    )
    sold = late.join(
        open_shuffle(out / "orders").select(*columns),
        on=[("l_orderkey", "o_orderkey")],
        then=_discounted("l_orderkey", *columns),
        schema="l_orderkey bigint, o_orderdate date, o_shippriority int, part decimal(38,4)",
    )
    sums = sold.aggregate(["l_orderkey", *columns], {"revenue": ("part", "sum")})
    return sums.to_spark(spark, **_reading(how))


def q5(spark: SparkSession, home: Path, out: Path, **how: Any) -> DataFrame:  # noqa: ANN401
    """Three joins; the last aggregation has the one exchange, of partial sums of each nation."""
    of_year = open_shuffle(home / "orders").select(
        "o_orderkey", filter="o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'"
    )
    customers = open_shuffle(home / "customer").select("c_nationkey")
    of_year.join(customers, on=[("o_custkey", "c_custkey")]).write(
        out / "customers", keys="o_orderkey", spark=spark, **how
    )
    lines = open_shuffle(home / "lineitem").select("l_suppkey", *PRICE)
    parts = (
        open_shuffle(out / "customers")
        .join(lines, on=[("o_orderkey", "l_orderkey")])
        .join(
            open_shuffle(home / "asia").select("n_name"),
            on=[("l_suppkey", "s_suppkey"), ("c_nationkey", "s_nationkey")],
            then=_discounted("n_name"),
            schema="n_name string, part decimal(38,4)",
        )
        .to_spark(spark, **_reading(how))
    )
    sums = parts.groupBy("n_name").agg({"part": "sum"})
    return sums.withColumnRenamed("sum(part)", "revenue")


def q18(
    spark: SparkSession,
    home: Path,
    out: Path,
    quantity: int = 300,
    **how: Any,  # noqa: ANN401
) -> DataFrame:
    """An aggregation by order, a join by order, and one by customer, without an exchange."""
    ordered = ["o_orderkey", "o_orderdate", "o_totalprice"]
    open_shuffle(home / "orders").select("o_custkey", *ordered).write(
        out / "by_order", keys="o_orderkey", spark=spark, **how
    )
    sums = open_shuffle(home / "lineitem").aggregate(
        "l_orderkey", {"quantity": ("l_quantity", "sum")}
    )
    open_shuffle(out / "by_order").join(
        sums.select("quantity", filter=f"quantity > {quantity}"),
        on=[("o_orderkey", "l_orderkey")],
    ).write(out / "large", keys="o_custkey", spark=spark, **how)
    large = open_shuffle(out / "large").select(*ordered, "quantity")
    named = open_shuffle(home / "customer").select("c_name", "c_custkey")
    return named.join(large, on=[("c_custkey", "o_custkey")]).to_spark(spark, **_reading(how))


QUERIES: dict[str, Callable[..., DataFrame]] = {"Q3": q3, "Q5": q5, "Q18": q18}


def _reading(how: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a step whose result is not written."""
    return {name: value for name, value in how.items() if name != "options"}


def _discounted(*names: str) -> Callable[[pa.RecordBatchReader], Iterator[pa.RecordBatch]]:
    """Return a function that keeps some joined columns and multiplies price and discount."""

    def then(joined: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        one = pa.scalar(1, pa.decimal128(3, 0))
        for batch in joined:
            revenue = pc.multiply(
                batch["l_extendedprice"], pc.subtract(one, batch["l_discount"])
            ).cast(pa.decimal128(38, 4))
            columns = [batch[name] for name in names]
            yield pa.RecordBatch.from_arrays([*columns, revenue], [*names, "part"])

    return then
