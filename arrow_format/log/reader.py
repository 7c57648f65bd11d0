"""Reads the commit log of a shuffle: its versions, and how jobs ended.

Entries and fences are files ``commit_log/<number>.json``, numbered from 1 without gaps. A version
is the newest whole entry (``overwrite`` or ``replace``) at or before it, and every ``append`` after
that; a checkpoint in between replaces all entries before it. Garbage collection may remove entries
while they are read, and a late writer may put another at a number that is free again: a reader that
misses an entry, or used one whose number is below the marker by then, lists the log again.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from arrow_format.arrays.schema_evolution import is_appendable
from arrow_format.concurrency import ReadAhead, run_concurrently
from arrow_format.errors import (
    CorruptShuffleError,
    FormatVersionError,
    ShuffleError,
    ShuffleNotFoundError,
)
from arrow_format.log.checkpoint import HEADER_BYTES, Checkpoint, body_bytes, decode_checkpoint
from arrow_format.log.entry import LogEntry
from arrow_format.log.names import LOG_DIRECTORY, LogIndex, checkpoint_path, entry_path
from arrow_format.log.record import Fence, JobEnd, LogRecord, Pending, decode_record, ends_of
from arrow_format.log.snapshot import Snapshot
from arrow_format.log.totals_file import decode_totals
from arrow_format.storage.open import ObjectNotFoundError, Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrow_format.model import Int64Array


_MAX_LISTINGS = 10
"""How often one read lists the log because entries vanished from it meanwhile."""

T = TypeVar("T")


class LogReader:
    """Reads the log of one shuffle, and keeps every record that it has read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._records: dict[int, LogRecord] = {}
        self._unconfirmed: set[int] = set()
        """Numbers of records that were read and are still to be confirmed."""
        self._expected: dict[int, str] = {}
        """Commit ids by which records are known to be right, by their numbers."""
        self._read_index: LogIndex | None = None
        """The listing of the present read; None between reads."""
        self._checkpoint: Checkpoint | None = None

    @property
    def root(self) -> str:
        """Path or URI of the shuffle."""
        return self._storage.root

    @property
    def max_requests(self) -> int:
        """How many entries are read concurrently; 1 where a read needs no waiting."""
        return self._storage.max_requests

    def index(self) -> LogIndex:
        """List the log; CorruptShuffleError where entries are missing between oldest and newest."""
        missing: list[int] = []
        for _ in range(_MAX_LISTINGS):
            index = LogIndex.of(self._storage.list(LOG_DIRECTORY))
            # A listing is not a snapshot: it may show an entry and not the one put just before.
            paths = {number: entry_path(number) for number in index.missing()}
            gone = [number for number, path in paths.items() if self._storage.stat(path) is None]
            if not gone:
                return index
            # Nor does it always show the marker that was put before entries were removed.
            if gone == missing:
                break
            missing = gone
        msg = (
            f"{self._storage.root}: commit log has version {index.newest} but not {missing[0]}; "
            "an entry was deleted. Restore it from a backup"
        )
        raise CorruptShuffleError(msg)

    def newest_version(self) -> int:
        """Return the number of the newest entry or fence; 0 when nothing was ever committed."""
        return self.index().newest

    def has_expired(self, version: int) -> bool:
        """Whether garbage collection gave a version up."""
        # Not by a bare listing: it may have passed the name of a marker that was put meanwhile.
        return version < self.index().oldest

    def read(self, of: Callable[[LogIndex], T]) -> T:
        """Return what ``of`` makes of a listing; call it again when the log changes meanwhile.

        The records that ``of`` read are confirmed before its result, or its error, is believed. A
        function that changes anything calls :meth:`confirm` first. A read within a read is part of
        it, and has the same listing.
        """
        if self._read_index is not None:
            return of(self._read_index)
        index = self.index()
        for _ in range(_MAX_LISTINGS):
            try:
                return self._read_by(index, of)
            except ObjectNotFoundError:
                before, index = index, self.index()
                if index == before:
                    raise
        return self._read_by(index, of)

    def _read_by(self, index: LogIndex, of: Callable[[LogIndex], T]) -> T:
        self._forget(self._unconfirmed)  # read before, outside of any listing
        self._read_index = index
        try:
            result = of(index)
            self.confirm()
        except ObjectNotFoundError:
            raise
        except ShuffleError:
            self.confirm()  # the error may come of a record that its writer takes back
            raise
        else:
            return result
        finally:
            self._read_index = None

    def confirm(self) -> None:
        """Check that the records of this read are those that their numbers stay.

        A writer that listed the log long ago may put an entry at a number whose version has expired
        and whose entry was removed. It takes that back, but a reader with an old listing may have
        read it before. The checkpoint and the marker were put before the number became free, so a
        listing shows them now; the old listing lacks one of them.

        Raises ObjectNotFoundError where a number is below a marker that is new, or that came with a
        new checkpoint. Such records are forgotten; :meth:`read` reads again with another listing.
        """
        before = self._read_index
        if before is None or not self._unconfirmed:
            return
        now = self.index()
        gone = {number for number in self._unconfirmed if number < now.oldest}
        if gone and (now.oldest, now.checkpoints) != (before.oldest, before.checkpoints):
            self._forget(gone)
            msg = (
                f"{self._storage.root}/{entry_path(min(gone))}: was read while its version "
                "expired, and its writer may take it back; the log changes faster than it is "
                "read. Read again"
            )
            raise ObjectNotFoundError(msg)
        self._unconfirmed.clear()

    def _forget(self, numbers: set[int]) -> None:
        for number in numbers:
            self._records.pop(number, None)
        self._unconfirmed = self._unconfirmed - numbers

    def record(self, number: int) -> LogRecord:
        """Read one entry or fence, verified.

        Raises CorruptShuffleError or FormatVersionError where it is damaged, missing, or from a
        newer format version.
        """
        cached = self._records.get(number)
        if cached is not None:
            return cached
        path = entry_path(number)
        data = self._storage.read(path)
        try:
            record = decode_record(data)
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{self._storage.root}/{path}: {error}"
            raise type(error)(msg) from error
        if record.version != number:
            msg = f"{self._storage.root}/{path}: is the entry of version {record.version}"
            raise CorruptShuffleError(msg)
        if self._expected.get(number) != record.commit_id:
            self._unconfirmed.add(number)
        self._records[number] = record
        return record

    def expect(self, number: int, commit_id: str) -> None:
        """Set the commit id of a number: a record that has it needs no confirmation."""
        self._expected[number] = commit_id

    def records(self, numbers: Sequence[int]) -> dict[int, LogRecord]:
        """Read entries and fences, concurrently where each waits for a store.

        Raises as :meth:`record`; of several that are damaged, for the first of ``numbers``.
        """
        reads = [partial(self.record, number) for number in numbers]
        return dict(zip(numbers, run_concurrently(reads, self._storage.max_requests), strict=True))

    def walk_down(
        self, index: LogIndex, number: int, *, floor: int = 0, width: int = 1
    ) -> Iterator[LogRecord | Checkpoint]:
        """Yield the records from ``number`` down to above ``floor``, or to the first checkpoint.

        The checkpoint comes last, and in the place of the record of its number. ``width`` records
        are read ahead first; see :class:`~arrow_format.concurrency.ReadAhead`.
        """
        stops, requests = index.checkpoints, self._storage.max_requests
        ahead = ReadAhead(self.record, requests, stops, floor=floor, width=width)
        for at in range(number, floor, -1):
            if at in stops:
                yield self.checkpoint(at)
                return
            ahead.come_to(at)
            yield self.record(at)

    def entry(self, version: int, commit_id: str | None = None) -> LogEntry:
        """Read the entry of one version, verified.

        An entry with the expected ``commit_id`` is believed without reading the rest of the log;
        any other is returned as if none was expected. Raises ShuffleNotFoundError where the version
        has expired, or is a fence, or pending; else as :meth:`record`.
        """
        if commit_id is not None:
            with contextlib.suppress(ObjectNotFoundError):
                record = self.record(version)
                if isinstance(record, LogEntry) and record.commit_id == commit_id:
                    return record
        return self.read(lambda index: self.entry_at(index, version))

    def entry_at(self, index: LogIndex, version: int) -> LogEntry:
        """Read the entry of one version of a listing; see :meth:`entry`."""
        self._check_not_expired(index, version)
        record = self.record(version)
        if isinstance(record, LogEntry):
            return record
        why = (
            "garbage collection took that number for giving up unfinished jobs"
            if isinstance(record, Fence)
            else "that number has rows that wait to be flushed"
        )
        msg = (
            f"{self._storage.root}: version {version} is not there; {why}. Open the version "
            "before, or after"
        )
        raise ShuffleNotFoundError(msg)

    def committed(self, number: int) -> LogEntry:
        """Read the entry of one commit, of a version or pending; raises as :meth:`entry`."""
        try:
            return self.entry(number)
        except ShuffleNotFoundError:
            record = self._records.get(number)
            if isinstance(record, Pending):
                return record.entry
            raise

    def _check_not_expired(self, index: LogIndex, version: int) -> None:
        if version < index.oldest:
            msg = (
                f"{self._storage.root}: version {version} has expired and was removed by garbage "
                f"collection; there are versions {index.oldest} to {index.newest}"
            )
            raise ShuffleNotFoundError(msg)

    def checkpoint(self, number: int) -> Checkpoint:
        """Read a checkpoint, verified; raises as :meth:`record`."""
        if self._checkpoint is not None and self._checkpoint.number == number:
            return self._checkpoint
        path = checkpoint_path(number)
        stat = self._storage.stat(path)
        num_bytes = stat.num_bytes if stat else HEADER_BYTES
        reader = self._storage.open_reader(path)
        try:
            (header,) = reader.get_ranges([(0, HEADER_BYTES)])
            length = body_bytes(header.to_pybytes())
            (body,) = reader.get_ranges([(HEADER_BYTES, length)])
            checkpoint = decode_checkpoint(header.to_pybytes(), body.to_pybytes(), num_bytes)
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{self._storage.root}/{path}: {error}"
            if isinstance(error, CorruptShuffleError):
                msg = f"{msg}. {self._advice(number)}"
            raise type(error)(msg) from error
        finally:
            reader.close()
        if checkpoint.number != number:
            msg = f"{self._storage.root}/{path}: is the checkpoint of version {checkpoint.number}"
            raise CorruptShuffleError(msg)
        self._checkpoint = checkpoint
        return checkpoint

    def _advice(self, number: int) -> str:
        """Return the remedy of a damaged checkpoint."""
        index = LogIndex.of(self._storage.list(LOG_DIRECTORY))
        if not index.entries.issuperset(range(1, number + 1)):
            return "Entries that it replaces were removed: restore it from a backup"
        if number < index.oldest:  # totals go before entries
            return "Garbage collection began to remove what it replaces: restore it from a backup"
        return "All entries that it replaces exist: delete it, and they are read instead"

    def snapshot(self, version: int | None = None) -> Snapshot | None:
        """Return the given or the newest version; None when nothing was ever committed.

        Raises ShuffleNotFoundError where the version does not exist, or has expired.
        """
        return self.read(lambda index: self.snapshot_of(index, version))

    def snapshot_of(self, index: LogIndex, version: int | None = None) -> Snapshot | None:
        """Return the given or the newest version of a listing; see :meth:`snapshot`."""
        if version is None:
            return self.content_at(index, index.newest)
        if not 1 <= version <= index.newest:
            newest = self.content_at(index, index.newest)  # the last numbers may be fences
            versions = f"versions {index.oldest} to {newest.version}" if newest else "none"
            msg = f"{self._storage.root}: version {version} is not there; there are {versions}"
            raise ShuffleNotFoundError(msg)
        self.entry_at(index, version)  # not a fence
        return self.content_at(index, version)

    def content_at(self, index: LogIndex, number: int) -> Snapshot | None:
        """Return the newest version at or before a number of the log; None where there is none."""
        entries: list[LogEntry] = []
        ahead = ReadAhead(self.record, self._storage.max_requests, index.checkpoints)
        while number > 0:
            # The newest entry itself is always read: a checkpoint says less about the commit.
            if entries and number in index.checkpoints:
                whole = self.checkpoint(number).entry
                if whole is None:
                    break
                self._check_appended(entries[0], whole)
                return Snapshot((whole, *reversed(entries)))
            ahead.come_to(number)
            record = self.record(number)
            if isinstance(record, LogEntry):
                entries.append(record)
                self._check_appended(entries[0], record)
                if record.is_whole:
                    return Snapshot(tuple(reversed(entries)))
            number -= 1
        if not entries:
            return None
        msg = f"{self._storage.root}: commit log does not begin with a whole version"
        raise CorruptShuffleError(msg)

    def _check_appended(self, newest: LogEntry, entry: LogEntry) -> None:
        """Check that an entry may be read together with the newest of its version."""
        ours = (newest.shuffle_id, newest.num_subpartitions, newest.sort_by)
        theirs = (entry.shuffle_id, entry.num_subpartitions, entry.sort_by)
        if ours != theirs or not is_appendable(newest.data_schema, entry.data_schema):
            msg = (
                f"{self._storage.root}/{entry_path(newest.version)}: does not continue version "
                f"{entry.version}: another shuffle, number of subpartitions, schema or sort order. "
                "Restore the entries from a copy"
            )
            raise CorruptShuffleError(msg)

    def totals(self, snapshot: Snapshot) -> tuple[Int64Array, Int64Array]:
        """Rows and bytes per subpartition of a version, or of some entries (two int64 arrays).

        Where the files of a whole version were removed, they are read from the checkpoint that
        replaced its entries. Those of a part are nowhere else: ObjectNotFoundError, or
        ShuffleNotFoundError for a span of versions of which some have expired.
        """
        try:
            return self._totals(snapshot)
        except ObjectNotFoundError as error:
            if snapshot.span is not None:
                self._check_not_expired(self.index(), snapshot.oldest_needed)
            if not snapshot.is_version:
                raise
            # They may have gone with entries of expired versions that a checkpoint replaces now.
            fresh = self.snapshot(snapshot.version)
            if (
                fresh is None
                or fresh.entries == snapshot.entries
                or fresh.newest.commit_id != snapshot.newest.commit_id
            ):
                msg = (
                    f"{error}; it has rows and bytes per subpartition of version "
                    f"{snapshot.version}. Restore it from a copy, or overwrite the shuffle"
                )
                raise ObjectNotFoundError(msg) from error
            return self._totals(fresh)

    def _totals(self, snapshot: Snapshot) -> tuple[Int64Array, Int64Array]:
        n = snapshot.newest.num_subpartitions
        rows, sizes = np.zeros(n, np.int64), np.zeros(n, np.int64)
        width = self._storage.max_requests  # and no more in memory
        entries = [entry for entry in snapshot.entries if entry.map_outputs]
        for start in range(0, len(entries), width):
            reads = [partial(self.totals_of, entry) for entry in entries[start : start + width]]
            for added_rows, added_sizes in run_concurrently(reads, width):
                rows += added_rows
                sizes += added_sizes
        return rows, sizes

    def totals_of(self, entry: LogEntry) -> tuple[Int64Array, Int64Array]:
        """Rows and bytes per subpartition of one entry, from the file that it names."""
        where = entry.totals
        if where.offset:  # in a checkpoint, whose own length was checked
            (data,) = self._storage.get_ranges(where.path, [(where.offset, where.length)])
        else:
            data = pa.py_buffer(self._storage.read(where.path, num_bytes=where.length))
        try:
            return decode_totals(data, entry)
        except CorruptShuffleError as error:
            msg = f"{self._storage.root}/{where.path}: {error}"
            raise CorruptShuffleError(msg) from error

    def find_job(self, job_id: str, *, after: int = 0) -> JobEnd | None:
        """Return how a job ended in the log after number ``after``; None if it has not."""
        return self.read(lambda index: self.end_of(index, job_id, after=after))

    def end_of(self, index: LogIndex, job_id: str, *, after: int) -> JobEnd | None:
        """Return how a job ended according to a listing; see :meth:`find_job`."""
        for record in self.walk_down(index, index.newest, floor=after):
            if isinstance(record, Checkpoint):
                end = record.jobs.get(job_id)
                return end if end is not None and end.version > after else None
            end = ends_of(record).get(job_id)
            if end is not None:
                return end
        return None

    def all_ends(self, index: LogIndex, number: int) -> dict[str, JobEnd]:
        """Return how every job ended that ended up to a number of the log."""
        ends: dict[str, JobEnd] = {}
        for record in reversed(list(self.walk_down(index, number, width=max(number, 1)))):
            ends |= record.jobs if isinstance(record, Checkpoint) else ends_of(record)
        return ends


def has_expired(storage: Storage, version: int) -> bool:
    """Whether garbage collection gave a version up; False where the log cannot be read."""
    with contextlib.suppress(ShuffleError):
        return LogReader(storage).has_expired(version)
    return False


def expired_error(storage: Storage, version: int) -> ShuffleNotFoundError:
    """Return the error of a version that expired while it was read."""
    return ShuffleNotFoundError(
        f"{storage.root}: version {version} has expired and was removed by garbage collection "
        "while it was read; nothing is damaged. Open the newest version, and collect with a "
        "retention longer than reading takes"
    )


@contextlib.contextmanager
def translate_expired(storage: Storage, version: int) -> Iterator[None]:
    """Replace a CorruptShuffleError by :func:`expired_error` where the version has expired."""
    try:
        yield
    except CorruptShuffleError as error:
        if has_expired(storage, version):
            raise expired_error(storage, version) from error
        raise
