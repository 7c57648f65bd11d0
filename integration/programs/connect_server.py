"""A server of Spark Connect in a process of its own, with a Python of its own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from integration.programs.cluster import die_with_parent
from tests.support.spark_session import QUICK_START

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS_WITHIN_S = 120


@contextmanager
def connect_server(
    directory: Path,
    *,
    driver_python: Path,
    worker_python: Path,
    settings: dict[str, str] | None = None,
) -> Iterator[str]:
    """Start a server of one core; yield its URL, ``sc://127.0.0.1:<port>``; stop it at the end.

    Parameters
    ----------
    directory
        Its working directory, which must not be the clone: Python looks for modules there.
    driver_python, worker_python
        ``PYSPARK_DRIVER_PYTHON`` and ``PYSPARK_PYTHON`` of its environment.
    settings
        More of Spark's settings.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    all_settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_START,
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
    } | (settings or {})
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[1]"]
    submit += [
        part for name, value in all_settings.items() for part in ("--conf", f"{name}={value}")
    ]
    submit += [
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "spark-internal",
    ]
    kept = {k: v for k, v in os.environ.items() if not re.match("SPARK_|PYSPARK_|PYTHON", k)}
    pythons = {"PYSPARK_DRIVER_PYTHON": str(driver_python), "PYSPARK_PYTHON": str(worker_python)}
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            submit,
            cwd=directory,
            env=kept | pythons | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        _wait(port, process, log)
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    msg = f"the Connect server does not run; {log} ends with\n{last}"
    raise RuntimeError(msg)
