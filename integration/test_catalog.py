"""Shuffles by name in SQL: a warehouse as a catalog, versions, metadata columns, refusals."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    UnsupportedOperationException,
)
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import release_shuffle
from arrow_shuffle import open_shuffle
from connector.jvm_reader import BUCKETING
from connector.spark_version import SPARK
from integration.programs.planner import (
    CATALOG,
    FORMAT,
    PLAIN,
    exchanged,
    plan_of,
    planning_session,
    rows_of,
)
from integration.programs.ways import FAST
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

N = 8


def numbers(first: int, end: int) -> pa.Table:
    return pa.table({"k": pa.array(range(first, end), pa.int64()), "v": [*range(first, end)]})


def write(path: Path, first: int, end: int, **how: Any) -> None:
    how = {"mode": "append", "options": FAST, **how}
    arrow_shuffle.write_shuffle(numbers(first, end), path, keys="k", num_subpartitions=N, **how)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Orders in three versions, of which the first has a tag; other shuffles, and what is none."""
    directory = tmp_path_factory.mktemp("warehouse")
    write(directory / "orders", 0, 100)
    open_shuffle(directory / "orders").tag("first")
    time.sleep(1.1)
    write(directory / "orders", 100, 300)
    write(directory / "orders", 0, 50, mode="overwrite")
    write(directory / "sales" / "lines", 0, 10)
    write(directory / "sales" / "eu" / "lines-2026", 0, 20)
    write(directory / "sales" / "eu" / "Ünïcode name", 0, 3)
    for gone in ("released", "dropped"):
        write(directory / gone, 0, 10)
    release_shuffle(directory / "released")
    arrow_shuffle.drop_shuffle(directory / "dropped")
    (directory / "file.txt").write_text("no shuffle")
    (directory / "_hidden").mkdir()
    (directory / "_hidden" / "file.txt").write_text("no namespace")
    return directory


@pytest.fixture(scope="module")
def planner(spark: SparkSession, warehouse: Path) -> SparkSession:
    return planning_session(spark, warehouse, PLAIN)


def sql(planner: SparkSession, text: str) -> list[tuple[Any, ...]]:
    return rows_of(planner.sql(text))


def count(planner: SparkSession, what: str) -> int:
    ((found,),) = sql(planner, f"SELECT count(*) FROM {what}")
    return int(found)


# Names -------------------------------------------------------------------------------------------


def test_tables_and_namespaces_are_shown(planner: SparkSession) -> None:
    def tables(of: str) -> list[str]:
        return [name for _, name, _ in sql(planner, f"SHOW TABLES IN {of}")]

    assert tables(CATALOG) == ["orders"]
    assert tables(f"{CATALOG}.sales") == ["lines"]
    assert tables(f"{CATALOG}.sales.eu") == ["lines-2026", "Ünïcode name"]
    assert sql(planner, f"SHOW NAMESPACES IN {CATALOG}") == [("sales",)]
    assert sql(planner, f"SHOW NAMESPACES IN {CATALOG}.sales") == [("sales.eu",)]
    assert sql(planner, f"SHOW TABLES IN {CATALOG} LIKE 'x*'") == []
    with pytest.raises(AnalysisException, match=r"SCHEMA_NOT_FOUND|NOT_FOUND"):
        sql(planner, f"SHOW TABLES IN {CATALOG}.nowhere")
    for none in ("_hidden", "file.txt"):
        assert ("_hidden",) not in sql(planner, f"SHOW NAMESPACES IN {CATALOG}"), none


def test_names_are_paths_below_the_warehouse(planner: SparkSession, warehouse: Path) -> None:
    assert count(planner, f"{CATALOG}.orders") == count(planner, "orders") == 50
    assert count(planner, f"{CATALOG}.sales.lines") == count(planner, "sales.lines") == 10
    assert count(planner, "sales.eu.`lines-2026`") == 20
    assert count(planner, "sales.eu.`Ünïcode name`") == 3
    path = warehouse / "sales" / "lines"
    assert count(planner, f"{CATALOG}.`{path}`") == count(planner, f"`{path}`") == 10
    assert count(planner, f"{CATALOG}.`file:{path}`") == 10
    assert planner.table("sales.lines").count() == 10
    assert planner.catalog.tableExists("sales.lines")
    assert not planner.catalog.tableExists("sales.nothing")


def test_a_namespace_is_used(spark: SparkSession, warehouse: Path) -> None:
    session = planning_session(spark, warehouse)
    session.sql("USE shuffles.sales.eu")
    assert count(session, "`lines-2026`") == 20
    assert session.sql("SELECT current_catalog(), current_database()").first()[:] == (
        CATALOG, "sales.eu"
    )  # fmt: skip
    session.sql("USE spark_catalog.default")
    assert count(session, f"{CATALOG}.sales.lines") == 10


@pytest.mark.parametrize(
    "name",
    ["nothing", "sales.nothing", "nowhere.nothing", "released", "dropped", "sales", "`..`",
     "sales.`..`.`orders`", "`.`", "`/nowhere/at all`", "_hidden", "`file.txt`"],
)  # fmt: skip
def test_what_is_no_shuffle_is_not_found(planner: SparkSession, name: str) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND") as caught:
        planner.sql(f"SELECT * FROM {name}")
    assert "Exception:" not in str(caught.value)


def test_a_table_is_described(planner: SparkSession, warehouse: Path) -> None:
    described = {name: value for name, value, _ in sql(planner, "DESCRIBE EXTENDED orders")}
    assert (described["k"], described["v"]) == ("bigint", "bigint")
    assert described["_subpartition"] == "int"
    assert described["_version"] == "bigint"
    properties = dict(sql(planner, "SHOW TBLPROPERTIES orders"))
    assert properties["version"] == "4"
    assert properties["num_subpartitions"] == str(N)
    assert properties["num_rows"] == "50"
    assert described["Location"] == str(warehouse / "orders")
    assert '"hash"' in properties["partitioner"]
    assert '"k"' in properties["partitioner"]
    assert planner.table("orders").schema.names == ["k", "v"]


# Versions ----------------------------------------------------------------------------------------


def test_versions_by_number_tag_and_time(planner: SparkSession, warehouse: Path) -> None:
    first = open_shuffle(warehouse / "orders", 1).snapshot.newest.committed_at_ms
    moment = datetime.fromtimestamp(first / 1000 + 0.5, UTC)
    for what, expected in {
        "VERSION AS OF 1": 100,
        "VERSION AS OF 'first'": 100,
        "VERSION AS OF 3": 300,
        "VERSION AS OF '3'": 300,
        "VERSION AS OF 4": 50,
        f"VERSION AS OF '{moment.isoformat()}'": 100,
        f"TIMESTAMP AS OF '{moment:%Y-%m-%d %H:%M:%S.%fZ}'": 100,
        "TIMESTAMP AS OF '2999-01-01'": 50,
        "TIMESTAMP AS OF current_timestamp() + INTERVAL 1 DAY": 50,
        "FOR SYSTEM_VERSION AS OF 1": 100,
    }.items():
        assert count(planner, f"orders {what}") == expected, what
    assert sql(
        planner,
        "SELECT count(*) FROM orders VERSION AS OF 3 a LEFT ANTI JOIN orders b ON a.k = b.k",
    ) == [(250,)]
    assert planner.read.option("versionAsOf", 1).table("orders").count() == 100


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("orders VERSION AS OF 9", IllegalArgumentException,
         "orders: version 9 .*there are versions 1 to 4.*first"),
        ("orders VERSION AS OF 2", IllegalArgumentException, "version 2"),
        ("orders VERSION AS OF 0", IllegalArgumentException, "version 0"),
        ("orders VERSION AS OF 'second'", IllegalArgumentException,
         "there is no version second: it must be a number, the name of a tag, or a time with a "
         "zone"),
        ("orders TIMESTAMP AS OF '2000-01-01'", IllegalArgumentException,
         "no version that can be opened was committed by 2000-01-01T05:00"),
        ("nothing VERSION AS OF 1", AnalysisException, "NOT_FOUND|nothing"),
    ],
)  # fmt: skip
def test_versions_that_are_not_there(
    planner: SparkSession, what: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=f"(?s){message}"):
        planner.sql(f"SELECT * FROM {what}").collect()


def test_a_query_keeps_the_version_that_it_was_planned_with(
    planner: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "s", 0, 10)
    df = planner.table(f"`{tmp_path / 's'}`")
    before = df.where("k >= 0")
    write(tmp_path / "s", 10, 30)
    assert before.count() in (10, 30)
    assert planner.table(f"`{tmp_path / 's'}`").count() == 30


# By path -----------------------------------------------------------------------------------------


def test_the_format_reads_a_path_with_the_same_plans(
    planner: SparkSession, warehouse: Path
) -> None:
    def load(**options: object) -> Any:
        return planner.read.format(FORMAT).options(**options).load(str(warehouse / "orders"))

    assert load().count() == 50
    assert load(version=1).count() == load(version="first").count() == 100
    joined = load(version=3).alias("a").join(load().alias("b"), "k").groupBy("k").count()
    assert exchanged(plan_of(joined)) == []
    assert joined.count() == 50
    assert "BatchScan" in plan_of(joined)
    assert load().where("_subpartition = 3").count() == (
        load().where(f"pmod(hash(k), {N}) = 3").count()
    )
    planner.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders_at USING {FORMAT} "
        f"OPTIONS (path '{warehouse / 'orders'}')"
    )
    assert count(planner, "orders_at") == 50
    with pytest.raises(IllegalArgumentException, match="no path was given"):
        planner.read.format(FORMAT).load()
    with pytest.raises(PySparkException, match="nowhere"):
        planner.read.format(FORMAT).load(str(warehouse / "nowhere"))
    with pytest.raises(IllegalArgumentException, match="version 9"):
        load(version=9)


def test_views_stand_for_queries(planner: SparkSession) -> None:
    planner.sql("CREATE OR REPLACE TEMPORARY VIEW small AS SELECT k FROM orders WHERE v < 10")
    assert count(planner, "small") == 10
    planner.table("orders").createOrReplaceTempView("all_orders")
    assert sql(
        planner, "SELECT count(*) FROM small a JOIN all_orders b ON a.k = b.k WHERE b.v > 3"
    ) == [(6,)]


# Metadata columns --------------------------------------------------------------------------------


def test_rows_say_their_subpartition_and_version(planner: SparkSession) -> None:
    rows = planner.table("orders")
    assert rows.columns == ["k", "v"]
    found = sql(planner, "SELECT k, _subpartition, _version FROM orders VERSION AS OF 3")
    expected = planner.range(300).select(
        "id", F.expr(f"pmod(hash(id), {N})"), F.expr("IF(id < 100, 1L, 3L)")
    )
    assert found == rows_of(expected)
    few = planner.sql("SELECT k FROM orders VERSION AS OF 3 WHERE _subpartition IN (2, 5)")
    assert rows_of(few) == rows_of(
        planner.range(300).where(f"pmod(hash(id), {N}) IN (2, 5)").select("id")
    )
    assert "subpartitions {2, 5}" in plan_of(few)
    assert sql(planner, "SELECT _version, count(*) FROM orders VERSION AS OF 3 GROUP BY 1") == [
        (1, 100),
        (3, 200),
    ]
    assert sql(planner, "SELECT count(*) FROM orders VERSION AS OF 3 WHERE _version = 3") == [
        (200,)
    ]
    assert sql(planner, "SELECT count(*) FROM orders WHERE _subpartition = 99") == [(0,)]


ON_METADATA = (
    "_subpartition = 3", "3 = _subpartition", "_subpartition IN (1, 7, 99, NULL)",
    "_subpartition <=> 3", "_subpartition > 5", "_subpartition BETWEEN 2 AND 4",
    "_subpartition != 3", "NOT _subpartition IN (1, 2)", "_subpartition IS NULL",
    "_subpartition IS NOT NULL", "_subpartition = -1", "_subpartition = 3 AND k = 17",
    "_subpartition = 3 OR k = 17", "_subpartition = 3L", "_subpartition < 2.5",
    "_subpartition = pmod(hash(k), 8)", "_version = 1", "1 = _version", "_version IN (3, 4)",
    "_version > 1", "_version >= 3", "_version < 3", "_version <= 2", "_version <=> 1",
    "_version != 1", "_version IS NULL", "_version IS NOT NULL", "_version = 2",
    "_version = 1 AND _subpartition = 4", "_version = 3 OR _subpartition = 4",
    "_version = 3 AND k < 120", "NOT (_version = 1 AND k > 50)", "_version = 1 AND k > 150",
)  # fmt: skip


@guarantee("filters in SQL")
def test_conditions_on_metadata_columns(planner: SparkSession) -> None:
    expected = planner.range(300).selectExpr(
        "id AS k", f"pmod(hash(id), {N}) AS _subpartition", "IF(id < 100, 1L, 3L) AS _version"
    )
    for condition in ON_METADATA:
        found = planner.sql(f"SELECT k FROM orders VERSION AS OF 3 WHERE {condition}")
        assert rows_of(found) == rows_of(expected.where(condition).select("k")), condition
        counted = planner.sql(f"SELECT count(*) FROM orders VERSION AS OF 3 WHERE {condition}")
        assert rows_of(counted) == [(expected.where(condition).count(),)], condition


# What SQL does not do ----------------------------------------------------------------------------

WRITE = r'arrow_shuffle\.write_shuffle\(df, "{0}/made", keys=\[\.\.\.\]'
APPEND = r'arrow_shuffle\.open_shuffle\("{0}/orders"\)\.append\(df\)'
REFUSED = {
    "INSERT INTO orders VALUES (1, 2)": APPEND,
    "INSERT OVERWRITE orders VALUES (1, 2)": APPEND,
    "CREATE TABLE made AS SELECT 1 AS k": WRITE,
    "CREATE TABLE made (k BIGINT)": WRITE,
    "CREATE OR REPLACE TABLE made AS SELECT 1 AS k": "",
    "DROP TABLE orders": r'arrow_shuffle\.drop_shuffle\("{0}/orders"\)',
    "ALTER TABLE orders RENAME TO others": "move the directory {0}/orders",
    "ALTER TABLE orders RENAME COLUMN v TO w": r'open_shuffle\("{0}/orders"\)\.rename_columns',
    "ALTER TABLE orders DROP COLUMN v": r'open_shuffle\("{0}/orders"\)\.drop_columns',
    "ALTER TABLE orders ADD COLUMN w INT": "schema_evolution=True",
    "DELETE FROM orders WHERE k = 1": r'open_shuffle\("{0}/orders"\)\.delete',
    "UPDATE orders SET v = 1": "",
    "MERGE INTO orders USING sales.lines AS l ON orders.k = l.k WHEN MATCHED THEN DELETE": "",
    "TRUNCATE TABLE orders": r'open_shuffle\("{0}/orders"\)\.delete',
    "CREATE NAMESPACE more": "the first shuffle that is written into it makes it",
    "DROP NAMESPACE sales CASCADE": r"arrow_shuffle\.drop_shuffle",
}


@pytest.mark.parametrize("statement", REFUSED)
def test_sql_does_not_change_shuffles(
    planner: SparkSession, warehouse: Path, statement: str
) -> None:
    """The message has the line of Python that does, where the statement reaches the catalog."""
    before = sorted(path.name for path in warehouse.rglob("*"))
    error = UnsupportedOperationException if REFUSED[statement] else PySparkException
    with pytest.raises(error, match=REFUSED[statement].format(warehouse) or None):
        planner.sql(statement).collect()
    assert sorted(path.name for path in warehouse.rglob("*")) == before
    assert count(planner, "orders") == 50


def test_a_frame_is_not_written_by_the_format(planner: SparkSession, warehouse: Path) -> None:
    df = planner.range(3).selectExpr("id AS k", "id AS v")
    path = str(warehouse / "orders")
    with pytest.raises(PySparkException, match=r"write_shuffle|append"):
        df.write.format(FORMAT).mode("append").save(path)
    with pytest.raises(PySparkException, match=r"write_shuffle|append"):
        df.writeTo("orders").append()
    assert planner.read.format(FORMAT).load(path).count() == 50


# The catalog itself ------------------------------------------------------------------------------


def test_a_catalog_without_a_warehouse_has_paths_alone(
    spark: SparkSession, warehouse: Path
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.bare", "arrowshuffle.spark.ShuffleCatalog")
    assert count(session, f"bare.`{warehouse / 'orders'}`") == 50
    with pytest.raises(
        IllegalArgumentException, match=r"bare has no warehouse.*spark\.sql\.catalog\.bare\.ware"
    ):
        session.sql("SELECT * FROM bare.orders")
    assert rows_of(session.sql("SHOW TABLES IN bare")) == []


@pytest.mark.parametrize(
    ("option", "value"), [("num-ranges", "0"), ("num-ranges", "many"), ("max-range-bytes", "-1")]
)
def test_settings_that_mean_nothing_are_refused(
    planner: SparkSession, option: str, value: str
) -> None:
    with pytest.raises(IllegalArgumentException, match=f"{option} is {value}: it must be a whole"):
        planner.sql(f"SELECT * FROM orders WITH (`{option}` = '{value}')").collect()


def test_options_of_a_query_override_those_of_the_catalog(planner: SparkSession) -> None:
    for num_ranges in (2, 3, 8):
        df = planner.sql(f"SELECT k, count(*) FROM orders WITH (`num-ranges` = {num_ranges}) "
                         "GROUP BY k")  # fmt: skip
        assert f"{num_ranges} ranges of {N} subpartitions by [k]" in plan_of(df)
        assert df.count() == 50
    df = planner.sql("SELECT k, count(*) FROM orders WITH (`max-range-bytes` = 10) GROUP BY k")
    assert "num-ranges = " in plan_of(df)
    assert df.count() == 50


def test_without_a_setting_the_default_of_spark_counts(
    spark: SparkSession, warehouse: Path
) -> None:
    session = planning_session(spark, warehouse, PLAIN)
    session.conf.unset(BUCKETING)
    plan = plan_of(session.sql("SELECT k, count(*) FROM orders GROUP BY k"))
    reported = f"ranges of {N} subpartitions by [k]" in plan
    assert reported == (SPARK >= (4, 1))
    assert reported != ("bucketing.enabled is false" in plan)
