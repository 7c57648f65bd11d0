"""Where rows of some files are in files that were made of them: their order is kept. Pure.

A merge changes neither the rows of a subpartition nor their order. So the same number of rows of
it comes before a row in the inputs, without those that were gone, and in the outputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.regions import RegionKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.format.masks import RowMask
    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array

Rows = dict[int, "Int64Array"]
"""Rows of regions of a file, ascending, by the region's number."""


def moved_rows(
    rows: Sequence[Mapping[int, Int64Array]],
    before: Sequence[tuple[Sequence[Region], RowMask | None]],
    after: Sequence[Sequence[Region]],
    num_subpartitions: int,
) -> list[Rows]:
    """Return where rows of some files are in the files that were made of them.

    Parameters
    ----------
    rows
        Of each file before, none of which was gone when the others were made.
    before
        Of each file its regions, whole, and the rows that were gone, which were not written again.
    after
        Regions of each new file, whole. Both are in reading order.
    num_subpartitions
        By which all of them have rows.
    """
    return rows_at(*_ordinals(rows, before, num_subpartitions), after, num_subpartitions)


def rows_at(
    numbers: Int64Array,
    ordinals: Int64Array,
    after: Sequence[Sequence[Region]],
    num_subpartitions: int,
) -> list[Rows]:
    """Return where rows are in files, by their subpartitions and how many rows of it come before.

    ``after`` has the regions of each file, as :func:`moved_rows` has them.
    """
    seen = np.zeros(num_subpartitions + 1, np.int64)
    found: list[Rows] = []
    for regions in after:
        of_file: dict[int, Int64Array] = {}
        for region in regions:
            ids, edges = _slots(region, num_subpartitions)
            first = np.full(num_subpartitions + 1, -1, np.int64)
            counts = np.zeros(num_subpartitions + 1, np.int64)
            first[ids], counts[ids] = edges[:-1], np.diff(edges)
            at = ordinals - seen[numbers]
            is_here = (at >= 0) & (at < counts[numbers])
            if is_here.any():
                of_file[region.number] = np.sort(first[numbers[is_here]] + at[is_here])
            seen += counts
        found.append(of_file)
    return found


def _ordinals(
    rows: Sequence[Mapping[int, Int64Array]],
    before: Sequence[tuple[Sequence[Region], RowMask | None]],
    num_subpartitions: int,
) -> tuple[Int64Array, Int64Array]:
    """Return the subpartition of each row, and how many rows of it that were left come before."""
    seen = np.zeros(num_subpartitions + 1, np.int64)
    numbers, ordinals = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for wanted, (regions, mask) in zip(rows, before, strict=True):
        for region, gone in _with_gone(regions, mask):
            ids, edges = _slots(region, num_subpartitions)
            gone_before = np.searchsorted(gone, edges)
            asked = wanted.get(region.number)
            if asked is not None:
                slot = np.searchsorted(edges, asked, side="right") - 1
                own = asked - edges[slot] - (np.searchsorted(gone, asked) - gone_before[slot])
                numbers.append(ids[slot])
                ordinals.append(seen[ids[slot]] + own)
            seen[ids] += np.diff(edges - gone_before)
    return np.concatenate(numbers), np.concatenate(ordinals)


def are_copies(
    before: Sequence[tuple[Sequence[Region], RowMask | None]],
    after: Sequence[Sequence[Region]],
    num_subpartitions: int,
) -> bool:
    """Whether each new region has the rows that were left of one, as :func:`moved_rows` has them.

    Sorted rows that were joined have another order. Files of some subpartitions each may have as
    many rows as those before; of each subpartition they do not, unless nothing was joined.
    """
    left = [
        _counts(region, gone, num_subpartitions)
        for regions, mask in before
        for region, gone in _with_gone(regions, mask)
    ]
    written = [_counts(each, _NONE, num_subpartitions) for regions in after for each in regions]
    left = [counts for counts in left if counts.size]
    return len(left) == len(written) and all(map(np.array_equal, left, written))


_NONE: Int64Array = np.empty(0, np.int64)


def _with_gone(
    regions: Sequence[Region], mask: RowMask | None
) -> Iterator[tuple[Region, Int64Array]]:
    """Yield regions, each with its rows that were gone."""
    gone = {} if mask is None else mask.rows()
    return ((region, gone.get(region.number, _NONE)) for region in regions)


def _counts(region: Region, gone: Int64Array, num_subpartitions: int) -> Int64Array:
    """Return the subpartitions with rows that are left, in their order, and how many each has."""
    ids, edges = _slots(region, num_subpartitions)
    counts = np.diff(edges - np.searchsorted(gone, edges))
    return np.stack([ids, counts])[:, counts > 0]


def _slots(region: Region, num_subpartitions: int) -> tuple[Int64Array, Int64Array]:
    """Return the subpartitions with rows, in their order, and where each starts, then the end.

    Broadcast rows are of one more.
    """
    if region.kind is RegionKind.BROADCAST:
        return np.array([num_subpartitions]), np.array([0, region.num_rows])
    ranks, edges = region.ranks_of_rows(0, region.num_rows)
    present = np.flatnonzero(np.diff(edges))
    ids = (ranks[present] + region.first_subpartition) % num_subpartitions
    return ids, np.append(edges[present], region.num_rows)
