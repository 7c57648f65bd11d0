"""Which groups of a result are to be made again: those whose rows changed since it was made.

What the result has seen of its source is in its own log: the entry that replaces groups is the
commit of an application that names source and function, with a number that has the version. So it
is there if and only if the rows are. Groups that others changed in the result since that entry, by
a rollback say, are made again as well: whatever is there, it becomes what a full run makes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from arrow_format.errors import OptionError, SchemaError, ShuffleNotFoundError
from arrow_format.filters.keys import stored_keys, subpartitions_of_keys
from arrow_format.jobs.commit import find_receipt
from arrow_format.jobs.job import log_before_write
from arrow_format.keys.key_set import KeySet
from arrow_format.keys.partitioner import (
    Partitioner,
    key_columns,
    partitioner_from_description,
)
from arrow_format.log.commit_log import CommitLog
from arrow_format.model import Transaction
from arrow_format.operators.description import Selected
from arrow_format.operators.groups import group_keys
from arrow_format.operators.into import Replacing
from arrow_format.operators.net_changes import changed_keys, distinct_keys
from arrow_format.options import ignore
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import search
from arrow_format.read.presentation import count_of
from arrow_format.read.shuffle import Shuffle, open_shuffle

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.state import VersionShape
    from arrow_format.operators.described_calls import MappedGroups
    from arrow_format.operators.description import Description
    from arrow_format.storage.open import Storage

_APPLICATION = "map_groups"
_NAME = re.compile(r"[A-Za-z0-9_\-]{1,50}")
_KNOWN = re.compile(rf"{_APPLICATION}-([0-9a-f]{{32}})-({_NAME.pattern})")
_RUNS = 1 << 20
"""Runs at one version of the source whose numbers differ: each after others changed the result."""
_ADVICE = 'map_groups(..., since="all") computes all groups again'


class Seen(NamedTuple):
    """The last entry of a log that replaced groups."""

    shuffle_id: str
    """Of the source, at the version that it had seen."""
    function: str
    number: int
    """Of its transaction."""
    entry: int
    """Number of the entry."""

    @property
    def version(self) -> int:
        """The version of the source."""
        return self.number // _RUNS

    @property
    def transaction(self) -> Transaction:
        """Its transaction."""
        return Transaction(f"{_APPLICATION}-{self.shuffle_id}-{self.function}", self.number)


@dataclass(frozen=True)
class ChangedGroups:
    """What a write of changed groups does."""

    description: MappedGroups
    """Makes these groups."""
    replacing: Replacing
    seen: Seen | None
    """The entry that has seen all that there is; None where something is to be committed."""

    def receipt(self, result: Storage) -> ShuffleReceipt:
        """Return the receipt where nothing is to be committed: that of the entry that has seen."""
        assert self.seen is not None
        receipt = find_receipt(result, self.seen.transaction)
        assert receipt is not None  # the state of the log has it
        return replace(receipt, notes=(self.replacing.note,))

    def lines(self) -> tuple[str, ...]:
        """Return what is done and why, and how many chunks have rows of it; for people.

        Reads the columns of the partitioner in the subpartitions of the groups.
        """
        changed, source = self.replacing.changed, source_of(self.description)
        if changed is None:
            return (self.replacing.note,)
        n, entry = source.num_subpartitions, source.snapshot.newest
        partitioner = source.partitioner
        assert isinstance(partitioner, Partitioner)  # it has these keys
        wanted = KeySet(changed, subpartitions_of_keys(changed, partitioner, n), n)
        files = [(output, file) for output in source.map_outputs for file in output.files]
        indexes = [*IndexCache(source.storage).indexes_of(entry, files)]
        found = search(indexes, wanted, source.schema, ignore).values()
        touched = sum(len(chunks) for matches in found for chunks in matches.chunks.values())
        total = sum(len(region.chunks.num_rows) for index in indexes for region in index.regions)
        where = f"their rows are in {touched:,} of {total:,} chunks of {source.path}"
        return self.replacing.note, where


def check_since(since: object, function: object, name: object) -> str:
    """Return the name of a function, by which the log knows it; raises OptionError.

    It is empty where no result is asked what it has seen.
    """
    if since is None and name is None:
        return ""
    if since not in ("last", "all"):
        msg = (
            f"since={since!r}: expected 'last', for the groups that changed since the result was "
            "made, or 'all'; which version that was, the log of the result says"
        )
        raise OptionError(msg)
    given = getattr(function, "__name__", None) if name is None else name
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        msg = (
            f"name={name!r}: the log of the result has the name of the function, and "
            f"{given or type(function).__name__!r} is none: give name=, 1 to 50 letters, digits, _ "
            "and -, and another one whenever the function makes other rows"
        )
        raise OptionError(msg)
    return given


def changed_groups(asked: MappedGroups, result: Storage) -> ChangedGroups:
    """Return which groups are to be made again for a result; reads the keys of what changed.

    Raises OptionError where the rows are not those of one shuffle, or the result is partitioned by
    other columns, or was made by another function or of another shuffle; ShuffleNotFoundError where
    the version of the source that it has seen has expired.
    """
    source = source_of(asked)
    keys = group_keys(source)
    log = CommitLog(result)
    view = log_before_write(result)
    check_keys_of(view.shape, result.root, keys)
    seen = None if view.shape is None else _last_seen(log, view)
    changed: pa.RecordBatch | None = None
    why = "of which there was no result"
    if asked.since == "all":
        why = 'as since="all" asks'
    elif seen is None and view.shape is not None:
        why = "since others wrote what was there"
    elif seen is not None:
        then = _check_same(seen, source, asked.name, result.root)
        changed, why = _changed(seen, then, source, keys, result, view)
    is_seen = changed is not None and not changed.num_rows
    is_seen = is_seen and seen is not None and seen.version == source.version
    if changed is None:
        note = f"all groups of {source.path} version {source.version} were computed, {why}"
    elif is_seen:
        note = f"nothing was computed: the result has seen {source.path} version {source.version}"
    else:
        groups = count_of(changed.num_rows, "group")
        note = f"computed {groups} of {source.path}: {why}"
    transaction = _next_transaction(log, view, source, asked.name)
    restricted = asked.source if changed is None else Selected(asked.source, key_values=changed)
    return ChangedGroups(
        replace(asked, source=restricted, since=None, keeps_keys=True),
        Replacing(view, keys, changed, transaction, note),
        seen if is_seen else None,
    )


def source_of(asked: Description) -> Shuffle:
    """Return the shuffle of whose rows groups are made; raises OptionError."""
    given = asked.sources[0]
    while isinstance(given, Selected) and isinstance(given.source, Selected):
        given = given.source
    if isinstance(given, Selected) and isinstance(given.source, Shuffle):
        return given.source
    msg = (
        "since: which groups changed is known of the rows of one shuffle, or a selection of it, "
        "and these are made by an operation; write its result, and ask that"
    )
    raise OptionError(msg)


def check_keys_of(shape: VersionShape | None, path: str, keys: Sequence[str]) -> None:
    """Raise OptionError where a result is not partitioned by the keys of the groups."""
    if shape is None:
        return
    there = key_columns(partitioner_from_description(shape.partitioner)) or ()
    if {*there} != {*keys}:
        msg = (
            f"{path}: is partitioned by {', '.join(there) or 'no columns'}, and the groups are by "
            f"{', '.join(keys)}, so that the rows of a group cannot be replaced there; write into "
            "another path"
        )
        raise OptionError(msg)


def _last_seen(log: CommitLog, view: LogView) -> Seen | None:
    assert view.last is not None
    known = log.earlier_applications(view.last, view.state.base)
    found = [
        Seen(match[1], match[2], last.number, last.version)
        for name, last in {**known, **view.state.applications}.items()
        if (match := _KNOWN.fullmatch(name))
    ]
    return max(found, key=lambda one: one.entry, default=None)


def _check_same(seen: Seen, source: Shuffle, function: str, path: str) -> LogEntry:
    """Return the version of a source that a result is made of.

    Raises where the result is not what the function makes of a source that can be compared.
    """
    made = f"{path}: was made by {seen.function!r} of version {seen.version} of its source"
    if seen.function != function:
        msg = f"{made}, and this is {function!r}: {_ADVICE}; or write into another path"
        raise OptionError(msg)
    log = CommitLog(source.storage)
    try:
        then = log.read(lambda view: log.version_at(view, seen.version)).newest
    except ShuffleNotFoundError as error:
        msg = f"{made}, and what changed since cannot be said: {error}. {_ADVICE}"
        raise type(error)(msg) from error
    if then.shuffle_id != seen.shuffle_id:
        msg = f"{made}, and {source.path} is another shuffle: {_ADVICE}; or write into another path"
        raise OptionError(msg)
    if seen.version > source.version:
        msg = f"{made}, and {source.path} is open at {source.version}: open the newest (.newest())"
        raise OptionError(msg)
    return then


def _changed(
    seen: Seen,
    then: LogEntry,
    source: Shuffle,
    keys: Sequence[str],
    result: Storage,
    view: LogView,
) -> tuple[pa.RecordBatch | None, str]:
    """Return the keys of groups that changed, and why; None for all."""
    there, now = None, source.snapshot.newest
    if (then.columns.ids, then.data_schema.types) != (now.columns.ids, now.data_schema.types):
        return None, f"since the columns of {source.path} changed after version {seen.version}"
    if view.state.changed > seen.entry:
        try:
            there = changed_keys(open_shuffle(result, view.state.version), seen.entry, keys)
        except (OptionError, SchemaError, ShuffleNotFoundError):
            return None, f"since others changed {result.root} after its version {seen.entry}"
    parts = [changed_keys(source, seen.version, keys)]
    num_changed = parts[0].num_rows
    why = f"{num_changed:,} changed from version {seen.version} to {source.version}"
    if there is not None and there.num_rows:
        parts.append(stored_keys(there, keys, parts[0].schema))
        why += f", and others changed {there.num_rows:,} in {result.root}"
    return distinct_keys(parts, parts[0].schema), why


def _next_transaction(log: CommitLog, view: LogView, source: Shuffle, function: str) -> Transaction:
    """Return the transaction of a run; raises OptionError where a later version was seen."""
    shuffle_id = source.snapshot.newest.shuffle_id
    transaction = Seen(shuffle_id, function, source.version * _RUNS, 0).transaction
    last = log.last_commit(view, transaction.application_id)
    if last is None or last.number < transaction.number:
        return transaction
    if last.number // _RUNS > source.version:
        msg = (
            f"{log.root}: version {last.number // _RUNS} of {source.path} was computed, and it is "
            f"open at {source.version}: open the newest (.newest())"
        )
        raise OptionError(msg)
    return replace(transaction, number=last.number + 1)
