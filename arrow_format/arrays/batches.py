"""Batches joined into larger ones, and cut into smaller ones, in their order; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from arrow_format.arrays.row_sizes import MAX_ITEMS, columns_with_items, most_items
from arrow_format.arrays.selection import joined
from arrow_format.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.model import Int32Array, Int64Array

_Numbers = TypeVar("_Numbers", "Int32Array", "Int64Array")

BATCH_ROWS = 10_000
"""Rows that a batch has at least where it leaves a task: handing one to Spark costs 14 us whatever
its size."""

BATCH_BYTES = 16 << 20
"""Raw bytes at which it is handed over with fewer rows, by default."""

JOINED_BYTES = 1 << 20
"""Columns of about so many bytes, at 8 bytes a value, are joined in one call and then gathered: so
the processor's cache still has them, and memory that was just used is used again. A call for each
column of each batch is slow. Long texts have more bytes."""


def rebatched(
    batches: Iterable[pa.RecordBatch], *, min_rows: int, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Join small batches of one schema, and cut large ones, in their order; yield no empty one.

    A batch is yielded when it has ``min_rows`` or ``max_bytes``. The last may be smaller, and so
    may one whose lists have :data:`~arrow_format.arrays.row_sizes.MAX_ITEMS` items.
    """
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = held_items = num_sized = 0
    with_items: list[int] | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if with_items is None:
            with_items = columns_with_items(batch.schema)
        held_items += most_items(batch, with_items)
        if held and held_items > MAX_ITEMS:
            yield from _cut(held, max_bytes)
            held_rows = held_bytes = num_sized = 0
            held_items = most_items(batch, with_items)
        if not held and batch.num_rows >= min_rows and batch.get_total_buffer_size() < max_bytes:
            held_items = 0
            yield batch
            continue
        held.append(batch)
        held_rows += batch.num_rows
        # Whole buffers bound the exact size, which takes fifty times as long to compute.
        held_bytes += batch.get_total_buffer_size()
        if held_bytes >= max_bytes and held_rows < min_rows:
            held_bytes += sum(
                sized.nbytes - sized.get_total_buffer_size() for sized in held[num_sized:]
            )
            num_sized = len(held)
        del batch  # nothing but the joined rows is kept while the consumer works on them
        if held_rows >= min_rows or held_bytes >= max_bytes:
            yield from _cut(held, max_bytes)
            held_rows = held_bytes = held_items = num_sized = 0
    if held:
        yield from _cut(held, max_bytes)


def in_parts(
    rows: Iterable[tuple[pa.RecordBatch, _Numbers]], min_bytes: int, *, row_bytes: int = 0
) -> Iterator[tuple[pa.RecordBatch, _Numbers]]:
    """Join rows, each of which comes with a number, to parts of about so many bytes or more.

    The last may have fewer. Each row counts as ``row_bytes`` more, and each item of a list as one,
    since it may take no byte.
    """
    batches: list[pa.RecordBatch] = []
    numbers: list[_Numbers] = []
    num_bytes = 0
    for batch, of_batch in rows:
        batches.append(batch)
        numbers.append(of_batch)
        num_bytes += batch.nbytes + most_items(batch) + row_bytes * batch.num_rows
        del batch, of_batch  # nothing but the joined rows is in memory while they are written
        if num_bytes >= min_bytes:
            yield _one_part(batches, numbers)
            num_bytes = 0
    if batches:
        yield _one_part(batches, numbers)


def _one_part(
    batches: list[pa.RecordBatch], numbers: list[_Numbers]
) -> tuple[pa.RecordBatch, _Numbers]:
    """Return rows as one batch, and empty the lists."""
    whole = joined(batches), np.concatenate(numbers)
    batches.clear()
    numbers.clear()
    return whole


def in_batches_of(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.RecordBatch]:
    """Join and cut batches of one schema so that all but the last have ``num_rows``.

    Raises OptionError unless that is a whole number from 1.
    """
    if isinstance(num_rows, bool) or not isinstance(num_rows, int) or num_rows < 1:
        msg = f"batch_size={num_rows!r}: expected a whole number of rows, from 1"
        raise OptionError(msg)
    return _in_batches_of(batches, num_rows)


def _in_batches_of(batches: Iterable[pa.RecordBatch], num_rows: int) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    missing = num_rows
    for batch in batches:
        start = 0
        while batch.num_rows - start >= missing:
            held.append(batch.slice(start, missing))
            start += missing
            whole = joined(held)
            held, missing = [], num_rows
            yield whole
        if start < batch.num_rows:
            held.append(batch.slice(start))
            missing -= batch.num_rows - start
    if held:
        yield joined(held)


def _cut(held: list[pa.RecordBatch], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Join batches, empty their list, and cut what is much larger than ``max_bytes`` evenly."""
    batch = joined(held)
    held.clear()
    num_slices = max(min(batch.nbytes // max_bytes, batch.num_rows), 1)
    rows = -(-batch.num_rows // num_slices)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in memory of their own, so that a slice does not pin its whole batch."""
    return pa.concat_batches([batch])
