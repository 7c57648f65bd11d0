"""Files that garbage collection may remove, their removal, and the report of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.jobs.job_files import DEPTH, digits_in, job_directory, job_of
from arrow_format.log.names import JOB_ID, MAP_OUTPUT_DIRECTORY
from arrow_format.read.presentation import count_of, duration_text, format_bytes
from arrow_format.report import Report, first_of
from arrow_format.storage.local_dir_removal import RootOfJob, Standing
from arrow_format.storage.local_dirs import ROOT_LIST_NAME, known_roots, put_root_list, root_name
from arrow_format.storage.open import names_in_use
from arrow_format.storage.protocol import DeniedError
from arrow_format.storage.root_owner import MARKER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from arrow_format.model import MapOutput
    from arrow_format.storage.open import ObjectStat, Storage
    from arrow_format.storage.root_owner import Claim, LocalRoot

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
    """Return the jobs that have files in a shuffle, but for those in directories of digits."""
    return set(filter(JOB_ID.fullmatch, names_in_use(storage, MAP_OUTPUT_DIRECTORY)))


class ListedFiles:
    """The files of all jobs in a shuffle, as one collection lists them.

    An object store is listed once, whole: that costs what is there, where a request for each job
    would cost what ever was in a hierarchical namespace, whose directories stay when they are
    empty. What is put later is the next collection's. Directories are listed job by job: there the
    files of a job are in one, but where the shuffle is a copy of one in a store.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._by_job: dict[str, dict[str, ObjectStat]] | None = None
        self._digits: list[str] = []
        """Names of directories that have some of the directories of jobs, when jobs were listed."""

    def jobs(self) -> set[str]:
        """Return the jobs that have files."""
        if not self.storage.has_directories:
            return {job_id for job_id, files in self._listed().items() if files}
        names = self.storage.list(MAP_OUTPUT_DIRECTORY)
        self._digits = digits_in(names)
        below = (self.storage.list(f"{MAP_OUTPUT_DIRECTORY}/{digits}") for digits in self._digits)
        return set(filter(JOB_ID.fullmatch, chain(names, *below)))

    def of_job(self, job_id: str) -> Mapping[str, ObjectStat]:
        """Return the files of a job."""
        if not self.storage.has_directories:
            return self._listed().get(job_id, {})
        directories = [job_directory(job_id, digits) for digits in ("", *self._digits)]
        found = map(self.storage.files, directories)
        return {path: stat for files in found for path, stat in files.items()}

    def all(self) -> Mapping[str, ObjectStat]:
        """Return the files of all jobs, where all are listed at once; else none."""
        if self.storage.has_directories:
            return {}
        return {path: stat for files in self._listed().values() for path, stat in files.items()}

    def _listed(self) -> dict[str, dict[str, ObjectStat]]:
        if self._by_job is None:
            by_job: dict[str, dict[str, ObjectStat]] = defaultdict(dict)
            for path, stat in self.storage.files(MAP_OUTPUT_DIRECTORY, depth=DEPTH).items():
                job_id = job_of(path)
                if job_id is not None:
                    by_job[job_id][path] = stat
            self._by_job = by_job
        return self._by_job

    def without(self, groups: Iterable[list[StoredFile]]) -> Iterator[list[StoredFile]]:
        """Yield groups of files that the caller removes, and forget each afterwards."""
        for group in groups:
            yield group
            if not self.storage.has_directories:
                for file in group:
                    self._listed()[job_of(file.path) or ""].pop(file.path, None)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where the files of one job are."""

    storage: Storage
    job_id: str
    roots: tuple[RootOfJob, ...]
    """Local roots of the job and this shuffle, which may not exist."""
    held: tuple[RootOfJob, ...]
    """Local roots that may be too: they cannot be seen, or no relocation said whose they are."""
    listed: Mapping[str, ObjectStat]
    """Its files in the shuffle."""

    @staticmethod
    def of(
        files: ListedFiles, job_id: str, named: Collection[str], claim: Callable[[], Claim]
    ) -> JobFiles:
        """Look for the files of a job, of which the log has named local roots.

        ``claim`` is asked for what the shuffle says of itself, if there is a root.
        """
        storage, directory = files.storage, job_directory(job_id)
        listed = files.of_job(job_id)
        known: Sequence[LocalRoot] = ()
        if named or f"{directory}/{ROOT_LIST_NAME}" in listed:
            known = known_roots(storage, directory, named)
        by_standing: dict[Standing, list[RootOfJob]] = {kind: [] for kind in Standing}
        for root in known:
            of_job = RootOfJob(root, job_id, claim())
            by_standing[of_job.standing()].append(of_job)
        held = by_standing[Standing.UNSEEN] + by_standing[Standing.UNSETTLED]
        return JobFiles(storage, job_id, tuple(by_standing[Standing.OURS]), tuple(held), listed)

    @property
    def directory(self) -> str:
        """Directory of the job in the shuffle."""
        return job_directory(self.job_id)

    @property
    def root_list(self) -> list[StoredFile]:
        """The list of its local roots, if it has one."""
        return stored(self.storage, [f"{self.directory}/{ROOT_LIST_NAME}"], self.listed)

    def dead_in_roots(self, live: Collection[tuple[str, str]]) -> Iterator[list[StoredFile]]:
        """Yield groups of files in local roots that are not live, in the order of their removal."""
        for root in self.roots:
            storage, name = root.storage, root_name(root.root.path)
            listed = storage.files("")
            dead = {path for path in listed if (name, path) not in live} - {MARKER_NAME}
            yield stored(storage, sorted(dead), listed)
            # Not by the same listing: a task that still runs may have put a file meanwhile.
            again = storage.files("")
            if not again.keys() - dead - {MARKER_NAME}:
                yield stored(storage, [MARKER_NAME], again)

    def dead_in_shuffle(self, live: Collection[tuple[str, str]]) -> list[StoredFile]:
        """Return files in the shuffle that are not live, but for the list of local roots."""
        dead = [path for path in self.listed if ("", path) not in live]
        root_list = f"{self.directory}/{ROOT_LIST_NAME}"
        return stored(self.storage, [path for path in dead if path != root_list], self.listed)

    def roots_hold_garbage(self, live: Collection[tuple[str, str]]) -> bool:
        """Whether a task has put files into a local root since it was cleared, or still may."""
        return any(
            root.holds_garbage(
                [
                    name
                    for name in root.storage.list("")
                    if (root_name(root.root.path), name) in live
                ]
            )
            for root in self.roots
        )

    def put_root_list_again(self) -> None:
        """Write the local roots down for the next collection, which may not find them otherwise."""
        roots = [root.root for root in (*self.roots, *self.held)]
        put_root_list(self.storage, self.directory, roots, sync=True)

    def modified_ms(self) -> int | None:
        """Return when anything of the job was written last; None where no storage says."""
        stats: list[ObjectStat | None] = list(self.listed.values())
        if self.storage.has_directories:
            stats.append(self.storage.stat(self.directory))
        for root in self.roots:
            stats += [root.storage.stat(""), *root.storage.files("").values()]
        times = (stat.modified_ms for stat in stats if stat is not None)
        return max((time for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was removed, or would be."""

    path: str
    """Absolute path or URI."""
    num_bytes: int
    """0 where the store does not say it."""


def live_files(outputs: Iterable[MapOutput]) -> set[tuple[str, str]]:
    """Return name of the root ("" is the shuffle itself) and path of each file of map outputs.

    Also of the objects of their masks.

    Not its directory: two local directories may be one, reached by different names.
    """
    files = [file for output in outputs for file in output.files]
    return {
        (root_name(file.root), path) for file in files for path in (file.data_path, file.index_path)
    } | {("", file.mask.path) for file in files if file.mask.path}


def garbage_of_jobs(
    jobs: Sequence[JobFiles], live: Collection[tuple[str, str]], *, dry_run: bool
) -> Iterator[list[StoredFile]]:
    """Yield groups of files of jobs that are not live, in the order of their removal.

    ``live`` has the name of the root ("" in the shuffle) and the path of each file to keep. Files
    of a group are in one storage and are removed in any order; the caller removes a group before it
    asks for the next.
    """
    for job in jobs:
        yield from job.dead_in_roots(live)
        for root in () if dry_run else job.roots:
            root.storage.prune("", and_root=True)
    yield [file for job in jobs for file in job.dead_in_shuffle(live)]
    # The list of roots is needed until nothing is left in them. A task that still runs may put a
    # file into a root at any moment until that is removed.
    needed = {root for root, _ in live}
    cleared = [
        job
        for job in jobs
        if not job.held and needed.isdisjoint(root_name(root.root.path) for root in job.roots)
    ]
    yield [
        file
        for job in cleared
        if dry_run or not job.roots_hold_garbage(live)
        for file in job.root_list
    ]
    for job in () if dry_run else jobs:
        if job.roots_hold_garbage(live):
            job.put_root_list_again()
        for directory in {job.directory, *(path.rpartition("/")[0] for path in job.listed)}:
            job.storage.prune(directory, and_root=False)


@dataclass(slots=True)
class Denied:
    """What a collection may not remove."""

    num_files: int = 0
    """Files of the requests that a store denied; some of them may be removed."""
    error: DeniedError | None = None
    """The first answer that said so."""

    def add(self, num_files: int, error: DeniedError) -> None:
        """Add the files of a request."""
        self.num_files += num_files
        self.error = self.error or error


def remove_groups(
    groups: Iterable[list[StoredFile]],
    on_bytes: Callable[[int], None],
    denied: Denied,
    *,
    dry_run: bool,
) -> list[RemovedFile]:
    """Remove groups of files one after the other; return the files.

    ``on_bytes`` is called with the bytes of each. Files that a store does not let us remove are
    added to ``denied`` instead.
    """
    removed: list[RemovedFile] = []
    for group in groups:
        for start in range(0, len(group), FILES_PER_REQUEST):
            files = group[start : start + FILES_PER_REQUEST]
            try:
                if not dry_run:
                    files[0].storage.delete_all([file.path for file in files])
            except DeniedError as error:
                denied.add(len(files), error)
                continue
            for file in files:
                on_bytes(file.num_bytes)
                removed.append(RemovedFile(f"{file.storage.root}/{file.path}", file.num_bytes))
    return removed


_HOLDS = {
    "retention": "retention {name}: versions from {version}; collect with a shorter --retention",
    "consumer": "consumer {name}: versions from {version}; 'arrow-shuffle consumers --forget' one "
    "that will not come back",
    "reader": "reader {name}: versions from {version}, until it ends or moves on",
    "tag": "tag {name}: version {version}; 'arrow-shuffle tag --remove' removes it",
    "pending": "{name} that wait to be flushed: the log from number {version}; 'arrow-shuffle "
    "flush' makes a version of them",
    "unseen": "unseen local directory {name}: mount it, and collect again",
    "relocate": "local directories of the shuffle at {name}: this one was moved or is a copy, say "
    "which with arrow-shuffle relocate",
}
"""What keeps something, and what would let go of it."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What keeps versions, entries of the log, or files in local directories from being removed.

    Parameters
    ----------
    by
        ``retention``, ``consumer``, ``reader``, ``tag`` or ``pending``; ``unseen`` for a local
        directory whose disk is not mounted here; ``relocate`` for files in local directories of a
        shuffle that was moved, or is a copy (:meth:`arrow_shuffle.Shuffle.relocate`).
    name
        Of the consumer or tag; of a reader that is at work the name of its hold, and its process;
        the retention, or what is pending; the local directory, or where the shuffle was.
    version
        The oldest version that it keeps, or of what is pending the first number of the log; 0 of
        files in local directories.
    """

    by: str
    name: str
    version: int

    def __str__(self) -> str:
        return _HOLDS[self.by].format(name=self.name, version=self.version)


def holds_in_roots(jobs: Iterable[JobFiles]) -> list[Hold]:
    """Return what keeps files in local roots of some jobs."""
    held = [root for job in jobs for root in job.held]
    owners = [root.owner for root in held if root.root.is_seen]
    unseen = {root.root.directory for root in held if not root.root.is_seen}
    places = {"an unknown place" if owner is None else owner.path for owner in owners}
    return [
        *(Hold("unseen", name, 0) for name in sorted(unseen)),
        *(Hold("relocate", name, 0) for name in sorted(places)),
    ]


MAX_FILES = 20
"""Files that the text of a report lists."""

MAX_JOBS = 8


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What :func:`arrow_shuffle.collect_garbage` did, or would do.

    .. code-block:: python

        report = orders.collect_garbage(dry_run=True)
        print(report.num_files, report.num_bytes, *report.holds)

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
    holds
        What keeps superseded versions or entries of the log, the one that keeps most first; then
        what keeps files in local directories.
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
    holds: tuple[Hold, ...] = ()

    @property
    def num_files(self) -> int:
        """How many files were removed."""
        return len(self.files)

    @property
    def num_bytes(self) -> int:
        """Bytes of the files that were removed."""
        return sum(file.num_bytes for file in self.files)

    def _lines(self) -> Iterator[str]:
        would = "would be " if self.dry_run else ""
        removed = f"{count_of(self.num_files, 'file')} of {format_bytes(self.num_bytes)}"
        retention = duration_text(self.retention)
        yield f"{self.path} (retention {retention}): {removed} {would}removed"
        yield f"  versions  {self._versions(would)}"
        if self.released:
            yield f"  result    {would}released: {self.released}"
            if self.dry_run:
                yield "            versions that this lets expire are not counted here"
        if self.fenced_jobs:
            yield f"  jobs      {would}given up: {_listed(self.fenced_jobs)}"
        if self.running_jobs:
            yield f"  jobs      unfinished, and left alone: {_listed(self.running_jobs)}"
        for number, hold in enumerate(self.holds):
            yield f"  {'' if number else 'kept by':<8}  {hold}"
        files = (f"  {format_bytes(file.num_bytes):>9}  {file.path}" for file in self.files)
        yield from first_of(files, MAX_FILES)

    def _versions(self, would: str) -> str:
        oldest, newest = self.oldest_version, self.newest_version
        if not newest:
            return "none committed yet"
        stay = f"{oldest:,}" if oldest == newest else f"{oldest:,} to {newest:,}"
        if not self.expired_versions:
            return f"{stay}; none expired"
        return f"{stay}; {would}expired: {count_of(len(self.expired_versions), 'version')}"


def _listed(job_ids: tuple[str, ...]) -> str:
    shown = ", ".join(job_ids[:MAX_JOBS])
    return shown if len(job_ids) <= MAX_JOBS else f"{shown} and {len(job_ids) - MAX_JOBS:,} more"
