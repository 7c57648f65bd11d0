"""A reader's hold on a version, which no collection lets expire while the reader lives.

.. code-block:: python

    with VersionHold.take(storage, shuffle.version) as hold:
        ...  # hours of reading
        hold.move(newer.version)

It is a consumer's record under a name that no consumer has (:data:`READER_PREFIX`), by which the
reader has consumed everything before the version; what a collection makes of it is in
:mod:`arrow_format.jobs.reader_holds`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Self

from arrow_format.errors import (
    ClosedError,
    CommitConflictError,
    ConsumerError,
    FormatVersionError,
    ShuffleError,
    StorageError,
)
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.consumers import NO_RECORD, ConsumerRegistry, consumer_directory
from arrow_format.log.entry import FENCE
from arrow_format.log.names import READER_PREFIX
from arrow_format.log.result import released_error
from arrow_format.model import MAX_INTEGER
from arrow_format.options import check_integer
from arrow_format.process_identity import this_process
from arrow_format.streaming.lease import LEASE_SECONDS, Lease

if TYPE_CHECKING:
    from types import TracebackType

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.storage.open import Storage


class VersionHold:
    """The hold of this process on one version of a shuffle, by :meth:`take`.

    A daemon thread puts a record every 15 seconds. While the process lives, no collection lets the
    version or a later one expire, of a result of any type, whatever its age, and even if all
    consumers have consumed it. It does not keep what is given up by name: a result that is released
    as a whole (a ``BLOCKING`` one also when its last consumer has consumed it, or its writers have
    ended), and a shuffle that is dropped by force. A version that has expired and that a tag keeps
    is kept by the tag alone.

    A collection on the same machine knows whether the process lives. One on another machine
    believes so until there was no record for an hour; a process that was suspended for longer may
    find its version expired.

    It belongs to the process that took it: in a forked child :meth:`close` does nothing. It is
    closed when it is no longer referenced, and when the interpreter ends; what a process leaves
    that is killed, the next collection removes.
    """

    def __init__(self, storage: Storage, version: int) -> None:
        self._storage = storage
        self._pid = os.getpid()
        self._register(version)

    @classmethod
    def take(cls, storage: Storage, version: int) -> VersionHold:
        """Hold a version that can be opened.

        On return it is certain that no collection removes it: not one either that ran meanwhile.
        Where it is the newest that takes one record beside the log. Else it takes an entry of the
        log too, which is no version, and makes such a collection look again.

        Parameters
        ----------
        storage
            The shuffle.
        version
            The version to read, from 1 on.

        Raises
        ------
        ShuffleNotFoundError
            The version has expired, or is not there; ResultReleasedError, of that kind, where the
            result was released. Nothing is held.
        StorageError
            Nothing may be written here, or the storage did not answer: nothing is held. The version
            can be read all the same, as long as no collection lets it expire.
        CorruptShuffleError
            The log is damaged.
        """
        return cls(storage, check_integer("version", version, 1, MAX_INTEGER, "a version"))

    def _register(self, version: int) -> None:
        storage = self._storage
        try:
            self._name, self._lease = _registered(storage, version)
            self._close = weakref.finalize(self, _end, storage, self._name, self._lease, self._pid)
            self._version = version
            try:
                self._keeps = _make_certain(storage, version)
            except BaseException:
                self.close()
                raise
        except (StorageError, FormatVersionError, ConsumerError, CommitConflictError) as error:
            msg = (
                f"{storage.root}: version {version} cannot be held for a reader ({error}). Let it "
                "put files there, or collect garbage with a retention longer than reading takes"
            )
            raise StorageError(msg) from error

    @property
    def name(self) -> str:
        """The name that a collection says."""
        return self._name

    @property
    def version(self) -> int:
        """The version that is held, with all later ones."""
        return self._version

    def move(self, version: int) -> None:
        """Hold a later version, and no longer those before it.

        In between both are held, so that a version which is there when this is called stays. An
        earlier version than the held one changes nothing. A hold that was taken for dead, since the
        process was suspended for an hour, is taken again; so is one of a version that a tag alone
        keeps, which keeps no later one.

        Raises
        ------
        ClosedError
            The hold is closed, or another process took it.
        ShuffleNotFoundError
            The hold was taken again, and the version had expired before; it is closed.
        StorageError
            The storage did not take it: the version before is still held, or what was to be taken
            again is closed.
        """
        check_integer("version", version, 1, MAX_INTEGER, "a version")
        if not self._close.alive or os.getpid() != self._pid:
            ended = "is closed" if os.getpid() == self._pid else f"is of process {self._pid}"
            msg = f"the hold on version {self._version} of {self._storage.root} {ended}; take one"
            raise ClosedError(msg)
        if version <= self._version:
            return
        if self._keeps:
            with contextlib.suppress(ConsumerError):  # it was removed as that of a dead reader
                self._lease.put(lambda record: record.consumed(version - 1))
                self._version = version
                return
        self.close()
        self._register(version)

    def close(self) -> None:
        """Hold nothing any more, and remove what was registered; calling it again does nothing."""
        if os.getpid() == self._pid:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _registered(storage: Storage, version: int) -> tuple[str, Lease]:
    """Register a reader of a version under a new name."""
    registry, name = ConsumerRegistry(storage), f"{READER_PREFIX}{secrets.token_hex(6)}"
    record = NO_RECORD.taken_by(this_process()).consumed(version - 1)
    try:
        return name, Lease(registry, name, registry.put(name, record), LEASE_SECONDS)
    except BaseException:
        with contextlib.suppress(ShuffleError):  # it may be there
            _remove(registry, name)
        raise


def _make_certain(storage: Storage, version: int) -> bool:
    """See to it that each collection sees a hold on a version that has just been registered.

    Return whether that keeps the version, and not a tag alone.

    A collection looks for holds after it has read the log, and its entry fails where another one
    has come since. So one that let this version expire without having seen the hold had read a
    later version, or has put its entry before this reads.
    """
    log, keeps = CommitLog(storage), True

    def is_certain(view: LogView) -> bool:
        nonlocal keeps
        state, keeps = view.state, log.tag_of(view, version) is None
        if not keeps:
            return True
        if version <= state.ended and state.released is not None:
            raise released_error(storage.root, state.released)
        log.entry_at(view, version)  # raises where it has expired
        return state.version == version

    def decide(view: LogView) -> LogEntry | None:
        return None if is_certain(view) else draft(view, FENCE)

    if not log.read(is_certain):
        log.append(decide, sync=True)
    return keeps


def _end(storage: Storage, name: str, lease: Lease, pid: int) -> None:
    """End a hold, as far as the storage answers."""
    if os.getpid() != pid:
        return  # a forked child: the reader goes on
    if lease.runs_here():  # an object that nothing references is finalized in any thread
        threading.Thread(target=_end, args=(storage, name, lease, pid)).start()
        return
    with contextlib.suppress(ShuffleError, RuntimeError):  # no thread starts as the process ends
        lease.end()  # by a record, which counts where nothing may be removed
        _remove(ConsumerRegistry(storage), name)


def _remove(registry: ConsumerRegistry, name: str) -> None:
    registry.remove(name)
    registry.storage.prune(consumer_directory(name), and_root=False)
