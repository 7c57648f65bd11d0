"""Whether a store keeps put-if-absent, asked of the store itself before anything is written.

All safety between writers rests on it, and there are stores that ignore the condition of a put, and
may be stores that check it first and put then, so that two win. So puts of different bytes begin
together under one name: exactly one must win, whose bytes a read finds, and a listing its name.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import ShuffleError, StorageError
from arrow_format.storage.protocol import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreRefusedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROBE_DIRECTORY = "commit_log/probes"
"""Where the objects of a probe lie until its end. Those of a writer that was killed, or that may
not delete, stay for garbage collection; no reader looks there."""

WRITERS = 4
"""Puts of one name that begin together."""
ROUNDS = 2
"""Names. The first puts open the connections, so those of the second are closer together."""
MANY_ROUNDS = 25
"""Names of a probe that takes longer and finds more, the doctor's."""
_LOOKS = 8
"""Reads at a time."""
_TRIES = 6
"""How often the puts of a name are made where a store answers all of them with a conflict."""


class Probed(Protocol):
    """What a probe asks of a storage."""

    @property
    def root(self) -> str:
        """Its URI."""

    def put_once(self, path: str, data: bytes) -> None:
        """Put on the condition; raises ObjectExistsError where the store says it is not met."""

    def read(self, path: str) -> bytes:
        """Read a whole object."""

    def keys_below(self, path: str) -> set[str]:
        """Return the keys that the store shows below a path, as it shows them."""

    def key(self, path: str) -> str:
        """Return the key of a path."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects."""


@dataclass(frozen=True, slots=True)
class Puts:
    """What came of puts of different bytes under one name that began together."""

    winners: tuple[bytes, ...]
    """Bytes of those that were acknowledged."""
    losers: tuple[bytes, ...]
    """Bytes of those that were answered with *exists* or a conflict, or not answered."""
    found: bytes | None
    """What a read finds; None: nothing."""
    is_listed: bool
    """Whether a listing shows the name."""

    @property
    def is_settled(self) -> bool:
        """Whether there is a winner, of which the answer may have been lost."""
        return bool(self.winners) or self.found is not None

    def flaw(self) -> str | None:
        """Return what is wrong with the store, if anything. Pure."""
        count = len(self.winners) + len(self.losers)
        if len(self.winners) > 1:
            return (
                "does not keep the condition of a put (If-None-Match) where several put at once: "
                f"of {count} puts of one name it acknowledged {len(self.winners)}, so commits "
                "would be lost without an error. Use one whose conditional puts are atomic"
            )
        if self.found is None:
            return (
                "does not show at once what was put: a read did not find it. Use one whose reads "
                "and listings show every object as soon as its put is acknowledged"
            )
        if self.found not in (self.winners or self.losers):
            return (
                "acknowledged a put, and has other bytes than those under its name. Use one that "
                "keeps what is put"
            )
        if not self.is_listed:
            return (
                "does not list what was put under the name it was put under: it changes names, as "
                "some do with unusual characters, or its listings are behind. Take a prefix of "
                "letters, digits, - and _; if that is refused too, use another store"
            )
        return None


def check_store(store: Probed, *, num_rounds: int) -> None:
    """Raise StoreRefusedError where the store does not keep put-if-absent, or changes names.

    It takes a round trip for each round, one to read and list, and one to delete; and nothing is
    left where the credentials allow to delete, which commits do not need. Raises StorageError where
    the store does not answer, or may not be written.
    """
    probe = _Probe(store, num_rounds)
    try:
        rounds = probe.rounds()
        flaws = [flaw for flaw in (puts.flaw() for puts in rounds) if flaw is not None]
        if not flaws:
            return
        if all(len(puts.winners) > 1 for puts in rounds) and probe.replaces():
            msg = (
                f"{store.root}: the store ignores the condition of a put (If-None-Match), so "
                "commits are not safe. Use one that supports conditional puts"
            )
            raise StoreRefusedError(msg)
        msg = f"{store.root}: the store {flaws[0]}"
        raise StoreRefusedError(msg)
    finally:
        probe.remove()


class _Probe:
    """Rounds of puts to a store, each under a name of its own."""

    def __init__(self, store: Probed, num_rounds: int) -> None:
        self._store = store
        # No directory of its own: where a store has directories, empty ones stay.
        token = secrets.token_hex(8)
        self._paths = [f"{PROBE_DIRECTORY}/{token}-{number}" for number in range(num_rounds)]
        self._is_answered = False
        """Whether the store has answered any put but with an error."""

    def rounds(self) -> list[Puts]:
        """Put under each name, and again where the store answered all puts with a conflict."""
        settled: dict[str, Puts] = {}
        for attempt in range(_TRIES):
            time.sleep(random.uniform(0, 0.05 * 2**attempt) if attempt else 0)
            left = [path for path in self._paths if path not in settled]
            answers = [self._put_together(path) for path in left]
            looks: list[Callable[[], Any]] = [partial(_found, self._store, path) for path in left]
            looks.append(partial(self._store.keys_below, PROBE_DIRECTORY))
            *found, listed = run_concurrently(looks, _LOOKS)
            for path, (winners, losers), data in zip(left, answers, found, strict=True):
                puts = Puts(winners, losers, data, is_listed=self._store.key(path) in listed)
                if puts.is_settled:
                    settled[path] = puts
            if len(settled) == len(self._paths):
                return [settled[path] for path in self._paths]
        msg = (
            f"{self._store.root}: the store answered each of {WRITERS} puts of one name with a "
            f"conflict, {_TRIES} times, and kept none of them; try again"
        )
        raise StorageError(msg)

    def _put_together(self, path: str) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """Begin puts of different bytes together; return the bytes of winners and losers."""
        # The same again, should the store carry out late what it answered with a conflict.
        each = [f"{path} {number}".encode() for number in range(WRITERS)]
        puts = [partial(_answer, self._store, path, data) for data in each]
        answers = run_concurrently(puts, WRITERS)
        errors = [answer for answer in answers if isinstance(answer, StorageError)]
        self._is_answered |= len(errors) < WRITERS
        if len(errors) > WRITERS - 2:  # one answer alone says nothing of several puts
            raise errors[0]
        winners = tuple(data for data, won in zip(each, answers, strict=True) if won is True)
        return winners, tuple(data for data in each if data not in winners)

    def replaces(self) -> bool:
        """Whether a put replaces an object that has been there for some time."""
        return _answer(self._store, self._paths[0], b"later") is True

    def remove(self) -> None:
        """Delete what was put, if that is allowed: no commit needs it."""
        if self._is_answered:  # else there may be no store, and it takes long to see that
            with contextlib.suppress(ShuffleError):
                self._store.delete_all(self._paths)


def _answer(store: Probed, path: str, data: bytes) -> bool | StorageError:
    """Return whether a put was acknowledged, or the error that it ended with."""
    try:
        store.put_once(path, data)
    except ObjectExistsError:
        return False
    except StorageError as error:
        return error
    return True


def _found(store: Probed, path: str) -> bytes | None:
    try:
        return store.read(path)
    except ObjectNotFoundError:
        return None
