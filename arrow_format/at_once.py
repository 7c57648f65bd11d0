"""Several requests at once, where each of them waits for a store most of its time."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def run_at_once(calls: Sequence[Callable[[], T]], max_requests: int) -> list[T]:
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
