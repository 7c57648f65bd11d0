"""The planner's reader on what Hadoop's ``FileSystem`` reads: requests, delays, failures.

No object store of Hadoop's is among Spark's jars, so a ``FileSystem`` of the tests stands in:
``CountedFileSystem.java``, of local files. A session finds it among the jars that it begins with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import arrow_shuffle
from integration.programs.compiler import CompilerError, find_compiler
from integration.programs.jar import compile_classes, jar_of
from integration.programs.ways import FAST
from tests.support.spark_session import QUICK_START
from tests.support.store_server import skip_but_in_ci

JAVA = Path(__file__).parent / "programs" / "java"
NUM_FILES = 3
NUM_ROWS = 300_000
TASKS = 4

PROGRAM = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

settings, log, queries = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
answers = []
for query, now in queries:
    Path(log).write_text("")
    for name, value in now.items():
        spark.conf.set(name, value)
    try:
        answer = [list(row) for row in spark.sql(query).collect()]
    except Exception as error:
        answer = str(error)
    for name in now:
        spark.conf.unset(name)
    answers.append([answer, Path(log).read_text().splitlines()])
print("answers", json.dumps(answers))
"""

QUERIES: dict[str, tuple[str, dict[str, str]]] = {
    "counted": ("SELECT sum(v), max(t), min(t), count(*) FROM shuffles.rows WHERE v > 7", {}),
    "local": ("SELECT sum(v), max(t), min(t), count(*) FROM files.rows WHERE v > 7", {}),
    "tables": ("SHOW TABLES IN shuffles", {}),
    "count": ("SELECT count(*) FROM shuffles.rows", {}),
    "columns": ("SELECT sum(k), sum(v) FROM shuffles.rows", {}),
    "key": ("SELECT k FROM shuffles.rows WHERE k = 4711", {}),
    "slow": ("SELECT sum(k) FROM shuffles.rows", {"fs.counted.delay.ms": "20"}),
    **{
        f"fails {suffix}": ("SELECT sum(k) FROM shuffles.rows", {"fs.counted.fail": suffix})
        for suffix in (".shuffle.data", ".shuffle.index", ".entry")
    },
}

Answer = tuple[Any, list[str]]
"""Rows, or the text of the error; a line for each request."""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """What each query answers, of a shuffle of three map outputs."""
    directory = tmp_path_factory.mktemp("counted")
    try:
        classes = compile_classes(find_compiler(), JAVA)
    except CompilerError as error:
        skip_but_in_ci(str(error))
    library, log = directory / "counted.jar", directory / "requests"
    library.write_bytes(jar_of(classes, "0"))
    warehouse = directory / "warehouse"
    for number in range(NUM_FILES):
        keys = np.arange(number, NUM_ROWS, NUM_FILES)
        rows = pa.table({"k": keys, "v": keys % 1009, "t": [f"{key:x}" for key in keys * 7919]})
        arrow_shuffle.write_shuffle(
            rows, warehouse / "rows", keys="k", num_subpartitions=64, mode="append", options=FAST
        )
    settings = arrow_shuffle.spark_config(warehouse=f"counted://{warehouse}") | {
        "spark.sql.catalog.files": "arrowshuffle.spark.ShuffleCatalog",
        "spark.sql.catalog.files.warehouse": str(warehouse),
        "spark.hadoop.fs.counted.impl": "CountedFileSystem",
        "spark.hadoop.fs.counted.impl.disable.cache": "true",
        "spark.hadoop.fs.counted.log": str(log),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.local.dir": str(directory / "local"),
        "spark.ui.enabled": "false",
    }
    settings["spark.jars"] += f",{library}"
    asked = json.dumps([settings, str(log), list(QUERIES.values())])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, asked],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        timeout=300,
    )
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("answers ")] or [""]
    assert said, done.stderr
    found = json.loads(said.removeprefix("answers "))
    return {name: (rows, asked) for name, (rows, asked) in zip(QUERIES, found, strict=True)}


def requests(answer: Answer, kind: str, suffix: str = "") -> Counter[str]:
    """How often each file of a suffix was asked for."""
    asked = [line.split(" ", 1) for line in answer[1]]
    return Counter(name for what, name in asked if what == kind and name.endswith(suffix))


def test_rows_are_those_of_local_files(answers: dict[str, Answer]) -> None:
    assert answers["counted"][0] == answers["local"][0]
    assert answers["counted"][1]
    assert not answers["local"][1]
    assert [name for _, name, _ in answers["tables"][0]] == ["rows"]


def test_a_count_reads_the_log_alone(answers: dict[str, Answer]) -> None:
    answer = answers["count"]
    assert answer[0] == [[NUM_ROWS]]
    assert not requests(answer, "ranges")
    assert all(name.endswith(".entry") for name in requests(answer, "whole"))


def test_ranges_of_a_file_are_asked_for_together(answers: dict[str, Answer]) -> None:
    answer = answers["columns"]
    assert answer[0] == [[NUM_ROWS * (NUM_ROWS - 1) // 2, int((np.arange(NUM_ROWS) % 1009).sum())]]
    of_data = requests(answer, "ranges", ".shuffle.data")
    assert len(of_data) == NUM_FILES
    assert max(of_data.values()) <= TASKS
    assert max(requests(answer, "ranges", ".shuffle.index").values()) <= 2 * TASKS


def test_one_key_takes_a_range_of_each_file(answers: dict[str, Answer]) -> None:
    answer = answers["key"]
    assert answer[0] == [[4711]]
    of_data = requests(answer, "ranges", ".shuffle.data")
    assert len(of_data) == NUM_FILES
    assert set(of_data.values()) == {1}


def test_a_slow_store_gives_the_same_rows(answers: dict[str, Answer]) -> None:
    assert answers["slow"][0] == [[NUM_ROWS * (NUM_ROWS - 1) // 2]]


@pytest.mark.parametrize("suffix", [".shuffle.data", ".shuffle.index", ".entry"])
def test_an_error_of_the_store_names_the_file(answers: dict[str, Answer], suffix: str) -> None:
    error = answers[f"fails {suffix}"][0]
    assert isinstance(error, str)
    assert "503 Slow Down: " in error
    assert suffix in error
