"""Columns renamed and dropped: Spark reads what a name meant, or says that it is gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import arrow_shuffle
from arrow_format import MergePolicy, delete_rows, drop_columns, merge_shuffle, rename_columns
from arrow_format.errors import CommitConflictError
from arrow_shuffle import open_shuffle
from connector.cli.main import main
from integration.programs.ways import FAST
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

SWAPPED = {"a": "b", "b": "a"}
GONE = "'a', 'b' was renamed or dropped since the"
N = 16


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> Path:
    """Rows of a key ``k`` with ``a`` = 10 k and ``b`` = 100 k, in two map outputs or more."""
    path = tmp_path / "s"
    for start in (0, 8):
        append(path, numbers(spark, start))
    return path


def numbers(spark: SparkSession, start: int, names: str = "k, a, b") -> DataFrame:
    """Return eight rows of ``k``, ``10 k`` and ``100 k``."""
    end = start + 8
    return spark.sql(f"SELECT id, 10 * id, 100 * id FROM range({start}, {end})").toDF(
        *names.split(", ")
    )


def append(path: Path, df: DataFrame, **options: Any) -> None:
    arrow_shuffle.write_shuffle(
        df, path, keys="k", num_subpartitions=4, mode="append", options=FAST, **options
    )


def load(spark: SparkSession, path: Path) -> DataFrame:
    return spark.read.format("arrow_shuffle").load(str(path))


def view(spark: SparkSession, path: Path) -> str:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW altered USING arrow_shuffle OPTIONS (path '{path}')"
    )
    return "altered"


def values(df: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in df.select(*names).collect())


def follow(path: Path, stream: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Read all that is new since the checkpoint."""
    found: list[tuple[Any, ...]] = []
    writer = stream.writeStream.foreachBatch(lambda df, _: found.extend(values(df, *names)))
    writer = writer.option("checkpointLocation", str(path.parent / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination(120)
    return sorted(found)


def stream_of(spark: SparkSession, path: Path) -> DataFrame:
    return spark.readStream.format("arrow_shuffle").load(str(path))


@guarantee("columns by id")
def test_names_of_before_never_mean_other_columns(spark: SparkSession, path: Path) -> None:
    pinned, loaded, stream = (
        open_shuffle(path).to_spark(spark), load(spark, path), stream_of(spark, path),
    )  # fmt: skip
    seen, task = (
        view(spark, path),
        arrow_shuffle.ShuffleMapTask(
            path, schema=pinned.schema, keys="k", num_subpartitions=4, options=FAST
        ),
    )
    late = numbers(spark, N)
    statuses = late.mapInArrow(task, task.status_schema).collect()
    rename_columns(path, SWAPPED)
    before = [(k, 10 * k, 100 * k) for k in range(N)]
    assert values(pinned, "k", "a", "b") == before
    for df in (loaded, spark.table(seen)):
        with pytest.raises(Exception, match=f"{GONE} DataFrame or view began"):
            df.collect()
    with pytest.raises(Exception, match=f"{GONE} query began"):
        follow(path, stream, "k", "a", "b")
    arrow_shuffle.commit_shuffle(task, statuses, mode="append")
    now = [*before, *((k, 10 * k, 100 * k) for k in range(N, N + 8))]
    for df in (load(spark, path), spark.table(view(spark, path))):
        assert values(df, "k", "b", "a") == now
    assert follow(path, stream_of(spark, path), "k", "b", "a") == now


@guarantee("columns by id")
def test_what_began_before_a_drop_is_refused(spark: SparkSession, path: Path) -> None:
    pinned, loaded, seen = open_shuffle(path).to_spark(spark), load(spark, path), view(spark, path)
    task = arrow_shuffle.ShuffleMapTask(
        path, schema=pinned.schema, keys="k", num_subpartitions=4, options=FAST
    )
    statuses = numbers(spark, N).mapInArrow(task, task.status_schema).collect()
    drop_columns(path, "b")
    evolves = replace(FAST, schema_evolution=True)
    added = numbers(spark, N).selectExpr("k", "a", "b + 1 AS b")
    arrow_shuffle.write_shuffle(
        added, path, keys="k", num_subpartitions=4, mode="append", options=evolves
    )
    assert values(pinned, "k", "b")[-1] == (N - 1, 100 * (N - 1))
    for use in (loaded.collect, spark.table(seen).collect):
        with pytest.raises(Exception, match="'b' was renamed or dropped since the DataFrame"):
            use()
    with pytest.raises(CommitConflictError, match="column 'b'"):
        arrow_shuffle.commit_shuffle(task, statuses, mode="append")
    assert values(load(spark, path), "k", "b") == [
        (k, None if k < N else 100 * k + 1) for k in range(N + 8)
    ]


def merged(path: Path) -> None:
    merge_shuffle(path, policy=MergePolicy(rewrite="always"), options=FAST, by="map_output")


def masked(path: Path) -> None:
    delete_rows(path, {open_shuffle(path).schema.names[0]: [3, 17]}, erase=False, options=FAST)


@guarantee("columns by id")
@pytest.mark.parametrize("between", [(masked,), (merged,), (masked, merged), (merged, masked)])
def test_a_rename_and_a_drop_beside_masks_merges_and_a_checkpoint(
    spark: SparkSession, path: Path, between: tuple[Callable[[Path], None], ...]
) -> None:
    first = stream_of(spark, path)
    assert follow(path, first, "k", "a") == [(k, 10 * k) for k in range(N)]
    append(path, numbers(spark, N))
    # By the command, as an operator does: the key too has another name.
    arguments = ["--rename", "k=key", "--rename", "b=a", "--drop", "a"]
    assert main(["alter", str(path), *arguments]) == 0
    for act in between:
        act(path)
    arrow_shuffle.write_shuffle(
        numbers(spark, N + 8, "key, unused, a").drop("unused"),
        path, keys="key", num_subpartitions=4, mode="append", options=FAST,
    )  # fmt: skip
    gone = {3, 17} if masked in between else set()
    now = [(k, 100 * k) for k in range(N + 16) if k not in gone]
    assert values(load(spark, path), "key", "a") == now
    sql = spark.sql(f"SELECT key, a FROM {view(spark, path)} WHERE a >= 1500 ORDER BY key")
    assert [tuple(row) for row in sql.collect()] == [row for row in now if row[1] >= 1_500]
    assert values(open_shuffle(path).select(filter="a = 1500").to_spark(spark), "key") == [(15,)]
    # What a version added has no mask of a later one.
    new = [(k, 100 * k) for k in range(N, N + 16)]
    assert follow(path, stream_of(spark, path), "key", "a") == new
    open_shuffle(path).verify()
