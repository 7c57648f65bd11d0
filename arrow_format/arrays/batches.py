"""Runs of rows, put in the order of their subpartitions and joined into batches: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets, to_arrow
from arrow_format.arrays.gather import gathered
from arrow_format.arrays.row_sizes import MAX_ITEMS, most_items
from arrow_format.arrays.selection import take

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.model import Int32Array, Int64Array


SLICE_ROWS = 400
"""Average rows of a stretch from which on joining slices is faster than gathering rows."""


ORDERING_BYTES = 8
"""What a row counts beside its own bytes while rows are put in order: subpartition and place."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of rows from one chunk."""

    batch: pa.RecordBatch
    subpartitions: Int32Array
    """Subpartition of each row."""


class HeldRuns:
    """Runs that are kept until they can be put in order, as many as one batch takes.

    Parameters
    ----------
    max_bytes
        Bytes of rows, and of their places, that may be kept. Of several runs, no column holds more
        than :data:`~arrow_format.arrays.row_sizes.MAX_ITEMS` items of lists either.
    """

    def __init__(self, max_bytes: int) -> None:
        self.runs: list[Rows] = []
        self._max_bytes = max_bytes
        self._num_bytes = 0
        """Upper bound of the bytes of all runs; exact once it was more than ``max_bytes``."""
        self._num_items = 0

    def add(self, run: Rows) -> bool:
        """Keep a run; False when all of them are too much."""
        self.runs.append(run)
        # Exact sizes take fifty times as long to find as what the buffers have in all.
        self._num_bytes += run.batch.get_total_buffer_size() + ORDERING_BYTES * run.batch.num_rows
        if self._num_bytes > self._max_bytes:
            self._num_bytes = sum(
                held.batch.nbytes + ORDERING_BYTES * held.batch.num_rows for held in self.runs
            )
        self._num_items += most_items(run.batch)
        can_be_joined = self._num_items <= MAX_ITEMS or len(self.runs) == 1
        return can_be_joined and self._num_bytes <= self._max_bytes


def as_batches(
    rows: Iterable[Rows],
    schema: pa.Schema,
    *,
    with_subpartition: bool,
    min_rows: int,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Join runs of rows into batches of a size worth delivering, see :func:`rebatched`.

    With ``with_subpartition`` the last column of ``schema`` is the subpartition of each row.
    """
    batches = (
        pa.RecordBatch.from_arrays([*run.batch.columns, to_arrow(run.subpartitions)], schema=schema)
        if with_subpartition
        else run.batch
        for run in rows
    )
    return rebatched(batches, min_rows=min_rows, max_bytes=max_bytes)


def rebatched(
    batches: Iterable[pa.RecordBatch], *, min_rows: int, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Join small batches, and cut large ones, in their order.

    Parameters
    ----------
    batches
        Of one schema.
    min_rows, max_bytes
        A batch is given out when it has ``min_rows`` or ``max_bytes``; the last may be smaller,
        and so may one whose lists have as many items as one batch takes. None is empty.
    """
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = held_items = num_sized = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held_items += most_items(batch)
        if held and held_items > MAX_ITEMS:
            yield from _joined_and_cut(held, max_bytes)
            held_rows = held_bytes = num_sized = 0
            held_items = most_items(batch)
        held.append(batch)
        held_rows += batch.num_rows
        # The buffers whole are at least the bytes of the rows, and are known in a fiftieth of the
        # time: exact bytes are asked for only when these might be enough.
        held_bytes += batch.get_total_buffer_size()
        if held_bytes >= max_bytes and held_rows < min_rows:
            held_bytes += sum(one.nbytes - one.get_total_buffer_size() for one in held[num_sized:])
            num_sized = len(held)
        del batch  # nothing but the joined rows is kept while the consumer works on them
        if held_rows >= min_rows or held_bytes >= max_bytes:
            yield from _joined_and_cut(held, max_bytes)
            held_rows = held_bytes = held_items = num_sized = 0
    if held:
        yield from _joined_and_cut(held, max_bytes)


def _joined_and_cut(held: list[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Join batches and empty their list; slice the result evenly where it is much too large."""
    batch = _joined(held)
    held.clear()
    num_slices = max(min(batch.nbytes // max_bytes, batch.num_rows), 1)
    num_rows = -(-batch.num_rows // num_slices)
    for start in range(0, batch.num_rows, num_rows):
        yield batch.slice(start, num_rows)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows in memory of their own, which keeps nothing alive beyond them."""
    return pa.concat_batches([batch])


def in_subpartition_order(runs: list[Rows], *, slice_rows: int = SLICE_ROWS) -> Iterator[Rows]:
    """Yield all rows ordered by subpartition, stable; takes the list over and empties it.

    Rows of one subpartition that stand together move together, a *stretch* at a time: as slices
    that are joined, where stretches are long; otherwise row by row, but for texts, whose characters
    are joined by stretches all the same.

    Parameters
    ----------
    runs
        Of one schema. Any order of subpartitions within a run is right; few stretches are fast.
    slice_rows
        Average rows of a stretch from which on slices are joined.
    """
    if not runs:
        return
    ids = np.concatenate([run.subpartitions for run in runs])
    sizes = np.array([len(run.subpartitions) for run in runs])
    batches = [run.batch for run in runs]
    runs.clear()  # nothing but the result is held while the consumer works on it
    is_first = np.ones(len(ids), np.bool_)  # of its stretch
    np.not_equal(ids[1:], ids[:-1], out=is_first[1:])
    starts = np.flatnonzero(is_first)
    if bool((ids[starts[1:]] >= ids[starts[:-1]]).all()):
        batch = _joined(batches)
        del batches
    elif len(ids) >= slice_rows * (len(starts) + len(batches)):
        # A stretch that goes on in the next run is two slices.
        is_first[(np.cumsum(sizes) - sizes)[sizes > 0]] = True
        starts = np.flatnonzero(is_first)
        slices = _slices(batches, sizes, starts)
        del batches
        order = np.argsort(ids[starts], kind="stable")
        batch = pa.concat_batches([slices[i] for i in order.tolist()])
        del slices
        ids = ids[_positions(starts, order, len(ids))]
    else:
        order = np.argsort(ids[starts], kind="stable")
        places = _positions(starts, order, len(ids))
        batch, ids = _gathered(batches, starts, order, places), ids[places]
        del batches
    yield Rows(batch, ids)


def _positions(starts: Int64Array, order: Int64Array, num_rows: int) -> Int32Array:
    """Row to take at each place, when stretches are put in another order."""
    sizes = np.diff(starts, append=num_rows)[order]
    shifts = (starts[order] - (np.cumsum(sizes) - sizes)).astype(np.int32)
    places: Int32Array = np.repeat(shifts, sizes)
    places += np.arange(num_rows, dtype=np.int32)
    return places


def _slices(
    batches: list[pa.RecordBatch], sizes: Int64Array, starts: Int64Array
) -> list[pa.RecordBatch]:
    """Cut batches at ``starts``, rows counted through all; the first of each is among them."""
    ends = np.append(starts[1:], sizes.sum())
    before = np.cumsum(sizes) - sizes
    which = np.searchsorted(before, starts, side="right") - 1
    within = starts - before[which]
    return [
        batches[i].slice(first, num_rows)
        for i, first, num_rows in zip(
            which.tolist(), within.tolist(), (ends - starts).tolist(), strict=True
        )
    ]


def _gathered(
    batches: list[pa.RecordBatch], starts: Int64Array, order: Int64Array, places: Int32Array
) -> pa.RecordBatch:
    """Rows at ``places`` of all batches, which are stretches from ``starts`` in another order.

    Column by column, so that only one is there three times.
    """
    schema = batches[0].schema
    rows, stretches = to_arrow(places), to_arrow(order)
    columns = []
    for i, field in enumerate(schema):
        column = pa.concat_arrays([batch.column(i) for batch in batches])
        if pt.is_string(field.type) or pt.is_binary(field.type):
            columns.append(_gathered_texts(column, starts, stretches, places, rows))
        else:
            columns.append(gathered(column, rows))
    if not columns:
        return _joined(batches)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _gathered_texts(
    texts: pa.Array, starts: Int64Array, order: pa.Array, places: Int32Array, rows: pa.Array
) -> pa.Array:
    """Texts at ``places``: their lengths one by one, their characters by stretches.

    The characters of a stretch are one value of a binary array, so that Arrow copies them at once.
    """
    offsets = text_offsets(texts)
    edges = np.append(offsets[starts], offsets[-1])
    whole = pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(edges), texts.buffers()[2]]
    )
    characters = take(whole, order, boundscheck=False).buffers()[2]
    moved = np.empty(len(places) + 1, np.int32)
    moved[0] = 0
    np.take(np.diff(offsets), places, out=moved[1:], mode="clip")  # "raise" would copy once more
    np.add.accumulate(moved, dtype=np.int32, out=moved)
    valid = None
    if texts.null_count:
        valid = take(texts.is_valid(), rows, boundscheck=False).buffers()[1]
    return pa.Array.from_buffers(texts.type, len(places), [valid, pa.py_buffer(moved), characters])
