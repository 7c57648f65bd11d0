"""The commit log: which map outputs make up which version. One writer wins each version.

Entries are files ``commit_log/<version>.json`` created put-if-absent, numbered from 1 without gaps.
A version is the newest whole entry (``overwrite`` or ``replace``) at or before it, and every
``append`` after that.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import (
    CommitConflictError,
    CorruptShuffleError,
    FormatVersionError,
    ShuffleNotFoundError,
)
from arrow_format.log_entry import LogEntry, decode_entry, decode_totals, encode_entry
from arrow_format.storage import ObjectExistsError, Storage
from arrow_format.widening import is_appendable

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.model import Int64Array, MapOutput

LOG_DIRECTORY = "commit_log"
_ENTRY_NAME = re.compile(r"(\d{20})\.json")
_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One committed version of a shuffle, pinned: later commits do not change it."""

    entries: tuple[LogEntry, ...]
    """From the entry that started this version to the one that completed it."""

    @property
    def newest(self) -> LogEntry:
        """The entry of this version."""
        return self.entries[-1]

    @property
    def version(self) -> int:
        """Number of this version, from 1."""
        return self.newest.version

    @property
    def map_outputs(self) -> tuple[MapOutput, ...]:
        """All map outputs in reading order: by version, then map task."""
        return tuple(output for entry in self.entries for output in entry.map_outputs)

    @property
    def num_rows(self) -> int:
        """Rows of this version."""
        return sum(entry.num_rows for entry in self.entries)

    @property
    def num_bytes(self) -> int:
        """Bytes of its data files."""
        return sum(entry.num_bytes for entry in self.entries)


class CommitLog:
    """Reads and extends the log of one shuffle."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def _path(self, version: int) -> str:
        return f"{LOG_DIRECTORY}/{version:020d}.json"

    def newest_version(self) -> int:
        """Return the number of the newest version; 0 when nothing was ever committed.

        Raises
        ------
        CorruptShuffleError
            Entries are missing between the first and the newest.
        """
        matches = map(_ENTRY_NAME.fullmatch, self._storage.list(LOG_DIRECTORY))
        versions = {int(match[1]) for match in matches if match}
        newest = max(versions, default=0)
        for missing in range(1, newest):
            # A listing is no snapshot: it may show an entry and not the one put just before.
            if missing not in versions and self._storage.stat(self._path(missing)) is None:
                msg = (
                    f"{self._storage.root}: commit log has version {newest} but not {missing}; "
                    "an entry was deleted. Restore it from a backup"
                )
                raise CorruptShuffleError(msg)
        return newest

    def entry(self, version: int) -> LogEntry:
        """Read one entry, verified.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            It is damaged, missing, or from a newer format version.
        """
        path = self._path(version)
        stat = self._storage.stat(path)
        (data,) = self._storage.get_ranges(path, [(0, stat.num_bytes if stat else 0)])
        try:
            entry = decode_entry(data.to_pybytes())
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{self._storage.root}/{path}: {error}"
            raise type(error)(msg) from error
        if entry.version != version:
            msg = f"{self._storage.root}/{path}: is the entry of version {entry.version}"
            raise CorruptShuffleError(msg)
        return entry

    def snapshot(self, version: int | None = None) -> Snapshot | None:
        """Return the given or the newest version; None when nothing was ever committed.

        Raises
        ------
        ShuffleNotFoundError
            There is no such version.
        """
        newest = self.newest_version()
        if version is not None and not 1 <= version <= newest:
            there = f"versions 1 to {newest}" if newest else "none"
            msg = f"{self._storage.root}: version {version} is not there; there are {there}"
            raise ShuffleNotFoundError(msg)
        if newest == 0:
            return None
        entries: list[LogEntry] = []
        for number in range(version or newest, 0, -1):
            entries.append(self.entry(number))
            self._check_appended(entries[0], entries[-1])
            if entries[-1].is_whole:
                return Snapshot(tuple(reversed(entries)))
        msg = f"{self._storage.root}: commit log does not begin with a whole version"
        raise CorruptShuffleError(msg)

    def _check_appended(self, newest: LogEntry, entry: LogEntry) -> None:
        """Check that an entry may be read together with the newest of its version."""
        ours = (newest.shuffle_id, newest.num_subpartitions, newest.sort_by)
        theirs = (entry.shuffle_id, entry.num_subpartitions, entry.sort_by)
        if ours != theirs or not is_appendable(newest.data_schema, entry.data_schema):
            msg = (
                f"{self._storage.root}/{self._path(newest.version)}: does not go on from version "
                f"{entry.version}: another shuffle, number of subpartitions, schema or sort order. "
                "Restore the entries from a copy"
            )
            raise CorruptShuffleError(msg)

    def totals(self, snapshot: Snapshot) -> tuple[Int64Array, Int64Array]:
        """Rows and bytes per subpartition of a version (two int64 arrays)."""
        n = snapshot.newest.num_subpartitions
        rows, sizes = np.zeros(n, np.int64), np.zeros(n, np.int64)
        for entry in snapshot.entries:
            where = entry.totals
            (data,) = self._storage.get_ranges(where.path, [(0, where.length)])
            try:
                added_rows, added_sizes = decode_totals(data, entry)
            except CorruptShuffleError as error:
                msg = f"{self._storage.root}/{where.path}: {error}"
                raise CorruptShuffleError(msg) from error
            rows += added_rows
            sizes += added_sizes
        return rows, sizes

    def find_job(self, job_id: str, *, after: int = 0) -> LogEntry | None:
        """Return the entry after version ``after`` that committed ``job_id``; None: none did."""
        for version in range(self.newest_version(), after, -1):
            entry = self.entry(version)
            if entry.job_id == job_id:
                return entry
        return None

    def append(
        self, decide: Callable[[Snapshot | None], LogEntry | None], *, sync: bool
    ) -> LogEntry | None:
        """Commit what ``decide`` makes of the newest version, again and again until it wins.

        Parameters
        ----------
        decide
            Given the newest version (None: nothing yet) it returns the entry to add, whose version
            number is set here; returns None to commit nothing; or raises, which ends the commit.
            It is called again with the new state when another writer was faster.
        sync
            Whether the entry is durable on return.

        Returns
        -------
        LogEntry or None
            The entry as committed.

        Raises
        ------
        CommitConflictError
            Other writers were faster 50 times in a row.
        """
        for attempt in range(_ATTEMPTS):
            snapshot = self.snapshot()
            entry = decide(snapshot)
            if entry is None:
                return None
            entry = replace(entry, version=snapshot.version + 1 if snapshot else 1)
            try:
                self._storage.put_if_absent(
                    self._path(entry.version), encode_entry(entry), sync=sync
                )
            except ObjectExistsError:
                # A put that was retried below us may have won without our knowing.
                if self.entry(entry.version).commit_id == entry.commit_id:
                    return entry
                time.sleep(random.uniform(0, min(0.01 * 2**attempt, 1.0)))
            else:
                return entry
        msg = (
            f"{self._storage.root}: other writers committed {_ATTEMPTS} versions while this one "
            "tried; run it again when fewer write at once"
        )
        raise CommitConflictError(msg)
