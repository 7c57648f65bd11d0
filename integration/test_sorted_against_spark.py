"""Sorted shuffles and ranges hold what Spark's own ``orderBy`` and ``repartitionByRange`` give."""

from __future__ import annotations

import json
import math
import uuid
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import OptionError, RangePartitioner, SchemaError
from arrow_format.keys.sort_keys import ORDERS
from arrow_shuffle import open_shuffle
from connector.range_sample import WEIGHT, thinned
from integration.programs.datasets import lineitem as lineitem_files
from integration.programs.ways import FAST, assert_same_rows
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.tables import SPARK_TYPES, frozen

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

Keys = list[tuple[str, str]]
"""Pairs of column and order."""

IN_SPARK = {
    "ascending": "asc_nulls_first",
    "descending": "desc_nulls_last",
    "ascending nulls last": "asc_nulls_last",
    "descending nulls first": "desc_nulls_first",
}
SHORT = {
    "ascending": "",
    "descending": " desc",
    "ascending nulls last": " asc nulls last",
    "descending nulls first": " DESC NULLS FIRST",
}


def in_spark(keys: Keys) -> list[Column]:
    return [getattr(F.col(name), IN_SPARK[order])() for name, order in keys]


def text_of(keys: Keys) -> str:
    return ", ".join(name + SHORT[order] for name, order in keys)


# Every sortable type, random schemas, directions and null orders ---------------------------------

FLOATS = st.sampled_from([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1.5, -2.5])
TEXTS = st.sampled_from(
    ["", "a", "a\x00", "ab", "é", "日本語", "\U0001f986", "\uffff", "long " * 9, "long " * 9 + "b"]
)


@st.composite
def keyed_tables(draw: st.DrawFn) -> tuple[pa.Table, Keys]:
    """Rows with one to three keys that often agree; `v` numbers them."""
    num_rows = draw(st.integers(1, 80))
    columns = {}
    for i in range(draw(st.integers(1, 3))):
        type_, values = draw(st.sampled_from(SPARK_TYPES))
        if pa.types.is_floating(type_):
            values = FLOATS | values
        if pa.types.is_string(type_):
            values = TEXTS | values
        if draw(st.integers(0, 3)) == 0:
            type_ = pa.struct([("x", type_), ("y", pa.bool_())])
            both = {"x": st.none() | values, "y": st.none() | st.booleans()}
            values = st.fixed_dictionaries(both)
        pool = draw(st.lists(st.none() | values, min_size=1, max_size=12))
        cells = draw(st.lists(st.sampled_from(pool), min_size=num_rows, max_size=num_rows))
        columns[f"k{i}"] = pa.array(cells, type_)
    keys = [(name, draw(st.sampled_from(ORDERS))) for name in columns]
    return pa.table({**columns, "v": pa.array(range(num_rows))}), keys


FEW_EXAMPLES = settings(
    deadline=None,
    max_examples=10,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def ordered(df: DataFrame, keys: Keys) -> list[object]:
    """The keys of the rows as Spark orders them: rows that agree in them may come in any order."""
    return keys_of(df.coalesce(1).sortWithinPartitions(*in_spark(keys)).toArrow(), keys)


def keys_of(table: pa.Table, keys: Keys) -> list[object]:
    """Keys of each row in a form that tells values apart as far as Spark's order does."""
    names = [name for name, _ in keys]
    return [plain(row) for row in table.select(names).to_pylist()]


def plain(value: object) -> object:
    """`value` as `frozen` has it, but with one zero and one NaN."""
    if isinstance(value, dict):
        return tuple((name, plain(one)) for name, one in value.items())
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value + 0.0).hex()
    return frozen(value)


@guarantee("sort order")
@FEW_EXAMPLES
@given(keyed_tables(), st.integers(1, 5))
def test_every_subpartition_is_in_sparks_order(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: tuple, n: int
):
    table, keys = case
    df = spark.createDataFrame(table)
    path = tmp_path_factory.mktemp("sorted") / "shuffle"

    arrow_shuffle.write_shuffle(
        df.repartition(2), path, keys="v", num_subpartitions=n, sort_by=keys, options=FAST
    )

    rows = open_shuffle(path).to_spark(spark, with_subpartition=True)
    found = rows.toArrow()
    by_subpartition = [("_subpartition", "ascending"), *keys]
    assert sorted(found["v"].to_pylist()) == list(range(table.num_rows))
    assert keys_of(found, by_subpartition) == ordered(rows, by_subpartition)
    alone = open_shuffle(path).read().read_all()
    assert alone["v"].to_pylist() == found["v"].to_pylist()


@FEW_EXAMPLES
@given(keyed_tables(), st.integers(1, 5))
def test_ranges_sorted_by_their_keys_are_order_by(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, case: tuple, n: int
):
    table, keys = case
    df = spark.createDataFrame(table).repartition(2)
    path = tmp_path_factory.mktemp("ranges") / "shuffle"

    arrow_shuffle.write_shuffle(
        df, path, partitioner=RangePartitioner(keys=keys), num_subpartitions=n, sort_by=keys,
        options=FAST,
    )  # fmt: skip

    found = open_shuffle(path).to_spark(spark).toArrow()
    assert sorted(found["v"].to_pylist()) == list(range(table.num_rows))
    assert keys_of(found, keys) == ordered(df, keys)


# TPC-H lineitem ----------------------------------------------------------------------------------

N = 23
KEYS: Keys = [
    ("l_shipdate", "descending"),
    ("l_orderkey", "ascending"),
    ("l_linenumber", "ascending"),
]


@pytest.fixture(scope="module")
def lineitem(spark: SparkSession) -> DataFrame:
    """Scale factor 0.02: 120,515 rows; the keys tell all of them apart."""
    return spark.read.parquet(str(lineitem_files(0.02)))


def by_function(df: DataFrame, path: Path, partitioner: RangePartitioner) -> None:
    arrow_shuffle.write_shuffle(
        df, path, partitioner=partitioner, num_subpartitions=N, sort_by=KEYS, options=FAST
    )


def by_hook(df: DataFrame, path: Path, partitioner: RangePartitioner) -> None:
    task = arrow_shuffle.ShuffleMapTask(
        path, schema=df.schema, partitioner=partitioner, num_subpartitions=N, sort_by=KEYS,
        options=FAST,
    )  # fmt: skip
    arrow_shuffle.commit_shuffle(task, df.mapInArrow(task, task.status_schema).collect())


def options_of(partitioner: RangePartitioner) -> dict[str, str]:
    bounds = [list(row.values()) for row in partitioner.bounds.to_pylist()]
    return {
        "partitioner": "range",
        "keys": text_of(list(partitioner.keys)),
        "rangeBounds": json.dumps(bounds, default=str),
        "sortBy": text_of(KEYS),
        "numSubpartitions": str(N),
    }


def by_data_source(df: DataFrame, path: Path, partitioner: RangePartitioner) -> None:
    writer = df.write.format("arrow_shuffle").mode("append")
    writer.options(**options_of(partitioner)).save(str(path))


def by_sql(df: DataFrame, path: Path, partitioner: RangePartitioner) -> None:
    df.createOrReplaceTempView("sorted_rows_to_write")
    columns = ", ".join(f"`{f.name}` {f.dataType.simpleString()}" for f in df.schema)
    options = ", ".join(f"{name} '{text}'" for name, text in options_of(partitioner).items())
    df.sparkSession.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW sorted_shuffle ({columns}) USING arrow_shuffle "
        f"OPTIONS (path '{path}', {options})"
    )
    df.sparkSession.sql("INSERT INTO sorted_shuffle SELECT * FROM sorted_rows_to_write")


WAYS = {
    "write_shuffle": by_function,
    "mapInArrow": by_hook,
    "df.write": by_data_source,
    "SQL": by_sql,
}


@pytest.fixture(scope="module")
def partitioner(lineitem: DataFrame) -> RangePartitioner:
    return arrow_shuffle.sample_range_partitioner(lineitem, KEYS, N)


@pytest.fixture(scope="module")
def expected(lineitem: DataFrame) -> pa.Table:
    """What Spark gives: by ranges of its own bounds, each in order, so all are in order."""
    moved = lineitem.repartitionByRange(N, *in_spark(KEYS))
    return moved.sortWithinPartitions(*in_spark(KEYS)).toArrow()


@exhaustive(but="way", least=2)
@pytest.mark.parametrize("way", WAYS)
def test_lineitem_in_order(
    spark: SparkSession, lineitem: DataFrame, partitioner: RangePartitioner, expected: pa.Table,
    tmp_path: Path, way: str,
):  # fmt: skip
    path = tmp_path / "shuffle"
    WAYS[way](lineitem, path, partitioner)

    shuffle = open_shuffle(path)
    assert shuffle.sort_by == tuple(KEYS)
    assert shuffle.partitioner == partitioner
    assert open_shuffle(path).to_spark(spark).toArrow().equals(expected)
    one_each = open_shuffle(path).to_spark(spark, coalesce=False)
    assert one_each.toArrow().equals(expected)
    names = ["l_comment", "l_tax"]
    some = open_shuffle(path).select(*names, subpartitions=range(3, 9)).to_spark(spark)
    rows = np.cumsum([0, *shuffle.subpartition_rows.to_pylist()]).tolist()
    assert some.toArrow().equals(expected.select(names).slice(rows[3], rows[9] - rows[3]))
    assert shuffle.verify().ok


@pytest.mark.parametrize("lane", [False, True], ids=["DataFrame", "dataset"])
def test_a_total_sort_of_lineitem_is_order_by(spark: SparkSession, tmp_path: Path, lane: bool):
    names = ["l_shipdate", "l_orderkey", "l_linenumber"]
    files = lineitem_files(0.02)
    rows = spark.read.parquet(str(files))
    arrow_shuffle.write_shuffle(
        pyarrow.dataset.dataset(files) if lane else rows,
        tmp_path / "s",
        partitioner=RangePartitioner(keys=names),
        spark=spark,
        num_subpartitions=7,
        sort_by=names,
        options=FAST,
    )
    expected = rows.orderBy(*names).toArrow()
    through_spark = open_shuffle(tmp_path / "s").to_spark(spark).toArrow()
    assert through_spark.equals(expected)
    alone = open_shuffle(tmp_path / "s").read().read_all()
    assert alone.cast(expected.schema).equals(expected)


def test_ranges_of_a_sample_are_even(partitioner: RangePartitioner, expected: pa.Table):
    assert partitioner.bounds.num_rows == N - 1
    placed = partitioner.bind(expected.schema, N, 0)
    rows = sum(np.bincount(placed(batch), minlength=N) for batch in expected.to_batches())
    assert rows.max() < 1.5 * expected.num_rows / N


def test_a_write_by_ranges_computes_its_rows_once_for_the_sample_and_once_for_the_rows(
    spark: SparkSession, tmp_path: Path
):
    marks = tmp_path / "marks"
    marks.mkdir()

    def marked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (marks / uuid.uuid4().hex).touch()
        yield from batches

    rows = spark.range(0, 50_000, 1, 3).mapInArrow(marked, "id long")
    receipt = arrow_shuffle.write_shuffle(
        rows, tmp_path / "s", partitioner=RangePartitioner(keys="id"), num_subpartitions=8,
        options=FAST,
    )  # fmt: skip
    assert receipt.num_rows == 50_000
    assert len(list(marks.iterdir())) == 2 * 3
    sizes = open_shuffle(tmp_path / "s").subpartition_rows.to_pylist()
    assert max(sizes) < 1.2 * 50_000 / 8


def tasks_of(spark: SparkSession, lengths: Sequence[int]) -> DataFrame:
    """Rows in tasks of these lengths; keys, ``id``, are distinct, and those of a task anywhere."""
    longest, num_tasks = max(*lengths, 1), len(lengths)
    rows = spark.range(0, longest * num_tasks, 1, num_tasks)
    is_there = F.element_at(F.lit(list(lengths)), F.spark_partition_id() + 1) > F.pmod(
        "id", F.lit(longest)
    )
    return rows.where(is_there).select(F.xxhash64("id").alias("id"))


SHAPES = {
    "equal": ([20_000] * 32, 400, 1.25),
    "one": ([500_000], 200, 1.35),
    "first": ([500_000] + [100] * 31, 200, 1.35),
    "last": ([100] * 31 + [500_000], 200, 1.4),
    "growing": ([1_000 * i for i in range(32)], 200, 1.35),
    "few of many": ([0] * 60 + [50_000] * 8 + [0] * 60, 200, 1.4),
}
"""Rows of each task, ranges, and how many times its even share the longest range may have."""


@exhaustive(but="shape", least=3)
@pytest.mark.parametrize("shape", SHAPES)
def test_ranges_are_even_whatever_tasks_have(spark: SparkSession, shape: str):
    lengths, n, most = SHAPES[shape]
    rows = tasks_of(spark, lengths)
    keys = rows.toArrow()
    assert keys.num_rows == sum(lengths)
    bounds = arrow_shuffle.sample_range_partitioner(rows, "id", n)
    placed = bounds.bind(keys.schema, n, 0)
    counts = sum(np.bincount(placed(batch), minlength=n) for batch in keys.to_batches())
    assert counts.max() < most * keys.num_rows / n
    assert counts.min() > (2 - most) * keys.num_rows / n


def test_a_sample_stands_for_all_rows_and_is_few_of_them(spark: SparkSession):
    for lengths, size, most in (
        ([40_000] * 32, 20_000, 0.22),
        ([1_000_000], 20_000, 0.12),
        ([5_000] * 64, 10_000, 0.35),
    ):
        rows = thinned(tasks_of(spark, lengths), size).toArrow()
        assert rows.num_rows < most * sum(lengths)
        assert abs(rows[WEIGHT].to_numpy().sum() / sum(lengths) - 1) < 0.03
    few = thinned(tasks_of(spark, [0, 3, 90, 0, 1]), 10_000).toArrow()
    assert few[WEIGHT].to_pylist() == [1.0] * 94


@exhaustive(but="num_rows", least=2)
@pytest.mark.parametrize("num_rows", [0, 1, 2, 5])
def test_ranges_of_few_rows(spark: SparkSession, num_rows: int):
    rows = spark.range(0, num_rows, 1, 3)
    partitioner = arrow_shuffle.sample_range_partitioner(rows, [("id", "descending")], 4)
    table = pa.table({"id": pa.array(range(num_rows), pa.int64())})
    assert partitioner == RangePartitioner.sampled(table, [("id", "descending")], 4)


@pytest.mark.parametrize("seed", [0, 42])
def test_keys_that_are_random_numbers_of_spark_are_sampled_like_others(
    spark: SparkSession, seed: int
):
    rows = spark.range(0, 300_000, 1, 2).select(F.rand(seed).alias("k"))
    bounds = arrow_shuffle.sample_range_partitioner(rows, "k", 10).bounds
    assert bounds is not None
    assert np.abs(bounds["k"].to_numpy() - np.linspace(0, 1, 11)[1:-1]).max() < 0.02


def test_a_sample_is_the_same_again(lineitem: DataFrame, partitioner: RangePartitioner):
    assert arrow_shuffle.sample_range_partitioner(lineitem, KEYS, N) == partitioner


# Appending, and what the data source does without bounds -----------------------------------------


def rows_of(df: DataFrame, path: Path, **options: str) -> None:
    df.write.format("arrow_shuffle").mode("append").options(**options).save(str(path))


def keys_in_order(path: Path) -> Sequence[int]:
    return open_shuffle(path).read().read_all()["id"].to_pylist()


def test_an_append_takes_order_and_bounds_from_what_is_there(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "shuffle"
    df = spark.range(100)
    keys = [("id", "descending")]
    arrow_shuffle.write_shuffle(
        df, path, partitioner=RangePartitioner(keys=keys), num_subpartitions=4, sort_by=keys,
        options=FAST,
    )  # fmt: skip
    bounds = open_shuffle(path).partitioner
    rows_of(df, path)
    rows_of(df, path, partitioner="range", keys="id desc")
    rows_of(df, path, partitioner="range", keys='[["id", "desc"]]', sortBy="id DESC")
    arrow_shuffle.write_shuffle(
        df, path, partitioner=RangePartitioner(keys=keys), num_subpartitions=4, sort_by=keys,
        options=FAST, mode="append",
    )  # fmt: skip
    assert open_shuffle(path).partitioner == bounds
    assert keys_in_order(path) == sorted([*range(100)] * 5, reverse=True)
    for options, message in [
        ({"sortBy": "id"}, "Give the same sort_by"),
        ({"partitioner": "range", "keys": "id"}, "option partitioner=range needs bounds"),
        ({"partitioner": "range", "keys": "id desc", "rangeBounds": "[5]"}, "cannot append rows"),
        ({"keys": "id"}, "is partitioned by RangePartitioner"),
    ]:
        with pytest.raises(Exception, match=message):
            rows_of(df, path, **options)

    writer = df.write.format("arrow_shuffle").mode("overwrite")
    writer.options(partitioner="range", keys="id desc").save(str(path))
    assert open_shuffle(path).partitioner == bounds
    assert open_shuffle(path).sort_by == ()


@exhaustive(but="options, message", least=3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitioner": "range", "keys": "id"}, "needs bounds, and no shuffle"),
        ({"partitioner": "range"}, "option keys: partitioner=range needs column names"),
        ({"partitioner": "range", "keys": "id", "rangeBounds": "5"}, "expected a JSON list"),
        ({"partitioner": "range", "keys": "id", "rangeBounds": "[5"}, "expected a JSON list"),
        ({"partitioner": "range", "keys": "id", "rangeBounds": "[9,5]"}, "bounds must ascend"),
        ({"partitioner": "range", "keys": "id", "rangeBounds": '["x"]'}, "bounds of key 'id' are"),
        ({"partitioner": "range", "keys": "id", "rangeBounds": "[1,2,3]"}, "3 bounds make 4"),
        ({"keys": "id", "rangeBounds": "[5]"}, "option rangeBounds: only partitioner=range"),
        ({"keys": "id", "sortBy": "no"}, "sort_by: column 'no' is not there; columns are id"),
        ({"keys": "id", "sortBy": "id,id desc"}, "option sortBy=.*a column is named twice"),
        ({"keys": "id", "sortBy": "id,"}, "option sortBy='id,': expected columns such as"),
    ],
)  # fmt: skip
def test_bad_options(spark: SparkSession, tmp_path: Path, options: dict, message: str):
    with pytest.raises(Exception, match=message):
        rows_of(spark.range(5), tmp_path / "shuffle", numSubpartitions="3", **options)
    assert not (tmp_path / "shuffle").exists()


def test_keys_that_spark_orders_otherwise_are_refused(spark: SparkSession, tmp_path: Path):
    df = spark.sql(
        "SELECT 'a' COLLATE UTF8_LCASE AS c, named_struct('x', 'a' COLLATE UTF8_LCASE) AS s, "
        "parse_json('1') AS v, map('a', 1) AS m, array(1) AS a"
    )
    for name, message in [
        ("c", "column 'c' of type string collate UTF8_LCASE cannot be a sort key"),
        ("s", "column 's.x' of type string collate"),
        ("v", "column 'v' of type variant cannot be a sort key"),
        ("m", "column 'm' of type map"),
        ("a", "column 'a' of type list"),
    ]:
        with pytest.raises(SchemaError, match=f"sort_by: {message}"):
            arrow_shuffle.write_shuffle(
                df, tmp_path / "x", keys="a", num_subpartitions=2, sort_by=[name]
            )
        with pytest.raises(SchemaError, match=f"range keys: {message}"):
            arrow_shuffle.write_shuffle(
                df, tmp_path / "x", partitioner=RangePartitioner(name), num_subpartitions=2
            )
    assert not (tmp_path / "x").exists()


def test_a_task_of_ones_own_needs_bounds(spark: SparkSession, tmp_path: Path):
    with pytest.raises(OptionError, match=r"arrow_shuffle\.sample_range_partitioner"):
        arrow_shuffle.ShuffleMapTask(
            tmp_path / "x", schema=spark.range(1).schema, num_subpartitions=3,
            partitioner=RangePartitioner("id"),
        )  # fmt: skip


def test_sorting_does_not_change_what_is_stored(lineitem: DataFrame, tmp_path: Path):
    few = lineitem.limit(20_000).cache()
    for name, sort_by in [("plain", ()), ("sorted", ["l_comment", ("l_tax", "descending")])]:
        arrow_shuffle.write_shuffle(
            few, tmp_path / name, keys="l_partkey", num_subpartitions=7, sort_by=sort_by,
            options=FAST,
        )  # fmt: skip
    one, other = (open_shuffle(tmp_path / name) for name in ("plain", "sorted"))
    assert one.subpartition_rows == other.subpartition_rows
    assert_same_rows(other.read().read_all(), one.read().read_all())
    few.unpersist()
