"""Shuffles in SQL: temporary views, which keep their options, and catalog tables, which lose them.

Spark 4.3 hands the ``OPTIONS`` of a catalog table to no Python data source, so they are given where
the table is used; see ``docs/adr/0003-options-of-sql-tables.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

from arrow_format import HashPartitioner, open_shuffle
from connector.spark_version import SPARK
from integration.programs.ways import by_function
from tests.support.small_shuffles import files_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriterV2, SparkSession

    Sql = Callable[[str], list[tuple[Any, ...]]]

WRITTEN = [(i, 2 * i) for i in range(10)]
SAY_WHAT_TO_DO = (
    r"Spark does not hand the OPTIONS of a table on: give them where it is used, as in INSERT INTO "
    r"t WITH \(path '\.\.\.'\), SELECT \.\.\. FROM t WITH"
)


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[Sql]:
    """Run a statement and return its rows, sorted; ``numbers`` is there and every table goes."""
    spark.range(10).selectExpr("id AS k", "2 * id AS v").createOrReplaceTempView("numbers")

    def run(statement: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, spark.sql(statement).collect()))

    yield run
    for table in spark.catalog.listTables():
        drop = "VIEW" if table.tableType in ("TEMPORARY", "VIEW") else "TABLE"
        spark.sql(f"DROP {drop} IF EXISTS {table.name}")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shuffle"


def options(path: Path, **more: object) -> str:
    given = {"path": path, "keys": "k", "numSubpartitions": 8, **more}
    return ", ".join(f"{name} '{value}'" for name, value in given.items() if value is not None)


# Temporary views ---------------------------------------------------------------------------------


def test_a_temporary_view(sql: Sql, path: Path):
    create = (
        "CREATE OR REPLACE TEMPORARY VIEW t (k BIGINT, v BIGINT) USING arrow_shuffle "
        f"OPTIONS ({options(path)})"
    )
    sql(create)

    sql("INSERT INTO t SELECT k, v FROM numbers")
    sql("INSERT INTO t VALUES (-1, -2)")
    assert sql("SELECT * FROM t") == [(-1, -2), *WRITTEN]
    sql("INSERT OVERWRITE TABLE t SELECT k, v FROM numbers WHERE k < 3")
    sql("INSERT INTO t (v, k) VALUES (7, 6)")
    # From its first SELECT on a view is a snapshot, because Spark keeps its plan since 4.1.
    newest = [*WRITTEN[:3], (6, 7)]
    assert sql("SELECT * FROM t") == ([(-1, -2), *WRITTEN] if SPARK >= (4, 1) else newest)
    sql(create)
    assert sql("SELECT * FROM t") == newest
    assert sql("SELECT k FROM t WHERE v > 0") == [(1,), (2,), (6,)]

    shuffle = open_shuffle(path)
    assert (shuffle.version, shuffle.num_subpartitions) == (4, 8)
    assert shuffle.partitioner == HashPartitioner("k")


def test_a_temporary_view_of_what_is_there(spark: SparkSession, sql: Sql, path: Path):
    by_function(spark.table("numbers"), path, ["k"], 8)
    sql(f"CREATE TEMPORARY VIEW t USING arrow_shuffle OPTIONS (path '{path}')")
    sql(
        "CREATE TEMPORARY VIEW few USING arrow_shuffle "
        f"OPTIONS (path '{path}', subpartitions '0-3', withSubpartition 'true')"
    )

    assert sql("SELECT * FROM t") == WRITTEN
    few = sql("SELECT * FROM few")
    assert few == sql("SELECT *, pmod(hash(k), 8) p FROM numbers WHERE pmod(hash(k), 8) < 4")
    assert 0 < len(few) < 10
    # Keys and number of subpartitions are those of the shuffle.
    sql("INSERT INTO t SELECT k + 10, v FROM numbers")
    assert open_shuffle(path).num_rows == 20
    assert sql("SELECT n.k, t.v FROM numbers n JOIN t USING (k)") == WRITTEN


# Catalog tables ----------------------------------------------------------------------------------


def test_a_table_with_options_given_where_it_is_used(sql: Sql, path: Path):
    sql("CREATE TABLE t (k BIGINT, v BIGINT) USING arrow_shuffle")

    sql(f"INSERT INTO t WITH ({options(path)}) SELECT k, v FROM numbers")
    sql(f"INSERT INTO t WITH (path '{path}') VALUES (-1, -2)")
    assert sql(f"SELECT * FROM t WITH (path '{path}')") == [(-1, -2), *WRITTEN]
    sql(f"INSERT OVERWRITE t WITH (path '{path}') SELECT k, v FROM numbers")
    assert sql(f"SELECT * FROM t WITH (path '{path}', subpartitions '3')") == sql(
        "SELECT * FROM numbers WHERE pmod(hash(k), 8) = 3"
    )

    shuffle = open_shuffle(path)
    assert (shuffle.version, shuffle.num_subpartitions) == (3, 8)
    assert shuffle.partitioner == HashPartitioner("k")


def test_dropping_a_table_keeps_the_shuffle(sql: Sql, path: Path):
    sql("CREATE TABLE t (k BIGINT, v BIGINT) USING arrow_shuffle")
    sql(f"INSERT INTO t WITH ({options(path)}) VALUES (1, 2)")
    before = files_below(path)

    sql("DROP TABLE t")

    assert files_below(path) == before


@pytest.mark.parametrize("where", ["OPTIONS (path '{}')", "LOCATION '{}'"])
def test_a_table_over_what_is_there_has_its_columns(
    spark: SparkSession, sql: Sql, path: Path, where: str
):
    by_function(spark.table("numbers"), path, ["k"], 8)

    sql(f"CREATE TABLE t USING arrow_shuffle {where.format(path)}")

    assert spark.table("t").schema == spark.table("numbers").schema
    assert sql(f"SELECT * FROM t WITH (path '{path}')") == WRITTEN


def test_options_that_spark_loses_are_asked_for(sql: Sql, path: Path):
    sql(f"CREATE TABLE t (k BIGINT, v BIGINT) USING arrow_shuffle OPTIONS ({options(path)})")

    with pytest.raises(Exception, match=SAY_WHAT_TO_DO):
        sql("INSERT INTO t SELECT k, v FROM numbers")
    with pytest.raises(Exception, match=SAY_WHAT_TO_DO):
        sql("SELECT * FROM t")
    assert not path.exists()


def test_an_insert_never_goes_where_its_rows_came_from(
    spark: SparkSession, sql: Sql, tmp_path: Path
):
    for name in ("one", "other"):
        by_function(spark.table("numbers"), tmp_path / name, ["k"], 8)
        sql(f"CREATE TABLE {name} USING arrow_shuffle OPTIONS (path '{tmp_path / name}')")

    for insert in ("INSERT INTO", "INSERT OVERWRITE"):
        with pytest.raises(Exception, match=SAY_WHAT_TO_DO):
            sql(f"{insert} other SELECT * FROM one WITH (path '{tmp_path / 'one'}')")

    assert [open_shuffle(tmp_path / name).version for name in ("one", "other")] == [1, 1]


def test_a_table_made_by_a_query_needs_a_view_instead(spark: SparkSession, sql: Sql, path: Path):
    with pytest.raises(Exception, match=SAY_WHAT_TO_DO):
        sql(
            f"CREATE TABLE t USING arrow_shuffle OPTIONS ({options(path)}) AS SELECT * FROM numbers"
        )

    assert not spark.catalog.tableExists("t")
    assert not path.exists()


def test_a_table_made_and_used_from_python(spark: SparkSession, sql: Sql, path: Path):
    df = spark.sql("SELECT k, v FROM numbers")

    def writer(df: DataFrame) -> DataFrameWriterV2:
        return df.writeTo("t").using("arrow_shuffle").option("path", str(path))

    writer(df).option("keys", "k").option("numSubpartitions", 4).create()
    writer(df).append()
    assert spark.read.option("path", str(path)).table("t").count() == 2 * len(WRITTEN)
    writer(df).overwrite(F.lit(True))
    assert sql(f"SELECT * FROM t WITH (path '{path}')") == WRITTEN
    df.write.format("arrow_shuffle").option("path", str(path)).mode("append").saveAsTable("t")
    assert open_shuffle(path).num_rows == 2 * len(WRITTEN)
    assert open_shuffle(path).partitioner == HashPartitioner("k")
    for attempt in (
        lambda: spark.table("t").count(),
        lambda: df.write.insertInto("t"),
        lambda: df.writeTo("t").append(),
        lambda: sql(f"CREATE TABLE u USING arrow_shuffle OPTIONS (path '{path}') AS SELECT 1 AS k"),
    ):
        with pytest.raises(AnalysisException, match=r"writeTo\('t'\)\.using\('arrow_shuffle'\)"):
            attempt()
    sql("DROP TABLE t PURGE")
    assert open_shuffle(path).num_rows == 2 * len(WRITTEN)


def test_layouts_of_a_table_have_no_effect(sql: Sql, path: Path):
    sql("CREATE TABLE t (k BIGINT, v BIGINT) USING arrow_shuffle PARTITIONED BY (v)")
    sql(f"INSERT INTO t WITH ({options(path)}) SELECT k, v FROM numbers")
    assert sql(f"SELECT * FROM t WITH (path '{path}')") == WRITTEN
    assert open_shuffle(path).partitioner == HashPartitioner("k")


def test_bad_options_of_a_table(sql: Sql, path: Path):
    create = "CREATE TABLE t USING arrow_shuffle OPTIONS ({})"

    with pytest.raises(Exception, match=r"is not there; check the path"):
        sql(create.format(options(path)))
    with pytest.raises(Exception, match=r"option 'kyes' is not known \(did you mean 'keys'\?\)"):
        sql(create.format(options(path, kyes="k")))
    with pytest.raises(Exception, match="no path was given; use load"):
        sql("CREATE TABLE t USING arrow_shuffle OPTIONS (keys 'k')")
