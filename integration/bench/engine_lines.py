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
    one_after_the_other,
    runs_again,
    speed_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

UNPARTITIONED = "unpartitioned IPC"
ZSTD_ALONE = "zstd of its chunks"
"""Compressing the chunks of a finished shuffle again, and nothing else."""

OURS = {"none": "ours none", "zstd": "ours zstd"}
PYARROW = {"none": "pyarrow dataset IPC", "zstd": "pyarrow dataset IPC zstd"}
PEERS = {
    "none": (PYARROW["none"], "Polars IPC", "DuckDB Parquet", "DuckDB Parquet snappy"),
    "zstd": (PYARROW["zstd"], "Polars IPC zstd", "DuckDB Parquet snappy", "DuckDB Parquet zstd"),
}
"""Partitioned writers that each of our codecs is held against."""

MOST_PYARROW_DIRECTORIES = 1_000
"""Beyond, ``write_dataset`` is several times as slow as the others."""

MOST_DUCKDB_FORMATS = 2_000
"""Beyond, DuckDB takes a minute or more, and only its default compression is measured."""

DUCKDB_FORMATS = ("DuckDB Parquet", "DuckDB Parquet zstd")

LONG_ROUND_SECONDS = 20
"""A peer whose rounds all take longer runs only twice."""


def synced(codec: str) -> str:
    """Label of our write with fsync."""
    return f"{OURS[codec]}, sync"


def contenders(n: int, codecs: Iterable[str], *, slow: bool, with_sync: bool = True) -> list[str]:
    """Labels of all who write at ``n`` subpartitions, in the order in which they first run."""
    codecs = tuple(codecs)
    labels: list[str] = []
    for codec in codecs:
        labels += [OURS[codec], *([synced(codec)] if with_sync else []), *PEERS[codec]]
    unwanted: set[str] = set()
    if not slow:
        unwanted |= set(PYARROW.values()) if n > MOST_PYARROW_DIRECTORIES else set()
        unwanted |= set(DUCKDB_FORMATS) if n > MOST_DUCKDB_FORMATS else set()
    labels = [label for label in labels if label not in unwanted]
    if set(OURS) <= set(codecs):
        labels.append(ZSTD_ALONE)
    return list(dict.fromkeys([*labels, UNPARTITIONED]))


def peer_runs_again(label: str, seconds: Sequence[float]) -> bool:
    """Whether a contender takes part in the next round, after rounds of so many ``seconds``."""
    is_peer = any(label in peers for peers in PEERS.values())
    return not is_peer or runs_again(seconds, long_round=LONG_ROUND_SECONDS)


def write_lines(
    case: str, n: int, codecs: Iterable[str], timings: Mapping[str, Timing]
) -> list[Line]:
    """Lines on the time of writing, by the best rounds; the fastest peer carries the target."""
    goals = {"none": targets.ENGINE_NONE_AGAINST_PEERS, "zstd": targets.ENGINE_ZSTD_AGAINST_PEERS}
    lines = []
    for codec in codecs:
        ours = timings[OURS[codec]]
        peers = [timings[label] for label in PEERS[codec] if label in timings]
        first = fastest(peers)
        for peer in peers:
            target = goals[codec].get(n) if peer is first else None
            what = "speed, fastest peer = 1" if peer is first else "speed, peer = 1"
            lines.append(speed_line(case, what, ours, peer, target, best=True))
        target = targets.ENGINE_NONE_AGAINST_IPC.get(n) if codec == "none" else None
        plain = timings[UNPARTITIONED]
        lines.append(speed_line(case, "speed, plain IPC = 1", ours, plain, target, best=True))
        with_sync = timings.get(synced(codec))
        if with_sync is not None:
            lines.append(cost_line(case, "time, without fsync = 1", with_sync, ours, best=True))
    if ZSTD_ALONE in timings:
        parts = one_after_the_other(
            f"none + {ZSTD_ALONE}", timings[OURS["none"]], timings[ZSTD_ALONE]
        )
        target = targets.ZSTD_AGAINST_ITS_PARTS
        lines.append(
            cost_line(
                case, "time, sum of parts = 1", timings[OURS["zstd"]], parts, target, best=True
            )
        )
    return lines


def size_lines(
    case: str, codecs: Iterable[str], timings: Mapping[str, Timing], raw_bytes: int
) -> list[Line]:
    """Lines on bytes on disk, as a multiple of those in memory."""
    unwanted = {ZSTD_ALONE, *(synced(codec) for codec in codecs)}
    return [
        amount_line(
            case,
            f"bytes, in memory = 1 (files: {timing.num_files:,})",
            (label, (timing.num_bytes or 0) / 1e6),
            ("Arrow", raw_bytes / 1e6),
            "MB",
        )
        for label, timing in timings.items()
        if label not in unwanted
    ]


def read_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading everything."""
    plain = timings[UNPARTITIONED]
    return [
        cost_line(case, "time, plain IPC = 1", timing, plain, best=True)
        for label, timing in timings.items()
        if label != UNPARTITIONED
    ]
