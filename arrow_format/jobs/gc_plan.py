"""What garbage collection may give up and remove, planned by one view of the log.

All here only reads: :mod:`arrow_format.jobs.garbage` carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from arrow_format.arrays.buffers import text_array, to_arrow, to_numpy, to_scalar
from arrow_format.concurrency import run_concurrently
from arrow_format.jobs.gc_files import Hold, JobFiles, ListedFiles
from arrow_format.jobs.job_files import job_directory
from arrow_format.jobs.live_outputs import live_outputs, num_among
from arrow_format.jobs.reader_holds import reader_holds
from arrow_format.jobs.retention import first_wanted
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.names import last_checkpoint, segment_of
from arrow_format.log.version_names import first_true
from arrow_format.storage.local_dirs import ROOT_LIST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from arrow_format.log.commit_log import CommitLog
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.outputs import MapOutputs
    from arrow_format.log.reader import LogView
    from arrow_format.model import MapOutput
    from arrow_format.storage.open import Storage
    from arrow_format.storage.root_owner import Claim

MOST_AHEAD_MS = 3_600_000
"""How far a writer's clock is believed to be ahead of the storage's at most."""

SWEPT_TOGETHER = 64
"""Jobs that ended whose files were looked through, until the log says so."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a collection may do, by one view of the log."""

    view: LogView
    oldest: int
    """The oldest version to keep: those before it may expire."""
    base: int
    """The number to keep the log from; the present one where no segment would go."""
    swept: int
    """The number up to which no task of an ended job still writes."""
    holds: tuple[Hold, ...]
    silent: tuple[str, ...]
    """Unfinished jobs that wrote nothing within the retention: they may be given up."""
    running: tuple[str, ...]
    """Other unfinished jobs."""
    suspects: frozenset[str]
    """Ended jobs that may have files that nothing needs."""
    needed: tuple[MapOutput, ...]
    """Map outputs of these jobs whose files must stay."""

    @property
    def is_due(self) -> bool:
        """Whether the log should say that versions expired, or what else may be forgotten."""
        state = self.view.state
        return (
            self.oldest > state.oldest
            or self.base > state.base
            or self.swept - state.swept >= SWEPT_TOGETHER
        )


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans one collection."""

    files: ListedFiles
    log: CommitLog
    retention: timedelta | None
    """None: nothing expires, and no job is given up, by its age."""
    now_ms: int
    claim: Callable[[], Claim]
    """Returns what the shuffle says of itself, for local roots."""
    compacts: bool = False
    """Whether the log begins with the oldest version to keep, or what is pending before it."""
    times: dict[int, int] = field(default_factory=dict)
    """When entries were committed, of those that were asked for."""

    @property
    def storage(self) -> Storage:
        """The shuffle."""
        return self.files.storage

    @property
    def cutoff_ms(self) -> int:
        """Milliseconds since 1970: what happened by then is past the retention; 0 for nothing."""
        if self.retention is None:
            return 0
        return self.now_ms - self.retention // timedelta(milliseconds=1)

    def plan(self, view: LogView, *, ahead: bool = False) -> Plan:
        """Plan by a view; ``ahead`` as if what it gives up had been given up in the log already."""
        state = view.state
        recent = self._first_recent(view)
        oldest, holds = self._oldest(view, recent)
        swept = max(recent - 1, state.swept)
        names = self.files.jobs()
        first = oldest if ahead else state.oldest
        kept = live_outputs(self.log, view, first)
        ends = self.log.ended_jobs(view)
        ended = jobs_in(ends.column("job_id"), names) | kept.job_ids
        running, silent, late = self._by_age(view, names - ended)
        dead = late | silent if ahead else late
        chosen = dead | self._not_cleared(ends, names, max(swept, state.oldest - 1))
        chosen |= suspects(ends, kept, first, range(state.swept + 1, swept + 1), names)
        return Plan(
            view=view,
            oldest=oldest,
            base=self._base(view, oldest),
            swept=swept,
            holds=tuple(holds),
            silent=tuple(sorted(silent)),
            running=tuple(sorted(running)),
            suspects=frozenset(chosen),
            needed=tuple(self._needed(ends, kept, first, chosen)),
        )

    def is_past(self, when_ms: int | None) -> bool:
        """Whether something happened by the cutoff; what has no time happened now."""
        return (self.now_ms if when_ms is None else when_ms) <= self.cutoff_ms

    def is_old(self, entry: LogEntry) -> bool:
        """Whether an entry was committed by the cutoff."""
        if entry.version not in self.times:
            self.times[entry.version] = self._committed_ms(entry)
        return self.is_past(self.times[entry.version])

    def _committed_ms(self, entry: LogEntry) -> int:
        """Return when an entry was committed, by the later clock: its writer's or the storage's.

        A writer's clock that is far ahead would keep everything before that version for as long.
        """
        modified = self.log.put_at_ms(entry.version)
        if modified is None:
            return entry.committed_at_ms
        return max(modified, min(entry.committed_at_ms, modified + MOST_AHEAD_MS))

    def _first_recent(self, view: LogView) -> int:
        """Return the first kept number that was committed within the retention."""
        if not self.cutoff_ms:
            return view.oldest
        numbers = view.oldest, view.newest + 1
        return first_true(*numbers, lambda number: not self.is_old(self.log.record(number)))

    def _oldest(self, view: LogView, recent: int) -> tuple[int, list[Hold]]:
        """Return the oldest version to keep, and what keeps it and others."""
        state, log = view.state, self.log
        holds = [Hold("tag", name, tag.version) for name, tag in state.tags.items()]
        if state.pending.numbers:
            waiting = f"{len(state.pending.numbers)} commits"
            holds.append(Hold("pending", waiting, state.pending.numbers[0]))
        if state.shape is None:
            return state.oldest, holds
        by_age = state.oldest
        if recent > state.oldest:
            # A version is superseded when the next one is committed; times never go back.
            by_age = max(log.record(recent - 1).state.version, by_age)
        oldest = by_age
        progress: dict[str, int] = {}
        if not state.shape.result.type.is_persistent:
            progress = ConsumerRegistry(self.storage).all_progress()
            if state.released is not None:
                oldest = max(oldest, state.released.at)
        if state.is_ended:
            oldest = state.ended
        slowest = min(progress.values(), default=None)
        if slowest is None and state.shape.result.type.has_back_pressure:
            slowest = self._before_first_consumer(view)
        after = first_wanted(state, slowest)
        if after is not None:
            number = max(after + 1, state.oldest)
            while number < oldest and not log.record(number).adds_rows:
                number += 1
            if number < oldest:
                oldest = number
                waiting_for = [name for name, version in progress.items() if version <= after]
                name = ", ".join(sorted(waiting_for)) or "that is still to come"
                holds.append(Hold("consumer", name, oldest))
        oldest = max(oldest, state.oldest)
        if oldest > max(state.oldest, state.ended):
            # Looked for after the log was read: see VersionHold.
            readers = reader_holds(self.storage, self.now_ms)
            kept = [hold for hold in readers if hold.version < oldest and hold.keeps(state)]
            holds += [Hold("reader", str(hold), hold.version) for hold in kept]
            oldest = min([oldest, *(hold.version for hold in kept)])
        if oldest == by_age < state.version and self.retention is not None:
            holds.append(Hold("retention", str(self.retention), oldest))
        return oldest, sorted(holds, key=lambda hold: hold.version)

    def _before_first_consumer(self, view: LogView) -> int:
        """Return a version up to which nothing waits for the first consumer of a bounded result.

        What was overwritten does not; the bound counts versions, so that the others are kept.
        """
        newest = self.log.snapshot_of(view)
        if newest is None or not len(newest.map_outputs):
            return view.state.content
        return int(newest.map_outputs.versions.min()) - 1

    def _base(self, view: LogView, oldest: int) -> int:
        """Return a number at which a checkpoint ends that the newest ones are built on.

        So they can be read where it is the base. See :attr:`Plan.base`.
        """
        state = view.state
        limit = min([oldest, *state.pending.numbers[:1]])
        if self.compacts and state.version:
            return max(limit, state.base)
        ends = [piece.version for piece in self.log.pieces(view, view.newest)]
        base = max((end for end in ends if last_checkpoint(end) == end <= limit), default=0)
        return base if segment_of(base) > segment_of(state.base) else state.base

    def _by_age(self, view: LogView, unfinished: set[str]) -> tuple[set[str], set[str], set[str]]:
        """Divide jobs with files of which the kept part of the log says no end.

        They wrote within the retention; or not; or not, and they ended in a removed segment, and
        tasks have put files since.
        """
        if not self.cutoff_ms:
            return unfinished, set(), set()

        def is_silent(job_id: str) -> bool:
            files = JobFiles.of(self.files, job_id, (), self.claim)
            return self.is_past(files.modified_ms())

        jobs = sorted(unfinished)
        looks = run_concurrently(
            [partial(is_silent, job_id) for job_id in jobs], self.storage.max_requests
        )
        silent = {job_id for job_id, is_old in zip(jobs, looks, strict=True) if is_old}
        late = set()
        if silent:
            late = jobs_in(self.log.jobs_in_removed(view).column("job_id"), silent)
        return unfinished - silent, silent - late, late

    def _not_cleared(self, ends: pa.Table, names: set[str], after: int) -> set[str]:
        """Return jobs committed after a number that could not clear a local root.

        They left the list of their roots, though the log names no file in one.
        """
        if not self.storage.has_directories:
            return set()  # a shuffle in an object store has no local roots
        listed = {
            job_id
            for job_id in jobs_in(_committed(ends, after).column("job_id"), names)
            if self.storage.stat(f"{job_directory(job_id)}/{ROOT_LIST_NAME}") is not None
        }
        return {
            entry.job_id or ""
            for entry in self._entries(ends, listed, after)
            if not any(file.root for output in entry.map_outputs for file in output.files)
        }

    def _needed(
        self, ends: pa.Table, kept: MapOutputs, first: int, jobs: set[str]
    ) -> list[MapOutput]:
        """Return map outputs of some jobs that versions from ``first`` on have, or what is kept."""
        entries = self._entries(ends, jobs, first)
        added = [output for entry in entries if entry.is_version for output in entry.map_outputs]
        return [*kept.of_jobs(jobs), *added]

    def _entries(self, ends: pa.Table, jobs: set[str], after: int) -> Collection[LogEntry]:
        """Read the entries after a number that committed some jobs."""
        later = _committed(ends, after)
        of_jobs = pc.is_in(later.column("job_id"), text_array(jobs))
        return self.log.records(later.filter(of_jobs).column("number").to_pylist()).values()


def _committed(ends: pa.Table, after: int) -> pa.Table:
    is_later = pc.greater(ends.column("number"), to_scalar(after, pa.int64()))
    return ends.filter(pc.and_not(is_later, ends.column("fenced")))


def jobs_in(column: pa.ChunkedArray, names: Iterable[str]) -> set[str]:
    """Return those of some jobs that a column has."""
    return set(column.filter(pc.is_in(column, text_array(names))).to_pylist())


def suspects(
    ends: pa.Table, kept: MapOutputs, oldest: int, sweeps: range, names: set[str]
) -> set[str]:
    """Return jobs that may have files that no version needs, of those that have files. Pure.

    These are jobs that were given up, jobs of which a version before ``oldest`` had more map
    outputs than are kept, or of which some are masked that are kept, whose first masks may have
    been of the job itself, and jobs that ended at the numbers ``sweeps``, whose tasks may have put
    files since: each is looked through once, when none of its tasks can still write.
    """
    number, outputs, fenced = (
        to_numpy(ends.column(name).combine_chunks()) for name in ("number", "num_outputs", "fenced")
    )
    masked = pc.is_in(ends.column("job_id"), kept.jobs_of_masked)
    has_dead = (
        (num_among(ends, kept) < outputs) | (outputs == 0) | to_numpy(masked.combine_chunks())
    )
    has_dead &= number <= oldest
    is_swept = (number >= sweeps.start) & (number < sweeps.stop)
    chosen = np.asarray(fenced, bool) | has_dead | is_swept
    return jobs_in(ends.column("job_id").filter(to_arrow(chosen)), names)
