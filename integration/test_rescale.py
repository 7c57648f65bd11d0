"""Another number of subpartitions with Spark: writes, merges, streams and the planner go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import arrow_shuffle
from arrow_format import MergePolicy
from arrow_format.operators.net_changes import CHANGE_COLUMN
from integration.programs.planner import PLAIN, plan_of, planning_session
from integration.programs.ways import FAST
from integration.test_streams import Pipe, numbers
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.options import MergeBy

OLD, NEW = 8, 12
"""Read by 4 until they are merged."""


def ids(first: int, end: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, end), pa.int64()), "v": [*range(first, end)]})


def write(path: Path, first: int, end: int, n: int = OLD) -> arrow_shuffle.Shuffle:
    arrow_shuffle.write_shuffle(
        ids(first, end), path, keys="id", num_subpartitions=n, mode="append", options=FAST
    )
    return arrow_shuffle.open_shuffle(path)


def stored(shuffle: arrow_shuffle.Shuffle) -> list[int]:
    found: list[int] = sorted(shuffle.newest().read().read_all()["id"].to_pylist())
    return found


def files_of(shuffle: arrow_shuffle.Shuffle) -> list[int]:
    outputs = shuffle.newest().map_outputs
    return [file.num_subpartitions for output in outputs for file in output.files]


@guarantee("another n")
@exhaustive()
@pytest.mark.parametrize("by", ["subpartition", "map_output"])
def test_what_spark_writes_reads_and_merges(spark: SparkSession, tmp_path: Path, by: MergeBy):
    path = tmp_path / "s"
    shuffle = write(path, 0, 1000)
    shuffle.rescale(NEW)
    frame = spark.range(1000, 1500).selectExpr("id", "id AS v")
    receipt = arrow_shuffle.write_shuffle(
        frame, path, keys="id", num_subpartitions=OLD, mode="append", spark=spark, options=FAST
    )
    assert "a merge makes it 12" in str(receipt)
    options = {"numSubpartitions": OLD, "keys": "id"}
    late = spark.range(1500, 1600).selectExpr("id", "id AS v")
    late.write.format("arrow_shuffle").mode("append").options(**options).save(str(path))
    shuffle = shuffle.newest()
    assert (shuffle.num_subpartitions, {*files_of(shuffle)}) == (4, {OLD, NEW})

    def check(shuffle: arrow_shuffle.Shuffle) -> None:
        assert stored(shuffle) == [*range(1600)]
        rows = shuffle.select("id").to_spark(spark).collect()
        assert sorted(row.id for row in rows) == [*range(1600)]
        few = shuffle.select("id", subpartitions=[3]).to_spark(spark, coalesce=True).collect()
        n = shuffle.num_subpartitions
        assert sorted(row.id for row in few) == [
            i for i in range(1600) if shuffle.subpartition_of(id=i) == 3 % n
        ]
        other = write(tmp_path / f"other {n}", 500, 700, n=16)
        joined = shuffle.join(other, on="id", suffixes=("", "_r"))
        assert joined.to_spark(spark).count() == 200

    check(shuffle)
    report = shuffle.merge(by, policy=MergePolicy(rewrite="always"), spark=spark, options=FAST)
    merged = shuffle.newest()
    assert (merged.version, merged.num_subpartitions, {*files_of(merged)}) == (
        report.version,
        NEW,
        {NEW},
    )
    check(merged)
    assert merged.verify().ok
    assert CHANGE_COLUMN in merged.changes(since=shuffle.version).schema.names
    assert not merged.changes(since=shuffle.version).read_all().num_rows


@guarantee("another n")
def test_streams_go_on(spark: SparkSession, tmp_path: Path):
    sinks, follows = Pipe(spark, tmp_path / "in"), Pipe(spark, tmp_path / "out")
    sinks.directory.mkdir()
    how = {"numSubpartitions": OLD, "keys": "id"}
    sinks.feed(0)
    assert sinks.run(sinks.files(), **how) == [0]

    def follow() -> list[int]:
        batches = follows.follow(sinks.sink)
        return sorted(row.id for batch in batches for row in batch)

    assert follow() == numbers(0)
    shuffle = arrow_shuffle.open_shuffle(sinks.sink)
    shuffle.rescale(NEW)
    sinks.feed(10)
    sinks.feed(20)
    assert sinks.run(sinks.files(), **how) == [1, 2]
    assert (shuffle.newest().num_subpartitions, {*files_of(shuffle)}) == (4, {OLD, NEW})
    assert follow() == numbers(10, 20)
    shuffle.merge(options=FAST)
    assert follow() == []
    sinks.feed(30)
    assert sinks.run(sinks.files(), **how) == [3]
    assert shuffle.newest().num_subpartitions == NEW
    assert follow() == numbers(30)


def rows_of(frame: DataFrame) -> list[tuple[int, ...]]:
    return sorted(tuple(row) for row in frame.collect())


@guarantee("another n")
def test_the_planner_reads_files_of_several_numbers(spark: SparkSession, tmp_path: Path):
    planner = planning_session(spark, tmp_path, PLAIN)
    left, right = write(tmp_path / "left", 0, 400), write(tmp_path / "right", 100, 300)
    left.rescale(2 * OLD)
    write(tmp_path / "left", 400, 500)
    left.delete({"id": [150]}, erase=False)
    query = "SELECT l.id, r.v FROM left l JOIN right r USING (id)"
    expected = [(i, i) for i in range(100, 300) if i != 150]

    def check(what: str, exchanges: int) -> None:
        frame = planner.sql(query)
        plan = plan_of(frame)
        assert rows_of(frame) == expected
        assert plan.count("Exchange") == exchanges, plan
        assert what in plan
        assert planner.sql("SELECT count(*), max(v) FROM left").head() == (499, 499)
        assert rows_of(planner.sql("SELECT v FROM left WHERE id IN (1, 450, 150)")) == [
            (1,),
            (450,),
        ]
        grouped = planner.sql("SELECT id, count(*) FROM left GROUP BY id")
        assert "Exchange" not in plan_of(grouped)
        assert grouped.count() == 499

    check("of 8 subpartitions by [id], 16 after a merge", 0)
    left.merge(options=FAST)
    right.rescale(2 * OLD)
    right.merge(options=FAST)
    check("of 16 subpartitions by [id]", 0)
