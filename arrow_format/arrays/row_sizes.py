"""Bytes and nested items of each row, to cut rows before an array outgrows Arrow's offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from arrow_format.model import Int64Array


MAX_ITEMS = 1 << 30
"""Items of lists that a column of several rows may hold, at all depths: 32-bit offsets reach twice
as many, and booleans and nulls reach them long before they fill a buffer."""


def has_items(type_: pa.DataType) -> bool:
    """Whether a row of a stored type may hold several values, at any depth."""
    if pt.is_struct(type_):
        return any(has_items(field.type) for field in type_)
    return bool(pt.is_list(type_) or pt.is_map(type_) or pt.is_fixed_size_list(type_))


def num_items(array: pa.Array) -> int:
    """Return how many values stand inside the rows of an array, at all depths together."""
    return int(_items_before(array, np.array([0, len(array)], np.int64))[-1])


def most_items(batch: pa.RecordBatch) -> int:
    """Return how many values stand inside the rows of the column of a batch that has most."""
    columns = (i for i, field in enumerate(batch.schema) if has_items(field.type))
    return max((num_items(batch.column(i)) for i in columns), default=0)


def items_per_row(array: pa.Array) -> Int64Array:
    """Return how many values stand inside each row, at all depths together."""
    return np.diff(_items_before(array, np.arange(len(array) + 1)))


def _items_before(array: pa.Array, edges: Int64Array) -> Int64Array:
    """Items inside the values from the first of ``edges`` up to each.

    Edges are carried down to the items rather than counts up from them: there are as many of them
    at every depth, however many items there are.
    """
    type_ = array.type
    total = np.zeros(len(edges), np.int64)
    if pt.is_struct(type_):
        for i in range(type_.num_fields):
            total += _items_before(array.field(i), edges)
        return total
    if pt.is_fixed_size_list(type_):
        inner, children = (array.offset + edges) * type_.list_size, [array.values]
    elif pt.is_list(type_) or pt.is_map(type_):
        inner = text_offsets(array)[edges].astype(np.int64)
        children = [array.keys, array.items] if pt.is_map(type_) else [array.values]
    else:
        return total
    total += inner - inner[0]
    for child in children:
        if has_items(child.type):
            total += _items_before(child, inner)
    return total


OFFSET_BYTES = 4
"""Beside its content, a text or a list has one offset."""


def row_sizes(columns: Iterable[pa.Array], num_rows: int) -> Int64Array:
    """Bytes that each row takes in these columns, about; shape (num_rows,), read-only.

    An item of a list counts one byte more than it has: nulls and booleans take less, and Arrow's
    offsets count them all the same.

    Parameters
    ----------
    columns
        Of one batch.
    num_rows
        Length of each.
    """
    fixed, varying = 0, []
    for column in columns:
        width = _fixed_width(column.type)
        if width is None:
            varying.append(np.diff(_bytes_before(column, np.arange(num_rows + 1))))
        else:
            fixed += width
    sizes: Int64Array = np.broadcast_to(np.int64(fixed), num_rows)
    return sizes if not varying else np.sum(varying, axis=0) + fixed


def _fixed_width(type_: pa.DataType) -> int | None:
    if pt.is_null(type_):
        return 0
    if pt.is_nested(type_):
        return None
    try:
        return -(-int(type_.bit_width) // 8)
    except ValueError:
        return None


def _bytes_before(array: pa.Array, edges: Int64Array) -> Int64Array:
    """Bytes of the values from the first of ``edges`` up to each.

    Edges are carried down to the items, of which there may be very many.
    """
    type_ = array.type
    width = _fixed_width(type_)
    total: Int64Array = edges - edges[0]
    if width is not None:
        return total * width
    if pt.is_struct(type_):
        total = np.zeros(len(edges), np.int64)
        for i in range(type_.num_fields):
            total += _bytes_before(array.field(i), edges)
        return total
    if pt.is_fixed_size_list(type_):
        inner, total = (array.offset + edges) * type_.list_size, np.zeros(len(edges), np.int64)
    else:
        inner = text_offsets(array)[edges].astype(np.int64)
        total *= OFFSET_BYTES
    total += inner - inner[0]  # the text, or one for each item
    if pt.is_map(type_):
        children = [array.keys, array.items]
    else:
        children = [array.values] if pt.is_nested(type_) else []
    for child in children:
        total += _bytes_before(child, inner)
    return total
