"""SQL on kept shuffles against the same on Parquet: equal rows, and no exchange by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import arrow_shuffle
from integration.programs.datasets import tpch_table
from integration.programs.planner import (
    NO_BROADCAST,
    PLAIN,
    exchanged,
    final,
    plan_of,
    planning_session,
    rows_of,
)
from integration.programs.tpch_sql import TPCH
from integration.programs.ways import FAST, in_one_order
from tests.support.exhaustive import exhaustive
from tests.support.spark_session import spark_settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SCALE = 0.01
N = 8

KEPT: dict[str, tuple[str, str, int]] = {
    "lineitem": ("lineitem", "l_orderkey", N),
    "orders": ("orders", "o_orderkey", N),
    "customer": ("customer", "c_custkey", N),
    "part": ("part", "p_partkey", N),
    "supplier": ("supplier", "s_suppkey", N),
    "partsupp": ("partsupp", "ps_partkey", N),
    "nation": ("nation", "n_nationkey", N),
    "region": ("region", "r_regionkey", N),
    "orders_by_customer": ("orders", "o_custkey", N),
    "lineitem_by_part": ("lineitem", "l_partkey", N),
    "lineitem_by_both": ("lineitem", "l_partkey l_suppkey", N),
    "partsupp_by_both": ("partsupp", "ps_partkey ps_suppkey", N),
    "orders_of_24": ("orders", "o_orderkey", 3 * N),
    "lineitem_of_24": ("lineitem", "l_orderkey", 3 * N),
    "orders_of_1": ("orders", "o_orderkey", 1),
    "orders_of_3": ("orders", "o_orderkey", 3),
}
"""Shuffles by name: the table, its keys, and n."""


class Query(NamedTuple):
    """SQL, and what is known of the plan where small tables are not broadcast."""

    sql: str
    by: str | None = None
    """Columns of the exchanges; None: the plan is Spark's affair."""


QUERIES: dict[str, Query] = {
    **{name: Query(*query) for name, query in TPCH.items()},
    # Joins of shuffles of equal n.
    "two": Query(
        "SELECT o_orderkey, o_totalprice, l_linenumber FROM orders JOIN lineitem "
        "ON o_orderkey = l_orderkey WHERE l_quantity > 45", "",
    ),
    "three": Query(
        "SELECT a.o_orderkey, b.o_custkey, l_linenumber FROM orders a "
        "JOIN orders b ON a.o_orderkey = b.o_orderkey "
        "JOIN lineitem ON l_orderkey = a.o_orderkey WHERE l_tax = 0.01", "",
    ),
    "four": Query(
        "SELECT count(*), sum(a.o_totalprice + d.o_totalprice) FROM orders a "
        "JOIN orders b ON a.o_orderkey = b.o_orderkey "
        "JOIN orders c ON b.o_orderkey = c.o_orderkey "
        "JOIN orders d ON a.o_orderkey = d.o_orderkey", "",
    ),
    "five": Query(
        "SELECT count(*), sum(l_quantity), min(c.o_orderdate) FROM orders a "
        "JOIN lineitem l ON a.o_orderkey = l.l_orderkey "
        "JOIN orders b ON l.l_orderkey = b.o_orderkey "
        "JOIN orders c ON b.o_orderkey = c.o_orderkey "
        "JOIN orders d ON c.o_orderkey = d.o_orderkey WHERE d.o_orderstatus <> 'P'", "",
    ),
    "by two keys": Query(
        "SELECT ps_partkey, ps_suppkey, ps_supplycost, l_quantity FROM lineitem_by_both "
        "JOIN partsupp_by_both ON l_partkey = ps_partkey AND l_suppkey = ps_suppkey",
    ),
    "by two keys, turned": Query(
        "SELECT count(*), sum(ps_supplycost) FROM partsupp_by_both "
        "JOIN lineitem_by_both ON ps_suppkey = l_suppkey AND ps_partkey = l_partkey",
    ),
    "by one of two keys": Query(
        "SELECT count(*), sum(l_quantity) FROM lineitem_by_both "
        "JOIN partsupp_by_both ON l_partkey = ps_partkey",
        "l_partkey, ps_partkey",
    ),
    "by more than the key": Query(
        "SELECT count(*), sum(ps_availqty) FROM lineitem_by_part "
        "JOIN partsupp ON l_partkey = ps_partkey AND l_suppkey = ps_suppkey",
    ),
    "left": Query(
        "SELECT c_custkey, o_orderkey FROM customer LEFT JOIN orders_by_customer "
        "ON c_custkey = o_custkey", "",
    ),
    "right": Query(
        "SELECT c_custkey, o_orderkey FROM orders_by_customer RIGHT JOIN customer "
        "ON c_custkey = o_custkey AND o_totalprice > 100000", "",
    ),
    "full": Query(
        "SELECT c_custkey, o_orderkey FROM (SELECT * FROM customer WHERE c_custkey % 3 > 0) "
        "FULL JOIN (SELECT * FROM orders_by_customer WHERE o_custkey % 5 > 0) "
        "ON c_custkey = o_custkey", "",
    ),
    "semi": Query(
        "SELECT c_custkey, c_name FROM customer LEFT SEMI JOIN orders_by_customer "
        "ON c_custkey = o_custkey AND o_orderstatus = 'P'", "",
    ),
    "anti": Query(
        "SELECT c_custkey, c_name FROM customer LEFT ANTI JOIN orders_by_customer "
        "ON c_custkey = o_custkey", "",
    ),
    "not in": Query(
        "SELECT c_custkey FROM customer WHERE c_custkey NOT IN "
        "(SELECT o_custkey FROM orders_by_customer)",
    ),
    "exists or": Query(
        "SELECT c_custkey FROM customer WHERE c_acctbal < 0 OR EXISTS "
        "(SELECT * FROM orders_by_customer WHERE o_custkey = c_custkey AND o_orderpriority < '2')",
    ),
    "self, unequal": Query(
        "SELECT count(*), sum(a.l_quantity - b.l_quantity) FROM lineitem a JOIN lineitem b "
        "ON a.l_orderkey = b.l_orderkey AND a.l_linenumber < b.l_linenumber", "",
    ),
    "null keys": Query(
        "SELECT a.k, b.k FROM (SELECT if(o_orderkey % 7 = 0, NULL, o_orderkey) AS k FROM orders) a "
        "FULL JOIN (SELECT if(l_orderkey % 5 = 0, NULL, l_orderkey) AS k FROM lineitem "
        "WHERE l_linenumber = 1) b ON a.k = b.k",
    ),
    "null-safe": Query(
        "SELECT count(*), count(o_orderkey) FROM orders JOIN lineitem "
        "ON o_orderkey <=> l_orderkey WHERE l_linenumber = 2",
    ),
    "shuffled hash": Query(
        "SELECT /*+ SHUFFLE_HASH(o) */ count(*), sum(o_totalprice) FROM orders o JOIN lineitem l "
        "ON o_orderkey = l_orderkey", "",
    ),
    "broadcast by hint": Query(
        "SELECT /*+ BROADCAST(s) */ count(*), sum(s_acctbal) FROM partsupp ps JOIN supplier s "
        "ON ps_suppkey = s_suppkey WHERE s_acctbal > 0", "",
    ),
    # Of k·n: an exchange, and equal rows.
    "n and 3 n": Query(
        "SELECT count(*), sum(o_totalprice) FROM orders_of_24 JOIN lineitem "
        "ON o_orderkey = l_orderkey",
        "l_orderkey, o_orderkey",
    ),
    "n, 3 n, n": Query(
        "SELECT a.o_orderkey, c.o_totalprice FROM orders a "
        "JOIN orders_of_24 b ON a.o_orderkey = b.o_orderkey "
        "JOIN orders c ON b.o_orderkey = c.o_orderkey",
    ),
    "3 n twice, n twice": Query(
        "SELECT count(*), sum(x.q) FROM (SELECT o_orderkey k, l_quantity q FROM orders_of_24 "
        "JOIN lineitem_of_24 ON o_orderkey = l_orderkey) x JOIN (SELECT o_orderkey k FROM orders "
        "JOIN lineitem ON o_orderkey = l_orderkey WHERE l_linenumber = 1) y ON x.k = y.k",
    ),
    "n and 1": Query(
        "SELECT count(*), sum(l_quantity) FROM orders_of_1 JOIN lineitem "
        "ON o_orderkey = l_orderkey",
    ),
    "n and 3": Query(
        "SELECT count(*), sum(l_quantity) FROM orders_of_3 JOIN lineitem "
        "ON o_orderkey = l_orderkey",
        "l_orderkey, o_orderkey",
    ),
    "of 3 alone": Query(
        "SELECT a.o_orderkey, b.o_custkey FROM orders_of_3 a JOIN orders_of_3 b "
        "ON a.o_orderkey = b.o_orderkey", "",
    ),
    # Groups.
    "group": Query(
        "SELECT l_orderkey, sum(l_quantity), count(*) FROM lineitem GROUP BY l_orderkey", "",
    ),
    "group by more": Query(
        "SELECT l_returnflag, l_orderkey, max(l_shipdate) FROM lineitem "
        "GROUP BY l_returnflag, l_orderkey", "",
    ),
    "group by two keys": Query(
        "SELECT l_suppkey, l_partkey, avg(l_discount) FROM lineitem_by_both "
        "GROUP BY l_suppkey, l_partkey",
    ),
    "group by one of two keys": Query(
        "SELECT l_partkey, avg(l_discount) FROM lineitem_by_both GROUP BY l_partkey", "l_partkey"
    ),
    "distinct": Query("SELECT DISTINCT l_orderkey FROM lineitem", ""),
    "count distinct": Query(
        "SELECT l_orderkey, count(DISTINCT l_suppkey), sum(l_quantity) FROM lineitem "
        "GROUP BY l_orderkey", "",
    ),
    "count distinct twice": Query(
        "SELECT l_orderkey, count(DISTINCT l_suppkey), count(DISTINCT l_partkey) FROM lineitem "
        "GROUP BY l_orderkey",
    ),
    "rollup": Query(
        "SELECT l_orderkey, l_linestatus, sum(l_tax) FROM lineitem WHERE l_orderkey < 3000 "
        "GROUP BY ROLLUP (l_orderkey, l_linestatus)",
    ),
    "group, joined": Query(
        "SELECT o_orderkey, o_totalprice, q FROM orders JOIN (SELECT l_orderkey, sum(l_quantity) q "
        "FROM lineitem GROUP BY l_orderkey) ON o_orderkey = l_orderkey WHERE q > 100", "",
    ),
    "joined, grouped by the key": Query(
        "SELECT o_orderkey, sum(l_quantity), min(o_orderdate) FROM orders JOIN lineitem "
        "ON o_orderkey = l_orderkey GROUP BY o_orderkey", "",
    ),
    "outer, grouped by its key": Query(
        "SELECT c_custkey, count(o_orderkey), sum(o_totalprice) FROM customer "
        "LEFT JOIN orders_by_customer ON c_custkey = o_custkey GROUP BY c_custkey", "",
    ),
    "grouping by the key renamed": Query(
        "SELECT k, count(*) FROM (SELECT o_orderkey AS k, o_custkey FROM orders) GROUP BY k", "",
    ),
    "group by a function of the key": Query(
        "SELECT o_orderkey % 100 AS k, count(*) FROM orders GROUP BY 1",
    ),
    # Windows, unions, and the rest.
    "window": Query(
        "SELECT l_orderkey, l_linenumber, rank() OVER (PARTITION BY l_orderkey "
        "ORDER BY l_extendedprice, l_linenumber) AS place FROM lineitem", "",
    ),
    "window over a join": Query(
        "SELECT o_orderkey, l_linenumber, sum(l_quantity) OVER (PARTITION BY o_orderkey) AS q "
        "FROM orders JOIN lineitem ON o_orderkey = l_orderkey WHERE o_orderstatus = 'F'", "",
    ),
    "latest of each": Query(
        "SELECT o_custkey, o_orderkey FROM (SELECT *, row_number() OVER (PARTITION BY o_custkey "
        "ORDER BY o_orderdate DESC, o_orderkey) AS place FROM orders_by_customer) "
        "WHERE place = 1", "",
    ),
    "union": Query(
        "SELECT k, count(*) FROM (SELECT o_orderkey k FROM orders UNION ALL "
        "SELECT l_orderkey k FROM lineitem) GROUP BY k",
    ),
    "union of joins, joined": Query(
        "SELECT count(*), sum(u.k) FROM (SELECT a.o_orderkey k FROM orders a JOIN orders b "
        "ON a.o_orderkey = b.o_orderkey UNION ALL SELECT o_orderkey k FROM orders "
        "WHERE o_orderkey < 0) u JOIN orders c ON u.k = c.o_orderkey",
    ),
    "except, intersect": Query(
        "SELECT o_orderkey FROM orders WHERE o_orderstatus = 'F' EXCEPT "
        "(SELECT l_orderkey FROM lineitem WHERE l_linenumber = 7 INTERSECT "
        "SELECT o_orderkey FROM orders)",
    ),
    "read twice": Query(
        "WITH large AS (SELECT l_orderkey k, sum(l_quantity) q FROM lineitem GROUP BY l_orderkey "
        "HAVING sum(l_quantity) > 200) SELECT a.k, b.q FROM large a JOIN large b ON a.k = b.k", "",
    ),
    "correlated": Query(
        "SELECT o_orderkey, (SELECT max(l_shipdate) FROM lineitem WHERE l_orderkey = o_orderkey) "
        "FROM orders WHERE o_orderpriority = '1-URGENT'", "",
    ),
    "lateral": Query(
        "SELECT o_orderkey, x.first FROM orders, LATERAL (SELECT min(l_linenumber) AS first "
        "FROM lineitem WHERE l_orderkey = o_orderkey AND l_discount > 0.05) x",
    ),
    "one side without rows": Query(
        "SELECT o_orderkey, l_linenumber FROM orders LEFT JOIN "
        "(SELECT * FROM lineitem WHERE l_quantity < 0) ON o_orderkey = l_orderkey", "",
    ),
    "one key on one side": Query(
        "SELECT o_orderkey, l_linenumber FROM (SELECT * FROM orders WHERE o_orderkey = 1924) "
        "JOIN lineitem ON o_orderkey = l_orderkey",
    ),
    "few keys on one side": Query(
        "SELECT o_orderkey, l_linenumber FROM (SELECT * FROM orders WHERE o_orderkey "
        "IN (1, 2, 3, 32, 33, 34, 35, 7, 1924)) LEFT JOIN lineitem ON o_orderkey = l_orderkey",
    ),
    "pivot": Query(
        "SELECT * FROM (SELECT o_orderstatus, o_orderpriority, o_totalprice FROM orders) "
        "PIVOT (sum(o_totalprice) FOR o_orderstatus IN ('F', 'O', 'P'))",
    ),
    "cross": Query(
        "SELECT n_name, r_name FROM nation CROSS JOIN region WHERE n_regionkey <> r_regionkey",
    ),
    "limit": Query("SELECT count(*) FROM (SELECT * FROM lineitem LIMIT 1000)"),
    "order and limit": Query(
        "SELECT * FROM (SELECT l_orderkey, l_linenumber, l_shipdate FROM lineitem "
        "ORDER BY l_shipdate DESC, l_orderkey, l_linenumber LIMIT 50)", "",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(spark: SparkSession) -> SparkSession:
    """A session in which the names are Parquet files."""
    session = spark.newSession()
    for name, (table, _, _) in KEPT.items():
        session.read.parquet(str(tpch_table(table, SCALE))).createOrReplaceTempView(name)
    return session


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as shuffles, each in two versions."""
    directory = tmp_path_factory.mktemp("warehouse")
    for name, (table, keys, n) in KEPT.items():
        rows = pq.read_table(tpch_table(table, SCALE))
        for some in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            arrow_shuffle.write_shuffle(
                some, directory / name, keys=keys.split(), num_subpartitions=n, mode="append",
                options=FAST,
            )  # fmt: skip
    return directory


@pytest.fixture(scope="module")
def shuffles(spark: SparkSession, warehouse: Path) -> SparkSession:
    """A session in which the names are the shuffles."""
    return planning_session(spark, warehouse)


@pytest.fixture(scope="module")
def expected() -> dict[str, pa.Table]:
    """Rows of queries on Parquet, once they were asked for."""
    return {}


def table_of(df: DataFrame) -> pa.Table:
    """Return the rows in an order of their own; some columns have the same name."""
    rows = df.toArrow()
    return in_one_order(rows.rename_columns([f"c{i}" for i in range(rows.num_columns)]))


def on_files(name: str, files: SparkSession, known: dict[str, pa.Table]) -> pa.Table:
    if name not in known:
        known[name] = table_of(files.sql(QUERIES[name].sql))
    return known[name]


MODES: dict[str, dict[str, str]] = {
    "planned": PLAIN,
    "adaptive": NO_BROADCAST,
    "by default": {},
}


@exhaustive("name", "mode")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_has_the_rows_of_parquet(
    shuffles: SparkSession,
    files: SparkSession,
    expected: dict[str, pa.Table],
    name: str,
    mode: str,
) -> None:
    query = QUERIES[name]
    with spark_settings(shuffles, MODES[mode]):
        df = shuffles.sql(query.sql)
        found = table_of(df)
        plan = plan_of(df)
    assert found.equals(on_files(name, files, expected)), plan
    assert len(found), "a query without rows compares nothing"
    assert "BatchScan" in plan or "ResultQueryStage" in plan
    if mode == "planned" and query.by is not None:
        by = sorted(tuple(columns.split()) for columns in query.by.split(", ") if columns)
        assert exchanged(plan) == by, plan


def test_there_are_sixty_queries() -> None:
    assert len(QUERIES) >= 60
    assert sum(query.by == "" for query in QUERIES.values()) >= 30


def test_cached_tables_are_joined(shuffles: SparkSession, files: SparkSession) -> None:
    sql = (
        "SELECT o_orderkey, count(*) FROM orders JOIN lineitem ON o_orderkey = l_orderkey "
        "GROUP BY o_orderkey"
    )
    with spark_settings(shuffles, PLAIN):
        shuffles.sql("CACHE TABLE orders")
        try:
            df = shuffles.sql(sql)
            found = rows_of(df)
            assert "Scan In-memory table orders" in plan_of(df)
            view = shuffles.table("lineitem").where("l_tax > 0.02").cache()
            assert view.groupBy("l_orderkey").count().count() == (
                files.table("lineitem").where("l_tax > 0.02").select("l_orderkey").distinct()
            ).count()  # fmt: skip
            view.unpersist()
        finally:
            shuffles.sql("UNCACHE TABLE orders")
    assert found == rows_of(files.sql(sql))


def test_one_side_is_parquet(shuffles: SparkSession, files: SparkSession) -> None:
    path = tpch_table("lineitem", SCALE)
    sql = (
        "SELECT o_orderkey, sum(l_quantity) FROM orders JOIN {} ON o_orderkey = l_orderkey "
        "GROUP BY o_orderkey"
    )
    wanted = rows_of(files.sql(sql.format("lineitem")))
    shuffles.read.parquet(str(path)).createOrReplaceTempView("lines_of_parquet")
    for exchanges_one_side in ("false", "true"):
        settings = PLAIN | {"spark.sql.sources.v2.bucketing.shuffle.enabled": exchanges_one_side}
        with spark_settings(shuffles, settings):
            df = shuffles.sql(sql.format("lines_of_parquet"))
            assert rows_of(df) == wanted, plan_of(df)


@pytest.mark.parametrize("num_ranges", [1, 2, 3, 5, 8, 100])
def test_any_number_of_ranges_gives_the_same_rows(
    spark: SparkSession, files: SparkSession, warehouse: Path, num_ranges: int
) -> None:
    session = planning_session(spark, warehouse, PLAIN, num_ranges=num_ranges)
    df = session.sql(QUERIES["two"].sql)
    assert rows_of(df) == rows_of(files.sql(QUERIES["two"].sql))
    assert exchanged(plan_of(df)) == ([("l_orderkey",), ("o_orderkey",)] if num_ranges == 1 else [])


# What a plan says --------------------------------------------------------------------------------


def test_exchanges_of_a_plan_are_counted_by_their_columns() -> None:
    plan = """\
AdaptiveSparkPlan isFinalPlan=true
+- == Final Plan ==
   ResultQueryStage 1
   +- *(3) HashAggregate(keys=[a#1L], functions=[count(1)])
      +- AQEShuffleRead coalesced
         +- ShuffleQueryStage 0
            +- Exchange hashpartitioning(a#1L, b_2#7, 4), ENSURE_REQUIREMENTS, [plan_id=45]
               +- *(1) SortMergeJoin [a#1L], [k#3L], Inner
                  :- BatchScan shuffles.orders[a#1L]
                  +- Exchange SinglePartition, ENSURE_REQUIREMENTS
                     +- BroadcastExchange HashedRelationBroadcastMode(List(k#3L))
+- == Initial Plan ==
   HashAggregate(keys=[a#1L], functions=[count(1)])
   +- Exchange hashpartitioning(a#1L, 4), ENSURE_REQUIREMENTS, [plan_id=12]
      +- ReusedExchange [k#3L], Exchange hashpartitioning(k#3L, 4)
"""
    assert exchanged(final(plan)) == [("a", "b_2")]
    assert exchanged(plan) == [("a",), ("a", "b_2")]
    keyed = "Exchange keyedpartitioning(transformexpression(Bound, o_orderkey#4L), 4)"
    assert exchanged(f":  +- {keyed}\n+- Exchange rangepartitioning(a#1 ASC, 4)") == [
        ("o_orderkey",)
    ]
