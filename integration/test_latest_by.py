"""Three generations of each key: Spark, DuckDB, Polars and an epoch have the last of them alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_shuffle
from arrow_format.epochs.batches import EpochBatches
from arrow_format.epochs.options import Epochs
from integration.programs.planner import FORMAT, planning_session
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NUM_KEYS = 3_000
OPEN = [20_000 + key for key in range(NUM_KEYS) if key % 3]
"""What is open in the last generation; all is in those before."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("latest") / "warehouse" / "tickets"
    small = arrow_shuffle.WriteOptions(sync=False, sort_buffer_bytes=1 << 20, chunk_bytes=4096)
    how: dict[str, Any] = {"keys": "k", "num_subpartitions": 16, "options": small}
    for rev in (0, 2, 1):
        status = ["open" if key % 3 or rev < 2 else "closed" for key in range(NUM_KEYS)]
        rows = {"k": range(NUM_KEYS), "rev": [rev] * NUM_KEYS, "status": status}
        values = pa.array([10_000 * rev + key for key in range(NUM_KEYS)], pa.int64())
        table = pa.table({name: list(column) for name, column in rows.items()} | {"v": values})
        arrow_shuffle.write_shuffle(table, path, mode="append", **how)
    return path


@pytest.fixture
def latest(path: Path) -> arrow_shuffle.Shuffle:
    return arrow_shuffle.open_shuffle(path).latest_by("rev")


@guarantee("latest rows")
def test_a_filter_a_count_and_each_library_are_equal(
    spark: SparkSession, latest: arrow_shuffle.Shuffle, path: Path
) -> None:
    kept = arrow_shuffle.open_shuffle(path)
    text = "status = 'open'"
    asked = kept.select("v", latest_by="rev", filter=text)
    reader = spark.read.format("arrow_shuffle").option("latestBy", "rev")
    loaded = reader.option("filter", text).load(str(path))
    dataset = latest.to_dataset()
    query = "SELECT v FROM dataset WHERE status = 'open'"
    epoch = EpochBatches(latest.where(text), ["v"], Epochs(batch_size=100))
    found = {
        "here": asked.to_table()["v"].to_pylist(),
        "DuckDB": [v for (v,) in duckdb.sql(query).fetchall()],
        "Polars": latest.to_polars().filter(pl.col("status") == "open").collect()["v"].to_list(),
        "Spark": [row.v for row in asked.to_spark(spark).collect()],
        "Spark, by Arrow's filter": [
            row.v for row in kept.select(latest_by="rev").to_spark(spark).where(text).collect()
        ],
        "Spark, in parts of subpartitions": [
            row.v
            for row in asked.to_spark(
                spark, split_skewed=True, target_partition_bytes=1 << 10
            ).collect()
        ],
        "Spark, chained": [
            row.v
            for row in latest.select("v", "status")
            .select("v", filter=text)
            .to_spark(spark)
            .collect()
        ],
        "options": [row.v for row in loaded.collect()],
        "an epoch": [v for batch in epoch for v in batch.column("v").to_pylist()],
    }
    assert {name for name, values in found.items() if sorted(values) != OPEN} == set()
    counts = {
        "here": latest.count_rows(filter=text),
        "Spark": asked.to_spark(spark).count(),
        "options": loaded.count(),
        "dataset": dataset.count_rows(pc.field("status") == "open"),
        "DuckDB": duckdb.sql(query.replace("SELECT v", "SELECT count(*)")).fetchall()[0][0],
    }
    assert set(counts.values()) == {len(OPEN)}, counts
    assert spark.read.format("arrow_shuffle").load(str(path)).count() == 3 * NUM_KEYS


def test_the_reader_in_the_jvm_leaves_it_to_python(spark: SparkSession, path: Path) -> None:
    session = planning_session(spark, path.parent)
    asked = arrow_shuffle.open_shuffle(path).select("v", latest_by="rev")
    why = "in Python, not in Spark's JVM: it has no latest_by"
    assert asked.explain(session).reader == why
    assert asked.to_spark(session).count() == NUM_KEYS
    with pytest.raises(Exception, match="option latestby is not known to this reader"):
        session.read.format(FORMAT).option("latestBy", "rev").load(str(path)).count()
