"""The engine on one core, against other writers of partitioned data."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from integration.bench import targets
from integration.bench.child import run_in_child
from integration.bench.contenders import CONTENDERS, read_once, write_once
from integration.bench.lineitem import ipc_stream
from integration.bench.results import (
    Line,
    Part,
    Timing,
    amount_line,
    cost_line,
    fastest,
    speed_line,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

UNPARTITIONED = "unpartitioned IPC"
OURS = {"none": "ours none", "zstd": "ours zstd"}
PEERS = {
    "none": ("pyarrow dataset IPC", "Polars IPC", "DuckDB Parquet", "DuckDB Parquet snappy"),
    "zstd": (
        "pyarrow dataset IPC zstd",
        "Polars IPC zstd",
        "DuckDB Parquet snappy",
        "DuckDB Parquet zstd",
    ),
}
"""Partitioned writers that codecs ``none`` and ``zstd`` are held against."""

MOST_PYARROW_DIRECTORIES = 1_000
"""Beyond, ``write_dataset`` writes a file per few rows and takes minutes."""


def contenders(n: int, codecs: Iterable[str], *, slow: bool) -> list[str]:
    """Labels of all who write at ``n`` subpartitions, in the order of the table."""
    wanted = {UNPARTITIONED}
    for codec in codecs:
        wanted |= {OURS[codec], f"{OURS[codec]}, sync", *PEERS[codec]}
    if n > MOST_PYARROW_DIRECTORIES and not slow:
        wanted = {label for label in wanted if not label.startswith("pyarrow")}
    return [label for label in CONTENDERS if label in wanted]


def write_lines(
    n: int, codecs: Iterable[str], timings: Mapping[str, Timing], raw_bytes: int
) -> list[Line]:
    """Lines of the table on writing at ``n`` subpartitions."""
    case = f"write, n = {n:,}"
    goals = {"none": targets.ENGINE_NONE_AGAINST_PEERS, "zstd": targets.ENGINE_ZSTD_AGAINST_PEERS}
    lines = []
    for codec in codecs:
        ours = timings[OURS[codec]]
        peers = [timings[label] for label in PEERS[codec] if label in timings]
        best = fastest(peers)
        for peer in peers:
            target = goals[codec].get(n) if peer is best else None
            what = "speed / fastest peer's" if peer is best else "speed / peer's"
            lines.append(speed_line(case, what, ours, peer, target))
        target = targets.ENGINE_NONE_AGAINST_IPC.get(n) if codec == "none" else None
        lines.append(
            speed_line(case, "speed / unpartitioned IPC's", ours, timings[UNPARTITIONED], target)
        )
        synced = timings[f"{OURS[codec]}, sync"]
        lines.append(cost_line(case, "time with fsync / without", synced, ours))
    for label, timing in timings.items():
        lines.append(
            amount_line(
                case,
                f"bytes on disk / in memory ({timing.num_files:,} files)",
                (label, (timing.num_bytes or 0) / 1e6),
                ("Arrow batches", raw_bytes / 1e6),
                "MB",
            )
        )
    return lines


def read_lines(n: int, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines of the table on reading everything."""
    limit = timings[UNPARTITIONED]
    return [
        cost_line(f"read all, n = {n:,}", "verified read / plain IPC read", timing, limit)
        for label, timing in timings.items()
        if label != UNPARTITIONED
    ]


def run(
    scale: float,
    *,
    numbers: Iterable[int],
    codecs: tuple[str, ...],
    repeat: int,
    scratch: Path,
    slow: bool,
    step: Callable[[str], None],
) -> Part:
    """Measure the engine; ``step`` is told what comes next."""
    step("making the input")
    rows = str(ipc_stream(scale))
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    notes = [
        "one core, a fresh process per round, in turns; peers are given the subpartition of each "
        "row, ours computes it",
    ]
    for n in numbers:
        labels = contenders(n, codecs, slow=slow)
        if "pyarrow dataset IPC" not in labels and "none" in codecs:
            notes.append(f"n = {n:,}: pyarrow's write_dataset takes minutes; --slow includes it")
        answers: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
        for number, order in enumerate(turns(labels, repeat), 1):
            for label in order:
                step(f"engine, write, n = {n:,}, round {number}: {label}")
                where = scratch / f"{len(answers[label])}-{label.replace(' ', '-')}"
                answers[label].append(
                    run_in_child(
                        write_once,
                        contender=label,
                        rows=rows,
                        scratch=str(where),
                        num_subpartitions=n,
                    )
                )
        written = {label: _timing(label, found) for label, found in answers.items()}
        raw_bytes = answers[labels[0]][0]["raw_bytes"]
        read = _read(n, codecs, rows, repeat, scratch, step)
        lines += [*write_lines(n, codecs, written, raw_bytes), *read_lines(n, read)]
        timings[f"write, n = {n}"] = tuple(written.values())
        timings[f"read, n = {n}"] = tuple(read.values())
    title = f"Engine, one core, lineitem SF {scale:g} by l_orderkey"
    return Part("engine", title, tuple(lines), timings, tuple(notes))


def _read(
    n: int,
    codecs: Iterable[str],
    rows: str,
    repeat: int,
    scratch: Path,
    step: Callable[[str], None],
) -> dict[str, Timing]:
    labels = [*(OURS[codec] for codec in codecs), UNPARTITIONED]
    kept = {label: scratch / f"read-{label.replace(' ', '-')}" for label in labels}
    answers: dict[str, list[dict[str, Any]]] = {label: [] for label in labels}
    try:
        for label, where in kept.items():
            step(f"engine, read, n = {n:,}: writing {label}")
            run_in_child(
                write_once,
                contender=label,
                rows=rows,
                scratch=str(where),
                num_subpartitions=n,
                keep=True,
            )
        for number, order in enumerate(turns(labels, repeat), 1):
            for label in order:
                step(f"engine, read, n = {n:,}, round {number}: {label}")
                answers[label].append(
                    run_in_child(read_once, contender=label, scratch=str(kept[label]))
                )
    finally:
        for where in kept.values():
            shutil.rmtree(where, ignore_errors=True)
    found = {answer["num_rows"] for several in answers.values() for answer in several}
    if len(found) != 1:
        msg = f"n = {n}: readers disagree on the number of rows: {sorted(found)}"
        raise RuntimeError(msg)
    return {label: _timing(label, several) for label, several in answers.items()}


def _timing(label: str, answers: list[dict[str, Any]]) -> Timing:
    return Timing(
        label,
        tuple(answer["seconds"] for answer in answers),
        answers[0].get("num_bytes"),
        answers[0].get("num_files"),
    )
