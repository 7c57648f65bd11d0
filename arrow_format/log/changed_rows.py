"""The rows that a span of versions adds, with the schema in which all of them can be read.

Which span that is :mod:`arrow_format.log.changes` settles.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from arrow_format.arrays.schema_evolution import (
    is_appendable,
    same_spark_types,
    widen,
    widen_spark_schema,
)
from arrow_format.errors import SchemaError, ShuffleNotFoundError
from arrow_format.log.changes import ADD_NOTHING, check_not_expired, entries_of, plan_changes
from arrow_format.log.snapshot import Snapshot, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.log.entry import LogEntry
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
