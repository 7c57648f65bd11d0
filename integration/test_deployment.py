"""How the package gets to executors that lack it: each way of the guide that can run here.

Drivers are programs of their own, in directories of their own: what a test gives them is all that
the executors of the cluster, and the Connect server, have of this package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from arrow_format import WriteOptions, write_shuffle
from integration.programs.cluster import session_settings
from integration.programs.environments import make_environment, pack_environment, zip_packages
from tests.support.spark_session import QUICK_START

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from integration.programs.cluster import Cluster

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
import arrow_shuffle

url, directory, settings, artifact, names = json.loads(sys.argv[1])
if url.startswith("sc:"):
    spark = SparkSession.builder.remote(url).create()
    if artifact is not None:
        spark.addArtifacts(artifact, pyfile=True)
else:
    builder = SparkSession.builder.master(url)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

def said(act):
    try:
        return act()
    except Exception as error:
        lines = str(error).splitlines()
        return [line for line in lines if "Error: arrow-shuffle" in line] or lines

def mapped():
    return arrow_shuffle.open_shuffle(there).map_subpartitions(lambda i, r: r, df.schema)

def load():
    try:
        spark.dataSource.register(arrow_shuffle.ArrowShuffleDataSource)
    except Exception as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):  # as PySpark 4.0 says where it is found
            raise
    return spark.read.format("arrow_shuffle").load(there).count()

df = spark.range(0, 100, 1, 2)
there, new = f"{directory}/there", f"{directory}/new"
acts = {
    "codes": lambda: [one.code for one in arrow_shuffle.check_environment(spark).findings],
    "write": lambda: arrow_shuffle.write_shuffle(df, new, keys="id", num_subpartitions=4).num_rows,
    "map": lambda: mapped().to_spark(spark).count(),
    "read": lambda: arrow_shuffle.open_shuffle(there).to_spark(spark).count(),
    "load": load,
}
print(json.dumps({name: said(acts[name]) for name in names}))
spark.stop()
"""

WORKS = {"codes": [], "write": 100, "map": 7, "read": 7, "load": 7}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the program in a directory with a shuffle of seven rows; return what it found."""
    rows = pa.table({"id": range(7)})
    options = WriteOptions(sync=False)
    write_shuffle(rows, tmp_path / "there", keys="id", num_subpartitions=4, options=options)

    def run(
        url: str,
        acts: str,
        artifact: Path | None = None,
        environment: dict[str, Any] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        settings = session_settings() | {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK_START,
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(tmp_path / "local"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        del settings["spark.executorEnv.PYTHONPATH"]
        settings["spark.cores.max"] = "1"
        settings |= {f"spark.{name.replace('_', '.')}": str(value) for name, value in more.items()}
        zipped = None if artifact is None else str(artifact)
        given = [url, str(tmp_path), settings, zipped, acts.split()]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps(given)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
            | {name: str(value) for name, value in (environment or {}).items()},
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip of this project's packages, which are pure Python."""
    return zip_packages(tmp_path_factory.mktemp("zip") / "arrow_shuffle.zip")


# A standalone cluster ---------------------------------------------------------------------------


def test_a_packed_environment_as_archive(
    run: Callable[..., dict[str, Any]], cluster: Cluster, tmp_path: Path
):
    """The driver has a link to its own environment at the path at which executors unpack theirs."""
    packed = pack_environment(tmp_path / "packed")
    (tmp_path / "environment").symlink_to(sys.prefix)
    environment = {"PYSPARK_PYTHON": "./environment/bin/python"}
    archives = f"{packed}#environment"
    found = run(cluster.url, " ".join(WORKS), environment=environment, archives=archives)
    assert found == WORKS


def test_a_zip_as_py_files(
    run: Callable[..., dict[str, Any]], cluster: Cluster, zipped: Path, tmp_path: Path
):
    python = make_environment(tmp_path / "environment")
    environment = {"PYSPARK_PYTHON": python}
    found = run(cluster.url, "write read load", environment=environment, submit_pyFiles=zipped)
    assert found == {name: WORKS[name] for name in ("write", "read", "load")}


def test_executors_without_the_package_say_so(
    run: Callable[..., dict[str, Any]], cluster: Cluster, tmp_path: Path
):
    python = make_environment(tmp_path / "environment")
    pythons = {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    found = run(cluster.url, "write read", environment=pythons)
    host = os.uname().nodename
    (asked,) = found["write"]  # the doctor's probe, after the job failed
    assert asked.startswith(f"executors on {host} ({python}): arrow-shuffle is missing. ")
    assert f"PYSPARK_PYTHON={sys.executable}" in asked
    missing = f"ModuleNotFoundError: arrow-shuffle is missing on {host} in {python}"
    assert found["read"][-1].startswith(missing)


# Spark Connect ----------------------------------------------------------------------------------


def test_a_zip_as_artifact_of_a_connect_session(
    run: Callable[..., dict[str, Any]], bare_server: str, zipped: Path
):
    found = run(bare_server, " ".join(WORKS), zipped)
    assert found == WORKS | {"codes": ["format-not-found"]}, "the server looks without it"


def test_a_connect_server_without_the_package_says_so(
    run: Callable[..., dict[str, Any]], bare_server: str
):
    found = run(bare_server, "write map read load")
    assert "arrow-shuffle is missing" in found.pop("write")[-1]
    for said in found.values():
        assert "Error: arrow-shuffle is missing on" in said[-1]
