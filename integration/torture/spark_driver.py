"""The other side of :mod:`integration.torture.spark_program`: starts it, orders, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from integration.programs.cluster import ROOT, die_with_parent
from integration.programs.processes import (
    command_of,
    descendants,
    executors,
    is_running,
    kill,
    python_workers,
)
from integration.torture.checks import TortureError
from integration.torture.children import Message, stacks_of

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from integration.programs.cluster import Cluster
    from integration.torture.operations import Operation

PATIENCE_S = 240
"""For a driver to start, or an operation; on an idle machine ten seconds do."""

SILENT_FOR_S = 20
"""A driver whose other half was killed may never say another word."""

ENDS_WITHIN_S = 60
"""For what belonged to a process that was killed."""

VICTIMS = ("Python worker", "executor JVM", "driver JVM", "driver Python")
"""Whom to kill. A driver is two processes: one without the other is as dead."""


class SparkDriver:
    """A Spark application on the cluster, whose driver is a process of its own.

    Raises
    ------
    TortureError
        It did not start.
    """

    def __init__(self, cluster: Cluster, scratch: Path) -> None:
        self._cluster = cluster
        self._is_struck = False
        scratch.mkdir(parents=True, exist_ok=True)
        self.log = scratch / "driver.log"
        environment = {
            k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "SPARK_REMOTE")
        }
        environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "integration.torture.spark_program", cluster.url, scratch],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        ready = self.next()
        if ready is None or ready.kind != "ready":
            msg = f"the Spark driver did not start; see {self.log}"
            raise TortureError(msg)
        self.application = str(ready.value)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                self._messages.put(Message(**json.loads(line[1:])))
        self._messages.put(None)

    @property
    def is_alive(self) -> bool:
        """Whether both halves of the driver run."""
        return self._process.poll() is None and bool(self._jvms())

    def _jvms(self) -> list[int]:
        found = descendants(self._process.pid)
        return [p.pid for p in found if "org.apache.spark.deploy.SparkSubmit" in p.command]

    def executors(self) -> list[int]:
        """Return the executor JVMs of this application."""
        return executors(*self._cluster.worker_pids, application=self.application)

    def order(self, path: str, operation: Operation) -> None:
        """Have an operation done; what comes of it is said by :meth:`next`."""
        assert self._process.stdin is not None
        order = {"path": path, "operation": asdict(operation)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def next(self) -> Message | None:
        """Return the next message; None when the driver has ended.

        One of kind ``silent`` when it was struck and says nothing: the stacks of its Python half.

        Raises
        ------
        TimeoutError
            It was not struck, says nothing and does not end; the message has its stacks.
        """
        timeout_s = SILENT_FOR_S if self._is_struck else PATIENCE_S
        try:
            return self._messages.get(timeout=timeout_s)
        except queue.Empty:
            stacks = stacks_of(self._process.pid, str(self.log))
            if self._is_struck:
                return Message("silent", stacks, time.monotonic())
            msg = (
                f"no word from the Spark driver for {timeout_s} s; see {self.log}. Its threads are "
                f"at\n{stacks}"
            )
            raise TimeoutError(msg) from None

    def strike(self, victim: str, random: Random) -> list[int] | None:
        """Kill one of :data:`VICTIMS`; return the processes that will end because of it.

        None when there was no process to kill.
        """
        # One may end between being seen and being killed; then another is tried.
        for _ in range(100):
            match victim:
                case "Python worker":
                    there = python_workers(*self.executors())
                case "executor JVM":
                    there = self.executors()
                case "driver JVM":
                    there = self._jvms()
                case _:
                    there = [self._process.pid]
            if there:
                chosen = random.choice(there)
                dying = [chosen, *(p.pid for p in descendants(chosen))]
                if "driver" in victim:
                    dying += self._all()
                if kill(chosen):
                    self._is_struck = "driver" in victim
                    return dying
            time.sleep(0.01)
        return None

    def _all(self) -> list[int]:
        """Everything that belongs to the application, on both sides."""
        ours = self.executors()
        roots = [self._process.pid, *self._jvms(), *ours]
        return [*roots, *(p.pid for p in descendants(*roots))]

    def stop(self) -> None:
        """End the application in good order, or by force; nothing of it runs afterwards."""
        everyone = self._all()
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._close()
        wait_until_gone(everyone)

    def _close(self) -> None:
        self._listener.join(ENDS_WITHIN_S)
        if self._listener.is_alive():
            msg = f"something that the driver started holds its output open: {self._all()}"
            raise TortureError(msg)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def bury(self) -> None:
        """After a blow to the driver: end what is left of it, and wait for its executors' end."""
        everyone = self._all()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close()
        wait_until_gone(everyone)


def wait_until_gone(pids: list[int]) -> None:
    """Wait for the end of processes that are ending.

    Raises
    ------
    TortureError
        Some live on after a minute; the message names them.
    """
    deadline = time.monotonic() + ENDS_WITHIN_S
    while left := [pid for pid in pids if is_running(pid)]:
        if time.monotonic() > deadline:
            named = "; ".join(f"{pid} ({command_of(pid)[:200]})" for pid in left)
            msg = f"processes live on, {ENDS_WITHIN_S} s after what they belonged to: {named}"
            raise TortureError(msg)
        time.sleep(0.02)
