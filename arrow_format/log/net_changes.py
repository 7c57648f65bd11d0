"""Which files have the rows that one of two versions has and the other lacks; opens none of them.

Versions are sums of files, each without the rows that its mask took. The later version less the
earlier one is what changed: equal files cancel, and of a file that both have the masks say it. A
merge has as many rows as it had inputs, so these may stand for what it wrote: where that leaves
fewer rows to be compared, they do, and of what was only merged nothing is left. What a deletion
wrote again has rows of one map output and no others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from math import gcd, inf
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from arrow_format.arrays.column_ids import Columns, give_ids
from arrow_format.arrays.schema_evolution import is_same_type, is_wider, widen
from arrow_format.errors import (
    OptionError,
    ResultReleasedError,
    SchemaError,
    ShuffleNotFoundError,
)
from arrow_format.keys.partitioner import key_columns, partitioner_from_description
from arrow_format.log.changes import entry_called_in
from arrow_format.log.delta import decoded
from arrow_format.log.outputs import MapOutputs, key_of
from arrow_format.log.result import released_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogReader, LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import MapOutput, PartitionedFile

RECOMPUTE = "what changed since cannot be said: recompute all that was made of it"


@dataclass(frozen=True, slots=True)
class NetChanges:
    """Files with rows that one version has and the other may lack.

    Each map output has one file. The rows of all that are inserted, less those of all that are
    deleted, are the change.
    """

    later: LogEntry
    """What rows are read as: the later version, its columns as wide as those of both."""
    earlier: LogEntry
    """The same for files of the earlier version, if those are laid out otherwise."""
    keys: tuple[str, ...]
    """The columns that an erased row is known by."""
    by_subpartition: bool
    """Whether equal rows are in the same subpartition of both."""
    oldest_needed: int
    """The oldest version that must not expire while files are read."""
    inserted: Sequence[MapOutput] = ()
    deleted: Sequence[MapOutput] = ()
    masked: Sequence[tuple[MapOutput, MapOutput]] = ()
    """Files of both, before and after: rows that a mask took of one alone are the change."""
    rewritten: Sequence[tuple[Sequence[MapOutput], Sequence[MapOutput]]] = ()
    """Files of a map output that deletions wrote again, and what these wrote: the same rows, but
    for those that are gone."""
    hidden: frozenset[str] = frozenset()
    """Keys of map outputs of which deleted rows may have been erased."""


_ByOutput = defaultdict[str, "list[MapOutput]"]


class _Term(NamedTuple):
    sign: int
    output: MapOutput
    file: PartitionedFile


class _Sum:
    """A sum of files, each added or subtracted without what its mask took; equal ones cancel."""

    def __init__(self) -> None:
        self._terms: dict[tuple[str, str], tuple[_Term, ...]] = {}

    def copy(self) -> _Sum:
        copied = _Sum()
        copied._terms = dict(self._terms)
        return copied

    def add(self, sign: int, outputs: Iterable[MapOutput]) -> None:
        """Add or subtract files."""
        for output in outputs:
            for file in output.files:
                place = key_of(output), file.path
                terms = [*self._terms.get(place, ())]
                for at, term in enumerate(terms):
                    if (term.sign, term.file.mask) == (-sign, file.mask):
                        del terms[at]
                        break
                else:
                    terms.append(_Term(sign, output, file))
                if terms:
                    self._terms[place] = (*terms,)
                else:
                    del self._terms[place]

    def sign_of(self, outputs: Iterable[MapOutput]) -> int:
        """Return the sign of the first of some files that is in the sum; 0 where none is."""
        for output in outputs:
            for file in output.files:
                for term in self._terms.get((key_of(output), file.path), ()):
                    return term.sign
        return 0

    @property
    def has_both(self) -> bool:
        """Whether some files are added and others subtracted, so that their rows may be equal."""
        return len({terms[0].sign for terms in self._terms.values() if len(terms) == 1}) > 1

    def num_rows(self, sources: Mapping[str, str]) -> float:
        """Return how many rows are to be read, about; infinite where a row may count twice.

        Of what deletions wrote, of ``sources``, those that are gone.
        """
        num_rows = 0
        single: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        for (key, _), terms in self._terms.items():
            if len(terms) == 1:
                single[terms[0].sign > 0][key] += terms[0].file.num_rows
            elif len(terms) == 2 and terms[0].sign + terms[1].sign == 0:
                num_rows += abs(terms[0].file.num_rows - terms[1].file.num_rows) + 1
            else:
                return inf
        subtracted, added = single
        for key, count in added.items():
            source = _source_of(key, sources, subtracted)
            num_rows += count if source is None else abs(count - subtracted.pop(source)) + 1
        return num_rows + subtracted.total()

    def __iter__(self) -> Iterator[tuple[_Term, ...]]:
        """Yield the files, a pair before and after where a file was masked."""
        return (tuple(sorted(terms, key=lambda one: one.sign)) for terms in self._terms.values())


def net_changes(log: LogReader, view: LogView, since: int, now: Snapshot) -> NetChanges:
    """Return what one version has that an earlier one, ``since``, has not, and the reverse.

    ``since`` 0 is the empty version before the first. Raises OptionError where it is after ``now``,
    ShuffleNotFoundError where it has expired or does not exist, its subclass ResultReleasedError
    where its rows were released, and SchemaError where the rows of both cannot be read together.
    """
    if since > now.version:
        msg = (
            f"{log.root}: since={since} is after version {now.version}, which this shuffle is open "
            "at: open the newest (.newest()), or give an earlier version"
        )
        raise OptionError(msg)
    later = now.newest
    if since == now.version:
        return NetChanges(later, later, (), by_subpartition=True, oldest_needed=since)
    if since == 0:
        added = tuple(_apart(now.map_outputs))
        oldest = now.oldest_needed
        return NetChanges(
            later, later, (), by_subpartition=True, oldest_needed=oldest, inserted=added
        )
    old = _earlier(log, view, since)
    read_later, read_earlier, keys, by_subpartition = _read_as(log, old.newest, later)
    same = pc.is_in(old.map_outputs.places, now.map_outputs.places)
    gone = MapOutputs.of_table(old.map_outputs.table.filter(pc.invert(same)))
    same = pc.is_in(now.map_outputs.places, old.map_outputs.places)
    came = MapOutputs.of_table(now.map_outputs.table.filter(pc.invert(same)))
    known = _Known(_Sum(), since, {})
    known.changed.add(-1, gone)
    known.changed.add(+1, came)
    if known.changed.has_both and since >= view.oldest and read_earlier is read_later:
        known = _known_of(log, view, since, later.version, known.changed)
    inserted, deleted = _ByOutput(list), _ByOutput(list)
    masked: list[tuple[MapOutput, MapOutput]] = []
    for terms in known.changed:
        before, after = (replace(one.output, files=(one.file,)) for one in (terms[0], terms[-1]))
        if len(terms) == 2:
            masked.append((before, after))
        else:
            (inserted if terms[0].sign > 0 else deleted)[key_of(after)].append(after)
    lost = {*deleted, *(key_of(before) for before, _ in masked)}
    rewritten = [
        (deleted.pop(source), inserted.pop(key))
        for key in [*inserted]
        if (source := _source_of(key, known.sources, deleted)) is not None
    ]
    return NetChanges(
        read_later,
        read_earlier,
        keys,
        by_subpartition,
        known.oldest_needed,
        [*chain.from_iterable(inserted.values())],
        [*chain.from_iterable(deleted.values())],
        masked,
        rewritten,
        _hidden(log, view, old, lost),
    )


def _apart(outputs: Iterable[MapOutput]) -> Iterator[MapOutput]:
    return (replace(output, files=(file,)) for output in outputs for file in output.files)


def _earlier(log: LogReader, view: LogView, since: int) -> Snapshot:
    """Return the version that changes are asked since."""
    released = view.state.released
    if released is not None and released.at > since:
        raise ResultReleasedError(f"{released_error(log.root, released)}. Since then {RECOMPUTE}")
    if 1 <= since < view.oldest and log.tag_of(view, since) is None:
        msg = (
            f"{log.root}: version {since} has expired, the oldest is {view.oldest}, and {RECOMPUTE}"
        )
        raise ShuffleNotFoundError(msg)
    return log.version_at(view, since).readable()


# What moved ---------------------------------------------------------------------------------------


class _Known(NamedTuple):
    """What the log knows of a sum of files."""

    changed: _Sum
    """An equal sum."""
    oldest_needed: int
    """The oldest version that has its files."""
    sources: Mapping[str, str]
    """Of map outputs that a deletion wrote, the one without whose deleted rows each is."""


def _known_of(log: LogReader, view: LogView, since: int, now: int, changed: _Sum) -> _Known:
    """Return the equal sum with the fewest rows, and what deletions wrote again.

    Inputs of a merge take the place of what it wrote, from the last merge on.
    """
    is_restored = any(since < number <= now for number in view.state.restored)
    first = view.oldest if is_restored else since  # a merge from before may be undone
    best, oldest = changed, since
    changed, needed = changed.copy(), since
    sources: dict[str, str] = {}
    numbers = range(now, first, -1)
    for start in range(0, len(numbers), log.max_requests):
        for number, entry in log.records(numbers[start : start + log.max_requests]).items():
            if entry.operation not in ("merge", "delete"):
                continue
            before, (outputs, _) = log.record(number - 1).state.version, entry.map_outputs.apart()
            sign = changed.sign_of(outputs)
            if not sign and not {*sources.values()}.isdisjoint(map(key_of, outputs)):
                sign = 1  # what a deletion wrote is followed to what it wrote again
            if before < max(view.oldest, 1) or not sign:
                continue
            earlier = log.version_at(view, before).readable()
            inputs = earlier.map_outputs.among(decoded(entry.content.removed))
            if entry.operation == "merge":
                changed.add(-sign, outputs)
                changed.add(sign, inputs)
                needed, num_rows = min(needed, before), changed.num_rows(sources)
                if num_rows < best.num_rows(sources):
                    best, oldest = changed.copy(), needed
            elif not is_restored:
                # A rollback gives rows back that a mask took before others were written again.
                of_position = {one.position: key_of(one) for one in inputs}
                for one in outputs:
                    source = of_position.get(one.position, key_of(one))
                    if source != key_of(one):  # else it is masked
                        sources[key_of(one)] = source
    return _Known(best, oldest, sources)


def _source_of(key: str, sources: Mapping[str, str], deleted: Mapping[str, object]) -> str | None:
    """Return which of some map outputs another is made of by deletions; None for none."""
    source = sources.get(key)
    while source is not None and source not in deleted:
        source = sources.get(source)
    return source


# What may have been erased ------------------------------------------------------------------------


def _hidden(log: LogReader, view: LogView, old: Snapshot, keys: set[str]) -> frozenset[str]:
    """Return those of map outputs whose rows may have been erased after a version.

    An erasure writes all files again that have rows of its keys, masked ones too. So a file that a
    version has right after a deletion has none of them; of one that it has not any more nothing is
    known, since an erasure of what only earlier versions have need not be in the log.
    """
    since = old.version
    if view.state.deleted <= since or not keys:
        return frozenset()
    if since < view.oldest:  # kept by a tag: what came after it is not known
        return frozenset(keys)

    def among(outputs: MapOutputs) -> set[str]:
        return keys.intersection(outputs.keys.to_pylist())

    there = among(old.map_outputs)
    known, hidden, deleted = {*there}, set[str](), since
    numbers = range(since + 1, view.newest + 1)
    for start in range(0, len(numbers), log.max_requests):
        for entry in log.records(numbers[start : start + log.max_requests]).values():
            if entry.is_version:
                added = among(entry.map_outputs)
                if entry.operation == "rollback" and deleted > since:
                    hidden |= added - known  # of before, and not there right after a deletion
                gone = decoded(entry.content.removed).to_pylist()
                there = added | (set() if entry.overwrites else there.difference(gone))
                known |= added
            if entry.state.deleted > deleted:
                deleted = entry.state.deleted
                hidden |= known - there
    return frozenset(hidden)


# What rows are read as ----------------------------------------------------------------------------


def _read_as(
    log: LogReader, old: LogEntry, now: LogEntry
) -> tuple[LogEntry, LogEntry, tuple[str, ...], bool]:
    """Return what rows of both versions are read as, the columns of keys, and how they are placed.

    The two entries are the same unless files of the versions are laid out otherwise.
    """
    called = entry_called_in(old, now)
    names = now.data_schema.names
    theirs = _schema_of(called.data_schema, names)
    for field in theirs:
        ours, type_ = now.data_schema.field(field.name).type, field.type
        fits = is_same_type(ours, type_) or is_wider(ours, type_) or is_wider(type_, ours)
        if not fits:
            msg = (
                f"{log.root}: column {field.name!r} is {type_} in version {old.version} and {ours} "
                f"in version {now.version}, so {RECOMPUTE}"
            )
            raise SchemaError(msg)
    wide = widen(now.data_schema, theirs)
    later = _with_columns(now, Columns(wide, now.columns.ids))
    if old.shuffle_id == now.shuffle_id:  # else it has another layout
        n = gcd(old.num_subpartitions, now.num_subpartitions)
        called, later = called.divided(n), later.divided(n)
    of_old, of_now = (
        key_columns(partitioner_from_description(entry.partitioner)) for entry in (called, now)
    )
    keys = tuple(name for name in of_now or () if name in (of_old or ()))
    layouts = [(one.num_subpartitions, [*one.sort_by]) for one in (called, later)]
    if layouts[0] != layouts[1]:
        columns = give_ids(
            widen(called.data_schema, wide),
            [Columns(wide, now.columns.ids), called.columns],
            max(*now.columns.ids, *called.columns.ids, 0),
        )
        return later, _with_columns(called, columns), keys, False
    is_placed = dict(called.partitioner) == dict(now.partitioner) and (
        old.shuffle_id == now.shuffle_id
        or (
            bool(of_now)
            and _schema_of(theirs, of_now or ()).types
            == _schema_of(now.data_schema, of_now or ()).types
        )
    )
    return later, later, keys, is_placed


def _schema_of(schema: pa.Schema, names: Iterable[str]) -> pa.Schema:
    return pa.schema([schema.field(name) for name in names if name in schema.names])


def _with_columns(entry: LogEntry, columns: Columns) -> LogEntry:
    shape = structs.replace(entry.shape, data_schema=columns.schema, column_ids=columns.ids)
    return structs.replace(entry, state=structs.replace(entry.state, shape=shape))
