"""Processes that do one operation with the engine alone, and may be killed at any moment.

They are forked from a server that has imported everything once, so that one costs a few
milliseconds: most rounds are of these.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pkgutil
import signal
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import arrow_format
from arrow_format.jobs.job import run_map_task
from integration.torture.operations import perform, task_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.model import MapStatus
    from integration.torture.operations import Operation

PATIENCE_S = 60
"""Nothing here takes a tenth of that."""

_context = multiprocessing.get_context("forkserver")
# Whole, also what the modules themselves import only when they need it.
_context.set_forkserver_preload(
    [
        "integration.torture.children",
        "pandas",  # PyArrow looks at it the first time it gets a NumPy array
        *(f"arrow_format.{module.name}" for module in pkgutil.iter_modules(arrow_format.__path__)),
    ]
)


@dataclass(frozen=True, slots=True)
class Message:
    """What a process said about itself, and when."""

    kind: str
    """``phase``: one begins; ``done`` and ``failed`` are the last."""
    value: Any
    at: float
    """Seconds of the clock that all processes of a machine share."""


class Child:
    """A process with a pipe it reports through; what it said before it died is not lost."""

    def __init__(self, work: Callable[..., Any], *arguments: object) -> None:
        self._pipe, theirs = _context.Pipe(duplex=False)
        self._stacks = tempfile.NamedTemporaryFile(prefix="stacks-")  # noqa: SIM115
        self._does = f"{getattr(work, '__name__', work)}{arguments}"
        self._phase = "its start"
        self._process = _context.Process(
            target=_run, args=(theirs, self._stacks.name, work, *arguments)
        )
        self._process.start()
        theirs.close()

    def next(self, timeout_s: float = PATIENCE_S) -> Message | None:
        """Return the next message; None when the process has ended.

        Raises
        ------
        TimeoutError
            It says nothing and does not end; the message has its stacks.
        """
        if not self._pipe.poll(timeout_s):
            msg = (
                f"no word from process {self._process.pid} for {timeout_s:g} s, which is in "
                f"{self._phase} of {self._does}. Its threads are at\n"
                f"{stacks_of(self._process.pid, self._stacks.name)}"
            )
            raise TimeoutError(msg)
        try:
            message = self._pipe.recv()
        except EOFError:
            return None
        self._phase = str(message.value) if message.kind == "phase" else "the end"
        return message

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End the process, if it runs, and the pipe."""
        self.kill()
        self._pipe.close()
        self._stacks.close()


def stacks_of(pid: int, path: str, wait_s: float = 5) -> str:
    """Return the stacks of all threads of a process that dumps them into a file when signalled.

    Parameters
    ----------
    pid
        Of a process that called :func:`dump_stacks_into`.
    path
        The file.
    """
    file = Path(path)
    before = file.stat().st_size
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + wait_s
    while file.stat().st_size == before and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.1)  # for the rest of it
    found = file.read_bytes()[before:].decode(errors="replace")
    return found or f"(it does not answer a signal: {state_of(pid)})"


def state_of(pid: int) -> str:
    """Return what the system says of a process that may hang in it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "it is gone"
    return next(line for line in status.splitlines() if line.startswith("State:"))


def dump_stacks_into(path: str) -> None:
    """Have this process write the stacks of its threads into a file on each SIGUSR1."""
    # Open as long as the process is: the handler writes to its descriptor.
    faulthandler.register(signal.SIGUSR1, file=os.open(path, os.O_WRONLY | os.O_APPEND))


@contextmanager
def child(work: Callable[..., Any], *arguments: object) -> Iterator[Child]:
    """Run ``work(*arguments, announce)`` in a process that does not outlive the block."""
    process = Child(work, *arguments)
    try:
        yield process
    finally:
        process.close()


def _run(pipe: Connection, stacks: str, work: Callable[..., Any], *arguments: object) -> None:
    dump_stacks_into(stacks)

    def announce(kind: str, value: object) -> None:
        pipe.send(Message(kind, value, time.monotonic()))

    try:
        value = work(*arguments, lambda phase: announce("phase", phase))
    except Exception:
        announce("failed", traceback.format_exc())
    else:
        announce("done", value)


def operation(path: str, one: Operation) -> tuple[Any, ...]:
    """Return what :func:`child` takes to do an operation."""
    return _operate, one, path


def _operate(one: Operation, path: str, announce: Callable[[str], None]) -> object:
    return perform(one, path, announce)


def map_task(job: ShuffleJob, one: Operation, number: int, attempt: int) -> tuple[Any, ...]:
    """Return what :func:`child` takes to run one attempt of a map task; it gives a map status."""
    return _map, job, one, number, attempt


def _map(
    job: ShuffleJob, one: Operation, number: int, attempt: int, announce: Callable[[str], None]
) -> MapStatus:
    announce("map")
    return run_map_task(job, number, attempt, task_batches(one, number))
