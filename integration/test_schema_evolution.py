"""Appends of DataFrames with other columns, read back by Spark, by a stream, and without Spark."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import arrow_shuffle
from arrow_format import WriteOptions, merge_shuffle, write_shuffle
from arrow_format.errors import SchemaError
from arrow_shuffle import open_shuffle
from connector.spark_version import ADMISSION_CONTROL
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    Append = Callable[[DataFrame, Path, bool], None]

EVOLVES = WriteOptions(sync=False, schema_evolution=True)
N = 4


def by_source(df: DataFrame, path: Path, evolves: bool) -> None:
    writer = df.write.format("arrow_shuffle").mode("append")
    writer = writer.options(keys="k", numSubpartitions=N)
    (writer.option("mergeSchema", "true") if evolves else writer).save(str(path))


def by_function(df: DataFrame, path: Path, evolves: bool) -> None:
    options = WriteOptions(sync=False, schema_evolution=evolves)
    arrow_shuffle.write_shuffle(
        df, str(path), keys="k", num_subpartitions=N, mode="append", options=options
    )


def by_hook(df: DataFrame, path: Path, evolves: bool) -> None:
    options = WriteOptions(sync=False, schema_evolution=evolves)
    task = arrow_shuffle.ShuffleMapTask(
        str(path), schema=df.schema, keys="k", num_subpartitions=N, options=options
    )
    statuses = df.mapInArrow(task, task.status_schema).collect()
    arrow_shuffle.commit_shuffle(task, statuses, mode="append")


WAYS = [by_source, by_function, by_hook]


def load(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    return spark.read.format("arrow_shuffle").options(**options).load(str(path))


def rows(df: DataFrame) -> list[dict[str, Any]]:
    return sorted((row.asDict(recursive=True) for row in df.collect()), key=lambda row: row["k"])


@guarantee("evolved schema")
@pytest.mark.parametrize("append", WAYS)
def test_other_columns_are_appended_and_read(spark: SparkSession, tmp_path: Path, append: Append):
    path = tmp_path / "s"
    append(spark.sql("SELECT 1L AS k, 2S AS a, DECIMAL(1.5) AS d"), path, False)
    # In another order, without a nullable column, and narrower: no option is needed.
    append(spark.sql("SELECT 7Y AS a, 2L AS k, CAST(2.5 AS DECIMAL(10,0)) AS d"), path, False)
    first = load(spark, path)
    assert first.dtypes == [("k", "bigint"), ("a", "smallint"), ("d", "decimal(10,0)")]
    new = spark.sql(
        "SELECT parse_json('[1]') AS j, 70000 AS a, 3L AS k, CAST(9 AS DECIMAL(20,0)) AS d,"
        " named_struct('x', ARRAY(1, NULL)) AS s"
    )
    with pytest.raises(Exception, match=r"schema_evolution=True \(option mergeSchema\)"):
        append(new, path, False)
    append(new, path, True)
    df = load(spark, path)
    assert df.dtypes == [
        ("k", "bigint"),
        ("a", "int"),
        ("d", "decimal(20,0)"),
        ("j", "variant"),
        ("s", "struct<x:array<int>>"),
    ]
    found = rows(df.selectExpr("k", "a", "d", "to_json(j) AS j", "s"))
    none = {"j": None, "s": None}
    assert found == [
        {"k": 1, "a": 2, "d": Decimal(2), **none},
        {"k": 2, "a": 7, "d": Decimal(3), **none},
        {"k": 3, "a": 70_000, "d": Decimal(9), "j": "[1]", "s": {"x": [1, None]}},
    ]
    merge_shuffle(path, options=EVOLVES, by="map_output")
    assert rows(load(spark, path).selectExpr("k", "a", "d", "to_json(j) AS j", "s")) == found
    assert rows(load(spark, path).select("s", "k")) == [
        {"s": row["s"], "k": row["k"]} for row in found
    ]
    assert load(spark, path, version=2).dtypes == first.dtypes
    assert rows(load(spark, path, version=2)) == [
        {name: row[name] for name in "kad"} for row in found[:2]
    ]
    plain = open_shuffle(path).read(columns=["k", "a", "d"]).read_all().sort_by("k").to_pylist()
    assert plain == [{name: row[name] for name in "kad"} for row in found]


def test_columns_added_without_spark_are_read_by_it(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    by_source(
        spark.sql("SELECT 1L AS k, 2S AS a, CASE WHEN uuid() > '' THEN parse_json('1') END AS j"),
        path,
        False,
    )
    table = pa.table({"n": pa.array([7], pa.uint8()), "a": pa.array([1 << 20]), "k": [2]})
    write_shuffle(table, path, num_subpartitions=N, keys="k", mode="append", options=EVOLVES)
    by_source(spark.sql("SELECT 3L AS k, 9S AS n, 'x' AS t"), path, True)
    df = load(spark, path)
    assert df.dtypes == [
        ("k", "bigint"), ("a", "bigint"), ("j", "variant"), ("n", "smallint"), ("t", "string"),
    ]  # fmt: skip
    assert rows(df.drop("j")) == [
        {"k": 1, "a": 2, "n": None, "t": None},
        {"k": 2, "a": 1 << 20, "n": 7, "t": None},
        {"k": 3, "a": None, "n": 9, "t": "x"},
    ]
    with pytest.raises(SchemaError, match="column 'j' is"):
        by_function(spark.sql("SELECT 4L AS k, binary('x') AS j"), path, True)


def test_a_join_and_an_aggregation_of_old_and_new_files(spark: SparkSession, tmp_path: Path):
    left, right = tmp_path / "left", tmp_path / "right"
    for path in (left, right):
        by_source(spark.range(100).selectExpr("id AS k", "CAST(id AS INT) AS a"), path, False)
        by_source(spark.range(50, 150).selectExpr("id AS a", "'new' AS b", "id AS k"), path, True)
    joined = (
        open_shuffle(str(left))
        .join(open_shuffle(str(right)), on="k", suffixes=("", "_right"))
        .to_spark(spark)
    )
    counts = joined.groupBy("k").count().collect()
    assert {row.k: row["count"] for row in counts} == {
        k: 4 if 50 <= k < 100 else 1 for k in range(150)
    }
    assert dict(joined.dtypes)["a"] == "bigint"
    asked = {"total": ("a", "sum"), "news": ("b", "count")}
    total = open_shuffle(str(left)).aggregate("k", asked).to_spark(spark)
    sums = {row.k: (row.total, row.news) for row in total.collect()}
    assert sums == {k: (k * (2 if 50 <= k < 100 else 1), int(k >= 50)) for k in range(150)}


def widths(subpartition: int, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a subpartition that lack the new column, and those that have it."""
    table = reader.read_all()
    assert table.schema.names == ["a", "b"]
    assert table.schema.field("a").type == pa.int64()
    lacking = table["b"].null_count
    yield pa.record_batch({"lacking": [lacking], "having": [len(table) - lacking]})


def test_functions_get_rows_with_all_columns(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    by_source(spark.range(100).selectExpr("id AS k", "CAST(id AS INT) AS a"), path, False)
    by_source(spark.range(50).selectExpr("id AS a", "'new' AS b", "id AS k"), path, True)
    counts = (
        open_shuffle(str(path))
        .select("a", "b")
        .map_subpartitions(widths, "lacking long, having long")
        .to_spark(spark)
    )
    assert counts.groupBy().sum().first() == (100, 50)


def test_sql_inserts_by_position_as_before(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    by_source(spark.sql("SELECT 1L AS k, 2L AS v"), path, False)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW evolving USING arrow_shuffle OPTIONS (path '{path}')"
    )
    spark.sql("INSERT INTO evolving SELECT 3L AS v, 4L AS k")
    spark.sql("INSERT INTO evolving (v, k) SELECT 6L, 5L")
    assert rows(load(spark, path)) == [{"k": 1, "v": 2}, {"k": 3, "v": 4}, {"k": 5, "v": 6}]
    spark.sql("DROP VIEW evolving")


# Streams ------------------------------------------------------------------------------------------


def follow(spark: SparkSession, path: Path, checkpoint: Path, **options: object) -> list[Any]:
    """Read what is new; return the types and rows of each batch."""
    batches: list[Any] = []

    def keep(batch: DataFrame, _: int) -> None:
        batches.append((dict(batch.dtypes), rows(batch)))

    reader = spark.readStream.format("arrow_shuffle").options(**options)
    writer = reader.load(str(path)).writeStream.foreachBatch(keep)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    return batches


def test_a_stream_that_is_started_again_reads_new_columns(spark: SparkSession, tmp_path: Path):
    path, checkpoint = tmp_path / "s", tmp_path / "checkpoint"
    by_source(spark.sql("SELECT 1L AS k, 2 AS a"), path, False)
    assert follow(spark, path, checkpoint) == [({"k": "bigint", "a": "int"}, [{"k": 1, "a": 2}])]
    by_source(spark.sql("SELECT 2L AS k, 3 AS a"), path, False)
    by_source(spark.sql("SELECT 'x' AS b, 3L AS k, 4L AS a"), path, True)
    types = {"k": "bigint", "a": "bigint", "b": "string"}
    # A version of before the change too, in a batch of its own where Spark keeps limits.
    batches = [[{"k": 2, "a": 3, "b": None}], [{"k": 3, "a": 4, "b": "x"}]]
    limits = {"maxVersionsPerTrigger": 1} if ADMISSION_CONTROL else {}
    batches = batches if ADMISSION_CONTROL else [[*batches[0], *batches[1]]]
    assert follow(spark, path, checkpoint, **limits) == [(types, batch) for batch in batches]
    assert follow(spark, path, tmp_path / "another") == [
        (types, [
            {"k": 1, "a": 2, "b": None}, {"k": 2, "a": 3, "b": None}, {"k": 3, "a": 4, "b": "x"},
        ])
    ]  # fmt: skip


def test_a_running_stream_ignores_new_columns_and_stops_at_wider_ones(
    spark: SparkSession, tmp_path: Path
):
    path, checkpoint = tmp_path / "s", tmp_path / "checkpoint"
    by_source(spark.sql("SELECT 1L AS k, 2 AS a"), path, False)
    batches: list[Any] = []
    reader = spark.readStream.format("arrow_shuffle").load(str(path))
    query = (
        reader.writeStream.foreachBatch(lambda batch, _: batches.append(rows(batch)))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    query.processAllAvailable()
    by_source(spark.sql("SELECT 2L AS k, 3 AS a, 'x' AS b"), path, True)
    query.processAllAvailable()
    assert batches == [[{"k": 1, "a": 2}], [{"k": 2, "a": 3}]]
    by_source(spark.sql("SELECT 3L AS k, 4L AS a"), path, True)
    with pytest.raises(StreamingQueryException, match=r"is bigint, not int.*start the query"):
        query.processAllAvailable()
    query.stop()
    ((types, read),) = follow(spark, path, checkpoint)
    assert types == {"k": "bigint", "a": "bigint", "b": "string"}
    assert read == [{"k": 3, "a": 4, "b": None}]


def test_a_sink_with_the_option(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    by_source(spark.sql("SELECT 1L AS k, 2 AS a"), path, False)
    files = tmp_path / "files"
    spark.sql("SELECT 2L AS k, 'x' AS b, 5L AS a").write.json(str(files))
    reader = spark.readStream.schema("b string, a bigint, k bigint").json(str(files))
    for evolves in ("false", "true"):
        query = (
            reader.writeStream.format("arrow_shuffle")
            .options(mergeSchema=evolves, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(path))
        )
        if evolves == "false":
            with pytest.raises(StreamingQueryException, match="option mergeSchema"):
                query.awaitTermination(120)
        else:
            query.awaitTermination(120)
    assert rows(load(spark, path)) == [
        {"k": 1, "a": 2, "b": None}, {"k": 2, "a": 5, "b": "x"},
    ]  # fmt: skip
    stored = json.loads(open_shuffle(path).spark_schema or "")
    assert [field["type"] for field in stored["fields"]] == ["long", "long", "string"]
