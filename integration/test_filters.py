"""Filters in the tasks that read, against Spark's own: the same rows, and fewer of them read."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format.errors import OptionError, SchemaError
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST
from tests.support.exhaustive import exhaustive
from tests.support.spark_session import SESSION_TIME_ZONE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format import BatchReader

N = 12
NUM_ROWS = 3_000

CONDITIONS = (
    "day >= DATE '2024-06-01' AND day < '2024-06-20'",
    "day BETWEEN '2024-02-28' AND '2024-03-01' OR k IN (3, 4, 5)",
    "i IN (3, 5, NULL)",
    "i NOT IN (3, 5)",
    "i NOT IN (3, NULL)",
    "NOT (i = 3 OR s = 'text 4')",
    "i IS NULL AND s IS NOT NULL",
    "i <=> NULL",
    "i <=> 4",
    "NOT (i <=> 4)",
    "i < 2.5",
    "i = 2.5 OR i > 5",
    "i <= 3000000000",
    "d > 100",
    "d = CAST('NaN' AS DOUBLE)",
    "d < 0.0",
    "d = 0",
    "d != 0",
    "d IN (-0.0, 1.5)",
    "isnan(d) OR d BETWEEN -1 AND 1",
    "f = 0.1",
    "f > 0.1",
    "f >= CAST(0.1 AS FLOAT)",
    "p = 1.5",
    "p >= 12.345 AND p < 12.36",
    "p IN (1.5, 3)",
    "s = 'text 3' OR s > 'é'",
    "s >= 'text 4' AND s != 'text 7'",
    r"s IN ('', 'it\'s', '日本')",
    "b",
    "NOT b",
    "b = FALSE OR i = 1",
    "bin < X'02' OR bin = X'FF'",
    "t >= TIMESTAMP '2024-03-10 01:30:00' AND t < TIMESTAMP '2024-03-10 03:30:00'",
    "t = '2024-11-03 01:00:00'",
    "t >= '2024-11-03' AND t < TIMESTAMP '2024-11-03 08:00:00Z'",
    "ntz < TIMESTAMP_NTZ '2024-03-10 02:30:00'",
    "ntz BETWEEN TIMESTAMP_NTZ '2024-03-10 02:00:00' AND TIMESTAMP_NTZ '2024-03-10 04:00:00'",
    "t < DATE '2024-01-02'",
    "`odd name` < 5 AND K > 10",
    "i = i AND i < k",
    "TRUE",
    "k = 1 AND k = 2",
    "NULL",
)


@pytest.fixture(scope="module")
def path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Values at the edges of each type, in two versions; the session's zone is not UTC."""
    path = tmp_path_factory.mktemp("filters") / "s"
    for first in (0, NUM_ROWS // 2):
        rows = spark.range(first, first + NUM_ROWS // 2, 1, 2).selectExpr(
            "id AS k",
            "IF(id % 11 = 0, NULL, CAST(id % 7 AS INT)) AS i",
            "date_add(DATE '2024-01-01', CAST(id % 366 AS INT)) AS day",
            "get(array(0D, -0D, double('NaN'), double('Infinity'), -1e300D, 1.5D, NULL, "
            "CAST(id AS DOUBLE)), CAST(id % 8 AS INT)) AS d",
            "get(array(0.1F, -0F, float('NaN'), NULL, 1e30F), CAST(id % 5 AS INT)) AS f",
            "CAST(IF(id % 9 = 0, NULL, id / 100) AS DECIMAL(9, 2)) AS p",
            "get(array('', 'it\\'s', '日本', NULL, 'é', 'z', 'text 3', 'text 7'), "
            "CAST(id % 9 AS INT)) AS s",
            "IF(id % 3 = 0, NULL, id % 2 = 0) AS b",
            "IF(id % 5 = 0, NULL, unhex(lpad(hex(id % 256), 2, '0'))) AS bin",
            "timestamp_seconds(1704085200 + id * 9000) AS t",
            "timestampadd(MINUTE, id * 10, TIMESTAMP_NTZ '2024-03-01 00:00:00') AS ntz",
            "id % 100 AS `odd name`",
        )
        arrow_shuffle.write_shuffle(
            rows, path, keys="k", num_subpartitions=N, mode="append", options=FAST
        )
    return path


def all_rows(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("arrow_shuffle").load(str(path))


@pytest.fixture(scope="module")
def kept(spark: SparkSession, path: Path) -> dict[str, list[int]]:
    """Keys of the rows for which Spark finds each condition true."""
    truths = [F.expr(condition).cast("boolean").alias(condition) for condition in CONDITIONS]
    table = all_rows(spark, path).select("k", *truths).toArrow().sort_by("k")
    return {c: table.filter(pc.field(c))["k"].to_pylist() for c in CONDITIONS}


def test_filters_keep_the_rows_for_which_spark_finds_them_true(
    path: Path, kept: dict[str, list[int]]
) -> None:
    shuffle = open_shuffle(path)
    for condition in CONDITIONS:
        filtered = shuffle.where(condition, time_zone=SESSION_TIME_ZONE)
        found = filtered.read(columns=["k"]).read_all()["k"].to_pylist()
        assert sorted(found) == kept[condition], condition
    assert sum(0 < len(rows) < NUM_ROWS for rows in kept.values()) >= len(CONDITIONS) - 6


def test_every_way_of_asking_reads_the_same_rows(
    spark: SparkSession, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several reads of one shuffle in one plan, each with its filter."""
    hours = "t >= '2024-03-10 01:30:00' AND t < TIMESTAMP '2024-03-11 00:30:00'"
    few = pc.field("k").isin([3, 17, NUM_ROWS + 1]) | ((pc.field("i") == 3) & (pc.field("d") < 0))
    by_option = {
        zone: spark.read.format("arrow_shuffle")
        .options(filter=hours, timeZone=zone)
        .load(str(path))
        for zone in (SESSION_TIME_ZONE, "UTC")
    }
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW few USING arrow_shuffle OPTIONS (path '{path}', "
        'filter "k IN (3, 17) OR i = 3 AND d < 0")'
    )
    asked = {
        "text": (open_shuffle(path).select(filter=hours).to_spark(spark), hours),
        "option": (by_option[SESSION_TIME_ZONE], hours),
        "UTC": (by_option["UTC"], hours.replace("0:00'", "0:00Z'")),
        "SQL": (spark.table("few"), "k IN (3, 17) OR i = 3 AND d < 0"),
        "expression": (
            open_shuffle(path).select("day", "k", filter=few).to_spark(spark),
            f"k IN (3, 17, {NUM_ROWS + 1}) OR i = 3 AND d < 0",
        ),
        "keys": (
            open_shuffle(path).select(key_values={"k": [5, None, 17]}).to_spark(spark),
            "k IN (5, NULL, 17)",
        ),
        "consumed": (
            arrow_shuffle.consume(path, consumer="c")
            .shuffle.select(filter="i = 3")
            .to_spark(spark),
            "i = 3",
        ),
    }
    found = [df.select(F.lit(way).alias("way"), "k") for way, (df, _) in asked.items()]
    rows = reduce(type(found[0]).union, found).collect()
    truths = [F.expr(condition).alias(way) for way, (_, condition) in asked.items()]
    table = all_rows(spark, path).select("k", *truths).toArrow().sort_by("k")
    for way in asked:
        expected = table.filter(pc.field(way))["k"].to_pylist()
        assert sorted(row["k"] for row in rows if row["way"] == way) == expected, way
        assert expected
    asked["text"][0].explain()
    assert f"arrow_shuffle {path} version 2 where t >= TIMESTAMP '2024-03-10 " in (
        capsys.readouterr().out
    )
    assert asked["keys"][0].rdd.getNumPartitions() == 1
    each = open_shuffle(path).select(key_values={"k": 5}).to_spark(spark, coalesce=False)
    assert each.rdd.getNumPartitions() == N


@exhaustive(but="how", least=2)
@pytest.mark.parametrize("how", ["inner", "left", "full", "anti"])
def test_filters_of_a_join_apply_before_it(spark: SparkSession, path: Path, how: str) -> None:
    filters = ("k IN (1, 2, 3, 40)", "k IN (2, 3, 50, 60) AND day <= '2024-02-20'")
    sides = [
        open_shuffle(path).select("k", name).to_spark(spark).where(condition)
        for name, condition in zip(("p", "day"), filters, strict=True)
    ]
    joined = (
        open_shuffle(path)
        .select("p", filter=filters[0])
        .join(open_shuffle(path).select("day", filter=filters[1]), "k", how)
        .to_spark(spark)
    )
    expected = sides[0].join(sides[1], "k", how)
    assert sorted(map(tuple, joined.collect()), key=str) == sorted(
        map(tuple, expected.collect()), key=str
    )


def test_filters_of_aggregations_and_functions(spark: SparkSession, path: Path) -> None:
    condition = "b AND t < '2024-02-01'"
    sums = open_shuffle(path).select(filter=condition).aggregate("k", {"i": "sum"}).to_spark(spark)
    expected = all_rows(spark, path).where(condition).groupBy("k").agg(F.sum("i"))
    assert sorted(map(tuple, sums.collect())) == sorted(map(tuple, expected.collect()))
    nothing = (
        open_shuffle(path)
        .select(filter="k = 1 AND k = 2")
        .aggregate("k", {"*": "count"})
        .to_spark(spark)
    )
    assert nothing.collect() == []

    def count(subpartition: int, left: BatchReader, right: BatchReader) -> Iterator[pa.RecordBatch]:
        counts = [[rows.read_all().num_rows] for rows in (left, right)]
        yield pa.record_batch([[subpartition], *counts], ["subpartition", "left", "right"])

    five = open_shuffle(path).select("s", filter="k = 5")
    counted = five.map_subpartitions(
        count,
        "subpartition long, left long, right long",
        others=open_shuffle(path).select("s"),
    )
    counted = counted.to_spark(spark).collect()
    assert [row["subpartition"] for row in counted] == [*range(N)]
    assert (sum(row["left"] for row in counted), sum(row["right"] for row in counted)) == (
        1,
        NUM_ROWS,
    )


@pytest.mark.parametrize(
    ("condition", "error", "message"),
    [
        ("x = 3", SchemaError, "column 'x' is not there; columns are k, i, day, "),
        ("i = DATE '2024-06-01'", SchemaError, "column 'i' is int32, which does not compare with"),
        ("i = 3 AND", OptionError, "does not parse: line 1, column 7"),
    ],
)
def test_a_filter_that_does_not_fit_is_an_error_before_any_task(
    spark: SparkSession, path: Path, condition: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        open_shuffle(path).select(filter=condition).to_spark(spark)
    with pytest.raises(AnalysisException, match=f"(?s){error.__name__}.*{message}"):
        spark.read.format("arrow_shuffle").option("filter", condition).load(str(path))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "key column 'k' is missing"),
        ({"k": 1, "i": 2}, "column 'i' is not a key column"),
        ({"k": 1.5}, "column 'k' does not fit the stored type int64"),
    ],
)
def test_keys_that_do_not_fit_are_an_error_before_any_task(
    spark: SparkSession, path: Path, keys: dict[str, object], message: str
) -> None:
    with pytest.raises(SchemaError, match=message):
        open_shuffle(path).select(key_values=keys).to_spark(spark)
