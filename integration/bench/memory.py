"""Peak memory and open files of one map task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from integration.bench import targets
from integration.bench.child import run_in_child
from integration.bench.lineitem import ipc_stream
from integration.bench.results import Line, Part, Target, Timing, amount_line
from integration.bench.streaming import INPUTS, stream_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

MIB = 1 << 20
MOST_SUBPARTITIONS = 20_000


def memory_limit(base_bytes: int, sort_buffer_bytes: int, largest_batch_bytes: int) -> int:
    """Bytes that a map task may take at most, as users are promised."""
    return base_bytes + sort_buffer_bytes * 5 // 4 + 64 * MIB + largest_batch_bytes


def memory_lines(case: str, found: Mapping[str, Any]) -> list[Line]:
    """Lines of the table on one stream; ``found`` is the answer of ``stream_once``."""
    limit = memory_limit(
        found["base_bytes"], found["sort_buffer_bytes"], found["largest_batch_bytes"]
    )
    lines = [
        amount_line(
            case,
            f"peak RSS / limit (base {found['base_bytes'] / MIB:.0f} MiB)",
            ("peak", found["peak_bytes"] / MIB),
            ("limit", limit / MIB),
            "MiB",
            targets.PEAK_MEMORY,
        ),
    ]
    if found["open_files"] is not None:
        lines.append(
            amount_line(
                case,
                "open files / most allowed",
                ("open", found["open_files"]),
                ("allowed", targets.MAX_OPEN_FILES),
                "files",
                Target(at_most=1),
            )
        )
    return lines


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
