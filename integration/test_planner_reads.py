"""What the reader in Spark's JVM reads where subjects meet that other tests have apart."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pytest
from pyspark.errors import IllegalArgumentException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_shuffle import WriteOptions
from integration.programs.planner import FORMAT, plan_of, planning_session
from integration.programs.ways import FAST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reads")


@pytest.fixture(scope="module")
def planner(spark: SparkSession, warehouse: Path) -> SparkSession:
    return planning_session(spark, warehouse)


def numbers(first: int, end: int) -> pa.Table:
    return pa.table({"k": pa.array(range(first, end), pa.int64()), "v": [*range(first, end)]})


def test_structs_in_lists_are_more_than_rows_of_a_batch(
    planner: SparkSession, warehouse: Path
) -> None:
    n, each = 9000, 5
    items = [[{"x": i, "y": f"y{i}", "z": [i]} for i in range(each)]] * n
    pairs = [[(f"q{i}", {"x": i}) for i in range(each)]] * n
    table = pa.table(
        {
            "k": pa.array(range(n), pa.int64()),
            "a": items,
            "m": pa.array(pairs, pa.map_(pa.string(), pa.struct({"x": pa.int32()}))),
        }
    )
    arrow_shuffle.write_shuffle(
        table, warehouse / "nested", keys="k", num_subpartitions=1, options=FAST
    )
    found = planner.sql(
        "SELECT sum(size(a)), sum(a[4].x), max(a[4].y), sum(a[4].z[0]), sum(m['q4'].x) FROM nested"
    ).head()
    assert found == (n * each, 4 * n, "y4", 4 * n, 4 * n)


def test_decimals_of_fewer_bits_are_widened(planner: SparkSession, warehouse: Path) -> None:
    small = [Decimal(i * 7919 % 10**9 - 10**8).scaleb(-2) for i in range(1000)]
    large = [Decimal("12345678901234567890.25")]
    for values, stored in ((small, pa.decimal64(18, 2)), (large, pa.decimal128(25, 2))):
        table = numbers(0, len(values)).append_column("d", pa.array(values, stored))
        arrow_shuffle.write_shuffle(
            table,
            warehouse / "decimals",
            keys="k",
            num_subpartitions=4,
            mode="append",
            for_spark=False,
            options=WriteOptions(sync=False, codec="none", schema_evolution=True),
        )
    assert sorted(row.d for row in planner.table("decimals").collect()) == sorted(small + large)


def test_large_texts_fill_a_batch_before_many_rows_do(
    planner: SparkSession, warehouse: Path
) -> None:
    size, n = 8_000_000, 300  # more than an array of bytes has, in fewer rows than a batch
    arrow_shuffle.write_shuffle(
        pa.table({"t": ["x" * size]}),
        warehouse / "large",
        partitioner=arrow_shuffle.BroadcastPartitioner(),
        num_subpartitions=n,
        options=FAST,
    )
    assert planner.sql("SELECT count(t), sum(length(t)) FROM large").head() == (n, n * size)


def test_names_in_a_file_system_of_hadoop(spark: SparkSession, warehouse: Path) -> None:
    for name in ("one", "inside/two"):
        arrow_shuffle.write_shuffle(
            numbers(0, 10), warehouse / "viewed" / name, keys="k", num_subpartitions=4, options=FAST
        )
    session = planning_session(
        spark,
        Path("viewfs:/"),
        {"fs.viewfs.mounttable.reads.link./w": f"file://{warehouse}/viewed"},
    )
    session.conf.set("spark.sql.catalog.viewed", "arrowshuffle.spark.ShuffleCatalog")
    session.conf.set("spark.sql.catalog.viewed.warehouse", "viewfs://reads/w")
    assert [row.tableName for row in session.sql("SHOW TABLES IN viewed").collect()] == ["one"]
    assert [tuple(row) for row in session.sql("SHOW NAMESPACES IN viewed").collect()] == [
        ("inside",)
    ]
    assert session.table("viewed.inside.two").where("k > 6").count() == 3


def test_filters_of_run_time_spell_a_key_as_the_query_does(
    planner: SparkSession, warehouse: Path
) -> None:
    for name in ("spelled", "other"):
        arrow_shuffle.write_shuffle(
            numbers(0, 1000), warehouse / name, keys="k", num_subpartitions=50, options=FAST
        )
    for key in ("k", "K"):
        df = planner.sql(
            "SELECT /*+ BROADCAST(o) */ count(*), sum(s.v) FROM spelled s "
            f"JOIN other o ON s.{key} = o.{key} WHERE o.v = 7"
        )
        assert df.collect() == [(1, 7)]
        assert "subpartitions {11}, pushed" in plan_of(df)


def test_a_frame_is_of_the_commit_that_was_opened(planner: SparkSession, warehouse: Path) -> None:
    path = warehouse / "replaced"
    write = {"keys": "k", "num_subpartitions": 4, "options": FAST}
    arrow_shuffle.write_shuffle(numbers(0, 10), path, **write)
    opened = arrow_shuffle.open_shuffle(path)
    assert opened.to_spark(planner).count() == 10
    arrow_shuffle.drop_shuffle(path)
    arrow_shuffle.write_shuffle(numbers(0, 99), path, **write)
    for act in (lambda: opened.to_spark(planner).count(), lambda: opened.to_spark(planner).head()):
        with pytest.raises(IllegalArgumentException, match="version 1 is another one"):
            act()


def test_options_that_the_reader_does_not_follow_are_refused(
    planner: SparkSession, warehouse: Path
) -> None:
    path = warehouse / "versions"
    for first in (0, 10):
        arrow_shuffle.write_shuffle(
            numbers(first, first + 10), path, keys="k", num_subpartitions=4, mode="append",
            options=FAST,
        )  # fmt: skip

    def load(**options: object) -> int:
        return planner.read.format(FORMAT).options(**options).load(str(path)).count()

    assert load() == load(version=2) == load(timestampAsOf="2101-01-01") == 20
    assert load(version=1) == load(versionAsOf=1) == 10
    assert planner.read.option("versionAsOf", 1).table("versions").count() == 10
    with pytest.raises(IllegalArgumentException, match="no version that can be opened"):
        load(timestampAsOf="2001-01-01")
    with pytest.raises(IllegalArgumentException, match="option filter is not known"):
        load(filter="k = 1")
    with pytest.raises(IllegalArgumentException, match="option num_ranges is not known"):
        planner.sql("SELECT * FROM versions WITH (num_ranges = 3)").collect()
    with pytest.raises(IllegalArgumentException, match="versionAsOf"):
        planner.read.option("version", 1).table("versions").count()


def test_columns_without_a_type_of_spark_leave_the_others_readable(
    planner: SparkSession, warehouse: Path
) -> None:
    intervals = pa.array([(1, 2, 3)] * 10, pa.month_day_nano_interval())
    arrow_shuffle.write_shuffle(
        numbers(0, 10).append_column("i", intervals),
        warehouse / "intervals",
        keys="k",
        num_subpartitions=4,
        options=FAST,
        for_spark=False,
    )
    kept = arrow_shuffle.open_shuffle(warehouse / "intervals").select("v")
    assert kept.to_spark(planner).count() == 10
    assert "this Spark has no type for a column" in str(kept.explain(planner).reader)
    with pytest.raises(IllegalArgumentException, match="column i of type Interval"):
        planner.table("intervals")


@pytest.mark.parametrize("n", [2, 3, 6, 12, 1000, 65_537])
def test_rows_lie_where_the_hash_of_their_key_places_them(
    planner: SparkSession, warehouse: Path, n: int
) -> None:
    keys = pa.array([*range(-2000, 2000), None, 2**63 - 1, -(2**63)], pa.int64())
    write = {"keys": "k", "num_subpartitions": n, "options": FAST}
    arrow_shuffle.write_shuffle(pa.table({"k": keys}), warehouse / f"of_{n}", **write)
    found = planner.sql(f"SELECT k, count(*) AS rows FROM of_{n} GROUP BY k")
    assert f"ranges of {n} subpartitions by [k]" in plan_of(found)
    assert {row.k for row in found.collect()} == {*keys.to_pylist()}


def test_columns_that_were_added_without_spark_are_read(
    spark: SparkSession, planner: SparkSession, warehouse: Path
) -> None:
    write = {"keys": "k", "num_subpartitions": 4}
    rows = spark.range(3).selectExpr("id AS k", "id AS v")
    arrow_shuffle.write_shuffle(rows, warehouse / "added", options=FAST, **write)
    options = WriteOptions(sync=False, schema_evolution=True)
    added = numbers(3, 5).append_column("w", pa.array(["x", "y"]))
    arrow_shuffle.write_shuffle(added, warehouse / "added", mode="append", options=options, **write)
    found = planner.sql("SELECT * FROM added ORDER BY k")
    assert found.columns == ["k", "v", "w"]
    assert [row.w for row in found.collect()] == [None, None, None, "x", "y"]


@pytest.mark.parametrize("by", ["map_output", "subpartition"])
def test_the_version_of_merged_rows_is_not_known(
    planner: SparkSession, warehouse: Path, by: Literal["map_output", "subpartition"]
) -> None:
    path = warehouse / f"merged_by_{by}"
    for i in range(20):
        arrow_shuffle.write_shuffle(
            numbers(10 * i, 10 * i + 10),
            path,
            keys="k",
            num_subpartitions=4,
            mode="append",
            options=FAST,
        )
    arrow_shuffle.open_shuffle(path).merge(by=by)
    arrow_shuffle.open_shuffle(path).append(numbers(200, 205), options=FAST)
    newest = arrow_shuffle.open_shuffle(path).version

    def count(condition: str) -> int:
        return planner.table(path.name).where(condition).count()

    assert (count("k >= 0"), count(f"_version = {newest}")) == (205, 5)
    assert (count("_version <= 20"), count("_version IS NULL")) == (0, 200)


def test_a_plan_shows_the_first_of_many_literals(planner: SparkSession, warehouse: Path) -> None:
    arrow_shuffle.write_shuffle(
        numbers(0, 100), warehouse / "listed", keys="k", num_subpartitions=4, options=FAST
    )
    df = planner.table("listed").where(F.col("v").isin([*range(20_000)]))
    assert df.count() == 100
    (scan,) = [line for line in plan_of(df).splitlines() if "BatchScan" in line]
    assert "pushed [v IN (" in scan
    assert len(scan) < 2_000
