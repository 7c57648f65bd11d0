"""Which Python runs the data source, and what to do where that one lacks the package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import sys
import connector
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
spark.dataSource.register(connector.ArrowShuffleDataSource)
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
