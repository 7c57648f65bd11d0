"""Several targets of one job of Spark: one pass, attempts that fail, a driver that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

import arrow_shuffle
from arrow_format import RangePartitioner, WriteOptions
from arrow_shuffle import Target, open_shuffle
from connector.pickling import pickle_by_value
from integration.programs.ways import FAST
from integration.test_spark_jobs import ROOT, jobs_after, last_job
from integration.torture.checks import files_beside
from tests.support.guarantees import guarantee

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pickle_by_value(__name__)

NUM_ROWS, NUM_TASKS = 20_000, 4
UNLUCKY = 1
SMALL = WriteOptions(sync=False, sort_buffer_bytes=16 << 10)
"""Of several regions a task, so that files have begun when one fails."""


def numbers(spark: SparkSession) -> DataFrame:
    return spark.range(0, NUM_ROWS, 1, NUM_TASKS).selectExpr("id AS a", "id % 97 AS b")


def targets(directory: Path, number: int = 1) -> list[Target]:
    once = ("load", number)
    return [
        Target(directory / "a", keys="a", num_subpartitions=5, transaction=once, options=SMALL),
        Target(
            directory / "b",
            keys="b",
            num_subpartitions=7,
            sort_by=["a"],
            transaction=once,
            options=SMALL,
        ),
    ]


def read_of(path: Path) -> pa.Table:
    return open_shuffle(path).read(with_subpartition=True).read_all()


def assert_is_there_once(directory: Path) -> None:
    for name in "ab":
        shuffle = open_shuffle(directory / name)
        assert (shuffle.version, shuffle.num_rows) == (1, NUM_ROWS)
        assert shuffle.verify().ok
        assert sorted(shuffle.to_table()["a"].to_pylist()) == list(range(NUM_ROWS))
        assert files_beside(str(directory / name)) == []


def test_a_frame_passes_once(spark: SparkSession, tmp_path: Path):
    df = numbers(spark)
    last = last_job(spark)
    receipts = arrow_shuffle.write_shuffles(df, targets(tmp_path))
    (job,) = jobs_after(spark, last)
    paths = f"{tmp_path}/a (errorifexists), {tmp_path}/b (errorifexists)"
    assert job[0] == f"arrow_shuffle write {paths}"
    assert [receipt.num_map_outputs for receipt in receipts] == [NUM_TASKS] * 2
    assert_is_there_once(tmp_path)
    for name, target in zip("ab", targets(tmp_path / "alone"), strict=True):
        arrow_shuffle.write_shuffle(df, target.path, **target.how)
        assert read_of(tmp_path / name) == read_of(tmp_path / "alone" / name)
    last = last_job(spark)
    again = arrow_shuffle.write_shuffles(df, targets(tmp_path))
    assert all(receipt.is_repetition for receipt in again)
    assert jobs_after(spark, last) == []


def test_files_and_ranges(spark: SparkSession, tmp_path: Path):
    rows = pa.table({"a": range(NUM_ROWS), "b": [v % 97 for v in range(NUM_ROWS)]})
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=1_000)
    by_range = Target(
        tmp_path / "r",
        partitioner=RangePartitioner(keys="b"),
        num_subpartitions=3,
        options=FAST,
        mode="append",
    )
    for source in (ds.dataset(tmp_path / "rows.parquet"), numbers(spark)):
        receipts = arrow_shuffle.write_shuffles(
            source, [by_range, Target(tmp_path / "k", keys="a", options=FAST, mode="append")],
            spark=spark,
        )  # fmt: skip
        assert [receipt.num_rows for receipt in receipts] == [NUM_ROWS] * 2
    assert open_shuffle(tmp_path / "r").num_rows == 2 * NUM_ROWS
    assert all(open_shuffle(tmp_path / name).verify().ok for name in "rk")


class Fails:
    """Passes rows on; some attempts of one task fail at their end, or are killed there."""

    def __init__(self, how: str, attempts: int) -> None:
        self.how = how
        self.attempts = attempts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == UNLUCKY and context.attemptNumber() < self.attempts:
            if self.how == "is killed":
                os.kill(os.getpid(), signal.SIGKILL)
            msg = "this attempt fails"
            raise ValueError(msg)


@guarantee("several targets")
@pytest.mark.parametrize("how", ["raises", "is killed"])
def test_an_attempt_that_fails_is_repeated(spark: SparkSession, tmp_path: Path, how: str):
    df = numbers(spark).mapInArrow(Fails(how, 1), "a long, b long")
    arrow_shuffle.write_shuffles(df, targets(tmp_path))
    assert_is_there_once(tmp_path)


@guarantee("several targets")
def test_a_task_that_fails_leaves_nothing_of_any_target(spark: SparkSession, tmp_path: Path):
    df = numbers(spark).mapInArrow(Fails("raises", 9), "a long, b long")
    (kept,) = arrow_shuffle.write_shuffles(numbers(spark), targets(tmp_path)[:1])
    before = sorted(path for path in tmp_path.rglob("*"))
    appended = [Target(t.path, **{**t.how, "mode": "append"}) for t in targets(tmp_path, 2)]
    with pytest.raises(PySparkException, match="this attempt fails"):
        arrow_shuffle.write_shuffles(df, appended)
    assert open_shuffle(tmp_path / "a").version == kept.version
    assert sorted(path for path in tmp_path.rglob("*")) == before


DRIVER = """
import os, signal, sys
from pathlib import Path
import arrow_shuffle
from arrow_format.storage.open import PosixStorage
from integration.test_write_shuffles import numbers, targets
from tests.support.spark_session import spark_session

directory = Path(sys.argv[1])
real = PosixStorage.put_if_absent

def put(storage, path, data, *, sync):
    if storage.root.endswith("/b") and path.endswith(".entry"):
        os.kill(os.getpid(), signal.SIGKILL)
    real(storage, path, data, sync=sync)

PosixStorage.put_if_absent = put
with spark_session(directory / "spark") as spark:
    arrow_shuffle.write_shuffles(numbers(spark), targets(directory))
"""


@guarantee("several targets")
def test_a_driver_that_is_killed_between_two_commits(spark: SparkSession, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)], cwd=ROOT, check=False, timeout=300
    )
    assert done.returncode == -signal.SIGKILL
    assert open_shuffle(tmp_path / "a").num_rows == NUM_ROWS
    with pytest.raises(arrow_shuffle.errors.ShuffleNotFoundError):
        open_shuffle(tmp_path / "b")
    first, second = arrow_shuffle.write_shuffles(numbers(spark), targets(tmp_path))
    assert (first.is_repetition, second.is_repetition) == (True, False)
    for name in "ab":
        shuffle = open_shuffle(tmp_path / name)
        assert (shuffle.version, shuffle.num_rows) == (1, NUM_ROWS)
        assert shuffle.verify().ok
