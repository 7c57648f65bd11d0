"""Concurrent requests to a store, polling with growing pauses, and read-ahead for log readers."""

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
    """Return what the calls return, in their order; no thread outlives this.

    Parameters
    ----------
    calls
        Independent of each other; where they fail, the error of the first that did is raised, and
        those that have not begun are not run.
    max_requests
        How many run at once. Where there are no threads to be had, they run one by one.
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
                # Of many that fail after a minute each, only those under way are waited for.
                threads.shutdown(wait=False, cancel_futures=True)
                raise
    return [call() for call in calls]


class _NoThreadError(Exception):
    """No thread could be started."""


FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds: soon enough for what is about to happen, seldom enough to cost next to nothing."""


def poll_until(look: Callable[[], T | None], timeout: float) -> T | None:
    """Return what ``look`` gives once that is not None; None when it never is.

    Parameters
    ----------
    look
        Called once at least, and a last time when the time is over.
    timeout
        Seconds.
    """
    end = time.monotonic() + timeout
    pause = FIRST_PAUSE
    while True:
        left = end - time.monotonic()
        found = look()
        if found is not None or left <= 0:
            return found
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, LONGEST_PAUSE)


class ReadAhead:
    """Reads ahead of one walk down, more and more at once.

    The first comes alone, for most walks end there; then as many as go at once, then twice as many
    each time. What fails is left to the walk itself: an error counts only when its turn comes.

    Parameters
    ----------
    read
        Reads what is at a number and keeps it; called by several threads at once.
    max_requests
        How many at once; 1 to read nothing ahead.
    stops
        Numbers that the walk may end at, without reading what is there.
    floor
        The walk does not come to this number, nor below.
    width
        How many are read first.
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
        """Read what the walk needs next, unless it was read; it goes on with ``number``."""
        if self._max_requests == 1 or (self._lowest is not None and number >= self._lowest):
            return
        stop = max((one for one in self._stops if one < number), default=0)
        end = max(stop, self._floor, number - self._width)
        self._lowest = end + 1
        self._width = max(self._max_requests, 2 * self._width)
        if number - end > 1:
            reads = [partial(self._try, one) for one in range(number, end, -1)]
            run_concurrently(reads, self._max_requests)

    def _try(self, number: int) -> None:
        with contextlib.suppress(ShuffleError):
            self._read(number)
