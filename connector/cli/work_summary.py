"""What the map tasks of a version did, in a few lines; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEPS = {
    "partition_ns": "finding subpartitions",
    "gather_ns": "collecting and gathering",
    "encode_ns": "encoding",
    "write_ns": "writing",
    "merge_ns": "merging",
}
_CAUSES = {
    "full_buffer_flushes": "full buffer",
    "switch_flushes": "change between one and all",
    "final_flushes": "end of a task",
    "large_row_flushes": "a row larger than the buffer",
}


def work_lines(counters: Mapping[str, int]) -> list[str]:
    """Say where time went and why regions were written; nothing where nothing was counted.

    Parameters
    ----------
    counters
        Sums over map outputs, see :class:`arrow_format.write.counters.MapCounters`; names may be
        missing.
    """
    lines = []
    times = {what: counters.get(name, 0) for name, what in _STEPS.items()}
    if total := sum(times.values()):
        shares = [f"{what} {ns / total:.0%}" for what, ns in times.items() if ns]
        lines.append(f"{total / 1e9:.1f} s in map tasks: {', '.join(shares)}")
    flushes = [f"{what} {counters[name]:,}" for name, what in _CAUSES.items() if counters.get(name)]
    if flushes:
        lines.append(f"buffers written because of: {', '.join(flushes)}")
    if large := counters.get("large_batches", 0):
        lines.append(f"batches larger than the buffer: {large:,}")
    if failed := counters.get("failed_rewrites", 0):
        lines.append(f"map outputs whose regions could not be joined: {failed:,}")
    if failed := counters.get("failed_directories", 0):
        lines.append(f"directories given up, full or broken: {failed:,}")
    return lines
