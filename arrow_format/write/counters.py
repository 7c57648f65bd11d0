"""What a map task did, in numbers: reported in its map status, the log and the receipt.

Times are nanoseconds of wall clock, sizes bytes. Source: Flink's ``numBytesOut`` and
``numBuffersOut``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(slots=True)
class MapCounters:
    """Counters of one map task, or the sum over several."""

    num_batches: int = 0
    """Batches that came in, after normalisation. One with rows for one subpartition and rows for
    all counts for both."""
    num_rows: int = 0
    """Rows stored; a broadcast row counts once."""
    raw_bytes: int = 0
    """Bytes of the rows as Arrow holds them in memory."""
    stored_bytes: int = 0
    """Bytes of the data files."""
    num_regions: int = 0
    num_broadcast_regions: int = 0
    """Those of the regions that every subpartition reads."""
    full_buffer_flushes: int = 0
    """Regions written because the next rows did not fit."""
    switch_flushes: int = 0
    """Regions written because rows for one subpartition followed rows for all, or the reverse."""
    final_flushes: int = 0
    """Regions written because there were no more rows."""
    large_row_flushes: int = 0
    """Regions of a single row that is larger than the buffer."""
    large_batches: int = 0
    """Batches larger than an empty buffer, which became regions of their own."""
    merged_regions: int = 0
    """Regions that were joined into fewer at the end of the task; ``num_regions`` are those left.
    """
    failed_rewrites: int = 0
    """Attempts to join regions at the end of the task that failed; the files stayed as they were.
    """
    failed_directories: int = 0
    """Directories given up, or left out from the start, because they were full or broken."""
    partition_ns: int = 0
    """Finding the subpartition of each row."""
    gather_ns: int = 0
    """Collecting batches, ordering rows and gathering columns."""
    encode_ns: int = 0
    """Cutting, compressing and checksumming chunks."""
    write_ns: int = 0
    """Handing bytes to the file system, and fsync."""
    merge_ns: int = 0
    """Joining regions at the end of the task, successful or not."""

    def as_dict(self) -> dict[str, int]:
        """Counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def sum_counters(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up counters by name; names that one of them lacks count 0 there."""
    total: dict[str, int] = {}
    for counters in several:
        for name, count in counters.items():
            total[name] = total.get(name, 0) + count
    return total
