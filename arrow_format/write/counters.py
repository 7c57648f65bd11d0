"""What a map task did, in numbers: reported in its map status, in the log and receipt as sums.

Times are nanoseconds of wall clock, sizes bytes. Apart from the modules that count, because
commits, merges and the command add counters up too. Source: Flink's ``numBytesOut`` and
``numBuffersOut``.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(slots=True)
class MapCounters:
    """Counters of one map task, or the sum over several.

    With threads, the times overlap, and that of a step includes other steps that its thread worked
    on while it waited.
    """

    num_batches: int = 0
    """Batches received, after normalisation. A batch with both unicast and broadcast rows counts
    twice."""
    combined_rows: int = 0
    """Rows that were combined into others of their key, and are not stored."""
    num_rows: int = 0
    """Rows stored; a broadcast row counts once."""
    raw_bytes: int = 0
    """Bytes of the rows as Arrow holds them in memory."""
    stored_bytes: int = 0
    """Bytes of the data files."""
    num_regions: int = 0
    num_broadcast_regions: int = 0
    """Those of ``num_regions`` that every subpartition reads."""
    full_buffer_flushes: int = 0
    """Regions written because the next rows did not fit."""
    switch_flushes: int = 0
    """Regions written because broadcast rows followed unicast rows, or the reverse."""
    final_flushes: int = 0
    """Regions written at the end of the task."""
    large_row_flushes: int = 0
    """Regions of a single row that is larger than the buffer."""
    large_batches: int = 0
    """Batches larger than an empty buffer, which became separate regions."""
    merged_regions: int = 0
    """Regions joined into fewer at the end of the task; ``num_regions`` counts the result."""
    failed_rewrites: int = 0
    """Failed attempts to join regions at the end of the task; the files stayed as they were."""
    failed_directories: int = 0
    """Directories not used, or no longer used, because they were full or broken."""
    partition_ns: int = 0
    """Finding the subpartition of each row."""
    gather_ns: int = 0
    """Buffering batches, combining and ordering rows, and gathering columns."""
    encode_ns: int = 0
    """Cutting, compressing and checksumming chunks."""
    write_ns: int = 0
    """Handing bytes to the file system, and fsync."""
    merge_ns: int = 0
    """Joining regions at the end of the task, successful or not."""

    @contextmanager
    def time(
        self, step: Literal["partition", "gather", "encode", "write", "merge"]
    ) -> Iterator[None]:
        """Add the time that the block takes to ``<step>_ns``, also where it raises."""
        started = time.perf_counter_ns()
        try:
            yield
        finally:
            name = f"{step}_ns"
            setattr(self, name, getattr(self, name) + time.perf_counter_ns() - started)

    def as_dict(self) -> dict[str, int]:
        """Return the counters by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def sum_counters(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of counters by name; one that is missing counts 0."""
    total = MapCounters().as_dict()
    for counters in several:
        for name, count in counters.items():
            total[name] = total.get(name, 0) + count
    return total
