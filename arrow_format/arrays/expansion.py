"""User batches cut into slices of bounded size before they are brought to stored types; pure.

A dictionary, a view or a run may repeat a long value in every row: a batch of kilobytes can expand
to gigabytes.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import fixed_width_values, to_numpy, validity
from arrow_format.arrays.conversion import is_list_view
from arrow_format.arrays.row_sizes import (
    OFFSET_BYTES,
    children_of,
    content_positions,
    fixed_width,
    positions_of,
    runs_within,
)
from arrow_format.arrays.stored_types import normalise, plain_dictionary, same_but_labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from arrow_format.model import Int64Array

EXPANDED_BYTES = 4 << 20
"""Bytes that the columns which expand may take in one slice."""

BLOCK_ROWS = 1 << 16
"""Rows measured together, and the most rows of a slice."""

BLOCK_VALUES = 1 << 20
"""Values inside lists measured together, at some 30 bytes each; a row of more is alone."""

VIEW_BYTES = 16


def stored_batches(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a user's batch as they are stored, a few megabytes or one row at a time.

    Raises what :func:`~arrow_format.arrays.stored_types.normalise` raises, slice by slice.
    """
    return map(normalise, expandable_slices(batch, schema), repeat(schema))


def expandable_slices(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield slices that take a few megabytes, or are one row, once they fit the data schema.

    All rows, in order; ``batch`` itself where nothing expands.
    """
    expanding = [
        (i, field)
        for i, (have, field) in enumerate(zip(batch.schema, schema, strict=False))
        if not same_but_labels(have.type, field.type)
    ]
    if not expanding:
        yield batch
        return
    for i, field in expanding:
        column = batch.column(i)
        if pt.is_dictionary(column.type):
            # Once, and not for every slice.
            plain = plain_dictionary(column, field)
            batch = batch.set_column(i, batch.schema.field(i).with_type(plain.type), plain)
    for start in range(0, batch.num_rows, BLOCK_ROWS):
        block = batch.slice(start, BLOCK_ROWS)
        ends = np.cumsum(sum(_bytes_of_rows(block.column(i)) for i, _ in expanding))
        for first, stop in runs_within(ends, EXPANDED_BYTES):
            yield block.slice(first, stop - first)


def _bytes_of_rows(array: pa.Array) -> Int64Array:
    """Bytes that each row expands to, without validity; those of views are in the views."""
    if _is_view(array.type):
        return _bytes_in_views(array, slice(None))
    rows = np.arange(len(array))
    return _bytes_of(array, rows, rows + 1)


def _is_view(type_: pa.DataType) -> bool:
    return bool(pt.is_string_view(type_) or pt.is_binary_view(type_))


def _bytes_of(array: pa.Array, starts: Int64Array, stops: Int64Array) -> Int64Array:
    """Bytes that the values ``[start, stop)`` of each range expand to, without validity.

    Ranges ascend except inside list views.
    """
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _bytes_of(array.storage, starts, stops)
    if pt.is_dictionary(type_):
        return _sum_values(array, starts, stops, _bytes_in_dictionary)
    if pt.is_run_end_encoded(type_):
        return _sum_values(array, starts, stops, _bytes_in_runs)
    if _is_view(type_):
        return _sum_values(array, starts, stops, _bytes_in_views)
    if is_list_view(type_):
        return _sum_values(array, starts, stops, _bytes_in_list_views)
    counts = stops - starts
    width = fixed_width(type_)
    if width is not None:
        return counts * width
    total = np.zeros(len(starts), np.int64)
    if pt.is_union(type_):
        return total  # refused when it is normalised
    inner_starts, inner_stops = (content_positions(array, edge) for edge in (starts, stops))
    if not (pt.is_struct(type_) or pt.is_fixed_size_list(type_)):
        total += counts * OFFSET_BYTES
    if not pt.is_nested(type_):
        total += inner_stops - inner_starts
    for child in children_of(array):
        total += _bytes_of(child, inner_starts, inner_stops)
    return total


def _sum_values(
    array: pa.Array,
    starts: Int64Array,
    stops: Int64Array,
    bytes_at: Callable[[pa.Array, Int64Array], Int64Array],
) -> Int64Array:
    """Sum ``bytes_at`` of each value of each range, a block of values at a time."""
    counts = stops - starts
    total = np.zeros(len(counts), np.int64)
    for first, last in runs_within(np.cumsum(counts), BLOCK_VALUES):
        positions = positions_of(starts[first:last], counts[first:last])
        if not len(positions):
            continue
        low = int(positions.min())
        part = array.slice(low, int(positions.max()) + 1 - low)
        before = np.append(0, np.cumsum(bytes_at(part, positions - low)))
        total[first:last] = np.diff(before[np.append(0, np.cumsum(counts[first:last]))])
    return total


def _bytes_in_dictionary(array: pa.Array, positions: Int64Array) -> Int64Array:
    dictionary = array.dictionary
    if len(dictionary) == 0:
        return np.zeros(len(positions), np.int64)
    indices = array.indices
    values = fixed_width_values(indices, indices.type.to_pandas_dtype())[positions]
    # Under nulls, an index may be anything.
    values = np.clip(values.astype(np.int64), 0, len(dictionary) - 1)
    return _where_valid(array, positions, _bytes_of(dictionary, values, values + 1))


def _bytes_in_runs(array: pa.Array, positions: Int64Array) -> Int64Array:
    runs = np.searchsorted(to_numpy(array.run_ends), array.offset + positions, side="right")
    return _bytes_of(array.values, runs, runs + 1)


def _bytes_in_views(array: pa.Array, positions: Int64Array | slice) -> Int64Array:
    views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, VIEW_BYTES // 4)
    lengths = views[array.offset : array.offset + len(array), 0][positions].astype(np.int64)
    return OFFSET_BYTES + _where_valid(array, positions, lengths)


def _bytes_in_list_views(array: pa.Array, positions: Int64Array) -> Int64Array:
    starts = to_numpy(array.offsets)[positions].astype(np.int64)
    sizes = _where_valid(array, positions, to_numpy(array.sizes)[positions].astype(np.int64))
    return OFFSET_BYTES + _bytes_of(array.values, starts, starts + sizes)


def _where_valid(array: pa.Array, positions: Int64Array | slice, sizes: Int64Array) -> Int64Array:
    valid = validity(array)
    return sizes if valid is None else np.where(valid[positions], sizes, 0)
