"""The rows that changed between two versions: which were inserted, deleted and erased.

The log says which files can have such rows. Where both sides have some, rows that are equal cancel:
those of some subpartitions at a time, in passes where they take more memory than they may.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.batches import rebatched
from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.arrays.selection import joined, take
from arrow_format.errors import OptionError, SchemaError
from arrow_format.format.masks import RowMask, rows_beyond
from arrow_format.format.regions import RegionKind
from arrow_format.keys.hash_passes import in_passes
from arrow_format.keys.key_groups import key_groups
from arrow_format.keys.key_numbers import key_numbers
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.net_changes import RECOMPUTE, NetChanges, net_changes
from arrow_format.log.outputs import MapOutputs, key_of
from arrow_format.log.reader import translate_gone
from arrow_format.log.snapshot import Snapshot
from arrow_format.log.totals import sum_totals
from arrow_format.log.version_names import parse_version_name, resolve_version
from arrow_format.model import Mask
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.shuffle import BATCH_ROWS, Shuffle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.version_names import VersionName
    from arrow_format.model import Int64Array, MapOutput
    from arrow_format.read.partitioned_file import PartitionedFileReader

CHANGE_COLUMN = "_change_type"
"""Name of the column that says what became of a row."""

ERASE, DELETE, INSERT = "erase", "delete", "insert"

_MOST_KEYS = 1 << 20
"""Keys that are in memory before those that are equal are looked for among all."""

_NUMBERING_BYTES = 64
"""Bytes per row while rows are compared, besides its own."""


class _Side(NamedTuple):
    """Rows of files that one version has and the other may lack."""

    change: str
    """What became of such a row, unless an equal one is on the other side."""
    rows: Shuffle

    @property
    def raw_bytes(self) -> int:
        """Bytes of the rows in Arrow, by estimate."""
        return sum(
            file.raw_bytes * file.num_rows // max(file.stored_rows, 1)
            for output in self.rows.map_outputs
            for file in output.files
        )

    def batches(
        self, names: Sequence[str], within: tuple[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield columns of the rows of subpartitions ``[first, end)``, of all when None."""
        first, end = within or (0, self.rows.num_subpartitions)
        return (rows.batch for rows in self.rows.reader(first, end, names).straight())


def read_changes(
    shuffle: Shuffle, since: VersionName, columns: Sequence[str] | None = None
) -> BatchReader:
    """Read the rows in which a version differs from an earlier one.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.changes`.
    """
    schema = shuffle.schema_of(columns)
    if not schema.names:
        msg = "columns=[]: name one at least, by whose values rows differ"
        raise OptionError(msg)
    if CHANGE_COLUMN in schema.names:
        msg = f"column {CHANGE_COLUMN!r} is there already: select others, with columns=[...]"
        raise SchemaError(msg)
    changes = _changes_of(shuffle, since)
    delivered = _delivered_schema(changes, schema.names)
    batches = rebatched(
        _changed(shuffle, changes, delivered),
        min_rows=BATCH_ROWS,
        max_bytes=shuffle.options.batch_bytes,
    )
    return BatchReader(delivered, batches)


def changed_keys(shuffle: Shuffle, since: int, keys: Sequence[str]) -> pa.RecordBatch:
    """Return the keys, each once, of the rows in which a version differs from an earlier one.

    ``keys`` are the columns of the partitioner. No other is read unless whole files took the place
    of others, as after an overwrite: then all are, and rows that are equal in both versions have no
    key here. A row that was replaced by an equal one has. Raises as :func:`read_changes`, and
    OptionError where the earlier version was partitioned by other columns.
    """
    changes = _changes_of(shuffle, since)
    if changes.keys and {*changes.keys} != {*keys}:
        msg = (
            f"{shuffle.path}: is partitioned by {', '.join(keys)}, and version {since} was by "
            f"others, so {RECOMPUTE}"
        )
        raise OptionError(msg)
    schema = pa.schema([field.with_nullable(True) for field in shuffle.schema_of(keys)])
    if (changes.inserted and changes.deleted) or changes.rewritten:
        every = _delivered_schema(changes, changes.later.data_schema.names)
        batches = _changed(shuffle, changes, every)
    else:
        batches = chain.from_iterable(side.batches(keys) for side in _read_sides(shuffle, changes))
    found: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in batches:
        columns = [batch[field.name].cast(field.type) for field in schema]  # as wide as both are
        found.append(_distinct(pa.RecordBatch.from_arrays(columns, schema=schema)))
        num_rows += found[-1].num_rows
        if num_rows > _MOST_KEYS + 2 * found[0].num_rows:
            found = [distinct_keys(found, schema)]
            num_rows = found[0].num_rows
    return distinct_keys(found, schema)


def distinct_keys(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return the keys of several batches, each once."""
    return _distinct(joined([*parts])) if parts else pa.RecordBatch.from_pylist([], schema)


def _distinct(batch: pa.RecordBatch) -> pa.RecordBatch:
    _, rows = key_groups(batch.columns)
    return take(batch, to_arrow(rows))


def _changes_of(shuffle: Shuffle, since: VersionName) -> NetChanges:
    """Return which files have what changed; raises as :func:`read_changes`."""
    if not shuffle.is_whole or shuffle.span is not None or shuffle.snapshot.ranges:
        msg = f"{shuffle.path}: changes are those of a whole version; filter what they return"
        raise OptionError(msg)
    wanted = since if since == 0 and not isinstance(since, bool) else parse_version_name(since)
    log = CommitLog(shuffle.storage)

    def found(view: LogView) -> NetChanges:
        number = 0 if wanted == 0 else resolve_version(log, view, wanted)
        assert number is not None
        return net_changes(log, view, number, shuffle.snapshot)

    return log.read(found)


def _delivered_schema(changes: NetChanges, names: Sequence[str]) -> pa.Schema:
    wide = changes.later.data_schema
    fields = [wide.field(name) for name in names]
    fields = [one if one.name in changes.keys else one.with_nullable(True) for one in fields]
    return pa.schema([*fields, pa.field(CHANGE_COLUMN, pa.string(), nullable=False)])


def _read_sides(shuffle: Shuffle, changes: NetChanges) -> list[_Side]:
    with translate_gone(shuffle.storage, changes.later, changes.oldest_needed):
        return _sides(shuffle, changes)


def _changed(shuffle: Shuffle, changes: NetChanges, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows that changed, of adjacent subpartitions together."""
    sides = _read_sides(shuffle, changes)
    names = schema.names[:-1]
    deliver = partial(_delivered, schema=schema, keys=changes.keys)
    if len({side.change == INSERT for side in sides}) < 2:
        for side in sides:
            for batch in side.batches(names):
                yield deliver(batch, side.change)
        return
    max_bytes = shuffle.options.working_set_bytes
    num_bytes = sum(side.raw_bytes + _NUMBERING_BYTES * side.rows.num_rows for side in sides)
    n = changes.later.num_subpartitions
    num_groups = min(-(-num_bytes // max_bytes), n) if changes.by_subpartition else 1
    edges = [n * group // num_groups for group in range(num_groups + 1)]
    num_rows = sum(side.rows.num_rows for side in sides) // num_groups
    for group in pairwise(edges):
        within = group if changes.by_subpartition else None
        passes = in_passes(
            partial(_of_sides, sides, names, within),
            names,
            max_bytes=max_bytes,
            row_bytes=_NUMBERING_BYTES,
            num_rows=num_rows,
        )
        for _, batches in passes:
            if batches:
                both = joined(batches)
                batches.clear()
                yield from _net(both, sides, deliver)
                del both


def _of_sides(
    sides: Sequence[_Side], names: Sequence[str], within: tuple[int, int] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all sides, and in the last column the number of its side."""
    for number, side in enumerate(sides):
        for batch in side.batches(names, within):
            numbers = to_arrow(np.full(batch.num_rows, number, np.int8))
            columns = [*batch.columns, numbers]
            yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, CHANGE_COLUMN])


def _net(
    both: pa.RecordBatch, sides: Sequence[_Side], deliver: Callable[[pa.RecordBatch, str], Any]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of which one side has more than the other, as many as it has more."""
    rows = both.select(both.schema.names[:-1])
    of_side = to_numpy(both.column(both.num_columns - 1))
    numbers, _ = key_numbers(rows.columns)
    _, kinds = np.unique(numbers, return_inverse=True)
    changes = [side.change for side in sides]
    counts = {
        change: np.bincount(kinds[of_side == number], minlength=len(kinds))
        for number, change in enumerate(changes)
    }
    more = -counts[INSERT]
    for change in {*changes} - {INSERT}:
        more += counts[change]
    is_new = of_side == changes.index(INSERT)
    deleted = _firsts(kinds, np.flatnonzero(~is_new), more)
    inserted = _firsts(kinds, np.flatnonzero(is_new), -more)
    # Of equal rows the log does not say which was erased.
    is_erased = counts[ERASE][kinds[deleted]] > 0 if ERASE in counts else np.zeros_like(deleted) > 0
    for at, change in (
        (deleted[is_erased], ERASE),
        (deleted[~is_erased], DELETE),
        (inserted, INSERT),
    ):
        if len(at):
            yield deliver(take(rows, to_arrow(at)), change)


def _firsts(kinds: Int64Array, rows: Int64Array, most: Int64Array) -> Int64Array:
    """Return the first of some rows of each kind, as many as ``most`` has of that, ascending."""
    order = np.argsort(kinds[rows], kind="stable")
    of_kind = kinds[rows][order]
    starts = np.searchsorted(of_kind, of_kind, side="left")
    is_first = np.arange(len(rows)) - starts < most[of_kind]
    firsts: Int64Array = np.sort(rows[order[is_first]])
    return firsts


def _delivered(
    batch: pa.RecordBatch, change: str, *, schema: pa.Schema, keys: Sequence[str]
) -> pa.RecordBatch:
    """Return rows with what became of them; of those erased the keys alone."""
    n = batch.num_rows
    columns = batch.columns
    if change == ERASE:
        columns = [
            column if field.name in keys else pa.nulls(n, field.type)
            for field, column in zip(batch.schema, columns, strict=True)
        ]
    return pa.RecordBatch.from_arrays([*columns, pa.repeat(change, n)], schema=schema)


# Files of each side -------------------------------------------------------------------------------


def _sides(shuffle: Shuffle, changes: NetChanges) -> list[_Side]:
    """Return rows that were erased, deleted and inserted, as far as files say; none without any."""
    inserted, deleted = [*changes.inserted], [*changes.deleted]
    indexes = IndexCache(shuffle.storage, shuffle.options.index_bytes)
    for pair in changes.masked:
        before, after = indexes.indexes_of(changes.later, [(one, one.files[0]) for one in pair])
        gone = rows_beyond(after.mask, before.mask)
        back = rows_beyond(before.mask, after.mask)
        if gone:
            deleted.append(_only(pair[0], before, gone))
        if back:
            inserted.append(_only(pair[1], after, back))
    for sources, written in changes.rewritten:
        lost, kept = _where_rows_went(indexes, changes.later, sources, written)
        deleted += lost
        inserted += kept
    erased = [one for one in deleted if key_of(one) in changes.hidden]
    deleted = [one for one in deleted if key_of(one) not in changes.hidden]
    parts = (
        (ERASE, changes.earlier, erased),
        (DELETE, changes.earlier, deleted),
        (INSERT, changes.later, inserted),
    )
    return [
        _Side(change, _shuffle_of(shuffle, changes, entry, outputs))
        for change, entry, outputs in parts
        if outputs
    ]


def _where_rows_went(
    indexes: IndexCache, version: LogEntry, before: Sequence[MapOutput], after: Sequence[MapOutput]
) -> tuple[list[MapOutput], list[MapOutput]]:
    """Return files and what was written of them, with the subpartitions alone that lost rows.

    Nothing was added: a subpartition with as many rows has the same ones.
    """
    opened = [
        [*indexes.indexes_of(version, [(one, one.files[0]) for one in files])]
        for files in (before, after)
    ]
    n = version.num_subpartitions
    old, new = (sum_totals([index.totals for index in of], n)[0] for of in opened)
    is_changed = old != new
    left: list[list[MapOutput]] = [[], []]
    for files, of, kept in zip((before, after), opened, left, strict=True):
        for output, index in zip(files, of, strict=True):
            rows = {number: rows for number, rows in _rows_of(index, is_changed) if len(rows)}
            if rows:
                kept.append(_only(output, index, rows))
    return left[0], left[1]


def _rows_of(
    index: PartitionedFileReader, is_wanted: NDArray[np.bool_]
) -> Iterator[tuple[int, Int64Array]]:
    """Yield each region of a file with its rows of wanted subpartitions, that no mask took.

    A broadcast row is of all of them: if not all lost rows, none was broadcast.
    """
    gone = {} if index.mask is None else index.mask.rows()
    for region in index.regions:
        if region.kind is RegionKind.BROADCAST:
            rows = np.arange(region.num_rows if is_wanted.all() else 0)
        else:
            ranks, edges = region.ranks_of_rows(0, region.num_rows)
            ids = (ranks + region.first_subpartition) % index.metadata.num_subpartitions
            rows = np.flatnonzero(np.repeat(is_wanted[ids % len(is_wanted)], np.diff(edges)))
        if region.number in gone:
            rows = np.setdiff1d(rows, gone[region.number], assume_unique=True)
        yield region.number, rows


def _shuffle_of(
    shuffle: Shuffle, changes: NetChanges, entry: LogEntry, outputs: Sequence[MapOutput]
) -> Shuffle:
    snapshot = Snapshot(entry, MapOutputs.of(outputs), oldest_needed=changes.oldest_needed)
    return Shuffle(shuffle.storage, snapshot, shuffle.options)


def _only(
    output: MapOutput, index: PartitionedFileReader, rows: Mapping[int, Int64Array]
) -> MapOutput:
    """Return a map output of one file with some of its rows alone, by region."""
    (file,) = output.files
    mask = RowMask.all_but(rows, [region.num_rows for region in index.regions])
    frame = mask.encode()
    described = Mask(
        mask.num_rows, number=1, frame=frame, length=len(frame), crc32=zlib.crc32(frame)
    )
    left = replace(
        file,
        num_rows=sum(map(len, rows.values())),
        num_broadcast_rows=sum(
            len(rows.get(region.number, ()))
            for region in index.regions
            if region.kind is RegionKind.BROADCAST
        ),
        mask=described,
    )
    return replace(output, files=(left,))
