"""A place that one process holds at a time, for as long as it lives: the name of a consumer.

Whoever takes the place puts ``lease-<term>-<beat>``, of a term that nobody had before, and while it
lives it puts the next beat now and then in the place of the last. A process that is dead loses the
place at once where that can be told, on the same machine. Of one elsewhere only its beats tell: a
process that wants the place watches until the next beat comes, or none has come for long by its own
clock. No two clocks are compared: one that is wrong would take the place from a living process.
Terms only grow, so that one who was thought dead and wakes up learns that it has lost.
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
"""For how long a process elsewhere must show no new beat to count as dead; it puts four in that."""

_let_go: set[str] = set()
"""Leases that this process gave up without the storage taking notice."""

_LEASE = re.compile(r"lease-([0-9]{20})-([0-9]{20}|free)")


def _path(directory: str, term: int, beat: int | str) -> str:
    beat = f"{beat:020d}" if isinstance(beat, int) else beat
    return f"{directory}/lease-{term:020d}-{beat}"


class Lease:
    """A place that this process holds; take one with :func:`take_lease`."""

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
        """Whether nobody had the place before, as far as it tells."""
        return self._term == 1

    def check(self) -> None:
        """Check that the place is still held.

        Raises
        ------
        ConsumerError
            Another process has taken it meanwhile.
        """
        if self._is_lost or _newest_term(self._storage, self._directory) != self._term:
            self._is_lost = True
            msg = (
                f"{self._storage.root}: {self._directory} was taken over by another process, which "
                "had not heard of this one for long. Nothing more is recorded from here; run one "
                "consumer of a name at a time"
            )
            raise ConsumerError(msg)

    def release(self) -> None:
        """Give the place up; it may be called again."""
        if self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        _let_go.add(self._token)
        with contextlib.suppress(ShuffleError):
            if _newest_term(self._storage, self._directory) == self._term:
                _put(self._storage, _path(self._directory, self._term, "free"), self._token)
                _let_go.discard(self._token)
                self._storage.delete(_path(self._directory, self._term, self._beat))

    def remove_term(self) -> None:
        """Remove what tells of the term, after its release; terms begin anew.

        Only for one that found nothing in the directory: nobody had a term before it who might wake
        up and has to learn from the next ones that it has lost.
        """
        self._storage.delete(_path(self._directory, self._term, "free"))

    def _keep(self) -> None:
        while not self._ended.wait(self._seconds / 4):
            # A store that does not answer now may answer the next time.
            with contextlib.suppress(ShuffleError):
                if _newest_term(self._storage, self._directory) != self._term:
                    self._is_lost = True
                    return
                with contextlib.suppress(ObjectExistsError):  # put before; its answer got lost
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
    """Take a place, once nobody alive holds it.

    Parameters
    ----------
    storage, directory
        Whose place it is.
    timeout
        Seconds to wait while another holds it. It takes up to ``seconds`` more to learn whether a
        process elsewhere lives.
    seconds
        For how long a process elsewhere must show no new beat to count as dead.

    Raises
    ------
    ConsumerError
        Another process holds it.
    """
    watch = _Watch(storage, directory, seconds)
    token = uuid.uuid4().hex

    def look() -> int | None:
        term = watch.free_term()
        if term is None:
            return None
        try:
            _put(storage, _path(directory, term, 0), token)
        except ObjectExistsError:
            watch.is_alive = True  # another was faster
            return None
        if _beats_of_newest(storage, directory) != (term, [f"{0:020d}"]):
            # The first listing, which is no snapshot, had missed a beat in the place of another.
            storage.delete(_path(directory, term, 0))
            watch.is_alive = True
            return None
        return term

    term = watch.wait(look, timeout)
    if term is None:
        msg = (
            f"{storage.root}: {directory} is held by {watch.holder}. A consumer of one name runs "
            "once at a time: stop the other, wait for it (requestTimeout), or take another name"
        )
        raise ConsumerError(msg)
    _delete_before(storage, directory, term)
    return Lease(storage, directory, term, seconds, token)


def end_leases(storage: Storage, directory: str) -> None:
    """End the term of whoever is thought dead: should it wake up, it learns that it has lost."""
    term, beats = _beats_of_newest(storage, directory)
    if not term or beats == ["free"]:
        return
    with contextlib.suppress(ObjectExistsError):  # another did the same
        _put(storage, _path(directory, term + 1, "free"), uuid.uuid4().hex)
    _delete_before(storage, directory, term + 1)


def await_holder(storage: Storage, directory: str, *, seconds: float = LEASE_SECONDS) -> str | None:
    """Return which living process holds a place, for people; None when none does.

    It takes up to ``seconds`` to learn whether a process elsewhere lives.
    """
    watch = _Watch(storage, directory, seconds)
    return watch.holder if watch.wait(watch.free_term, 0.0) is None else None


def shown_holder(storage: Storage, directory: str) -> str | None:
    """Return who seems to hold a place, at one look; for people, and nothing may be decided by it.

    Of a process elsewhere its last beat must be recent, as far as two clocks agree.
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
    """Looks at a place until it is known whether the process that holds it lives."""

    def __init__(self, storage: Storage, directory: str, seconds: float) -> None:
        self.holder = "another process"
        """Who holds the place, for people."""
        self.is_alive = False
        """Whether a holder was seen that lives; False while that is not known."""
        self._storage = storage
        self._directory = directory
        self._seconds = seconds
        self._beat: tuple[int, str] | None = None
        self._since = 0.0

    def free_term(self) -> int | None:
        """Look once; return the term that may be taken, None while another may hold the place."""
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

    def wait(self, look: Callable[[], int | None], timeout: float) -> int | None:
        """Wait until ``look`` gives a term; None where a holder lives when the time is over.

        Where that is not known by then, it waits for as much longer as it takes to know it.
        """
        term = poll_until(look, timeout)
        if term is None and not self.is_alive:
            term = poll_until(lambda: look() or (0 if self.is_alive else None), self._seconds)
        return term or None


def _delete_before(storage: Storage, directory: str, term: int) -> None:
    """Remove what is left of terms before one; what cannot be removed does no harm."""
    for name in storage.list(directory):
        match = _LEASE.fullmatch(name)
        if match and int(match[1]) < term:
            with contextlib.suppress(ShuffleError):
                storage.delete(f"{directory}/{name}")


def _newest_term(storage: Storage, directory: str) -> int:
    """Return the newest term that anyone had; 0 when there was none."""
    return _beats_of_newest(storage, directory)[0]


def _beats_of_newest(storage: Storage, directory: str) -> tuple[int, list[str]]:
    """Return the newest term that anyone had, and the beats of it that are there, sorted."""
    matches = [match for match in map(_LEASE.fullmatch, storage.list(directory)) if match]
    newest = max((int(match[1]) for match in matches), default=0)
    return newest, sorted(match[2] for match in matches if int(match[1]) == newest)


class _Holder(NamedTuple):
    """The process whose beat is the newest of a place."""

    name: str
    is_alive: bool | None
    """None where that is not known from here."""


def _holder(storage: Storage, directory: str, term: int, beats: Sequence[str]) -> _Holder | None:
    """Return who holds a term, of which there are these beats; None when it is over."""
    if not beats or beats[-1] == "free":  # letters come after digits
        return None
    try:
        data = storage.read(_path(directory, term, beats[-1]))
    except ObjectNotFoundError:
        return _Holder("a process that shows itself just now", is_alive=True)
    name, is_alive = "a process that cannot be told", None
    # What a power failure left of it tells nothing. Who lives puts the next one in its place.
    with contextlib.suppress(CorruptShuffleError, KeyError, TypeError, ValueError):
        value = from_lines(data)
        if str(value.get("token")) in _let_go:
            return None
        identity = ProcessIdentity.from_json(value)
        name, is_alive = str(identity), identity.is_alive()
    return None if is_alive is False else _Holder(name, is_alive)


def _put(storage: Storage, path: str, token: str) -> None:
    # The token tells two of one process apart: a store takes what is there with the same bytes for
    # what it was just asked to put.
    value = {"format_version": FORMAT_VERSION, **this_process().to_json(), "token": token}
    # Not synced: after a power failure nobody holds anything.
    storage.put_if_absent(path, to_lines(value), sync=False)
