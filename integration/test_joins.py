"""Joins and aggregations of shuffles against Spark's own, on TPC-H and on awkward rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import BroadcastPartitioner, OptionError, SchemaError
from arrow_shuffle import MergePolicy, open_shuffle
from integration.programs.datasets import lineitem, orders
from integration.programs.ways import FAST
from integration.test_broadcast_and_disks import SkewedJoin
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

KINDS = ["inner", "left", "right", "full", "semi", "anti"]
N = 24


def digest(df: DataFrame) -> list[object]:
    """Columns with their types, number of rows, and a sum over all values, made by Spark."""
    text = ", ".join(f"to_json(struct(`{name}`))" for name in df.columns)
    row = df.selectExpr(f"xxhash64({text}) AS h").selectExpr(
        "count(*)", "sum(cast(h AS decimal(30)))"
    ).first()  # fmt: skip
    assert row is not None
    return [[(f.name, f.dataType) for f in df.schema], *row]


@pytest.fixture(scope="module")
def awkward(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[DataFrame, Path]]:
    """Two frames with null, NaN, zero and repeated keys, and their shuffles."""
    directory = tmp_path_factory.mktemp("awkward")
    key = (
        "CASE id % 23 WHEN 0 THEN NULL WHEN 1 THEN double('NaN') WHEN 2 THEN 0.0D "
        "WHEN 3 THEN -0.0D ELSE (id * {step}) % 170 END AS k"
    )
    text = "IF(id % 11 = 0, NULL, concat('é', id % 3)) AS t"
    frames = {
        "left": spark.range(0, 1_500, 1, 2).selectExpr(
            key.format(step=1), text, "id AS v", "timestamp_seconds(id) AS at",
            "cast(id AS decimal(25, 3)) AS d", "map('x', array(named_struct('y', id))) AS m",
        ),
        "right": spark.range(0, 700, 1, 2).selectExpr(
            key.format(step=3), text, "id AS w", "array(id, NULL) AS a",
            "timestamp_ntz'2020-01-01' AS z", "parse_json('[1]') AS j",
        ),
    }  # fmt: skip
    made = {}
    for name, frame in frames.items():
        path = directory / name
        arrow_shuffle.write_shuffle(frame, path, keys=["k", "t"], num_subpartitions=N, options=FAST)
        made[name] = frame, path
    right = frames["right"]
    everyone = BroadcastPartitioner()
    path = directory / "everyone"
    arrow_shuffle.write_shuffle(
        right, path, partitioner=everyone, num_subpartitions=2, options=FAST
    )  # fmt: skip
    made["everyone"] = right, path
    return made


@guarantee("joins")
@pytest.mark.parametrize("how", KINDS)
def test_awkward_keys_join_as_in_spark(
    spark: SparkSession, awkward: dict[str, tuple[DataFrame, Path]], how: str
):
    (left, left_path), (right, right_path) = awkward["left"], awkward["right"]
    found = open_shuffle(left_path).join(open_shuffle(right_path), how=how).to_spark(spark)
    expected = left.join(right, on=["k", "t"], how=how)
    assert digest(found) == digest(expected)
    assert {f.name: f.nullable for f in found.schema} == {
        f.name: f.nullable for f in expected.schema
    }


def test_a_broadcast_right_side(spark: SparkSession, awkward: dict[str, tuple[DataFrame, Path]]):
    (left, left_path), (right, everyone) = awkward["left"], awkward["everyone"]
    found = (
        open_shuffle(left_path)
        .join(open_shuffle(everyone), on="t", how="left", suffixes=("", "_r"))
        .to_spark(spark)
    )
    expected = left.join(right.withColumnRenamed("k", "k_r"), on="t", how="left")
    assert digest(found) == digest(expected)
    with pytest.raises(OptionError, match="is broadcast, so each subpartition would return"):
        open_shuffle(left_path).join(open_shuffle(everyone), on="t", how="full").to_spark(spark)


@pytest.fixture(scope="module")
def tpch(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("tpch")
    for name, source, key in (
        ("lineitem", lineitem(0.02), "l_orderkey"),
        ("orders", orders(0.02), "o_orderkey"),
    ):
        rows = spark.read.parquet(str(source))
        spark.read.parquet(str(source)).createOrReplaceTempView(name)
        arrow_shuffle.write_shuffle(
            rows, directory / name, keys=key, num_subpartitions=200, options=FAST
        )
    return {name: directory / name for name in ("lineitem", "orders")}


@guarantee("any n")
@pytest.mark.parametrize("how", ["left", "full", "semi"])
def test_shuffles_of_several_numbers_join_as_in_spark(
    spark: SparkSession,
    awkward: dict[str, tuple[DataFrame, Path]],
    tmp_path: Path,
    how: Literal["left", "full", "semi"],
):
    (left, left_path), (right, _) = awkward["left"], awkward["right"]
    sides = [open_shuffle(left_path)]
    for n in (N * 3 // 2, N + 1):
        arrow_shuffle.write_shuffle(
            right, tmp_path / str(n), keys=["k", "t"], num_subpartitions=n, options=FAST
        )
        sides.append(open_shuffle(tmp_path / str(n)))
    joined = sides[0].join(sides[1], how=how)
    assert joined.num_subpartitions == N // 2
    expected = left.join(right, on=["k", "t"], how=how)
    assert digest(joined.to_spark(spark)) == digest(expected)
    joined.write(tmp_path / "out", spark=spark, options=FAST)
    assert digest(open_shuffle(tmp_path / "out").to_spark(spark)) == digest(expected)
    assert "read by 12 subpartitions: 1 reads 1, 13 of 24" in str(joined.explain(spark))
    with pytest.raises(OptionError, match=r"has 24, .* has 25, so .* as 1, by 1 task where"):
        sides[0].join(sides[2], how=how).to_spark(spark)


@guarantee("pieces")
@pytest.mark.parametrize("how", ["left", "anti", "inner"])
def test_a_hot_key_is_joined_in_pieces(
    spark: SparkSession, tmp_path: Path, how: Literal["left", "anti", "inner"]
):
    rows = spark.range(0, 1_000_000, 1, 2).selectExpr(
        "IF(id % 2 = 0, 0L, id % 50021) AS k", "hash(id) AS v"
    )
    others = spark.range(0, 40_000, 2).selectExpr("id AS k", "id * 3 AS w")
    sides = []
    for name, frame in (("rows", rows), ("others", others)):
        path = tmp_path / name
        arrow_shuffle.write_shuffle(frame, path, keys="k", num_subpartitions=N, options=FAST)
        open_shuffle(path).merge("subpartition", policy=MergePolicy(rewrite="always"))
        sides.append(open_shuffle(path))
    joined = sides[0].join(sides[1], how=how)
    frame = joined.to_spark(spark, target_partition_bytes=512 << 10)
    assert digest(frame) == digest(rows.join(others, on="k", how=how))
    (note,) = joined.explain(spark, target_partition_bytes=512 << 10).notes
    assert note.endswith(" pieces, by a task each")
    counts = frame.selectExpr("spark_partition_id() AS p").groupBy("p").count().collect()
    assert max(row["count"] for row in counts) < 250_000
    hot = sides[1].join(sides[0], how=how)  # on the right alone
    assert digest(hot.to_spark(spark, target_partition_bytes=512 << 10)) == digest(
        others.join(rows, on="k", how=how)
    )


@guarantee("joins")
@pytest.mark.parametrize("how", ["inner", "right", "anti"])
def test_tpch_joins_as_in_sql(spark: SparkSession, tpch: dict[str, Path], how: str):
    small = "o_orderdate < date'1995-01-01'"
    found = (
        open_shuffle(tpch["lineitem"])
        .join(open_shuffle(tpch["orders"]), on=[("l_orderkey", "o_orderkey")], how=how)
        .to_spark(spark)
    )
    expected = spark.sql(
        f"SELECT * FROM lineitem {'LEFT ' * (how == 'anti')}{how} JOIN orders "
        "ON l_orderkey = o_orderkey"
    )
    if how != "anti":
        found, expected = found.where(small), expected.where(small)
    assert digest(found) == digest(expected)


def test_revenue_per_priority(spark: SparkSession, tpch: dict[str, Path]):
    joined = (
        open_shuffle(tpch["lineitem"])
        .select("l_extendedprice", "l_discount")
        .join(
            open_shuffle(tpch["orders"]).select("o_orderpriority"),
            on=[("l_orderkey", "o_orderkey")],
        )
        .to_spark(spark)
    )
    assert joined.columns == ["l_extendedprice", "l_discount", "o_orderpriority"]
    joined.createOrReplaceTempView("joined")
    query = (
        "SELECT o_orderpriority, sum(l_extendedprice * (1 - l_discount)) FROM {} GROUP BY 1 "
        "ORDER BY 1"
    )
    expected = spark.sql(query.format("lineitem JOIN orders ON l_orderkey = o_orderkey")).collect()
    assert len(expected) == 5
    assert spark.sql(query.format("joined")).collect() == expected


def test_what_is_done_with_joined_rows_inside_the_tasks(
    spark: SparkSession, awkward: dict[str, tuple[DataFrame, Path]]
):
    (left, left_path), (right, right_path) = awkward["left"], awkward["right"]

    def count(joined: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        assert joined.schema.names == ["k", "t", "v", "w"]
        for batch in joined:
            yield pa.record_batch({"n": [batch.num_rows], "nulls": [batch["w"].null_count]})

    def fail(_: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        raise KeyError("what") from IndexError("which")

    some, others = open_shuffle(left_path).select("v"), open_shuffle(right_path).select("w")
    schema = "n bigint, nulls bigint"
    parts = some.join(others, how="left", then=count, schema=schema).to_spark(spark)
    expected = left.join(right, on=["k", "t"], how="left")
    assert parts.agg(F.sum("n"), F.sum("nulls")).first() == (
        expected.agg(F.count("*"), F.count_if(F.isnull("w"))).first()
    )
    failing = some.join(others, how="left", then=fail, schema=schema).to_spark(spark)
    with pytest.raises(PythonException) as caught:
        failing.collect()
    assert "KeyError: 'what'" in str(caught.value)
    assert "IndexError: which" in str(caught.value)
    assert f"in then of a join, subpartitions 0 to {N - 1} of {left_path} and" in str(caught.value)
    with pytest.raises(OptionError, match="then and schema: expected both or neither"):
        some.join(others, how="left", then=count)


@guarantee("aggregations")
def test_tpch_aggregates_as_in_sql(spark: SparkSession, tpch: dict[str, Path]):
    found = (
        open_shuffle(tpch["lineitem"])
        .aggregate(
            ["l_orderkey", "l_returnflag"],
            {
                "n": ("*", "count"),
                "q": ("l_quantity", "sum"),
                "price": ("l_extendedprice", "avg"),
                "spread": ("l_discount", "stddev"),
                "first_day": ("l_shipdate", "min"),
                "modes": ("l_shipmode", "count_distinct"),
            },
        )
        .to_spark(spark)
    )
    expected = spark.sql(
        "SELECT l_orderkey, l_returnflag, count(*) AS n, sum(l_quantity) AS q, "
        "avg(l_extendedprice) AS price, stddev(l_discount) AS spread, min(l_shipdate) AS "
        "first_day, count(DISTINCT l_shipmode) AS modes FROM lineitem GROUP BY 1, 2"
    )
    rounded = F.round("spread", 9)
    assert digest(found.withColumn("spread", rounded)) == digest(
        expected.withColumn("spread", rounded)
    )


def test_awkward_groups_are_those_of_spark(
    spark: SparkSession, awkward: dict[str, tuple[DataFrame, Path]]
):
    left, path = awkward["left"]
    found = open_shuffle(path).aggregate(["t", "k"], [("v", "sum"), ("v", "mean")]).to_spark(spark)
    expected = left.groupBy("t", "k").agg(
        F.sum("v").alias("v_sum"), F.avg("v").alias("v_mean")
    )  # fmt: skip
    assert digest(found) == digest(expected)
    with pytest.raises(OptionError, match=r"lack the partition key\(s\) t of"):
        open_shuffle(path).aggregate("k", [("v", "sum")]).to_spark(spark)
    with pytest.raises(SchemaError, match="which Spark cannot read"):
        open_shuffle(path).aggregate(["k", "t"], [("v", "tdigest")]).to_spark(spark)


def test_types_that_arrow_does_not_tell_apart(spark: SparkSession, tmp_path: Path):
    """Units of intervals, collations and VARIANT are those of the column, as in Spark."""
    df = spark.range(40).selectExpr(
        "id % 3 AS k", "make_dt_interval(0, id) AS s", "cast(id AS interval hour) AS h",
        "concat('A', id) COLLATE UTF8_LCASE AS c", "parse_json(string(id)) AS j",
    )  # fmt: skip
    arrow_shuffle.write_shuffle(df, tmp_path / "s", keys="k", num_subpartitions=2, options=FAST)
    asked = {"a": ("s", "sum"), "b": ("h", "sum"), "c": ("h", "max"), "d": ("h", "avg"),
             "e": ("c", "first"), "f": ("h", "collect_list"), "g": ("j", "count"),
             "h": ("j", "first")}  # fmt: skip
    found = open_shuffle(tmp_path / "s").aggregate("k", asked).to_spark(spark)
    sums = [F.sum("s"), F.sum("h"), F.max("h"), F.avg("h")]
    others = [F.first("c"), F.collect_list("h"), F.count("j"), F.first("j")]
    expected = df.groupBy("k").agg(
        *(column.alias(name) for name, column in zip("abcdefgh", [*sums, *others], strict=True))
    )
    assert [f.dataType for f in found.schema] == [f.dataType for f in expected.schema]
    assert [f.nullable for f in found.schema][1:] == [f.nullable for f in expected.schema][1:]
    some = ["k", "a", "b", "c", "d", "g"]
    assert digest(found.select(some)) == digest(expected.select(some))
    assert found.selectExpr("e", "size(f)", "cast(h AS int) % 3 = k").count() == 3
    with pytest.raises(SchemaError, match="'c' has the collation UTF8_LCASE, and only bytes"):
        open_shuffle(tmp_path / "s").aggregate("k", {"c": "max"}).to_spark(spark)


def test_overflow_names_column_and_group(spark: SparkSession, tmp_path: Path):
    df = spark.range(40).selectExpr("id % 3 AS k", "IF(id % 3 = 2, 1L << 60, id) AS v")
    arrow_shuffle.write_shuffle(df, tmp_path / "s", keys="k", num_subpartitions=2, options=FAST)
    found = open_shuffle(tmp_path / "s").aggregate("k", {"v": "sum"}).to_spark(spark)
    with pytest.raises(PythonException) as caught:
        found.collect()
    message = "ArithmeticOverflowError: sum(v) of the group k=2 is outside of what int64 holds"
    assert message in str(caught.value)


def test_options_of_aggregations_arrive_in_tasks(
    spark: SparkSession, awkward: dict[str, tuple[DataFrame, Path]]
):
    left, path = awkward["left"]
    asked = {"all": ("t", "count", pc.CountOptions(mode="all")),
             "s": ("v", "stddev", pc.VarianceOptions(ddof=1))}  # fmt: skip
    found = open_shuffle(path).aggregate(["k", "t"], asked).to_spark(spark)
    expected = left.groupBy("k", "t").agg(
        F.count("*").alias("all"), F.round(F.stddev("v"), 3).alias("s")
    )
    assert digest(found.withColumn("s", F.round("s", 3))) == digest(expected)


class SkewedOnOneSide(SkewedJoin):
    """Which keys are large is not part of the description: only one side has them."""

    def describe(self) -> dict[str, object]:
        return {"kind": "skewed_on_one_side"}


def test_rows_that_a_partitioner_broadcasts(spark: SparkSession, tmp_path: Path):
    """On a side where they meet each row of the other once, and nowhere else."""
    df = spark.range(600).selectExpr("id % 100 AS k", "id AS v")
    for name, large in (("some", (7, 8)), ("none", ())):
        arrow_shuffle.write_shuffle(
            df.withColumnRenamed("v", name), tmp_path / name, num_subpartitions=N, options=FAST,
            partitioner=SkewedOnOneSide("k", large),
        )  # fmt: skip
    some, none = tmp_path / "some", tmp_path / "none"
    found = open_shuffle(none).join(open_shuffle(some), on="k", how="left").to_spark(spark)
    expected = df.withColumnRenamed("v", "none").join(
        df.withColumnRenamed("v", "some"), on="k", how="left"
    )
    assert digest(found) == digest(expected)
    with pytest.raises(OptionError, match="both have broadcast rows"):
        open_shuffle(some).join(open_shuffle(some), on="k", suffixes=("_l", "_r")).to_spark(spark)
    with pytest.raises(OptionError, match="rows of the shuffle are broadcast"):
        open_shuffle(some).aggregate("k", [([], "count_all")]).to_spark(spark)


def test_keys_of_different_types(spark: SparkSession, tmp_path: Path):
    df = spark.range(9)
    for name, expression in (("int", "cast(id AS int) AS k"), ("date", "date'2020-01-01' AS k"),
                             ("short", "cast(id AS short) AS k")):  # fmt: skip
        arrow_shuffle.write_shuffle(
            df.selectExpr(expression), tmp_path / name, keys="k", num_subpartitions=3, options=FAST
        )
    with pytest.raises(OptionError, match="not co-partitioned"):
        open_shuffle(tmp_path / "int").join(open_shuffle(tmp_path / "date")).to_spark(spark)
    message = "key 'k' of the left is int32, 'k' of the right int16: cast one of them"
    with pytest.raises(SchemaError, match=message):
        open_shuffle(tmp_path / "int").join(open_shuffle(tmp_path / "short")).to_spark(spark)


def test_one_hot_key_takes_bounded_memory(spark: SparkSession, tmp_path: Path):
    """Four million pairs of one key, put out piece by piece."""
    for name in "ab":
        df = spark.range(2_000).selectExpr("1 AS k", f"concat(repeat('x', 100), id) AS {name}")
        arrow_shuffle.write_shuffle(
            df, tmp_path / name, keys="k", num_subpartitions=4, options=FAST
        )
    joined = open_shuffle(tmp_path / "a").join(open_shuffle(tmp_path / "b")).to_spark(spark)
    assert joined.select("a").agg(F.count("a"), F.count_distinct("a")).first() == (4_000_000, 2_000)
