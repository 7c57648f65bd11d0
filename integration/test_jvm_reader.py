"""Sessions get the reader in Spark's JVM as the guide says, and its rows are those of Python's.

Each way is a program of its own, since a session's jars are those it began with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from arrow_shuffle import spark_config
from connector.jvm_reader import own_version
from integration.programs.cluster import session_settings
from integration.programs.connect_server import connect_server
from tests.support.spark_session import QUICK_START

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.programs.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
import arrow_shuffle

url, warehouse, settings, steps = json.loads(sys.argv[1])
builder = SparkSession.builder
builder = builder.remote(url) if url.startswith("sc:") else builder.master(url) if url else builder
for name, value in settings.items():
    builder = builder.config(name, value)
if "config" in steps:
    builder = builder.config(map=arrow_shuffle.spark_config(warehouse))
spark = builder.create() if url.startswith("sc:") else builder.getOrCreate()
if "artifact" in steps:
    spark.addArtifacts(arrow_shuffle.spark_config()["spark.jars"])
if "late" in steps:
    given = arrow_shuffle.spark_config(warehouse)
    spark.sql(f"ADD JAR '{given.pop('spark.jars')}'")
    for name, value in given.items():
        spark.conf.set(name, value)

def said(act):
    try:
        return act()
    except Exception as error:
        return str(error)

orders = spark.range(0, 3000, 1, 3).selectExpr("id", "id % 50 AS customer", "id / 4 AS price")
people = spark.range(50).selectExpr("id AS customer", "concat('city ', id % 3) AS city")
how = {"keys": "customer", "num_subpartitions": 16, "spark": spark}
place = {"path": warehouse + "/a/orders"} if "none" in steps else {"table": "a.orders"}
other = {"path": warehouse + "/people"} if "none" in steps else {"table": "people"}
arrow_shuffle.write_shuffle(orders, **place, **how)
arrow_shuffle.write_shuffle(people, **other, **how)
kept = arrow_shuffle.open_shuffle(warehouse + "/a/orders")
few = kept.select("customer", "price", filter="customer < 7")
spark.conf.set("spark.sql.autoBroadcastJoinThreshold", -1)
joined = "FROM shuffles.a.orders JOIN shuffles.people USING (customer) GROUP BY customer"
plan = lambda: spark.sql(f"EXPLAIN SELECT customer, count(*) {joined}").collect()[0][0]
facts = arrow_shuffle.check_environment(spark, warehouse)
told = [one.code for one in facts.findings if "jvm" in one.code]
print(json.dumps({
    "version": facts.facts.session.jvm.version,
    "findings": told,
    "reader": few.explain(spark).reader,
    "few": sorted(map(list, few.to_spark(spark).collect())),
    "python": sorted(map(list, few.to_spark(spark, coalesce=True).collect())),
    "groups": said(lambda: spark.sql(f"SELECT count(*) {joined}").count()),
    "exchanges": said(lambda: plan().count("Exchange")),
}))
spark.stop()
"""

FEW = [[i % 50, i / 4] for i in range(3000) if i % 50 < 7]
WITH = {
    "version": own_version(),
    "findings": [],
    "reader": "in Spark's JVM",
    "few": sorted(FEW),
    "python": sorted(FEW),
    "groups": 50,
    "exchanges": 0,
}
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(
        url: str,
        *steps: str,
        settings: dict[str, str] | None = None,
        program: tuple[str, ...] = (sys.executable, "-c", PROGRAM),
    ) -> dict[str, Any]:
        given = [url, str(tmp_path / "warehouse"), settings or {}, steps]
        done = subprocess.run(
            [*program, json.dumps(given)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if k not in ("SPARK_REMOTE", "SPARK_HOME")}
            | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
            | {"PYTHONPATH": str(ROOT)},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_a_session_without_the_jar(run: Callable[..., dict[str, Any]]):
    found = run("local[2]", "none", settings=LOCAL)
    assert found["version"] is None
    assert found["findings"] == []
    assert found["reader"].startswith("in Python, not in Spark's JVM: the session does not have it")
    assert found["few"] == found["python"] == sorted(FEW)
    assert "shuffles" in found["groups"]


def test_a_session_that_begins_with_the_jar(run: Callable[..., dict[str, Any]]):
    assert run("local[2]", "config", settings=LOCAL) == WITH


def test_a_session_that_runs_already(run: Callable[..., dict[str, Any]]):
    assert run("local[2]", "late", settings=LOCAL) == WITH


def test_a_cluster_of_two_workers(run: Callable[..., dict[str, Any]], cluster: Cluster):
    settings = LOCAL | session_settings() | {"spark.cores.max": "2"}
    assert run(cluster.url, "config", settings=settings) == WITH


def test_spark_submit(run: Callable[..., dict[str, Any]], tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    settings = LOCAL | spark_config(tmp_path / "warehouse")
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    submit += [part for pair in settings.items() for part in ("--conf", "=".join(pair))]
    found = run("", program=(*submit, str(tmp_path / "program.py")))
    assert found == WITH


def test_a_connect_server_that_begins_with_the_jar(
    run: Callable[..., dict[str, Any]], tmp_path: Path
):
    python = Path(sys.executable)
    with connect_server(
        tmp_path / "server",
        driver_python=python,
        worker_python=python,
        settings=spark_config(tmp_path / "warehouse"),
    ) as url:
        assert run(url) == WITH


def test_a_connect_session_that_brings_the_jar(run: Callable[..., dict[str, Any]], tmp_path: Path):
    python = Path(sys.executable)
    with connect_server(tmp_path / "server", driver_python=python, worker_python=python) as url:
        assert run(url, "config", "artifact") == WITH
