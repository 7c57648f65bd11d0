"""Charts for the terminal, with rich: bytes per subpartition as bars or columns.

They fit the given width, fall back to ASCII where the terminal has no more, and show the same shape
without colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Group
from rich.text import Text

from arrow_format.read.presentation import format_bytes, largest_of_groups
from arrow_format.report import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from arrow_format.model import Int64Array
    from connector.cli.inspection import SkewFacts

MAX_BARS = 16
"""Up to this many subpartitions get a bar each; more become columns."""

HEIGHT = 6
"""Lines of a column chart."""

_EIGHTHS_ACROSS = " ▏▎▍▌▋▊▉█"
_EIGHTHS_UP = " ▁▂▃▄▅▆▇█"
_ASCII_UP = "  ..::||#"
_USUAL = "cyan"
_LARGE = "yellow"
_LARGE_RATIO = 2.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of a bar chart."""

    label: str
    value: float
    note: str = ""
    large: bool = False


@dataclass(frozen=True, slots=True)
class BarChart:
    """Horizontal bars; the longest fills the width."""

    bars: Sequence[Bar]
    max_bar_width: int = 40

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        label_width = max(len(bar.label) for bar in self.bars)
        note_width = max(len(bar.note) for bar in self.bars)
        free = options.max_width - label_width - min(note_width, 32) - 6
        width = max(min(self.max_bar_width, free), 8)
        top = max(bar.value for bar in self.bars) or 1
        for bar in self.bars:
            eighths = round(bar.value / top * width * 8)
            drawn = _across(max(eighths, 1 if bar.value else 0), ascii_only=options.ascii_only)
            yield Text.assemble(
                ("  " + bar.label.rjust(label_width) + "  ", "bold" if bar.large else ""),
                (drawn.ljust(width), _LARGE if bar.large else _USUAL),
                "  " + bar.note,
                no_wrap=True,
                overflow="ellipsis",
            )


def _across(eighths: int, *, ascii_only: bool) -> str:
    if ascii_only:
        return "#" * -(-eighths // 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS_ACROSS[rest] if rest else "")


@dataclass(frozen=True, slots=True, eq=False)
class ColumnChart:
    """Values side by side, in order; too many share columns, each as high as its largest value."""

    values: Int64Array
    median: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        top = int(self.values.max())
        labels = {0: format_bytes(top), HEIGHT - 1: ""}
        median_line = HEIGHT - 1 - min(int(self.median / max(top, 1) * HEIGHT), HEIGHT - 1)
        if median_line > 0:
            labels[median_line] = f"median {format_bytes(self.median)}"
        label_width = max(map(len, labels.values()))
        max_columns = max(options.max_width - label_width - 5, 8)
        count = min(len(self.values), max_columns)
        heights = largest_of_groups(self.values, count)
        wide = max(max_columns // count, 1)
        eighths = np.where(heights > 0, np.maximum(heights * (HEIGHT * 8) // max(top, 1), 1), 0)
        levels = _ASCII_UP if options.ascii_only else _EIGHTHS_UP
        styles = np.where(heights > self.median * _LARGE_RATIO, _LARGE, _USUAL).tolist()
        tick, corner, line = ("|", "+", "-") if options.ascii_only else ("┤", "└", "─")
        for number in range(HEIGHT):
            filled = np.clip(eighths - (HEIGHT - 1 - number) * 8, 0, 8).tolist()
            label = labels.get(number, "")
            text = Text(f"  {label:>{label_width}} {tick}", no_wrap=True)
            for level, style in zip(filled, styles, strict=True):
                text.append(levels[level] * wide, style)
            text.rstrip()
            yield text
        yield Text(f"  {'':{label_width}} {corner}{line * (count * wide)}", no_wrap=True)
        last = str(len(self.values) - 1)
        shared = len(self.values) / count
        free = count * wide - 1 - len(last)
        axis = f"subpartition (a column is the largest of about {shared:,.0f})"
        if shared < 1.5 or len(axis) > free - 2:
            axis = "subpartition"
        caption = axis.center(max(free, 0))
        yield Text(f"  {'':{label_width}}  0{caption}{last}", no_wrap=True)


def skew_picture(
    rows: Int64Array,
    sizes: Int64Array,
    skew: SkewFacts,
    *,
    names: Mapping[int, str] | None = None,
) -> RenderableType:
    """Draw bytes per subpartition, the largest ones with their numbers, and a sentence below.

    ``names`` are texts to write next to subpartitions, such as the keys in them.
    """
    if not skew.largest:
        return _sentence(_all_empty(len(rows)))
    if len(rows) <= MAX_BARS:
        bars = [
            _bar(i, int(sizes[i]), int(rows[i]), skew.median_bytes, names) for i in range(len(rows))
        ]
        return Group(BarChart(bars), Text(), _sentence(skew_sentence(skew, len(rows))))
    largest = [
        _bar(large.subpartition, large.num_bytes, large.num_rows, skew.median_bytes, names)
        for large in skew.largest
    ]
    return Group(
        ColumnChart(sizes, skew.median_bytes),
        Text(),
        BarChart([*largest, Bar("median", skew.median_bytes, format_bytes(skew.median_bytes))]),
        Text(),
        _sentence(skew_sentence(skew, len(rows))),
    )


def _bar(
    subpartition: int,
    num_bytes: int,
    num_rows: int,
    median: float,
    names: Mapping[int, str] | None,
) -> Bar:
    note = f"{format_bytes(num_bytes):>8}  {num_rows:>9,} rows" if num_rows else "   empty"
    name = printable((names or {}).get(subpartition, ""))
    return Bar(
        str(subpartition),
        num_bytes,
        f"{note}  {name}" if name else note,
        large=num_bytes > median * _LARGE_RATIO,
    )


def _all_empty(num_subpartitions: int) -> str:
    if num_subpartitions == 1:
        return "The one subpartition is empty."
    return f"All {num_subpartitions:,} subpartitions are empty."


def _sentence(text: str) -> Text:
    """Return one line that is never broken, so that piped output can be searched."""
    return Text(f"  {text}", no_wrap=True, overflow="ignore")


def skew_sentence(skew: SkewFacts, num_subpartitions: int) -> str:
    """Describe in one line how uneven the subpartitions are."""
    if skew.largest_over_median is None:
        return _all_empty(num_subpartitions)
    if num_subpartitions == 1:
        return "There is one subpartition; nothing is uneven."
    largest = skew.largest[0]
    ratio = skew.largest_over_median
    sentence = (
        f"Largest is subpartition {largest.subpartition}: {format_bytes(largest.num_bytes)}, "
        f"{ratio:,.{1 if ratio < 100 else 0}f} x the median of {format_bytes(skew.median_bytes)}"
    )
    if skew.num_empty:
        sentence += f"; {skew.num_empty:,} of {num_subpartitions:,} are empty"
    return sentence + "."
