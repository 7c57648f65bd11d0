"""The lease on the name of a consumer: a hint by which others wait, or take the name over.

The process that holds a name puts the consumer's next record from time to time while it lives. A
dead process loses the name immediately where its death can be seen, on the same machine. Of a
process elsewhere only its records are known: a process that wants the name watches until the next
record comes, or none has come for ``LEASE_SECONDS`` by its own clock. Clocks of two machines are
never compared. A living process that was taken for dead can record nothing more, whatever this
module does: :mod:`arrow_format.log.consumers`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from arrow_format.concurrency import poll_until
from arrow_format.errors import ConsumerError, ShuffleError
from arrow_format.log.consumers import ConsumerRecord, ConsumerRegistry
from arrow_format.process_identity import this_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.storage.open import Storage

LEASE_SECONDS = 60.0
"""A process elsewhere counts as dead after so long without a record; it puts four in that time."""

_released: set[str] = set()
"""Tokens that this process gave up; a storage that did not answer may show them as held."""


class Lease:
    """The hold of this process on a name; see :func:`take_lease`."""

    def __init__(
        self, registry: ConsumerRegistry, name: str, record: ConsumerRecord, seconds: float
    ) -> None:
        self.record = record
        """The newest record that this process has put."""
        self.is_first = record.number == 1
        """Whether the name was unknown before, as far as its directory shows."""
        self._registry = registry
        self._name = name
        self._seconds = seconds
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="arrow-shuffle-lease", daemon=True)
        self._thread.start()

    def put(self, change: Callable[[ConsumerRecord], ConsumerRecord] = lambda same: same) -> None:
        """Put the next record, changed; raises ConsumerError where another process has the name."""
        with self._lock:
            while True:
                record = change(self.record.next())
                self.record = self._registry.put(self._name, record)
                if self.record is record:  # not one of before, whose answer was lost
                    return

    def runs_here(self) -> bool:
        """Whether the calling thread is the one that puts records from time to time."""
        return self._thread is threading.current_thread()

    def end(self, *, removes: bool = False) -> None:
        """Let other processes have the name, unless a record has done so.

        ``removes`` the records of a name that no other process had, so that numbers begin again.
        """
        self._ended.set()
        self._thread.join()
        if self.record.holder is None:
            return
        _released.add(self.record.token)
        if removes:
            self._registry.remove(self._name, through=self.record.number)
            self.record = replace(self.record, holder=None)
            return
        with contextlib.suppress(ShuffleError):
            self.put(lambda record: replace(record, holder=None))
            _released.discard(self.record.token)

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 4):
            try:
                self.put()
            except ConsumerError:
                return
            except ShuffleError:
                continue  # a store that does not answer may answer the next time


def take_lease(
    storage: Storage, name: str, *, timeout: float = 0.0, seconds: float = LEASE_SECONDS
) -> Lease:
    """Take the name of a consumer, once no living process holds it.

    ``timeout`` is how many seconds to wait while another process holds it; to learn whether a
    process elsewhere is alive takes up to ``seconds`` more. Raises ConsumerError where one holds
    it then.
    """
    registry = ConsumerRegistry(storage)
    watch = _Watch(registry, name, seconds)
    taken = poll_until(watch.take, timeout) or poll_until(watch.take_unless_seen_alive, seconds)
    if taken is None:
        raise watch.held_error()
    return Lease(registry, name, taken, seconds)


class _Watch:
    """What a process that wants a name sees of the one that holds it."""

    def __init__(self, registry: ConsumerRegistry, name: str, seconds: float) -> None:
        self._registry = registry
        self._name = name
        self._seconds = seconds
        self._newest: ConsumerRecord | None = None
        self._since = 0.0
        """When its newest record was first seen, by this process's clock."""
        self._seen_alive = False

    def take(self) -> ConsumerRecord | None:
        """Take the name, and return the record of that; None where a process may hold it."""
        record = self._look()
        is_held = _is_held(record)
        self._seen_alive |= is_held is True
        if is_held or (is_held is None and time.monotonic() - self._since < self._seconds):
            return None
        taken = record.taken_by(this_process())
        try:
            self._registry.put(self._name, taken)
        except ConsumerError:
            self._seen_alive = True  # another process was faster
            return None
        except BaseException:
            _released.add(taken.token)  # it may have been put
            raise
        return taken

    def take_unless_seen_alive(self) -> ConsumerRecord | None:
        """As :meth:`take`; raises ConsumerError as soon as a holder has shown that it lives."""
        taken = None if self._seen_alive else self.take()
        if taken is None and self._seen_alive:
            raise self.held_error()
        return taken

    def _look(self) -> ConsumerRecord:
        before, newest = self._newest, self._registry.newest(self._name)
        if before is None or before.number != newest.number:
            self._since = time.monotonic()
            self._seen_alive |= before is not None
        self._newest = newest
        return newest

    def held_error(self) -> ConsumerError:
        """Return the error that another process has the name."""
        holder = (self._newest and self._newest.holder) or "another process"
        return ConsumerError(
            f"{self._registry.storage.root}: consumer {self._name!r} is held by {holder}. A "
            "consumer of one name runs once at a time: stop the other, wait for it "
            "(requestTimeout), or take another name"
        )


def shown_holder(record: ConsumerRecord) -> str | None:
    """Return the process that seems to hold a name by its newest record; for display only.

    The last record of a process elsewhere must be recent, as far as two clocks agree.
    """
    is_held = _is_held(record)
    if is_held is None:
        is_held = time.time() - record.at_ms / 1000 < LEASE_SECONDS
    return str(record.holder) if is_held else None


def _is_held(record: ConsumerRecord) -> bool | None:
    """Whether a living process holds a name by this record; None: a process elsewhere may."""
    if record.holder is None or record.token in _released:
        return False
    return record.holder.is_alive()
