"""Histories of a change feed, in Spark and in an object store: the rows are those of the model."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import DataFrame

from integration.programs.planner import planning_session
from tests.support.change_histories import SCHEMA, SEQUENCES, History
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.support.s3_server import S3Server

NUM_HISTORIES = times(3, 300)


@guarantee("deletions in any order")
@pytest.mark.parametrize("reader", ["source", "planner"])
def test_spark_has_the_rows_of_each_step(spark: SparkSession, tmp_path: Path, reader: str) -> None:
    planner = planning_session(spark, tmp_path)
    for seed in range(2_000_000, 2_000_000 + NUM_HISTORIES):
        name = f"h{seed}"
        history = History(seed, tmp_path / name)
        history.run(lambda *_: None)

        def opened(version: int, history: History = history, name: str = name) -> DataFrame:
            if reader == "planner":
                return planner.sql(f"SELECT * FROM {name} VERSION AS OF {version}")
            source = spark.read.format("arrow_shuffle").option("version", version)
            return source.load(str(history.path))

        assert rows_of_each(history, opened) == {
            version: sorted(model.rows.values()) for version, model in history.versions.items()
        }, seed
        newest = opened(max(history.versions))
        late = newest.where(f"lsn >= {SEQUENCES // 2}").groupBy("k").count().collect()
        expected = Counter(row[0] for row in history.rows if row[2] >= SEQUENCES // 2)
        assert {row["k"]: row["count"] for row in late} == expected, seed
        assert newest.count() == len(history.rows), seed


def rows_of_each(history: History, opened: Callable[[int], DataFrame]) -> dict[int, list]:
    """Return the rows of each version in order, by one job."""
    frames = [
        opened(version).selectExpr(f"{version} AS version", *SCHEMA.names)
        for version in history.versions
    ]
    found: dict[int, list] = {version: [] for version in history.versions}
    for version, *row in reduce(DataFrame.union, frames).collect():
        found[version].append(tuple(row))
    return {version: sorted(rows) for version, rows in found.items()}


def test_a_store_has_the_rows_of_each_step(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    bucket = s3.new_bucket()
    for seed in range(3_000_000, 3_000_000 + times(4, 100)):

        def look(history: History, what: str, seed: int = seed) -> None:
            found = sorted(tuple(row.values()) for row in history.shuffle.to_table().to_pylist())
            assert found == history.rows == history.merged.rows, (seed, what)

        history = History(seed, f"s3://{bucket}/{seed}")
        history.run(look)
        assert not history.shuffle.verify().problems
