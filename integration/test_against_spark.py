"""Rows land where Spark's own ``repartition`` puts them, however they are written and read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from arrow_shuffle import open_shuffle
from connector.spark_version import SPARK
from integration.programs.datasets import lineitem as lineitem_files
from integration.programs.ways import WAYS, assert_same_rows, by_function
from tests.support.exhaustive import exhaustive
from tests.support.tables import SPARK_TYPES, frozen

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

N = 61
KEYS = ["l_orderkey", "l_shipmode"]
FEW = [7, 3, 60, 8]


# TPC-H lineitem: what Spark does, and one shuffle per way of writing ---------------------------


@pytest.fixture(scope="module")
def lineitem(spark: SparkSession) -> DataFrame:
    """Scale factor 0.02: 120,515 rows."""
    return spark.read.parquet(str(lineitem_files(0.02)))


@pytest.fixture(scope="module")
def expected(lineitem: DataFrame) -> pa.Table:
    """Every row with the subpartition where ``repartition`` puts it."""
    moved = lineitem.repartition(N, *KEYS)
    return moved.withColumn("_subpartition", F.spark_partition_id()).toArrow()


@pytest.fixture(scope="module", params=WAYS)
def written(
    request: pytest.FixtureRequest, lineitem: DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("lineitem") / "shuffle"
    WAYS[request.param](lineitem, path, KEYS, N)
    return path


@pytest.fixture(scope="module")
def path(lineitem: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shuffle that the reading tests share."""
    path = tmp_path_factory.mktemp("lineitem") / "shuffle"
    by_function(lineitem, path, KEYS, N)
    return path


def only(table: pa.Table, subpartitions: list[int] | range) -> pa.Table:
    return table.filter(pc.is_in(table["_subpartition"], pa.array(list(subpartitions), pa.int32())))


def test_every_way_of_writing(spark: SparkSession, written: Path, expected: pa.Table):
    back = open_shuffle(written).to_spark(spark, with_subpartition=True)

    assert_same_rows(back.toArrow(), expected)
    rows = np.bincount(expected["_subpartition"].to_numpy(), minlength=N)
    shuffle = open_shuffle(written)
    assert shuffle.subpartition_rows.to_pylist() == rows.tolist()
    assert sum(shuffle.subpartition_bytes.to_pylist()) == shuffle.num_bytes
    assert shuffle.verify().ok


# Ways of reading with Spark ----------------------------------------------------------------------


def test_coalesced(spark: SparkSession, path: Path, expected: pa.Table):
    back = open_shuffle(path).to_spark(spark)

    assert back.schema == spark.read.format("arrow_shuffle").load(str(path)).schema
    assert_same_rows(back.toArrow(), expected.drop_columns("_subpartition"))


def test_one_spark_partition_per_subpartition(spark: SparkSession, path: Path, expected: pa.Table):
    back = open_shuffle(path).to_spark(spark, coalesce=False)

    where = back.withColumn("_subpartition", F.spark_partition_id())
    assert_same_rows(where.toArrow(), expected)


@exhaustive()
@pytest.mark.parametrize("subpartitions", [5, range(10, 25), FEW], ids=["one", "range", "list"])
@pytest.mark.parametrize("coalesce", [True, False])
def test_some_subpartitions(
    spark: SparkSession,
    path: Path,
    expected: pa.Table,
    subpartitions: int | range | list[int],
    coalesce: bool,
):
    back = (
        open_shuffle(path)
        .select(subpartitions=subpartitions)
        .to_spark(spark, coalesce=coalesce, with_subpartition=True)
    )

    wanted = [subpartitions] if isinstance(subpartitions, int) else list(subpartitions)
    assert_same_rows(back.toArrow(), only(expected, wanted))
    if not coalesce:
        assert back.rdd.getNumPartitions() == len(wanted)


def test_columns_in_the_order_asked_for(spark: SparkSession, path: Path, expected: pa.Table):
    names = ["l_comment", "l_orderkey", "l_tax"]

    plain = open_shuffle(path).select(*names).to_spark(spark)
    marked = open_shuffle(path).select(*names).to_spark(spark, with_subpartition=True)

    assert_same_rows(plain.toArrow(), expected.select(names))
    assert_same_rows(marked.toArrow(), expected.select([*names, "_subpartition"]))


def test_no_columns_but_the_subpartition(spark: SparkSession, path: Path, expected: pa.Table):
    shuffle = open_shuffle(path)
    back = shuffle.to_spark(spark, with_subpartition=True).select("_subpartition")

    assert_same_rows(back.toArrow(), expected.select(["_subpartition"]))
    if SPARK < (4, 1):
        with pytest.raises(Exception, match=r"4\.1 or newer"):
            spark.read.format("arrow_shuffle").schema(StructType()).load(str(path)).count()
    else:
        none = spark.read.format("arrow_shuffle").schema(StructType()).load(str(path))
        assert none.count() == expected.num_rows


def test_the_data_source_with_schema_and_options(
    spark: SparkSession, path: Path, expected: pa.Table
):
    reader = spark.read.format("arrow_shuffle").schema("l_tax decimal(15,2), _subpartition int")
    back = reader.options(
        subpartitions="3,7-9,60", coalesce="false", WITHSUBPARTITION="True", version="1"
    ).load(str(path))

    assert back.rdd.getNumPartitions() == 5
    some = only(expected, [3, 7, 8, 9, 60])
    assert_same_rows(back.toArrow(), some.select(["l_tax", "_subpartition"]))


def test_sql(spark: SparkSession, path: Path, expected: pa.Table):
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW lineitem_by_key USING arrow_shuffle "
        f"OPTIONS (path '{path}', withSubpartition 'true')"
    )

    assert_same_rows(spark.sql("SELECT * FROM lineitem_by_key").toArrow(), expected)
    direct = spark.sql(f"SELECT count(*) FROM lineitem_by_key WHERE _subpartition IN {tuple(FEW)}")
    assert direct.first() == (only(expected, FEW).num_rows,)


# Ways of reading without Spark -------------------------------------------------------------------


def test_read(path: Path, expected: pa.Table):
    shuffle = open_shuffle(path)

    whole = shuffle.read(with_subpartition=True).read_all()
    some = shuffle.read(FEW, ["l_comment", "l_tax"]).read_all()

    assert_same_rows(whole, expected)
    assert pc.all(pc.less_equal(whole["_subpartition"][:-1], whole["_subpartition"][1:])).as_py()
    assert_same_rows(some, only(expected, FEW).select(["l_comment", "l_tax"]))


def test_subpartition_by_subpartition(path: Path, expected: pa.Table):
    shuffle = open_shuffle(path)

    parts = [shuffle.subpartition(i).read_all() for i in range(N)]

    ids = np.repeat(np.arange(N, dtype=np.int32), [part.num_rows for part in parts])
    whole = pa.concat_tables(parts).append_column("_subpartition", pa.array(ids))
    assert_same_rows(whole, expected)


def test_duckdb(path: Path, expected: pa.Table):
    spark_s = expected.drop_columns("_subpartition")
    ours = open_shuffle(path)

    with duckdb.connect() as con:
        con.register("spark_s", spark_s).register("ours", ours)
        for one, other in [("ours", "spark_s"), ("spark_s", "ours")]:
            query = f"SELECT count(*) FROM (FROM {one} EXCEPT ALL FROM {other})"
            assert con.sql(query).fetchall() == [(0,)]


def test_polars(path: Path, expected: pa.Table):
    names = expected.column_names[:-1]

    found = pl.DataFrame(open_shuffle(path)).sort(names)

    wanted = pl.DataFrame(expected.drop_columns("_subpartition")).sort(names)
    assert found.equals(wanted)


# Tables of every kind ----------------------------------------------------------------------------


@st.composite
def keyed_tables(draw: st.DrawFn) -> tuple[pa.Table, list[str]]:
    """Flat, listed and nested columns with nulls; the first one to three are the keys."""
    num_rows = draw(st.integers(1, 60))
    columns = {}
    for i in range(draw(st.integers(2, 5))):
        type_, values = draw(st.sampled_from(SPARK_TYPES))
        match draw(st.sampled_from(["flat", "flat", "list", "struct", "nested"])):
            case "list":
                type_, values = pa.list_(type_), st.lists(st.none() | values, max_size=3)
            case "struct":
                type_ = pa.struct([("a", type_), ("b", pa.string())])
                values = st.fixed_dictionaries({"a": st.none() | values, "b": st.none()})
            case "nested":
                type_ = pa.list_(pa.struct([("a", pa.list_(type_))]))
                inner = st.fixed_dictionaries({"a": st.none() | st.lists(values, max_size=2)})
                values = st.lists(st.none() | inner, max_size=2)
        cells = st.lists(st.none() | values, min_size=num_rows, max_size=num_rows)
        columns[f"c{i}"] = pa.array(draw(cells), type_)
    num_keys = draw(st.integers(1, min(3, len(columns))))
    columns["m"] = pa.array(
        [[(f"k{i % 3}", i)] for i in range(num_rows)], pa.map_(pa.string(), pa.int32())
    )
    return pa.table(columns), list(columns)[:num_keys]


def multiset(table: pa.Table) -> Counter[object]:
    return Counter(frozen(row) for row in table.to_pylist())


# A handful, and the same ones every time: each costs nine Spark jobs.
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(case=keyed_tables(), n=st.sampled_from([1, 2, 7, 50]))
def test_tables_of_every_kind(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[pa.Table, list[str]],
    n: int,
):
    table, keys = case
    df = spark.createDataFrame(table)
    moved = df.repartition(n, *keys).withColumn("_subpartition", F.spark_partition_id()).toArrow()
    expected = multiset(moved)

    for name, write in WAYS.items():
        path = tmp_path_factory.mktemp("table") / "shuffle"
        write(df, path, keys, n)
        back = open_shuffle(path).to_spark(spark, with_subpartition=True).toArrow()
        assert back.schema.equals(moved.schema), name
        assert multiset(back) == expected, name
        alone = open_shuffle(path).read(with_subpartition=True).read_all()
        assert multiset(alone.cast(back.schema)) == expected, name
