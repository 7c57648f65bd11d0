"""``arrow-shuffle doctor`` in set-ups that are broken on purpose: it names the cause first.

The command runs as a program of its own. What needs no session is found before one starts. For what
executors lack there is one Connect server, whose Python workers run in whichever environment a test
chooses; a second one has no package at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from arrow_format import __version__
from integration.programs.connect_server import connect_server
from integration.programs.environments import PACKAGES, ROOT, make_environment
from tests.support.spark_session import QUICK_START

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.s3_server import S3Server

COMMAND = Path(sys.executable).parent / "arrow-shuffle"
AN_HOUR_AGO = (
    "import time; time.real = getattr(time, 'real', time.time); "
    "time.time = lambda real=time.real: real() - 3600\n"
)
"""A line of a ``.pth`` file, which may be run twice. A ``sitecustomize`` Debian's Python has."""


def doctor(*arguments: object, cwd: Path | None = None, **environment: object) -> dict[str, Any]:
    """Run the command with more in its environment; return what it found."""
    done = subprocess.run(
        [str(COMMAND), "doctor", "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd or ROOT,
        env={k: v for k, v in os.environ.items() if k not in {"SPARK_HOME", "SPARK_REMOTE"}}
        | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        | {name: str(value) for name, value in environment.items()},
        timeout=300,
    )
    assert done.stdout, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    return report


def first(report: dict[str, Any], code: str) -> str:
    """Return what is said of the cause: the first finding, which must be of a kind."""
    assert report["findings"], f"nothing was found: {report}"
    finding = report["findings"][0]
    assert finding["code"] == code, report["findings"]
    return f"{finding['where']}: {finding['what']}. {finding['remedy']}"


# Before a session -------------------------------------------------------------------------------


def test_no_java(tmp_path: Path):
    said = first(doctor(JAVA_HOME=tmp_path), "java")
    assert f"JAVA_HOME is {tmp_path} and there is no bin/java in it" in said
    assert "Install one" in said


def test_an_old_java(tmp_path: Path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.22\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    said = first(doctor(JAVA_HOME=tmp_path), "java")
    assert f"Spark needs Java 17 or newer, but {java} is Java 11.0.22" in said


def test_the_home_of_another_spark(tmp_path: Path):
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.9.jar").touch()
    said = first(doctor(SPARK_HOME=tmp_path), "spark-home")
    assert f"SPARK_HOME is {tmp_path}, which has Spark 3.5.9" in said
    assert f"the installed PySpark is {pyspark.__version__}" in said
    assert "Unset SPARK_HOME" in said


def test_an_old_pyarrow(tmp_path: Path):
    (tmp_path / "sitecustomize.py").write_text("import pyarrow; pyarrow.__version__ = '24.0.0'")
    said = first(doctor(PYTHONPATH=tmp_path), "package-old")
    assert "driver: pyarrow is 24.0.0, and 25 is the oldest that works" in said
    assert "pip install 'pyarrow>=25'" in said


def test_pandas_and_numpy_that_do_not_fit(tmp_path: Path):
    (tmp_path / "pandas.py").write_text("raise ValueError('numpy.dtype size changed')")
    said = first(doctor(PYTHONPATH=tmp_path), "package-broken")
    assert "driver: pandas cannot be imported: ValueError: numpy.dtype size changed" in said


# A classic session ------------------------------------------------------------------------------


def test_a_driver_python_that_is_a_notebook(tmp_path: Path):
    jupyter = tmp_path / "jupyter"
    jupyter.write_text("#!/bin/sh\necho '[C] Jupyter has no display' >&2; exit 1\n")
    jupyter.chmod(0o755)
    settings = ["--conf", f"spark.driver.extraJavaOptions={QUICK_START}"]
    for name in ("spark.driver.bindAddress", "spark.driver.host"):
        settings += ["--conf", f"{name}=127.0.0.1"]
    settings += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={tmp_path}"]
    report = doctor("--master", "local[1]", *settings, PYSPARK_DRIVER_PYTHON=jupyter)
    said = first(report, "format-not-found")
    assert f"it looks with {jupyter} (PYSPARK_DRIVER_PYTHON), which did not answer" in said
    assert "Jupyter has no display" in said
    assert "set PYSPARK_DRIVER_PYTHON to the same or unset it" in said
    assert report["facts"]["executors"][0]["executable"] == sys.executable


# Executors --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A Connect server whose Python workers run in an environment that can be changed."""

    url: str
    directory: Path

    def use(self, name: str, *also: Path) -> Path:
        """Make an environment, see :func:`make_environment`, in which workers run from now on."""
        python = make_environment(self.directory / name, *also)
        (self.directory / "chosen").write_text(str(python))
        return python

    def doctor(self, *arguments: object, **more: Any) -> dict[str, Any]:
        return doctor("--remote", self.url, *arguments, **more)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory = tmp_path_factory.mktemp("switched")
    switch = directory / "python"
    switch.write_text(f'#!/bin/sh\nexec "$(cat {directory}/chosen)" "$@"\n')
    switch.chmod(0o755)
    settings = {"spark.python.use.daemon": "false", "spark.python.worker.reuse": "false"}
    with connect_server(
        directory / "server",
        driver_python=Path(sys.executable),
        worker_python=switch,
        settings=settings,
    ) as url:
        yield Server(url, directory)


def test_nothing_is_found_where_nothing_is_wrong(server: Server, tmp_path: Path):
    python = server.use("sound", ROOT)
    report = server.doctor("--path", tmp_path / "new" / "shuffles")
    assert report["findings"] == []
    assert {one["executable"] for one in report["facts"]["executors"]} == {str(python)}
    assert list(tmp_path.iterdir()) == [], "nothing is left, and nothing was made"


def test_executors_without_the_package(server: Server):
    python = server.use("without")
    said = first(server.doctor(), "package-missing")
    assert f"({python}): arrow-shuffle is missing" in said
    assert "--archives" in said


def test_executors_with_another_version(server: Server, tmp_path: Path):
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name)
    init = tmp_path / "arrow_format" / "__init__.py"
    init.write_text(init.read_text().replace(f'"{__version__}"', '"0.1.0"'))
    server.use("other-version", tmp_path)
    said = first(server.doctor(), "package-version")
    assert f"arrow-shuffle is 0.1.0 there and {__version__} on the driver" in said


def test_executors_with_another_clock(server: Server, tmp_path: Path):
    server.use("clock", ROOT)
    (modules,) = (server.directory / "clock").glob("lib/python*/site-packages")
    (modules / "an-hour-ago.pth").write_text(AN_HOUR_AGO)
    said = first(server.doctor("--path", tmp_path), "clock")
    apart = re.search(r"their clock is (\d+) s from the driver's at least", said)
    assert apart is not None
    assert 3_300 < int(apart[1]) <= 3_600, "the rest is what the job took"


def test_a_path_that_executors_see_differently(server: Server, tmp_path: Path):
    """The working directory: one name, and each process has its own."""
    server.use("sound", ROOT)
    said = first(server.doctor("--path", "/proc/self/cwd/shuffles", cwd=tmp_path), "path-apart")
    assert "a file that the driver put into /proc/self/cwd is not there" in said
    assert "Use a directory that is mounted at the same path on every host" in said
    assert list(tmp_path.iterdir()) == []


def test_lz4_between_jvm_and_python(server: Server):
    server.use("sound", ROOT)
    codec = "spark.sql.execution.arrow.compression.codec=lz4"
    said = first(server.doctor("--conf", codec), "lz4")
    assert "Set it to none or zstd" in said


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("careless", "ignores the condition of a put (If-None-Match)"),
        ("racy", "does not keep the condition of a put (If-None-Match) where several put at once"),
    ],
)
def test_a_store_on_which_commits_are_not_safe(server: Server, s3: S3Server, kind: str, what: str):
    server.use("sound", ROOT)
    path = f"s3://{s3.new_bucket(kind)}/shuffles"
    said = first(server.doctor("--path", path, **s3.environment), "conditional-puts")
    assert f"{path}: the store {what}" in said
    assert "No write is safe there" in said


# A server without the package -------------------------------------------------------------------


def test_a_connect_server_without_the_package(bare_server: str):
    report = doctor("--remote", bare_server)
    said = first(report, "format-not-found")
    assert "Connect server: the server does not find the format 'arrow_shuffle'" in said
    assert "must have arrow-shuffle" in said
    assert report["findings"][1]["code"] == "package-missing"
