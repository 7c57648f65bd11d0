"""Rows and bytes per subpartition of a map output, from its regions; pure.

Bytes of the data file are prorated by rows: each chunk's over its rows, and what belongs to no
chunk (header, padding, footer) over all rows. Broadcast rows count for each subpartition with an
even share. So the bytes sum to the file's length. Writing, merging and verifying count by this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.regions import Region, RegionKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrow_format.model import Int64Array


def subpartition_totals(
    regions: Iterable[Region], num_subpartitions: int, data_bytes: int
) -> tuple[Int64Array, Int64Array]:
    """Return rows and bytes of every subpartition, from all regions of one file.

    The bytes sum to ``data_bytes``, the length of the data file, if there are rows.
    """
    regions = tuple(regions)
    rows = np.zeros(num_subpartitions, np.int64)
    sizes = np.zeros(num_subpartitions, np.int64)
    num_rows = sum(region.num_rows for region in regions)
    spare = data_bytes - int(sum(region.chunks.length.sum() for region in regions))
    before = 0
    for region in regions:
        ids, counts = region.subpartition_rows(num_subpartitions)
        rows[ids] += counts
        edges = region.row_offsets
        prorated = (
            _bytes_before(region, edges, region.chunks.length)
            + spare * (before + edges) // num_rows
        )
        if region.kind is RegionKind.BROADCAST:
            shares = np.arange(num_subpartitions + 1) * int(prorated[-1] - prorated[0])
            prorated = shares // num_subpartitions
        sizes[ids] += np.diff(prorated)
        before += region.num_rows
    return rows, sizes


def rows_of_subpartitions(regions: Iterable[Region], num_subpartitions: int) -> Int64Array:
    """Return the rows of every subpartition in regions of any files."""
    rows = np.zeros(num_subpartitions, np.int64)
    for region in regions:
        ids, counts = region.subpartition_rows(num_subpartitions)
        rows[ids] += counts
    return rows


def subpartition_range(regions: Iterable[Region], num_subpartitions: int) -> tuple[int, int]:
    """Return the range ``[first, end)`` of subpartitions that have rows in regions of one file."""
    first, end = num_subpartitions, 0
    for (
        region
    ) in regions:  # one at a time: all together would take 16 bytes for each of their ranks
        ids, counts = region.subpartition_rows(num_subpartitions)
        present = ids[counts > 0]
        first, end = min(first, int(present.min())), max(end, int(present.max()) + 1)
    return min(first, end), end


def arrow_bytes(regions: Iterable[Region], raw_bytes: int) -> list[int]:
    """Share ``raw_bytes``, what the rows of a file take in Arrow, among all its regions."""
    lengths = np.cumsum([0, *(region.raw_length for region in regions)])
    ends = [raw_bytes * int(end) // max(int(lengths[-1]), 1) for end in lengths]
    return np.diff(ends).tolist()


def subpartition_arrow_bytes(
    regions: Iterable[tuple[Region, int]], num_subpartitions: int
) -> Int64Array:
    """Return the bytes that the rows of every subpartition take in Arrow, by share of chunks.

    ``regions`` are unicast regions of any files, each with its share from :func:`arrow_bytes`.
    """
    sizes = np.zeros(num_subpartitions)
    for region, raw_bytes in regions:
        ids, _ = region.subpartition_rows(num_subpartitions)
        before = _bytes_before(region, region.row_offsets, region.chunks.raw_length)
        sizes[ids] += np.diff(before) * (raw_bytes / int(before[-1]))
    return np.ceil(sizes).astype(np.int64)


def _bytes_before(region: Region, edges: Int64Array, chunk_bytes: Int64Array) -> Int64Array:
    """Chunk bytes of the rows before each edge, rounded down."""
    chunks = region.chunks
    starts = chunks.row_edges
    total = np.concatenate([[0], np.cumsum(chunk_bytes)])
    chunk = np.minimum(np.searchsorted(starts, edges, side="right") - 1, len(chunks) - 1)
    inside = (edges - starts[chunk]) * chunk_bytes[chunk] // np.diff(starts)[chunk]
    return np.asarray(total[chunk] + inside, np.int64)
