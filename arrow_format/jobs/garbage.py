"""Garbage collection: gives up old versions and dead jobs in the log, then removes their files.

First the log says which versions and jobs are given up, then their files are removed, and last the
segments of the log that nothing needs. The next collection finishes one that was killed anywhere,
and any number of them may run concurrently with writers and readers. What it reads and lists
follows what has changed since the last. See ``docs/adr/0008-garbage-collection.md``.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import OptionError, ShuffleNotFoundError, StorageError
from arrow_format.jobs.gc_files import (
    Denied,
    GcReport,
    Hold,
    JobFiles,
    ListedFiles,
    RemovedFile,
    StoredFile,
    garbage_of_jobs,
    holds_in_roots,
    live_files,
    remove_groups,
    stored,
)
from arrow_format.jobs.gc_plan import Plan, Planner
from arrow_format.jobs.map_outputs import check_files
from arrow_format.jobs.reader_holds import reader_holds
from arrow_format.jobs.retention import find_abandoned, find_consumed
from arrow_format.log.commit_log import CommitLog, draft
from arrow_format.log.consumers import consumer_directory
from arrow_format.log.entry import EXPIRE, FENCE, LogEntry
from arrow_format.log.identity import claim_of
from arrow_format.log.names import (
    CONSUMER_DIRECTORY,
    EXPIRED_DIRECTORY,
    IDENTITY_DIRECTORY,
    LOG_DIRECTORY,
    MAP_OUTPUT_DIRECTORY,
    TEMPORARY,
    entries_in,
    expired_path,
    numbers_of,
    range_path,
    ranges_in,
    segment_of,
    segment_path,
)
from arrow_format.log.reader import LogReader, LogView
from arrow_format.log.version_names import first_version
from arrow_format.options import DEFAULT_RETENTION, ignore
from arrow_format.read.presentation import count_of
from arrow_format.storage.open import ObjectNotFoundError, Storage
from arrow_format.storage.put_probe import PROBE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


REMOVAL_DELAY_MS = 600_000
"""How long the list of what a segment held exists before its entries are removed: a client of a
network file system may have cached that there is none. And how long what a writer puts to ask a
store is left alone, whatever the retention."""


def collect(
    storage: Storage,
    *,
    retention: timedelta = DEFAULT_RETENTION,
    compact_log: bool = False,
    dry_run: bool = False,
    on_bytes: Callable[[int], None] = ignore,
) -> GcReport:
    """Remove versions that were superseded long ago, and what unfinished jobs left.

    Parameters, result and errors are those of :func:`arrow_format.collect_garbage`, which flushes
    what is overdue before.
    """
    stat = storage.stat("")
    if stat is None or not stat.is_directory:
        msg = f"{storage.root}: is not there, or no directory; check the path"
        raise ShuffleNotFoundError(msg)
    if not {LOG_DIRECTORY, MAP_OUTPUT_DIRECTORY} & set(storage.list("")):
        msg = f"{storage.root}: holds no shuffle; nothing was removed"
        raise ShuffleNotFoundError(msg)
    collection = _Collection(
        storage, retention, compacts=compact_log and not dry_run, dry_run=dry_run, on_bytes=on_bytes
    )
    released = collection.release()
    return collection.checked(replace(collection.collect(), released=released))


def check_retention(retention: object) -> None:
    """Raise OptionError unless a retention is a time that may have passed."""
    if not isinstance(retention, timedelta) or retention < timedelta(0):
        msg = f"retention={retention!r}: expected a datetime.timedelta, not negative"
        raise OptionError(msg)


def remove_released(storage: Storage) -> None:
    """Remove what consumers have released and nothing else needs: a part of a collection.

    It gives up no job, and lets nothing expire by age. Raises ShuffleError where the log cannot be
    read, the newest version lacks a file, or something cannot be removed.
    """
    collection = _Collection(storage, None)
    collection.checked(collection.collect())


class _Collection:
    """One garbage collection; without a retention nothing goes by its age."""

    def __init__(
        self,
        storage: Storage,
        retention: timedelta | None,
        *,
        compacts: bool = False,
        dry_run: bool = False,
        on_bytes: Callable[[int], None] = ignore,
    ) -> None:
        self.storage, self.log = storage, CommitLog(storage)
        self.claim = cache(partial(claim_of, storage))
        now_ms = time.time_ns() // 1_000_000
        self.files = ListedFiles(storage)
        self.planner = Planner(self.files, self.log, retention, now_ms, self.claim, compacts)
        self.dry_run, self.on_bytes = dry_run, on_bytes
        self.denied = Denied()
        self.held: list[Hold] = []
        """What kept files in local directories, when they were last removed."""

    def release(self) -> str | None:
        """Release an ephemeral result that was consumed, or whose applications ended; say which."""
        due = self.log.read(
            lambda view: (
                find_consumed(self.storage, self.log, view)
                or find_abandoned(self.log, view, self.planner.is_old)
            )
        )
        if due is None or not (self.dry_run or due.carry_out(self.storage)):
            return None
        return str(due)

    def collect(self) -> GcReport:
        """Give up dead jobs and old versions, and remove what nothing needs any more."""
        plan = self._plan()
        before, oldest, fenced = plan.view.oldest, plan.oldest, plan.silent
        if self.dry_run:
            if oldest > before:
                self.log.read_at(plan.view, self._check_newest)
            removed = self._remove_files(plan)
        else:
            if fenced:
                fenced = self._give_up(fenced)
                plan = self._plan()
            removed = self._remove_files(plan)
            if self._expire(plan):
                plan = self._plan()
                removed += self._remove_files(plan)
            oldest = plan.view.oldest
        view, retention = plan.view, self.planner.retention
        if retention is not None:
            groups = chain(self._dead_readers(), self._temporaries(view), self._segments(view))
            removed += self._remove(groups)
        expired = tuple(self._versions(before, oldest))  # whose entries may be made blank now
        if self.planner.compacts:
            removed += self._remove(self._compact(view))
        first = self.log.read_at(view, partial(first_version, self.log))
        return GcReport(
            path=self.storage.root,
            dry_run=self.dry_run,
            retention=retention or timedelta(0),
            oldest_version=max(oldest, first.version) if first else 0,
            newest_version=view.state.version,
            expired_versions=expired,
            fenced_jobs=fenced,
            running_jobs=plan.running,
            files=tuple(removed),
            holds=(*plan.holds, *self.held),
        )

    def checked(self, report: GcReport) -> GcReport:
        """Return a report, or raise StorageError with what it says where a store denied deletions.

        In one line, as errors are.
        """
        if self.denied.error is None:
            return report
        removed = str(report).splitlines()[0]
        expired = count_of(len(report.expired_versions), "version")
        given_up = count_of(len(report.fenced_jobs), "unfinished job")
        released = f"; released: {report.released}" if report.released else ""
        held = f"; kept by {', '.join(map(str, report.holds))}" if report.holds else ""
        left = count_of(self.denied.num_files, "file")
        msg = (
            f"{removed}; {expired} expired, {given_up} given up{released}{held}; {left} may not be "
            "removed with these credentials, so they are left for a collection by others "
            f"({self.denied.error})"
        )
        raise StorageError(msg) from self.denied.error

    def _plan(self) -> Plan:
        def plan(view: LogView) -> Plan:
            self.log.check_writers(view)
            return self.planner.plan(view, ahead=self.dry_run)

        return self.log.read(plan)

    def _give_up(self, names: Sequence[str]) -> tuple[str, ...]:
        """Give up jobs, or tags that are being set, unless they are in the log; return those.

        Their age only chooses them. The log decides whether they are committed: giving them up
        takes a number of it, as a commit does, and the later of the two sees the earlier.
        """
        fenced: tuple[str, ...] = ()

        def decide(view: LogView) -> LogEntry | None:
            nonlocal fenced
            ended = set(self.log.ended_jobs(view).column("job_id").to_pylist())
            fenced = tuple(name for name in names if name not in ended)
            return draft(view, FENCE, gives_up=fenced) if fenced else None

        self.log.append(decide, sync=True)
        return fenced

    def _expire(self, cleaned: Plan) -> bool:
        """Let versions expire, if the log would say anything new; ``cleaned`` was carried out."""

        def decide(view: LogView) -> LogEntry | None:
            plan, state = cleaned, view.state
            if view is not cleaned.view:  # another writer was faster
                plan = replace(self.planner.plan(view), swept=max(cleaned.swept, state.swept))
                plan = self._found_again(plan)
            if not plan.is_due:
                return None
            if plan.oldest > state.oldest:
                self._check_newest(view)
            if plan.base > state.base:
                self.log.put_base(view, plan.base)
            expired = state.expired
            if plan.oldest > state.oldest:  # else what is before it may have been removed
                expired = max(self.log.record(plan.oldest - 1).state.content, expired)
            changes = {
                "oldest": plan.oldest,
                "expired": expired,
                "swept": plan.swept,
                "base": plan.base,
                "restored": tuple(number for number in state.restored if number >= plan.oldest),
            }
            return draft(view, EXPIRE, state=changes)

        cleaned = self._found_again(cleaned)
        if not cleaned.is_due:
            return False
        return self.log.append(decide, sync=True, view=cleaned.view) is not None

    def _found_again(self, plan: Plan) -> Plan:
        """Return a plan by which the next collection looks again for what this may not remove."""
        if self.denied.error is None:
            return plan
        state = plan.view.state
        return replace(plan, swept=state.swept, base=state.base)

    def _check_newest(self, view: LogView) -> None:
        """Raise CorruptShuffleError if the newest version lacks a file."""
        newest = self.log.snapshot_of(view)
        check_files(
            self.storage,
            newest.map_outputs if newest else (),
            "the newest version needs it, so versions before may be all that is left, and "
            "nothing was removed. Restore the file from a copy, or overwrite the shuffle, and "
            "collect again",
            self.files.all(),
        )

    def _remove_files(self, plan: Plan) -> list[RemovedFile]:
        """Remove files of ended jobs that nothing needs by a plan."""
        roots: dict[str, dict[str, None]] = {job_id: {} for job_id in sorted(plan.suspects)}
        for output in plan.needed:  # some are of other jobs, and only their masks of these
            if output.job_id in roots:
                roots[output.job_id] |= {file.root: None for file in output.files if file.root}
        calls = [
            partial(JobFiles.of, self.files, job_id, named, self.claim)
            for job_id, named in roots.items()
        ]
        jobs = run_concurrently(calls, self.storage.max_requests)
        self.held = holds_in_roots(jobs)
        groups = garbage_of_jobs(jobs, live_files(plan.needed), dry_run=self.dry_run)
        if not self.dry_run:
            groups = self.files.without(groups)
        return self._remove(groups)

    def _remove(self, groups: Iterable[list[StoredFile]]) -> list[RemovedFile]:
        return remove_groups(groups, self.on_bytes, self.denied, dry_run=self.dry_run)

    def _versions(self, first: int, end: int) -> Iterator[int]:
        """Yield the versions of ``[first, end)``; few entries are in memory together."""
        for segment in range(segment_of(first), segment_of(end) + 1):
            numbers = numbers_of(segment)
            read = range(max(numbers.start, first), min(numbers.stop, end))
            with contextlib.suppress(ObjectNotFoundError):  # another collection removed them
                entries = LogReader(self.storage).records(read)
                yield from (number for number, entry in entries.items() if entry.is_version)

    def _temporaries(self, view: LogView) -> Iterator[list[StoredFile]]:
        """Yield temporary files of puts, and of asking a store, that no writer uses any more."""
        if not self.storage.has_directories:
            listed = self.storage.files(PROBE_DIRECTORY)
            left = self._old(stored(self.storage, listed, listed))
            yield [file for file in left if self._is_settled(file.modified_ms)]
            return
        ends = [tag.version for tag in view.state.tags.values()]
        segments = {*map(segment_of, [view.newest, view.newest + 1, view.state.base, *ends])}
        consumers = self.storage.list(CONSUMER_DIRECTORY)
        for directory in (
            *map(segment_path, segments),
            EXPIRED_DIRECTORY,
            IDENTITY_DIRECTORY,
            *(f"{CONSUMER_DIRECTORY}/{name}" for name in consumers),
            MAP_OUTPUT_DIRECTORY,
        ):
            names = self.storage.list(directory)
            paths = [f"{directory}/{name}" for name in names if name.startswith(TEMPORARY)]
            stats = {path: self.storage.stat(path) for path in paths}
            listed = {path: stat for path, stat in stats.items() if stat is not None}
            yield self._old(stored(self.storage, paths, listed))

    def _dead_readers(self) -> Iterator[list[StoredFile]]:
        """Yield what readers that were killed left of their holds."""
        for hold in reader_holds(self.storage, self.planner.now_ms):
            if hold.is_living:
                continue
            directory = consumer_directory(hold.name)
            listed = self.storage.files(directory)
            # Not what a put has not finished: perhaps it is of a reader that begins.
            records = [path for path in listed if not path.startswith(f"{directory}/{TEMPORARY}")]
            yield stored(self.storage, records, listed)
            if not self.dry_run:
                self.storage.prune(directory, and_root=False)

    def _old(self, files: list[StoredFile]) -> list[StoredFile]:
        return [file for file in files if self.planner.is_past(file.modified_ms)]

    def _is_settled(self, modified_ms: int | None) -> bool:
        """Whether a file was put so long ago that it can be relied on, or is left over."""
        return self.planner.now_ms - (modified_ms or 0) >= REMOVAL_DELAY_MS

    def _segments(self, view: LogView) -> Iterator[list[StoredFile]]:
        """Yield the files of segments that nothing needs, after the lists of what they held."""
        first, kept = min([view.state.base, *view.state.pending.numbers[:1]]), _of_tags(view)
        for segment in self.log.segments(view):
            if segment >= segment_of(first):
                break
            stat = self.storage.stat(expired_path(segment))
            if stat is None and not self.dry_run:
                self.log.put_removed(segment)
            elif stat is not None and self._is_settled(stat.modified_ms):
                listed = self.storage.files(segment_path(segment))
                yield stored(self.storage, [path for path in listed if path not in kept], listed)
                if not self.dry_run:
                    self.storage.prune(segment_path(segment), and_root=False)

    def _compact(self, view: LogView) -> Iterator[list[StoredFile]]:
        """Make the entries before the base blank; yield the ranges before it, but for tags.

        They may be removed at once: no view since the base needs them.
        """
        base, blank = view.state.base, view.state.blank
        kept = _of_tags(view)
        if self.log.read(self.log.first_kept) < blank:
            blank = 0  # some were put back
        for segment in self.log.segments(view):
            if segment > segment_of(base):
                break
            listed = self.storage.files(segment_path(segment))
            names = [path.rpartition("/")[2] for path in listed]
            numbers = [number for number in entries_in(names) if blank <= number < base]
            calls = [partial(self._make_blank, number) for number in numbers]
            run_concurrently(calls, self.storage.max_requests)
            old = [range_path(number) for number in ranges_in(names) if number < base]
            yield stored(self.storage, [path for path in old if path not in kept], listed)

        def decide(view: LogView) -> LogEntry | None:
            return draft(view, EXPIRE, state={"blank": base}) if view.state.blank < base else None

        if self.denied.error is None:  # else bounds of deleted rows may be left in what came before
            self.log.append(decide, sync=True)

    def _make_blank(self, number: int) -> None:
        with contextlib.suppress(ObjectNotFoundError):  # another collection removed it
            self.log.make_blank(number)


def _of_tags(view: LogView) -> set[str]:
    """Return what is kept of segments that are removed."""
    return {range_path(tag.version) for tag in view.state.tags.values()}
