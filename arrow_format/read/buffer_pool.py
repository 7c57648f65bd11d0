"""The memory budget of read buffers, shared by all readers of one or several schedulers.

A request is granted whole or not at all, and waiting requests are granted in order of arrival. The
pool can reclaim what a reader has fetched but not delivered for a reader that starves, so no order
of consumption deadlocks. Source: Flink's ``BatchShuffleReadBufferPool`` (FLIP-148).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Protocol

from arrow_format.errors import ClosedError, ReadBufferTimeoutError
from arrow_format.options import check_integer

DEFAULT_MAX_BYTES = 32 << 20
DEFAULT_TIMEOUT_SECONDS = 300.0


class BufferHolder(Protocol):
    """A reader as its pool sees it; the pool calls it with its lock held."""

    @property
    def position(self) -> tuple[int, int]:
        """Next read: the file's position in reading order, and the offset."""

    def give_back(self) -> bool:
        """Drop the last range that was fetched and not delivered; False when there is none."""


class ReadBufferPool:
    """Counts the bytes of read buffers and bounds them.

    .. code-block:: python

        pool = ReadBufferPool(8 << 20)
        pool.request(1 << 20)    # waits until the budget allows it
        ...                      # read, deliver
        pool.recycle(1 << 20)

    Parameters
    ----------
    max_bytes
        Limit of the bytes in use. A larger request is granted when nothing else is in use.
    timeout_seconds
        How long a request waits after the last time that bytes were granted or given back.
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self.max_bytes = check_integer("max_bytes", max_bytes, 1, 1 << 50, "bytes")
        self.changed = threading.Condition()
        """Its lock guards the pool and its schedulers; notified at every change."""
        self.used_bytes = 0
        self.peak_bytes = 0
        """Highest value of ``used_bytes`` so far."""
        self._timeout_seconds = timeout_seconds
        self._last_operation = time.monotonic()
        self._waiting: deque[object] = deque()
        self._holders: list[BufferHolder] = []
        self._failure: Exception | None = None

    @property
    def average_bytes(self) -> int:
        """Fair share of each reader that joined, in bytes."""
        return self.max_bytes // max(len(self._holders), 1)

    def join(self, holder: BufferHolder) -> None:
        """Add a reader, which lowers the fair share."""
        with self.changed:
            self._holders.append(holder)

    def leave(self, holder: BufferHolder) -> None:
        """Remove a reader, which has recycled all it held."""
        with self.changed:
            if holder in self._holders:
                self._holders.remove(holder)
                self.changed.notify_all()

    def try_request(self, num_bytes: int) -> bool:
        """Take bytes if the budget allows it now and no request waits; all or nothing.

        Raises
        ------
        ClosedError
            The pool was destroyed.
        """
        with self.changed:
            self.check()
            return not self._waiting and self._take(num_bytes)

    def request(self, num_bytes: int, *, reclaim: bool = False) -> None:
        """Take bytes, and wait for them if necessary; all or nothing.

        Parameters
        ----------
        num_bytes
            Bytes wanted.
        reclaim
            Reclaim what readers have fetched ahead, first from those that will need it last.

        Raises
        ------
        ReadBufferTimeoutError
            No bytes were granted or given back for the pool's timeout.
        ClosedError
            The pool was destroyed.
        """
        ticket = object()
        with self.changed:
            self._waiting.append(ticket)
            try:
                while True:
                    self.check()
                    if self._waiting[0] is ticket:
                        if self._take(num_bytes):
                            return
                        if reclaim and self._reclaim():
                            continue
                    self._wait(num_bytes)
            finally:
                self._waiting.remove(ticket)
                self.changed.notify_all()

    def recycle(self, num_bytes: int) -> None:
        """Give bytes back and wake the requests that wait."""
        with self.changed:
            self.used_bytes -= num_bytes
            self._last_operation = time.monotonic()
            self.changed.notify_all()

    def destroy(self, reason: str = "the read buffer pool was destroyed") -> None:
        """Fail all requests that wait and all later ones with :class:`ClosedError`."""
        with self.changed:
            self._failure = ClosedError(reason)
            self.changed.notify_all()

    def check(self) -> None:
        """Raise :class:`ClosedError` if the pool was destroyed."""
        if self._failure is not None:
            raise ClosedError(str(self._failure))

    def _take(self, num_bytes: int) -> bool:
        if self.used_bytes and self.used_bytes + num_bytes > self.max_bytes:
            return False
        self.used_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self._last_operation = time.monotonic()
        return True

    def _reclaim(self) -> bool:
        by_need = sorted(self._holders, key=lambda holder: holder.position, reverse=True)
        return any(holder.give_back() for holder in by_need)

    def _wait(self, num_bytes: int) -> None:
        idle = time.monotonic() - self._last_operation
        if idle >= self._timeout_seconds:
            msg = (
                f"waited for {num_bytes} bytes to read into: {self.used_bytes} of {self.max_bytes} "
                f"are in use by {len(self._holders)} readers, and for {idle:.0f} s none gave any "
                "back; consume the other readers, close them, or give reading more memory"
            )
            raise ReadBufferTimeoutError(msg)
        self.changed.wait(self._timeout_seconds - idle)
