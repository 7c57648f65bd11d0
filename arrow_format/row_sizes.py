"""How many bytes each row of a batch takes: where batches are to be cut by bytes. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.numpy_arrays import to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrow_format.model import Int64Array

OFFSET_BYTES = 4
"""Beside its content, a text or a list has one offset."""


def row_sizes(columns: Iterable[pa.Array], num_rows: int) -> Int64Array:
    """Bytes that each row takes in these columns, about; shape (num_rows,), read-only.

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
            varying.append(_sizes(column))
        else:
            fixed += width
    sizes: Int64Array = np.broadcast_to(np.int64(fixed), num_rows)
    return sizes if not varying else np.sum(varying, axis=0) + fixed


def _fixed_width(type_: pa.DataType) -> int | None:
    if pt.is_nested(type_):
        return None
    try:
        return -(-int(type_.bit_width) // 8)
    except ValueError:
        return None


def _sizes(array: pa.Array) -> Int64Array:
    type_ = array.type
    width = _fixed_width(type_)
    if width is not None:
        sizes: Int64Array = np.full(len(array), width, np.int64)
        return sizes
    if pt.is_struct(type_):
        children = [_sizes(array.field(i)) for i in range(type_.num_fields)]
        total: Int64Array = np.sum([np.zeros(len(array), np.int64), *children], axis=0)
        return total
    if pt.is_string(type_) or pt.is_binary(type_):
        if len(array) == 0:
            return np.zeros(0, np.int64)
        offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
        lengths: Int64Array = np.diff(offsets).astype(np.int64)
        return lengths + OFFSET_BYTES
    if pt.is_list(type_) or pt.is_map(type_):
        offsets = to_numpy(array.offsets)
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        ends = np.concatenate([[0], np.cumsum(_sizes(values))])
        content: Int64Array = np.diff(ends[offsets - offsets[0]]).astype(np.int64)
        return content + OFFSET_BYTES
    # The average: of fixed-size lists it is close, and others are not stored.
    return np.full(len(array), -(-array.nbytes // max(len(array), 1)), np.int64)
