"""The one Spark session that tests and integration tests share."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

SESSION_TIME_ZONE = "America/New_York"
"""Neither UTC nor free of daylight saving, so that a mixed-up time zone shows."""

ARCHIVE = Path(sys.prefix) / "spark.jsa"
"""Spark's classes, for JVMs to map; made by :mod:`tests.support.spark_archive`."""

SERIAL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xlog:cds=off,cds+dynamic=off,class+path=off"
QUICK_START = f'{SERIAL} -XX:SharedArchiveFile="{ARCHIVE}"'
"""Options of a JVM that lives for many small jobs: it compiles little, has few threads, and maps
what it would load. Where there is no archive, or one of another Java, it loads, without a word."""


@contextmanager
def spark_session(
    scratch: Path, *, master: str = "local[2]", settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Start a classic session whose files all lie under `scratch`; stop it at the end."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .appName("arrow-shuffle tests")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", QUICK_START)
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.session.timeZone", SESSION_TIME_ZONE)
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def spark_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session inside the block."""
    before = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, previous in before.items():
            if previous is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, previous)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on two local cores, in a time zone that is not UTC."""
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


def mark_spark(items: list[pytest.Item]) -> None:
    """Mark whatever uses the fixture, so that ``-m 'not spark'`` needs no Java."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
