"""What the planner learns of a shuffle: totals of its log, sizes, limits, filters of run time."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import arrow_shuffle
from arrow_format import WriteOptions
from arrow_format.format.batch_frame import decode_table, encode_table
from arrow_format.log.framing import from_frame
from arrow_format.log.output_table import SCHEMA as OUTPUT_SCHEMA
from arrow_shuffle import BroadcastPartitioner, open_shuffle
from integration.programs.planner import PLAIN, exchanged, plan_of, planning_session, rows_of
from tests.support.guarantees import guarantee
from tests.support.hostile import forged_frame
from tests.support.spark_session import spark_settings

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NUM_ROWS = 2_000
N = 16
SMALL = {"sync": False, "sort_buffer_bytes": 64 << 10, "chunk_bytes": 2 << 10}
STATISTICS = WriteOptions(**SMALL, statistics="all")

COLUMNS = {
    "i": "IF(id % 7 = 0, NULL, CAST(id % 300 - 100 AS INT))",
    "ti": "CAST(id % 200 - 100 AS TINYINT)",
    "sm": "CAST(IF(id < 1000, NULL, id) AS SMALLINT)",
    "l": "-id * 10000000000",
    "p": "CAST(id / 4 AS DECIMAL(9, 2))",
    "q": "CAST(id AS DECIMAL(38, 10)) * 1000000000000000000",
    "day": "date_add(DATE '1960-01-01', CAST(id * 20 AS INT))",
    "t": "timestamp_seconds(id * 100000)",
    "n": "timestampadd(HOUR, id, TIMESTAMP_NTZ '1999-12-31 12:00:00')",
    "iv": "make_dt_interval(0, CAST(id AS INT))",
    "b": "id > 5",
    "void": "CAST(NULL AS INT)",
    "d": "IF(id = 3, double('NaN'), id / 3D)",
    "f": "CAST(IF(id % 2 = 0, -0D, 0D) AS FLOAT)",
    "s": "concat('name ', id)",
    "y": "CAST(CAST(id AS STRING) AS BINARY)",
}
EXACT = ("i", "ti", "sm", "l", "p", "q", "day", "t", "n", "iv", "b", "void")


def rows(spark: SparkSession, first: int = 0, end: int = NUM_ROWS) -> DataFrame:
    exprs = [F.expr(text).alias(name) for name, text in COLUMNS.items()]
    return spark.range(first, end, 1, 1).select(F.col("id").alias("k"), *exprs)


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("totals")

    def write(name: str, df: DataFrame, options: WriteOptions = STATISTICS, **how: object) -> None:
        how = {"keys": "k", "num_subpartitions": N, "mode": "append", **how}
        arrow_shuffle.write_shuffle(df, directory / name, options=options, **how)

    for first in (0, 700):
        write("plain", rows(spark, first, first + 700))
        write("masked", rows(spark, first, first + 700))
    write("plain", rows(spark, 1400))
    open_shuffle(directory / "masked").delete({"k": [0, 1399]}, erase=False)
    write("none", rows(spark, 0, 0))
    write("unknown", rows(spark), WriteOptions(**SMALL, statistics=()))
    evolves = WriteOptions(**SMALL, statistics="all", schema_evolution=True)
    narrow = rows(spark, 0, 500).selectExpr("k", "CAST(i AS SMALLINT) AS i", "sm", "d")
    write("evolved", narrow)
    write("evolved", rows(spark, 500).select("k", "i", "sm", "day"), evolves)
    few = {"partitioner": BroadcastPartitioner(), "keys": None, "num_subpartitions": 1}
    write("everywhere", rows(spark, 0, 10), **few)
    write("wide", rows(spark).selectExpr("k", "repeat(s, 40) AS s"))
    write("few", rows(spark).where("k % 400 = 3").select("k", "s"))
    return directory


@pytest.fixture(scope="module")
def planner(spark: SparkSession, warehouse: Path) -> SparkSession:
    return planning_session(spark, warehouse, PLAIN)


def python(spark: SparkSession, warehouse: Path, name: str) -> DataFrame:
    return spark.read.format("arrow_shuffle").load(str(warehouse / name))


# Nulls -------------------------------------------------------------------------------------------


def nullable(df: DataFrame) -> set[str]:
    """Columns of which the compiled query tests whether a value is null."""
    read = df._jdf.queryExecution().executedPlan().schema().json()
    return {field.name for field in StructType.fromJson(json.loads(read)).fields if field.nullable}


def test_columns_without_a_null_are_read_without_a_test(
    planner: SparkSession, warehouse: Path
) -> None:
    """A table may have nulls in its next version, so its schema does not say that it has none."""
    rows = pa.table({"k": [1, 2], "v": [1, 2], "w": [None, 2]})
    how = {"keys": "k", "num_subpartitions": 2, "mode": "append", "options": STATISTICS}
    arrow_shuffle.write_shuffle(rows, warehouse / "nulls", **how)
    assert nullable(planner.table("nulls")) == {"w"}
    arrow_shuffle.write_shuffle(rows.set_column(1, "v", [[None, 3]]), warehouse / "nulls", **how)
    df = planner.table("nulls")
    assert nullable(df) == {"v", "w"}
    assert nullable(planner.sql("SELECT * FROM nulls VERSION AS OF 1")) == {"w"}
    assert nullable(df.selectExpr("*", "_version", "_subpartition").drop("w")) == {"v", "_version"}
    open_shuffle(warehouse / "nulls").delete({"k": [1]}, erase=False)
    assert nullable(planner.table("nulls")) == {"v", "w"}
    # A filter of run time finds the broadcast that it reuses only where nothing was changed.
    assert nullable(df.where("w % 2 = 0").select("k")) == {"k"}
    for name, expected in {
        "plain": {"i", "sm", "void"},
        "evolved": {"i", "sm", "d", "day"},
    }.items():
        assert nullable(planner.table(name)) == expected
    unknown = planner.table("unknown")
    assert nullable(unknown) == {field.name for field in unknown.schema if field.nullable}


@guarantee("noticed damage")
@pytest.mark.parametrize("is_first", [True, False])
def test_a_null_that_the_log_does_not_count_is_an_error(
    planner: SparkSession, tmp_path: Path, is_first: bool
) -> None:
    values = [None, *range(9)] if is_first else [*range(9), None]
    rows = pa.table({"k": [*range(10)], "v": pa.array(values, pa.int32())})
    arrow_shuffle.write_shuffle(rows, tmp_path / "s", keys="k", num_subpartitions=1)
    (entry,) = (tmp_path / "s").rglob("*.entry")
    _, sections = from_frame(entry.read_bytes(), dict[str, Any])
    added = decode_table(sections["added"], OUTPUT_SCHEMA)
    outputs = added.to_pylist()
    for of in outputs[0]["files"][0]["statistics"]:
        of["null_count"] = 0
    lying = encode_table(pa.Table.from_pylist(outputs, added.schema))
    entry.write_bytes(forged_frame(entry.read_bytes(), {}, {"added": lying}))
    df = planner.read.format("arrow_shuffle_jvm").load(str(tmp_path / "s"))
    assert df.where("v IS NOT NULL").count() == 9
    with pytest.raises(Exception, match=r"s/.*shuffle\.data.*a null in column v"):
        df.collect()


# Totals ------------------------------------------------------------------------------------------


@guarantee("counts")
@pytest.mark.parametrize("name", ["plain", "none", "evolved"])
def test_counts_and_extremes_come_from_the_log(
    spark: SparkSession, planner: SparkSession, warehouse: Path, name: str
) -> None:
    df = planner.table(name)
    columns = [column for column in EXACT if column in df.columns]
    asked = ["count(*)"]
    asked += [f"{of}({column})" for column in columns for of in ("count", "min", "max")]
    found = df.selectExpr(*asked)
    assert "LocalTableScan" in plan_of(found)
    assert "BatchScan" not in plan_of(found)
    expected = python(spark, warehouse, name).selectExpr(*asked)
    assert found.schema == expected.schema
    assert found.collect() == expected.collect()
    assert df.count() == expected.collect()[0][0]


@guarantee("counts")
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("masked", "max(k)"),
        ("masked", "count(i)"),
        ("plain", "min(d)"),
        ("plain", "max(f)"),
        ("plain", "max(s)"),
        ("plain", "min(y)"),
        ("plain", "count(DISTINCT i)"),
        ("plain", "sum(i)"),
        ("plain", "max(i) FILTER (WHERE k < 100)"),
        ("plain", "max(i + 1)"),
        ("unknown", "max(i)"),
        ("everywhere", "count(*)"),
        ("everywhere", "max(k)"),
    ],
)
def test_what_the_log_does_not_say_is_read(
    spark: SparkSession, planner: SparkSession, warehouse: Path, name: str, asked: str
) -> None:
    found = planner.table(name).selectExpr(asked)
    assert "BatchScan" in plan_of(found)
    expected = python(spark, warehouse, name).selectExpr(asked)
    assert repr(found.collect()) == repr(expected.collect())


@guarantee("counts")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT count(*) FROM plain WHERE i > 100",
        "SELECT count(*) FROM plain WHERE k = 3",
        "SELECT max(i) FROM plain WHERE day IS NOT NULL AND k % 2 = 0",
        "SELECT b, count(*), max(i) FROM plain GROUP BY b",
        "SELECT count(*) FROM (SELECT * FROM plain LIMIT 10)",
        "SELECT count(*), max(i) FROM masked WHERE k < 1399",
        "SELECT count(*) FROM masked",
        "SELECT count(*) FROM plain TABLESAMPLE (100 PERCENT)",
        "SELECT max(x) FROM (SELECT max(i) AS x FROM plain UNION ALL SELECT min(i) FROM plain)",
        "SELECT (SELECT max(k) FROM plain) - (SELECT count(*) FROM plain)",
        "SELECT count(*) FROM plain HAVING count(*) > 5",
        "SELECT count(*) FROM plain WHERE _subpartition = 3",
        "SELECT min(_subpartition), max(_version) FROM plain",
        "SELECT count(void), count(1), count(i, k) FROM plain",
    ],
)
def test_aggregations_are_those_of_the_rows(
    spark: SparkSession, planner: SparkSession, warehouse: Path, sql: str
) -> None:
    session = spark.newSession()
    for name in ("plain", "masked"):
        shuffle = open_shuffle(warehouse / name)
        table = shuffle.to_spark(session, coalesce=True, with_subpartition=True)  # in Python
        written = F.expr("IF(k < 700, 1L, IF(k < 1400, 2L, 3L))")
        table.withColumn("_version", written).createOrReplaceTempView(name)
    assert rows_of(planner.sql(sql)) == rows_of(session.sql(sql))


# Limits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 10, 1_999, 5_000])
def test_a_limit_gives_as_many_rows_and_reads_few(planner: SparkSession, most: int) -> None:
    df = planner.sql(f"SELECT k, s FROM plain LIMIT {most}")
    found = df.collect()
    assert len({row["k"] for row in found}) == len(found) == min(most, NUM_ROWS)
    assert planner.sql(f"SELECT k FROM plain WHERE i = 5 LIMIT {most}").count() == min(most, 6)
    assert planner.sql(f"SELECT k FROM masked LIMIT {most}").count() == min(most, 1_398)
    assert len(planner.sql(f"SELECT k FROM plain LIMIT {most} OFFSET 3").collect()) == min(
        most, NUM_ROWS - 3
    )


# Sizes -------------------------------------------------------------------------------------------


def num_bytes(df: DataFrame) -> int:
    """Return the bytes that the planner expects."""
    return int(str(df._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def test_sizes_follow_columns_and_subpartitions(planner: SparkSession) -> None:
    whole = planner.table("wide")
    assert num_bytes(whole.select("k")) < num_bytes(whole) / 2
    assert num_bytes(planner.table("few")) < num_bytes(whole) / 10
    one = whole.where("k = 3")
    assert num_bytes(one) < num_bytes(whole) / 4


@guarantee("joins in SQL")
def test_a_small_side_is_broadcast(planner: SparkSession) -> None:
    sql = "SELECT count(*), sum(length(w.s)) FROM wide w JOIN few f ON w.k = f.k"
    few, wide = (num_bytes(planner.table(name).select("k")) for name in ("few", "wide"))
    assert 10 * few < wide
    threshold = {"spark.sql.autoBroadcastJoinThreshold": f"{wide // 2}"}
    with spark_settings(planner, threshold):
        df = planner.sql(sql)
        assert "BroadcastHashJoin" in plan_of(df)
        broadcast = rows_of(df)
        both = planner.sql("SELECT count(*) FROM wide a JOIN wide b ON a.k = b.k")
        assert "BroadcastHashJoin" not in plan_of(both)
    df = planner.sql(sql)
    assert "BroadcastHashJoin" not in plan_of(df)
    assert exchanged(plan_of(df)) == []
    assert rows_of(df) == broadcast


# Filters of run time -----------------------------------------------------------------------------


def read_by_scans(df: DataFrame) -> dict[str, int]:
    """Return how many rows the scans of a query gave, by table, once it was run."""
    leaves = df._jdf.queryExecution().executedPlan().collectLeaves()
    found = {}
    for i in range(leaves.size()):
        leaf = leaves.apply(i)
        table = re.match(r"BatchScan shuffles\.(\w+)", leaf.simpleString(25))
        if table is not None:
            found[table[1]] = leaf.metrics().apply("numOutputRows").value()
    return found


@guarantee("filters in SQL")
@pytest.mark.parametrize("keyed", ["true", "false"])
def test_keys_of_the_other_side_leave_out_subpartitions(planner: SparkSession, keyed: str) -> None:
    settings = {
        "spark.sql.autoBroadcastJoinThreshold": "10MB",
        "spark.sql.sources.v2.bucketing.enabled": keyed,
    }
    sql = "SELECT count(*), sum(p.i) FROM plain p JOIN few f ON p.k = f.k WHERE f.s LIKE '%03'"
    with spark_settings(planner, settings):
        df = planner.sql(sql)
        found = rows_of(df)
        plan = plan_of(df)
    assert re.search(r"RuntimeFilters: \[dynamicpruningexpression\(k#\d+L? IN", plan), plan
    # Of few all but one row, of whom it keeps the keys: at most 5 of 16 subpartitions.
    assert 0 < read_by_scans(df)["plain"] <= NUM_ROWS * 5 // N + 150
    with spark_settings(planner, {"spark.sql.optimizer.dynamicPartitionPruning.enabled": "false"}):
        assert rows_of(planner.sql(sql)) == found


def test_what_is_read_is_explained(planner: SparkSession, warehouse: Path) -> None:
    def plan(sql: str, settings: dict[str, str] | None = None) -> str:
        with spark_settings(planner, settings or {}):
            return plan_of(planner.sql(sql))

    place = f"arrow_shuffle {warehouse / 'plain'}, version 3"
    assert f"{place}, 4 ranges of {N} subpartitions by [k]" in plan("SELECT * FROM plain")
    assert "pushed [k = 3], " not in plan("SELECT * FROM plain")
    one = plan("SELECT * FROM plain WHERE k = 3")
    assert "no partitioning: one range has all that is read" in one
    assert "pushed [" in one
    assert "not all keys are read" in plan("SELECT i FROM plain")
    off = {"spark.sql.sources.v2.bucketing.enabled": "false"}
    assert "spark.sql.sources.v2.bucketing.enabled is false" in plan("SELECT * FROM plain", off)
    large = plan("SELECT * FROM plain WITH (`max-range-bytes` = 1000)")
    assert re.search(r"a range has \d+ bytes, more than max-range-bytes; num-ranges = 16", large)
