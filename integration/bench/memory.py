"""Peak memory and open files of one map task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.bench.child import run_in_child
from integration.bench.lineitem import ipc_stream
from integration.bench.memory_lines import memory_lines
from integration.bench.results import Line, Part, Timing
from integration.bench.streaming import INPUTS, stream_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOST_SUBPARTITIONS = 20_000


def run(
    scale: float,
    *,
    codecs: tuple[str, ...],
    num_bytes: int,
    scratch: Path,
    step: Callable[[str], None],
) -> Part:
    """Measure memory; ``step`` is told what comes next."""
    step("making the input")
    rows = str(ipc_stream(scale))
    lines: list[Line] = []
    timings: dict[str, tuple[Timing, ...]] = {}
    cases = [(label, 200) for label in INPUTS] + [("lineitem", MOST_SUBPARTITIONS)]
    for codec in codecs:
        for rows_like, n in cases:
            case = f"{rows_like}, {codec}, n = {n:,}"
            step(f"memory: {case}")
            found = run_in_child(
                stream_once,
                rows_like=rows_like,
                rows=rows,
                scratch=str(scratch / "stream"),
                num_subpartitions=n,
                codec=codec,
                num_bytes=num_bytes,
            )
            lines += memory_lines(case, found)
            timings[case] = (Timing("ours", (found["seconds"],), found["stored_bytes"]),)
    title = f"One map task, {num_bytes / 1e9:g} GB streamed through it, default options"
    note = "limit: base after one tiny flush + 1.25 x sort buffer + 64 MiB + the largest batch"
    return Part("memory", title, tuple(lines), timings, (note,))
