"""Who reads what when many tasks read a version: small subpartitions together, large by parts.

Pure, and from totals alone: no index is opened to plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.read.plan import coalesce_adjacent

if TYPE_CHECKING:
    from arrow_format.model import Int64Array


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
