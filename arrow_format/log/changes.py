"""What is new between two versions: the rows that were added after the one, up to the other.

An ``append`` adds the rows of its map outputs. A merge, a deletion of rows and a release add none.
What an ``upsert`` replaced is refused: it says of no row that it is new.
An ``overwrite`` or ``rollback`` starts the shuffle again, so that rows that were read before are no
longer part of it: the reader's option ``overwrites`` decides what that means. However the versions
are cut into spans, consecutive spans give each row once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from functools import reduce
from math import gcd
from typing import TYPE_CHECKING

from msgspec import structs

from arrow_format.arrays.column_ids import names_in
from arrow_format.arrays.schema_evolution import can_read_as
from arrow_format.arrays.spark_schema_evolution import Schemas, spark_refusals, widen_schemas
from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    SchemaError,
    ShuffleError,
    ShuffleNotFoundError,
    ShuffleOverwrittenError,
)
from arrow_format.keys.partitioner import key_columns, partitioner_from_description
from arrow_format.log.altered import altered, as_called_in
from arrow_format.log.entry import UPSERT
from arrow_format.log.names import segment_of
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.result import released_error
from arrow_format.log.snapshot import LaterColumns, Snapshot, VersionSpan
from arrow_format.log.totals import sum_totals
from arrow_format.log.version_names import first_version
from arrow_format.storage.open import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.log.state import VersionShape


OVERWRITES = ("fail", "deliver")
"""What to do with versions that overwrite: an error, or their rows like those of an append."""


def entries_of(log: LogReader, numbers: range) -> Iterator[LogEntry]:
    """Yield the entries of the versions among some numbers of the log, in that order."""
    width = log.max_requests
    for start in range(0, len(numbers), width):
        for entry in log.records(numbers[start : start + width]).values():
            if entry.is_version:
                yield entry


def check_not_expired(log: LogReader, view: LogView, start: int) -> None:
    """Raise ShuffleNotFoundError if a version after ``start`` that added rows has expired."""
    if view.state.expired > start:
        msg = (
            f"{log.root}: versions {start + 1} to {view.oldest - 1} have expired and were removed "
            f"by garbage collection, and not all of their rows were read; there are versions "
            f"{view.oldest} to {view.newest}. Start again at one of these, and collect with a "
            "retention longer than a reader may be behind"
        )
        raise ShuffleNotFoundError(msg)


def plan_changes(
    log: LogReader,
    view: LogView,
    start: int,
    end: int,
    *,
    overwrites: str = "fail",
    begins: bool = False,
) -> VersionSpan:
    """Return the span of the rows that were added after version ``start``, up to version ``end``.

    The span means the same rows for as long as none of its versions expires. From the beginning (0)
    it includes the oldest version as a whole. ``overwrites``, one of :data:`OVERWRITES`, says what
    to do with a version after ``start`` that overwrites; with ``begins`` the first that adds rows
    may, since nothing was read before it.

    Raises ShuffleOverwrittenError where a version overwrites, OptionError where ``end`` is before
    ``start``, and ShuffleNotFoundError where a version does not exist, has expired or was released.
    """
    if end < start:
        msg = f"{log.root}: version {end} is before version {start}; give a later version to end at"
        raise OptionError(msg)
    if start == end:
        return VersionSpan(0, start, end)
    last = log.entry_at(view, end)
    if start > 0:
        check_not_expired(log, view, start)
        released = view.state.released
        if released is not None and released.through > start:  # rows may be missing
            raise released_error(log.root, released)
        if overwrites == "fail":
            first = max(start, view.oldest - 1) + 1
            _refuse_overwrites(log, first, end, begins=begins)
        return VersionSpan(0, start, end)
    oldest = _beginning(log, view, last)
    if oldest is None or end < oldest.version:
        msg = f"{log.root}: version {end} has expired and was removed by garbage collection"
        raise ShuffleNotFoundError(msg)
    if oldest.shuffle_id == last.shuffle_id:  # no version overwrote since
        return VersionSpan(end, end, end)
    if overwrites == "fail":
        _refuse_overwrites(log, oldest.version + 1, end)
    return VersionSpan(oldest.version, oldest.version, end)


def changes_of(log: LogReader, span: VersionSpan) -> Snapshot:
    """Return the rows of a span, with the schema in which all of them can be read.

    Raises SchemaError where versions differ in schema, number of subpartitions, partitioner or sort
    order, ShuffleOverwrittenError where one replaced rows by an upsert, and ShuffleNotFoundError
    where one does not exist or has expired.
    """
    return log.read(lambda view: _changes_of(log, view, span))


def _changes_of(log: LogReader, view: LogView, span: VersionSpan) -> Snapshot:
    whole = log.version_at(view, span.base) if span.base else None
    if whole is not None and span.base == span.end:
        return whole
    check_not_expired(log, view, span.start)
    last = log.entry_at(view, span.end)
    # Numbers that have expired since added nothing.
    numbers = range(max(span.start + 1, view.oldest), span.end + 1)
    added = [entry_called_in(entry, last) for entry in entries_of(log, numbers) if entry.adds_rows]
    for entry in added:
        if entry.operation == UPSERT:
            msg = (
                f"{log.root}: version {entry.version} replaced rows by an {UPSERT}, so that rows "
                "which were read before are not in the shuffle any more. "
                f"open_shuffle(...).changes(since={span.start}) says which were deleted and "
                f"inserted; or start again at version {entry.version}"
            )
            raise ShuffleOverwrittenError(msg)
    delivered = added if whole is None else [entry_called_in(whole.newest, last), *added]
    for entry in delivered:
        _check_alike(log, entry, last)
    schemas = reduce(
        widen_schemas, [(entry.data_schema, entry.spark_schema) for entry in (last, *delivered)]
    )
    parts: list[LogEntry | Snapshot] = [*added] if whole is None else [whole, *added]
    outputs = MapOutputs.concat([part.map_outputs for part in parts])
    # Files that were merged since may have other numbers than those of the last version.
    n = gcd(last.num_subpartitions, *(entry.num_subpartitions for entry in delivered))
    totals = sum_totals([part.totals for part in parts], n)
    oldest_needed = span.base or min((entry.version for entry in delivered), default=span.end)
    shape = structs.replace(last.shape, num_subpartitions=n)
    newest = _with_schemas(last, shape, schemas)
    return Snapshot(newest, outputs, totals, span, oldest_needed)


def entry_called_in(entry: LogEntry, last: LogEntry) -> LogEntry:
    """Return an entry with the names that its columns have later.

    A column that was dropped is left out. One that an overwrite did away with is not, under a name
    that no later column has: its values would be null for a reader that never had them.
    """
    shape, later = entry.shape, last.columns
    if shape.columns == later:
        return entry
    if shape.shuffle_id == last.shuffle_id:
        shape = as_called_in(shape, later)
    else:
        shape = altered(shape, names_in(shape.columns, later))
    return structs.replace(entry, state=structs.replace(entry.state, shape=shape))


def read_as(snapshot: Snapshot, later: LaterColumns) -> Snapshot:
    """Return the same rows with the columns of a later version of their shuffle."""
    columns, spark_schema = later
    shape = as_called_in(snapshot.newest.shape, columns)
    schemas = widen_schemas((columns.schema, spark_schema), (shape.data_schema, shape.spark_schema))
    shape = structs.replace(shape, column_ids=columns.ids)
    newest = _with_schemas(snapshot.newest, shape, schemas)
    return dataclasses.replace(snapshot, newest=newest, later=later)


def _with_schemas(entry: LogEntry, shape: VersionShape, schemas: Schemas) -> LogEntry:
    shape = structs.replace(shape, data_schema=schemas[0], spark_schema=schemas[1])
    return structs.replace(entry, state=structs.replace(entry.state, shape=shape))


def _check_alike(log: LogReader, entry: LogEntry, last: LogEntry) -> None:
    """Check that rows of two versions can be read together."""
    numbers = entry.num_subpartitions, last.num_subpartitions
    if entry.shuffle_id != last.shuffle_id and numbers[0] != numbers[1]:
        # Of one shuffle, whose rows are where their hash says, they are read by a common divisor.
        raise _unlike(log, entry, last, f"subpartitions ({numbers[0]} and {numbers[1]})")
    for what, ours, theirs in (
        ("sort order", list(entry.sort_by), list(last.sort_by)),
        ("combined columns", entry.combine, last.combine),
        ("partitioner", entry.partitioner["kind"], last.partitioner["kind"]),
        ("partitioner", dict(entry.partitioner), dict(last.partitioner)),
    ):
        if ours != theirs:
            shown = "" if isinstance(ours, dict) else f" ({ours} and {theirs})"
            raise _unlike(log, entry, last, f"{what}{shown}")
    keys = key_columns(partitioner_from_description(last.partitioner))
    exact = last.data_schema.names if keys is None else keys
    if not can_read_as(entry.data_schema, last.data_schema, exact):
        raise _unlike(log, entry, last, "schema")
    if any(spark_refusals(entry.spark_schema, last.spark_schema)):
        raise _unlike(log, entry, last, "Spark types")


def _unlike(log: LogReader, entry: LogEntry, last: LogEntry, what: str) -> SchemaError:
    return SchemaError(
        f"{log.root}: versions {entry.version} and {last.version} differ in their {what}, so their "
        f"rows cannot be read together. Start again after version {entry.version}"
    )


def next_changes(log: LogReader, view: LogView, start: int, end: int) -> Snapshot:
    """Return what versions after ``start`` up to ``end`` added, overwrites included.

    Where a version has another schema or shape than those before it, the span ends before it, and
    the next call gives the rest. Raises as :func:`plan_changes` and :func:`changes_of`.
    """
    while True:
        try:
            return changes_of(log, plan_changes(log, view, start, end, overwrites="deliver"))
        except SchemaError:
            before = _before_last_overwrite(log, view, start, end)
            if before is None:
                raise
            end = before


def _before_last_overwrite(log: LogReader, view: LogView, start: int, end: int) -> int | None:
    """Return the version before the last overwrite of those after ``start``, if after it too."""
    is_before = False
    for entry in entries_of(log, range(end, max(start, view.oldest - 1), -1)):
        if is_before:
            return entry.version
        is_before = entry.overwrites
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


def resume_version(view: LogView, start: int) -> int:
    """Return the version after which a consumer at ``start`` resumes the newest result.

    That is ``start``, unless a result was released as a whole since: the result that replaced it
    starts again, and has nothing to do with the released one.
    """
    return max(start, view.state.ended)


def _beginning(log: LogReader, view: LogView, last: LogEntry) -> LogEntry | None:
    """Return the oldest version of the result that ``last`` belongs to, if any.

    That is what the last release of consumed rows left, where one was between the two.
    """
    oldest = first_version(log, view)
    if oldest is not None and oldest.shuffle_id != last.shuffle_id:
        first = first_version(log, view, resume_version(view, 0) + 1)
        oldest = oldest if first is None or first.version > last.version else first
    released = view.state.released
    if oldest is None or released is None or released.ended or last.result.type.is_blocking:
        return oldest  # a blocking result is released only as a whole
    return log.record(released.at) if oldest.version <= released.at <= last.version else oldest


def _refuse_overwrites(log: LogReader, first: int, end: int, *, begins: bool = False) -> None:
    was_read = not begins
    for entry in entries_of(log, range(first, end + 1)):
        if entry.adds_rows and entry.overwrites and was_read:
            msg = (
                f"{log.root}: version {entry.version} overwrote rows of which some had been read "
                f"already: they are no longer in the shuffle. Start again at version "
                f"{entry.version}, or choose that overwriting versions are delivered too"
            )
            raise ShuffleOverwrittenError(msg)
        was_read = was_read or entry.adds_rows


@dataclass(frozen=True, slots=True)
class LogStep:
    """What a reader that follows a shuffle gets from one version."""

    version: int
    num_rows: int
    """Rows stored; a broadcast row counts once."""
    num_bytes: int
    """Bytes of the data files."""
    adds: bool = True
    """Whether it may have rows to read: a merge has none."""


def steps_after(log: LogReader, view: LogView, start: int) -> Iterator[LogStep]:
    """Yield the versions after ``start``, ascending, each with what it adds; reads lazily.

    From the beginning (0), the first is the oldest version as a whole, or what the last release of
    consumed rows left. Raises ShuffleNotFoundError if versions after ``start`` have expired.
    """
    if start == 0:
        newest = log.newest_entry(view)
        first = None if newest is None else _beginning(log, view, newest)
        if first is None:
            return
        whole = log.content_at(view, first)
        # One of which all was released is not kept for who has read nothing.
        yield LogStep(first.version, whole.num_rows, whole.num_bytes, whole.num_rows > 0)
        start = first.version
    check_not_expired(log, view, start)
    for entry in entries_of(log, range(max(start + 1, view.oldest), view.newest + 1)):
        adds = entry.adds_rows
        yield LogStep(
            entry.version, entry.num_rows if adds else 0, entry.num_bytes if adds else 0, adds
        )


def ends_with(log: LogReader, number: int, commit_id: str) -> bool:
    """Whether an entry that was the newest still is, by two requests and no listing."""
    with contextlib.suppress(ShuffleError):
        if log.record(number).commit_id == commit_id:
            try:
                log.record(number + 1)
            except ObjectNotFoundError:
                return True
    return False


def commit_id_of(log: LogReader, view: LogView, version: int) -> str | None:
    """Return the commit id of a version; None if that was removed, ShuffleNotFoundError if none."""
    return None if version < view.oldest else log.entry_at(view, version).commit_id


def has_commit(log: LogReader, view: LogView, number: int, commit_id: str) -> bool:
    """Whether a number of the log has this commit, or had it before its segment was removed."""
    segment = segment_of(number)
    removed = log.removed(segment) if segment < segment_of(view.state.base) else None
    if removed is not None:
        return commit_id in removed.commit_ids
    return number <= view.newest and log.named(number).commit_id == commit_id


def check_commit_id(log: LogReader, view: LogView, version: int, commit_id: str) -> None:
    """Check that a version is the one that was read before, not of a re-created shuffle."""
    if not has_commit(log, view, version, commit_id):
        msg = (
            f"{log.root}: version {version} differs from the one that was read before, or does not "
            "exist; the shuffle was removed and written again. Start with a new checkpoint"
        )
        raise CorruptShuffleError(msg)
