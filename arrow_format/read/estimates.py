"""Estimated bytes of a read, and which subpartitions each read task gets.

Small subpartitions are combined, large ones are split.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import CorruptShuffleError
from arrow_format.read.plan import coalesce_adjacent

if TYPE_CHECKING:
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array


LARGEST_ESTIMATE = 1 << 48
"""Bytes; the sum over a million subpartitions still fits into 64 bits."""

MAX_REGIONS = 1 << 26
"""Regions a version may have to be cut by region: more would be petabytes."""


def estimate_read_bytes(snapshot: Snapshot, stored: Int64Array) -> Int64Array:
    """Return the stored bytes that a reader of each subpartition reads.

    More than its share of the data files where rows are broadcast: those are stored once, and each
    subpartition reads them all.

    Parameters
    ----------
    snapshot
        The version.
    stored
        Bytes of each subpartition: its share of the data files.
    """
    files = [file for output in snapshot.map_outputs for file in output.files]
    rows = sum(file.num_broadcast_rows for file in files)
    if rows == 0:
        return stored
    n = snapshot.newest.num_subpartitions
    return stored + snapshot.num_bytes * rows // snapshot.num_rows * (n - 1) // n


def estimate_raw_bytes(snapshot: Snapshot, rows: Int64Array, stored: Int64Array) -> Int64Array:
    """Return the bytes that the rows a reader of each subpartition gets take in Arrow.

    The larger of two estimates, from rows and from stored bytes: rows may be larger than the
    average, or compress better.

    Parameters
    ----------
    snapshot
        The version.
    rows, stored
        Rows of each subpartition, and its share of the data files in bytes.
    """
    raw = sum(output.raw_bytes for output in snapshot.map_outputs)
    by_rows = rows * (raw / max(snapshot.num_rows, 1))
    by_bytes = stored * (raw / max(snapshot.num_bytes, 1))
    larger = np.minimum(np.ceil(np.maximum(by_rows, by_bytes)), LARGEST_ESTIMATE)
    estimate: Int64Array = larger.astype(np.int64)
    return estimate


def estimate_region_bytes(snapshot: Snapshot, root: str) -> Int64Array:
    """Return the stored bytes of each region, numbered through the version in reading order.

    Every region of a file counts for the same.

    Parameters
    ----------
    snapshot
        The version.
    root
        Where it is, for messages.

    Raises
    ------
    CorruptShuffleError
        The log names more regions than there can be.
    """
    files = [file for output in snapshot.map_outputs for file in output.files]
    counts = np.array([file.num_regions for file in files], np.int64)
    sizes = np.array([file.data_bytes for file in files], np.int64)
    if int(counts.sum()) > MAX_REGIONS:
        msg = f"{root}: the log names {counts.sum():,} regions; restore it from a copy"
        raise CorruptShuffleError(msg)
    return np.repeat(sizes // np.maximum(counts, 1), counts)


@dataclass(frozen=True, slots=True)
class Shard:
    """What one task reads."""

    ranges: tuple[tuple[int, int], ...]
    """Subpartitions ``[first, end)``, ascending; none for no rows at all."""
    regions: range | None = None
    """These regions of them only, numbered through the version in reading order; all when None."""


def plan_shards(
    weights: Int64Array,
    subpartitions: Int64Array,
    most: int,
    region_bytes: Int64Array | None = None,
) -> list[Shard]:
    """Share subpartitions out, in their order.

    Parameters
    ----------
    weights
        Bytes of each subpartition of the shuffle.
    subpartitions
        Those wanted, ascending without repetition.
    most
        Bytes a shard may have. A subpartition of more is a shard of its own.
    region_bytes
        Bytes of each region, in reading order: then a subpartition of more than ``most`` is split
        over several shards by regions, in reading order. How its rows are spread over the regions
        is not known here; it is taken to be as the bytes are.

    Returns
    -------
    list of Shard
        Together they hold every row of the subpartitions once.
    """
    shards = []
    for ranges in coalesce_adjacent(weights, most, subpartitions):
        (first, end), *more = ranges
        weight = int(weights[first])
        alone = not more and end - first == 1
        if alone and weight > most and region_bytes is not None and len(region_bytes) > 1:
            parts = cut_regions(region_bytes, -(-weight // most))
            shards += [Shard(ranges, part) for part in parts]
        else:
            shards.append(Shard(ranges))
    return shards


def cut_regions(region_bytes: Int64Array, parts: int) -> list[range]:
    """Cut the regions of a version into at most so many adjacent parts of about equal bytes.

    Parameters
    ----------
    region_bytes
        Bytes of each region.
    parts
        At least one.

    Returns
    -------
    list of range
        None of them empty; together all regions, in order.
    """
    count = len(region_bytes)
    # Each region weighs something, so that no two cuts fall together while there are regions left.
    ends = np.cumsum(np.maximum(region_bytes, 1))
    parts = min(parts, count)
    wanted = ends[-1] * np.arange(1, parts) / parts if parts else np.zeros(0)
    cuts = np.searchsorted(ends, wanted, side="left") + 1
    edges = np.unique(np.concatenate([[0], np.minimum(cuts, count), [count]])).tolist()
    return [range(a, b) for a, b in pairwise(edges)]
