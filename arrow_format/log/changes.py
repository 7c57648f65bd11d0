"""What is new between two versions: the rows that were added after the one, up to the other.

An ``append`` adds the rows of its map outputs. A ``replace`` (a merge), a ``release`` and a fence
add none. An ``overwrite`` starts the shuffle again, so that rows that were read before are no
longer part of it: the reader's option ``overwrites`` decides what that means. However the versions
are cut into spans, consecutive spans give each row once.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

from arrow_format.arrays.schema_evolution import (
    is_appendable,
    same_spark_types,
    widen,
    widen_spark_schema,
)
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    SchemaError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.log.entry import LogEntry
from arrow_format.log.result import released_error
from arrow_format.log.snapshot import Snapshot, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.log.names import LogIndex
    from arrow_format.log.reader import LogReader


OVERWRITES = ("fail", "deliver")
"""What to do with versions that overwrite: an error, or their rows like those of an append."""

ADD_NOTHING = ("replace", "release")
"""Operations that add no rows."""


def entries_of(log: LogReader, numbers: range, width: int | None = None) -> Iterator[LogEntry]:
    """Yield the entries of some numbers of the log, in that order, without fences.

    ``width`` of them are read concurrently; None: as many as the storage takes.
    """
    width = log.max_requests if width is None else width
    for start in range(0, len(numbers), width):
        for record in log.records(numbers[start : start + width]).values():
            if isinstance(record, LogEntry):
                yield record


def newest_entry(log: LogReader, index: LogIndex) -> LogEntry | None:
    """Return the entry of the newest version of a listing, if any."""
    return next(entries_of(log, range(index.newest, index.oldest - 1, -1), width=1), None)


def oldest_entry(log: LogReader, index: LogIndex) -> LogEntry | None:
    """Return the entry of the oldest version that has not expired, if any."""
    return next(entries_of(log, range(index.oldest, index.newest + 1), width=1), None)


def check_not_expired(log: LogReader, index: LogIndex, start: int) -> None:
    """Raise ShuffleNotFoundError if a version after ``start`` that added rows has expired."""
    if start >= index.oldest - 1:
        return
    before = log.checkpoint(index.oldest - 1).entry
    if before is not None and before.content_version > start:
        msg = (
            f"{log.root}: versions {start + 1} to {before.version} have expired and were removed "
            f"by garbage collection, and not all of their rows were read; there are versions "
            f"{index.oldest} to {index.newest}. Start again at one of these, and collect with a "
            "retention longer than a reader may be behind"
        )
        raise ShuffleNotFoundError(msg)


def check_not_released(log: LogReader, index: LogIndex, start: int) -> None:
    """Raise ResultReleasedError if a version after ``start`` was released: rows may be missing."""
    for entry in entries_of(log, range(max(start + 1, index.oldest), index.newest + 1)):
        if entry.released is not None and entry.released.through > start:
            raise released_error(log.root, entry.released)


def plan_changes(
    log: LogReader,
    index: LogIndex,
    start: int,
    end: int,
    *,
    overwrites: str = "fail",
    begins: bool = False,
) -> VersionSpan:
    """Return the span of the rows that were added after version ``start``, up to version ``end``.

    The span means the same rows for as long as none of its versions expires. From the beginning (0)
    it includes the oldest version as a whole. ``overwrites``, one of :data:`OVERWRITES`, says what
    to do with a version after ``start`` that overwrites; with ``begins`` the first after ``start``
    may, since nothing was read before it.

    Raises ShuffleOverwrittenError where a version overwrites, OptionError where ``end`` is before
    ``start``, and ShuffleNotFoundError where a version does not exist, has expired or was released.
    """
    if end < start:
        msg = f"{log.root}: version {end} is before version {start}; give a later version to end at"
        raise OptionError(msg)
    if start == end:
        return VersionSpan(0, start, end)
    last = log.entry_at(index, end)
    if start > 0:
        check_not_expired(log, index, start)
        check_not_released(log, index, start)
        if overwrites == "fail":
            first = max(start, index.oldest - 1) + 1
            _refuse_overwrites(log, first + 1 if begins else first, end)
        return VersionSpan(0, start, end)
    oldest = _beginning(log, index, last)
    if oldest is None or end < oldest.version:
        msg = f"{log.root}: version {end} has expired and was removed by garbage collection"
        raise ShuffleNotFoundError(msg)
    if oldest.shuffle_id == last.shuffle_id:  # no version overwrote since
        return VersionSpan(end, end, end)
    oldest = _consumed_last(log, oldest, last) or oldest
    if oldest.shuffle_id == last.shuffle_id:
        return VersionSpan(end, end, end)
    if overwrites == "fail":
        _refuse_overwrites(log, oldest.version + 1, end)
    return VersionSpan(oldest.version, oldest.version, end)


def changes_of(log: LogReader, span: VersionSpan) -> Snapshot:
    """Return the rows of a span, with the schema in which all of them can be read.

    Raises SchemaError where versions differ in schema, number of subpartitions, partitioner or sort
    order, and ShuffleNotFoundError where one does not exist or has expired.
    """
    return log.read(lambda index: _changes_of(log, index, span))


def _changes_of(log: LogReader, index: LogIndex, span: VersionSpan) -> Snapshot:
    base: Sequence[LogEntry] = ()
    if span.base:
        whole = log.snapshot_of(index, span.base)
        if whole is None:
            msg = f"{log.root}: holds no committed shuffle; nothing was written, or not committed"
            raise ShuffleNotFoundError(msg)
        if span.base == span.end:
            return whole
        base = whole.entries
    check_not_expired(log, index, span.start)
    last = log.entry_at(index, span.end)
    # Numbers that have expired since added nothing.
    first = max(span.start + 1, index.oldest)
    added = [
        entry
        for entry in entries_of(log, range(first, span.end + 1))
        if entry.operation not in ADD_NOTHING
    ]
    delivered = [*base, *added]
    for entry in delivered:
        _check_alike(log, entry, last)
    schemas = [entry.data_schema for entry in (last, *delivered)]
    spark_schema = reduce(
        widen_spark_schema, [entry.spark_schema for entry in delivered], last.spark_schema
    )
    last = replace(last, data_schema=reduce(widen, schemas), spark_schema=spark_schema)
    if added and added[-1].version == last.version:
        delivered.pop()
    else:
        last = replace(last, operation="append", map_outputs=())
    return Snapshot((*delivered, last), span)


def _check_alike(log: LogReader, entry: LogEntry, last: LogEntry) -> None:
    """Check that rows of two versions can be read together."""
    for what, ours, theirs in (
        ("subpartitions", entry.num_subpartitions, last.num_subpartitions),
        ("sort order", list(entry.sort_by), list(last.sort_by)),
        ("partitioner", entry.partitioner["kind"], last.partitioner["kind"]),
        ("partitioner", dict(entry.partitioner), dict(last.partitioner)),
    ):
        if ours != theirs:
            shown = "" if isinstance(ours, dict) else f" ({ours} and {theirs})"
            raise _unlike(log, entry, last, f"{what}{shown}")
    if not is_appendable(entry.data_schema, last.data_schema):
        raise _unlike(log, entry, last, "schema")
    if not same_spark_types(entry.spark_schema, last.spark_schema):
        raise _unlike(log, entry, last, "Spark types")


def _unlike(log: LogReader, entry: LogEntry, last: LogEntry, what: str) -> SchemaError:
    return SchemaError(
        f"{log.root}: versions {entry.version} and {last.version} differ in their {what}, so their "
        f"rows cannot be read together. Start again after version {entry.version}"
    )


def next_changes(log: LogReader, index: LogIndex, start: int, end: int) -> Snapshot:
    """Return what versions after ``start`` up to ``end`` added, overwrites included.

    Where a version has another schema or shape than those before it, the span ends before it, and
    the next call gives the rest. Raises as :func:`plan_changes` and :func:`changes_of`.
    """
    while True:
        try:
            return changes_of(log, plan_changes(log, index, start, end, overwrites="deliver"))
        except SchemaError:
            before = _before_last_overwrite(log, index, start, end)
            if before is None:
                raise
            end = before


def _before_last_overwrite(log: LogReader, index: LogIndex, start: int, end: int) -> int | None:
    """Return the version before the last overwrite of those after ``start``, if after it too."""
    is_before = False
    for entry in entries_of(log, range(end, max(start, index.oldest - 1), -1)):
        if is_before:
            return entry.version
        is_before = entry.operation == "overwrite"
    return None


@contextlib.contextmanager
def with_recovery_hint(root: str, consumer: str | None) -> Iterator[None]:
    """Add to an error what a named consumer can do: it always resumes where it was."""
    try:
        yield
    except (SchemaError, ShuffleNotFoundError, ShuffleOverwrittenError) as error:
        if consumer is None:
            raise
        msg = (
            f"{error}. Consumer {consumer!r} resumes where it was, whatever version is asked for: "
            f"take another name, or forget it (arrow-shuffle consumers {root} --forget {consumer}) "
            "and start with a new checkpoint"
        )
        raise type(error)(msg) from error


def resume_version(log: LogReader, index: LogIndex, last: LogEntry, start: int) -> int:
    """Return the version after which a consumer at ``start`` resumes the result of ``last``.

    That is ``start``, unless a result was released as a whole since: the result that replaced it
    starts again, and has nothing to do with the released one.
    """
    first = last
    for entry in entries_of(log, range(last.version - 1, max(start, index.oldest - 1), -1)):
        if entry.released is not None and entry.released.ended:
            return first.version - 1
        first = entry
    if start < index.oldest - 1:
        before = log.checkpoint(index.oldest - 1).entry
        if before is not None and before.released is not None and before.released.ended:
            return first.version - 1
    return start


def _beginning(log: LogReader, index: LogIndex, last: LogEntry) -> LogEntry | None:
    """Return the oldest version of the result that ``last`` belongs to, if any."""
    oldest = oldest_entry(log, index)
    if oldest is None or oldest.shuffle_id == last.shuffle_id:
        return oldest
    start = resume_version(log, index, last, 0)
    return log.entry_at(index, start + 1) if start else oldest


def _consumed_last(log: LogReader, first: LogEntry, last: LogEntry) -> LogEntry | None:
    """Return the last release of consumed rows, from one version to another."""
    if last.result.type.is_blocking:  # is released only as a whole
        return None
    for entry in entries_of(log, range(last.version, first.version - 1, -1)):
        if entry.released is not None and not entry.released.ended:
            return entry
    return None


def _refuse_overwrites(log: LogReader, first: int, end: int) -> None:
    for entry in entries_of(log, range(first, end + 1)):
        if entry.operation == "overwrite":
            msg = (
                f"{log.root}: version {entry.version} overwrote rows of which some had been read "
                f"already: they are no longer in the shuffle. Start again at version "
                f"{entry.version}, or choose that overwriting versions are delivered too"
            )
            raise ShuffleOverwrittenError(msg)


@dataclass(frozen=True, slots=True)
class Step:
    """What a reader that follows a shuffle gets from one version."""

    version: int
    num_rows: int
    """Rows stored; a broadcast row counts once."""
    num_bytes: int
    """Bytes of the data files."""
    adds: bool = True
    """Whether it may have rows to read: a merge has none."""


def steps_after(log: LogReader, index: LogIndex, start: int) -> Iterator[Step]:
    """Yield the versions after ``start``, ascending, each with what it adds; reads lazily.

    From the beginning (0), the first is the oldest version as a whole, or what the last release of
    consumed rows left. Raises ShuffleNotFoundError if versions after ``start`` have expired.
    """
    if start == 0:
        newest = newest_entry(log, index)
        first = None if newest is None else _beginning(log, index, newest)
        if newest is None or first is None:
            return
        first = _consumed_last(log, first, newest) or first
        whole = log.content_at(index, first.version)
        if whole is not None:
            yield Step(first.version, whole.num_rows, whole.num_bytes)
        start = first.version
    check_not_expired(log, index, start)
    for entry in entries_of(log, range(max(start + 1, index.oldest), index.newest + 1)):
        if entry.operation in ADD_NOTHING:
            yield Step(entry.version, 0, 0, adds=False)
        else:
            yield Step(entry.version, entry.num_rows, entry.num_bytes)


def commit_id_of(log: LogReader, index: LogIndex, version: int) -> str | None:
    """Return the commit id of a version; None if that was removed, ShuffleNotFoundError if none."""
    if version > index.newest:
        msg = f"{log.root}: version {version} is not there; the newest is {index.newest}"
        raise ShuffleNotFoundError(msg)
    if version >= index.oldest:
        return log.entry_at(index, version).commit_id
    if version in index.checkpoints:
        entry = log.checkpoint(version).entry
        if entry is not None and entry.version == version:
            return entry.commit_id
    return None


def check_commit_id(log: LogReader, index: LogIndex, version: int, commit_id: str) -> None:
    """Check that a version is the one that was read before, not of a re-created shuffle."""
    current = commit_id_of(log, index, version) if version <= index.newest else ""
    if current not in (None, commit_id):
        msg = (
            f"{log.root}: version {version} differs from the one that was read before, or does not "
            "exist; the shuffle was removed and written again. Start with a new checkpoint"
        )
        raise CorruptShuffleError(msg)
