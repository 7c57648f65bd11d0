"""The consumers of a shuffle and the version up to which each has consumed: durable files.

A consumer has a directory ``consumers/<name>`` in the shuffle, which may exist before anything is
written. Progress is a file whose name is the version that was consumed; the newest one counts, and
the last two are kept. See ``docs/format/v1.md``.
"""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial

from arrow_format.errors import CorruptShuffleError, OptionError, ShuffleError, StorageError
from arrow_format.log.framing import from_lines, readable, to_lines
from arrow_format.log.names import CONSUMER_DIRECTORY
from arrow_format.model import FORMAT_VERSION, MAX_INTEGER, SAFE_NAME
from arrow_format.options import check_integer
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, Storage

_PROGRESS = re.compile(r"progress-([0-9]{20})")
_MAX_READS = 10


def check_consumer(name: object) -> str:
    """Return ``name`` if it is 1 to 100 letters, digits, ``_`` and ``-``; else OptionError."""
    if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
        msg = f"consumer={name!r}: expected 1 to 100 letters, digits, _ and -"
        raise OptionError(msg)
    return name


def consumer_directory(name: str) -> str:
    """Directory of a consumer, relative to the shuffle."""
    return f"{CONSUMER_DIRECTORY}/{name}"


def progress_path(name: str, version: int) -> str:
    """Path of the file that records that a consumer has consumed everything up to a version."""
    return f"{consumer_directory(name)}/progress-{version:020d}"


class ConsumerRegistry:
    """The consumers of one shuffle, which need not exist yet."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def names(self) -> list[str]:
        """Return all registered consumers, sorted; raises as :meth:`progress`."""
        return list(self.all_progress())

    def progress(self, name: str) -> int | None:
        """Return the version up to which a consumer has consumed; None if it is not registered.

        Raises CorruptShuffleError where the file that says so is damaged, and StorageError where
        each file that was listed was removed before it was read, ten times.
        """
        for _ in range(_MAX_READS):
            versions = self._versions(name)
            if not versions:
                return None
            path = progress_path(name, versions[-1])
            try:
                data = self._storage.read(path)
            except ObjectNotFoundError:
                continue  # a newer one replaced it
            self._check(path, versions[-1], data)
            return versions[-1]
        # Not None: what this consumer has not consumed would be released.
        msg = (
            f"{self._storage.root}/{consumer_directory(name)}: progress was listed and could not "
            f"be read {_MAX_READS} times in a row, since the consumer or a storage's listing "
            "changes fast; try again"
        )
        raise StorageError(msg)

    def has_consumed(self, name: str) -> bool:
        """Whether a consumer has consumed anything since it was registered."""
        return len(self._versions(name)) > 1  # the last two are kept

    def all_progress(self) -> dict[str, int]:
        """Return the consumed version of every consumer, by name; raises as :meth:`progress`."""
        names = filter(SAFE_NAME.fullmatch, self._storage.list(CONSUMER_DIRECTORY))
        progress = {name: self.progress(name) for name in names}
        return {name: version for name, version in progress.items() if version is not None}

    def register(self, name: str, version: int) -> int:
        """Register a consumer after ``version``, unless it is registered; return its version."""
        consumed = self.progress(check_consumer(name))
        if consumed is None:
            self.advance(name, version)
        return version if consumed is None else consumed

    def advance(self, name: str, version: int) -> None:
        """Record durably that a consumer has consumed everything up to ``version``.

        A consumer never goes back: an older version changes nothing.
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
        # The one before is kept: a listing under way may not show the new one yet, and a consumer
        # without a file would not count. Files that are left over do no harm.
        for older in self._versions(name)[:-2]:
            with contextlib.suppress(ShuffleError):
                self._storage.delete(progress_path(name, older))

    def forget(self, name: str) -> bool:
        """Remove the progress of a consumer, not its lease; whether it was registered."""
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
            "Restore it, or forget the consumer, which then starts from the beginning"
        )
        raise CorruptShuffleError(msg)
