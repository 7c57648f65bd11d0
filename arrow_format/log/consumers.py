"""The consumers of a shuffle: which process is at work as each, and how far each has consumed.

A reader that holds a version has a directory and records as a consumer has, under a name of its own
(:func:`arrow_format.log.names.is_reader`), and counts as none.

A consumer has a directory ``consumers/<name>`` in the shuffle, which may exist before anything is
written. It holds numbered records, of which the newest says everything. A process that changes
anything puts the next number if that is absent: of several processes one succeeds, and one that was
taken over fails from then on. All safety rests on that, none on clocks or heartbeats. See
``docs/explanation/architecture.md``.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from dataclasses import dataclass, replace
from functools import partial

from arrow_format.errors import (
    ConsumerError,
    CorruptShuffleError,
    OptionError,
    ShuffleError,
    StorageError,
)
from arrow_format.log.framing import from_frame, readable, to_frame
from arrow_format.log.names import CONSUMER_DIRECTORY, is_reader
from arrow_format.model import MAX_INTEGER, SAFE_NAME, Natural
from arrow_format.options import check_integer, check_name
from arrow_format.process_identity import ProcessIdentity  # noqa: TC001  msgspec reads it
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, Storage

KEPT_RECORDS = 10
"""The newest ones stay: a listing that is not a snapshot may miss what was put during it."""

_RECORD = re.compile(r"([0-9]{20})\.json")
_MAX_READS = 10
_MAX_TAKEN = 100


def check_consumer(name: object) -> str:
    """Return ``name`` if it is 1 to 100 letters, digits, ``_`` and ``-``; else OptionError.

    Also raises it for a name as readers' holds have them.
    """
    checked = check_name("consumer", name)
    if is_reader(checked):
        problem = "expected another name: one like this is of a reader that holds a version"
        raise OptionError.of("consumer", name, problem)
    return checked


def consumer_directory(name: str) -> str:
    """Directory of a consumer, relative to the shuffle."""
    return f"{CONSUMER_DIRECTORY}/{name}"


def record_path(name: str, number: int) -> str:
    """Path of the record of that number of a consumer."""
    return f"{consumer_directory(name)}/{number:020d}.json"


@dataclass(frozen=True, slots=True)
class ConsumerRecord:
    """All that is known of a consumer, while this is its newest record."""

    number: Natural
    """0: the consumer has no record."""
    version: Natural | None
    """Everything up to this version is consumed; None: the consumer is not registered."""
    first: Natural | None
    """The version at which it was registered."""
    holder: ProcessIdentity | None
    """The process at work as this consumer; None: no process is."""
    token: str
    """Drawn by the process that put the record, when it took the name."""
    taken: tuple[tuple[str, Natural], ...]
    """Tokens of processes that held the name before, and the last record of each."""
    at_ms: Natural
    """When it was put, in ms since 1970 by the clock of that process; for display only."""

    def __post_init__(self) -> None:
        if (self.version is None) != (self.first is None):
            msg = f"version {self.version} was registered at {self.first}"
            raise ValueError(msg)

    def taken_by(self, holder: ProcessIdentity) -> ConsumerRecord:
        """Return the next record, by which a process takes the name."""
        # Also one that gave it back: it may still be about to see that its last record counts.
        before = ((self.token, self.number),) if self.number else ()
        taken = (*self.taken, *before)[-_MAX_TAKEN:]
        return replace(self.next(), holder=holder, token=uuid.uuid4().hex, taken=taken)

    def next(self) -> ConsumerRecord:
        """Return the next record, which says the same."""
        return replace(self, number=self.number + 1, at_ms=time.time_ns() // 1_000_000)

    def consumed(self, version: int) -> ConsumerRecord:
        """Return this record with at least that version; it registers the consumer."""
        check_integer("version", version, 0, MAX_INTEGER, "a version")
        if self.version is None:
            return replace(self, version=version, first=version)
        return replace(self, version=max(self.version, version))

    @property
    def has_consumed(self) -> bool:
        """Whether anything was consumed since the consumer was registered."""
        return self.version != self.first


NO_RECORD = ConsumerRecord(0, None, None, None, "", (), 0)


class ConsumerRegistry:
    """The consumers of one shuffle, which need not exist yet."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def records(self) -> dict[str, ConsumerRecord]:
        """Return the newest record of every registered consumer, by name."""
        records = {name: self.newest(name) for name in self.names()}
        return {name: record for name, record in records.items() if record.version is not None}

    def names(self) -> list[str]:
        """Return the names of all consumers that may have a record, registered or not."""
        return [name for name in self._listed() if not is_reader(name)]

    def readers(self) -> list[str]:
        """Return the names under which readers may hold versions; these are no consumers."""
        return [name for name in self._listed() if is_reader(name)]

    def all_progress(self) -> dict[str, int]:
        """Return the consumed version of every consumer, by name; raises as :meth:`newest`."""
        return {name: record.version or 0 for name, record in self.records().items()}

    def newest(self, name: str) -> ConsumerRecord:
        """Return the newest record of a consumer, or one with number 0.

        Raises CorruptShuffleError where it is damaged, and StorageError where each that was listed
        was removed before it was read, ten times.
        """
        numbers = self._numbers(name)
        for _ in range(_MAX_READS):
            if not numbers:
                return NO_RECORD
            number = numbers[-1]
            record = self.read(name, number)
            # The number of a removed record is free, and a process that slept may put its own
            # there: what was read is the one that was listed unless newer ones had replaced that.
            numbers = self._numbers(name)
            if record is not None and numbers and numbers[-1] < number + KEPT_RECORDS:
                return record
        # Not a record without a version: what this consumer has not consumed would be released.
        msg = (
            f"{self.storage.root}/{consumer_directory(name)}: the newest record was listed and "
            f"could not be read {_MAX_READS} times in a row, since the consumer or a storage's "
            "listing changes fast; try again"
        )
        raise StorageError(msg)

    def read(self, name: str, number: int) -> ConsumerRecord | None:
        """Return one record of a consumer; None if it does not exist."""
        path = record_path(name, number)
        try:
            return _decoded(number, self.storage.read(path))
        except ObjectNotFoundError:
            return None
        except CorruptShuffleError as error:
            msg = (
                f"{self.storage.root}/{path}: {error}; it says how far consumer {name} has come. "
                "Restore it, or forget the consumer, which then starts from the beginning"
            )
            raise CorruptShuffleError(msg) from error

    def put(self, name: str, record: ConsumerRecord) -> ConsumerRecord:
        """Put the next record, durably, and return it.

        Where one of its number and token exists, of a put whose answer was lost, return that one.
        Raises ConsumerError where another process has the name; then nothing was recorded.
        """
        path = record_path(name, record.number)
        data = to_frame(record)
        readable(data, partial(_decoded, record.number), f"{self.storage.root}/{path}")
        try:
            self.storage.put_if_absent(path, data, sync=True)
        except ObjectExistsError:
            existing = self.read(name, record.number)
            if existing is not None and existing.token == record.token:
                return existing
            raise self._lost(name) from None
        # Of a process that slept the number may be free again: its record counts only if it was
        # the next one, or if those that came later say that it held the name then.
        numbers = self._numbers(name)
        is_next = numbers[-2:] == [n for n in (record.number - 1, record.number) if n]
        if not is_next and dict(self.newest(name).taken).get(record.token, 0) < record.number:
            self._remove(name, [record.number])
            self.storage.prune(consumer_directory(name), and_root=True)  # where all was deleted
            raise self._lost(name)
        self._remove(name, [n for n in numbers if n <= record.number - KEPT_RECORDS])
        return record

    def remove(self, name: str, *, through: int = MAX_INTEGER) -> None:
        """Remove the records up to a number, as far as the storage answers."""
        self._remove(name, [number for number in self._numbers(name) if number <= through])

    def _lost(self, name: str) -> ConsumerError:
        return ConsumerError(
            f"{self.storage.root}: consumer {name!r} was taken over by another process, which had "
            "seen no record of this one for long, or was forgotten. This process records nothing "
            "more; run one consumer of a name at a time"
        )

    def _listed(self) -> list[str]:
        return sorted(filter(SAFE_NAME.fullmatch, self.storage.list(CONSUMER_DIRECTORY)))

    def _numbers(self, name: str) -> list[int]:
        names = self.storage.list(consumer_directory(name))
        return sorted(int(match[1]) for match in map(_RECORD.fullmatch, names) if match)

    def _remove(self, name: str, numbers: list[int]) -> None:
        # What is left over does no harm. A consumer that may not delete one need not try the
        # others, each time that it shows that it holds its name.
        with contextlib.suppress(ShuffleError):
            for number in numbers:
                self.storage.delete(record_path(name, number))


def _decoded(number: int, data: bytes) -> ConsumerRecord:
    record, _ = from_frame(data, ConsumerRecord)
    if record.number != number:
        msg = f"is record {record.number}"
        raise CorruptShuffleError(msg)
    return record
