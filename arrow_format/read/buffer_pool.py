"""The bytes that reads may hold at a time, shared by all readers of one or several schedulers.

A request is served whole or not at all, and waiting requests in the order they came. What a reader
has fetched but not handed over can be taken back for one that starves, so no order of consumption
can lock readers up. Source: Flink's ``BatchShuffleReadBufferPool`` (FLIP-148).
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
    """A reader as its pool sees it; the pool's lock is held while it is asked."""

    @property
    def position(self) -> tuple[int, int]:
        """Where it reads next: the file's place in reading order, and the offset."""

    def give_back(self) -> bool:
        """Let go of what was fetched last and not handed over; False when there is nothing."""


class ReadBufferPool:
    """Counts the bytes of read buffers and bounds them.

    .. code-block:: python

        pool = ReadBufferPool(8 << 20)
        pool.request(1 << 20)    # waits while there is no room
        ...                      # read, hand over
        pool.recycle(1 << 20)

    Parameters
    ----------
    max_bytes
        Bytes in use at most. A single request that is larger is served when nothing else is in use.
    timeout_seconds
        How long a request waits after the last time that anybody was served or gave something back.
    """

    def __init__(
        self,
        max_bytes: int = DEFAULT_MAX_BYTES,
        *,
        timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    ) -> None:
        self.max_bytes = check_integer("max_bytes", max_bytes, 1, 1 << 50, "bytes")
        self.changed = threading.Condition()
        """Its lock guards the pool and the schedulers that share it; notified at every change."""
        self.used_bytes = 0
        self.peak_bytes = 0
        """Most that was ever in use."""
        self._timeout_seconds = timeout_seconds
        self._last_operation = time.monotonic()
        self._waiting: deque[object] = deque()
        self._holders: list[BufferHolder] = []
        self._failure: Exception | None = None

    @property
    def average_bytes(self) -> int:
        """Fair share of each reader that joined."""
        return self.max_bytes // max(len(self._holders), 1)

    def join(self, holder: BufferHolder) -> None:
        """Count a reader in."""
        with self.changed:
            self._holders.append(holder)

    def leave(self, holder: BufferHolder) -> None:
        """Count a reader out; what it holds it has recycled before."""
        with self.changed:
            if holder in self._holders:
                self._holders.remove(holder)
                self.changed.notify_all()

    def try_request(self, num_bytes: int) -> bool:
        """Take bytes if there is room now and nobody waits; all or nothing.

        Raises
        ------
        ClosedError
            The pool was destroyed.
        """
        with self.changed:
            self.check()
            return not self._waiting and self._take(num_bytes)

    def request(self, num_bytes: int, *, reclaim: bool = False) -> None:
        """Take bytes, and wait for them if need be; all or nothing.

        Parameters
        ----------
        num_bytes
            Bytes wanted.
        reclaim
            Take back what readers have fetched ahead, those first that will need it last.

        Raises
        ------
        ReadBufferTimeoutError
            Nobody was served or gave anything back for the pool's timeout.
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
        """Give bytes back; whoever waits is served."""
        with self.changed:
            self.used_bytes -= num_bytes
            self._last_operation = time.monotonic()
            self.changed.notify_all()

    def destroy(self, reason: str = "the read buffer pool was destroyed") -> None:
        """Fail all who wait and all who ask from now on."""
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
                f"are in use by {len(self._holders)} readers, and for {idle:.0f} s nobody gave any "
                "back; consume the other readers, close them, or give reading more memory"
            )
            raise ReadBufferTimeoutError(msg)
        self.changed.wait(self._timeout_seconds - idle)
