"""What garbage collection removes, and in which order, once it is known what nobody needs.

What tells of other files goes after these, so that a collection that is killed anywhere is finished
by the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.jobs.gc_files import JobFiles, StoredFile, by_job, jobs_there, stored
from arrow_format.jobs.gc_plan import TEMPORARY, LogGarbage, live_files, log_garbage, roots_of_jobs
from arrow_format.jobs.gc_report import RemovedFile
from arrow_format.log.consumers import CONSUMER_DIRECTORY
from arrow_format.log.entry import LogEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Set

    from arrow_format.log.commit_log import CommitLog
    from arrow_format.log.names import LogIndex
    from arrow_format.log.record import LogRecord
    from arrow_format.storage.open import ObjectStat, Storage

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
