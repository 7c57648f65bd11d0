"""A standalone Spark cluster on loopback: a master and two workers, each a JVM of its own.

Executors are JVMs below the workers, one of one core and 1 GiB per worker and application, so tasks
run in other processes than the driver and in Python workers of different parents. Workers have
addresses of their own, all of loopback: Spark takes them for different hosts, as it must to run a
speculative twin.

``python -m integration.programs.cluster`` starts one and prints its URL, until it is interrupted.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from integration.programs.processes import descendants, executors
from tests.support.spark_session import QUICK_START

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
NUM_WORKERS = 2

STARTS_WITHIN_S = 60
STOPS_WITHIN_S = 10

_PR_SET_PDEATHSIG = 1


class ClusterError(Exception):
    """A part of the cluster did not start, or did not come back; the message names its log."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster; from :func:`running_cluster`."""

    url: str
    """``spark://127.0.0.1:<port>``, to give to a session as its master."""
    directory: Path
    """Logs, the executors' among them, and what Spark itself spills."""
    master: subprocess.Popen[bytes]
    workers: tuple[subprocess.Popen[bytes], ...]

    @property
    def worker_pids(self) -> list[int]:
        """Processes below which the executors are."""
        return [worker.pid for worker in self.workers]

    def executors(self) -> list[int]:
        """Return the processes of all executors of all applications."""
        return executors(*self.worker_pids)

    def wait_for_executors(self, count: int = NUM_WORKERS) -> list[int]:
        """Wait until at least ``count`` executors run; return their processes.

        Raises
        ------
        ClusterError
            They did not come within a minute.
        """
        deadline = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline:
            self.check()
            found = self.executors()
            if len(found) >= count:
                return found
            time.sleep(0.05)
        msg = f"{len(self.executors())} of {count} executors run; their logs are below "
        raise ClusterError(f"{msg}{self.directory / 'work'}")

    def check(self) -> None:
        """Check that master and workers run.

        Raises
        ------
        ClusterError
            One ended.
        """
        for name, process in _names(self.master, self.workers).items():
            if process.poll() is not None:
                raise ClusterError(_ended(name, process, self.directory / f"{name}.log"))


def session_settings() -> dict[str, str]:
    """Return the settings of a session on the cluster: two executors of one core and 1 GiB."""
    return {
        "spark.cores.max": str(NUM_WORKERS),
        "spark.executor.cores": "1",
        "spark.executor.memory": "1g",
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        # A task that fetches from a killed executor gives up immediately, not after 15 s.
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "500ms",
    }


@contextmanager
def running_cluster(directory: Path | None = None) -> Iterator[Cluster]:
    """Start a cluster and stop it at the end, with everything below it.

    Parameters
    ----------
    directory
        Where logs and scratch files go, which stay. When None, a temporary directory that is
        removed at the end, unless an exception passes: then it stays and the exception names it.

    Raises
    ------
    ClusterError
        A part did not start within a minute; what had started is stopped.
    """
    made = Path(tempfile.mkdtemp(prefix="arrow-shuffle-cluster-")) if directory is None else None
    scratch = directory or made
    assert scratch is not None
    scratch.mkdir(parents=True, exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield _start(scratch, started)
    except BaseException as error:
        _stop(started)
        error.add_note(f"logs of the Spark cluster are in {scratch}")
        raise
    _stop(started)
    if made is not None:
        shutil.rmtree(made, ignore_errors=True)


def _start(directory: Path, started: list[subprocess.Popen[bytes]]) -> Cluster:
    """Start master and workers; each is in ``started`` as soon as it runs."""
    log = directory / "master.log"
    master = _launch(directory, log, "master.Master", 1)
    started.append(master)
    url = _wait(log, r"Starting Spark master at (spark://\S+)", "master", master)
    for number in range(NUM_WORKERS):
        # More than one application needs: some tests start a second one next to the session's.
        can_have = ["--cores", "4", "--memory", "4g", "--work-dir", str(directory / "work")]
        log = directory / f"worker-{number}.log"
        started.append(_launch(directory, log, "worker.Worker", number + 1, *can_have, url))
    workers = tuple(started[1:])
    for number, worker in enumerate(workers):
        name = f"worker-{number}"
        _wait(directory / f"{name}.log", r"Successfully registered with master (\S+)", name, worker)
    return Cluster(url, directory, master, workers)


def _launch(
    directory: Path, log: Path, name: str, number: int, *arguments: str
) -> subprocess.Popen[bytes]:
    """Start a part of Spark on the loopback address of that number."""
    host = f"127.0.0.{number}"
    ports = ["--host", host, "--port", "0", "--webui-port", "0"]
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    # Not what is set for the drivers, another installed Spark's home above all.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment |= {
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": (
            f"{QUICK_START} -Dspark.master.rest.enabled=false "
            # Executors that are killed on purpose, again and again, must come back.
            "-Dspark.deploy.maxExecutorRetries=-1"
        ),
    }
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(program), f"org.apache.spark.deploy.{name}", *ports, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def die_with_parent() -> None:
    """Ask Linux for SIGKILL when the parent ends, however it ends; run between fork and exec."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait(log: Path, pattern: str, name: str, process: subprocess.Popen[bytes]) -> str:
    """Wait until the log says something; return the first group of the pattern."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        if process.poll() is not None:
            raise ClusterError(_ended(name, process, log))
        time.sleep(0.05)
    msg = f"{name} of the Spark cluster did not start within {STARTS_WITHIN_S} s; see {log}"
    raise ClusterError(msg)


def _ended(name: str, process: subprocess.Popen[bytes], log: Path) -> str:
    last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
    status = process.poll()
    return f"{name} of the Spark cluster ended with status {status}; {log} ends with\n{last}"


def _names(
    master: subprocess.Popen[bytes], workers: tuple[subprocess.Popen[bytes], ...]
) -> dict[str, subprocess.Popen[bytes]]:
    return {"master": master} | {f"worker-{i}": worker for i, worker in enumerate(workers)}


def _stop(started: list[subprocess.Popen[bytes]]) -> None:
    """Stop our own processes and their descendants, workers before the master."""
    below = [process.pid for process in descendants(*(one.pid for one in started))]
    for process in reversed(started):
        process.terminate()
    deadline = time.monotonic() + STOPS_WITHIN_S
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # Executors end by themselves once their worker is gone, but not immediately.
    groups = {process.pid for process in started}
    for pid in below:
        try:
            if os.getpgid(pid) in groups:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def main() -> None:
    """Run a cluster until interrupted."""
    with running_cluster() as cluster:
        print(f"{cluster.url}  (logs in {cluster.directory})", flush=True)
        try:
            cluster.master.wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
