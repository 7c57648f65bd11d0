"""Rows by index or by mask: the only calls of Arrow's ``take`` and ``filter``. Pure.

For fixed-size lists inside fixed-size lists, Arrow's kernels add the offset of a slice more than
once (PyArrow 26 and before): they return other rows, and read foreign memory beyond the last one.
So a slice of such a column is copied first. A test finds every other call of these kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import to_arrow

if TYPE_CHECKING:
    from arrow_format.model import Int32Array, Int64Array

_FILTERED_ROWS, _RUN_ROWS = 16, 512
"""Rows of a run, on average, from which on a filter copies it in less time than ``take``, and from
which on it is copied as a slice."""


def ranges(begins: Int64Array, counts: Int64Array) -> Int64Array:
    """Return the numbers of ranges, one range behind the other."""
    ends = counts.cumsum()
    return np.arange(counts.sum()) + np.repeat(begins - (ends - counts), counts)


def ascending(numbers: Int32Array | Int64Array) -> Int64Array:
    """Return numbers from 0 on ascending, each once; ascending runs of them are merged.

    NumPy's ``unique`` imports masked arrays, for a tenth of the time of a process's first lookup,
    and takes longer than a sort.
    """
    found = np.sort(numbers, kind="stable").astype(np.int64)
    return found[np.diff(found, prepend=-1) > 0]


def take(
    values: pa.Array | pa.RecordBatch | pa.Table, indices: pa.Array, *, boundscheck: bool = True
) -> pa.Array | pa.RecordBatch | pa.Table:
    """Return the rows at ``indices``; a null index makes a row of nulls.

    An index out of range raises ArrowIndexError; without ``boundscheck`` it reads any memory.
    """
    return pc.take(without_slices(values), indices, boundscheck=boundscheck)


def take_runs(values: pa.RecordBatch, rows: Int64Array) -> pa.RecordBatch:
    """Return the rows at ascending positions, of which at least one is given.

    Where most have their neighbour beside them, as where few rows are left out, runs are copied as
    they are: a twentieth of the time of a look at each row. One run is a view.
    """
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    if _FILTERED_ROWS * len(cuts) > len(rows) or not values.num_columns:
        return take(values, to_arrow(rows))
    if _RUN_ROWS * len(cuts) > len(rows):
        is_kept = np.zeros(values.num_rows, np.bool_)
        is_kept[rows] = True
        mask = to_arrow(is_kept)
        kept = [keep(column, mask) for column in values.columns]
        return pa.RecordBatch.from_arrays(kept, schema=values.schema)
    starts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(rows)]
    runs = [
        values.slice(int(rows[first]), end - first) for first, end in zip(starts, ends, strict=True)
    ]
    return joined(runs)


def keep(
    values: pa.Array | pa.RecordBatch | pa.Table, mask: pa.BooleanArray
) -> pa.Array | pa.RecordBatch | pa.Table:
    """Return the rows that a mask is true for."""
    return pc.filter(without_slices(values), mask)


def joined(
    parts: list[pa.Array] | list[pa.RecordBatch],
) -> pa.Array | pa.RecordBatch:
    """Return arrays, or batches, as one; a single one is not copied."""
    if len(parts) == 1:
        return parts[0]
    join = pa.concat_batches if isinstance(parts[0], pa.RecordBatch) else pa.concat_arrays
    return join(parts)


def without_slices(
    values: pa.Array | pa.RecordBatch | pa.Table,
) -> pa.Array | pa.RecordBatch | pa.Table:
    """Return the values with copies of the slices that Arrow's kernels get wrong.

    For a caller that takes from the same rows repeatedly.
    """
    if isinstance(values, pa.Array):
        wrong = _nests_fixed_lists(values.type) and _is_slice(values)
        return pa.concat_arrays([values]) if wrong else values
    if not any(_nests_fixed_lists(field.type) for field in values.schema):
        return values
    columns = [
        pa.chunked_array(map(without_slices, column.chunks), column.type)
        if isinstance(column, pa.ChunkedArray)
        else without_slices(column)
        for column in values.columns
    ]
    return type(values).from_arrays(columns, schema=values.schema)


def _nests_fixed_lists(type_: pa.DataType, *, is_inside: bool = False) -> bool:
    """Whether a fixed-size list is inside another, at any depth."""
    if isinstance(type_, pa.BaseExtensionType):
        return _nests_fixed_lists(type_.storage_type, is_inside=is_inside)
    is_fixed = pt.is_fixed_size_list(type_)
    if is_fixed and is_inside:
        return True
    return any(
        _nests_fixed_lists(type_.field(i).type, is_inside=is_inside or is_fixed)
        for i in range(type_.num_fields)
    )


def _is_slice(array: pa.Array) -> bool:
    """Whether an array, or one inside it, has an offset; assumed where that cannot be seen."""
    type_ = array.type
    if array.offset:
        return True
    if pt.is_struct(type_):
        return any(_is_slice(array.field(i)) for i in range(type_.num_fields))
    if pt.is_map(type_):
        return _is_slice(array.keys) or _is_slice(array.items)
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        return _is_slice(array.values)
    return bool(type_.num_fields) or isinstance(type_, pa.BaseExtensionType)
