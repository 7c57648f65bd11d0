"""Rows and bytes per subpartition of a map output, from its regions; pure.

Bytes are those of the data file, prorated by rows: each chunk's bytes over the rows it holds, and
what belongs to no chunk (header, padding, footer) over all rows. They sum to the file's length:
what is stored once for everyone counts for each subpartition with an even share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.model import Region, RegionKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from arrow_format.model import Int64Array


def subpartition_totals(
    regions: Iterable[Region], num_subpartitions: int, data_bytes: int
) -> tuple[Int64Array, Int64Array]:
    """Rows and bytes of every subpartition (two int64 arrays of that length).

    Parameters
    ----------
    regions
        Regions of one file.
    num_subpartitions
        How many there are.
    data_bytes
        Length of the data file; the bytes returned sum to it when there are rows.
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
        edges = region.row_offsets.astype(np.int64)
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


def arrow_bytes(regions: Iterable[Region], raw_bytes: int) -> list[int]:
    """Bytes that each region of a file takes in Arrow: of the file's, in proportion.

    Parameters
    ----------
    regions
        All regions of the file.
    raw_bytes
        Bytes its rows take in Arrow; those returned sum to it.
    """
    lengths = np.cumsum([0, *(int(region.chunks.raw_length.sum()) for region in regions)])
    ends = [raw_bytes * int(end) // max(int(lengths[-1]), 1) for end in lengths]
    return np.diff(ends).tolist()


def subpartition_arrow_bytes(
    regions: Iterable[tuple[Region, int]], num_subpartitions: int
) -> Int64Array:
    """Bytes that the rows of every subpartition take in Arrow (int64), by its share of chunks.

    Parameters
    ----------
    regions
        Unicast regions of any files, each with its own :func:`arrow_bytes`.
    num_subpartitions
        How many there are.
    """
    sizes = np.zeros(num_subpartitions)
    for region, raw_bytes in regions:
        ids, _ = region.subpartition_rows(num_subpartitions)
        before = _bytes_before(
            region, region.row_offsets.astype(np.int64), region.chunks.raw_length
        )
        sizes[ids] += np.diff(before) * (raw_bytes / int(before[-1]))
    return np.ceil(sizes).astype(np.int64)


def _bytes_before(region: Region, edges: Int64Array, chunk_bytes: Int64Array) -> Int64Array:
    """Chunk bytes of the rows before each edge, rounded down."""
    chunks = region.chunks
    starts = chunks.first_rows_and_end(region.num_rows)
    total = np.concatenate([[0], np.cumsum(chunk_bytes)])
    chunk = np.minimum(np.searchsorted(starts, edges, side="right") - 1, len(chunks) - 1)
    inside = (edges - starts[chunk]) * chunk_bytes[chunk] // np.diff(starts)[chunk]
    return np.asarray(total[chunk] + inside, np.int64)
