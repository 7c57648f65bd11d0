"""Results that stay partitioned, on a real cluster: TPC-H from kept shuffles, and killed tasks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import connector
from arrow_format import BroadcastPartitioner, HashPartitioner, SchemaError, open_shuffle
from integration.programs.datasets import lineitem, orders, tpch_table
from integration.programs.ways import FAST, assert_same_rows
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

N = 60
SCALE = 0.02


@pytest.fixture(scope="module")
def tpch(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kept shuffles by order and by customer, and views of the same tables for SQL."""
    home = tmp_path_factory.mktemp("tpch")
    paths = {"lineitem": lineitem(SCALE), "orders": orders(SCALE)}
    for name in ("customer", "supplier", "nation", "region"):
        paths[name] = tpch_table(name, SCALE)
    for name, path in paths.items():
        spark.read.parquet(str(path)).createOrReplaceTempView(name)
    for name, table, key in [
        ("lineitem", "lineitem", "l_orderkey"),
        ("orders", "orders", "o_custkey"),
        ("customer", "customer", "c_custkey"),
    ]:
        connector.write_shuffle(
            ds.dataset(paths[table]), home / name, keys=key, num_subpartitions=N, options=FAST,
            spark=spark,
        )  # fmt: skip
    asia = spark.sql(
        "SELECT s_suppkey, s_nationkey, n_name FROM supplier JOIN nation ON s_nationkey = "
        "n_nationkey JOIN region ON n_regionkey = r_regionkey WHERE r_name = 'ASIA'"
    )
    everyone = BroadcastPartitioner()
    connector.write_shuffle(
        asia, home / "asia", partitioner=everyone, num_subpartitions=1, options=FAST
    )
    return home


def plan_of(df: DataFrame) -> str:
    """The physical plan, without what adaptive execution may still change."""
    return str(df._jdf.queryExecution().executedPlan().toString())


def discounted(*names: str) -> object:
    """A reader of joined rows that keeps some columns and multiplies price and discount."""

    def then(joined: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        one = pa.scalar(1, pa.decimal128(3, 0))
        for batch in joined:
            revenue = pc.multiply(
                batch["l_extendedprice"], pc.subtract(one, batch["l_discount"])
            ).cast(pa.decimal128(38, 4))
            columns = [batch[name] for name in names]
            yield pa.RecordBatch.from_arrays([*columns, revenue], [*names, "part"])

    return then


FEW = {"target_partition_bytes": 100_000}
"""Several tasks for each step."""

PRICE = ["l_extendedprice", "l_discount"]


@guarantee("results that stay partitioned")
def test_tpch_q3_without_an_exchange(spark: SparkSession, tpch: Path, tmp_path: Path):
    """Two joins and an aggregation by three columns."""
    open_orders, sold = tmp_path / "orders", tmp_path / "sold"
    connector.join_shuffles(
        spark, tpch / "orders", tpch / "customer", [("o_custkey", "c_custkey")],
        left_columns=["o_orderkey", "o_orderdate", "o_shippriority"], right_columns=[],
        left_filter="o_orderdate < DATE '1995-03-15'", right_filter="c_mktsegment = 'BUILDING'",
        into=open_orders, keys="o_orderkey", options=FAST,
    )  # fmt: skip
    columns = ["l_orderkey", "o_orderdate", "o_shippriority"]
    connector.join_shuffles(
        spark, tpch / "lineitem", open_orders, [("l_orderkey", "o_orderkey")],
        left_columns=["l_orderkey", *PRICE], right_columns=columns[1:],
        left_filter="l_shipdate > DATE '1995-03-15'", then=discounted(*columns),
        schema="l_orderkey bigint, o_orderdate date, o_shippriority int, part decimal(38,4)",
        into=sold, options=FAST, **FEW,
    )  # fmt: skip
    assert open_shuffle(sold).partitioner == HashPartitioner("l_orderkey")
    found = connector.aggregate_shuffle(spark, sold, columns, {"revenue": ("part", "sum")}, **FEW)
    assert "Exchange" not in plan_of(found)
    expected = spark.sql(
        "SELECT l_orderkey, o_orderdate, o_shippriority, "
        "CAST(sum(l_extendedprice * (1 - l_discount)) AS decimal(38,4)) AS revenue "
        "FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' "
        "AND c_custkey = o_custkey AND l_orderkey = o_orderkey "
        "AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' GROUP BY 1, 2, 3"
    )
    assert_same_rows(found.toArrow(), expected.toArrow())
    assert found.count() > 100


@guarantee("results that stay partitioned")
def test_tpch_q5_has_one_exchange(spark: SparkSession, tpch: Path, tmp_path: Path):
    """The last, of partial sums of each nation."""
    of_customers, of_lines = tmp_path / "customers", tmp_path / "lines"
    connector.join_shuffles(
        spark, tpch / "orders", tpch / "customer", [("o_custkey", "c_custkey")],
        left_columns=["o_orderkey"], right_columns=["c_nationkey"],
        left_filter="o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01'",
        into=of_customers, keys="o_orderkey", options=FAST,
    )  # fmt: skip
    connector.join_shuffles(
        spark, of_customers, tpch / "lineitem", [("o_orderkey", "l_orderkey")],
        right_columns=["l_suppkey", *PRICE], into=of_lines, options=FAST, **FEW,
    )  # fmt: skip
    parts = connector.join_shuffles(
        spark, of_lines, tpch / "asia",
        [("l_suppkey", "s_suppkey"), ("c_nationkey", "s_nationkey")],
        left_columns=PRICE, right_columns=["n_name"], then=discounted("n_name"),
        schema="n_name string, part decimal(38,4)", **FEW,
    )  # fmt: skip
    found = parts.groupBy("n_name").agg({"part": "sum"}).withColumnRenamed("sum(part)", "revenue")
    assert plan_of(found).count("Exchange") == 1
    expected = spark.sql(
        "SELECT n_name, CAST(sum(l_extendedprice * (1 - l_discount)) AS decimal(38,4)) AS revenue "
        "FROM customer, orders, lineitem, supplier, nation, region WHERE c_custkey = o_custkey "
        "AND l_orderkey = o_orderkey AND l_suppkey = s_suppkey AND c_nationkey = s_nationkey "
        "AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'ASIA' "
        "AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1995-01-01' GROUP BY n_name"
    )
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, expected.collect()))
    assert found.count() == 5


@guarantee("results that stay partitioned")
def test_tpch_q18_without_an_exchange(spark: SparkSession, tpch: Path, tmp_path: Path):
    """A join with an aggregation, both by order, then one by customer."""
    sums, large, by_order = tmp_path / "sums", tmp_path / "large", tmp_path / "by_order"
    connector.aggregate_shuffle(
        spark, tpch / "lineitem", "l_orderkey", {"quantity": ("l_quantity", "sum")}, into=sums,
        options=FAST,
    )  # fmt: skip
    assert open_shuffle(sums).partitioner == HashPartitioner("l_orderkey")
    connector.map_subpartitions(
        spark, tpch / "orders", lambda _, rows: rows, open_shuffle(tpch / "orders").schema,
        into=by_order, keys="o_orderkey", options=FAST,
    )  # fmt: skip
    connector.join_shuffles(
        spark, by_order, sums, [("o_orderkey", "l_orderkey")],
        left_columns=["o_orderkey", "o_custkey", "o_orderdate", "o_totalprice"],
        right_columns=["quantity"], right_filter="quantity > 250", into=large, keys="o_custkey",
        options=FAST,
    )  # fmt: skip
    found = connector.join_shuffles(
        spark, tpch / "customer", large, [("c_custkey", "o_custkey")],
        left_columns=["c_name", "c_custkey"],
        right_columns=["o_orderkey", "o_orderdate", "o_totalprice", "quantity"], **FEW,
    )  # fmt: skip
    assert "Exchange" not in plan_of(found)
    expected = spark.sql(
        "SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS "
        "quantity FROM customer, orders, lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM "
        "lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 250) AND c_custkey = o_custkey "
        "AND o_orderkey = l_orderkey GROUP BY 1, 2, 3, 4, 5"
    )
    assert_same_rows(found.toArrow(), expected.toArrow())
    assert found.count() > 10


@guarantee("results that stay partitioned")
@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_task_is_tried_again_or_nothing_is_written(
    spark: SparkSession, tpch: Path, tmp_path: Path, times: int
):
    """Two tries, as the session has them."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def killed(subpartition: int, rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        yield from rows
        if subpartition == N - 1 and len(list(marks.iterdir())) < times:
            (marks / str(os.getpid())).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    schema = open_shuffle(tpch / "customer").schema
    out = tmp_path / "out"
    if times > 1:
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            connector.map_subpartitions(
                spark, tpch / "customer", killed, schema, into=out, options=FAST
            )
        assert not out.exists()
        return
    receipt = connector.map_subpartitions(
        spark, tpch / "customer", killed, schema, into=out, options=FAST, **FEW
    )
    assert receipt.num_map_outputs > 1
    assert len(list(marks.iterdir())) == 1
    there, copied = open_shuffle(tpch / "customer"), open_shuffle(out)
    assert receipt.num_rows == there.num_rows
    assert copied.subpartition_rows.equals(there.subpartition_rows)
    assert copied.verify().num_rows == there.num_rows
    assert_same_rows(copied.to_table(), there.to_table())
    files = [path for path in out.rglob("*.shuffle.data")]
    assert len(files) == sum(len(output.files) for output in copied.map_outputs)


def test_appends_of_frames_and_datasets(spark: SparkSession, tpch: Path, tmp_path: Path):
    rows = spark.range(60).selectExpr("id % 7 AS k", "nullif(id, -1) AS v")
    ways = {"keys": "k", "num_subpartitions": 5, "sort_by": "k", "options": FAST}
    connector.write_shuffle(rows, tmp_path / "s", **ways)
    connector.append_shuffle(rows.selectExpr("'x' AS t", "k"), tmp_path / "s", options=FAST)
    few = ds.dataset(tpch_table("nation", SCALE))
    with pytest.raises(SchemaError, match="column 'k' is not there"):
        connector.append_shuffle(few, tmp_path / "s", columns=["n_comment"], options=FAST)
    shuffle = open_shuffle(tmp_path / "s")
    assert (shuffle.num_subpartitions, shuffle.version) == (5, 2)
    assert shuffle.partitioner == HashPartitioner("k")
    assert shuffle.sort_by == (("k", "ascending"),)
    table = shuffle.to_table()
    assert table.schema.names == ["k", "v", "t"]
    assert (table["v"].null_count, table["t"].null_count) == (60, 60)
