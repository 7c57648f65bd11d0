"""How many values stand inside the rows of lists, maps and fixed-size lists; pure.

They may be many where bytes are few: eight booleans to the byte, and nulls to none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets

if TYPE_CHECKING:
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
