"""Lays out a region: clusters its rows by subpartition, then cuts them into chunks; pure.

:func:`cluster` sorts, :func:`cut_chunks` cuts by average size into chunks of
:func:`region_chunk_bytes`, :func:`cut_to_size` halves what turns out too large. Source: FLIP-148,
appendix (bucket sort by subpartition index); here a radix sort of the ids and one permutation for
all columns, which with sort keys also orders the rows of each subpartition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import text_offsets
from arrow_format.arrays.radix_sort import sort_permutation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from arrow_format.keys.spark_order import Codes
    from arrow_format.model import Int32Array, Int64Array


SPLIT_CHUNK_BYTES = 1 << 20
"""A subpartition with more raw bytes than this shares no chunk; its chunks have at most as many."""

SMALL_REGION_CHUNKS = 16
"""A region of fewer chunks gets smaller ones: a reader of one key decodes a chunk of every region,
and appended shuffles have many small ones."""

MOST_PARTS = 4
"""... but of no less than this part of what a chunk has otherwise: each costs its overhead."""


@dataclass(frozen=True, slots=True)
class Clustering:
    """The order that puts the rows of each subpartition together."""

    first_subpartition: int
    permutation: npt.NDArray[np.uint32] | None
    """Row to take at each position of the region; None when the rows are already in order."""
    ranks: Int32Array | None
    """The ranks that have rows, ascending; None when all of them have."""
    row_offsets: Int32Array
    """Row of the region at which each of those ranks starts, and the number of rows at the end."""


def cluster(
    subpartitions: Int32Array,
    num_subpartitions: int,
    first_subpartition: int = 0,
    sort_codes: Sequence[Codes] = (),
) -> Clustering:
    """Return the stable order of rows by rank, then by the sort codes.

    ``subpartitions`` has the subpartition of each of fewer than 2**31 rows; rank 0 is that of
    ``first_subpartition``. Sort codes are columns from
    :func:`~arrow_format.keys.spark_order.key_codes`, with one code per row each.
    """
    ranks = subpartitions
    if first_subpartition:
        ranks = subpartitions - np.int32(first_subpartition)
        ranks[ranks < 0] += np.int32(num_subpartitions)
    permutation, in_order = (
        _sorted_by_codes(ranks, sort_codes)
        if sort_codes
        else _stable_argsort(ranks, num_subpartitions)
    )
    starts = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1
    row_offsets = np.empty(len(starts) + 2, np.int32)
    row_offsets[0] = 0
    row_offsets[1:-1] = starts
    row_offsets[-1] = len(in_order)
    present = in_order[row_offsets[:-1]].astype(np.int32) if len(in_order) else in_order[:0]
    return Clustering(
        first_subpartition,
        permutation,
        None if len(present) == num_subpartitions else present.astype(np.int32),
        row_offsets if len(in_order) else np.zeros(1, np.int32),
    )


def _sorted_by_codes(
    ranks: Int32Array, codes: Sequence[Codes]
) -> tuple[npt.NDArray[np.uint32] | None, Int32Array]:
    """As :func:`_stable_argsort`, with rows of equal rank ordered by their codes."""
    order = sort_permutation(codes, ranks)
    is_sorted = bool((order[1:] > order[:-1]).all())
    return (None, ranks) if is_sorted else (order, ranks[order])


def _stable_argsort(
    ranks: Int32Array, num_subpartitions: int
) -> tuple[npt.NDArray[np.uint32] | None, npt.NDArray[np.signedinteger | np.unsignedinteger]]:
    """Return the permutation (None: already in order) and the ranks in that order.

    A rank and a row number that fit into 32 bits together are sorted as one number, which NumPy
    does with vector instructions, two to three times as fast as an argsort. Larger ones are sorted
    by radix, which NumPy does for 16-bit integers: ranks above 65,535 take two passes, low halves
    first.
    """
    if len(ranks) == 0 or num_subpartitions == 1 or bool((ranks[1:] >= ranks[:-1]).all()):
        return None, ranks
    row_bits = (len(ranks) - 1).bit_length()
    if row_bits + (num_subpartitions - 1).bit_length() <= 32:
        words = (ranks.astype(np.uint32) << np.uint32(row_bits)) | np.arange(
            len(ranks), dtype=np.uint32
        )
        words.sort()
        return words & np.uint32((1 << row_bits) - 1), words >> np.uint32(row_bits)
    low = ranks.astype(np.uint16)
    order = np.argsort(low, kind="stable").astype(np.uint32)
    if num_subpartitions <= 1 << 16:
        return order, low[order]
    high = (ranks >> 16).astype(np.uint16)[order]
    order = order[np.argsort(high, kind="stable")]
    return order, ranks[order]


def region_chunk_bytes(num_bytes: int, chunk_bytes: int) -> int:
    """Return the raw bytes at which chunks close in a region of ``num_bytes``.

    That is ``chunk_bytes``, or a 16th of the region if that is less, but a quarter at least.
    """
    return min(chunk_bytes, max(num_bytes // SMALL_REGION_CHUNKS, chunk_bytes // MOST_PARTS, 1))


def cut_chunks(
    clustering: Clustering, num_subpartitions: int, num_bytes: int, chunk_bytes: int
) -> Int64Array:
    """Return the first row of each chunk of a region, ascending from 0.

    A chunk closes at the first subpartition boundary at or past ``chunk_bytes``. A subpartition
    larger than :data:`SPLIT_CHUNK_BYTES` shares no chunk and is cut evenly. No chunk crosses the
    row where a rotated region wraps from the last subpartition to subpartition 0. Sizes are
    estimates, from the average row of the ``num_bytes`` raw bytes of the region.
    """
    offsets = clustering.row_offsets.astype(np.int64)
    num_rows = int(offsets[-1])
    if num_rows == 0:
        return np.empty(0, np.int64)
    row_bytes = max(num_bytes / num_rows, 1 / 64)
    split_rows = max(int(max(SPLIT_CHUNK_BYTES, chunk_bytes) / row_bytes), 1)
    target_rows = max(int(np.ceil(chunk_bytes / row_bytes)), 1)
    # Boundaries no chunk may cross: around every subpartition that is split, and the wrap.
    large = np.flatnonzero(np.diff(offsets) > split_rows)
    walls: list[Int64Array] = [offsets[large], offsets[large + 1], np.array([0, num_rows])]
    if clustering.first_subpartition:
        wrap_rank = num_subpartitions - clustering.first_subpartition
        wrap = (
            wrap_rank
            if clustering.ranks is None
            else int(np.searchsorted(clustering.ranks, wrap_rank))
        )
        walls.append(offsets[wrap : wrap + 1])
    edges = np.unique(np.concatenate(walls))
    is_large = np.isin(edges[:-1], offsets[large])
    firsts = [
        _cut_evenly(start, end, split_rows)
        if is_split
        else _cut_at_boundaries(offsets, start, end, target_rows)
        for start, end, is_split in zip(
            edges[:-1].tolist(), edges[1:].tolist(), is_large, strict=True
        )
    ]
    return np.concatenate(firsts)


def _cut_evenly(start: int, end: int, max_rows: int) -> Int64Array:
    num_chunks = -(-(end - start) // max_rows)
    return start + np.arange(num_chunks, dtype=np.int64) * (end - start) // num_chunks


def _cut_at_boundaries(offsets: Int64Array, start: int, end: int, target_rows: int) -> Int64Array:
    firsts = []
    while start < end:
        firsts.append(start)
        start = (
            int(offsets[np.searchsorted(offsets, start + target_rows)])
            if (start + target_rows < end)
            else end
        )
    return np.array(firsts, np.int64)


_PADDING = 8
"""Most bytes by which a buffer in a message is longer than its values."""


def cut_to_size(
    batch: pa.RecordBatch, first_rows: Int64Array, max_bytes: int, max_rows: int
) -> Iterator[tuple[int, int]]:
    """Yield the rows ``[start, stop)`` of each chunk, halving those that are too large.

    A chunk has at most ``max_bytes`` as an Arrow IPC message, unless it is a single row, and at
    most ``max_rows``, because rows of null columns take no bytes. ``first_rows`` has the row at
    which each chunk starts, ascending from 0.
    """
    edges = np.append(first_rows, np.int64(batch.num_rows))
    fits = (_max_message_bytes(batch, edges) <= max_bytes) & (np.diff(edges) <= max_rows)
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


def in_runs(extents: Iterable[tuple[int, int]], max_rows: int) -> Iterator[list[tuple[int, int]]]:
    """Group adjacent chunks ``[start, stop)`` into runs of ``max_rows`` at most, or one chunk."""
    run: list[tuple[int, int]] = []
    for extent in extents:
        if run and extent[1] - run[0][0] > max_rows:
            yield run
            run = []
        run.append(extent)
    if run:
        yield run


def _max_message_bytes(batch: pa.RecordBatch, edges: Int64Array) -> Int64Array:
    """Upper bound of the message bytes of each chunk; the largest integer where it is unknown."""
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
