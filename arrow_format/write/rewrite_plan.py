"""Plans a rewrite: which regions it joins, and which subpartitions it joins at a time; pure.

Source: FLIP-148, ``PartitionedFileMerger``. There, the buffers of a subpartition are copied one
after the other; here its rows are encoded into new chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.regions import MAX_REGION_ROWS, RegionKind
from arrow_format.format.totals import rows_of_subpartitions, subpartition_arrow_bytes
from arrow_format.read.chunk_plan import group_adjacent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array

MIN_FAN_IN = 8
"""Regions that are joined into one however small the memory budget."""


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
        """Number of regions."""
        return sum(piece.end - piece.first for piece in self.slices)


def plan_fan_in(
    regions: Sequence[tuple[Region, int]],
    num_subpartitions: int,
    *,
    max_bytes: int,
    max_fan_in: int,
    is_sorted: bool,
) -> int:
    """Return how many regions to join into one, at most ``max_fan_in``.

    A range of subpartitions that fits into ``max_bytes`` of memory has a share of each region.
    Where a share is less than a chunk, the chunk is decoded again for each share. The fan-in is
    therefore the number of regions at which a share is about one chunk. A sorted subpartition that
    does not fit is merged row by row, with a decoded chunk of each region in memory, and besides
    them the merged rows. ``regions`` are unicast, each with its bytes in Arrow.
    """
    raw_bytes = sum(size for _, size in regions)
    num_chunks = sum(len(region.chunks) for region, _ in regions)
    if not raw_bytes or not num_chunks:
        return max_fan_in
    fan_in = min(max(max_bytes * num_chunks // raw_bytes, MIN_FAN_IN), max_fan_in)
    if not is_sorted or subpartition_arrow_bytes(regions, num_subpartitions).max() <= max_bytes:
        return fan_in
    largest = max(
        size * int(region.chunks.raw_length.max()) // region.raw_length for region, size in regions
    )
    return min(max(max_bytes // (2 * max(largest, 1)), 2), fan_in)


def plan_runs(sources: Sequence[Sequence[Region]], max_fan_in: int) -> list[RegionRun]:
    """Cut the regions of all inputs, in reading order, into runs that become one region each.

    A broadcast region is a run of its own, and no row moves across it: the order of rows within a
    subpartition does not change.
    """
    places = [
        (source, number, region)
        for source, regions in enumerate(sources)
        for number, region in enumerate(regions)
    ]
    runs: list[RegionRun] = []
    for kind, several in groupby(places, key=lambda place: place[2].kind):
        max_regions = 1 if kind is RegionKind.BROADCAST else max_fan_in
        runs += [
            RegionRun(_slices([(source, number) for source, number, _ in run]))
            for run in _cut(list(several), max_regions)
        ]
    return runs


def _cut(
    places: list[tuple[int, int, Region]], max_regions: int
) -> Iterator[list[tuple[int, int, Region]]]:
    """Yield runs of about even length, none with more rows than one region can have."""
    num_runs = -(-len(places) // max_regions)
    run_length = -(-len(places) // num_runs)
    run: list[tuple[int, int, Region]] = []
    num_rows = 0
    for place in places:
        rows = place[2].num_rows
        if run and (len(run) == run_length or num_rows + rows > MAX_REGION_ROWS):
            yield run
            run, num_rows = [], 0
        run.append(place)
        num_rows += rows
    yield run


def _slices(places: list[tuple[int, int]]) -> tuple[RegionSlice, ...]:
    slices = []
    for source, several in groupby(places, key=lambda place: place[0]):
        numbers = [number for _, number in several]
        slices.append(RegionSlice(source, numbers[0], numbers[-1] + 1))
    return tuple(slices)


@dataclass(frozen=True, slots=True)
class SubpartitionRange:
    """Adjacent subpartitions ``[first, end)`` whose rows are joined together."""

    first: int
    end: int
    num_bytes: int
    """Estimated bytes of their rows in memory."""


def rewrite_ranges(
    regions: Sequence[tuple[Region, int]],
    num_subpartitions: int,
    first_subpartition: int,
    *,
    max_bytes: int,
    row_overhead_bytes: int,
) -> list[SubpartitionRange]:
    """Cut the subpartitions that have rows into ranges, by ascending rank.

    ``regions`` are the unicast regions of a run, each with its bytes in Arrow. A range has at most
    ``max_bytes`` in memory, ``row_overhead_bytes`` per row included, unless it is a single
    subpartition. No range wraps from the last subpartition to subpartition 0.
    """
    rows = rows_of_subpartitions((region for region, _ in regions), num_subpartitions)
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
    return [subpartitions for subpartitions in ranges if subpartitions.num_bytes]
