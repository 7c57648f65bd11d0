"""Tables for the terminal and the JSON document. Pure, but for printing what it is handed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.table import Table

from integration.bench.results import NO_TARGET, PASS, SHORT, STEPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from integration.bench.results import Line, Part, Profile, Timing

COLUMNS = ("case", "ratio of", "ours", "other", "ratio", "rounds", "cpu", "target", "")
PROFILE_COLUMNS = ("case", "ours", "total", *STEPS, "rest", "regions", "ns per row")
_STYLES = {PASS: "green", SHORT: "bold red", NO_TARGET: ""}


def table_row(line: Line) -> tuple[str, ...]:
    """Text of each of :data:`COLUMNS`."""
    spread = "" if line.spread is None else f"{line.spread[0]:.2f} to {line.spread[1]:.2f}"
    return (
        line.case,
        line.what,
        f"{line.ours} {_amount(line.ours_value, line.unit)}",
        f"{line.other} {_amount(line.other_value, line.unit)}",
        f"{line.ratio:.2f}",
        spread,
        "" if line.cpu_ratio is None else f"{line.cpu_ratio:.2f}",
        "" if line.target is None else str(line.target),
        line.verdict,
    )


def table_of(part: Part) -> Table:
    """Lay out all lines of a part; a case is named on its first line only."""
    table = Table(*COLUMNS, title=part.title, title_justify="left", title_style="bold")
    for name in ("ratio", "rounds", "cpu"):
        table.columns[COLUMNS.index(name)].justify = "right"
    before = None
    for line in part.lines:
        row = table_row(line)
        if before is not None and line.case != before:
            table.add_section()
        first = line.case if line.case != before else ""
        table.add_row(first, *row[1:], style=None if not line.verdict else _STYLES[line.verdict])
        before = line.case
    return table


def profile_row(profile: Profile) -> tuple[str, ...]:
    """Text of each of :data:`PROFILE_COLUMNS`; times are milliseconds, then their share."""
    num_rows = profile.counters.get("num_rows", 0)
    return (
        profile.case,
        profile.label,
        f"{profile.seconds * 1e3:,.0f}",
        *(f"{s * 1e3:,.0f} ({s / profile.seconds:.0%})" for s in profile.steps.values()),
        str(profile.counters.get("num_regions", 0)),
        f"{profile.seconds * 1e9 / num_rows:.0f}" if num_rows else "",
    )


def profile_table(part: Part) -> Table:
    """Lay out where the time of our writes went."""
    title = "Where the time goes: milliseconds of our fastest round"
    table = Table(*PROFILE_COLUMNS, title=title, title_justify="left", title_style="bold")
    for column in table.columns[2:]:
        column.justify = "right"
    for profile in part.profiles:
        table.add_row(*profile_row(profile))
    return table


def counts(parts: Iterable[Part]) -> dict[str, int]:
    """How many lines passed and how many fell short."""
    verdicts = [line.verdict for part in parts for line in part.lines]
    return {PASS: verdicts.count(PASS), SHORT: verdicts.count(SHORT)}


def as_json(
    parts: Sequence[Part], *, settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that was measured, as a document that JSON can hold.

    Seconds and bytes are plain numbers; a spread is ``[smallest, largest]``; what does not apply is
    null.
    """
    return {
        "format": 1,
        "settings": dict(settings),
        "environment": dict(environment),
        "verdicts": counts(parts),
        "parts": [
            {
                "name": part.name,
                "title": part.title,
                "notes": list(part.notes),
                "lines": [_line(line) for line in part.lines],
                "profiles": [
                    {**asdict(profile), "steps": profile.steps} for profile in part.profiles
                ],
                "timings": [
                    {"case": case, **_timing(timing)}
                    for case, timings in part.timings.items()
                    for timing in timings
                ],
            }
            for part in parts
        ],
    }


def _line(line: Line) -> dict[str, Any]:
    fields = asdict(line)
    fields["spread"] = None if line.spread is None else list(line.spread)
    fields["target"] = None if line.target is None else str(line.target)
    return {**fields, "verdict": line.verdict or None}


def _timing(timing: Timing) -> dict[str, Any]:
    return {
        "label": timing.label,
        "seconds": list(timing.seconds),
        "median_seconds": timing.median,
        "best_seconds": timing.best,
        "cpu_seconds": list(timing.cpu_seconds),
        "num_bytes": timing.num_bytes,
        "num_files": timing.num_files,
        "num_rows": timing.num_rows,
    }


def _amount(value: float, unit: str) -> str:
    if unit == "files":
        return f"{value:.0f}"
    return f"{value:.2f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
