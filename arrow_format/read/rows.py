"""Rows of chunks with their subpartitions: held, put in order, and joined into batches; pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.batches import JOINED_BYTES, rebatched
from arrow_format.arrays.buffers import text_offsets, to_arrow
from arrow_format.arrays.gather import gathered
from arrow_format.arrays.row_sizes import MAX_ITEMS, columns_with_items, most_items
from arrow_format.arrays.selection import joined, take
from arrow_format.format.extents import GONE, Extents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from arrow_format.model import Int32Array, Int64Array

SLICE_ROWS = 400
"""Average rows of an extent from which on joining slices is faster than gathering rows."""

ORDERING_BYTES = 8
"""Bytes per row while rows are ordered, besides its own: subpartition and position."""


class InChunks(NamedTuple):
    """Rows of chunks, of which it is looked up when it is asked for where they belong."""

    chunks: Sequence[Any]
    find: Callable[[Sequence[Any]], Extents]
    """Returns the extents of chunks: to ask once for those of several runs takes less."""


@dataclass(slots=True)
class Rows:
    """Rows from some chunks."""

    batch: pa.RecordBatch
    where: Int32Array | Extents | InChunks
    """Subpartition of each row, or their extents, or what returns these: not all who read rows need
    to know. Rows that a mask took are of ``GONE``, where these are asked for too."""
    pinned_bytes: int | None = None
    """Bytes of memory that these keep and no rows before them; those of the batch when None."""

    @property
    def extents(self) -> Extents:
        """Which rows are of which subpartition."""
        if isinstance(self.where, InChunks):
            self.where = self.where.find(self.where.chunks)
        return self.where if isinstance(self.where, Extents) else Extents.of_rows(self.where)

    @property
    def subpartitions(self) -> Int32Array:
        """Subpartition of each row."""
        return self.where if isinstance(self.where, np.ndarray) else self.extents.each


class HeldRuns:
    """Rows buffered until they can be ordered: up to ``max_bytes``, and as one batch can hold."""

    def __init__(self, max_bytes: int) -> None:
        self.runs: list[Rows] = []
        self._max_bytes = max_bytes
        self._charged_bytes = 0
        """Upper bound of the bytes buffered, with :data:`ORDERING_BYTES` per row."""
        self._num_items = 0
        self._with_items: list[int] | None = None
        """Columns of lists: the same of every run, and slow to find in a wide table."""

    def add(self, run: Rows) -> bool:
        """Buffer a run; return False when all of them together are too much."""
        self.runs.append(run)
        # Whole buffers bound the exact size, which takes fifty times as long to compute.
        pinned = run.pinned_bytes
        num_bytes = run.batch.get_total_buffer_size() if pinned is None else pinned
        self._charged_bytes += num_bytes + ORDERING_BYTES * run.batch.num_rows
        if self._charged_bytes > self._max_bytes:
            self._charged_bytes = sum(
                kept.batch.nbytes + ORDERING_BYTES * kept.batch.num_rows for kept in self.runs
            )
        if self._with_items is None:
            self._with_items = columns_with_items(run.batch.schema)
        self._num_items += most_items(run.batch, self._with_items)
        can_be_joined = self._num_items <= MAX_ITEMS or len(self.runs) == 1
        return can_be_joined and self._charged_bytes <= self._max_bytes


def as_batches(
    rows: Iterable[Rows],
    schema: pa.Schema,
    *,
    with_subpartition: bool,
    min_rows: int,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Join rows, in their order, into batches of :func:`rebatched`.

    With ``with_subpartition`` the last column of ``schema`` is the subpartition.
    """

    def batch_of(run: Rows) -> pa.RecordBatch:
        if not with_subpartition:
            return run.batch
        columns = [*run.batch.columns, to_arrow(run.subpartitions)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return rebatched(map(batch_of, rows), min_rows=min_rows, max_bytes=max_bytes)


def in_subpartition_order(runs: list[Rows], *, slice_rows: int = SLICE_ROWS) -> Iterator[Rows]:
    """Yield all rows ordered by subpartition, stably, as one item; empties the list.

    Those that masks took are left out, with no copy before. Extents of ``slice_rows`` on average
    are joined as slices. Shorter ones are gathered row by row, but the characters of texts by
    extent.
    """
    if not runs:
        return
    extents = _extents_of(runs)
    batches = [run.batch for run in runs]
    runs.clear()  # only the result is held while the consumer works on it
    ids, sizes = extents
    is_sliced = sizes.sum() >= slice_rows * len(sizes)
    if GONE not in ids and bool((ids[1:] >= ids[:-1]).all()):
        batch = joined(batches)
        del batches
    else:
        if is_sliced:  # no slice is of two batches
            edges = np.cumsum([0, *(batch.num_rows for batch in batches if batch.num_rows)])
            ids, sizes = extents.cut(edges[:-1])
        order = np.argsort(ids, kind="stable")[np.count_nonzero(ids == GONE) :]
        if not len(order):
            return
        extents = Extents(ids[order], sizes[order])
        if is_sliced:
            slices = [*_slices(batches, sizes)]
            del batches
            batch = pa.concat_batches([slices[i] for i in order.tolist()])
            del slices
        else:
            batch = _gathered(batches, sizes, order)
            del batches
    yield Rows(batch, extents)


def _extents_of(runs: Sequence[Rows]) -> Extents:
    """Return the extents of runs, one behind the other; those in chunks are looked up together."""
    found: list[Extents] = []
    finds = groupby(runs, lambda run: run.where.find if isinstance(run.where, InChunks) else None)
    for find, some in finds:
        if find is None:
            found += [run.extents for run in some]
        else:
            wheres = [run.where for run in some if isinstance(run.where, InChunks)]
            found.append(find([chunk for where in wheres for chunk in where.chunks]))
    return Extents.joined(found)


def _positions(sizes: Int64Array, order: Int64Array) -> Int32Array:
    """Row to take at each position when extents of some sizes are put in another order."""
    starts, moved = sizes.cumsum() - sizes, sizes[order]
    shifts = (starts[order] - (moved.cumsum() - moved)).astype(np.int32)
    rows: Int32Array = np.repeat(shifts, moved)
    rows += np.arange(len(rows), dtype=np.int32)
    return rows


def _slices(batches: list[pa.RecordBatch], sizes: Int64Array) -> Iterator[pa.RecordBatch]:
    """Cut batches into adjacent slices, none of which is of two."""
    sizes_left = iter(sizes.tolist())
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            size = next(sizes_left)
            yield batch.slice(start, size)
            start += size


def _gathered(
    batches: list[pa.RecordBatch], sizes: Int64Array, order: Int64Array
) -> pa.RecordBatch:
    """Gather the rows of extents of some sizes in another order.

    A few columns at a time, so that no more are in memory three times.
    """
    schema = batches[0].schema
    if not len(schema):
        return joined(batches).slice(0, sizes[order].sum())
    rows, starts = _positions(sizes, order), sizes.cumsum() - sizes
    indices, extents = to_arrow(rows), to_arrow(order)
    step = max(JOINED_BYTES // (8 * len(rows)), 1)
    columns = []
    for first in range(0, len(schema), step):
        some = range(first, min(first + step, len(schema)))
        columns += [
            _gathered_texts(column, starts, extents, rows, indices)
            if pt.is_string(column.type) or pt.is_binary(column.type)
            else gathered(column, indices)
            for column in pa.concat_batches([batch.select(some) for batch in batches]).columns
        ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _gathered_texts(
    texts: pa.Array, starts: Int64Array, order: pa.Array, rows: Int32Array, indices: pa.Array
) -> pa.Array:
    """Gather texts: their lengths one by one, their characters by extent.

    The characters of an extent are one value of a binary array, which Arrow copies as a whole.
    """
    offsets = text_offsets(texts)
    edges = np.append(offsets[starts], offsets[-1])
    whole = pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(edges), texts.buffers()[2]]
    )
    characters = take(whole, order, boundscheck=False).buffers()[2]
    moved = np.empty(len(rows) + 1, np.int32)
    moved[0] = 0
    np.take(np.diff(offsets), rows, out=moved[1:], mode="clip")  # "raise" would copy once more
    np.add.accumulate(moved, dtype=np.int32, out=moved)
    valid = None
    if texts.null_count:
        valid = take(texts.is_valid(), indices, boundscheck=False).buffers()[1]
    return pa.Array.from_buffers(texts.type, len(rows), [valid, pa.py_buffer(moved), characters])
