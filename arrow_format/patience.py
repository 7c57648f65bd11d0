"""Waits for what others do in a storage, which tells nobody: looks again after growing pauses."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0
"""Seconds: soon enough for what is about to happen, seldom enough to cost next to nothing."""


def wait_until(look: Callable[[], T | None], timeout: float) -> T | None:
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
