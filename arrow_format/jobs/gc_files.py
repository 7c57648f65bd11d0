"""Files that garbage collection may remove, their removal, and the report of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.jobs.decision import DECISION_NAME
from arrow_format.jobs.gc_plan import LogGarbage, live_files, log_garbage, roots_of_jobs
from arrow_format.jobs.receipt import format_bytes
from arrow_format.log.entry import LogEntry
from arrow_format.log.names import CONSUMER_DIRECTORY, JOB_ID, MAP_OUTPUT_DIRECTORY, TEMPORARY
from arrow_format.storage.local_dir_removal import holds_garbage, is_root_or_rest
from arrow_format.storage.local_dirs import (
    MARKER_NAME,
    ROOT_LIST_NAME,
    put_root_list,
    read_root_list,
    root_name,
)
from arrow_format.storage.open import Storage, open_made_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
    from datetime import timedelta

    from arrow_format.log.commit_log import CommitLog
    from arrow_format.log.names import LogIndex
    from arrow_format.log.record import LogRecord
    from arrow_format.storage.open import ObjectStat


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was removed, or would be.

    Parameters
    ----------
    path
        Absolute path or URI.
    num_bytes
        Its size; 0 where the store does not say it.
    """

    path: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GcReport:
    """What :func:`arrow_format.collect_garbage` did, or would do.

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    dry_run
        Whether nothing was changed, and the rest says what would be.
    retention
        How long a version can be read after another took its place.
    oldest_version
        The oldest version that can be opened from now on; 0 when nothing was ever committed.
    newest_version
        The newest, which never expires; 0 when nothing was ever committed.
    expired_versions
        Versions that could be opened before, ascending.
    fenced_jobs
        Unfinished jobs that were given up: they can never commit.
    running_jobs
        Unfinished jobs that wrote something within the retention; their files stay.
    files
        What was removed, in that order.
    released
        What was released before, of a result that was consumed or whose application has ended, and
        why, for people; None: nothing. A dry run does not count what it would let expire and
        remove.
    """

    path: str
    dry_run: bool
    retention: timedelta
    oldest_version: int
    newest_version: int
    expired_versions: tuple[int, ...]
    fenced_jobs: tuple[str, ...]
    running_jobs: tuple[str, ...]
    files: tuple[RemovedFile, ...]
    released: str | None = None

    @property
    def num_files(self) -> int:
        """How many files were removed."""
        return len(self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that were removed."""
        return sum(file.num_bytes for file in self.files)

    def __str__(self) -> str:
        removed = "would be removed" if self.dry_run else "removed"
        released = ""
        if self.released:
            released = f"; {'would be ' if self.dry_run else ''}released: {self.released}"
        return (
            f"{self.path}: {self.num_files:,} files of {format_bytes(self.num_bytes)} {removed}; "
            f"{len(self.expired_versions):,} versions expired, {len(self.fenced_jobs):,} "
            f"unfinished jobs given up{released}"
        )


_LAST = (ROOT_LIST_NAME, DECISION_NAME)
"""Files of a job that go after all others: what a collection that is killed needs to go on."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there."""

    storage: Storage
    path: str
    num_bytes: int
    modified_ms: int | None


def stored(
    storage: Storage, paths: Iterable[str], listed: Mapping[str, ObjectStat]
) -> list[StoredFile]:
    """Return the files of a listing that stand at paths, in the order of these."""
    found = ((path, listed[path]) for path in paths if path in listed)
    return [StoredFile(storage, path, stat.num_bytes, stat.modified_ms) for path, stat in found]


def jobs_there(storage: Storage) -> set[str]:
    """Return the jobs that have files in a shuffle."""
    return set(filter(JOB_ID.fullmatch, storage.list(MAP_OUTPUT_DIRECTORY)))


def by_job(listed: Mapping[str, ObjectStat]) -> dict[str, dict[str, ObjectStat]]:
    """Return the files of each job out of a listing of them all."""
    found: dict[str, dict[str, ObjectStat]] = {}
    for path, stat in listed.items():
        found.setdefault(path.split("/")[1], {})[path] = stat
    return found


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where the files of one job are.

    A local root that bears the marker of another job is left alone.
    """

    storage: Storage
    job_id: str
    roots: tuple[Storage, ...]
    """Local roots, there or not."""
    listed: Mapping[str, ObjectStat]
    """Its files in the shuffle."""

    @staticmethod
    def of(
        storage: Storage,
        job_id: str,
        roots: Iterable[str],
        listed: Mapping[str, ObjectStat] | None = None,
    ) -> JobFiles:
        """Find the local roots of a job.

        Parameters
        ----------
        storage
            The shuffle.
        job_id
            The job.
        roots
            Its roots as far as the log knows them.
        listed
            Its files in the shuffle, where they were listed already.
        """
        directory = f"{MAP_OUTPUT_DIRECTORY}/{job_id}"
        files = storage.files(directory) if listed is None else listed
        named: tuple[str, ...] = ()
        if f"{directory}/{ROOT_LIST_NAME}" in files:
            named = read_root_list(storage, directory)
        paths = dict.fromkeys((*roots, *named))
        return JobFiles(storage, job_id, tuple(map(open_made_directory, paths)), files)

    @property
    def directory(self) -> str:
        """Directory of the job in the shuffle."""
        return f"{MAP_OUTPUT_DIRECTORY}/{self.job_id}"

    def dead_in_roots(self, live: Collection[tuple[str, str]]) -> Iterator[list[StoredFile]]:
        """Files in local roots that are not live, in groups, in the order in which they may go.

        Parameters
        ----------
        live
            Name of the root ("" in the shuffle) and path of files that stay.
        """
        for root in self.roots:
            if not is_root_or_rest(root, self.job_id):
                continue
            place = root_name(root.root)
            listed = root.files("")
            dead = {one for one in listed if (place, one) not in live} - {MARKER_NAME}
            yield stored(root, sorted(dead), listed)
            # Not by the same listing: a task that still runs may have put a file there meanwhile.
            again = root.files("")
            if not again.keys() - dead - {MARKER_NAME}:
                yield stored(root, [MARKER_NAME], again)

    def dead_in_shuffle(
        self, live: Collection[tuple[str, str]], *, with_root_list: bool
    ) -> list[list[StoredFile]]:
        """Files in the shuffle that are not live, to go after those in local roots.

        Always as many groups, in the order in which they may go: those of several jobs go together.

        Parameters
        ----------
        live
            As for :meth:`dead_in_roots`.
        with_root_list
            Whether the list of local roots may go.
        """
        dead = [path for path in self.listed if ("", path) not in live]
        last = [f"{self.directory}/{name}" for name in _LAST]
        kept = () if with_root_list else (f"{self.directory}/{ROOT_LIST_NAME}",)
        groups = [[path for path in dead if path not in last]]
        groups += [[path] if path in dead and path not in kept else [] for path in last]
        return [stored(self.storage, group, self.listed) for group in groups]

    def roots_hold_garbage(self, live: Collection[tuple[str, str]]) -> bool:
        """Whether a task has put files into a local root since it was cleared, or still may."""
        return any(
            holds_garbage(
                root,
                self.job_id,
                [name for name in root.list("") if (root_name(root.root), name) in live],
            )
            for root in self.roots
        )

    def put_root_list_again(self) -> None:
        """Write the local roots down for the next collection: nothing else may tell of them."""
        put_root_list(self.storage, self.directory, [one.root for one in self.roots], sync=True)

    def modified_ms(self) -> int | None:
        """Return when anything of the job was written last; None where no storage tells."""
        groups = chain(self.dead_in_roots(()), self.dead_in_shuffle((), with_root_list=True))
        times = [file.modified_ms for group in groups for file in group]
        for storage, path in ((self.storage, self.directory), *((root, "") for root in self.roots)):
            stat = storage.stat(path) if storage.has_directories else None
            times.append(stat.modified_ms if stat else None)
        return max((time for time in times if time is not None), default=None)

    def prune_roots(self) -> None:
        """Remove the local roots that are empty."""
        for root in self.roots:
            root.prune("", and_root=True)

    def prune(self) -> None:
        """Remove the directory in the shuffle if it is empty."""
        self.storage.prune(self.directory, and_root=False)


FILES_AT_ONCE = 1_000
"""Files that are removed before progress is told; S3 takes as many in one request."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What nobody needs any more.

    Files come in groups. Those of a group are in one storage and may go in any order; groups go in
    the order in which they come.

    Parameters
    ----------
    storage, log
        The shuffle and its log.
    index, records
        A listing of it, and the records by their numbers.
    oldest
        The oldest version that stays.
    waiting
        Entries that are pending.
    ended
        Jobs that were committed, aborted or given up: what no version names of theirs is garbage.
    dry_run
        Change nothing.
    """

    storage: Storage
    log: CommitLog
    index: LogIndex
    records: Mapping[int, LogRecord]
    oldest: int
    waiting: tuple[LogEntry, ...]
    ended: Set[str]
    dry_run: bool

    def garbage_of_jobs(self, in_jobs: Mapping[str, ObjectStat]) -> Iterator[list[StoredFile]]:
        """Find files of jobs to be removed, given a listing of those in the shuffle.

        When a group is asked for, those before it must be gone.
        """
        storage, index = self.storage, self.index
        records, ended = self.records, self.ended
        base = self.log.content_at(index, self.oldest) if self.oldest in records else None
        later = [
            record
            for number, record in records.items()
            if number > self.oldest and isinstance(record, LogEntry)
        ]
        live = live_files(chain(base.entries if base else (), later, self.waiting))
        # Entries that an earlier collection removed live on in checkpoints, until those go as well.
        remembered = [
            self.log.checkpoint(number).entry
            for number in sorted(index.checkpoints)
            if number < index.oldest
        ]
        roots = roots_of_jobs((*records.values(), *filter(None, remembered)), ended)
        there = jobs_there(storage)
        listed = by_job(in_jobs)
        jobs = [
            JobFiles.of(storage, job_id, roots[job_id], listed.get(job_id, {}))
            for job_id in sorted(ended & (there | {one for one, few in roots.items() if few}))
        ]
        for job in jobs:
            yield from job.dead_in_roots(live)
            if not self.dry_run:
                job.prune_roots()
        # A task that still runs may put a file into a root at any moment until that is gone.
        dead = [
            job.dead_in_shuffle(
                live, with_root_list=self.dry_run or not job.roots_hold_garbage(live)
            )
            for job in jobs
        ]
        for groups in zip(*dead, strict=True):
            yield list(chain(*groups))
        for job in () if self.dry_run else jobs:
            if job.roots_hold_garbage(live):
                job.put_root_list_again()
            job.prune()

    def temporaries(
        self, in_log: Mapping[str, ObjectStat], cutoff_ms: int
    ) -> Iterator[list[StoredFile]]:
        """Find files of puts, given a listing of the log.

        Those that were modified after ``cutoff_ms`` stay: someone may be writing them.
        """
        storage = self.storage
        garbage = self._garbage_of_log(in_log)
        consumers = storage.files(CONSUMER_DIRECTORY, depth=2)
        puts = [path for path in consumers if path.rpartition("/")[2].startswith(TEMPORARY)]
        temporaries = (
            *stored(storage, garbage.temporaries, in_log),
            *stored(storage, puts, consumers),
        )
        yield [
            file
            for file in temporaries
            if file.modified_ms is not None and file.modified_ms <= cutoff_ms
        ]

    def garbage_of_log(self, in_log: Mapping[str, ObjectStat]) -> Iterator[list[StoredFile]]:
        """Find files of the log to be removed, after those of jobs, given a listing of it.

        The entries tell which local roots there are.
        """
        garbage = self._garbage_of_log(in_log)
        for paths in (garbage.totals, garbage.entries, garbage.checkpoints, garbage.markers):
            yield stored(self.storage, paths, in_log)

    def _garbage_of_log(self, in_log: Mapping[str, ObjectStat]) -> LogGarbage:
        names = [path.rpartition("/")[2] for path in in_log]
        return log_garbage(names, self.index, self.records, self.oldest, self.ended)

    def remove(
        self,
        groups: Iterable[list[StoredFile]],
        on_bytes: Callable[[int], None],
        *,
        most: int | None = None,
    ) -> tuple[RemovedFile, ...]:
        """Remove groups of files one after the other, and return the files.

        Parameters
        ----------
        groups
            The next is asked for when the one before is gone.
        on_bytes
            Called with the bytes of each file.
        most
            How many files; those after them stay for the next collection. None: all.
        """
        removed: list[RemovedFile] = []
        for piece in (piece for group in groups for piece in _pieces(group)):
            files = piece if most is None else piece[: most - len(removed)]
            if not files:
                break
            if not self.dry_run:
                files[0].storage.delete_all([file.path for file in files])
            for file in files:
                on_bytes(file.num_bytes)
                removed.append(RemovedFile(f"{file.storage.root}/{file.path}", file.num_bytes))
        return tuple(removed)


def _pieces(files: list[StoredFile]) -> Iterator[list[StoredFile]]:
    for start in range(0, len(files), FILES_AT_ONCE):
        yield files[start : start + FILES_AT_ONCE]
