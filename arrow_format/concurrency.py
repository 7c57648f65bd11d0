"""Concurrent requests to a store, and polling with growing pauses.

A module of its own, since the log, jobs, consumers and the connector all wait for a store so.
"""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
