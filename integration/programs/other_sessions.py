"""Programs of tests in a process and session of their own, classic or of Spark Connect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.spark_session import QUICK_START, SESSION_TIME_ZONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 900
"""On a busy machine; an idle one needs a minute."""


def printed_by(module: str, *arguments: object) -> Any:  # noqa: ANN401
    """Run a module of the clone as a program; return its last line, which is JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
        | {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def connect_session(scratch: Path) -> Iterator[SparkSession]:
    """Start a session of Spark Connect, with a server of two cores; stop both at the end.

    Its files all lie below `scratch`, and its time zone is that of classic sessions of tests.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.extraJavaOptions", QUICK_START)
    builder = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
    session = builder.config("spark.local.dir", str(scratch / "local")).getOrCreate()
    session.conf.set("spark.sql.session.timeZone", SESSION_TIME_ZONE)
    try:
        yield session
    finally:
        session.stop()
