"""Who is measured on the engine, and the lines of the table from their timings. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import (
    Line,
    Timing,
    amount_line,
    cost_line,
    fastest,
    speed_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

UNPARTITIONED = "unpartitioned IPC"
OURS = {"none": "ours none", "zstd": "ours zstd"}
PYARROW = {"none": "pyarrow dataset IPC", "zstd": "pyarrow dataset IPC zstd"}
PEERS = {
    "none": (PYARROW["none"], "Polars IPC", "DuckDB Parquet", "DuckDB Parquet snappy"),
    "zstd": (PYARROW["zstd"], "Polars IPC zstd", "DuckDB Parquet snappy", "DuckDB Parquet zstd"),
}
"""Partitioned writers that each of our codecs is held against."""

MOST_PYARROW_DIRECTORIES = 1_000
"""Beyond, ``write_dataset`` is several times as slow as the others."""


def synced(codec: str) -> str:
    """Label of our write with fsync."""
    return f"{OURS[codec]}, sync"


def contenders(n: int, codecs: Iterable[str], *, slow: bool) -> list[str]:
    """Labels of all who write at ``n`` subpartitions, in the order in which they first run."""
    labels: list[str] = []
    for codec in codecs:
        labels += [OURS[codec], synced(codec), *PEERS[codec]]
    if n > MOST_PYARROW_DIRECTORIES and not slow:
        labels = [label for label in labels if label not in PYARROW.values()]
    return list(dict.fromkeys([*labels, UNPARTITIONED]))


def write_lines(n: int, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on the time of writing; the fastest peer carries the target."""
    case = f"write, n = {n:,}"
    goals = {"none": targets.ENGINE_NONE_AGAINST_PEERS, "zstd": targets.ENGINE_ZSTD_AGAINST_PEERS}
    lines = []
    for codec in codecs:
        ours = timings[OURS[codec]]
        peers = [timings[label] for label in PEERS[codec] if label in timings]
        best = fastest(peers)
        for peer in peers:
            target = goals[codec].get(n) if peer is best else None
            what = "speed, fastest peer = 1" if peer is best else "speed, peer = 1"
            lines.append(speed_line(case, what, ours, peer, target))
        target = targets.ENGINE_NONE_AGAINST_IPC.get(n) if codec == "none" else None
        lines += [
            speed_line(case, "speed, plain IPC = 1", ours, timings[UNPARTITIONED], target),
            cost_line(case, "time, without fsync = 1", timings[synced(codec)], ours),
        ]
    return lines


def size_lines(
    n: int, codecs: Iterable[str], timings: Mapping[str, Timing], raw_bytes: int
) -> list[Line]:
    """Lines on bytes on disk, as a multiple of those in memory."""
    unwanted = {synced(codec) for codec in codecs}
    return [
        amount_line(
            f"size, n = {n:,}",
            f"bytes, in memory = 1 (files: {timing.num_files:,})",
            (label, (timing.num_bytes or 0) / 1e6),
            ("Arrow", raw_bytes / 1e6),
            "MB",
        )
        for label, timing in timings.items()
        if label not in unwanted
    ]


def read_lines(n: int, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading everything."""
    plain = timings[UNPARTITIONED]
    return [
        cost_line(f"read all, n = {n:,}", "time, plain IPC = 1", timing, plain)
        for label, timing in timings.items()
        if label != UNPARTITIONED
    ]
