"""How often a stream looks for more while nothing is new.

Spark asks a hundred times a second. Where each look is a request to a store, which takes its time
and is paid for, an answer that there is nothing new is not sought again at once: the next question
waits, and is answered by a look of its own then.
"""

from __future__ import annotations

import threading
import time

INTERVAL = 1.0
"""Seconds between two looks in succession at a store that find nothing new."""


def seconds_until_look(now: float, idle_at: float | None, interval: float) -> float:
    """Return how long to wait before the next look, in seconds: pure.

    Parameters
    ----------
    now
        Seconds, by a clock that is never set.
    idle_at
        When the last look ended, by the same clock; None where it found something, or there was
        none.
    interval
        Seconds from the end of a look that found nothing to the next.
    """
    return 0.0 if idle_at is None else max(0.0, idle_at + interval - now)


class IdleLooks:
    """Keeps looks that find nothing apart.

    Parameters
    ----------
    interval
        Seconds, see :func:`seconds_until_look`; 0 not to wait.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._idle_at: float | None = None
        self._stopped = threading.Event()

    def __reduce__(self) -> tuple[type[IdleLooks], tuple[float]]:
        return IdleLooks, (self._interval,)  # whoever gets it has not looked yet

    def wait(self) -> None:
        """Wait until it is time for the next look, or until :meth:`stop`."""
        seconds = seconds_until_look(time.monotonic(), self._idle_at, self._interval)
        if seconds > 0:
            self._stopped.wait(seconds)

    def tell(self, *, found: bool) -> None:
        """Take note of whether a look has just found anything."""
        self._idle_at = None if found else time.monotonic()

    def stop(self) -> None:
        """End the wait that is under way, and wait no more."""
        self._stopped.set()
