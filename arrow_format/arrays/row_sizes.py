"""How many bytes each row of a batch takes: where batches are to be cut by bytes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from arrow_format.model import Int64Array

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
