"""Who is measured on reading, and the lines of the table from their timings. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Line, Timing, amount_line, cost_line, speed_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

COLUMNS = ("l_extendedprice", "l_shipmode")
"""The few columns: a decimal and a text."""

MAP_OUTPUTS = 50
POINT_SUBPARTITIONS = 20_000
POINTS = 100
"""Subpartitions that are read one by one."""

FEW = ", 2 columns"
KINDS = {"ours": "shuffle", "IPC": "file", "mapped IPC": "mapped"}
"""What stands before the codec in a label, and how it is read."""


def labels_of(codecs: Iterable[str]) -> list[str]:
    """Labels of all that is read, in the order of the first round."""
    return [
        f"{kind} {codec}{columns}" for codec in codecs for columns in ("", FEW) for kind in KINDS
    ]


def source_of(label: str) -> tuple[str, str, list[str] | None]:
    """Codec, kind (``shuffle``, ``file`` or ``mapped``) and columns of a label."""
    kind, _, codec = label.removesuffix(FEW).rpartition(" ")
    return codec, KINDS[kind], [*COLUMNS] if label.endswith(FEW) else None


def read_lines(case: str, codecs: Iterable[str], timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading everything, and a few columns of it."""
    lines = []
    for codec in codecs:
        for columns in ("", FEW):
            ours = timings[f"ours {codec}{columns}"]
            target = None if columns else targets.READ_AGAINST_IPC
            for kind in ("IPC", "mapped IPC"):
                peer = timings[f"{kind} {codec}{columns}"]
                what = f"speed, {kind}{columns} = 1"
                lines.append(speed_line(case, what, ours, peer, target, best=True))
                target = None
        few, everything = timings[f"ours {codec}{FEW}"], timings[f"ours {codec}"]
        lines.append(cost_line(case, "time, all columns = 1", few, everything, best=True))
    return lines


def point_lines(timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on reading one subpartition: its time and the bytes read, against the whole."""
    case = f"one of {POINT_SUBPARTITIONS:,}, {MAP_OUTPUTS} map outputs"
    whole, *points = timings.values()
    lines = []
    for point in points:
        line = cost_line(case, "time, all rows = 1", point, whole, best=True)
        milliseconds = {"ours_value": 1e3 * line.ours_value, "other_value": 1e3 * line.other_value}
        lines.append(replace(line, unit="ms", **milliseconds))
        lines.append(
            amount_line(
                case,
                "bytes read, of all files = 1",
                (point.label, (point.num_bytes or 0) / 1e6),
                (whole.label, (whole.num_bytes or 0) / 1e6),
                "MB",
            )
        )
    return lines
