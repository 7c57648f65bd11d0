"""Rows by number or by mask: the one place that calls Arrow's ``take`` and ``filter``. Pure.

Of fixed-size lists of fixed-size lists, Arrow's kernels add the offset of a slice more than once
(PyArrow 26 and before): they give other rows, and beyond the last one they read foreign memory. So
a slice of such a column is copied first. A test finds every other call of these kernels.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt


def take(
    values: pa.Array | pa.RecordBatch | pa.Table, indices: pa.Array, *, boundscheck: bool = True
) -> pa.Array | pa.RecordBatch | pa.Table:
    """Return the rows at ``indices``, in an array, a batch or a table as ``values`` are.

    Parameters
    ----------
    values
        An array, a batch or a table.
    indices
        Integers, null for a row of nulls.
    boundscheck
        Whether to look for indices that lead out of ``values``; without it they read any memory.

    Raises
    ------
    pyarrow.ArrowIndexError
        An index leads out of ``values``.
    """
    return pc.take(without_slices(values), indices, boundscheck=boundscheck)


def keep(
    values: pa.Array | pa.RecordBatch | pa.Table, mask: pa.BooleanArray
) -> pa.Array | pa.RecordBatch | pa.Table:
    """Return the rows of an array, a batch or a table that a mask is true for."""
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
    """Return an array, a batch or a table with copies of the slices that Arrow takes wrongly.

    A caller that takes from the same rows repeatedly asks for them once, beforehand.
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
    """Whether a fixed-size list is inside of another, at any depth."""
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
    """Whether an array, or one inside of it, begins behind the first value of its memory."""
    type_ = array.type
    if array.offset:
        return True
    if pt.is_struct(type_):
        return any(_is_slice(array.field(i)) for i in range(type_.num_fields))
    if pt.is_map(type_):
        return _is_slice(array.keys) or _is_slice(array.items)
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        return _is_slice(array.values)
    return bool(type_.num_fields) or isinstance(type_, pa.BaseExtensionType)  # not looked into
