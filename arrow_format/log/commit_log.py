"""The commit log: which map outputs make up which version. One writer wins each number.

Entries are files that are put if absent, so each number has one winner; a slower writer reads the
entry that won and decides again. Nothing else keeps writers apart: see
:meth:`arrow_format.storage.protocol.Storage.put_if_absent`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import random
import time
import uuid
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import numpy as np
import pyarrow.compute as pc
from msgspec.structs import replace

from arrow_format.errors import (
    BackPressureTimeoutError,
    CommitConflictError,
    CorruptShuffleError,
    FormatVersionError,
    ShuffleError,
    StorageError,
)
from arrow_format.log.delta import Delta, decoded
from arrow_format.log.entry import (
    BLANK,
    FENCE,
    RESCALE,
    LogEntry,
    blank_of,
    check_entry,
    check_sections,
    decode_entry,
    encode_entry,
    jobs_of,
    join,
    with_range,
)
from arrow_format.log.framing import MASKS, readable
from arrow_format.log.job_ends import JobEnd, decode_removed, encode_removed
from arrow_format.log.names import (
    EXPIRED_DIRECTORY,
    entry_path,
    expired_path,
    last_checkpoint,
    link_of,
    numbers_of,
    range_path,
    segment_of,
    segments_in,
)
from arrow_format.log.outputs import NO_KEYS, NO_OUTPUTS, MapOutputs
from arrow_format.log.reader import LogReader, LogView
from arrow_format.log.state import LastCommit, PendingNumbers
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, Storage
from arrow_format.storage.protocol import PutRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from arrow_format.log.state import VersionShape
    from arrow_format.log.totals import Totals
    from arrow_format.model import Transaction


_LOGGER = logging.getLogger("arrow_shuffle")

_ATTEMPTS = 1000
_TRIES_IN_A_ROW = 3
_LONGEST_PAUSE = 1.5
"""How writers that lose share the log. A try, a put and reading the winner, takes as long as the
log needs for a number. A writer that has just read the winner is among the fastest to put the next
number, so it tries some in a row. If it loses all of these, there are many writers. Few of them
should try at a time, since each try costs requests: it pauses a random time, up to four times as
long as the last time, and at most this many seconds, since it does not see when the others end."""
_CHECKS = 3
"""How often the storage is asked whether an entry that was put is in the log."""
_READ_TOGETHER = 64
"""Entries in memory while a segment is listed."""


WRITER_FEATURES: tuple[str, ...] = ()
"""Features that who writes a log must know, of those that this release knows."""

DROPPED = "dropped"
"""A feature that only the removal of a shuffle knows: no other writer adds to its log."""


class AlreadyCommittedError(CommitConflictError):
    """The job of a commit is in the log already, by another process or an earlier try."""

    def __init__(self, root: str, job_id: str, version: int) -> None:
        super().__init__(f"{root}: job {job_id} is committed as version {version} already")
        self.version = version


class _Ended(Enum):
    """How an attempt to commit ended that neither won its number nor lost it."""

    WITH_NOTHING = auto()
    """Nothing is to be committed."""
    STALE = auto()
    """It was decided by what may no longer be true."""
    UNDONE = auto()
    """The entry came to where the log had been removed, and was removed again."""
    UNWRITTEN = auto()
    """Its temporary file was removed as a dead writer's before it had a name."""


class _Lost(NamedTuple):
    """Another writer won the number of an attempt."""

    view: LogView
    """The log with its entry."""
    seconds: float
    """How long the put took, and reading that entry."""


def _pause_after(num_losses: int, seconds: float) -> bool:
    """Whether to let other writers go first after so many losses, in which case it has paused."""
    if num_losses % _TRIES_IN_A_ROW:
        return False
    window = seconds * 4.0 ** (num_losses // _TRIES_IN_A_ROW)
    time.sleep(random.uniform(0, min(window, _LONGEST_PAUSE)))
    return True


class CommitLog(LogReader):
    """Reads and extends the log of one shuffle."""

    def __init__(self, storage: Storage, *, may_drop: bool = False) -> None:
        super().__init__(storage)
        self._may_drop = may_drop
        self.has_put = False
        """Whether the put of an entry was begun, and not refused."""
        self.is_answered = False
        """Whether the last put was answered: what it put, if anything, is durable."""
        self._checked: MapOutputs | None = None
        """Those of the last try, of which it is known that readers accept them."""

    def check_writers(self, view: LogView) -> None:
        """Raise FormatVersionError where only a newer release may write this log.

        And CommitConflictError where it is being removed, unless this is who may do that.
        """
        for feature in view.state.writers:
            if feature == DROPPED:
                if self._may_drop:
                    continue
                msg = (
                    f"{self.root}: is being removed by drop_shuffle, or was until that was killed; "
                    f"arrow-shuffle drop {self.root} finishes it, and then the path is free"
                )
                raise CommitConflictError(msg)
            if feature not in WRITER_FEATURES:
                msg = (
                    f"{self.root}: is written with feature {feature!r}, which this arrow-shuffle "
                    "does not know: it can be read; write it, and collect its garbage, with a "
                    "newer one"
                )
                raise FormatVersionError(msg)

    @property
    def is_unanswered(self) -> bool:
        """Whether a put of an entry ended without an answer: it may still be carried out."""
        return self._storage.puts_may_come_late and self.has_put and not self.is_answered

    def append(
        self,
        decide: Callable[[LogView], LogEntry | None],
        *,
        sync: bool,
        view: LogView | None = None,
        job_id: str | None = None,
        after: int = 0,
    ) -> LogEntry | None:
        """Commit what ``decide`` makes of the log; try again until it wins.

        Given the log, ``decide`` returns the entry to add, by :func:`draft`; returns None to commit
        nothing; or raises, which ends the commit. It is called again when another writer was
        faster. ``view`` is the log as it was a moment ago, where the caller has read it; a stale
        one costs time. ``job_id`` commits, and began ``after`` that number of the log. With
        ``sync`` the entry is durable on return.

        Raises CommitConflictError where the job was committed or given up meanwhile, or other
        writers won every number that this one tried; ShuffleError where readers would refuse the
        entry, which was not put; StorageError where the put or the check after it has no answer.
        """

        def decide_unless_ended(view: LogView) -> LogEntry | None:
            if job_id is not None and view.newest > after:
                self._check_not_ended(view, job_id, after)
            if job_id is not None and view.last is None and after:
                raise self.removed_error(job_id)
            return decide(view)

        given, num_losses = view, 0
        for _ in range(_ATTEMPTS):
            if view is None:
                view = self.view()
            ended = self._attempt(decide_unless_ended, view, is_fresh=view is not given, sync=sync)
            match ended:
                case LogEntry():
                    self._checkpoint_if_due(ended)
                    _LOGGER.info(
                        "%s: %s is number %d of the log: %d rows in %d bytes",
                        self.root, ended.operation, ended.version, ended.num_rows, ended.num_bytes,
                    )  # fmt: skip
                    return ended
                case _Ended.WITH_NOTHING:
                    return None
                case _Lost():
                    num_losses += 1
                    view = None if _pause_after(num_losses, ended.seconds) else ended.view
                case _Ended.STALE | _Ended.UNDONE:
                    view = None
                case _Ended.UNWRITTEN:
                    pass  # the log is as it was
        msg = (
            f"{self.root}: other writers committed {_ATTEMPTS} times while this one tried; run it "
            "again when fewer write concurrently"
        )
        raise CommitConflictError(msg)

    def _attempt(
        self,
        decide: Callable[[LogView], LogEntry | None],
        view: LogView,
        *,
        is_fresh: bool,
        sync: bool,
    ) -> LogEntry | _Lost | _Ended:
        """Try the next number once; return the entry that has it, or how else that ended."""
        self.check_writers(view)
        draft = self._draft(decide, view, is_fresh=is_fresh)
        if not isinstance(draft, LogEntry):
            return draft
        entry = _numbered(draft, view)
        # Its map outputs are the same bytes in each try.
        check = decode_entry if draft.map_outputs is self._checked else check_entry
        self._checked = draft.map_outputs
        began = time.monotonic()
        try:
            self._put(entry, check, sync=sync)
        except ObjectNotFoundError:
            return _Ended.UNWRITTEN
        except ObjectExistsError:
            view = self._after_loss(view, entry, has_listed=is_fresh)
            # The storage may have retried a put that had won.
            if view.last is None or view.last.commit_id != entry.commit_id:
                return _Lost(view, time.monotonic() - began)
        if self._holds(entry):
            return entry
        self._storage.delete(entry_path(entry.version))
        return _Ended.UNDONE

    def _draft(
        self, decide: Callable[[LogView], LogEntry | None], view: LogView, *, is_fresh: bool
    ) -> LogEntry | _Ended:
        """Return what is decided of the log, unless by what may no longer be true."""
        try:
            draft = self.read_at(view, decide)
        except BackPressureTimeoutError:
            raise
        except ShuffleError as error:
            # What was read may have been removed since by others, who went on.
            is_certain = is_fresh and not isinstance(error, CorruptShuffleError)
            if is_certain or self.view().newest == view.newest:
                raise
            return _Ended.STALE
        if draft is None:
            return _Ended.WITH_NOTHING if is_fresh else _Ended.STALE
        return draft

    def removed_error(self, job_id: str) -> CommitConflictError:
        """Return the error of a job whose shuffle was dropped while it ran."""
        return CommitConflictError(
            f"{self.root}: was removed, with the files of job {job_id}, while that ran; nothing "
            "was committed. Write the rows again"
        )

    def _check_not_ended(self, view: LogView, job_id: str, after: int) -> None:
        end = self.end_of(view, job_id, after=after)
        if end is None:
            return
        if not end.fenced:
            raise AlreadyCommittedError(self.root, job_id, end.version)
        msg = (
            f"{self.root}: job {job_id} was aborted, or given up by garbage collection since it "
            f"had written nothing for the time of its --retention (entry {end.version} of the "
            "commit log); nothing was committed, and its files are removed. Write the rows again, "
            "and collect with a retention longer than a job may be silent"
        )
        raise CommitConflictError(msg)

    def _put(self, entry: LogEntry, check: Callable[[bytes], object], *, sync: bool) -> None:
        path = entry_path(entry.version)
        data = readable(encode_entry(entry), check, f"{self.root}/{path}")
        self._storage.check_puts()  # while it is certain that nothing was put
        before = self.has_put, self.is_answered
        self.has_put, self.is_answered = True, False
        try:
            self._storage.put_if_absent(path, data, sync=sync)
        except PutRefusedError as error:
            self.has_put, self.is_answered = before
            if self.has_put:
                raise
            msg = f"{self.root}: the store refused the commit, so there is no new version ({error})"
            raise PutRefusedError(msg) from error
        except (ObjectExistsError, ObjectNotFoundError):
            self.is_answered = True
            raise
        self.is_answered = True

    def _after_loss(self, view: LogView, ours: LogEntry, *, has_listed: bool) -> LogView:
        """Return the log with the entry that won a number, or as a listing shows it."""
        with contextlib.suppress(ObjectNotFoundError):  # it has been removed since
            winner = self.record(ours.version)
            # Of a log that was listed a moment ago, the entry that won is mostly the newest.
            if winner.commit_id == ours.commit_id or (has_listed and winner.parent == ours.parent):
                return LogView(winner, max(view.checkpoint, winner.state.checkpoint))
        return self.view()

    def _holds(self, entry: LogEntry) -> bool:
        """Whether an entry that was just put is in the log, and not where one had been removed.

        It is asked several times, since no answer does not undo the commit.
        """
        for attempt in range(_CHECKS):
            try:
                removed = self.removed(segment_of(entry.version))
            except StorageError as error:
                unanswered = error
                time.sleep(0.1 * 4**attempt)
            else:
                if removed is None:
                    return not self._is_first_by_removal(entry.version)
                if entry.commit_id in removed.commit_ids:
                    return True
                before = entry.version - 1
                is_in_it = before and segment_of(before) == segment_of(entry.version)
                if is_in_it and entry.parent not in removed.commit_ids:
                    raise self.wrong_list(segment_of(before), before)
                return False
        msg = (
            f"{self.root}/{entry_path(entry.version)}: was put durably, but the storage did not "
            f"say whether that was before the log around it was removed ({unanswered}). Look at "
            "the newest version before you try again"
        )
        raise StorageError(msg) from unanswered

    def _is_first_by_removal(self, number: int) -> bool:
        """Whether the log before an entry that was just put was dropped since it was read.

        A store is not asked: that would take a request of each commit.
        """
        return (
            self._storage.has_directories
            and number > 1
            and self._storage.stat(entry_path(number - 1)) is None
            and not self.is_removed(segment_of(number - 1))
        )

    def give_up(self, job_id: str, *, after: int, sync: bool, failed: bool = False) -> bool:
        """Let a job never be committed; False where it is committed already.

        An entry of the job that is still on its way to a store finds its number taken.
        """
        gave_up = True

        def decide(view: LogView) -> LogEntry | None:
            nonlocal gave_up
            end = self.end_of(view, job_id, after=after)
            gave_up = end is None or end.fenced
            if end is not None:
                return None
            return draft(view, FENCE, gives_up=(job_id,), failed=failed)

        self.append(decide, sync=sync)
        return gave_up

    def _checkpoint_if_due(self, entry: LogEntry) -> None:
        """Put the checkpoint of the last multiple of the interval, if that falls to this commit.

        It falls to the writer of that number; if that died, to the writers of some later numbers.
        """
        due = last_checkpoint(entry.version)
        if due > max(entry.state.checkpoint, entry.state.base) and (entry.version - due) % 8 == 0:
            # The commit is published. A later writer will try again.
            with contextlib.suppress(ShuffleError):
                self.put_checkpoint(entry, due)

    def put_checkpoint(self, newest: LogEntry, number: int) -> None:
        """Put the checkpoint of a number of the log, unless it exists.

        Durable always: durable entries may be removed because of it.
        """
        # Not by itself, where it is to be made again.
        before = newest.state.checkpoint
        view = LogView(newest, before if before < number else 0)
        piece = self.read_at(view, lambda view: self._joined(view, number, link_of(number)))
        self._put_piece(piece)

    def put_base(self, view: LogView, number: int) -> None:
        """Put everything up to a number of the log as one file, and read it back.

        It takes the place of a checkpoint of that number: who builds on that finds there what it
        had, and more. Entries may be removed after that. Raises CorruptShuffleError where it is
        damaged.
        """
        path = range_path(number)
        whole = self.read_at(view, lambda view: self._joined(view, number, 0))
        # A job of which nothing is left, and which the list of a removed segment has, is forgotten.
        listed = set(segments_in(self._storage.list(EXPIRED_DIRECTORY)))
        unlisted = next(segment for segment in count() if segment not in listed)
        jobs, first = decoded(whole.delta.jobs), numbers_of(unlisted).start
        is_left = pc.is_in(jobs.column("job_id"), whole.delta.added.table.column("job_id").unique())
        is_kept = pc.or_(is_left, pc.greater_equal(jobs.column("number"), first))
        delta = dataclasses.replace(whole.delta, jobs=jobs.filter(is_kept).combine_chunks())
        self._put_piece(with_range(whole, delta))
        stored = self._load(path, number)
        check_sections(stored)
        same = (
            stored.delta.added.table.equals(whole.delta.added.table)
            and stored.state.applications == whole.state.applications
            and np.array_equal(
                decoded(stored.delta.totals) or (), decoded(whole.delta.totals) or ()
            )
        )
        if stored.commit_id != whole.commit_id or stored.span.after or not same:
            msg = f"{self.root}/{path}: differs from what was put; remove it and collect again"
            raise CorruptShuffleError(msg)

    def _joined(self, view: LogView, number: int, floor: int) -> LogEntry:
        pieces = self.pieces(view, number, floor=floor, within=True)
        entry = self.record(number)
        earlier = self.earlier_applications(entry, view.state.base)
        return join(pieces, {**earlier, **entry.state.applications})

    def _put_piece(self, piece: LogEntry) -> None:
        number, path = piece.version, range_path(piece.version)
        data = readable(encode_entry(piece), decode_entry, f"{self.root}/{path}")
        try:
            self._storage.put_if_absent(path, data, sync=True)
        except ObjectExistsError:  # another writer put the same, or a part of it
            if not piece.span.after and self._load(path, number).span.after:
                self._storage.replace(path, data, sync=True)

    def make_blank(self, number: int) -> None:
        """Leave nothing of an entry before the base but what says that it was put.

        Its number stays taken, so that no late writer gets it. Durable, as the base is.
        """
        entry = self.named(number)
        if entry.operation != BLANK:
            path = entry_path(number)
            data = readable(encode_entry(blank_of(entry)), decode_entry, f"{self.root}/{path}")
            self._storage.replace(path, data, sync=True)

    def put_removed(self, segment: int) -> None:
        """Put what remains of a segment, whose entries may be removed after that."""
        commit_ids: list[str] = []
        jobs, receipts = [], {}
        numbers = numbers_of(segment)
        try:
            for start in range(0, len(numbers), _READ_TOGETHER):
                reader = LogReader(self._storage)  # keeps what it has read
                read = numbers[start : start + _READ_TOGETHER]
                for entry in reader.records(read, blank=True).values():
                    commit_ids.append(entry.commit_id)
                    jobs.append(jobs_of(entry))
                    if entry.receipt is not None:
                        receipts[entry.version] = entry.receipt
        except ObjectNotFoundError:
            if self.is_removed(segment):
                return  # another collection did the same, and has gone on
            raise
        with contextlib.suppress(ObjectExistsError):  # another collection did the same
            path = expired_path(segment)
            data = encode_removed(commit_ids, jobs, receipts)
            readable(data, decode_removed, f"{self.root}/{path}")
            self._storage.put_if_absent(path, data, sync=True)


class EntryFields(TypedDict, total=False):
    """What an operation says besides the state, see :class:`LogEntry`."""

    job_id: str
    transaction: Transaction | None
    receipt: dict[str, Any]
    gives_up: tuple[str, ...]
    failed: bool
    map_outputs: MapOutputs
    removed: pa.Array
    totals: Totals
    counters: dict[str, int]
    pending_shape: VersionShape


def draft(
    view: LogView,
    operation: str,
    /,
    state: Mapping[str, Any] | None = None,
    **fields: Unpack[EntryFields],
) -> LogEntry:
    """Return an entry that continues the log; its number is set when it is committed.

    ``state`` has what it changes of the log's state, by name.
    """
    given: dict[str, Any] = {**fields}
    content = {"removed": given.pop("removed", NO_KEYS), "totals": given.pop("totals", None)}
    outputs = given.pop("map_outputs", NO_OUTPUTS)
    return LogEntry(
        version=0,
        operation=operation,
        commit_id=uuid.uuid4().hex,
        parent=None,
        committed_at_ms=time.time_ns() // 1_000_000,
        state=replace(view.state, **(state or {})),
        content=Delta(outputs, **content),
        **given,
    )


def _numbered(entry: LogEntry, view: LogView) -> LogEntry:
    """Return a draft with what depends on its number and on the entry before it."""
    number, last = view.newest + 1, view.last
    state = entry.state
    known = max(view.checkpoint, state.base)
    kept = {name: last for name, last in state.applications.items() if last.version > known}
    if entry.transaction is not None:
        kept[entry.transaction.application_id] = LastCommit(number, entry.transaction.number)
    jobs = {job_id: end for job_id, end in state.jobs.items() if end.version > known}
    jobs |= dict.fromkeys(entry.gives_up, JobEnd(number, fenced=True))
    if entry.job_id is not None:
        jobs[entry.job_id] = JobEnd(number, fenced=False)
    changes: dict[str, Any] = {"checkpoint": view.checkpoint, "applications": kept, "jobs": jobs}
    if entry.is_version:
        changes["version"] = number
        if entry.adds_rows:
            changes["content"] = number
        if entry.operation not in ("merge", RESCALE):
            changes["changed"] = number
        if entry.operation == "delete":
            changes["deleted"] = number
        if entry.operation not in ("rollback", "alter") and state.shape is not None:
            changes["shape"] = _with_age(state.shape, view.state.shape, number)
    if entry.is_pending:
        pending = (*state.pending.numbers, number)
        before = state.pending
        changes["pending"] = PendingNumbers.of(pending, before.flushed_at_ms, before.interval_ms)
    if entry.released is not None:
        changes["released"] = replace(entry.released, at=number)
        if entry.released.ended:
            changes["ended"] = number
    if entry.operation == "rollback":
        changes["restored"] = (*state.restored, number)
    outputs = entry.map_outputs.at_version(number)
    if outputs.has_masks and MASKS not in state.readers:
        changes["readers"] = (*state.readers, MASKS)
    return replace(
        entry,
        version=number,
        parent=None if last is None else last.commit_id,
        committed_at_ms=max(entry.committed_at_ms, 0 if last is None else last.committed_at_ms),
        state=replace(state, **changes),
        content=dataclasses.replace(entry.content, added=outputs),
        num_outputs=len(outputs),
        num_rows=outputs.num_rows,
        num_bytes=outputs.num_bytes,
    )


def _with_age(shape: VersionShape, before: VersionShape | None, number: int) -> VersionShape:
    """Return the shape of a version with the number since which it has its bounds."""
    since = 0
    if "bounds" in shape.partitioner:
        is_same = before is not None and before.partitioner == shape.partitioner
        since = before.bounds_since if is_same and before is not None else number
    return shape if since == shape.bounds_since else replace(shape, bounds_since=since)
