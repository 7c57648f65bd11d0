"""Garbage collection: gives up old versions and dead jobs in the log, then removes their files.

First the log says which versions and jobs are given up, then their files are removed, and last what
names those files. The next collection finishes one that was killed anywhere, and any number of them
may run concurrently with writers and readers. See ``docs/adr/0008-garbage-collection.md``.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import OptionError, ShuffleNotFoundError
from arrow_format.jobs.gc_files import GcReport, JobFiles, Removal, jobs_with_files, stored
from arrow_format.jobs.gc_plan import oldest_live
from arrow_format.jobs.map_outputs import check_files
from arrow_format.jobs.retention import DueRelease, find_consumed, first_to_keep, owners_are_gone
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import LogEntry
from arrow_format.log.names import (
    LOG_DIRECTORY,
    MAP_OUTPUT_DIRECTORY,
    LogIndex,
    entry_path,
    job_of_totals,
)
from arrow_format.log.pending import PendingOutputs, last_pending, pending_by_entries
from arrow_format.log.record import Fence, LogRecord, entry_of
from arrow_format.log.release import commit_ids
from arrow_format.storage.open import ObjectStat, Place, Storage, open_storage
from arrow_format.write.merger import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from arrow_format.log.snapshot import Snapshot

DEFAULT_RETENTION = timedelta(hours=24)

MOST_AHEAD_MS = 3_600_000
"""How far a writer's clock is believed to be ahead of the storage's at most."""

# Bounds of the collection that is part of a consumer's acknowledgement.
MOST_LOOKED_AT = 1_000
"""Numbers of the log, and files of the newest version, that it reads."""
MOST_JOBS = 100
"""Jobs of which it removes files."""
MOST_REMOVED = 10_000
"""Files that it removes."""


def collect_garbage(
    path: Place,
    *,
    retention: timedelta = DEFAULT_RETENTION,
    dry_run: bool = False,
    on_bytes: Callable[[int], None] = ignore,
    storage_options: Mapping[str, str] | None = None,
) -> GcReport:
    """Remove versions that were superseded long ago, and what unfinished jobs left.

    The newest version is kept whatever its age, and so is everything that a version within the
    retention names, and of a pipelined result every version that a known consumer has not consumed.
    What was released is removed whatever its age. Rows of a version that is kept are never touched.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    retention
        How long a version can still be opened and read after another superseded it; and for how
        long an unfinished job may have written nothing before it is given up. A job that is given
        up fails when it commits, if it still runs. Choose more than the longest read, and than the
        longest time in which no task of a running job writes anything.
    dry_run
        Change nothing, and report what would be done. Where a result would be released, the report
        says so, and what would expire and be removed without that.
    on_bytes
        Called with the bytes of each file that was removed, for progress.
    storage_options
        As for :func:`~arrow_format.open_shuffle`.

    Returns
    -------
    GcReport
        What was done.

    Raises
    ------
    OptionError
        The retention is not a timedelta, or negative.
    ShuffleNotFoundError
        The path holds neither a shuffle nor files of a job.
    CorruptShuffleError, FormatVersionError
        The log is damaged, so that nothing is known to be garbage. Or the newest version lacks a
        file: an older one may be all that is left. Nothing was removed.
    StorageError
        Something could not be removed. The next collection tries again.
    """
    if not isinstance(retention, timedelta) or retention < timedelta(0):
        msg = f"retention={retention!r}: expected a datetime.timedelta, not negative"
        raise OptionError(msg)
    storage = open_storage(path, storage_options)
    stat = storage.stat("")
    if stat is None or not stat.is_directory:
        msg = f"{storage.root}: is not there, or no directory; check the path"
        raise ShuffleNotFoundError(msg)
    if not {LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY} & set(storage.list("")):
        msg = f"{storage.root}: holds no shuffle; nothing was removed"
        raise ShuffleNotFoundError(msg)
    log = CommitLog(storage)
    collection = _Collection(storage, log, retention, time.time_ns() // 1_000_000, dry_run=dry_run)
    released = collection.release_results()
    fenced, running = collection.give_up_jobs()
    report = log.read(partial(collection.collect, fenced, running, on_bytes))
    return replace(report, released=released)


@dataclass(frozen=True)
class _Collection:
    """One garbage collection."""

    storage: Storage
    log: CommitLog
    retention: timedelta
    now_ms: int
    dry_run: bool

    @property
    def cutoff_ms(self) -> int:
        """Milliseconds since 1970: what happened by then is past retention."""
        return self.now_ms - self.retention // timedelta(milliseconds=1)

    def release_results(self) -> str | None:
        """Release an ephemeral result that was consumed, or whose applications ended; say which."""
        for find in (partial(find_consumed, self.storage), self._find_abandoned):
            due = find()
            if due is not None and (self.dry_run or due.carry_out(self.storage) is not None):
                return str(due)
        return None

    def _find_abandoned(self) -> DueRelease | None:
        """Find a result whose applications have all ended."""
        snapshot = self.log.snapshot()
        newest = None if snapshot is None or snapshot.ended else snapshot.newest
        waiting = last_pending(self.log)  # a result may have nothing else
        parts = [entry for entry in (newest, waiting) if entry is not None]
        if not all(part.result.owners for part in parts):
            return None  # a result without owners is kept, and a release takes both
        owners = dict.fromkeys(owner for part in parts for owner in part.result.owners)
        committed_ms = max(self._committed_ms(parts, {}), default=0)
        if not owners_are_gone(owners, committed_ms, self.cutoff_ms):
            return None
        by = f"the application that made it has ended: {', '.join(map(str, owners))}"
        return DueRelease(by, expected=commit_ids(newest, waiting))

    def give_up_jobs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Fence unfinished jobs that were silent for long; return those, and the other unfinished.

        Their age only chooses them. The log decides whether they are committed: the fence takes a
        number of it, as a commit does, and the later of the two sees the earlier.
        """
        unfinished = self.log.read(self._unfinished)
        silent = tuple(job_id for job_id, when in unfinished.items() if when <= self.cutoff_ms)
        fenced: tuple[str, ...] = ()

        def decide(_: Snapshot | None) -> Fence | None:
            nonlocal fenced
            ended = self.log.read(lambda index: self.log.all_ends(index, index.newest))
            fenced = tuple(job_id for job_id in silent if job_id not in ended)
            return Fence(0, uuid.uuid4().hex, self.now_ms, fenced) if fenced else None

        if self.dry_run:
            fenced = silent
        elif silent:
            self.log.append(decide, sync=True)
        return fenced, tuple(job_id for job_id in unfinished if job_id not in silent)

    def _unfinished(self, index: LogIndex) -> dict[str, int]:
        """Return jobs with files that did not end, and when they last wrote (ms since 1970)."""
        ended = self.log.all_ends(index, index.newest)
        totals: dict[str, list[str]] = {}
        for name in self.storage.list(LOG_DIRECTORY):
            job_id = job_of_totals(name)
            if job_id is not None and job_id not in ended:
                totals.setdefault(job_id, []).append(f"{LOG_DIRECTORY}/{name}")
        listed = self.storage.files(LOG_DIRECTORY) if totals else {}
        unfinished = sorted((jobs_with_files(self.storage) | totals.keys()) - ended.keys())

        def modified_ms(job_id: str) -> int:
            times = [
                JobFiles.of(self.storage, job_id, ()).modified_ms(),
                *(
                    file.modified_ms
                    for file in stored(self.storage, totals.get(job_id, ()), listed)
                ),
            ]
            return max((when for when in times if when is not None), default=self.now_ms)

        calls = [partial(modified_ms, job_id) for job_id in unfinished]
        times = run_concurrently(calls, self.storage.max_requests)
        return dict(zip(unfinished, times, strict=True))

    def collect(
        self,
        fenced: tuple[str, ...],
        running: tuple[str, ...],
        on_bytes: Callable[[int], None],
        index: LogIndex,
    ) -> GcReport:
        """Let versions expire, and remove what neither they nor unfinished jobs need."""
        records = self.log.records(_numbers(index))
        # Files that are put after these listings are for the next collection.
        in_log = self.storage.files(LOG_DIRECTORY)
        in_jobs = self.storage.files(MAP_OUTPUT_DIRECTORY, depth=2)
        versions = _versions(index, records)
        oldest = index.oldest
        if versions:
            times = self._committed_ms(versions, in_log)
            aged = [(entry.version, when) for entry, when in zip(versions, times, strict=True)]
            oldest = oldest_live(aged, self.cutoff_ms)
        pending = pending_by_entries(self.log, index)
        oldest = _first_needed(self.storage, index, versions, oldest, pending)
        ended = {*self.log.all_ends(index, index.newest), *fenced}
        _let_expire(self.storage, self.log, index, oldest, in_jobs, dry_run=self.dry_run)
        removal = Removal(
            self.storage,
            self.log,
            index,
            records,
            oldest,
            waiting=pending.entries,
            ended=ended,
            dry_run=self.dry_run,
        )
        groups = chain(
            removal.garbage_of_jobs(in_jobs),
            removal.temporaries(in_log, self.cutoff_ms),
            removal.garbage_of_log(in_log),
        )
        removed = removal.remove(groups, on_bytes)
        return GcReport(
            path=self.storage.root,
            dry_run=self.dry_run,
            retention=self.retention,
            oldest_version=max(oldest, versions[0].version) if versions else 0,
            newest_version=versions[-1].version if versions else 0,
            expired_versions=tuple(entry.version for entry in versions if entry.version < oldest),
            fenced_jobs=fenced,
            running_jobs=running,
            files=removed,
        )

    def _committed_ms(
        self, records: Iterable[LogRecord], in_log: Mapping[str, ObjectStat]
    ) -> Iterator[int]:
        """Yield when versions were committed, by the later clock: its writer's or the storage's.

        A writer's clock that is far ahead would keep everything before that version for as long.
        """
        for record in records:
            path = entry_path(record.version)
            stat = in_log.get(path) or self.storage.stat(path)  # a listing may lack it
            modified = stat.modified_ms if stat else None
            if modified is None:
                yield record.committed_at_ms
            else:
                yield max(modified, min(record.committed_at_ms, modified + MOST_AHEAD_MS))


def _numbers(index: LogIndex) -> list[int]:
    """Return the numbers of all records of a listing, ascending.

    Not only those that it shows: a listing is not a snapshot, and may show an entry without the one
    put just before. Files that no record names would be taken for garbage.
    """
    return sorted(index.entries.union(range(index.oldest, index.newest + 1)))


def _versions(index: LogIndex, records: Mapping[int, LogRecord]) -> list[LogEntry]:
    """Return the versions that can be opened, ascending."""
    entries = (records[number] for number in sorted(records) if number >= index.oldest)
    return [entry for entry in entries if isinstance(entry, LogEntry)]


def _first_needed(
    storage: Storage,
    index: LogIndex,
    versions: Sequence[LogEntry],
    oldest: int,
    pending: PendingOutputs,
) -> int:
    """Return the oldest version to keep: ``oldest`` by retention, or what is still needed."""
    if versions:
        slowest = None
        if not versions[-1].result.type.is_persistent:
            progress = ConsumerRegistry(storage).all_progress().values()
            slowest = min(progress, default=None)
        oldest = first_to_keep(versions, oldest, slowest)
    if pending.entries:  # they are kept, and the log that names them
        before = (entry.version for entry in versions if entry.version < pending.numbers[0])
        oldest = min(oldest, max(before, default=index.oldest))
    return oldest


def _let_expire(
    storage: Storage,
    log: CommitLog,
    index: LogIndex,
    oldest: int,
    in_jobs: Mapping[str, ObjectStat] | None,
    *,
    dry_run: bool,
) -> None:
    """Put the marker of the oldest version to keep; CorruptShuffleError if the newest lacks files.

    ``in_jobs`` is a listing of the files of jobs, if the caller has one.
    """
    if oldest > index.oldest:
        newest = log.content_at(index, index.newest)
        entries = newest.entries if newest else ()
        check_files(
            storage,
            [(output, entry.roots) for entry in entries for output in entry.map_outputs],
            "the newest version needs it, so versions before may be all that is left, and "
            "nothing was removed. Restore the file from a copy, or overwrite the shuffle, and "
            "collect again",
            in_jobs,
        )
    log.confirm()  # from here on things change
    # Also to finish another collection, whose checkpoint may have been removed since.
    if not dry_run and any(number < oldest for number in index.entries):
        log.put_oldest(oldest, sync=True)


def remove_released(storage: Storage) -> None:
    """Remove what consumers have released and nothing else needs: a bounded part of a collection.

    It gives up no job, lets nothing expire by age, and reads only jobs whose map outputs were
    released. What exceeds the bounds is for :func:`collect_garbage`, like what a killed collection
    leaves. Raises ShuffleError where the log cannot be read, the newest version lacks a file, or
    something cannot be removed.
    """
    log = CommitLog(storage)
    log.read(partial(_remove_released, storage, log))


def _remove_released(storage: Storage, log: CommitLog, index: LogIndex) -> None:
    numbers = _numbers(index)
    if len(numbers) > MOST_LOOKED_AT:
        return
    records = log.records(numbers)
    newest = log.content_at(index, index.newest)
    if newest is None or sum(len(out.files) for out in newest.map_outputs) > MOST_LOOKED_AT:
        return
    versions = _versions(index, records)
    pending = pending_by_entries(log, index)
    oldest = _first_needed(storage, index, versions, index.oldest, pending)
    if all(number >= oldest for number in index.entries):
        return
    jobs = _committed_before(log, index, records, oldest)
    with_files = sorted(jobs & jobs_with_files(storage))
    chosen = with_files[:MOST_JOBS]
    calls = [partial(storage.files, f"{MAP_OUTPUT_DIRECTORY}/{job_id}") for job_id in chosen]
    listings = run_concurrently(calls, storage.max_requests)
    in_jobs = dict(chain.from_iterable(files.items() for files in listings))
    _let_expire(storage, log, index, oldest, None, dry_run=False)
    removal = Removal(
        storage,
        log,
        index,
        records,
        oldest,
        waiting=pending.entries,
        ended=jobs if chosen == with_files else set(chosen),
        dry_run=False,
    )
    groups = removal.garbage_of_jobs(in_jobs)
    if chosen == with_files:  # else the log must still name the others
        groups = chain(groups, removal.garbage_of_log(storage.files(LOG_DIRECTORY)))
    removal.remove(groups, ignore, most=MOST_REMOVED)


def _committed_before(
    log: CommitLog, index: LogIndex, records: Mapping[int, LogRecord], oldest: int
) -> set[str]:
    """Return the jobs that committed versions before ``oldest``."""
    first = log.content_at(index, index.oldest)
    entries = list(first.entries) if first is not None and oldest > index.oldest else []
    entries += filter(None, (entry_of(record) for n, record in records.items() if n < oldest))
    jobs = {output.job_id for entry in entries for output in entry.map_outputs}
    jobs.update(entry.job_id for entry in entries)
    # Entries below the marker may be of a late writer, whose job has not ended.
    ended = log.all_ends(index, index.newest)
    return {job_id for job_id in jobs if job_id in ended and not ended[job_id].fenced}
