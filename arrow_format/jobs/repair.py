"""Repair of a log whose newest entry is damaged or lost, or that has a gap: the last resort.

What cannot be read back to the beginning is moved aside, the newest number first, until the log
ends with an entry that is whole. A repair that dies in between leaves a log that the next one
repairs. No map output is touched: garbage collection removes those that no version names, by age.
"""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from arrow_format.errors import CorruptShuffleError, ShuffleError, ShuffleNotFoundError
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import check_sections
from arrow_format.log.framing import head_of
from arrow_format.log.names import (
    DAMAGED_DIRECTORY,
    LOG_DIRECTORY,
    entries_in,
    entry_path,
    range_path,
    ranges_in,
    segment_path,
    segments_in,
)
from arrow_format.log.reader import LogReader, LogView
from arrow_format.read.presentation import count_of
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report, first_of
from arrow_format.storage.open import Place, Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from arrow_format.log.entry import LogEntry


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A number of the log that a repair gives up, with what is known of it."""

    number: int
    problem: str | None
    """What is wrong with it; None where it is whole, and follows one that is not."""
    operation: str | None = None
    """None where its head cannot be read."""
    job_id: str | None = None
    num_rows: int | None = None
    """Rows that it adds."""

    def __str__(self) -> str:
        known = "nothing is known of it"
        if self.operation is not None:
            job = f" of job {self.job_id}" if self.job_id else ""
            known = f"{self.operation}{job}, {count_of(self.num_rows or 0, 'row')}"
        return f"{self.number}: {known}; {self.problem or 'whole, but it follows what is not'}"


MAX_NUMBERS = 50
"""Numbers that the text of a report lists."""


@dataclass(frozen=True, slots=True)
class RepairReport(Report):
    """What a repair of the log gives up, or gave up.

    .. code-block:: python

        report = arrow_shuffle.repair_shuffle("/data/orders")
        print(report.is_sound, report.given_up)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    dry_run
        Whether nothing was changed.
    newest_number
        The number with which the log ends after the repair.
    newest_version
        The newest version that is left; 0 for none.
    given_up
        Numbers after that, the newest first; empty of a sound log.
    checkpoints
        Paths of checkpoints that are damaged, and are made again from entries.
    moved
        Paths of files that were moved aside, or would be, in that order.
    consumers
        Consumers that have consumed versions that are given up: they would skip the next versions,
        which get the same numbers.
    """

    path: str
    dry_run: bool
    newest_number: int
    newest_version: int
    given_up: tuple[GivenUp, ...] = ()
    checkpoints: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether there was nothing to repair."""
        return not self.given_up and not self.checkpoints and not self.moved

    def _lines(self) -> Iterator[str]:
        if self.is_sound:
            yield f"{self.path}: the log is sound up to number {self.newest_number}"
            return
        would = "would be " if self.dry_run else ""
        yield (
            f"{self.path}: {count_of(len(self.given_up), 'number')} {would}given up, "
            f"{count_of(len(self.checkpoints), 'checkpoint')} {would}made again; version "
            f"{self.newest_version} is the newest that is left"
        )
        yield from first_of((f"  {number}" for number in self.given_up), MAX_NUMBERS)
        for file in self.checkpoints:
            yield f"  made again: {file}"
        if self.consumers:
            yield (
                f"  consumers that would skip the next versions: {', '.join(self.consumers)}; "
                "forget them ('arrow-shuffle consumers --forget') before the next write"
            )
        if self.moved:
            how = ". Stop all writers, and give --yes to do it" if self.dry_run else ""
            yield f"  {count_of(len(self.moved), 'file')} {would}moved to commit_log/damaged{how}"


def repair_shuffle(
    path: Place, dry_run: bool = True, *, storage_options: Mapping[str, str] | None = None
) -> RepairReport:
    """Give up the end of a log that cannot be read, so that the rest can be used again.

    .. code-block:: python

        print(arrow_shuffle.repair_shuffle("/data/orders"))

    No writer, stream or collection may run meanwhile. Restore damaged files from a backup instead,
    where there is one: a repair gives up committed rows. The files it moves aside stay in
    ``commit_log/damaged``.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    dry_run
        Change nothing, and report what would be given up.
    storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.

    Returns
    -------
    RepairReport
        What was given up; nothing of a log whose newest version can be read.

    Raises
    ------
    ShuffleNotFoundError
        There is no log at the path.
    CorruptShuffleError
        No entry can be read back to the beginning of the log; nothing was changed.
    FormatVersionError
        A newer release wrote a part of the log, which it can read; nothing was changed.
    StorageError
        A file could not be read or moved. The next repair goes on.
    """
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = _Salvage(storage)
    numbers = [*log.entries, *log.ranges]
    if not numbers:
        msg = f"{storage.root}: holds no log of commits; check the path"
        raise ShuffleNotFoundError(msg)
    newest = log.last_whole()
    end = newest.version
    CommitLog(storage).check_writers(LogView(newest))
    given_up = tuple(map(log.given_up, range(max(numbers), end, -1)))
    lost = log.damaged_checkpoints(newest)
    # Checkpoints first: without them no later one can be taken for one of the numbers that follow.
    aside = [
        *(range_path(n) for n in reversed(log.ranges) if n > end or n in lost),
        *(entry_path(n) for n in reversed(log.entries) if n > end),
    ]
    if not dry_run:
        for file in aside:
            _move_aside(storage, file)
        for number in lost:
            # Where entries before it are damaged too, versions up to it cannot be opened; later
            # ones do not need it.
            with contextlib.suppress(CorruptShuffleError):
                _put_again(CommitLog(storage), newest, number)
    return RepairReport(
        storage.root,
        dry_run,
        end,
        newest.state.version,
        given_up,
        tuple(f"{storage.root}/{range_path(number)}" for number in lost),
        tuple(f"{storage.root}/{file}" for file in aside),
        _ahead(storage, end) if given_up else (),
    )


class _Salvage(LogReader):
    """Reads a log without the checkpoints that cannot be read, from the entries they replace."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._unreadable: set[int] = set()
        """Numbers of checkpoints."""
        segments = segments_in(storage.list(LOG_DIRECTORY))
        names = [name for segment in segments for name in storage.list(segment_path(segment))]
        self.entries = entries_in(names)
        self.ranges = ranges_in(names)

    def _checkpoint_at(self, number: int, checkpoint: int, base: int) -> LogEntry | None:
        if number == base:
            return super()._checkpoint_at(number, checkpoint, base)
        try:
            if number not in self._unreadable:
                piece = super()._checkpoint_at(number, checkpoint, base)
                if piece is not None:
                    check_sections(piece)
                return piece
        except CorruptShuffleError:
            self._unreadable.add(number)
        return None

    def last_whole(self) -> LogEntry:
        """Return the newest entry that is whole and can be read back to the beginning."""
        for number in reversed(self.entries):
            with contextlib.suppress(CorruptShuffleError):
                entry = self.record(number)
                shown = max((known for known in self.ranges if known < number), default=0)
                if self._can_be_newest(LogView(entry, max(shown, entry.state.checkpoint))):
                    return entry
        msg = (
            f"{self.root}: no entry of the log can be read back to the beginning; nothing was "
            f"changed. Restore {LOG_DIRECTORY} from a backup"
        )
        raise CorruptShuffleError(msg)

    def _can_be_newest(self, view: LogView) -> bool:
        """Read what readers and writers of the newest version need; raises CorruptShuffleError."""
        self._lowest = None
        check_sections(self.record(view.newest))
        for piece in self.pieces(view, view.newest):
            check_sections(piece)
        snapshot = self.read_at(view, self.snapshot_of)
        if snapshot is not None:
            len(snapshot.map_outputs)
        self.records(view.state.pending.numbers)
        return self._is_current()  # else what it is built on was removed by garbage collection

    def given_up(self, number: int) -> GivenUp:
        """Describe a number that is given up, as far as it can be read."""
        problem = None
        try:
            check_sections(self.record(number))
        except CorruptShuffleError as error:
            problem = str(error)
        head: Mapping[str, Any] = {}
        with contextlib.suppress(CorruptShuffleError):
            head = head_of(self._storage.read(entry_path(number)))
        rows = head.get("num_rows")
        num_rows = rows if isinstance(rows, int) else None
        return GivenUp(number, problem, head.get("operation"), head.get("job_id"), num_rows)

    def damaged_checkpoints(self, newest: LogEntry) -> list[int]:
        """Return the checkpoints that are damaged, of those that an entry may be built on."""
        for number in self.ranges:
            if newest.state.base < number <= newest.version:
                self._checkpoint_at(number, number, 0)
        return [n for n in sorted(self._unreadable) if newest.state.base < n <= newest.version]


def _put_again(log: CommitLog, newest: LogEntry, number: int) -> None:
    if number in {tag.version for tag in newest.state.tags.values()}:
        log.put_base(LogView(newest), number)
    else:
        log.put_checkpoint(newest, number)


def _move_aside(storage: Storage, path: str) -> None:
    """Copy the bytes of a file, whatever they are, and then remove it."""
    number, _, kind = path.rpartition("/")[2].partition(".")
    data = storage.read(path)
    aside = f"{DAMAGED_DIRECTORY}/{number}-{secrets.token_hex(8)}.{kind}"
    storage.put_if_absent(aside, data, sync=True)
    storage.delete(path)


def _ahead(storage: Storage, number: int) -> tuple[str, ...]:
    """Return the consumers that have consumed a version after a number."""
    try:
        progress = ConsumerRegistry(storage).all_progress()
    except ShuffleError:
        return ()
    return tuple(sorted(name for name, version in progress.items() if version > number))
