"""Lines of the table on time per row, from timings by label. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Line, Target, Timing, row_cost_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUMBERS = (10, 200, 2_000, 20_000)
"""Numbers of subpartitions; the last is held against the first."""

MILLIONS = (1, 10, 100)
"""Millions of rows streamed; the last is held against the first."""


def number_label(codec: str, n: int) -> str:
    """Label of our write at ``n`` subpartitions."""
    return f"ours {codec}, n = {n:,}"


def rows_label(codec: str, num_rows: int) -> str:
    """Label of our write of ``num_rows`` rows."""
    return f"ours {codec}, {num_rows:,} rows"


def number_lines(case: str, codec: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on more subpartitions: all against the fewest."""
    few, *more = [timings[number_label(codec, n)] for n in NUMBERS]
    return _against_first(
        case, "time per row, fewest = 1", few, more, targets.MANY_SUBPARTITIONS_AGAINST_FEW
    )


def rows_lines(case: str, codec: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on longer streams: all against the shortest."""
    ours = [t for label, t in timings.items() if label.startswith(f"ours {codec},")]
    few, *more = sorted(ours, key=lambda timing: timing.num_rows or 0)
    return _against_first(
        case, "time per row, shortest = 1", few, more, targets.MANY_ROWS_AGAINST_FEW
    )


def _against_first(
    case: str, what: str, few: Timing, more: Sequence[Timing], target: Target
) -> list[Line]:
    """Only the last of ``more`` carries the target."""
    return [
        row_cost_line(case, what, timing, few, target if timing is more[-1] else None)
        for timing in more
    ]
