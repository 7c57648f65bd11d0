"""Which regions a rewrite joins, and which subpartitions it takes at a time: pure.

Source: FLIP-148, ``PartitionedFileMerger``. There, the buffers of a subpartition are copied behind
each other; here its rows are put into chunks anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.totals import subpartition_arrow_bytes
from arrow_format.model import RegionKind
from arrow_format.read.plan import group_adjacent
from arrow_format.write.region_builder import MAX_REGION_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.model import Int64Array, Region

MIN_FAN_IN = 8
"""Regions that are joined into one however little memory there is."""


@dataclass(frozen=True, slots=True)
class RegionSlice:
    """Adjacent regions ``[first, end)`` of one input."""

    source: int
    """Number of the input."""
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class RegionRun:
    """Adjacent regions, in reading order, that become one region."""

    slices: tuple[RegionSlice, ...]

    @property
    def num_regions(self) -> int:
        """How many there are."""
        return sum(one.end - one.first for one in self.slices)


def plan_fan_in(
    regions: Sequence[tuple[Region, int]],
    num_subpartitions: int,
    *,
    max_bytes: int,
    max_fan_in: int,
    is_sorted: bool,
) -> int:
    """Decide how many regions to join into one.

    What fits into memory holds a share of each region. Where that is less than a chunk, chunks are
    decoded again for each share, so the work grows with the number of regions: so many are joined
    that a share is about a chunk. A sorted subpartition that is too large for memory is merged row
    by row, with a chunk of each region at hand and the rows merged from these beside them.

    Parameters
    ----------
    regions
        Unicast regions, each with the bytes it takes in Arrow.
    num_subpartitions
        How many there are.
    max_bytes
        What rows may take in memory.
    max_fan_in
        Never more than this.
    is_sorted
        Whether the regions are sorted by keys.
    """
    raw_bytes = sum(size for _, size in regions)
    num_chunks = sum(len(region.chunks) for region, _ in regions)
    if not raw_bytes or not num_chunks:
        return max_fan_in
    fan_in = min(max(max_bytes * num_chunks // raw_bytes, MIN_FAN_IN), max_fan_in)
    if not is_sorted or subpartition_arrow_bytes(regions, num_subpartitions).max() <= max_bytes:
        return fan_in
    largest = max(
        size * int(region.chunks.raw_length.max()) // int(region.chunks.raw_length.sum())
        for region, size in regions
    )
    return min(max(max_bytes // (2 * max(largest, 1)), 2), fan_in)


def plan_runs(sources: Sequence[Sequence[Region]], max_fan_in: int) -> list[RegionRun]:
    """Cut the regions of all inputs into runs that become one region each.

    A region that every subpartition reads stands alone, and rows before it never move behind it:
    the order within a subpartition stays as it was.

    Parameters
    ----------
    sources
        Regions of every input, both in reading order.
    max_fan_in
        Most regions of a run, at least 1.
    """
    places = [
        (source, number, region)
        for source, regions in enumerate(sources)
        for number, region in enumerate(regions)
    ]
    runs: list[RegionRun] = []
    for kind, several in groupby(places, key=lambda place: place[2].kind):
        most = 1 if kind is RegionKind.BROADCAST else max_fan_in
        runs += [
            RegionRun(_slices([(source, number) for source, number, _ in run]))
            for run in _cut(list(several), most)
        ]
    return runs


def _cut(
    places: list[tuple[int, int, Region]], most: int
) -> Iterator[list[tuple[int, int, Region]]]:
    """Cut into pieces of about even length that have rows for one region each."""
    pieces = -(-len(places) // most)
    even = -(-len(places) // pieces)
    held: list[tuple[int, int, Region]] = []
    num_rows = 0
    for place in places:
        rows = place[2].num_rows
        if held and (len(held) == even or num_rows + rows > MAX_REGION_ROWS):
            yield held
            held, num_rows = [], 0
        held.append(place)
        num_rows += rows
    yield held


def _slices(places: list[tuple[int, int]]) -> tuple[RegionSlice, ...]:
    slices = []
    for source, several in groupby(places, key=lambda place: place[0]):
        numbers = [number for _, number in several]
        slices.append(RegionSlice(source, numbers[0], numbers[-1] + 1))
    return tuple(slices)


@dataclass(frozen=True, slots=True)
class SubpartitionRange:
    """Adjacent subpartitions ``[first, end)`` whose rows are ordered together."""

    first: int
    end: int
    num_bytes: int
    """What their rows take in memory, estimated."""


def plan_ranges(
    regions: Sequence[tuple[Region, int]],
    num_subpartitions: int,
    first_subpartition: int,
    *,
    max_bytes: int,
    row_overhead_bytes: int,
) -> list[SubpartitionRange]:
    """Cut the subpartitions into ranges that fit into memory, by ascending rank.

    Ranges without rows are left out. One subpartition alone may be larger than ``max_bytes``.

    Parameters
    ----------
    regions
        The unicast regions of a run, each with the bytes it takes in Arrow.
    num_subpartitions
        How many there are.
    first_subpartition
        The one with rank 0 in the region to be written; no range goes round from the last
        subpartition to subpartition 0.
    max_bytes
        What the rows of a range may take.
    row_overhead_bytes
        What a row takes beside its columns.
    """
    rows = np.zeros(num_subpartitions, np.int64)
    for region, _ in regions:
        ids, counts = region.subpartition_rows(num_subpartitions)
        rows[ids] += counts
    weights: Int64Array = (
        subpartition_arrow_bytes(regions, num_subpartitions) + rows * row_overhead_bytes
    )
    total = np.append(0, np.cumsum(weights))
    ascending = range(num_subpartitions)
    ranges = [
        SubpartitionRange(first, end, int(total[end] - total[first]))
        for part in (ascending[first_subpartition:], ascending[:first_subpartition])
        if part
        for first, end in group_adjacent(weights, max_bytes, part)
    ]
    return [one for one in ranges if one.num_bytes]
