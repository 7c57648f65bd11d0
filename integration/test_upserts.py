"""Upserts by tasks of Spark, streams and its data source; read by Python and by the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException

import arrow_shuffle
from arrow_shuffle import open_shuffle
from arrow_shuffle.errors import DuplicateKeyError, OptionError, SchemaError
from integration.programs.planner import plan_of, planning_session
from integration.programs.ways import FAST
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

UNIQUE = ["customer", "order_id"]
NUM_ORDERS = 4_000


def orders(spark: SparkSession, where: str, state: str) -> DataFrame:
    """Orders of 500 customers, of which a condition takes some."""
    numbers = spark.range(0, NUM_ORDERS, 1, 3).where(where)
    return numbers.selectExpr("id % 500 AS customer", "id AS order_id", f"'{state}' AS state")


def states(rows: pa.Table) -> dict[int, str]:
    found = dict(zip(rows["order_id"].to_pylist(), rows["state"].to_pylist(), strict=True))
    assert len(found) == rows.num_rows, "an order is there twice"
    return found


def write(df: DataFrame, path: Path, **how: object):
    how = {"keys": "customer", "num_subpartitions": 6, "options": FAST, **how}
    return arrow_shuffle.write_shuffle(df, path, **how)


def write_states(spark: SparkSession, directory: Path) -> Path:
    """Write the states of a thousand keys, all of revision 10."""
    rows = spark.range(1000).selectExpr("id AS k", "10L AS rev", "'old' AS state")
    how = {"keys": "k", "unique": "k", "sequence_by": "rev"}
    write(rows, directory / "states", **how)
    return directory / "states"


def check_states(spark: SparkSession, path: Path, expected: dict[int, str]) -> None:
    """Check that Python, the Python source and the planner read these states."""
    for found in (
        open_shuffle(path).to_table(),
        spark.read.format("arrow_shuffle").load(str(path)).toArrow(),
        planning_session(spark, path.parent).table(path.name).toArrow(),
    ):
        assert found.schema.names == ["k", "rev", "state"]
        states_of = zip(found["k"].to_pylist(), found["state"].to_pylist(), strict=True)
        assert sorted(states_of) == sorted(expected.items())


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:
    write(orders(spark, "id < 3000", "old"), tmp_path / "orders", unique=UNIQUE)
    return tmp_path / "orders"


EXPECTED = {number: "new" if number >= 2900 else "old" for number in range(NUM_ORDERS)}


@guarantee("upserts")
@pytest.mark.parametrize("way", ["write", "verb", "source", "table", "file"])
def test_rows_are_replaced_by_tasks_of_spark(
    spark: SparkSession, path: Path, tmp_path: Path, way: str
) -> None:
    new = orders(spark, "id >= 2900", "new")
    if way == "write":
        receipt = write(new, path, mode="upsert")
        assert (receipt.num_rows, receipt.num_replaced) == (1100, 100)
    elif way == "verb":
        assert open_shuffle(path).upsert(new, options=FAST).num_replaced == 100
    elif way == "source":
        writer = new.write.format("arrow_shuffle").mode("append").option("upsert", "true")
        writer.save(str(path))
    elif way == "table":
        assert open_shuffle(path).upsert(new.toArrow(), options=FAST).num_replaced == 100
    else:
        new.write.parquet(str(tmp_path / "new"))
        rows = ds.dataset(str(tmp_path / "new"))
        assert open_shuffle(path).upsert(rows, spark=spark, options=FAST).num_replaced == 100
    found = open_shuffle(path)
    assert states(found.to_table()) == EXPECTED
    assert states(spark.read.format("arrow_shuffle").load(str(path)).toArrow()) == EXPECTED
    planner = planning_session(spark, tmp_path)
    table = planner.table("orders")
    assert states(table.toArrow()) == EXPECTED
    counted = table.selectExpr("count(*)", "max(order_id)")
    assert counted.collect() == [(NUM_ORDERS, NUM_ORDERS - 1)]
    grouped = table.groupBy("customer").count()
    assert "Exchange" not in plan_of(grouped)
    assert {row["count"] for row in grouped.collect()} == {8}
    assert planner.sql("SELECT * FROM orders VERSION AS OF 1").count() == 3000


def test_a_source_is_told_what_identifies_a_row(spark: SparkSession, tmp_path: Path) -> None:
    rows = orders(spark, "id < 100", "old")

    def save(**options: str) -> None:
        writer = rows.write.format("arrow_shuffle").mode("append").options(**options)
        writer.save(str(tmp_path / "s"))

    save(keys="customer", numSubpartitions="2", unique="customer,order_id")
    assert open_shuffle(tmp_path / "s").unique == tuple(UNIQUE)
    with pytest.raises(Exception, match="100 of the rows have the key of a row that is there"):
        save()
    save(upsert="true")
    rows.write.format("arrow_shuffle").mode("overwrite").save(str(tmp_path / "s"))
    assert open_shuffle(tmp_path / "s").unique == tuple(UNIQUE)
    assert open_shuffle(tmp_path / "s").num_rows == 100


def test_rows_of_two_tasks_that_are_equal_are_refused(spark: SparkSession, path: Path) -> None:
    twice = orders(spark, "id = 7 OR id = 3999", "new")
    with pytest.raises(DuplicateKeyError, match=r"2 of the rows have the key of another one"):
        open_shuffle(path).upsert(twice.unionByName(twice), options=FAST)
    assert open_shuffle(path).version == 1


def test_texts_that_are_equal_by_a_collation_are_no_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.sql("SELECT 1 AS customer, 'A' COLLATE UTF8_LCASE AS order_id")
    with pytest.raises(SchemaError, match="order_id"):
        write(rows, tmp_path / "s", unique=UNIQUE)
    rows = spark.sql("SELECT 1 AS customer, 1 AS order_id, 'A' COLLATE UTF8_LCASE AS state")
    with pytest.raises(SchemaError, match="collation"):
        write(rows, tmp_path / "s", unique=UNIQUE, sequence_by="state")


@guarantee("upserts")
@pytest.mark.parametrize("sink", ["foreachBatch", "writeStream"])
def test_a_stream_replaces_rows_once_for_each_batch(
    spark: SparkSession, path: Path, tmp_path: Path, sink: str
) -> None:
    for number, (where, state) in enumerate(
        [("id BETWEEN 10 AND 19", "first"), ("id BETWEEN 15 AND 29 OR id = 3500", "second")]
    ):
        orders(spark, where, state).coalesce(1).write.parquet(str(tmp_path / f"in/{number}"))
    stream = (
        spark.readStream.schema("customer BIGINT, order_id BIGINT, state STRING")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(tmp_path / "in/*"))
    )
    writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer = writer.trigger(availableNow=True)
    if sink == "foreachBatch":
        batch = arrow_shuffle.foreach_batch(
            path, keys="customer", num_subpartitions=6, mode="upsert", options=FAST
        )
        query = writer.foreachBatch(batch).start()
    else:
        query = writer.format("arrow_shuffle").option("upsert", "true").start(str(path))
    query.awaitTermination()
    expected = {number: "old" for number in range(3000)}
    expected |= {number: "first" for number in range(10, 15)}
    expected |= {number: "second" for number in [*range(15, 30), 3500]}
    assert states(open_shuffle(path).to_table()) == expected
    assert open_shuffle(path).version == 3


@guarantee("upserts")
@pytest.mark.parametrize("way", ["verb", "source", "foreach"])
def test_the_newest_change_counts_whatever_task_has_it(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    path = write_states(spark, tmp_path)
    # Of each of 600 keys revisions 8 to 13, in other tasks; of the others 4 to 9, which are late.
    changes = spark.range(0, 6000, 1, 5).selectExpr(
        "id % 1000 AS k",
        "id DIV 1000 + IF(id % 1000 < 600, 8, 4) AS rev",
        "concat('rev ', id DIV 1000 + IF(id % 1000 < 600, 8, 4)) AS state",
    )
    for _ in range(2):  # a repetition changes nothing
        if way == "verb":
            open_shuffle(path).upsert(changes, sequence_by="rev")
        elif way == "source":
            writer = changes.write.format("arrow_shuffle").mode("append")
            writer.option("upsert", "true").save(str(path))
        else:
            one = arrow_shuffle.foreach_batch(path, keys="k", mode="upsert", application=f"a{_}")
            one(changes, 0)
        expected = {k: "rev 13" if k < 600 else "old" for k in range(1000)}
        check_states(spark, path, expected)
    assert not open_shuffle(path).verify().problems


def test_a_first_batch_may_have_several_changes_of_a_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    changes = spark.range(0, 300, 1, 3).selectExpr("id % 100 AS k", "id AS rev")
    changes.write.format("arrow_shuffle").mode("append").option("keys", "k").options(
        unique="k", sequenceBy="rev", upsert="true", numSubpartitions="4"
    ).save(str(tmp_path / "new"))
    shuffle = open_shuffle(tmp_path / "new")
    assert sorted(shuffle.to_table()["rev"].to_pylist()) == [*range(200, 300)]
    assert shuffle.num_rows == 100
    table = planning_session(spark, tmp_path).table("new")
    assert table.selectExpr("count(*)", "min(rev)").collect() == [(100, 200)]
    assert not shuffle.verify().problems


@guarantee("deletions in any order")
@pytest.mark.parametrize("way", ["verb", "foreach", "stream", "files"])
def test_a_feed_with_deletions_comes_in_any_order(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """Of each key a row, a deletion and a late change are in other tasks, and in two batches."""
    path = write_states(spark, tmp_path)
    # Keys below 600 are deleted by 20, those below 300 come again by 21; 15 is late for all these.
    changes = spark.range(0, 3000, 1, 5).selectExpr(
        "id % 1000 AS k",
        "CASE id DIV 1000 WHEN 0 THEN 15 WHEN 1 THEN 20 ELSE 21 END AS rev",
        "CASE WHEN id DIV 1000 = 1 THEN NULL ELSE concat('rev ', id DIV 1000) END AS state",
        "CASE WHEN id DIV 1000 = 1 THEN IF(id % 1000 < 600, 'd', '-U')"
        " WHEN id DIV 1000 = 2 AND id % 1000 >= 300 THEN 'update_preimage' ELSE 'u' END AS op",
    )
    files = tmp_path / "feed"
    changes.write.parquet(str(files))
    late = changes.where("rev = 15")
    if way == "stream":
        stream = spark.readStream.schema(changes.schema).option("maxFilesPerTrigger", 1)
        writer = stream.parquet(str(files)).writeStream.format("arrow_shuffle")
        writer = writer.options(upsert="true", rowKind="op").trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "c")).start(str(path)).awaitTermination()
    for number, batch in enumerate([changes, late, changes]):
        if way == "verb":
            open_shuffle(path).upsert(batch, row_kind="op")
        elif way == "files":
            feed = ds.dataset(str(files), format="parquet")
            open_shuffle(path).upsert(feed, row_kind="op", spark=spark)
        elif way == "foreach":
            one = arrow_shuffle.foreach_batch(
                path, keys="k", mode="upsert", row_kind="op", application="feed"
            )
            one(batch, number)
        else:
            writer = batch.write.format("arrow_shuffle").mode("append")
            writer.options(upsert="true", rowKind="op").save(str(path))
        expected = {k: "rev 2" if k < 300 else "rev 0" for k in range(1000) if not 300 <= k < 600}
        check_states(spark, path, expected)
        if number == 0:
            open_shuffle(path).merge("subpartition", spark=spark)
    assert planning_session(spark, tmp_path).table("states").count() == 700
    assert not open_shuffle(path).verify().problems


def test_a_feed_is_refused_where_nothing_says_what_is_newest(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.range(10).selectExpr("id AS k", "10L AS rev")
    arrow_shuffle.write_shuffle(rows, tmp_path / "s", keys="k", unique="k", num_subpartitions=2)
    feed = rows.selectExpr("*", "'x' AS op")
    with pytest.raises(OptionError, match="sequence_by="):
        open_shuffle(tmp_path / "s").upsert(feed, row_kind="op")
    with pytest.raises(PySparkException, match="only an upsert takes changes"):
        feed.write.format("arrow_shuffle").mode("append").option("rowKind", "op").save(
            str(tmp_path / "s")
        )
    with pytest.raises(PySparkException, match=r"row 0 \(k=[05]\) is 'x'"):
        open_shuffle(tmp_path / "s").upsert(feed, row_kind="op", sequence_by="rev")
    assert open_shuffle(tmp_path / "s").version == 1
