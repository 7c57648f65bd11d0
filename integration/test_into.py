"""Results that stay partitioned, on a real cluster: TPC-H from kept shuffles, and killed tasks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import arrow_shuffle
from arrow_format import HashPartitioner, SchemaError
from arrow_shuffle import open_shuffle
from integration.programs.datasets import tpch_table
from integration.programs.tpch_queries import SQL, keep, q3, q5, q18, register_tables
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
    """Kept shuffles, and views of the same tables for SQL."""
    home = tmp_path_factory.mktemp("tpch")
    register_tables(spark, SCALE)
    keep(spark, home, SCALE, N, options=FAST)
    return home


def plan_of(df: DataFrame) -> str:
    """The physical plan, without what adaptive execution may still change."""
    return str(df._jdf.queryExecution().executedPlan().toString())


FEW = {"target_partition_bytes": 100_000}
"""Several tasks for each step."""


@guarantee("results that stay partitioned")
def test_tpch_q3_without_an_exchange(spark: SparkSession, tpch: Path, tmp_path: Path):
    found = q3(spark, tpch, tmp_path, options=FAST, **FEW)
    assert open_shuffle(tmp_path / "orders").partitioner == HashPartitioner("o_orderkey")
    assert "Exchange" not in plan_of(found)
    assert_same_rows(found.toArrow(), spark.sql(SQL["Q3"]).toArrow())
    assert found.count() > 100


@guarantee("results that stay partitioned")
def test_tpch_q5_has_one_exchange(spark: SparkSession, tpch: Path, tmp_path: Path):
    """The last, of partial sums of each nation."""
    found = q5(spark, tpch, tmp_path, options=FAST, **FEW)
    assert plan_of(found).count("Exchange") == 1
    expected = spark.sql(SQL["Q5"])
    assert sorted(map(tuple, found.collect())) == sorted(map(tuple, expected.collect()))
    assert found.count() == 5


@guarantee("results that stay partitioned")
def test_tpch_q18_without_an_exchange(spark: SparkSession, tpch: Path, tmp_path: Path):
    found = q18(spark, tpch, tmp_path, 250, options=FAST, **FEW)
    assert open_shuffle(tmp_path / "large").partitioner == HashPartitioner("o_custkey")
    assert "Exchange" not in plan_of(found)
    expected = spark.sql(SQL["Q18"].format(quantity=250))
    assert_same_rows(found.toArrow(), expected.toArrow())
    assert found.count() > 10


@guarantee("results that stay partitioned")
def test_what_is_written_has_the_keys_that_its_rows_have(
    spark: SparkSession, tpch: Path, tmp_path: Path
):
    """Of an aggregation, and of what ``then`` makes of joined rows."""
    lines = open_shuffle(tpch / "lineitem").select("l_orderkey", "l_quantity")
    sums = lines.aggregate("l_orderkey", {"quantity": ("l_quantity", "sum")})
    schema = "l_orderkey bigint, l_quantity decimal(15,2), quantity decimal(25,2)"
    joined = lines.join(sums, how="left", then=lambda rows: rows, schema=schema)
    for name, rows in (("sums", sums), ("joined", joined)):
        rows.write(tmp_path / name, spark=spark, options=FAST, **FEW)
        written = open_shuffle(tmp_path / name)
        assert written.partitioner == HashPartitioner("l_orderkey")
        assert len(written.map_outputs) > 1
    expected = spark.table("lineitem").groupBy("l_orderkey").agg({"l_quantity": "sum"})
    expected = expected.withColumnRenamed("sum(l_quantity)", "quantity")
    assert_same_rows(open_shuffle(tmp_path / "sums").to_spark(spark).toArrow(), expected.toArrow())
    assert open_shuffle(tmp_path / "joined").num_rows == spark.table("lineitem").count()


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

    there = open_shuffle(tpch / "customer")
    mapped = there.map_subpartitions(killed, there.schema)
    out = tmp_path / "out"
    if times > 1:
        with pytest.raises(Exception, match="Python worker exited unexpectedly"):
            mapped.write(out, spark=spark, options=FAST)
        assert not out.exists()
        return
    receipt = mapped.write(out, spark=spark, options=FAST, **FEW)
    assert receipt.num_map_outputs > 1
    assert len(list(marks.iterdir())) == 1
    copied = open_shuffle(out)
    assert receipt.num_rows == there.num_rows
    assert copied.subpartition_rows.equals(there.subpartition_rows)
    assert copied.verify().num_rows == there.num_rows
    assert_same_rows(copied.to_table(), there.to_table())
    files = [path for path in out.rglob("*.shuffle.data")]
    assert len(files) == sum(len(output.files) for output in copied.map_outputs)


def test_appends_of_frames_and_datasets(spark: SparkSession, tpch: Path, tmp_path: Path):
    rows = spark.range(60).selectExpr("id % 7 AS k", "nullif(id, -1) AS v")
    ways = {"keys": "k", "num_subpartitions": 5, "sort_by": "k", "options": FAST}
    arrow_shuffle.write_shuffle(rows, tmp_path / "s", **ways)
    kept = open_shuffle(tmp_path / "s")
    kept.append(rows.selectExpr("'x' AS t", "k"), options=FAST)
    few = ds.dataset(tpch_table("nation", SCALE))
    with pytest.raises(SchemaError, match="column 'k' is not there"):
        kept.append(few, columns=["n_comment"], options=FAST, spark=spark)
    shuffle = kept.newest()
    assert (shuffle.num_subpartitions, shuffle.version) == (5, 2)
    assert shuffle.partitioner == HashPartitioner("k")
    assert shuffle.sort_by == (("k", "ascending"),)
    table = shuffle.to_table()
    assert table.schema.names == ["k", "v", "t"]
    assert (table["v"].null_count, table["t"].null_count) == (60, 60)
