"""Jobs of Spark that are ours: what they are called, and what ends them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import arrow_shuffle
from arrow_format import MergePolicy
from arrow_shuffle import open_shuffle
from connector.pickling import pickle_by_value
from tests.support.guarantees import guarantee
from tests.support.spark_session import QUICK_START

if TYPE_CHECKING:
    import pandas as pd
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[1]
pickle_by_value(__name__)


def jobs_after(spark: SparkSession, last: int) -> list[tuple[str | None, list[str]]]:
    """Return description and tags of the jobs whose ids are higher, in their order."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    jobs = {int(job.jobId()): job for job in _stored_jobs(spark)}
    return [
        (job.description().get() if job.description().isDefined() else None, _texts(job.jobTags()))
        for number, job in sorted(jobs.items())
        if number > last
    ]


def last_job(spark: SparkSession) -> int:
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    return max((int(job.jobId()) for job in _stored_jobs(spark)), default=-1)


def _stored_jobs(spark: SparkSession) -> list[JavaObject]:
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return [jobs.apply(i) for i in range(jobs.size())]


def _texts(tags: JavaObject) -> list[str]:
    return str(tags.mkString("\n")).split("\n") if tags.size() else []


def counted(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.head(1)[["k"]]


@guarantee("named jobs")
def test_jobs_say_what_they_do_and_to_which_path(spark: SparkSession, tmp_path: Path):
    context = spark.sparkContext
    rows = spark.range(0, 1_000, 1, 2).selectExpr("id % 50 AS k", "id AS v")
    path, result = tmp_path / "a, b", tmp_path / "result"
    policy = MergePolicy(rewrite="always")
    context.setJobDescription("mine")
    context.addJobTag("my tag")
    began = last_job(spark)
    try:
        arrow_shuffle.write_shuffle(rows, path, keys="k", num_subpartitions=4)
        open_shuffle(path).append(rows)
        open_shuffle(path).merge(policy=policy, spark=spark)
        open_shuffle(path).map_groups(counted, "k bigint").write(result, spark=spark)
        open_shuffle(path).select("v").join(open_shuffle(result)).write(
            result, mode="overwrite", spark=spark
        )
        after = context.getLocalProperty("spark.job.description"), sorted(context.getJobTags())
        spark.range(3).collect()
    finally:
        context.setJobDescription(None)
        context.removeJobTag("my tag")
    found = jobs_after(spark, began)
    assert [description for description, _ in found] == [
        f"arrow_shuffle write {path} (errorifexists)",
        f"arrow_shuffle write {path} (append)",
        f"arrow_shuffle merge {path} by subpartition",
        f"arrow_shuffle map_groups {path} into {result} (errorifexists)",
        f"arrow_shuffle join {path}, {result} into {result} (overwrite)",
        "mine",
    ]
    for description, tags in found[:-1]:
        assert description is not None
        (own,) = (tag for tag in tags if tag.startswith("arrow_shuffle"))
        assert re.fullmatch(re.escape(description.replace(",", ";")) + " [0-9a-f]{8}", own)
        assert "my tag" in tags
    assert not any(tag.startswith("arrow_shuffle") for tag in found[-1][1])
    assert after == ("mine", ["my tag"])


@pytest.mark.parametrize("name", ["map_groups", "map_subpartitions", "aggregation", "join"])
def test_a_plan_says_what_is_done_to_which_path(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    path = str(tmp_path / "s")
    arrow_shuffle.write_shuffle(spark.range(9), path, keys="id", num_subpartitions=2)
    lazy = {
        "map_groups": lambda: (
            open_shuffle(path).map_groups(lambda rows: rows, "id long").to_spark(spark)
        ),
        "map_subpartitions": lambda: (
            open_shuffle(path)
            .map_subpartitions(lambda number, rows: rows, "id long")
            .to_spark(spark)
        ),
        "aggregation": lambda: (
            open_shuffle(path).aggregate("id", {"n": ("*", "count")}).to_spark(spark)
        ),
        "join": lambda: open_shuffle(path).join(open_shuffle(path)).to_spark(spark),
    }
    frame = lazy[name]()
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert f"arrow_shuffle {name}" in plan
    assert path in plan


def test_writes_from_ten_threads(spark: SparkSession, tmp_path: Path):
    """Of Spark's own writer only with the line of the page on deployment."""

    def by_function(number: int) -> None:
        path = tmp_path / f"function {number}"
        arrow_shuffle.write_shuffle(spark.range(number), path, keys="id", num_subpartitions=2)

    def by_writer(number: int) -> None:
        spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)
        writer = spark.range(number).write.format("arrow_shuffle").mode("append")
        writer.options(keys="id", numSubpartitions=2).save(str(tmp_path / f"writer {number}"))

    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(arrow_shuffle.check_environment, spark).result().findings
    assert "DATA_SOURCE_NOT_FOUND in it" in str(next(one for one in found if one.code == "thread"))
    assert all(one.code != "thread" for one in arrow_shuffle.check_environment(spark).findings)
    with ThreadPoolExecutor(10) as threads:
        ways = (by_function, by_writer)
        for done in [threads.submit(way, number) for number in range(5) for way in ways]:
            done.result()
    for way in ("function", "writer"):
        counts = [open_shuffle(tmp_path / f"{way} {number}").num_rows for number in range(5)]
        assert counts == [*range(5)]


# Stopped in the middle ----------------------------------------------------------------------------

STOPPED = """
import json, os, signal, sys, threading, time
from pathlib import Path
from pyspark.sql import SparkSession
import arrow_shuffle

way, directory = sys.argv[1], Path(sys.argv[2])
builder = SparkSession.builder
builder = builder.master("local[2]") if way == "classic" else builder.remote("local[2]")
for name, value in json.loads(sys.argv[3]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
# As the kernel of a notebook does; PySpark's own handler cancels all jobs, if it was classic.
signal.signal(signal.SIGINT, signal.default_int_handler)
path = directory / "s"
rows = spark.range(0, 4_000_000_000, 1, 2).selectExpr("id", "id % 1000 AS k", "rand() AS r")
found = {}


def files():
    return sorted(str(file) for file in path.rglob("*") if file.is_file())


def stop():
    while not any(file.endswith(".data") for file in files()):
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=stop, daemon=True).start()
options = arrow_shuffle.WriteOptions(sort_buffer_bytes=4 << 20)
try:
    arrow_shuffle.write_shuffle(rows, path, keys="k", num_subpartitions=64, options=options)
except KeyboardInterrupt:
    found["stopped"] = True
found["files"] = files()
few = spark.range(1000).selectExpr("id", "id % 10 AS k")
receipt = arrow_shuffle.write_shuffle(few, path, keys="k", num_subpartitions=4)
found["then"] = [receipt.version, receipt.num_rows]
print(json.dumps(found))
spark.stop()
"""

SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.driver.memory": "700m",
    "spark.sql.artifact.copyFromLocalToFs.allowDestLocal": "true",
}


@guarantee("stopped jobs")
@pytest.mark.parametrize("way", ["classic", "connect"])
def test_the_stop_button_cancels_the_job(tmp_path: Path, way: str):
    """A job that went on would take both cores for many minutes, and fail below the next cell."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STOPPED, way, tmp_path, json.dumps(SETTINGS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
        | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "stopped": True, "files": [], "then": [1, 1_000],
    }  # fmt: skip
    assert "ObjectNotFoundError" not in done.stderr
    assert "Traceback" not in done.stderr
