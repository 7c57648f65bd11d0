"""Concurrent requests to a store, polling with growing pauses, and reading ahead of a log walk."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from arrow_format.errors import ShuffleError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


T = TypeVar("T")


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


class ReadAhead:
    """Reads ahead of a walk down the numbers of a log, in growing batches.

    The first batch has ``width`` numbers, a single one by default, since most walks end there; the
    next has ``max_requests``, and each further one twice as many as the one before. Errors are
    ignored here: the walk meets them when it reads that number itself.

    Parameters
    ----------
    read
        Reads a number and keeps the result; called by several threads concurrently.
    max_requests
        Most concurrent reads; with 1 nothing is read ahead.
    stops
        Numbers at which the walk may end without reading them.
    floor
        The walk ends above this number.
    width
        Numbers in the first batch.
    """

    def __init__(
        self,
        read: Callable[[int], object],
        max_requests: int,
        stops: Collection[int] = (),
        *,
        floor: int = 0,
        width: int = 1,
    ) -> None:
        self._read = read
        self._max_requests = max_requests
        self._stops = stops
        self._floor = floor
        self._width = width
        self._lowest: int | None = None

    def come_to(self, number: int) -> None:
        """Read ahead from ``number`` down, which the walk reads next, unless that is done."""
        if self._max_requests == 1 or (self._lowest is not None and number >= self._lowest):
            return
        next_stop = max((stop for stop in self._stops if stop < number), default=0)
        end = max(next_stop, self._floor, number - self._width)
        self._lowest = end + 1
        self._width = max(self._max_requests, 2 * self._width)
        if number - end > 1:
            reads = [partial(self._try, below) for below in range(number, end, -1)]
            run_concurrently(reads, self._max_requests)

    def _try(self, number: int) -> None:
        with contextlib.suppress(ShuffleError):
            self._read(number)
