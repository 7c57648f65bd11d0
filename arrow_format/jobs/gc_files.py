"""Files that garbage collection may remove, their removal, and the report of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.jobs.decision import DECISION_NAME
from arrow_format.jobs.gc_plan import LogGarbage, live_files, log_garbage, roots_of_jobs
from arrow_format.jobs.receipt import count_of, format_bytes
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
from arrow_format.storage.open import ObjectStat, Storage, open_made_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
    from datetime import timedelta

    from arrow_format.log.commit_log import CommitLog
    from arrow_format.log.names import LogIndex
    from arrow_format.log.record import LogRecord

_LAST = (ROOT_LIST_NAME, DECISION_NAME)
"""Files of a job that are removed last: the collection after one that was killed needs them."""

FILES_PER_REQUEST = 1_000
"""Files that are removed between calls for progress; S3 takes as many in one request."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a listing shows."""

    storage: Storage
    path: str
    num_bytes: int
    modified_ms: int | None


def stored(
    storage: Storage, paths: Iterable[str], listed: Mapping[str, ObjectStat]
) -> list[StoredFile]:
    """Return the files at those of ``paths`` that a listing shows, in the order of ``paths``."""
    stats = ((path, listed[path]) for path in paths if path in listed)
    return [StoredFile(storage, path, stat.num_bytes, stat.modified_ms) for path, stat in stats]


def jobs_with_files(storage: Storage) -> set[str]:
    """Return the jobs that have files in a shuffle."""
    return set(filter(JOB_ID.fullmatch, storage.list(MAP_OUTPUT_DIRECTORY)))


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where the files of one job are; a local root with the marker of another job is ignored."""

    storage: Storage
    job_id: str
    roots: tuple[Storage, ...]
    """Local roots, which may not exist."""
    listed: Mapping[str, ObjectStat]
    """Its files in the shuffle."""

    @staticmethod
    def of(
        storage: Storage,
        job_id: str,
        roots: Iterable[str],
        listed: Mapping[str, ObjectStat] | None = None,
    ) -> JobFiles:
        """Find the files of a job, of which the log names ``roots``; list them where not given."""
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
        """Yield groups of files in local roots that are not live, in the order of their removal.

        ``live`` has the name of the root ("" in the shuffle) and the path of each file to keep.
        """
        for root in self.roots:
            if not is_root_or_rest(root, self.job_id):
                continue
            name = root_name(root.root)
            listed = root.files("")
            dead = {path for path in listed if (name, path) not in live} - {MARKER_NAME}
            yield stored(root, sorted(dead), listed)
            # Not by the same listing: a task that still runs may have put a file meanwhile.
            again = root.files("")
            if not again.keys() - dead - {MARKER_NAME}:
                yield stored(root, [MARKER_NAME], again)

    def dead_in_shuffle(
        self, live: Collection[tuple[str, str]], *, with_root_list: bool
    ) -> list[list[StoredFile]]:
        """Return groups of files in the shuffle that are not live, in the order of their removal.

        They are removed after those in local roots, the list of local roots only if
        ``with_root_list``. All jobs have as many groups, so that those of several jobs can be
        removed together.
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
        """Write the local roots down for the next collection, which may not find them otherwise."""
        put_root_list(self.storage, self.directory, [root.root for root in self.roots], sync=True)

    def modified_ms(self) -> int | None:
        """Return when anything of the job was written last; None where no storage says."""
        groups = chain(self.dead_in_roots(()), self.dead_in_shuffle((), with_root_list=True))
        times = [file.modified_ms for group in groups for file in group]
        for storage, path in ((self.storage, self.directory), *((root, "") for root in self.roots)):
            stat = storage.stat(path) if storage.has_directories else None
            times.append(stat.modified_ms if stat else None)
        return max((time for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was removed, or would be."""

    path: str
    """Absolute path or URI."""
    num_bytes: int
    """0 where the store does not say it."""


@dataclass(frozen=True, slots=True)
class Removal:
    """Finds and removes the files that are no longer needed.

    Files come in groups. Those of a group are in one storage and are removed in any order; groups
    are removed in the order in which they come.
    """

    storage: Storage
    log: CommitLog
    index: LogIndex
    records: Mapping[int, LogRecord]
    """By their numbers."""
    oldest: int
    """The oldest version to keep."""
    waiting: tuple[LogEntry, ...]
    """Entries that are pending."""
    ended: Set[str]
    """Jobs that were committed, aborted or given up: their files that no version names go."""
    dry_run: bool

    def garbage_of_jobs(self, in_jobs: Mapping[str, ObjectStat]) -> Iterator[list[StoredFile]]:
        """Yield groups of files of jobs to remove, given a listing of those in the shuffle.

        The caller removes a group before it asks for the next.
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
        # Checkpoints still name the roots of entries that an earlier collection removed.
        remembered = [
            self.log.checkpoint(number).entry
            for number in sorted(index.checkpoints)
            if number < index.oldest
        ]
        roots = roots_of_jobs((*records.values(), *filter(None, remembered)), ended)
        listed: dict[str, dict[str, ObjectStat]] = {}
        for path, stat in in_jobs.items():
            listed.setdefault(path.split("/")[1], {})[path] = stat
        with_files = jobs_with_files(storage).union(
            job_id for job_id, paths in roots.items() if paths
        )
        jobs = [
            JobFiles.of(storage, job_id, roots[job_id], listed.get(job_id, {}))
            for job_id in sorted(ended & with_files)
        ]
        for job in jobs:
            yield from job.dead_in_roots(live)
            for root in () if self.dry_run else job.roots:
                root.prune("", and_root=True)
        # A task that still runs may put a file into a root at any moment until that is removed.
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
            storage.prune(job.directory, and_root=False)

    def temporaries(
        self, in_log: Mapping[str, ObjectStat], cutoff_ms: int
    ) -> Iterator[list[StoredFile]]:
        """Yield temporary files of puts, given a listing of the log.

        Those modified after ``cutoff_ms`` are kept: a writer may still use them.
        """
        consumers = self.storage.files(CONSUMER_DIRECTORY, depth=2)
        puts = [path for path in consumers if path.rpartition("/")[2].startswith(TEMPORARY)]
        temporaries = (
            *stored(self.storage, self._garbage_of_log(in_log).temporaries, in_log),
            *stored(self.storage, puts, consumers),
        )
        yield [
            file
            for file in temporaries
            if file.modified_ms is not None and file.modified_ms <= cutoff_ms
        ]

    def garbage_of_log(self, in_log: Mapping[str, ObjectStat]) -> Iterator[list[StoredFile]]:
        """Yield groups of files of the log to remove, given a listing of it.

        They come after those of jobs, whose local roots the entries name.
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
        """Remove groups of files one after the other, ``most`` files at most; return the files.

        ``on_bytes`` is called with the bytes of each.
        """
        removed: list[RemovedFile] = []
        for files in chain.from_iterable(map(_slices, groups)):
            if most is not None:
                files = files[: most - len(removed)]
            if not files:
                break
            if not self.dry_run:
                files[0].storage.delete_all([file.path for file in files])
            for file in files:
                on_bytes(file.num_bytes)
                removed.append(RemovedFile(f"{file.storage.root}/{file.path}", file.num_bytes))
        return tuple(removed)


def _slices(files: list[StoredFile]) -> Iterator[list[StoredFile]]:
    for start in range(0, len(files), FILES_PER_REQUEST):
        yield files[start : start + FILES_PER_REQUEST]


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
        How long a version can be read after another superseded it.
    oldest_version
        The oldest version that can be opened from now on; 0 when nothing was ever committed.
    newest_version
        The newest, which never expires; 0 when nothing was ever committed.
    expired_versions
        Versions that could be opened before, ascending.
    fenced_jobs
        Unfinished jobs that were given up: they can never commit.
    running_jobs
        Unfinished jobs that wrote something within the retention; their files were kept.
    files
        What was removed, in that order.
    released
        What was released before that, of a result that was consumed or whose application has ended,
        and why, for people; None: nothing. A dry run does not count what that release would let
        expire and remove.
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
            f"{self.path}: {count_of(self.num_files, 'file')} of {format_bytes(self.num_bytes)} "
            f"{removed}; {count_of(len(self.expired_versions), 'version')} expired, "
            f"{count_of(len(self.fenced_jobs), 'unfinished job')} given up{released}"
        )
