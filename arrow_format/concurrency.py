"""Threads: of a computation, of requests to a store, reading ahead; and polls with growing pauses.

A module of its own, since writers, readers, the log, jobs, consumers and the connector all use it.
Every thread ends with what it was started for. Where none can be started, its work is done by the
calling thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from functools import partial
from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


T = TypeVar("T")
U = TypeVar("U")


def available_cores() -> int:
    """Return the number of cores that this process may use, 1 or more."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class OrderedMap(Protocol):
    """What :class:`map` does: a function of each item, results in the order of the items."""

    def __call__(self, function: Callable[[T], U], items: Iterable[T], /) -> Iterator[U]:
        """Yield ``function(item)`` of each item."""


class Workers:
    """Threads that share work with the calling one, started when there is some.

    A thread that waits for a result makes other calls meanwhile, the calling one too: as many
    threads as cores keep all of them busy. :meth:`close` ends them.

    Parameters
    ----------
    num_threads
        Threads besides the calling one; with 0 that one does all work.
    """

    def __init__(self, num_threads: int = 0) -> None:
        self._num_threads = num_threads
        self._threads: list[Thread] = []
        self._changed = Condition()
        self._calls: deque[Callable[[], None]] = deque()
        self._items: deque[Callable[[], None]] = deque()
        self._closed = False

    def begin(self, call: Callable[[], T]) -> Future[T] | None:
        """Let whichever thread is free make a call, which may use all that is here.

        None where there is no thread, or not all can be started: then make the call yourself.
        Raises CancelledError after :meth:`close`.
        """
        return self._begin(call, self._calls) if self._are_started() else None

    def result(self, future: Future[T]) -> T:
        """Return the result of a call that was begun, and make others until it is there.

        Raises what the call raises, and CancelledError after :meth:`close`.
        """
        return self._result(future, (self._calls, self._items))

    def map(self, function: Callable[[T], U], items: Iterable[T], /) -> Iterator[U]:
        """Yield ``function(item)`` of each item in order, while threads work on the next ones.

        The function must not use what is here. At most one item more than there are threads is
        begun and not yielded. Raises as :meth:`result`.
        """
        begun: deque[Future[U]] = deque()
        for item in items:
            if not self._are_started():
                yield function(item)
                continue
            begun.append(self._begin(partial(function, item), self._items))
            if len(begun) > self._num_threads:
                # Not a whole call meanwhile: the other items would wait for this thread.
                yield self._result(begun.popleft(), (self._items,))
        while begun:
            yield self._result(begun.popleft(), (self._items,))

    def ahead(self, items: Iterable[T], size_of: Callable[[T], int], max_bytes: int) -> Iterator[T]:
        """Yield items in order, while a thread that is free takes the next one.

        The items that wait, and are not yielded, have ``max_bytes`` at most, plus one. Threads take
        turns, so no two take items at the same time. An error of the items is raised after all
        before it.
        """
        return (
            _Ahead(self, items, size_of, max_bytes).taken() if self._are_started() else iter(items)
        )

    def _are_started(self) -> bool:
        """Whether there are threads; they are started together, all or none."""
        if self._closed:
            raise CancelledError
        if self._num_threads and not self._threads:
            try:
                for _ in range(self._num_threads):
                    queues = (self._calls, self._items)
                    thread = Thread(
                        target=self._make_calls,
                        args=(queues, lambda: self._closed),
                        name="arrow-shuffle",
                        daemon=True,
                    )
                    thread.start()
                    self._threads.append(thread)
            except RuntimeError:
                self.close()
                self._closed, self._num_threads, self._threads = False, 0, []
        return bool(self._threads)

    def _begin(self, call: Callable[[], T], queue: deque[Callable[[], None]]) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            queue.append(partial(_make, call, future))
            self._changed.notify_all()
        return future

    def _result(self, future: Future[T], queues: Sequence[deque[Callable[[], None]]]) -> T:
        self._make_calls(queues, future.done)
        if not future.done():
            raise CancelledError
        return future.result()

    def _make_calls(
        self, queues: Sequence[deque[Callable[[], None]]], is_done: Callable[[], bool]
    ) -> None:
        """Make the calls of some queues until something is done, or all is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: any(queues) or self._closed or is_done())
                if self._closed or is_done():
                    return
                call = next(filter(None, queues)).popleft()
            call()
            del call  # it has rows
            with self._changed:
                self._changed.notify_all()

    def close(self) -> None:
        """End all threads, after the calls that are running; calling it again does nothing."""
        with self._changed:
            self._closed = True
            self._calls.clear()
            self._items.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()


def _make(call: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # also Ctrl-C: the thread that waits for the result raises it
        future.set_exception(error)


class _Ahead(Generic[T]):
    """Items that free threads take from an iterable, and one thread from here."""

    def __init__(
        self, workers: Workers, items: Iterable[T], size_of: Callable[[T], int], max_bytes: int
    ) -> None:
        self._workers = workers
        self._items = iter(items)
        self._size_of = size_of
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._waiting: deque[tuple[T, int]] = deque()
        self._num_bytes = 0
        self._taking: Future[None] | None = None
        self._has_ended = False
        self._error: BaseException | None = None

    def _begin(self) -> None:
        """Let a thread take the next item, unless one does, or enough wait; under the lock."""
        if self._taking is None and not self._has_ended and self._num_bytes < self._max_bytes:
            self._taking = self._workers.begin(self._take)

    def _take(self) -> None:
        taken: list[tuple[T, int]] = []
        try:
            for item in self._items:
                taken.append((item, self._size_of(item)))
                del item
                break
        except BaseException as error:
            self._error = error
        with self._lock:
            self._has_ended = not taken
            self._num_bytes += sum(num_bytes for _, num_bytes in taken)
            self._waiting += taken
            self._taking = None
            self._begin()

    def taken(self) -> Iterator[T]:
        """Yield the items, and raise the error that ended them."""
        while True:
            with self._lock:
                taken = [self._waiting.popleft()] if self._waiting else []
                self._num_bytes -= sum(num_bytes for _, num_bytes in taken)
                self._begin()
                taking = self._taking
            if taken:
                yield taken.pop()[0]
            elif taking is not None:
                self._workers.result(taking)
            else:
                break
        if self._error is not None:
            raise self._error


def run_concurrently(calls: Sequence[Callable[[], T]], max_requests: int) -> list[T]:
    """Run independent calls, at most ``max_requests`` of them concurrently.

    Returns their results in order, after all threads have ended. When calls fail, the error of the
    first in order is raised, and calls that have not begun are not run. Where no thread can be
    started, they run one by one.
    """
    if max_requests > 1 and len(calls) > 1:
        with (
            contextlib.suppress(_NoThreadError),
            ThreadPoolExecutor(min(max_requests, len(calls))) as threads,
        ):
            try:
                futures = [threads.submit(call) for call in calls]
            except RuntimeError as error:
                threads.shutdown(cancel_futures=True)
                raise _NoThreadError from error
            try:
                return [future.result() for future in futures]
            except BaseException:
                # Each of many may fail after a minute: wait only for those that are running.
                threads.shutdown(wait=False, cancel_futures=True)
                raise
    return [call() for call in calls]


class _NoThreadError(Exception):
    """No thread could be started."""


FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds: short at first for what is about to happen, then long enough to cost little."""


def poll_until(poll: Callable[[], T | None], timeout: float) -> T | None:
    """Return the first result of ``poll`` that is not None, or None after ``timeout`` seconds.

    It is called at least once, and a last time when the timeout has passed.
    """
    end = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        left = end - time.monotonic()
        result = poll()
        if result is not None or left <= 0:
            return result
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)
