"""One session for the whole suite, on a real cluster: tasks run in executors of their own.

``INTEGRATION_MASTER`` chooses another master, such as ``local[2,2]``: two cores in the driver's
process and two tries for each task, as many as on the cluster.

Tests that do without the session are marked ``processes``: they run processes of their own.
``make integration`` runs them beside the others, since both wait half of the time.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector import jvm_reader
from connector.jvm_reader import JAR, NO_READER
from connector.session import session_id
from connector.spark_version import SPARK
from integration.programs.cluster import Cluster, running_cluster, session_settings
from integration.programs.connect_server import connect_server
from integration.programs.environments import make_environment
from integration.programs.outcomes import Outcomes
from integration.programs.store_outcomes import StoreOutcomes
from tests.support.azure_server import azure
from tests.support.exhaustive import IS_NIGHT, choose
from tests.support.gcs_server import gs
from tests.support.s3_server import s3
from tests.support.seaweedfs_server import seaweedfs
from tests.support.spark_session import mark_spark, spark_session
from tests.support.store_server import no_metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["azure", "gs", "no_metadata", "s3", "seaweedfs"]

# One failure is survived. Each try of the many tasks that are to fail takes a new Python worker.
_JAR = {"spark.jars": str(JAR)}
_SETTINGS = session_settings() | _JAR | {"spark.task.maxFailures": "2"}

collect_ignore = [] if IS_NIGHT else ["stores"]
"""What takes too long for each change."""

_logs = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--outcomes DIRECTORY``, see ``make outcomes``, and ``--stores FILE``."""
    parser.addoption("--outcomes", type=Path, help="record here how the tests of each file ended")
    parser.addoption("--stores", type=Path, help="record here how the tests on each store ended")


def pytest_configure(config: pytest.Config) -> None:
    """Record outcomes if asked to; let pass what older versions of Spark leave open themselves."""
    if (directory := config.getoption("--outcomes")) is not None:
        part = "session" if config.option.markexpr.startswith("not") else "processes"
        config.pluginmanager.register(Outcomes(directory.absolute(), part))
    if (file := config.getoption("--stores")) is not None:
        config.pluginmanager.register(StoreOutcomes(file.absolute()))
    if SPARK < (4, 2):
        config.addinivalue_line("filterwarnings", "ignore::ResourceWarning")
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs the session, and what does not; leave out what only a night tries."""
    choose(config, items)
    mark_spark(items)
    for item in items:
        if "spark" not in getattr(item, "fixturenames", ()):
            item.add_marker("processes")


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Cluster]:
    """The cluster that the session runs on."""
    directory = tmp_path_factory.mktemp("cluster")
    pytestconfig.stash[_logs] = directory
    with running_cluster(directory) as running:
        yield running


@pytest.fixture(scope="session")
def bare_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Connect server in an environment without this package."""
    directory = tmp_path_factory.mktemp("bare")
    python = make_environment(directory / "environment")
    with connect_server(directory / "server", driver_python=python, worker_python=python) as url:
        yield url


@pytest.fixture(scope="session")
def spark(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SparkSession]:
    """A session with two executors, in a time zone that is not UTC."""
    scratch = tmp_path_factory.mktemp("spark")
    master = os.environ.get("INTEGRATION_MASTER") or "cluster"
    if master != "cluster":
        with spark_session(scratch, master=master, settings=_JAR) as session:
            yield _reading_in_python(session)
        return
    url = request.getfixturevalue("cluster").url
    with spark_session(scratch, master=url, settings=_SETTINGS) as session:
        yield _reading_in_python(session)


@pytest.fixture(autouse=True)
def _shared_session_is_active(request: pytest.FixtureRequest) -> None:
    """Undo what a test before left: Spark looks for data sources in the session that is active."""
    if "spark" in request.fixturenames:
        spark = request.getfixturevalue("spark")
        spark._jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def _reading_in_python(session: SparkSession) -> SparkSession:
    """Let ``to_spark`` read in Python, as most tests mean; a new session beside it asks again."""
    jvm_reader._answers_of(session_id(session))[""] = NO_READER
    return session


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Say where the cluster's logs are when something failed; else remove them."""
    directory = config.stash.get(_logs, None)
    if directory is None:
        return
    if exitstatus:
        terminalreporter.write_line(f"logs of the Spark cluster are in {directory}")
    else:
        shutil.rmtree(directory, ignore_errors=True)
