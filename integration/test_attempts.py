"""Attempts that fail, jobs that fail, and writers that meet: exactly one of everything counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_shuffle
from arrow_format import ColumnPartitioner, ShuffleExistsError, ShuffleNotFoundError, StorageError
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_shuffle import open_shuffle
from integration.programs.ways import FAST, WAYS, by_function
from tests.support.exhaustive import exhaustive
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import SCHEMA, files_below, numbered

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

N = 5
ROWS = 60_000


def fails_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail the first attempt of task 1 after it handed on most of its rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    yield next(batches)
    if context.partitionId() == 1 and context.attemptNumber() == 0:
        msg = "the first attempt fails"
        raise RuntimeError(msg)
    yield from batches


def attempts(path: Path) -> dict[str, Any]:
    shuffle = open_shuffle(path)
    return {
        "attempts": [output.attempt for output in shuffle.map_outputs],
        "files": sorted(file.name for file in path.glob("map_outputs/*/*")),
        "live": sorted(
            name.rpartition("/")[2]
            for output in shuffle.map_outputs
            for file in output.files
            for name in (file.data_path, file.index_path)
        ),
        "sum": pc.sum(shuffle.read().read_all()["k"]).as_py(),
        "rows": shuffle.num_rows,
        "sound": shuffle.verify().ok,
    }


@pytest.fixture(scope="module")
def retried(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What every way of writing made of a job with one failure."""
    directory = tmp_path_factory.mktemp("attempts")
    df = spark.range(0, ROWS, 1, 3).toDF("k").mapInArrow(fails_at_first, "k long")
    found = {}
    for name, write in WAYS.items():
        path = directory / name
        write(df, path, ["k"], N)
        found[name] = attempts(path)
    return found


@guarantee("one attempt")
@pytest.mark.parametrize("way", WAYS)
def test_a_retried_task_counts_once(retried: dict[str, dict[str, Any]], way: str):
    found = retried[way]

    assert found["attempts"] == [0, 1, 0]
    assert found["files"] == found["live"]
    assert (found["rows"], found["sum"]) == (ROWS, ROWS * (ROWS - 1) // 2)
    assert found["sound"]


# Jobs that fail ----------------------------------------------------------------------------------


@guarantee("failed write")
@exhaustive()
@pytest.mark.parametrize("way", ["write_shuffle", "df.write", "SQL"])
@pytest.mark.parametrize("early", [True, False], ids=["at once", "late"])
def test_a_failed_job_removes_what_it_wrote_and_its_directory(
    spark: SparkSession, tmp_path: Path, way: str, early: bool
):
    """Also what tasks write that were running, or had not begun, when the job failed."""
    bad = 0 if early else ROWS - 1
    df = spark.range(0, ROWS, 1, 3).selectExpr(f"if(id = {bad}, raise_error('bad luck'), id) AS k")

    with pytest.raises(Exception, match="bad luck"):
        WAYS[way](df, tmp_path / "s", ["k"], N)
    # A job after it: by then no task of the failed one is left.
    by_function(spark.range(8).toDF("k"), tmp_path / "other", ["k"], N)

    # Of a job that Spark aborts, the log says so for ever: that a late commit of it fails.
    assert not (tmp_path / "s" / "map_outputs").exists()
    with pytest.raises(ShuffleNotFoundError):
        open_shuffle(tmp_path / "s")


def test_a_failed_commit_removes_what_was_written(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"

    def meanwhile(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Another writer, who is faster."""
        from arrow_format import write_shuffle

        yield from batches
        write_shuffle(pa.table({"k": [1]}), path, keys="k", num_subpartitions=N, options=FAST)

    df = spark.range(0, 9, 1, 1).toDF("k").mapInArrow(meanwhile, "k long")

    with pytest.raises(ShuffleExistsError, match="there is a shuffle already"):
        arrow_shuffle.write_shuffle(df, path, keys="k", num_subpartitions=N, options=FAST)

    assert open_shuffle(path).num_rows == 1
    assert len(list(path.glob("map_outputs/*/*"))) == 2


def test_a_task_that_outlives_its_job_leaves_nothing(tmp_path: Path):
    path = tmp_path / "s"
    job = begin_job(
        str(path),
        SCHEMA,
        num_subpartitions=N,
        partitioner=ColumnPartitioner("p"),
        options=replace(FAST, sort_buffer_bytes=1 << 12),
    )
    open_target(job, "append")
    job = replace(job, has_directory=True)

    def aborted_in_between() -> Iterator[pa.RecordBatch]:
        for i in range(20):
            yield numbered([0, 1, 2, 3] * 50)
            if i == 10:
                assert len(list(path.rglob("*.data"))) == 1
                abort_job(job, alone=True)
                assert not path.exists()

    for batches in (aborted_in_between(), [numbered([1])]):
        with pytest.raises(StorageError, match="the job was given up meanwhile"):
            run_map_task(job, 0, 0, batches)
        assert not path.exists()


# Several writers ---------------------------------------------------------------------------------


@guarantee("racing writers")
def test_concurrent_appends_all_land(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    # SQL's view and the rows to write have one name in the session, so it stands out.
    ways = ["write_shuffle", "df.write", "mapInArrow", "df.write"] * 2

    def append(i: int) -> None:
        # createDataFrame also makes the session the active one of this thread, without which Spark
        # 4.3 finds no Python data source to write to.
        df = spark.createDataFrame([(k,) for k in range(100 * i, 100 * i + 100)], "k long")
        WAYS[ways[i]](df.repartition(2), path, ["k"], N)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(append, range(8)))

    shuffle = open_shuffle(path)
    assert shuffle.version == 8
    assert shuffle.verify().ok
    assert sorted(shuffle.read().read_all()["k"].to_pylist()) == list(range(800))
    assert len(list(path.glob("map_outputs/*/*.data"))) == 16
    assert not [name for name in files_below(path) if "tmp" in name]


def test_a_write_of_spark_that_is_repeated_with_its_number_counts_once(
    spark: SparkSession, tmp_path: Path
):
    path = tmp_path / "s"

    def append(number: int, first: int) -> None:
        rows = spark.range(first, first + 10).withColumnRenamed("id", "k")
        (
            rows.write.format("arrow_shuffle")
            .options(keys="k", numSubpartitions=N, txnAppId="nightly", txnVersion=number)
            .mode("append")
            .save(str(path))
        )

    append(1, 0)
    append(4, 100)
    append(4, 100)
    assert open_shuffle(path).version == 2
    with pytest.raises(
        Exception,
        match=r"number 3 of application .nightly. is not in the log, and 4, which comes after",
    ):
        append(3, 200)
    assert sorted(open_shuffle(path).read().read_all()["k"].to_pylist()) == [
        *range(10), *range(100, 110),
    ]  # fmt: skip
    live = {file.data_path for output in open_shuffle(path).map_outputs for file in output.files}
    assert {str(file.relative_to(path)) for file in path.glob("map_outputs/*/*.data")} == live


def test_of_two_first_writers_one_wins(tmp_path: Path):
    def write(start: int) -> object:
        job = begin_job(
            str(tmp_path / "s"), SCHEMA, num_subpartitions=N, partitioner=ColumnPartitioner("p")
        )
        open_target(job, "errorifexists")
        return job, run_map_task(job, 0, 0, [numbered([0, 1], start)])

    (one, rows), (other, others) = write(0), write(10)

    assert commit_job(other, [others]).version == 1
    with pytest.raises(ShuffleExistsError, match="there is a shuffle already"):
        commit_job(one, [rows])
    abort_job(one)
    assert open_shuffle(tmp_path / "s").read().read_all()["v"].to_pylist() == [10, 11]
