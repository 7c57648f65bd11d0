"""Rows of a job whose identity rows of the newest version have: replaced, or refused.

Where whole groups are replaced, the keys of the partitioner take the place of what identifies a
row, and several rows may have one.

A commit looks for them at each try: in the version that it finds at first, and in what others added
since. So two writers of one new key leave one row, and neither has to begin again. Rows are found
by the columns that identify them alone, and by the sequence of changes where there is one, of the
subpartitions that the job has rows of, and masked: what is replaced and what replaces it are one
entry. By a sequence rows of the job may be masked too, so each try looks at all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take
from arrow_format.errors import CommitConflictError, DuplicateKeyError
from arrow_format.filters.keys import stored_keys, subpartitions_of_keys
from arrow_format.jobs.mask_rows import MaskedRows, mask_rows
from arrow_format.jobs.tombstones import masked as masked_tombstones
from arrow_format.keys.key_set import KeySet
from arrow_format.keys.last_positions import last_positions
from arrow_format.keys.partitioner import (
    Partitioner,
    key_columns,
    partitioner_from_description,
)
from arrow_format.log.commit_log import draft
from arrow_format.log.newest_version import NewestVersion
from arrow_format.log.outputs import NO_OUTPUTS, MapOutputs
from arrow_format.log.totals import sum_totals
from arrow_format.options import ignore
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import FoundRows, Matches, keys_in, rows_of_keys, search
from arrow_format.read.tombstones import opened, shape_of
from arrow_format.read.unique_keys import (
    groups_of,
    not_newest,
    older_than,
    problem_of_keys,
    problem_of_nulls,
    problem_of_rows,
    text_of_key,
    unique_keys,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import NoReturn

    from numpy.typing import NDArray

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.map_outputs import CompleteOutputs
    from arrow_format.log.commit_log import CommitLog
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.state import VersionShape
    from arrow_format.log.totals import Totals
    from arrow_format.model import Int64Array, MapOutput, PartitionedFile


@dataclass(frozen=True, slots=True)
class Replaced:
    """Map outputs of a version that lose rows, what takes their place, and what totals lose."""

    inputs: MapOutputs
    outputs: MapOutputs
    own: MapOutputs
    """Those of the job, of which older changes are masked."""
    masks: bool
    """Whether any row is masked."""
    totals: Totals


class UniqueRows:
    """Looks for rows that have the identity of those of a job. For one commit.

    ``complete`` is what the job has. Of the keys ``gone``, whose columns are called by their ids,
    no row is left but those of the job, which has none of them unless groups are replaced.
    """

    def __init__(
        self,
        job: ShuffleJob,
        log: CommitLog,
        complete: CompleteOutputs,
        gone: pa.RecordBatch | None,
    ) -> None:
        self._job = job
        self._gone = gone
        self._num_rows = complete.totals[0]
        self._root = log.root
        self._newest = NewestVersion(log)
        self._counts = self._num_rows + complete.tombstone_rows
        self._n = 0
        """Subpartitions of the version that was searched last; 0 before that."""
        self._groups: list[NDArray[np.bool_]] = []
        """Which of them are read together."""
        self._indexes = IndexCache(job.storage)
        self._columns: pa.Schema | None = None
        """Those that identify a row, or say its group, as they were searched last."""
        self._groups_only = False
        """Whether several rows of the job may be equal in them."""
        self._kept: list[KeySet] | None = None
        """Keys of the job, where they are few; None before they were read."""
        self._now: dict[str, MapOutput] = {}
        """Map outputs of the newest version by their places."""
        self._buried: dict[str, MapOutput] = {}
        """Its tombstones by theirs."""
        self._with_masks: tuple[Sequence[MapOutput], Sequence[MapOutput]] = ((), ())
        """Tombstones of the job, and these with the masks that were put."""
        self._found: dict[str, list[Matches]] = {}
        """Of each that was searched, what each of its files has of the keys."""

    def replaced(
        self,
        view: LogView,
        shape: VersionShape,
        own: MapOutputs,
        tombstones: Sequence[MapOutput],
        operation: str,
        mode: str,
    ) -> Replaced:
        """Return what is left of the newest version where its rows make way for those of a job.

        ``own`` and ``tombstones`` are the map outputs of the job, with the ids of their columns,
        and ``shape`` that of the version to come. With mode ``replace_groups`` all rows make way
        whose keys of the partitioner rows of the job have, or are gone. An upsert is an overwrite
        where there is no version; in one with a sequence, the row with the largest stays of each
        identity, of the job or of the version, and of equal ones that of the job, which has the
        last of its own.

        Raises DuplicateKeyError where two rows of the job have one identity, unless a sequence
        tells which is newer, or one has none; and where one of the version has it, unless the
        operation is ``upsert``.
        Raises CorruptShuffleError where a file cannot be read, and StorageError where a mask could
        not be put.
        """
        version = draft(view, operation, state={"shape": shape})
        groups = mode == "replace_groups" and operation == "upsert"
        keys_of = key_columns(partitioner_from_description(shape.partitioner)) if groups else ()
        sequence = shape.sequence_name if mode == "upsert" else None
        names = [*(keys_of or shape.unique_names), *([] if sequence is None else [sequence])]
        columns = pa.schema([shape.data_schema.field(name) for name in names])
        n = shape.num_subpartitions
        if n != self._n:  # it divides that of the job
            counts, _ = sum_totals([(self._counts, self._counts)], n)
            self._n, self._groups, self._kept = n, groups_of(counts), None
            self._indexes = IndexCache(self._job.storage)  # an index keeps the number it was given
        if columns != self._columns:  # they have other names or wider types now
            self._columns, self._kept, self._found = columns, None, {}
            self._groups_only = groups
            self._indexes = IndexCache(self._job.storage)  # an index keeps the names it was given
        there = {} if operation == "overwrite" else self._there(view)
        if sequence is not None and self._gone is not None:
            msg = (
                f"{self._root}: column {sequence!r} says now which change of a row is newest, and "
                "it was the order of the changes; nothing was committed"
            )
            raise CommitConflictError(msg)
        if sequence is not None:
            buried = {} if operation == "overwrite" else self._buried
            return self._by_sequence(version, there, own, names, tombstones, [*buried.values()])
        unknown = {place: there[place] for place in there if place not in self._found}
        if self._kept is None and groups and shape.unique:
            counts, _ = sum_totals([(self._num_rows, self._num_rows)], n)
            self._check(problem_of_rows([*own], version, self._indexes, counts))
        if unknown or self._kept is None:
            # Kept when it is complete: a commit tries again where a file was removed meanwhile.
            found = {place: [Matches() for _ in output.files] for place, output in unknown.items()}
            for keys in self._keys(version, own):
                self._search(version, keys, unknown, found)
            self._found |= found
        holding = {
            place: output
            for place, output in there.items()
            if any(matches.num_rows for matches in self._found[place])
        }
        if holding and operation != "upsert":
            self._refuse(version, own, holding)
        masked = [self._masked(version, place, output) for place, output in holding.items()]
        changes, totals = mask_rows(self._job, masked)
        return Replaced(
            MapOutputs.of(holding.values()),
            MapOutputs.of(output for change in changes for output in change.outputs),
            own,
            bool(holding),
            totals,
        )

    def _by_sequence(
        self,
        version: LogEntry,
        there: Mapping[str, MapOutput],
        own: MapOutputs,
        names: Sequence[str],
        tombstones: Sequence[MapOutput],
        buried: Sequence[MapOutput],
    ) -> Replaced:
        """Return what is left of the newest version and of the job, by the sequence of changes.

        ``names`` are the columns that identify a row, and the sequence, and ``buried`` tombstones
        of the version: they drop changes of the job that are older, and no row that is there.
        Some subpartitions are compared at a time, by the rows that the job has of them. Of a
        deletion and a row with one sequence the row is newer: deletions come first.
        """
        num_keys = len(names) - 1
        columns = shape_of(version.shape).data_schema
        outputs = [*there.values(), *own]
        files = [(output, file) for output in outputs for file in output.files]
        num_stored = sum(len(output.files) for output in there.values())
        older: list[dict[int, list[Int64Array]]] = [{} for _ in files]
        schema = version.data_schema
        for wanted in self._groups:
            indexes = self._indexes.indexes_of(version, files[num_stored:])
            found = rows_of_keys(indexes, names, schema, wanted)
            changed = [replace(each, order=num_stored + each.order) for each in found]
            indexes = opened(version, tombstones, self._indexes)
            deleted = [
                replace(each, order=-1) for each in rows_of_keys(indexes, names, columns, wanted)
            ]
            keys = self._keys_of_changes(version, [*changed, *deleted])
            indexes = opened(version, buried, self._indexes)
            gone = [*rows_of_keys(indexes, names, columns, wanted, keys)]
            changes, late = older_than([*deleted, *changed], gone, num_keys)
            indexes = self._indexes.indexes_of(version, files[:num_stored])
            stored = [*rows_of_keys(indexes, names, schema, wanted, keys)]
            deleted, changed = changes[: len(deleted)], changes[len(deleted) :]
            dropped = [(each.order, each.region, each.places) for each in late]
            dropped += not_newest([*deleted, *stored, *changed], num_keys)
            for order, region, places in dropped:
                if order >= 0:
                    older[order].setdefault(region, []).append(places)
        masked, first = [], 0
        for output in outputs:
            of_files = older[first : first + len(output.files)]
            first += len(output.files)
            if any(of_files):
                each_file = [(output, file) for file in output.files]
                by_region = [
                    {region: np.sort(np.concatenate(parts)) for region, parts in each.items()}
                    for each in of_files
                ]
                whole = [*self._indexes.indexes_of(version, each_file)]
                masked.append(MaskedRows(output, whole, by_region))
        replaced, totals = mask_rows(self._job, masked)
        # One of which nothing is left keeps its number: those of an overwrite are counted.
        left = MapOutputs.of(
            output
            for change in replaced
            for output in change.outputs or [replace(each, files=()) for each in change.inputs]
        )
        inputs = MapOutputs.of(each.output for each in masked)
        unchanged = own.without(inputs.keys)
        of_version = inputs.without(own.keys)
        if [*self._with_masks[0]] != [*tombstones]:
            masks = masked_tombstones(self._job, version, tombstones, self._indexes)
            self._with_masks = tombstones, masks
        _, tombstones = self._with_masks
        of_job = MapOutputs.concat([unchanged, left.among(own.keys), MapOutputs.of(tombstones)])
        return Replaced(
            of_version,
            MapOutputs.of(output for output in left.without(own.keys) if output.files),
            of_job.without_positions(),
            bool(masked or tombstones),
            totals,
        )

    def _keys_of_changes(self, version: LogEntry, changed: Sequence[FoundRows]) -> KeySet:
        """Return the keys of changes, each once; raises DuplicateKeyError where one is null."""
        names = [*version.shape.unique_names]
        columns = [
            pa.concat_arrays([each.columns[i] for each in changed]) for i in range(len(names))
        ]
        keys = pa.RecordBatch.from_arrays(columns, names)
        self._check(problem_of_nulls(keys))
        return self._key_set(version, take(keys, to_arrow(last_positions(columns, len(keys)))))

    def _key_set(self, version: LogEntry, keys: pa.RecordBatch) -> KeySet:
        """Return keys with their subpartitions."""
        partitioner = partitioner_from_description(version.partitioner)
        assert isinstance(partitioner, Partitioner)  # or nothing could identify a row
        n = version.num_subpartitions
        return KeySet(keys, subpartitions_of_keys(keys, partitioner, n), n)

    def _there(self, view: LogView) -> dict[str, MapOutput]:
        """Return the map outputs of the newest version by their places, but for its tombstones."""
        with self._newest.look(view) as composed:
            if composed is not None:
                self._now, self._buried, added = {}, {}, composed.map_outputs
            else:  # it has all that it had, and perhaps what the last entry added
                last = view.last
                added = NO_OUTPUTS if last is None or not last.is_version else last.map_outputs
            for known, outputs in zip((self._now, self._buried), added.apart(), strict=True):
                known |= zip(outputs.places.to_pylist(), outputs, strict=True)
        return self._now

    def _keys(self, version: LogEntry, own: MapOutputs) -> Iterator[KeySet]:
        """Yield the keys of the rows of the job, of some subpartitions at a time."""
        if self._kept:
            yield from self._kept
            return
        kept = []
        for wanted in self._groups:
            keys = self._read_keys(version, own, wanted)
            if len(self._groups) == 1:
                kept.append(keys)
            yield keys
        if self._gone is not None and self._gone.num_rows:
            keys = self._gone_keys(version, self._gone)
            if len(self._groups) <= 1:
                kept.append(keys)
            yield keys
        self._kept = kept

    def _gone_keys(self, version: LogEntry, gone: pa.RecordBatch) -> KeySet:
        """Return the keys of which no row is left; raises DuplicateKeyError and SchemaError."""
        assert self._columns is not None
        names = self._columns.names  # what its columns are called now
        ids = [str(version.columns.by_name[name]) for name in names]
        if {*ids} != {*gone.schema.names}:
            msg = (
                f"{self._root}: other columns ({', '.join(names)}) identify a row "
                "than when the changes were read; nothing was committed. Upsert them again"
            )
            raise CommitConflictError(msg)
        given = pa.RecordBatch.from_arrays([gone[id_] for id_ in ids], names)
        keys = stored_keys(given, names, version.data_schema)
        if not self._groups_only:
            self._check(problem_of_keys(keys))
        return self._key_set(version, keys)

    def _read_keys(self, version: LogEntry, own: MapOutputs, wanted: NDArray[np.bool_]) -> KeySet:
        """Return the keys of the job in some subpartitions; raises DuplicateKeyError."""
        files = [(output, file) for output in own for file in output.files]
        assert self._columns is not None
        indexes = self._indexes.indexes_of(version, files)
        keys, ids = unique_keys(indexes, version, wanted, self._columns.names)
        if not self._groups_only:
            self._check(problem_of_keys(keys))
        return KeySet(keys, ids, version.num_subpartitions)

    def _check(self, problem: str | None) -> None:
        if problem is not None:
            msg = f"{self._root}: {problem}. Nothing was committed: keep one row of each key"
            raise DuplicateKeyError(msg)

    def _search(
        self,
        version: LogEntry,
        keys: KeySet,
        outputs: Mapping[str, MapOutput],
        found: Mapping[str, Sequence[Matches]],
    ) -> None:
        """Add what map outputs have of keys to what was found of them."""
        places = [(place, i) for place, output in outputs.items() for i in range(len(output.files))]
        files = [(output, file) for output in outputs.values() for file in output.files]
        indexes = self._indexes.indexes_of(version, files)
        by_file = search(indexes, keys, version.data_schema, ignore, with_rows=True)
        for number, matches in by_file.items():
            place, i = places[number]
            found[place][i].add(matches)

    def _masked(self, version: LogEntry, place: str, output: MapOutput) -> MaskedRows:
        files = [(output, file) for file in output.files]
        indexes = [*self._indexes.indexes_of(version, files)]
        return MaskedRows(output, indexes, [each.by_region for each in self._found[place]])

    def _refuse(
        self, version: LogEntry, own: MapOutputs, holding: Mapping[str, MapOutput]
    ) -> NoReturn:
        """Say which of the rows are there already."""
        num_rows = sum(each.num_rows for place in holding for each in self._found[place])
        place, output = next(iter(holding.items()))
        files = zip(output.files, self._found[place], strict=True)
        file = next(file for file, matches in files if matches.num_rows)
        names = ", ".join(version.shape.unique_names)
        msg = (
            f"{self._root}: {num_rows:,} of the rows have the key of a row that is there, such as "
            f"{self._key_in(version, own, output, file)} of {file.path}, and {names} identify a "
            'row. Nothing was committed: write with mode="upsert" to replace them'
        )
        raise DuplicateKeyError(msg)

    def _key_in(
        self, version: LogEntry, own: MapOutputs, output: MapOutput, file: PartitionedFile
    ) -> str:
        """Return the first key of the job that a file has."""
        names = version.shape.unique_names
        for keys in self._keys(version, own):
            indexes = self._indexes.indexes_of(version, [(output, file)])
            for _, columns in keys_in(indexes, names, version.data_schema, keys.wanted):
                rows = np.flatnonzero(keys.among(columns, None))
                if len(rows):
                    there = pa.RecordBatch.from_arrays(columns, [*names])
                    return text_of_key(there, int(rows[0]))
        raise AssertionError  # it was found there
