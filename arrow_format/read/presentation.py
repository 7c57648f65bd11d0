"""Numbers, and what is known of rows per subpartition, for people: text, HTML and a picture."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    import pyarrow as pa

    from arrow_format.model import Int64Array

MAX_BARS = 120
"""More subpartitions than these share bars."""

BAR_WIDTH, PICTURE_HEIGHT = 4, 60


def format_bytes(num_bytes: float) -> str:
    """``num_bytes`` for people: ``1.5 MB``, powers of 1000."""
    if num_bytes < 999.5:
        return f"{num_bytes:.0f} B"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 999.95:  # more would be rounded to 1000.0
            return f"{num_bytes:.1f} {unit}"
    return f"{num_bytes / 1000:.1f} TB"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def scaled_note(num_subpartitions: int, rescaled_to: int | None) -> str | None:
    """Return by how many subpartitions a version is read, where that is fewer than was asked for.

    None where it is not: there was no rescale, or merges have made it true.
    """
    if rescaled_to in (None, num_subpartitions):
        return None
    return (
        f"read by {count_of(num_subpartitions, 'subpartition')}, the most that divide those of all "
        f"files; a merge makes it {rescaled_to:,}"
    )


def duration_text(duration: timedelta) -> str:
    """Write a duration in the largest unit that gives a whole number."""
    total = int(duration.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if total and total % length == 0:
            return f"{total // length}{unit}"
    return f"{total}s"


def size_facts(
    num_rows: int, num_bytes: int, num_map_outputs: int, subpartition_rows: pa.Int64Array
) -> list[tuple[str, str]]:
    """Return names and values: what a write added, or what a version has."""
    rows = subpartition_rows.to_numpy()
    return [
        ("rows", f"{num_rows:,}"),
        ("on disk", format_bytes(num_bytes)),
        ("map outputs", f"{num_map_outputs:,}"),
        ("subpartitions", f"{len(rows):,} ({np.count_nonzero(rows == 0):,} empty)"),
        ("rows in largest", f"{rows.max(initial=0):,}"),
    ]


def html_table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, escaped."""
    cells = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table>{cells}</table>"


def html_of_schema(schema: pa.Schema) -> str:
    """Return a table of columns and types, folded."""
    columns = html_table(
        (field.name, f"{field.type}{'' if field.nullable else ' not null'}") for field in schema
    )
    return f"<details><summary>{count_of(len(schema), 'column')}</summary>{columns}</details>"


def html_skew(subpartition_rows: pa.Int64Array) -> str:
    """Return a picture of the rows of each subpartition, from the left; the largest is the highest.

    Many subpartitions share bars, each as high as its largest.
    """
    rows = subpartition_rows.to_numpy()
    bars = largest_of_groups(rows, min(len(rows), MAX_BARS))
    top = max(int(bars.max()), 1)
    drawn = "".join(
        f"M{BAR_WIDTH * i} {PICTURE_HEIGHT}h{BAR_WIDTH - 1}v{-height}h{1 - BAR_WIDTH}z"
        for i, height in enumerate((-(-bars * PICTURE_HEIGHT // top)).tolist())
        if height
    )
    title = f"rows of {count_of(len(subpartition_rows), 'subpartition')}, at most {top:,}"
    width = BAR_WIDTH * len(bars)
    return (
        f'<svg role="img" width="{width}" height="{PICTURE_HEIGHT}" '
        f'viewBox="0 0 {width} {PICTURE_HEIGHT}"><title>{title}</title>'
        f'<path fill="currentColor" d="{drawn}"/></svg>'
    )


def largest_of_groups(values: Int64Array, num_groups: int) -> Int64Array:
    """Return the largest value of each of ``num_groups`` groups of nearly equal size, in order."""
    starts = np.arange(num_groups, dtype=np.int64) * len(values) // num_groups
    largest: Int64Array = np.maximum.reduceat(values, starts)
    return largest
