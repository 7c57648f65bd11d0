"""The table for the terminal and the JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from integration.bench.results import NO_TARGET, PASS, SHORT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from integration.bench.results import Line, Part

COLUMNS = ("name", "this", "other", "ratio", "unit", "verdict")
_STYLES = {PASS: "green", SHORT: "bold red", NO_TARGET: ""}


def table_row(line: Line) -> tuple[str, ...]:
    """Text of each of :data:`COLUMNS`."""
    spread = ""
    if line.spread is not None and line.spread[0] != line.spread[1]:
        spread = f" ({line.spread[0]:.2f} to {line.spread[1]:.2f})"
    return (
        f"{line.case}: {line.what}",
        f"{line.ours} {_amount(line.ours_value)}",
        f"{line.other} {_amount(line.other_value)}",
        f"{line.ratio:.2f}{spread}",
        line.unit,
        "" if line.target is None else f"{line.verdict} ({line.target})",
    )


def table_of(part: Part) -> Table:
    """Lay out all lines of a part, a section for each case."""
    table = Table(*COLUMNS, title=part.title, title_justify="left", title_style="bold")
    previous_case = None
    for line in part.lines:
        if previous_case not in (None, line.case):
            table.add_section()
        table.add_row(*table_row(line), style=_STYLES[line.verdict])
        previous_case = line.case
    return table


def counts(parts: Iterable[Part]) -> dict[str, int]:
    """Count the lines that passed and that fell short."""
    verdicts = [line.verdict for part in parts for line in part.lines]
    return {PASS: verdicts.count(PASS), SHORT: verdicts.count(SHORT)}


def as_json(
    parts: Sequence[Part], *, settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return all that was measured as a document that JSON can hold.

    Seconds and bytes are plain numbers; a spread is ``[smallest, largest]``; what does not apply is
    null.
    """
    return {
        "format": 2,
        "settings": dict(settings),
        "environment": dict(environment),
        "verdicts": counts(parts),
        "parts": [
            {
                "name": part.name,
                "title": part.title,
                "notes": part.notes,
                "lines": [
                    {
                        **asdict(line),
                        "target": None if line.target is None else str(line.target),
                        "verdict": line.verdict or None,
                    }
                    for line in part.lines
                ],
                "timings": [
                    {
                        "case": case,
                        **asdict(timing),
                        "median_seconds": timing.median,
                        "best_seconds": timing.best,
                    }
                    for case, timings in part.timings.items()
                    for timing in timings
                ],
            }
            for part in parts
        ],
    }


def _amount(value: float) -> str:
    return f"{value:.2f}" if value < 100 and value != round(value) else f"{value:,.0f}"
