"""Attempts that die at the worst moment, twins, stages retried, tasks that outlive their job.

Processes are killed in earnest, so this needs executors of their own: the cluster.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import arrow_shuffle
from arrow_format import HashPartitioner, ShuffleError, ShuffleNotFoundError
from arrow_shuffle import open_shuffle
from connector.map_status import status_to_row, statuses_from_rows
from integration.programs.cluster import ROOT, session_settings
from integration.programs.processes import executors
from integration.programs.ways import FAST
from integration.torture.checks import files_beside
from integration.torture.operations import collect_garbage
from tests.support.guarantees import guarantee
from tests.support.spark_session import spark_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.keys.partitioner import Assign
    from integration.programs.cluster import Cluster

N = 5
NUM_TASKS = 3
UNLUCKY = 1
"""The map task that things happen to."""
PATIENCE_S = 30


@pytest.fixture(autouse=True)
def _on_a_cluster(spark: SparkSession) -> None:
    if not spark.sparkContext.master.startswith("spark://"):
        pytest.skip("kills executors, which local mode does not have")


# Input that is another at each try ---------------------------------------------------------------


def differently(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows that tell the try they are of; how many, and what is in them, is random."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    tag = uuid.uuid4().hex
    for _ in batches:
        for _ in range(random.randrange(2, 9)):
            n = random.randrange(500, 5_000)
            yield pa.record_batch(
                {
                    "task": pa.array([context.partitionId()] * n, pa.int32()),
                    "tag": [tag] * n,
                    "v": [random.getrandbits(60) for _ in range(n)],
                }
            )


def tagged(spark: SparkSession) -> DataFrame:
    numbers = spark.range(0, NUM_TASKS, 1, NUM_TASKS)
    return numbers.mapInArrow(differently, "task int, tag string, v long")


def map_task_for(df: DataFrame, path: Path) -> arrow_shuffle.ShuffleMapTask:
    return arrow_shuffle.ShuffleMapTask(
        path, schema=df.schema, keys="v", num_subpartitions=N, options=FAST
    )


def assert_one_try_each(path: Path, num_rows: list[int]) -> None:
    """The rows of each map task are all of one try, and all of that try."""
    shuffle = open_shuffle(path)
    assert shuffle.verify().ok
    rows = shuffle.read().read_all()
    tries = rows.group_by("task").aggregate([("tag", "count_distinct"), ("tag", "count")])
    assert tries.sort_by("task").to_pydict() == {
        "task": list(range(len(num_rows))),
        "tag_count_distinct": [1] * len(num_rows),
        "tag_count": num_rows,
    }


# Dead after the work and before the answer -------------------------------------------------------


class DiesBeforeItAnswers:
    """A map task whose first attempt is killed once its files are whole."""

    def __init__(self, task: arrow_shuffle.ShuffleMapTask, whom: str) -> None:
        self.task = task
        self.whom = whom

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        status = list(self.task(batches))
        context = TaskContext.get()
        assert context is not None
        if (context.partitionId(), context.attemptNumber()) == (UNLUCKY, 0):
            kill_self(self.whom)
        yield from status


def kill_self(whom: str) -> None:
    """Kill this Python worker, or the executor it works for; come back never."""
    pid = os.getpid()
    while whom == "executor JVM" and b"CoarseGrainedExecutorBackend" not in command_of(pid):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    time.sleep(PATIENCE_S)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@guarantee("lost attempts")
@pytest.mark.parametrize("whom", ["Python worker", "executor JVM"])
def test_an_attempt_that_dies_before_its_status_arrives(
    spark: SparkSession, tmp_path: Path, whom: str
):
    path = tmp_path / "s"
    df = tagged(spark)
    task = map_task_for(df, path)

    statuses = df.mapInArrow(DiesBeforeItAnswers(task, whom), task.status_schema).collect()

    attempts = {row.map_task: row.attempt for row in statuses}
    assert attempts[UNLUCKY] > 0
    # The attempt that died left files behind that look finished.
    of_it = list(path.glob(f"map_outputs/*/{UNLUCKY:05d}-0-*.index"))
    assert len(of_it) == 1
    receipt = arrow_shuffle.commit_shuffle(task, statuses, expected_map_outputs=NUM_TASKS)
    assert receipt.num_map_outputs == NUM_TASKS
    assert not of_it[0].exists()
    num_rows = [row.num_rows for row in sorted(statuses, key=lambda row: row.map_task)]
    assert_one_try_each(path, num_rows)
    assert files_beside(str(path)) == []


# A stage that is tried again ---------------------------------------------------------------------


class KillsItsExecutorOnce:
    """Passes rows on; the first task to come here kills the executor it runs in."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            yield from batches
        else:
            kill_self("executor JVM")


@guarantee("lost attempts")
@pytest.mark.parametrize("way", ["write_shuffle", "df.write"])
def test_a_stage_whose_input_was_lost(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, way: str
):
    """With an executor goes what it had shuffled: Spark makes it again, then tries our stage again.

    Map tasks count their attempts from 0 again then.
    """
    path = tmp_path / "s"
    here = executors(*cluster.worker_pids, application=spark.sparkContext.applicationId)
    rows = spark.range(0, 40_000, 1, 4).selectExpr("id AS k", "id * 3 AS v").repartition(4, "k")
    df = rows.mapInArrow(KillsItsExecutorOnce(tmp_path / "killed"), "k long, v long")

    if way == "write_shuffle":
        arrow_shuffle.write_shuffle(df, path, keys="k", num_subpartitions=N, options=FAST)
    else:
        writer = df.write.format("arrow_shuffle").mode("append")
        writer.options(keys="k", numSubpartitions=N).save(str(path))

    assert (tmp_path / "killed").exists()
    survivors = executors(*cluster.worker_pids, application=spark.sparkContext.applicationId)
    assert len(set(here) & set(survivors)) < len(here)
    found = open_shuffle(path).read().read_all()
    assert sorted(found["k"].to_pylist()) == list(range(40_000))
    assert pc.all(pc.equal(found["v"], pc.multiply(found["k"], 3))).as_py()
    assert open_shuffle(path).verify().ok
    # What the dead executor's Python workers still wrote is collected at the latest.
    if collect_garbage(str(path)):
        assert files_beside(str(path)) == []


# Tasks that outlive their job ---------------------------------------------------------------------


class Waits(HashPartitioner):
    """Hashes, except that the first attempt of one map task waits in the middle of its rows.

    It says so by a file `begun` in a directory, and goes on when there is a file `go on`.
    """

    def __init__(self, key: str, directory: Path) -> None:
        super().__init__(key)
        object.__setattr__(self, "directory", directory)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "kind": "waits"}

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        hashed = super().bind(schema, num_subpartitions, map_task)
        calls = count()
        waits = (map_task, context.attemptNumber()) == (UNLUCKY, 0)

        def assign(batch: pa.RecordBatch) -> Any:
            if waits and next(calls) == 1:
                (self.directory / "begun").touch()
                wait_for((self.directory / "go on").exists)
                (self.directory / "went on").touch()
            return hashed(batch)

        return assign


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


ROWS = 60_000
"""Of which each map task gets two batches."""


def by_function(df: DataFrame, path: Path) -> None:
    arrow_shuffle.write_shuffle(
        df, path, partitioner=Waits("id", path.parent), num_subpartitions=N, options=FAST
    )


def by_hook(df: DataFrame, path: Path) -> None:
    task = arrow_shuffle.ShuffleMapTask(
        path,
        schema=df.schema,
        partitioner=Waits("id", path.parent),
        num_subpartitions=N,
        options=FAST,
    )
    try:
        statuses = df.mapInArrow(task, task.status_schema).collect()
    except BaseException:
        arrow_shuffle.abort_shuffle(task)
        raise
    arrow_shuffle.commit_shuffle(task, statuses)


def late_files(path: Path) -> list[Path]:
    """Whole files of the attempt that waited."""
    return list(path.glob(f"map_outputs/*/{UNLUCKY:05d}-0-*.index"))


@guarantee("lost attempts")
@pytest.mark.parametrize("write", [by_function, by_hook])
def test_tasks_of_a_cancelled_job_that_run_on(
    spark: SparkSession, tmp_path: Path, write: Callable[[DataFrame, Path], None]
):
    path = tmp_path / "s"
    df = spark.range(0, ROWS, 1, NUM_TASKS)

    def job() -> None:
        spark.sparkContext.setJobGroup(str(path), "will be cancelled")
        write(df, path)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(job)
        wait_for((tmp_path / "begun").exists)
        spark.sparkContext.cancelJobGroup(str(path))
        with pytest.raises(Exception, match="part of cancelled job group"):
            running.result(PATIENCE_S)
    # An abort by the hook that finds files leaves an entry of the log: that a late commit fails.
    assert not (path / "map_outputs" if write is by_hook else path).exists()
    (tmp_path / "go on").touch()
    wait_for((tmp_path / "went on").exists)

    if write is by_hook:
        # Nobody made its directory beforehand, so the task makes it anew, and ends well.
        wait_for(lambda: late_files(path))
        with pytest.raises(ShuffleNotFoundError):
            open_shuffle(path)
    else:
        time.sleep(0.5)
        assert not path.exists()
    arrow_shuffle.write_shuffle(
        df, path, keys="id", num_subpartitions=N, options=FAST
    )  # fmt: skip
    assert sorted(open_shuffle(path).read().read_all()["id"].to_pylist()) == list(range(ROWS))
    if collect_garbage(str(path)):
        assert files_beside(str(path)) == []


# Speculation -------------------------------------------------------------------------------------

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    # The twin that lost is asked to stop, and goes on.
    "spark.python.task.killTimeout": "60s",
}


class Lingers:
    """A map task whose first attempt, of one of them, waits between reading and writing.

    Spark takes its input away once the twin has won.
    """

    def __init__(self, task: arrow_shuffle.ShuffleMapTask, go_on: Path) -> None:
        self.task = task
        self.go_on = go_on

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        rows = list(batches)
        if (context.partitionId(), context.attemptNumber()) == (UNLUCKY, 0):
            wait_for(self.go_on.exists)
        yield from self.task(iter(rows))


def main(url: str, directory: Path) -> None:
    """Write in an application that speculates, and print what came of it as JSON."""
    path = directory / "s"
    settings = session_settings() | SPECULATION
    with spark_session(directory / "spark", master=url, settings=settings) as spark:
        spark.sparkContext.setLogLevel("OFF")
        df = spark.range(0, ROWS, 1, NUM_TASKS)
        task = arrow_shuffle.ShuffleMapTask(
            path, schema=df.schema, keys="id", num_subpartitions=N, options=FAST
        )
        lingers = Lingers(task, directory / "go on")
        statuses = df.mapInArrow(lingers, task.status_schema).collect()
        arrow_shuffle.commit_shuffle(task, statuses, expected_map_outputs=NUM_TASKS)
        at_commit = [str(file) for file in late_files(path)]
        (directory / "go on").touch()
        wait_for(lambda: late_files(path))
        print(json.dumps(at_commit))


@guarantee("lost attempts")
def test_a_speculative_twin_that_ends_after_the_commit(cluster: Cluster, tmp_path: Path):
    path = tmp_path / "s"
    command = [sys.executable, "-m", "integration.test_retries", cluster.url, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []

    shuffle = open_shuffle(path)
    assert [output.attempt for output in shuffle.map_outputs] == [0, 1, 0]
    assert shuffle.version == 1
    assert shuffle.verify().ok
    assert sorted(shuffle.read().read_all()["id"].to_pylist()) == list(range(ROWS))
    assert len(late_files(path)) == 1
    if collect_garbage(str(path)):
        assert files_beside(str(path)) == []
        assert open_shuffle(path).read().read_all().num_rows == ROWS


# Mixed attempts ----------------------------------------------------------------------------------


@guarantee("mixed attempts")
def test_mixed_attempts_of_one_map_task_cannot_be_committed(spark: SparkSession, tmp_path: Path):
    path = tmp_path / "s"
    df = tagged(spark)
    task = map_task_for(df, path)
    one, other = (
        df.mapInArrow(task, task.status_schema).orderBy("map_task").toArrow().to_pylist()
        for _ in range(2)
    )
    first, second = statuses_from_rows((one[0], other[0]))
    files = (*first.output.files, *second.output.files)
    both = replace(first, output=replace(first.output, files=files))
    mixed = status_to_row(both)

    for statuses, message in [
        ([*one, other[0]], r"more than once: \[0\]"),
        ([other[0], *one[2:]], r"missing: \[1\]"),
        ([mixed | {"totals": None}, *one[1:]], "not those of one"),
        ([mixed, *one[1:]], "not those of one attempt"),
    ]:
        with pytest.raises(ShuffleError, match=message):
            arrow_shuffle.commit_shuffle(task, pa.Table.from_pylist(statuses))
        with pytest.raises(ShuffleNotFoundError):
            open_shuffle(path)

    # Of each map task whichever attempt, but whole.
    chosen = [other[0], *one[1:]]
    arrow_shuffle.commit_shuffle(task, pa.Table.from_pylist(chosen), expected_map_outputs=NUM_TASKS)
    assert_one_try_each(path, [row["num_rows"] for row in chosen])
    assert files_beside(str(path)) == []


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
