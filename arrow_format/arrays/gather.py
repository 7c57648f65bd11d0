"""Rows of one column in another order; pure.

Arrow's ``take`` copies texts one by one. Texts of one length (codes, flags, hashes) are taken as
values of a fixed width, three times as fast. Of lists, ``take`` makes an index of all items, eight
bytes each: 64 times the size of booleans. So they are taken a few rows at a time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import boolean_values, text_offsets, to_arrow, to_numpy
from arrow_format.arrays.row_sizes import has_items, items_per_row, num_items, runs_within
from arrow_format.arrays.selection import joined, keep, take, without_slices

SLICE_ITEMS = 1 << 19
"""Items of lists taken together, an index of 4 MiB. A row of more is copied whole."""


def filtered(batch: pa.RecordBatch, mask: pa.BooleanArray) -> pa.RecordBatch:
    """Return the rows that a mask is true for, without Arrow's index of all items of lists."""
    if not any(has_items(field.type) for field in batch.schema):
        return keep(batch, mask)
    indices = to_arrow(np.flatnonzero(boolean_values(mask)).astype(np.uint32))
    columns = [
        gathered(column, indices) if has_items(column.type) else keep(column, mask)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def gather(column: pa.Array, indices: pa.Array) -> list[pa.Array]:
    """Return the values of ``column`` at ``indices`` (unsigned, in range), in one or more arrays.

    They are not joined here, so that the caller can drop the column before joining copies them:
    its rows are never in memory three times.
    """
    column = without_slices(column)
    type_ = column.type
    if (pt.is_string(type_) or pt.is_binary(type_)) and len(column) and not column.null_count:
        width = _common_length(text_offsets(column))
        if width:
            return [_gather_fixed(column, indices, width)]
    if has_items(type_) and num_items(column) > SLICE_ITEMS:
        return _gather_slices(column, indices)
    return [_take(column, indices)]


def gathered(column: pa.Array, indices: pa.Array) -> pa.Array:
    """Return the result of :func:`gather` as one array."""
    return joined(gather(column, indices))


def _take(column: pa.Array, indices: pa.Array) -> pa.Array:
    return take(column, indices, boundscheck=False)  # indices are in range


def _gather_slices(column: pa.Array, indices: pa.Array) -> list[pa.Array]:
    rows = to_numpy(indices)
    ends = np.cumsum(items_per_row(column)[rows])
    return [
        # concat_arrays copies, so that no row pins the whole column.
        pa.concat_arrays([column.slice(int(rows[start]), 1)])
        if stop - start == 1
        else _take(column, indices.slice(start, stop - start))
        for start, stop in runs_within(ends, SLICE_ITEMS)
    ] or [column.slice(0, 0)]


def _common_length(offsets: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
    """Return the length that all texts have; 0 where they differ."""
    width = int(offsets[1]) - int(offsets[0])
    if int(offsets[-1]) - int(offsets[0]) != width * (len(offsets) - 1):
        return 0
    return width if bool((np.diff(offsets) == width).all()) else 0


def _gather_fixed(column: pa.Array, indices: pa.Array, width: int) -> pa.Array:
    first = int(text_offsets(column)[0])
    fixed = pa.Array.from_buffers(
        pa.binary(width), len(column), [None, column.buffers()[2].slice(first)]
    )
    content = take(fixed, indices).buffers()[1]
    offsets = np.arange(0, width * len(indices) + 1, width, dtype=np.int32)
    return pa.Array.from_buffers(column.type, len(indices), [None, pa.py_buffer(offsets), content])
