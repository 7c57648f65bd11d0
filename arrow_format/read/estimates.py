"""Estimates the bytes of a read, and plans which subpartitions each read task gets.

Small subpartitions are combined, large ones are split.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.read.chunk_plan import Piece, coalesce_adjacent

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array


LARGEST_ESTIMATE = 1 << 48
"""Bytes of a subpartition: 256 TiB, which no shuffle reaches."""

MIN_PARTITION_BYTES = 4 << 20
MIN_PARTITIONS = 8
"""Fewest tasks that a shuffle is divided among while they have ``MIN_PARTITION_BYTES`` each, so
that the cores of a small cluster share the work."""


MIN_PIECE_BYTES = 4 << 10
"""Least bytes on disk of a piece of a subpartition: few chunks, which are not divided, have fewer.
"""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Subpartitions that one task reads, in their order."""

    ranges: tuple[tuple[int, int], ...]
    """Ranges ``[first, end)`` of subpartitions, ascending; none for a task that reads nothing."""
    num_rows: int
    """Rows of these subpartitions; with a filter, those before it."""
    num_bytes: int
    """Estimated bytes of these rows in Arrow, of the columns that are read."""

    @property
    def subpartitions(self) -> list[int]:
        """The subpartitions, ascending."""
        return list(chain.from_iterable(range(*bounds) for bounds in self.ranges))


def estimate_read_bytes(snapshot: Snapshot, stored: Int64Array) -> Int64Array:
    """Estimate the stored bytes that a reader of each subpartition reads.

    ``stored`` is the share of each subpartition in the data files. With broadcast rows a reader
    reads more than that: they are stored once, and every subpartition reads them all.
    """
    rows = snapshot.num_broadcast_rows
    if rows:
        n = snapshot.newest.num_subpartitions
        stored = stored + snapshot.num_bytes * rows // snapshot.num_rows * (n - 1) // n
    return stored


def estimate_raw_bytes(snapshot: Snapshot, rows: Int64Array, stored: Int64Array) -> Int64Array:
    """Estimate the bytes in Arrow of the rows that a reader of each subpartition gets.

    The larger of two estimates, from ``rows`` and from ``stored`` bytes of each subpartition: rows
    may be larger than the average, or compress better.
    """
    raw = snapshot.raw_bytes
    by_rows = rows * (raw / max(snapshot.num_rows, 1))
    by_bytes = stored * (raw / max(snapshot.num_bytes, 1))
    larger = np.minimum(np.ceil(np.maximum(by_rows, by_bytes)), LARGEST_ESTIMATE)
    estimate: Int64Array = larger.astype(np.int64)
    return estimate


def estimate_column_share(snapshot: Snapshot, names: Iterable[str]) -> float:
    """Estimate which part of the bytes of rows in Arrow some columns have; from 0 to 1.

    Columns of fixed width have their width. What all rows take besides counts as that of any other
    column: a text may have all of it.
    """
    schema = snapshot.newest.data_schema
    row_bytes = snapshot.raw_bytes / max(snapshot.num_rows, 1)
    widths = {field.name: _fixed_width(field.type) for field in schema}
    known = sum(width for width in widths.values() if width is not None)
    wanted = [widths[name] for name in set(names)]
    num_bytes = sum(width for width in wanted if width is not None)
    if None in wanted:
        num_bytes += max(row_bytes - known, 0)
    return min(num_bytes / row_bytes, 1) if row_bytes else 1


def _fixed_width(type_: pa.DataType) -> float | None:
    """Bytes of a value with its validity; None where they differ."""
    try:
        return float(type_.bit_width + 1) / 8
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Shard:
    """The rows that one task reads."""

    ranges: tuple[tuple[int, int], ...]
    """Subpartitions ``[first, end)``, ascending."""
    piece: Piece | None = None
    """Only this one of the runs that the rows of one subpartition are cut into; all when None."""


def partition_bytes(total: int, target: int) -> int:
    """Return the bytes that a task may read of ``total``."""
    return max(min(target, max(-(-total // MIN_PARTITIONS), MIN_PARTITION_BYTES)), 1)


def plan_shards(
    weights: Int64Array, subpartitions: Int64Array, max_bytes: int, *, cuts: bool = False
) -> list[Shard]:
    """Assign every row of ascending subpartitions to one shard each, in their order.

    ``weights`` are the bytes of each subpartition of the shuffle. A subpartition of more than
    ``max_bytes`` is a shard of its own, or several where it ``cuts`` them.
    """
    shards = []
    for ranges in coalesce_adjacent(weights, max_bytes, subpartitions):
        (first, end), *more = ranges
        is_one = not more and end - first == 1
        shards += shards_of(
            ranges, num_pieces(int(weights[first]), max_bytes) if is_one and cuts else 1
        )
    return shards


def num_pieces(num_bytes: int, max_bytes: int) -> int:
    """Return into how many pieces a subpartition is cut, of about ``max_bytes`` each."""
    return max(-(-num_bytes // max(max_bytes, MIN_PIECE_BYTES)), 1)


def shards_of(ranges: tuple[tuple[int, int], ...], pieces: int) -> list[Shard]:
    """Return the rows of ranges as one shard, or those of a subpartition as one of each piece."""
    if pieces == 1:
        return [Shard(ranges)]
    return [Shard(ranges, Piece(number, pieces)) for number in range(pieces)]
