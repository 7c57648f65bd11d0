"""Tombstones as jobs add, join and drop them.

:mod:`arrow_format.read.tombstones` says what they are.

A merge leaves out those that are older than the oldest version, which is how late a change may
come, and joins others; an erasure leaves out those of its keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take
from arrow_format.format.masks import RowMask
from arrow_format.jobs.mask_rows import put_masks
from arrow_format.jobs.replacement import Replacement
from arrow_format.keys.last_positions import last_by
from arrow_format.keys.sort_keys import ORDERS
from arrow_format.log.totals import sum_totals
from arrow_format.model import Position
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import keys_in
from arrow_format.read.tombstones import opened, shape_of
from arrow_format.read.unique_keys import groups_of
from arrow_format.write.tombstones import TombstoneWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import MapOutput, PartitionedFile


def masked(
    job: ShuffleJob, version: LogEntry, outputs: Sequence[MapOutput], indexes: IndexCache
) -> list[MapOutput]:
    """Return tombstones that were written, with masks of all of their rows.

    They have their ids. Raises CorruptShuffleError where an index cannot be read, and StorageError
    where the masks could not be put.
    """
    masks = [
        RowMask.all_but({}, [region.num_rows for region in index.regions])
        for index in opened(version, outputs, indexes)
    ]
    put = iter(put_masks(job, masks))

    def without_rows(file: PartitionedFile) -> PartitionedFile:
        mask = replace(next(put), num_rows=file.stored_rows)
        return replace(file, num_rows=0, mask=mask)

    return [replace(output, files=tuple(map(without_rows, output.files))) for output in outputs]


MIN_JOINED = 8
"""Fewer map outputs of tombstones than this many more than one are joined beside rows alone."""

AGES = 8
"""Tombstones that are joined were put within this part of the versions that are kept, so that none
is kept for much longer than it may be needed."""


def groups_by_age(first: Sequence[int], last: Sequence[int], kept: int) -> list[tuple[int, int]]:
    """Return which tombstones may be joined: ranges of map outputs in reading order, of all.

    ``first`` and ``last`` are the versions of each, ``kept`` is how many versions are. Pure.
    """
    most, groups, start = max(kept // AGES, 1), [], 0
    for end in range(1, len(first) + 1):
        if end == len(first) or last[end] - first[start] > most:
            groups.append((start, end))
            start = end
    return groups


@dataclass(frozen=True, slots=True)
class TombstoneMerge:
    """What a merge is to do with the tombstones of a version."""

    old: tuple[MapOutput, ...]
    """Those before the oldest version that is kept, which are left out."""
    groups: tuple[tuple[MapOutput, ...], ...]
    """Those that become one, of two or more; or one of another number of subpartitions."""
    must_scale: bool
    """Whether some have another number of subpartitions than new files."""

    @property
    def is_due(self) -> bool:
        """Whether it is worth a merge of nothing else."""
        joined = sum(len(group) - 1 for group in self.groups)
        return self.must_scale or bool(self.old) or joined >= MIN_JOINED

    @property
    def num_outputs(self) -> int:
        """How many map outputs it takes."""
        return len(self.old) + sum(map(len, self.groups))


def plan_tombstones(snapshot: Snapshot) -> TombstoneMerge:
    """Decide what to do with the tombstones of a version, from the log alone."""
    version = snapshot.newest
    oldest, n = version.state.oldest, version.shape.new_subpartitions
    each = [(output, output.position) for output in snapshot.tombstones if output.position]
    old = tuple(output for output, place in each if place.last_version < oldest)
    left = [(output, place) for output, place in each if place.last_version >= oldest]
    first, last = ([getattr(place, name) for _, place in left] for name in Position._fields[::2])
    groups, must_scale = [], False
    for start, end in groups_by_age(first, last, version.version - oldest):
        group = tuple(output for output, _ in left[start:end])
        is_other = any(f.num_subpartitions != n for output in group for f in output.files)
        must_scale |= is_other
        if len(group) > 1 or is_other:
            groups.append(group)
    return TombstoneMerge(old, tuple(groups), must_scale)


def merged(snapshot: Snapshot, job: ShuffleJob, number: int) -> list[Replacement]:
    """Join tombstones of a version, and leave out others, as :func:`plan_tombstones` says.

    Map tasks of the job from ``number`` on write them. Raises CorruptShuffleError where a file
    cannot be read, and StorageError where one cannot be written.
    """
    version, plan, indexes = snapshot.newest, plan_tombstones(snapshot), IndexCache(job.storage)
    changes = [Replacement((output,), ()) for output in plan.old]
    for map_task, inputs in enumerate(plan.groups, number):
        joined = _joined(version, job, inputs, map_task, indexes)
        places = [output.position for output in inputs if output.position is not None]
        position = places[0]._replace(last_version=max(place.last_version for place in places))
        output = replace(joined, position=position, column_ids=shape_of(version.shape).column_ids)
        as_written = version.divided(job.num_subpartitions)
        changes.append(Replacement(inputs, (*masked(job, as_written, [output], indexes),)))
    return changes


def _joined(
    version: LogEntry,
    job: ShuffleJob,
    inputs: Sequence[MapOutput],
    map_task: int,
    indexes: IndexCache,
) -> MapOutput:
    """Write tombstones as one map output, of each key the newest.

    Some subpartitions at a time are in memory.
    """
    schema = shape_of(version.shape).data_schema
    num_keys = len(schema.names) - 1
    num_rows, _ = sum_totals(
        [index.totals for index in opened(version, inputs, indexes)], version.num_subpartitions
    )
    storage = job.storage.without_new_directories()
    # In the directory that each job has: of tasks beyond the merge's own an abort knows nothing.
    directory, metadata = job.directory_of(0), job.metadata(map_task, 0)
    with TombstoneWriter(storage, directory, metadata, job.partitioner, job.options) as writer:
        for wanted in groups_of(num_rows):
            found = keys_in(opened(version, inputs, indexes), schema.names, schema, wanted)
            parts = [
                (ids, pa.RecordBatch.from_arrays(columns, schema=schema)) for ids, columns in found
            ]
            rows = pa.Table.from_batches([part for _, part in parts], schema).combine_chunks()
            columns = [column.combine_chunks() for column in rows.columns]
            newest = np.sort(last_by(columns[:num_keys], columns[num_keys:], [ORDERS[0]]))
            gone = take(rows, to_arrow(newest)).combine_chunks().to_batches()[0]
            if job.num_subpartitions == version.num_subpartitions:
                writer.emit(gone, np.concatenate([ids for ids, _ in parts])[newest])
            else:
                writer.add(gone)
        joined = writer.finish()
    assert joined is not None  # since no tombstones are without rows
    files = tuple(replace(file, placed=True) for file in joined.files)
    return replace(joined, files=files)
