"""A function per group of a kept shuffle against ``groupBy(...).applyInPandas`` of its rows."""

from __future__ import annotations

from collections.abc import Iterator  # noqa: TC003 - Spark looks it up
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PythonException

import arrow_shuffle
from arrow_format import HashPartitioner, RangePartitioner
from arrow_shuffle import open_shuffle
from connector.spark_version import SPARK
from integration.programs.ways import FAST, assert_same_rows
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

N = 11

TYPES = """
    CAST(id % 7 AS TINYINT) AS i8, IF(id % 5 = 0, NULL, CAST(id AS SMALLINT)) AS i16,
    IF(id % 300 < 150, NULL, CAST(id AS INT)) AS i32, IF(id % 4 = 0, NULL, id) AS i64,
    CAST(id / 3 AS FLOAT) AS f32,
    IF(id % 6 = 0, double('NaN'), IF(id % 7 = 0, NULL, id / 7D)) AS f64,
    IF(id % 3 = 0, NULL, id % 2 = 0) AS maybe, id % 2 = 0 AS surely, concat('t', id % 9) AS t,
    CAST(concat('b', id) AS BINARY) AS b, CAST(id AS DECIMAL(20, 2)) / 7 AS d,
    date_add(DATE'2024-02-27', CAST(id % 5 AS INT)) AS day,
    timestamp_seconds(1700000000 + id * 1801) AS at, timestamp_ntz'2024-03-31 02:30:00' AS local,
    array(id, IF(id % 41 = 5, NULL, id)) AS a, named_struct('x', id, 'y', concat('s', id)) AS s,
    map('k', id) AS m,
    make_dt_interval(0, CAST(id AS INT)) AS span, array(timestamp_seconds(id)) AS times
"""


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows of many types, with keys that are null, NaN, and both zeros."""
    key = (
        "CASE id % 23 WHEN 0 THEN NULL WHEN 1 THEN double('NaN') WHEN 2 THEN 0.0D "
        "WHEN 3 THEN -0.0D ELSE CAST(id % 41 AS DOUBLE) END AS k"
    )
    return spark.range(0, 1_200, 1, 3).selectExpr(
        "id", key, "IF(id % 2 = 0, NULL, CAST(id % 3 AS INT)) AS j", *_split(TYPES)
    )


def _split(text: str) -> list[str]:
    """Split at the commas outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


@pytest.fixture(scope="module")
def kept(spark: SparkSession, rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("groups") / "kept"
    # In two versions, so that groups span files and regions.
    half = {"keys": ["k", "j"], "num_subpartitions": N, "options": FAST}
    arrow_shuffle.write_shuffle(rows.where("id % 2 = 0"), path, **half)
    open_shuffle(path).append(rows.where("id % 2 = 1"), options=FAST)
    return path


def shown(value: Any) -> str:
    """Text of a value of any type; groups have no order, so a frame is shown by its rows' ids."""
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ndarray":
        return f"{type(value).__name__}[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return str({name: shown(inside) for name, inside in value.items()})
    return f"{type(value).__name__} {value!r}"


def described(key: tuple[object, ...], frame: pd.DataFrame) -> pd.DataFrame:
    """What a function sees of a group: key, types, index and values."""
    frame = frame.sort_values("id")
    types = [f"{name} {kind}" for name, kind in frame.dtypes.items()]
    values = [[shown(value) for value in frame[name]] for name in frame if name != "k"]
    # Of the two zeros, which is the key depends on the order of the rows.
    names = [shown(0.0 if part == 0 and isinstance(part, float) else part) for part in key]
    index = type(frame.index).__name__ if len(frame) < 2 else str(sorted(frame.index)[-1])
    return pd.DataFrame(
        {
            "key": [str(names)],
            "n": [len(frame)],
            "types": [str(types)],
            "values": [str(values)],
            "numbered": [index],
        }
    )


SEEN = "key string, n bigint, types string, values string, numbered string"


@guarantee("groups")
@pytest.mark.parametrize("zone", ["Asia/Kolkata"])
def test_a_function_sees_what_it_sees_in_apply_in_pandas(
    spark: SparkSession, rows: DataFrame, kept: Path, zone: str
):
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        expected = rows.groupBy("k", "j").applyInPandas(described, SEEN).toArrow()
        found = open_shuffle(kept).map_groups(described, SEEN).to_spark(spark).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert_same_rows(found, expected)
    assert len(found) > 80
    assert pa.compute.sum(found["n"]).as_py() == 1_200


def returned(frame: pd.DataFrame) -> pd.DataFrame:
    """Values that have to be cast, in types that differ from group to group."""
    first = frame.sort_values("id").head(3)
    number = int(first["id"].iloc[0])
    made = pd.DataFrame(
        {
            "at": first["at"],
            "local": first["at"].dt.floor("h"),
            "small": first["id"] if number % 2 else first["id"].astype(float),
            "wide": [1, 2.5, None][: len(first)],
            "text": pd.Categorical(first["t"]),
            "d": first["d"],
            "day": first["day"],
            "flag": first["maybe"],
            "a": first["a"],
            "s": first["s"],
            "m": first["m"],
        }
    )
    return made.iloc[:0] if number % 5 == 0 else made


RETURNED = (
    "m map<string, bigint>, small smallint, at timestamp, local timestamp_ntz, wide float, "
    "text string, d decimal(25, 8), day date, flag boolean, a array<bigint>, "
    "s struct<x: bigint, y: string>"
)


@guarantee("groups")
@pytest.mark.parametrize("zone", ["America/New_York"])
def test_results_are_cast_as_in_apply_in_pandas(
    spark: SparkSession, rows: DataFrame, kept: Path, zone: str
):
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", zone)
        expected = rows.groupBy("k", "j").applyInPandas(returned, RETURNED)
        found = open_shuffle(kept).map_groups(returned, RETURNED).to_spark(spark)
        assert found.schema == expected.schema
        tables = [frame.toArrow() for frame in (found, expected)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert tables[0].schema.types == tables[1].schema.types
    lists = [sorted(map(str, table.to_pylist())) for table in tables]
    assert lists[0] == lists[1]
    assert len(lists[0]) > 100


def changed(key: tuple[object, ...], frame: pd.DataFrame) -> pd.DataFrame:
    """All columns, after changes that must not reach another group's rows."""
    frame["i8"] += 1
    frame.loc[frame.index[0], "t"] = f"{key[1]} {len(frame)}"
    frame.columns.name = frame.index.name = "mine"
    return frame.sample(frac=1, random_state=0)


@guarantee("groups")
def test_columns_of_every_type_are_returned_as_in_apply_in_pandas(
    spark: SparkSession, rows: DataFrame, kept: Path
):
    # Which zero is the key depends on the order of the rows; so does the first row of a group.
    expected = rows.groupBy("k", "j").applyInPandas(changed, rows.schema).drop("k", "t")
    found = open_shuffle(kept).map_groups(changed, rows.schema).to_spark(spark).drop("k", "t")
    assert found.schema == expected.schema
    tables = [frame.toArrow().sort_by("id") for frame in (found, expected)]
    assert tables[0].schema == tables[1].schema
    assert tables[0].to_pylist() == tables[1].to_pylist()
    assert len(tables[0]) == 1_200


def halves(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"n": [len(frame) + 0.5]})


@pytest.mark.parametrize("safely", [None, "false", "true"])
def test_values_that_do_not_fit_are_refused_where_apply_in_pandas_refuses_them(
    spark: SparkSession, rows: DataFrame, kept: Path, safely: str | None
):
    def outcome(frame: DataFrame) -> list[int] | None:
        try:
            return sorted(frame.toArrow()["n"].to_pylist())
        except PythonException:
            return None

    name = "spark.sql.execution.pandas.convertToArrowArraySafely"
    try:
        if safely is not None:
            spark.conf.set(name, safely)
        expected = outcome(rows.groupBy("k", "j").applyInPandas(halves, "n int"))
        found = outcome(open_shuffle(kept).map_groups(halves, "n int").to_spark(spark))
    finally:
        spark.conf.unset(name)
    assert found == expected
    if safely is not None:
        assert (found is None) == (safely == "true")


def by_position(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame([[frame["id"].min(), len(frame)]])


def fails(frame: pd.DataFrame) -> pd.DataFrame:
    raise KeyError(len(frame))


def test_columns_by_position_and_a_function_that_fails(
    spark: SparkSession, rows: DataFrame, kept: Path
):
    schema = "id bigint, n int"
    found = open_shuffle(kept).select("id").map_groups(by_position, schema).to_spark(spark)
    expected = rows.groupBy("k", "j").applyInPandas(by_position, schema)
    assert_same_rows(found.toArrow(), expected.toArrow())
    with pytest.raises(PythonException, match=f"in map_groups, the group k=.* of {kept}"):
        open_shuffle(kept).map_groups(fails, schema).to_spark(spark).collect()


def in_parts(key: tuple[Any, ...], frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Yield results of two types, and none for some groups."""
    for frame in frames:
        if key[1] == 1:
            continue
        rest = frame[["id"]].assign(part=float(len(frame))).sort_values("id")
        yield rest.head(1)
        yield rest.head(0)
        if len(rest) > 1:
            yield rest.tail(len(rest) - 1).assign(part=7)


def whole(key: tuple[Any, ...], frame: pd.DataFrame) -> pd.DataFrame:
    """Return what :func:`in_parts` yields."""
    return pd.concat([pd.DataFrame({"id": [], "part": []}), *in_parts(key, iter([frame]))])


def counted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    # A list, which is an iterator's for Spark too.
    return [pd.DataFrame({"n": [sum(map(len, frames))]})]


def wrong(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from (frame.to_dict() for frame in frames)


@guarantee("groups")
def test_iterators_of_frames(spark: SparkSession, rows: DataFrame, kept: Path):
    """The function's annotations choose them, as in ``applyInPandas`` from 4.1 on."""
    schema = "id bigint, part double"
    groups = rows.groupBy("k", "j")
    spark_has_them = SPARK >= (4, 1)
    expected = groups.applyInPandas(in_parts if spark_has_them else whole, schema).toArrow()
    assert_same_rows(
        open_shuffle(kept).map_groups(in_parts, schema).to_spark(spark).toArrow(), expected
    )
    assert 0 < len(expected) < rows.count()
    found = open_shuffle(kept).map_groups(counted, "n bigint").to_spark(spark).toArrow()
    assert_same_rows(found, groups.count().selectExpr("count AS n").toArrow())
    message = f"the function yielded a dict: expected a pandas.DataFrame\nin map_groups, .* {kept}"
    with pytest.raises(PythonException, match=message):
        open_shuffle(kept).map_groups(wrong, schema).to_spark(spark).collect()


def of_tables(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    return pa.table(
        {
            "j": pa.array([key[1].as_py()], pa.int32()),
            "first": rows["id"].slice(0, 1),
            "n": pa.array([len(rows)], pa.int64()),
            "hour": pa.array([str(rows.schema.field("at").type)]),
        }
    )


@guarantee("groups")
def test_tables_in_the_order_that_is_asked_for(spark: SparkSession, rows: DataFrame, kept: Path):
    schema = pa.schema({"n": pa.int64(), "first": pa.int64(), "j": pa.int32(), "hour": pa.string()})
    found = (
        open_shuffle(kept)
        .select(filter="id >= 100")
        .map_groups(of_tables, schema, sort_by=[("t", "descending"), "id"])
        .to_spark(spark)
        .toArrow()
    )
    window = "PARTITION BY k, j"
    expected = rows.where("id >= 100").selectExpr(
        f"count(*) OVER ({window}) AS n",
        f"first(id) OVER ({window} ORDER BY t DESC, id) AS first",
        "j",
        f"row_number() OVER ({window} ORDER BY t DESC, id) AS number",
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    assert set(found["hour"].to_pylist()) == {f"timestamp[us, tz={zone}]"}
    assert_same_rows(found.drop(["hour"]), expected.where("number = 1").drop("number").toArrow())


@pytest.mark.parametrize("sort_by", [(), ("id",), ("k", "id")])
def test_other_partitioners_and_orders(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, sort_by: tuple[str, ...]
):
    few = rows.select("id", "k", "t")
    ranges = RangePartitioner("k", bounds=[3.0, 17.0])
    arrow_shuffle.write_shuffle(
        few, tmp_path / "s", partitioner=ranges, num_subpartitions=3, sort_by=sort_by, options=FAST
    )

    def listed(frame: pd.DataFrame) -> pd.DataFrame:
        assert not sort_by or list(frame["id"]) == sorted(frame["id"])
        return pd.DataFrame({"ids": [sorted(frame["id"])]})

    found = (
        open_shuffle(tmp_path / "s")
        .map_groups(listed, "ids array<bigint>")
        .to_spark(spark)
        .toArrow()
    )
    expected = few.groupBy("k").agg({"id": "collect_list"}).toArrow()
    lists = [sorted(ids) for ids in expected.column(1).to_pylist()]
    assert sorted(found["ids"].to_pylist()) == sorted(lists)


def scored(key: tuple[object, ...], frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(rank=frame["id"].rank())[["k", "j", "id", "rank"]]


def moved(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[["k", "j", "id"]].assign(j=5, rank=1.0)


@guarantee("results that stay partitioned")
def test_groups_stay_in_their_subpartitions(
    spark: SparkSession, rows: DataFrame, kept: Path, tmp_path: Path
):
    schema = "k double, j int, id bigint, rank double"
    # Not NaN, for which pandas returns null.
    numbers = "k < 100 OR k IS NULL"
    scores = open_shuffle(kept).select(filter=numbers).map_groups(scored, schema)
    receipt = scores.write(tmp_path / "ranks", spark=spark, options=FAST)
    ranks = open_shuffle(tmp_path / "ranks")
    assert receipt.num_rows == rows.where(numbers).count()
    assert ranks.partitioner == HashPartitioner("k", "j")
    there = open_shuffle(kept).where(numbers)
    for number in range(N):
        ids = [shuffle.subpartition(number, ["id"]).read_all()["id"] for shuffle in (ranks, there)]
        assert sorted(ids[0].to_pylist()) == sorted(ids[1].to_pylist())
    joined = (
        open_shuffle(kept)
        .select("t")
        .join(open_shuffle(tmp_path / "ranks"), ["k", "j", "id"])
        .to_spark(spark)
    )
    expected = rows.where("k < 100 AND j IS NOT NULL").count()
    assert joined.count() == expected
    all_moved = open_shuffle(kept).map_groups(moved, schema)
    with pytest.raises(PythonException, match="and belongs to subpartition"):
        all_moved.write(tmp_path / "moved", spark=spark, options=FAST)
    assert not (tmp_path / "moved").exists()
    all_moved.write(tmp_path / "by_id", keys="id", spark=spark, options=FAST)
    assert open_shuffle(tmp_path / "by_id").partitioner == HashPartitioner("id")


def test_empty_shuffles(spark: SparkSession, rows: DataFrame, tmp_path: Path):
    few = rows.select("id", "k").where("false")
    arrow_shuffle.write_shuffle(few, tmp_path / "s", keys="k", num_subpartitions=4, options=FAST)
    found = open_shuffle(tmp_path / "s").map_groups(fails, "id bigint").to_spark(spark)
    assert found.toArrow().num_rows == 0
