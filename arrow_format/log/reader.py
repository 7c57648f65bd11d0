"""Reads the commit log of a shuffle: its versions, and how jobs ended.

A reader lists the segments and the newest of them, reads the newest entry, and by that knows what
else to read: checkpoints, which each hold many entries, and the entries after them. Each names the
commit before it, so that all belong to one history. Garbage collection removes segments whose
versions have expired, and a late writer may put an entry at a number that is free again: a reader
checks last that no segment that it used was being removed, and reads again if so.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import (
    CorruptShuffleError,
    FormatVersionError,
    ShuffleError,
    ShuffleNotFoundError,
)
from arrow_format.log.delta import compose, decoded
from arrow_format.log.entry import (
    BLANK,
    ERASE,
    EXPIRE,
    FENCE,
    TAG,
    LogEntry,
    decode_entry,
    end_of_job,
)
from arrow_format.log.job_ends import (
    JobEnd,
    RemovedSegment,
    decode_removed,
    end_in,
    join_jobs,
)
from arrow_format.log.names import (
    DAMAGED_DIRECTORY,
    LOG_DIRECTORY,
    entries_in,
    entry_path,
    expired_path,
    range_path,
    ranges_in,
    segment_of,
    segment_path,
    segments_in,
)
from arrow_format.log.snapshot import Snapshot
from arrow_format.log.state import LogState
from arrow_format.storage.open import ObjectNotFoundError, Storage, names_in_use
from arrow_format.storage.protocol import SHARED_PATH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from arrow_format.log.state import LastCommit, VersionShape


_MAX_READS = 10
"""How often one read begins again because the log changed meanwhile."""

_LIST_ADVICE = (
    "Restore it from a copy; or, where the entries of that segment are there, remove it: it is "
    "made again"
)

T = TypeVar("T")

_EMPTY = LogState()

_NO_VERSION = {
    FENCE: "gives up unfinished jobs",
    EXPIRE: "lets versions expire",
    TAG: "changes a tag",
    ERASE: "notes a deletion of rows that only earlier versions may have",
}


@dataclass(frozen=True, slots=True)
class LogView:
    """The log as it was at one moment: its newest entry, and what that says of the others."""

    last: LogEntry | None = None
    """The entry of the newest number; None of an empty log."""
    checkpoint: int = 0
    """The newest checkpoint that a listing showed; 0 for none."""

    def __reduce__(self) -> tuple[type[LogView], tuple[()]]:
        # Another process reads the log itself.
        return LogView, ()

    @property
    def state(self) -> LogState:
        """The state of the log."""
        return _EMPTY if self.last is None else self.last.state

    @property
    def shape(self) -> VersionShape | None:
        """Shape of the newest version; None where there is none, or the result was released."""
        return None if self.state.is_ended else self.state.shape

    @property
    def newest(self) -> int:
        """Number of the newest entry, which need not be a version; 0 in an empty log."""
        return 0 if self.last is None else self.last.version

    @property
    def oldest(self) -> int:
        """The oldest version that has not expired; 1 when none ever did."""
        return self.state.oldest


class LogReader:
    """Reads the log of one shuffle, and keeps what it has read."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._entries: dict[int, LogEntry] = {}
        self._ranges: dict[int, LogEntry] = {}
        self._lowest: int | None = None
        """The lowest number that the present read used."""
        self._view: LogView | None = None
        """Of the present read; None between reads."""

    @property
    def root(self) -> str:
        """Path or URI of the shuffle."""
        return self._storage.root

    @property
    def max_requests(self) -> int:
        """How many entries are read concurrently; 1 where a read needs no waiting."""
        return self._storage.max_requests

    def view(self) -> LogView:
        """List the log and read its newest entry; raises as :meth:`record`.

        For a writer, which learns from its put whether that was true; a reader uses :meth:`read`.
        """
        for _ in range(_MAX_READS):
            with contextlib.suppress(ObjectNotFoundError):
                return self._listed()  # else it was removed since the listing
        return self._listed()

    def _listed(self) -> LogView:
        segments = segments_in(self._storage.list(LOG_DIRECTORY))
        for segment in reversed(segments):
            names = self._storage.list(segment_path(segment))
            numbers = [n for n in entries_in(names) if segment_of(n) == segment]
            if not numbers:
                continue  # a writer has made it, and has not put its entry
            last = self.record(numbers[-1])
            shown = (number for number in ranges_in(names) if number <= last.version)
            return LogView(last, max(last.state.checkpoint, *shown, 0))
        # The first goes first; a writer may have made the last one, and only begun its put.
        if segments and self.is_removed(segments[0]):
            raise ObjectNotFoundError(f"{self.root}: all that a listing showed was removed since")
        return LogView()

    def newest_version(self) -> int:
        """Return the newest number of the log; 0 when nothing was ever committed."""
        return self.view().newest

    def read(self, of: Callable[[LogView], T]) -> T:
        """Return what ``of`` makes of the log; call it again when the log changes meanwhile.

        A read within a read is part of it, and has the same view.
        """
        if self._view is not None:
            return of(self._view)
        for attempt in range(_MAX_READS):
            if attempt:
                self._forget()
            self._lowest = None
            try:
                self._view = self.view()
                result = of(self._view)
            except ObjectNotFoundError:
                view, self._view = self._view, None
                if attempt and view is not None and self.newest_version() == view.newest:
                    raise
                continue
            except ShuffleError:
                # The error may come of an entry that its writer takes back.
                if self._is_current():
                    raise
                continue
            finally:
                self._view = None
            if self._is_current():
                return result
        if self._lowest is not None:
            self._check_list(self._lowest)
        msg = f"{self.root}: the log changes faster than it is read; read again"
        raise CorruptShuffleError(msg)

    def _check_list(self, number: int) -> None:
        """Raise CorruptShuffleError where the list of a removed segment lacks an entry of it."""
        segment = segment_of(number)
        removed = self.removed(segment)
        with contextlib.suppress(ObjectNotFoundError):
            entry = self.record(number)
            if removed is not None and entry.commit_id not in removed.commit_ids:
                raise self.wrong_list(segment, number)

    def wrong_list(self, segment: int, number: int) -> CorruptShuffleError:
        """Return the error of a list that does not have an entry that is there."""
        return CorruptShuffleError(
            f"{self.root}/{expired_path(segment)}: does not list entry {number}, which is there: "
            f"it is of another log. {_LIST_ADVICE}"
        )

    def read_at(self, view: LogView, of: Callable[[LogView], T]) -> T:
        """Return what ``of`` makes of the log as it was; reads within it have the same view."""
        before, self._view = self._view, view
        try:
            return of(view)
        finally:
            self._view = before

    def put_at_ms(self, number: int) -> int | None:
        """Return when the entry of a number was put, by the storage's clock; None if unknown."""
        stat = self._storage.stat(entry_path(number))
        return stat.modified_ms if stat else None

    def _is_current(self) -> bool:
        """Whether all that this read used was still in the log when it was read."""
        # Segments are removed in ascending order, after the list of what they held was put.
        return self._lowest is None or not self.is_removed(segment_of(self._lowest))

    def is_removed(self, segment: int) -> bool:
        """Whether the entries of a segment were removed, or are about to be."""
        # By reading it: where it is absent, a store would be asked for a directory, too.
        return self.removed(segment) is not None

    def _forget(self) -> None:
        self._entries.clear()
        self._ranges.clear()

    def _use(self, number: int) -> None:
        self._lowest = number if self._lowest is None else min(self._lowest, number)

    def record(self, number: int) -> LogEntry:
        """Read the entry of a number, verified.

        Raises CorruptShuffleError or FormatVersionError where it is damaged or from a newer format
        version, and ObjectNotFoundError where it is not there, or blank: what it said is in a base
        that a newer view shows.
        """
        entry = self.named(number)
        if entry.operation == BLANK:
            msg = (
                f"{self.root}/{entry_path(number)}: was made blank since; its base has what it said"
            )
            raise ObjectNotFoundError(msg)
        return entry

    def named(self, number: int) -> LogEntry:
        """Read the entry of a number, which may be blank; else as :meth:`record`."""
        self._use(number)
        known = self._entries.get(number)
        if known is not None:
            return known
        path = entry_path(number)
        try:
            entry = self._load(path, number)
        except ObjectNotFoundError as error:
            msg = (
                f"{self.root}/{path}: is not there, and the log goes on after it; an entry was "
                f"deleted. Restore it from a backup, or give up what follows: arrow-shuffle repair "
                f"{self.root}"
            )
            raise ObjectNotFoundError(msg) from error
        self._entries[number] = entry
        return entry

    def _load(self, path: str, number: int) -> LogEntry:
        where = f"{self.root}/{path}"
        with _located(where):
            entry = decode_entry(self._storage.read(path), where)
        is_entry = path == entry_path(number)
        if entry.version != number or (entry.range is None) != is_entry:
            kind = "entry" if entry.range is None else "range"
            msg = f"{where}: is the {kind} of number {entry.version}"
            raise CorruptShuffleError(msg)
        return entry

    def records(self, numbers: Sequence[int], *, blank: bool = False) -> dict[int, LogEntry]:
        """Read entries, concurrently where each waits for a store; ``blank`` ones too, if asked.

        Raises as :meth:`record`; of several that are damaged, for the first of ``numbers``.
        """
        if numbers:
            self._use(min(numbers))  # here, since threads would overwrite what others note
        read = self.named if blank else self.record
        reads = [partial(read, number) for number in numbers]
        return dict(zip(numbers, run_concurrently(reads, self.max_requests), strict=True))

    def entry(self, version: int, commit_id: str | None = None) -> LogEntry:
        """Read the entry of one version, verified.

        An entry with the expected ``commit_id`` is believed without reading the rest of the log;
        any other is returned as if none was expected. Raises ShuffleNotFoundError where the version
        has expired, or that number is no version; else as :meth:`record`.
        """
        if commit_id is not None:
            with contextlib.suppress(ObjectNotFoundError):
                entry = self.record(version)
                if entry.is_version and entry.commit_id == commit_id:
                    return entry

        def read(view: LogView) -> LogEntry:
            tag = self.tag_of(view, version)
            return self.entry_at(view, version) if tag is None else self._tagged(tag, version)

        return self.read(read)

    def tag_of(self, view: LogView, version: int) -> str | None:
        """Return the name of a tag that keeps a version, if that has expired."""
        tags = view.state.tags.items() if version < view.oldest else ()
        return next((name for name, tag in tags if tag.version == version), None)

    def _tagged(self, name: str, version: int) -> LogEntry:
        """Read all up to a tagged version, which stays when its segment is removed."""
        path = range_path(version)
        advice = (
            f"restore it from a copy, or give the tag up: arrow-shuffle tag {self.root} {name} "
            "--remove"
        )
        try:
            return self._whole(self._load(path, version))
        except ObjectNotFoundError as error:
            msg = f"{self.root}/{path}: is not there, and tag {name} needs it; {advice}"
            raise ObjectNotFoundError(msg) from error
        except CorruptShuffleError as error:
            msg = f"{error}; {advice}"
            raise CorruptShuffleError(msg) from error

    def entry_at(self, view: LogView, version: int) -> LogEntry:
        """Read the entry of one version that has not expired; see :meth:`entry`."""
        newest = view.state.version
        others = f"there are versions {view.oldest} to {newest}" if newest else "there are none"
        tagged = sorted({tag.version for tag in view.state.tags.values()})
        if kept := ", ".join(str(number) for number in tagged if number < view.oldest):
            others += f", and by tags {kept}"
        if not 1 <= version <= view.newest:
            problem = f"is not there; {others}"
        elif version < view.oldest:
            problem = f"has expired and was removed by garbage collection; {others}"
        elif (entry := self.record(version)).is_version:
            return entry
        else:
            why = _NO_VERSION.get(entry.operation, "has rows that wait to be flushed")
            problem = f"is not there; that number {why}. Open the version before, or after"
        msg = f"{self.root}: version {version} {problem}"
        raise ShuffleNotFoundError(msg)

    def committed(self, number: int) -> LogEntry:
        """Read the entry of one commit, of a version or pending; raises as :meth:`entry`."""

        def read(view: LogView) -> LogEntry:
            is_kept = number in view.state.pending.numbers or number >= view.oldest
            if is_kept and self.record(number).is_pending:
                return self.record(number)
            return self.entry_at(view, number)

        return self.read(read)

    def newest_entry(self, view: LogView) -> LogEntry | None:
        """Return the entry of the newest version, if any."""
        if view.last is not None and view.last.is_version:
            return view.last
        return self.record(view.state.version) if view.state.version else None

    def snapshot(self, version: int | None = None) -> Snapshot | None:
        """Return the given or the newest version; None when nothing was ever committed.

        Raises ShuffleNotFoundError where the version does not exist, or has expired.
        """
        return self.read(lambda view: self.snapshot_of(view, version))

    def snapshot_of(self, view: LogView, version: int | None = None) -> Snapshot | None:
        """Return the given or the newest version; see :meth:`snapshot`."""
        if version is None:
            return self.version_at(view, view.state.version) if view.state.version else None
        return self.version_at(view, version)

    def version_at(self, view: LogView, version: int) -> Snapshot:
        """Return the given version; raises as :meth:`snapshot`."""
        tag = self.tag_of(view, version)
        if tag is not None:
            entry = self._tagged(tag, version)
            return Snapshot.of(entry, entry.delta)
        return self.content_at(view, self.entry_at(view, version))

    def content_at(self, view: LogView, entry: LogEntry) -> Snapshot:
        """Return the version that an entry publishes."""
        pieces = self.pieces(view, entry.version, to_content=True)
        return Snapshot.of(entry, compose([piece.delta for piece in pieces]))

    def pieces(
        self,
        view: LogView,
        number: int,
        *,
        floor: int = 0,
        within: bool = False,
        to_content: bool = False,
    ) -> list[LogEntry]:
        """Return what the log says of the numbers after ``floor`` up to another: few reads.

        They ascend and are adjacent. The first may begin before the floor; if ``within``, only
        where the log does not go back to that. ``to_content`` leaves out those before the last one
        that begins a shuffle.
        """
        pieces: list[LogEntry] = []
        base = view.state.base
        checkpoint = view.checkpoint if view.checkpoint <= number else 0
        while number > floor:
            piece = self._checkpoint_at(number, checkpoint, base)
            if piece is None or (within and piece.span.after < floor and base <= floor):
                piece = self.record(number)
                # One at this number is built on what may have been removed.
                shown = checkpoint if checkpoint < number else 0
                checkpoint = max(shown, piece.state.checkpoint)
                is_all = to_content and piece.span.clears
                if not pieces and self.max_requests > 1 and not is_all:
                    self.records(range(max(checkpoint, base, floor) + 1, number))
            else:
                checkpoint = piece.span.after
            if pieces and pieces[-1].span.parent != piece.commit_id:
                msg = (
                    f"{self.root}/{entry_path(number + 1)}: does not continue the entry before it. "
                    "Restore the entries from one copy"
                )
                raise CorruptShuffleError(msg)
            if number == view.newest and view.last and view.last.commit_id != piece.commit_id:
                path = range_path(number)
                msg = f"{self.root}/{path}: is of another log. Delete it: the entries say the same"
                raise CorruptShuffleError(msg)
            pieces.append(piece)
            number = piece.span.after
            if to_content and piece.span.clears:
                break
        pieces.reverse()
        return pieces

    def _checkpoint_at(self, number: int, checkpoint: int, base: int) -> LogEntry | None:
        """Return the checkpoint or base that ends at a number, if there is one.

        A checkpoint may be missing: those who should have put it died, or it was damaged and
        deleted. The entries say the same.
        """
        if number == base:
            return self.base(number)
        if number != checkpoint:
            return None
        try:
            piece = self.checkpoint(number)
        except ObjectNotFoundError:
            return None
        # One that begins within the base is built on what may have been removed.
        return piece if not piece.span.after or piece.span.after >= base else None

    def checkpoint(self, number: int) -> LogEntry:
        """Read the range that ends at a number, verified; raises as :meth:`record`."""
        self._use(number)
        if number not in self._ranges:
            self._ranges[number] = self._load(range_path(number), number)
        return self._ranges[number]

    def base(self, number: int) -> LogEntry:
        """Read the range of all numbers up to one, verified; raises as :meth:`record`."""
        piece = self.checkpoint(number)
        if piece.span.after:  # it was a checkpoint when this reader saw it, and was replaced
            del self._ranges[number]
            piece = self.checkpoint(number)
        return self._whole(piece)

    def _whole(self, piece: LogEntry) -> LogEntry:
        if piece.span.after:
            msg = (
                f"{self.root}/{range_path(piece.version)}: begins after number {piece.span.after}, "
                "and not with the log"
            )
            raise CorruptShuffleError(msg)
        return piece

    def last_commit(self, view: LogView, application_id: str) -> LastCommit | None:
        """Return the last commit of an application, if any."""
        last = view.state.applications.get(application_id)
        if last is None and view.last is not None:
            last = self.earlier_applications(view.last, view.state.base).get(application_id)
        return last

    def earlier_applications(self, entry: LogEntry, base: int) -> Mapping[str, LastCommit]:
        """Return the last commits of applications that the state of an entry leaves out.

        ``base`` is that of the newest entry: what is before it may have been removed.
        """
        later: dict[str, LastCommit] = {}
        number = entry.state.checkpoint
        while number > base:
            with contextlib.suppress(ObjectNotFoundError):
                return {**self.checkpoint(number).state.applications, **later}
            before = self.record(number)  # the checkpoint is missing
            later = {**before.state.applications, **later}
            number = before.state.checkpoint
        earlier = self.base(base).state.applications if base else {}
        return {**earlier, **later}

    def find_job(self, job_id: str, *, after: int = 0) -> JobEnd | None:
        """Return how a job ended in the log after number ``after``; None if it has not."""
        return self.read(lambda view: self.end_of(view, job_id, after=after))

    def end_of(self, view: LogView, job_id: str, *, after: int) -> JobEnd | None:
        """Return how a job ended; see :meth:`find_job`."""
        state = view.state
        end = state.jobs.get(job_id)
        if end is not None:
            return end if end.version > after else None
        known, before = max(state.checkpoint, state.base), LogView(view.last, state.checkpoint)
        pieces = self.pieces(before, known, floor=after)
        for piece in reversed(pieces):
            end = end_of_job(piece, job_id)
            if end is not None:
                self.pieces(view, view.newest, floor=after)  # all are of one history
                return end if end.version > after else None
        # What is missing from the pieces ended in a segment that was removed: a base has the ends
        # of a segment until the list of those exists.
        whole = max((piece.version for piece in pieces if not piece.span.after), default=0)
        for segment in range(segment_of(after + 1), segment_of(max(view.state.base, whole))):
            removed = self.removed(segment)
            end = None if removed is None else end_in(removed.jobs, job_id)
            if end is not None and end.version > after:
                return end
        return None

    def ended_jobs(self, view: LogView) -> pa.Table:
        """Return how each job ended that ended in the segments that are kept."""
        return join_jobs([decoded(piece.delta.jobs) for piece in self.pieces(view, view.newest)])

    def jobs_in_removed(self, view: LogView) -> pa.Table:
        """Return how each job ended that ended in a segment that was removed: reads all lists."""
        segments = range(segment_of(view.state.base))
        reads = [partial(self.removed, segment) for segment in segments]
        removed = run_concurrently(reads, self.max_requests)
        return join_jobs([one.jobs for one in removed if one is not None])

    def first_kept(self, view: LogView) -> int:
        """Return the first number of which the log says more than that it was put, but for tags.

        Entries that were made blank may have been put back from a copy of the log: the first and
        the last in each segment are looked at.
        """
        for segment in self.segments(view):
            names = self._storage.list(segment_path(segment))
            entries = sorted(entries_in(names))
            numbers = [number for number in entries if number >= view.state.blank]
            blank = entries[: len(entries) - len(numbers)]
            numbers += [number for number in {*blank[:1], *blank[-1:]} if self._says_more(number)]
            tagged = {tag.version for tag in view.state.tags.values()}
            numbers += [number for number in ranges_in(names) if number not in tagged]
            if numbers:
                return min(numbers)
        return view.newest

    def _says_more(self, number: int) -> bool:
        """Whether an entry is there, be it in a segment that is being removed, and not blank."""
        with contextlib.suppress(ObjectNotFoundError):
            return self.apart().named(number).operation != BLANK
        return False

    def has_leftovers(self) -> bool:
        """Whether there are files that a repair moved aside."""
        return bool(self._storage.list(DAMAGED_DIRECTORY))

    def apart(self) -> LogReader:
        """Return a reader of what may be removed meanwhile: this one does not build on it."""
        return LogReader(self._storage)

    def segments(self, view: LogView) -> list[int]:
        """Return the segments that hold files."""
        segments = segments_in(self._storage.list(LOG_DIRECTORY))
        if not segments or segments[0] >= segment_of(view.state.base):
            return segments
        return segments_in(names_in_use(self._storage, LOG_DIRECTORY))

    def segments_before(self, view: LogView) -> list[int]:
        """Return the segments before that of the base whose entries are still to be removed."""
        first = segment_of(view.state.base)
        tagged = {segment_of(tag.version) for tag in view.state.tags.values()}
        return [
            segment
            for segment in self.segments(view)
            if segment < first
            and (segment not in tagged or entries_in(self._storage.list(segment_path(segment))))
        ]

    def removed(self, segment: int) -> RemovedSegment | None:
        """Return what remains of a segment whose entries were removed; None if they were not."""
        path = expired_path(segment)
        with (
            contextlib.suppress(ObjectNotFoundError),
            _located(f"{self.root}/{path}", f". {_LIST_ADVICE}"),
        ):
            return decode_removed(self._storage.read(path))
        return None


@contextlib.contextmanager
def _located(where: str, advice: str = "") -> Iterator[None]:
    """Name a file of the log in the errors of its parser, with what to do about it."""
    try:
        yield
    except ObjectNotFoundError:
        raise
    except (CorruptShuffleError, FormatVersionError) as error:
        msg = f"{where}: {error}{advice if isinstance(error, CorruptShuffleError) else ''}"
        raise type(error)(msg) from error


def has_expired(storage: Storage, version: int) -> bool:
    """Whether a version was given up, or the whole log is gone; False where it cannot be read."""
    log = LogReader(storage)
    with contextlib.suppress(ShuffleError):
        view = log.view()
        is_old = version < view.oldest and log.tag_of(view, version) is None
        return is_old or view.last is None
    return False


def expired_error(storage: Storage, version: int) -> ShuffleNotFoundError:
    """Return the error of a version that expired while it was read."""
    return ShuffleNotFoundError(
        f"{storage.root}: version {version} has expired and was removed by garbage collection "
        "while it was read; nothing is damaged. Open the newest version, and collect with a "
        "retention longer than reading takes"
    )


def why_gone(storage: Storage, newest: LogEntry, oldest_needed: int) -> ShuffleError | None:
    """Return why files of a version that was opened are not there; None if that is damage.

    ``newest`` is the entry of the version, which another process may have opened.
    """
    log = LogReader(storage)
    with contextlib.suppress(ShuffleError):
        view = log.view()
        if not view.newest:
            msg = f"{storage.root}: version {newest.version} is not there; there are none"
            if "://" not in storage.root:
                msg += (
                    f", on {socket.gethostname()}, and there was one where this read was planned. "
                    f"{SHARED_PATH}"
                )
            return ShuffleNotFoundError(f"{msg}. Or the shuffle was removed meanwhile")
        if oldest_needed < view.oldest and log.tag_of(view, oldest_needed) is None:
            return expired_error(storage, oldest_needed)
        if newest.is_version and not _has(log, newest):
            return CorruptShuffleError(
                f"{storage.root}: version {newest.version} is another one than when the read was "
                "planned; the directory was replaced. Read it again"
            )
    return None


def _has(log: LogReader, entry: LogEntry) -> bool:
    with contextlib.suppress(ShuffleNotFoundError):
        return log.entry(entry.version, entry.commit_id).commit_id == entry.commit_id
    return False


@contextlib.contextmanager
def translate_gone(storage: Storage, newest: LogEntry, oldest_needed: int) -> Iterator[None]:
    """Replace a CorruptShuffleError by what :func:`why_gone` says, if anything."""
    try:
        yield
    except CorruptShuffleError as error:
        reason = why_gone(storage, newest, oldest_needed)
        if reason is not None:
            raise reason from error
        raise
