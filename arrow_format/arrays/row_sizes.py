"""Bytes and nested items of rows, and rows cut into slices of a bounded size; pure.

Rows are cut before an array outgrows Arrow's 32-bit offsets, or a batch its memory budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.model import Int64Array


MAX_ITEMS = 1 << 30
"""Items of lists that a column of several rows may hold, at all depths: 32-bit offsets reach twice
as many, and booleans and nulls reach them long before they fill a buffer."""

OFFSET_BYTES = 4
"""What a text or a list takes besides its content."""


# Sizes -------------------------------------------------------------------------------------------


def has_items(type_: pa.DataType) -> bool:
    """Whether a row of a stored type may hold several values, at any depth."""
    if not type_.num_fields:  # of most columns, and asked for each chunk
        return False
    if pt.is_struct(type_):
        return any(has_items(field.type) for field in type_)
    return bool(pt.is_list(type_) or pt.is_map(type_) or pt.is_fixed_size_list(type_))


def num_items(array: pa.Array) -> int:
    """Return the number of values inside the rows of an array, at all depths together."""
    return int(_sizes_before(array, np.array([0, len(array)], np.int64), in_bytes=False)[-1])


def columns_with_items(schema: pa.Schema) -> list[int]:
    """Return the positions of the columns of which a row may hold several values."""
    return [i for i, type_ in enumerate(schema.types) if has_items(type_)]


def most_items(batch: pa.RecordBatch, columns: Iterable[int] | None = None) -> int:
    """Return the :func:`num_items` of the column that has most.

    ``columns`` are the :func:`columns_with_items`, for a caller that knows them.
    """
    if columns is None:
        columns = columns_with_items(batch.schema)
    return max((num_items(batch.column(i)) for i in columns), default=0)


def items_per_row(array: pa.Array) -> Int64Array:
    """Return the number of values inside each row, at all depths together."""
    return np.diff(_sizes_before(array, np.arange(len(array) + 1), in_bytes=False))


def row_sizes(columns: Iterable[pa.Array], num_rows: int) -> Int64Array:
    """Return about the bytes that each row takes in these columns; read-only.

    An item of a list counts one byte more than it has: nulls and booleans take less, and Arrow's
    offsets count them all the same.
    """
    fixed, varying = 0, []
    for column in columns:
        width = fixed_width(column.type)
        if width is None:
            edges = np.arange(num_rows + 1)
            varying.append(np.diff(_sizes_before(column, edges, in_bytes=True)))
        else:
            fixed += width
    sizes: Int64Array = np.broadcast_to(np.int64(fixed), num_rows)
    return sizes if not varying else np.sum(varying, axis=0) + fixed


def _sizes_before(array: pa.Array, edges: Int64Array, *, in_bytes: bool) -> Int64Array:
    """Bytes of the values from the first of ``edges`` up to each, or else items inside them.

    Edges are carried down to the items rather than sizes up from them: there are as many edges at
    every depth, however many items there are.
    """
    type_ = array.type
    width = fixed_width(type_)
    counts: Int64Array = edges - edges[0]
    if width is not None:
        return counts * (width if in_bytes else 0)
    if not in_bytes and not has_items(type_):
        return np.zeros_like(counts)
    inner = content_positions(array, edges)
    if pt.is_struct(type_):
        total = np.zeros_like(counts)
    else:
        total = inner - inner[0]  # characters, or one for each item
        if in_bytes and not pt.is_fixed_size_list(type_):
            total += counts * OFFSET_BYTES
    for child in children_of(array):
        if in_bytes or has_items(child.type):
            total += _sizes_before(child, inner, in_bytes=in_bytes)
    return total


def fixed_width(type_: pa.DataType) -> int | None:
    """Return the bytes of a value; None where values differ in theirs, or hold others."""
    if pt.is_null(type_):
        return 0
    if pt.is_nested(type_):
        return None
    try:
        return -(-int(type_.bit_width) // 8)
    except ValueError:
        return None


# Into nested arrays ------------------------------------------------------------------------------


def children_of(array: pa.Array) -> list[pa.Array]:
    """Return the arrays inside a struct, a map or a list; :func:`content_positions` are in them."""
    type_ = array.type
    if pt.is_struct(type_):
        return [array.field(i) for i in range(type_.num_fields)]
    if pt.is_map(type_):
        return [array.keys, array.items]
    return [array.values] if pt.is_nested(type_) else []


def content_positions(array: pa.Array, rows: Int64Array) -> Int64Array:
    """Return where the content of each row begins: in the arrays inside, or in the bytes of text.

    ``rows`` may name the row after the last.
    """
    type_ = array.type
    if pt.is_struct(type_):
        return rows
    if pt.is_fixed_size_list(type_):
        return (rows + int(array.offset)) * int(type_.list_size)
    is_large = pt.is_large_list(type_) or pt.is_large_string(type_) or pt.is_large_binary(type_)
    offsets = text_offsets(array, np.int64 if is_large else np.int32)
    return np.asarray(offsets[rows], np.int64)


# Slices ------------------------------------------------------------------------------------------


def runs_within(ends: Int64Array, most: int) -> Iterator[tuple[int, int]]:
    """Yield the fewest ranges ``[start, stop)`` of rows that each measure at most ``most``.

    All rows, in order; a row of more is a range of its own.

    Parameters
    ----------
    ends
        Running total of what each row measures, that row included; never falls.
    most
        What the rows of a range may measure together.
    """
    start, before = 0, 0
    while start < len(ends):
        stop = max(int(np.searchsorted(ends, before + most, side="right")), start + 1)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def positions_of(starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Return the positions of all rows of ranges that begin at ``starts``, range after range."""
    ends = np.cumsum(sizes)
    num_rows = int(ends[-1]) if len(ends) else 0
    positions: Int64Array = np.repeat(starts - (ends - sizes), sizes)
    positions += np.arange(num_rows)
    return positions
