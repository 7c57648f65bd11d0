"""Plans a merge by subpartition: which rows become which file; pure.

Each file has the rows of adjacent subpartitions, of all map outputs, as one region. Broadcast
regions are stored once, in files of their own, and no row moves across them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import OptionError
from arrow_format.format.regions import MAX_REGION_ROWS, RegionKind
from arrow_format.read.chunk_plan import cut_evenly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.model import Int64Array


@dataclass(frozen=True, slots=True)
class Piece:
    """The rows that become one file."""

    kind: RegionKind
    regions: range
    """Regions that have them, numbered through the version in reading order."""
    first: int
    end: int
    """Subpartitions ``[first, end)``: of broadcast rows subpartition 0, which has them all."""
    num_bytes: int
    """Their share of the stored bytes; all pieces together have all."""


def plan_pieces(
    regions: Iterable[tuple[RegionKind, int]],
    rows: Int64Array,
    sizes: Int64Array,
    max_bytes: int,
) -> tuple[Piece, ...]:
    """Cut the rows of a version into pieces of about ``max_bytes``, in reading order.

    ``regions`` are those of the version in reading order, each with its stored bytes; ``rows`` and
    ``sizes`` are rows and stored bytes of each subpartition. A subpartition is never cut.

    Raises OptionError where one has more rows than a region can have.
    """
    if int(rows.max(initial=0)) > MAX_REGION_ROWS:
        largest = int(rows.argmax())
        msg = (
            f"subpartition {largest} has {rows[largest]:,} rows; merged by subpartition it can "
            f"have {MAX_REGION_ROWS:,}. Merge by='map_output', or write more subpartitions"
        )
        raise OptionError(msg)
    pieces: list[Piece] = []
    first_region = 0
    for kind, several in groupby(regions, key=lambda region: region[0]):
        stored = [num_bytes for _, num_bytes in several]
        run = range(first_region, first_region + len(stored))
        first_region = run.stop
        if kind is RegionKind.BROADCAST:
            pieces.append(Piece(kind, run, 0, 1, sum(stored)))
        else:
            pieces += _ranges(run, sum(stored), rows, sizes, max_bytes)
    return tuple(pieces)


def _ranges(
    regions: range, num_bytes: int, rows: Int64Array, sizes: Int64Array, max_bytes: int
) -> Iterator[Piece]:
    """Yield ranges of subpartitions of about equal bytes, within the rows of one region."""
    present = np.flatnonzero(rows)
    weights = (sizes + rows)[present]  # rows without columns take no bytes
    ends = np.cumsum(weights)
    num_ranges = max(-(-num_bytes // max_bytes), -(-4 * int(rows.sum()) // MAX_REGION_ROWS))
    before = 0
    for start, stop in cut_evenly(weights, num_ranges):
        share = num_bytes * int(ends[stop - 1]) // int(ends[-1])
        first, end = int(present[start]), int(present[stop - 1]) + 1
        yield Piece(RegionKind.UNICAST, regions, first, end, share - before)
        before = share
