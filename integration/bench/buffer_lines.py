"""Lines of the table on buffered outputs, from timings by label. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Line, Timing, amount_line, cost_line, speed_line

if TYPE_CHECKING:
    from collections.abc import Mapping

COUNTED = "buffered, then counted"
GATHER = "gather"
BUFFERED = "buffered, then a map output"
UNBUFFERED = "unbuffered, a map output"

NS_PER_ROW = 100
"""What buffering a row may take beside a gather of it."""


def buffer_lines(
    case: str,
    timings: Mapping[str, Timing],
    *,
    rows: tuple[int, int],
    updates: int,
    has_cost_target: bool,
) -> list[Line]:
    """Lines on one number of updates per key and interval.

    Parameters
    ----------
    case
        What was buffered.
    timings
        By label.
    rows
        How many went in and came out.
    updates
        Updates per key and interval.
    has_cost_target
        Whether what an interval holds fits into memory, as the target takes for granted.
    """
    taken, emitted = rows
    counted, gather = _by_cpu(timings[COUNTED]), _by_cpu(timings[GATHER])
    allowed = replace(
        gather,
        label=f"{NS_PER_ROW} ns and a gather",
        seconds=tuple(one + NS_PER_ROW * 1e-9 * taken for one in gather.seconds),
    )
    return [
        amount_line(
            case,
            "rows downstream, all = 1",
            ("buffered", emitted),
            ("all", taken),
            "rows",
            targets.rows_downstream(updates),
        ),
        replace(
            cost_line(
                case,
                f"time per row, {NS_PER_ROW} ns and a gather = 1",
                _per_row(counted, taken),
                _per_row(allowed, taken),
                targets.BUFFER_AGAINST_ALLOWED if has_cost_target else None,
                best=True,
            ),
            unit="ns",
        ),
        speed_line(
            case, "speed, unbuffered = 1", timings[BUFFERED], timings[UNBUFFERED], best=True
        ),
    ]


def _by_cpu(timing: Timing) -> Timing:
    """Processor time in the place of wall time: others use the machine as well."""
    return replace(timing, seconds=timing.cpu_seconds, cpu_seconds=())


def _per_row(timing: Timing, num_rows: int) -> Timing:
    return replace(timing, seconds=tuple(one * 1e9 / num_rows for one in timing.seconds))
