"""Who consumes a shuffle and how far each has come: durable, beside the commit log.

A consumer has a directory ``consumers/<name>`` in the shuffle, which may be there before anything
is written. Progress is a file whose name is the version that was consumed; the newest one counts,
and the one before goes with the next but one. See ``docs/format/v1.md``.
"""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError, OptionError, ShuffleError, StorageError
from arrow_format.log.framing import from_lines, readable, to_lines
from arrow_format.model import FORMAT_VERSION, MAX_INTEGER, SAFE_NAME
from arrow_format.options import check_integer
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from arrow_format.storage.open import Storage

CONSUMER_DIRECTORY = "consumers"

_PROGRESS = re.compile(r"progress-([0-9]{20})")
_LOOKS = 10


def check_consumer(name: object) -> str:
    """Return ``name`` if a consumer may have it.

    Raises
    ------
    OptionError
        It has other than 1 to 100 letters, digits, ``_`` and ``-``.
    """
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
        msg = f"consumer={name!r}: expected 1 to 100 letters, digits, _ and -"
        raise OptionError(msg)
    return name


def consumer_directory(name: str) -> str:
    """Directory of a consumer, relative to the shuffle."""
    return f"{CONSUMER_DIRECTORY}/{name}"


def progress_path(name: str, version: int) -> str:
    """Path of the file that says that a consumer has consumed everything up to a version."""
    return f"{consumer_directory(name)}/progress-{version:020d}"


class ConsumerRegistry:
    """The consumers of one shuffle.

    Parameters
    ----------
    storage
        Where the shuffle is, or will be.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        """Return all consumers that are registered, sorted; raises as :meth:`progress`."""
        return list(self.all_progress())

    def progress(self, name: str) -> int | None:
        """Return the version up to which a consumer has consumed; None: it is not registered.

        Raises
        ------
        CorruptShuffleError
            The file that says so is damaged.
        StorageError
            Each file that was listed was gone when it was read, ten times.
        """
        for _ in range(_LOOKS):
            versions = self._versions(name)
            if not versions:
                return None
            path = progress_path(name, versions[-1])
            try:
                data = self._storage.read(path)
            except ObjectNotFoundError:
                continue  # the next one is there by now
            self._check(path, versions[-1], data)
            return versions[-1]
        # Not None: what this consumer has before it would be released.
        msg = (
            f"{self._storage.root}/{consumer_directory(name)}: progress was listed and not there "
            f"{_LOOKS} times in a row, since the consumer or a storage's listing changes fast; try "
            "again"
        )
        raise StorageError(msg)

    def has_consumed(self, name: str) -> bool:
        """Whether a consumer has come further than where it began when it was registered."""
        return len(self._versions(name)) > 1  # the last two stay

    def all_progress(self) -> dict[str, int]:
        """Return how far every consumer has come, by name; raises as :meth:`progress`."""
        names = filter(SAFE_NAME.fullmatch, self._storage.list(CONSUMER_DIRECTORY))
        found = {name: self.progress(name) for name in names}
        return {name: version for name, version in found.items() if version is not None}

    def register(self, name: str, version: int) -> int:
        """Make a consumer known, which stands after ``version``; return where it stands.

        One that is registered stays where it is.
        """
        there = self.progress(check_consumer(name))
        if there is not None:
            return there
        self.advance(name, version)
        return version

    def advance(self, name: str, version: int) -> None:
        """Record durably that a consumer has consumed everything up to ``version``.

        It never goes back: a consumer that has come further stays where it is.

        Raises
        ------
        OptionError
            It is no name of a consumer, or no number of a version.
        """
        check_consumer(name)
        version = check_integer("version", version, 0, MAX_INTEGER, "a version")
        data = to_lines(
            {
                "format_version": FORMAT_VERSION,
                "consumer": name,
                "version": version,
                "at_ms": time.time_ns() // 1_000_000,
            }
        )
        path = progress_path(name, version)
        readable(data, partial(self._check, path, version), f"{self._storage.root}/{path}")
        with contextlib.suppress(ObjectExistsError):
            self._storage.put_if_absent(path, data, sync=True)
        # The one before stays: a listing under way may not show the new one yet, and who shows none
        # would be taken for a consumer that has nothing before it. What is left over does no harm.
        for older in self._versions(name)[:-2]:
            with contextlib.suppress(ShuffleError):
                self._storage.delete(progress_path(name, older))

    def forget(self, name: str) -> bool:
        """Remove what is known of a consumer, but for who holds its name; whether it was there."""
        versions = self._versions(check_consumer(name))
        for version in versions:
            self._storage.delete(progress_path(name, version))
        self._storage.prune(consumer_directory(name), and_root=False)
        return bool(versions)

    def _versions(self, name: str) -> list[int]:
        names = self._storage.list(consumer_directory(name))
        return sorted(int(match[1]) for match in map(_PROGRESS.fullmatch, names) if match)

    def _check(self, path: str, version: int, data: bytes) -> None:
        try:
            if from_lines(data).get("version") == version:
                return
            problem = "is of another version"
        except CorruptShuffleError as error:
            problem = str(error)
        name = path.split("/")[1]
        msg = (
            f"{self._storage.root}/{path}: {problem}; it says how far consumer {name} has come. "
            "Restore it, or forget the consumer, which then begins anew"
        )
        raise CorruptShuffleError(msg)
