"""Processes that do one operation with the engine alone, and may be killed at any moment.

They are forked from a server that has imported everything once, so that one costs a few
milliseconds: most rounds are of these.
"""

from __future__ import annotations

import multiprocessing
import pkgutil
import time
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import arrow_format
from arrow_format.job import run_map_task
from integration.torture.operations import perform, task_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection

    from arrow_format.job import ShuffleJob
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
        self._process = _context.Process(target=_run, args=(theirs, work, *arguments))
        self._process.start()
        theirs.close()

    def next(self, timeout_s: float = PATIENCE_S) -> Message | None:
        """Return the next message; None when the process has ended.

        Raises
        ------
        TimeoutError
            It says nothing and does not end.
        """
        if not self._pipe.poll(timeout_s):
            msg = f"no word from process {self._process.pid} for {timeout_s} s"
            raise TimeoutError(msg)
        try:
            return self._pipe.recv()
        except EOFError:
            return None

    def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        """End the process, if it runs, and the pipe."""
        self.kill()
        self._pipe.close()


@contextmanager
def child(work: Callable[..., Any], *arguments: object) -> Iterator[Child]:
    """Run ``work(*arguments, tell)`` in a process that does not outlive the block."""
    process = Child(work, *arguments)
    try:
        yield process
    finally:
        process.close()


def _run(pipe: Connection, work: Callable[..., Any], *arguments: object) -> None:
    def tell(kind: str, value: object) -> None:
        pipe.send(Message(kind, value, time.monotonic()))

    try:
        value = work(*arguments, lambda phase: tell("phase", phase))
    except Exception:
        tell("failed", traceback.format_exc())
    else:
        tell("done", value)


def operation(path: str, one: Operation) -> tuple[Any, ...]:
    """Return what :func:`child` takes to do an operation."""
    return _operate, one, path


def _operate(one: Operation, path: str, tell: Callable[[str], None]) -> object:
    return perform(one, path, tell)


def map_task(job: ShuffleJob, one: Operation, number: int, attempt: int) -> tuple[Any, ...]:
    """Return what :func:`child` takes to run one attempt of a map task; it gives a map status."""
    return _map, job, one, number, attempt


def _map(
    job: ShuffleJob, one: Operation, number: int, attempt: int, tell: Callable[[str], None]
) -> MapStatus:
    tell("map")
    return run_map_task(job, number, attempt, task_batches(one, number))
