"""What is new between two versions: the rows that were added after the one, up to the other.

An ``append`` adds the rows of its map outputs. A ``replace`` (a merge), a ``release`` and a fence
add none. An ``overwrite`` begins anew, so that what was read before is no part of the shuffle any
more: whoever follows it says what that means. However the versions are cut into spans, spans that
follow each other give each row once.
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


def changes_of(log: LogReader, span: VersionSpan) -> Snapshot:
    """Return the rows of a span, with the schema in which all of them can be read.

    Raises
    ------
    SchemaError
        A version that overwrote others has another schema, number of subpartitions, partitioner or
        sort order.
    ShuffleNotFoundError
        One of its versions is not there, or has expired.
    """
    return log.read(lambda index: _changes_of(log, index, span))


def next_changes(log: LogReader, index: LogIndex, start: int, end: int) -> Snapshot:
    """Return what was added after a version, those that begin anew included, as far as it goes.

    Where a version has another schema or shape than those before it, what comes before it is a span
    of its own: whoever goes on from there gets the rest.

    Raises
    ------
    SchemaError, ShuffleNotFoundError
        As :func:`plan_changes` and :func:`changes_of`.
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
    """Return the last version before the last that begins anew, of those after ``start``."""
    is_before = False
    for entry in entries_of(log, range(end, max(start, index.oldest - 1), -1)):
        if is_before:
            return entry.version
        is_before = entry.operation == "overwrite"
    return None


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
    for what, one, other in (
        ("subpartitions", entry.num_subpartitions, last.num_subpartitions),
        ("sort order", list(entry.sort_by), list(last.sort_by)),
        ("partitioner", entry.partitioner["kind"], last.partitioner["kind"]),
        ("partitioner", dict(entry.partitioner), dict(last.partitioner)),
    ):
        if one != other:
            shown = "" if isinstance(one, dict) else f" ({one} and {other})"
            raise _unlike(log, entry, last, f"{what}{shown}")
    if not is_appendable(entry.data_schema, last.data_schema):
        raise _unlike(log, entry, last, "schema")
    if not same_spark_types(entry.spark_schema, last.spark_schema):
        raise _unlike(log, entry, last, "Spark types")


def _unlike(log: LogReader, entry: LogEntry, last: LogEntry, what: str) -> SchemaError:
    return SchemaError(
        f"{log.root}: versions {entry.version} and {last.version} differ in their {what}, so their "
        f"rows cannot be read together. Begin anew after version {entry.version}"
    )


OVERWRITES = ("fail", "deliver")
"""What to do with versions that begin anew: an error, or their rows like those of an append."""


ADD_NOTHING = ("replace", "release")
"""Operations that put no rows to those that were there."""


@dataclass(frozen=True, slots=True)
class Step:
    """What following a shuffle from one version to the next brings."""

    version: int
    num_rows: int
    """Rows stored; a broadcast row counts once."""
    num_bytes: int
    """Bytes of the data files."""
    adds: bool = True
    """Whether it may have rows to read: a merge has none."""


def newest_entry(log: LogReader, index: LogIndex) -> LogEntry | None:
    """Return the entry of the newest version of a listing; None when there is none."""
    return next(entries_of(log, range(index.newest, index.oldest - 1, -1), at_once=1), None)


def oldest_entry(log: LogReader, index: LogIndex) -> LogEntry | None:
    """Return the entry of the oldest version that has not expired; None when there is none."""
    return next(entries_of(log, range(index.oldest, index.newest + 1), at_once=1), None)


def check_not_expired(log: LogReader, index: LogIndex, start: int) -> None:
    """Check that all versions after ``start`` are there, of those that ever were.

    Raises
    ------
    ShuffleNotFoundError
        Some have expired.
    """
    if start >= index.oldest - 1:
        return
    before = log.checkpoint(index.oldest - 1).entry
    if before is not None and before.content_version > start:
        msg = (
            f"{log.root}: versions {start + 1} to {before.version} have expired and were removed "
            f"by garbage collection, and not all of their rows were read; there are versions "
            f"{index.oldest} to {index.newest}. Begin anew at one of these, and collect with a "
            "retention longer than a reader may be behind"
        )
        raise ShuffleNotFoundError(msg)


def check_not_released(log: LogReader, index: LogIndex, start: int) -> None:
    """Check that no version after ``start`` was released: its rows may be gone already.

    Raises
    ------
    ResultReleasedError
        One was.
    """
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
    """Settle which rows of the log were added after one version, up to another.

    What comes out means the same rows for as long as none of its versions expires.

    Parameters
    ----------
    log
        The log.
    index
        A listing of it.
    start
        A version; 0 for the beginning. Where the first versions have expired, the beginning is
        the oldest that is there, as a whole.
    end
        A version, ``start`` or later.
    overwrites
        What to do with a version after ``start`` that begins anew, one of :data:`OVERWRITES`.
    begins
        Whether nothing before the version after ``start`` was read either: that it begins anew is
        then no matter.

    Raises
    ------
    ShuffleOverwrittenError
        A version after ``start`` begins anew.
    OptionError
        ``end`` is before ``start``.
    ShuffleNotFoundError
        ``end`` is not there, or versions have expired, or were released.
    """
    if end < start:
        msg = f"{log.root}: version {end} is before version {start}, from which on to read"
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
    if oldest.shuffle_id == last.shuffle_id:  # none has begun anew since
        return VersionSpan(end, end, end)
    oldest = _consumed_last(log, oldest, last) or oldest
    if oldest.shuffle_id == last.shuffle_id:
        return VersionSpan(end, end, end)
    if overwrites == "fail":
        _refuse_overwrites(log, oldest.version + 1, end)
    return VersionSpan(oldest.version, oldest.version, end)


@contextlib.contextmanager
def with_recovery_hint(root: str, consumer: str | None) -> Iterator[None]:
    """Say what it takes where a consumer cannot go on: its name is where it was, whatever is asked.

    Raises
    ------
    SchemaError, ShuffleNotFoundError, ShuffleOverwrittenError
        Those that come, with that added where it is one with a name.
    """
    try:
        yield
    except (SchemaError, ShuffleNotFoundError, ShuffleOverwrittenError) as error:
        if consumer is None:
            raise
        msg = (
            f"{error}. Consumer {consumer!r} goes on where it was, whatever version is asked for: "
            f"take another name, or forget it (arrow-shuffle consumers {root} --forget {consumer}) "
            "and begin with a new checkpoint"
        )
        raise type(error)(msg) from error


def resume_version(log: LogReader, index: LogIndex, last: LogEntry, start: int) -> int:
    """Return after which number the result that ``last`` is of begins for who is at ``start``.

    That is ``start``, unless a result was released as a whole since: what is in its place begins
    anew, and has nothing to do with what was released.
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
    """Return the oldest version that is there of the result that ``last`` is of."""
    oldest = oldest_entry(log, index)
    if oldest is None or oldest.shuffle_id == last.shuffle_id:
        return oldest
    start = resume_version(log, index, last, 0)
    return log.entry_at(index, start + 1) if start else oldest


def _consumed_last(log: LogReader, first: LogEntry, last: LogEntry) -> LogEntry | None:
    """Return the last release of rows that were consumed, from one version to another."""
    if last.result.type.is_blocking:  # such a result is released as a whole
        return None
    for entry in entries_of(log, range(last.version, first.version - 1, -1)):
        if entry.released is not None and not entry.released.ended:
            return entry
    return None


def _refuse_overwrites(log: LogReader, first: int, end: int) -> None:
    for entry in entries_of(log, range(first, end + 1)):
        if entry.operation == "overwrite":
            msg = (
                f"{log.root}: version {entry.version} overwrote what was there and had been read "
                f"in part: those rows are not in the shuffle any more. Begin anew at version "
                f"{entry.version}, or choose that what such versions hold is delivered too"
            )
            raise ShuffleOverwrittenError(msg)


def steps_after(log: LogReader, index: LogIndex, start: int) -> Iterator[Step]:
    """Give the versions after ``start``, each with what it adds; reads entries as they are asked.

    From the beginning (0), the first is the oldest version that is there, as a whole. Where rows
    were released because all have consumed them, that is what the last such release left.

    Raises
    ------
    ShuffleNotFoundError
        Versions after ``start`` have expired.
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
    """Return the commit id of a version; None where nothing is left that tells.

    Raises
    ------
    ShuffleNotFoundError
        It is no version.
    """
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
    """Check that a version is the very one that was seen before.

    Raises
    ------
    CorruptShuffleError
        It is another one, or not there: the shuffle was removed and made anew.
    """
    found = commit_id_of(log, index, version) if version <= index.newest else ""
    if found not in (None, commit_id):
        msg = (
            f"{log.root}: version {version} is another one than was read before, or not there; "
            "the shuffle was removed and made anew. Begin anew, with a new checkpoint"
        )
        raise CorruptShuffleError(msg)


def entries_of(log: LogReader, numbers: range, at_once: int | None = None) -> Iterator[LogEntry]:
    """Yield the entries of some numbers of the log, in that order; fences are left out."""
    width = log.max_requests if at_once is None else at_once
    for at in range(0, len(numbers), width):
        for record in log.records(numbers[at : at + width]).values():
            if isinstance(record, LogEntry):
                yield record
