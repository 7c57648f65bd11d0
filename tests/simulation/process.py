"""What an actor takes for the world: its clock, random numbers, threads and process identity.

While an actor runs, ``time``, ``uuid``, ``random`` and ``secrets`` answer from its
:class:`Process`, so that it does the same each time it gets the same answers. Other threads of this
interpreter see nothing of it.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import sys
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self
from unittest import mock

from arrow_format import concurrency, process_identity
from arrow_format.jobs import cleanup, mask_rows
from arrow_format.log import reader
from arrow_format.process_identity import ProcessIdentity
from arrow_format.storage import open as opening
from arrow_format.streaming import lease
from arrow_format.write import result_partition
from tests.simulation.files import INTERRUPTED, Answer, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONG_SLEEP_S = 20.0
"""A process may sleep longer than it asked for; here always, so that polls with a timeout end."""

START_MS = 1_700_000_000_000
"""The storage's clock when a scenario begins, in milliseconds since 1970."""


class Killed(BaseException):
    """The actor never runs again; its calls from here on are not carried out."""


class Process:
    """One run of an actor."""

    def __init__(
        self,
        name: str,
        skew_ms: int,
        perform: Callable[[Call], Answer],
        open_directory: Callable[[str], Any],
    ) -> None:
        self.name = name
        self.open_directory = open_directory
        """Opens the storage of a directory that is not in the shuffle."""
        self.random = random.Random(name)
        self.now_ms = START_MS
        """The storage's clock at the last answer."""
        self.jumped_ms = 0
        """How far its own clock has jumped until then."""
        self.slept_s = 0.0
        self.trips = 0
        """Round trips to the storage that it has waited for, one after the other."""
        self.events: list[tuple[Any, ...]] = []
        """What it has said of itself; see :meth:`note`."""
        self.is_elsewhere = False
        """Whether it works on another shuffle, of which the oracle knows nothing."""
        self.sets: dict[str, set[str]] = {}
        """What modules remember for the process; see :class:`_SetOfProcess`."""
        self.identity = ProcessIdentity(f"host-{name}", "boot", 1, 1)
        self._skew_ms = skew_ms
        self._perform = perform

    def perform(self, call: Call) -> Answer:
        """Let the storage carry out a call; raises where the process is interrupted or killed."""
        answer = self._perform(call)
        self.trips += call[0] != "sleep"
        self.now_ms, self.jumped_ms = answer.now_ms, answer.jumped_ms
        if answer.how == INTERRUPTED:
            raise KeyboardInterrupt
        return answer

    def note(self, *event: Any) -> None:
        """Say something for the oracle: it belongs to the moment of the last call."""
        if not self.is_elsewhere:
            self.events.append(event)

    def time_s(self) -> float:
        """Return the time by its own clock, in seconds since 1970."""
        return (self.now_ms + self._skew_ms + self.jumped_ms) / 1000 + self.slept_s

    def sleep(self, seconds: float) -> None:
        """Let the others run, and time pass for itself."""
        self.perform(("sleep", ""))
        self.slept_s += max(seconds, LONG_SLEEP_S)


_here = threading.local()


def this() -> Process | None:
    """Return the process of the calling thread; None where no actor runs."""
    return getattr(_here, "process", None)


def actor() -> Process:
    """Return the process of the calling thread, which an actor runs in."""
    process = this()
    assert process is not None, "only actors call this"
    return process


def note(*event: Any) -> None:
    """Say something for the oracle."""
    actor().note(*event)


@contextlib.contextmanager
def running(process: Process) -> Iterator[None]:
    """Let the calling thread be a process."""
    outer = this()
    _here.process = process
    try:
        yield
    finally:
        _here.process = outer


class _Thread(threading.Thread):
    """A thread as actors get it: a lease beats no more, as if the machine stalled, and other
    threads cannot be started, so that the work is done in the caller."""

    def start(self) -> None:
        if this() is None:
            super().start()
        elif "lease" not in self.name:
            raise RuntimeError("can't start new thread")

    def join(self, timeout: float | None = None) -> None:
        if self.ident is not None:
            super().join(timeout)


class _Requests:
    """Concurrent requests, as :class:`concurrent.futures.ThreadPoolExecutor`: one after the other,
    in the time that they would take concurrently."""

    def __init__(self, max_workers: int) -> None:
        self._process = actor()
        self._ends = [self._process.trips] * max_workers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.trips = max(self._ends)

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        free = self._ends.index(min(self._ends))
        self._process.trips = self._ends[free]
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        self._ends[free] = self._process.trips
        return future

    def shutdown(self, **_: object) -> None:
        """Do nothing: no request is under way."""


def _executor(max_workers: int) -> Any:
    return ThreadPoolExecutor(max_workers) if this() is None else _Requests(max_workers)


class _SetOfProcess:
    """A set of a module, of which each process has its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._outside: set[str] = set()

    def _items(self) -> set[str]:
        process = this()
        return self._outside if process is None else process.sets.setdefault(self._name, set())

    def add(self, item: str) -> None:
        self._items().add(item)

    def discard(self, item: str) -> None:
        self._items().discard(item)

    def __contains__(self, item: object) -> bool:
        return item in self._items()


def _instead(real: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that does as ``ours`` does, given the process, where an actor runs."""

    def call(*arguments: Any, **how: Any) -> Any:
        process = this()
        return real(*arguments, **how) if process is None else ours(process, *arguments, **how)

    return call


@contextlib.contextmanager
def virtual_world() -> Iterator[None]:
    """Let actors take all that is not determined by the storage from their process."""
    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "time", lambda process: process.time_s()),
        (time, "time_ns", lambda process: int(process.time_s() * 1e9)),
        (time, "monotonic", lambda process: process.time_s()),
        (time, "perf_counter_ns", lambda process: 0),
        (time, "sleep", lambda process, seconds: process.sleep(seconds)),
        (
            uuid,
            "uuid4",
            lambda process: uuid.UUID(int=process.random.getrandbits(128), version=4),
        ),
        (
            secrets,
            "token_hex",
            lambda process, num_bytes: process.random.randbytes(num_bytes).hex(),
        ),
        (random, "uniform", lambda process, low, high: process.random.uniform(low, high)),
        (process_identity, "_identity", lambda process, pid: process.identity),
        (process_identity, "_fields", lambda process, pid: ["S"] + ["1"] * 19),
    ]
    with contextlib.ExitStack() as stack:
        for module, name, ours in replaced:
            real = getattr(module, name)
            stack.enter_context(mock.patch.object(module, name, _instead(real, ours)))
        for name in ("open_made_directory", "open_named_directory"):
            opened = getattr(opening, name)
            in_world = _instead(opened, lambda process, path: process.open_directory(path))
            for module in [*sys.modules.values()]:
                if vars(module).get(name) is opened:
                    stack.enter_context(mock.patch.object(module, name, in_world))
        stack.enter_context(mock.patch.object(threading, "Thread", _Thread))
        # Masks are objects, of which there is more to be said than of what an entry has.
        stack.enter_context(mock.patch.object(mask_rows, "MAX_INSIDE_BYTES", 0))
        # Actors are the only threads here; what a write computes does not depend on their number.
        stack.enter_context(mock.patch.object(result_partition, "available_cores", return_value=1))
        stack.enter_context(mock.patch.object(concurrency, "ThreadPoolExecutor", _executor))
        for module, name in ((lease, "_released"), (cleanup, "_committing")):
            stack.enter_context(mock.patch.object(module, name, _SetOfProcess(name)))
        # A function of the bytes: most readers of an exploration see those that others saw.
        decode_entry = lru_cache(maxsize=1_000)(reader.decode_entry)
        stack.enter_context(mock.patch.object(reader, "decode_entry", decode_entry))
        yield
