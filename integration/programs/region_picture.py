"""Map outputs as strips of their regions, on a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from arrow_format.read.presentation import count_of, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from arrow_format.model import Int64Array


@dataclass(frozen=True, slots=True)
class Strip:
    """One map output as a strip of its regions."""

    label: str
    region_bytes: Sequence[int]
    note: str = ""


@dataclass(frozen=True, slots=True)
class StripChart:
    """One strip per map output; each region is a piece as long as its bytes."""

    strips: Sequence[Strip]
    max_strip_width: int = 44

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label_width = max(len(strip.label) for strip in self.strips)
        note_width = max(len(strip.note) for strip in self.strips)
        width = max(min(self.max_strip_width, options.max_width - label_width - note_width - 6), 8)
        top = max(sum(strip.region_bytes) for strip in self.strips) or 1
        full, light = ("#", "=") if options.ascii_only else ("█", "▒")
        for strip in self.strips:
            ends = np.cumsum([0, *strip.region_bytes]) * width // top
            text = Text("  " + strip.label.rjust(label_width) + "  ", no_wrap=True)
            drawn = 0
            for number, (start, end) in enumerate(pairwise(ends.tolist())):
                piece = max(end - start, 1)
                drawn += piece
                text.append(
                    (light if number % 2 else full) * piece, "blue" if number % 2 else "cyan"
                )
            text.append(" " * max(width - drawn, 0) + "  " + strip.note)
            text.truncate(options.max_width, overflow="ellipsis")
            yield text


def region_picture(regions: Sequence[Sequence[Int64Array]], *, most: int = 8) -> RenderableType:
    """Map outputs as strips of regions.

    Parameters
    ----------
    regions
        Map output, then region, then bytes per chunk; see
        :func:`connector.cli.inspection.region_bytes`.
    most
        Map outputs to draw; of the others only the number is told.
    """
    strips = []
    for number, output in enumerate(regions[:most]):
        sizes = [int(chunks.sum()) for chunks in output]
        note = f"{count_of(len(sizes), 'region')}, {count_of(sum(map(len, output)), 'chunk')}"
        strips.append(Strip(f"map output {number}", sizes, f"{note}, {format_bytes(sum(sizes))}"))
    if not strips:
        return Text("  No map task had any rows.")
    parts: list[RenderableType] = [StripChart(strips)]
    if len(regions) > most:
        parts.append(Text(f"  ... and {len(regions) - most:,} more"))
    return Group(*parts)
