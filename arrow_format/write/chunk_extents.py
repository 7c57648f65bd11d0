"""Keeps chunks within the largest size they may have; pure.

Chunks are cut by the average row of their region. Where some rows are much larger than others, a
chunk may come out far larger than was meant; it is halved until it fits or is a single row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.model import Int64Array

_PADDING = 8
"""Bytes that a buffer may be longer in a message than its values are."""


def cut_to_size(
    batch: pa.RecordBatch, firsts: Int64Array, max_bytes: int, max_rows: int
) -> Iterator[tuple[int, int]]:
    """Yield the rows ``[start, stop)`` of each chunk, none above ``max_bytes`` but single rows.

    Parameters
    ----------
    batch
        Rows of a region, or of a part of one.
    firsts
        Row at which each chunk starts, ascending from 0.
    max_bytes
        Bytes that a chunk may have as an Arrow IPC message.
    max_rows
        Rows that a chunk may have: of columns that are all null they take no bytes.
    """
    edges = np.append(firsts, np.int64(batch.num_rows))
    fits = (_bytes_at_most(batch, edges) <= max_bytes) & (np.diff(edges) <= max_rows)
    for first, end, fit in zip(edges[:-1].tolist(), edges[1:].tolist(), fits.tolist(), strict=True):
        waiting = [(first, end)]
        while waiting:
            start, stop = waiting.pop()
            if (
                fit
                or stop - start == 1
                or (
                    stop - start <= max_rows
                    and pa.ipc.get_record_batch_size(batch.slice(start, stop - start)) <= max_bytes
                )
            ):
                yield start, stop
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]


def _bytes_at_most(batch: pa.RecordBatch, edges: Int64Array) -> Int64Array:
    """Bytes of the message of each chunk, or more; the largest integer where nobody knows."""
    rows = np.diff(edges)
    # Metadata: a node, and up to three buffers with their padding, for each column.
    total = np.full(len(rows), 1024 + 128 * batch.num_columns, np.int64)
    for column in batch.columns:
        total += rows // 8 + 3 * _PADDING
        if pt.is_string(column.type) or pt.is_binary(column.type):
            total += np.diff(text_offsets(column)[edges]) + 4 * (rows + 1)
        elif pt.is_nested(column.type):
            return np.full(len(rows), np.iinfo(np.int64).max)
        elif not pt.is_null(column.type):
            total += rows * -(-column.type.bit_width // 8)
    return total
