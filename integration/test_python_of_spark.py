"""Which Python runs the data source, and what to do where that one lacks the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from integration.programs.environments import make_environment
from tests.support.guarantees import guarantee

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys
import arrow_shuffle
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name in ("spark.driver.bindAddress", "spark.driver.host"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
path = sys.argv[1] + "/s"
writer = spark.range(100).write.format("arrow_shuffle").mode("append")
writer = writer.options(keys="id", numSubpartitions=2)
try:
    writer.save(path)
except Exception as error:
    print("DATA_SOURCE_NOT_FOUND" in str(error))
spark.dataSource.register(arrow_shuffle.ArrowShuffleDataSource)
writer.save(path)
print(spark.read.format("arrow_shuffle").load(path).count())
spark.stop()
"""


def test_a_driver_python_without_the_package_is_answered_by_registering(tmp_path: Path) -> None:
    """As in a notebook, where PYSPARK_DRIVER_PYTHON is jupyter."""
    without = tmp_path / "jupyter"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": str(without)},
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "100"]


ANOTHER_PYTHON = """
import sys
sys.path.insert(0, sys.argv[2])
import pyarrow as pa
import arrow_shuffle
from pyspark.sql import SparkSession

there = sys.argv[1] + "/there"
for mode in ("overwrite", "append", "append"):
    arrow_shuffle.write_shuffle(
        pa.table({"id": range(100)}), there, keys="id", num_subpartitions=2, mode=mode
    )
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for name in ("spark.driver.bindAddress", "spark.driver.host"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
shuffle = arrow_shuffle.open_shuffle(there)
always = arrow_shuffle.MergePolicy(rewrite="always")
for call in (
    lambda: shuffle.append(spark.range(7)).num_rows,
    lambda: shuffle.newest().to_spark(spark).count(),
    lambda: shuffle.newest().map_groups(lambda rows: rows, "id long").to_spark(spark).count(),
    lambda: shuffle.merge(policy=always, spark=spark).version,
):
    try:
        print(call())
    except arrow_shuffle.errors.MissingPackageError as error:
        print(error)
print(spark.sparkContext._jsc.sc().statusStore().jobsList(None).size(), "jobs")
spark.stop()
"""


def with_another_python(directory: Path, **environment: str) -> list[str]:
    """Run a program whose environment is not activated; return what it printed."""
    python = make_environment(directory / "another")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PYTHON, directory, ROOT],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=kept | {"PATH": f"{python.parent}:{os.environ['PATH']}"} | environment,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.splitlines()


@guarantee("worker Python")
def test_an_environment_that_is_not_activated_is_told_the_line_that_helps(tmp_path: Path):
    """As in an IDE, a kernel of Jupyter, cron: Spark takes the first python3 of the PATH."""
    *said, jobs = with_another_python(tmp_path)
    assert said == 4 * [
        f"Spark runs functions in {tmp_path}/another/bin/python3 (PYSPARK_PYTHON is not set), "
        f"which lacks arrow-shuffle. Set PYSPARK_PYTHON={sys.executable} before the session "
        "begins, or activate the environment: export it, or os.environ['PYSPARK_PYTHON'] = "
        "sys.executable, and start again"
    ]
    assert jobs == "0 jobs"


def test_the_line_helps(tmp_path: Path):
    found = with_another_python(tmp_path, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT))
    assert found[:-1] == ["7", "307", "307", "5"]
