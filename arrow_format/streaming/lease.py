"""The lease on the name of a consumer: one process holds it at a time, for as long as it lives.

A process that takes the lease puts ``lease-<term>-<beat>``, of a term that no process had before,
and replaces that by the next beat from time to time while it lives. A dead process loses the lease
immediately where its death can be seen, on the same machine. Of a process elsewhere only its beats
are known: a process that wants the lease watches until the next beat comes, or none has come for
``LEASE_SECONDS`` by its own clock. Clocks of two machines are never compared: a wrong one would
take the lease from a living process. Terms only grow, so a process that was taken for dead and
wakes up learns that it has lost.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from arrow_format.concurrency import poll_until
from arrow_format.errors import ConsumerError, CorruptShuffleError, ShuffleError
from arrow_format.log.framing import from_lines, to_lines
from arrow_format.model import FORMAT_VERSION
from arrow_format.process_identity import ProcessIdentity, this_process
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from arrow_format.storage.open import Storage

LEASE_SECONDS = 60.0
"""A process elsewhere counts as dead after so long without a beat; it puts four in that time."""

_released: set[str] = set()
"""Tokens of leases that this process released while the storage did not answer."""

_LEASE = re.compile(r"lease-([0-9]{20})-([0-9]{20}|free)")


def _path(directory: str, term: int, beat: int | str) -> str:
    beat = f"{beat:020d}" if isinstance(beat, int) else beat
    return f"{directory}/lease-{term:020d}-{beat}"


class Lease:
    """A lease that this process holds; see :func:`take_lease`."""

    def __init__(
        self, storage: Storage, directory: str, term: int, seconds: float, token: str
    ) -> None:
        self._token = token
        self._storage = storage
        self._directory = directory
        self._term = term
        self._beat = 0
        self._seconds = seconds
        self._ended = threading.Event()
        self._is_lost = False
        self._thread = threading.Thread(target=self._keep, name="arrow-shuffle-lease", daemon=True)
        self._thread.start()

    @property
    def is_first(self) -> bool:
        """Whether no process had the lease before, as far as the directory shows."""
        return self._term == 1

    def check(self) -> None:
        """Raise ConsumerError if another process has taken the lease."""
        if self._is_lost or self._newest_term() != self._term:
            self._is_lost = True
            msg = (
                f"{self._storage.root}: {self._directory} was taken over by another process, which "
                "had seen no beat of this one for long. This process records nothing more; run one "
                "consumer of a name at a time"
            )
            raise ConsumerError(msg)

    def release(self) -> None:
        """End the term; calling it again does nothing."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        _released.add(self._token)
        with contextlib.suppress(ShuffleError):
            if self._newest_term() == self._term:
                _put(self._storage, _path(self._directory, self._term, "free"), self._token)
                _released.discard(self._token)
                self._storage.delete(_path(self._directory, self._term, self._beat))

    def remove_term(self) -> None:
        """Remove the mark of the term after its release, so that terms begin again at 1.

        Only for a process that found the directory empty: none had an earlier term that might wake
        up and must learn from later terms that it has lost.
        """
        self._storage.delete(_path(self._directory, self._term, "free"))

    def _newest_term(self) -> int:
        return _beats_of_newest(self._storage, self._directory)[0]

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 4):
            # A store that does not answer may answer the next time.
            with contextlib.suppress(ShuffleError):
                if self._newest_term() != self._term:
                    self._is_lost = True
                    return
                with contextlib.suppress(ObjectExistsError):  # put before, and the answer was lost
                    beat = _path(self._directory, self._term, self._beat + 1)
                    _put(self._storage, beat, self._token)
                self._beat += 1
                self._storage.delete(_path(self._directory, self._term, self._beat - 1))


def take_lease(
    storage: Storage,
    directory: str,
    *,
    timeout: float = 0.0,
    seconds: float = LEASE_SECONDS,
) -> Lease:
    """Take the lease of a directory, once no living process holds it.

    ``timeout`` is how many seconds to wait while another process holds it; to learn whether a
    process elsewhere is alive takes up to ``seconds`` more. Raises ConsumerError where one holds
    it then.
    """
    watch = _Watch(storage, directory, seconds)
    token = uuid.uuid4().hex

    def try_to_take() -> int | None:
        term = watch.free_term()
        if term is None:
            return None
        try:
            _put(storage, _path(directory, term, 0), token)
        except ObjectExistsError:
            watch.is_alive = True  # another process was faster
            return None
        if _beats_of_newest(storage, directory) != (term, [f"{0:020d}"]):
            # The listing is not a snapshot: the first had missed a beat that replaced another.
            storage.delete(_path(directory, term, 0))
            watch.is_alive = True
            return None
        return term

    term = watch.wait(try_to_take, timeout)
    if term is None:
        msg = (
            f"{storage.root}: {directory} is held by {watch.holder}. A consumer of one name runs "
            "once at a time: stop the other, wait for it (requestTimeout), or take another name"
        )
        raise ConsumerError(msg)
    _delete_before(storage, directory, term)
    return Lease(storage, directory, term, seconds, token)


def end_leases(storage: Storage, directory: str) -> None:
    """End the term of a process taken for dead: should it wake up, it learns that it has lost."""
    term, beats = _beats_of_newest(storage, directory)
    if not term or beats == ["free"]:
        return
    with contextlib.suppress(ObjectExistsError):  # another process did the same
        _put(storage, _path(directory, term + 1, "free"), uuid.uuid4().hex)
    _delete_before(storage, directory, term + 1)


def await_holder(storage: Storage, directory: str, *, seconds: float = LEASE_SECONDS) -> str | None:
    """Return which living process holds a lease, for messages; None when none does.

    To learn whether a process elsewhere is alive takes up to ``seconds``.
    """
    watch = _Watch(storage, directory, seconds)
    return watch.holder if watch.wait(watch.free_term, 0.0) is None else None


def shown_holder(storage: Storage, directory: str) -> str | None:
    """Return the process that seems to hold a lease, by one poll; for display only.

    The last beat of a process elsewhere must be recent, as far as two clocks agree.
    """
    term, beats = _beats_of_newest(storage, directory)
    holder = _holder(storage, directory, term, beats)
    if holder is None or holder.is_alive:
        return None if holder is None else holder.name
    stat = storage.stat(_path(directory, term, beats[-1]))
    beat_ms = None if stat is None else stat.modified_ms
    is_recent = beat_ms is None or time.time() - beat_ms / 1000 < LEASE_SECONDS
    return holder.name if is_recent else None


class _Watch:
    """Polls a lease until it is known whether the process that holds it is alive."""

    def __init__(self, storage: Storage, directory: str, seconds: float) -> None:
        self.holder = "another process"
        """The process that holds the lease, for messages."""
        self.is_alive = False
        """Whether a living holder was seen; False while that is not known."""
        self._storage = storage
        self._directory = directory
        self._seconds = seconds
        self._beat: tuple[int, str] | None = None
        self._since = 0.0

    def free_term(self) -> int | None:
        """Poll once; return the term that may be taken, None while another process may hold it."""
        term, beats = _beats_of_newest(self._storage, self._directory)
        holder = _holder(self._storage, self._directory, term, beats)
        if holder is None:
            return term + 1
        self.holder = holder.name
        now, beat = time.monotonic(), (term, beats[-1])
        if holder.is_alive or self._beat not in (None, beat):
            self.is_alive = True
        if self._beat != beat:
            self._beat, self._since = beat, now
        is_silent = holder.is_alive is None and now - self._since >= self._seconds
        return term + 1 if is_silent else None

    def wait(self, poll: Callable[[], int | None], timeout: float) -> int | None:
        """Wait until ``poll`` returns a term; None where a holder lives when the time is over.

        Where that is not known by then, it waits for as much longer as it takes to know it.
        """
        term = poll_until(poll, timeout)
        if term is None and not self.is_alive:
            term = poll_until(lambda: poll() or (0 if self.is_alive else None), self._seconds)
        return term or None


def _delete_before(storage: Storage, directory: str, term: int) -> None:
    """Remove beats of earlier terms; what cannot be removed does no harm."""
    for name in storage.list(directory):
        match = _LEASE.fullmatch(name)
        if match and int(match[1]) < term:
            with contextlib.suppress(ShuffleError):
                storage.delete(f"{directory}/{name}")


def _beats_of_newest(storage: Storage, directory: str) -> tuple[int, list[str]]:
    """Return the newest term, or 0, and those of its beats that exist, sorted."""
    matches = [match for match in map(_LEASE.fullmatch, storage.list(directory)) if match]
    newest = max((int(match[1]) for match in matches), default=0)
    return newest, sorted(match[2] for match in matches if int(match[1]) == newest)


class _Holder(NamedTuple):
    """The process whose beat is the newest of a lease."""

    name: str
    is_alive: bool | None
    """None if unknown: a process on another machine."""


def _holder(storage: Storage, directory: str, term: int, beats: Sequence[str]) -> _Holder | None:
    """Return who holds a term with these beats; None when it is over."""
    if not beats or beats[-1] == "free":  # letters come after digits
        return None
    try:
        data = storage.read(_path(directory, term, beats[-1]))
    except ObjectNotFoundError:
        return _Holder("a process that is putting its next beat", is_alive=True)
    name, is_alive = "an unknown process", None
    # A power failure may leave a torn file. A living process replaces it by its next beat.
    with contextlib.suppress(CorruptShuffleError, KeyError, TypeError, ValueError):
        value = from_lines(data)
        if str(value.get("token")) in _released:
            return None
        identity = ProcessIdentity.from_json(value)
        name, is_alive = str(identity), identity.is_alive()
    return None if is_alive is False else _Holder(name, is_alive)


def _put(storage: Storage, path: str, token: str) -> None:
    # The token distinguishes leases of one process: a store takes an object with equal bytes for
    # the one that it was just asked to put.
    value = {"format_version": FORMAT_VERSION, **this_process().to_json(), "token": token}
    # Not synced: after a power failure no process holds a lease.
    storage.put_if_absent(path, to_lines(value), sync=False)
