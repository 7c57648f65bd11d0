"""What ``inspect``, ``head`` and ``verify`` show on a terminal."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from connector.cli.output import print_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from rich.console import Console, RenderableType

    from arrow_format.read.verify import VerifyReport
    from connector.cli.inspection import ShuffleFacts

MAX_COLUMNS = 24
"""Columns that ``inspect`` lists; ``--json`` lists all."""

MAX_VERSIONS = 8
"""Versions that ``inspect`` lists, up to the one it shows; ``--json`` lists all."""

MAX_CELL = 32
"""Characters of a cell that ``head`` shows."""


def show_facts(console: Console, facts: ShuffleFacts) -> None:
    """Print what ``inspect`` found."""
    from arrow_format.jobs.receipt import count_of, format_bytes
    from connector.cli.charts import printable, skew_picture
    from connector.cli.inspection import order_text, partitioner_text, result_lines
    from connector.cli.summaries import work_lines

    def line(text: RenderableType = "", style: str | None = None) -> None:
        console.print(text, style=style, soft_wrap=True)

    def title(text: str) -> None:
        line()
        line(text, "bold")

    line(printable(facts.path), "bold")
    partitioner = printable(partitioner_text(facts.partitioner))
    line(
        f"  version {facts.version}, {count_of(facts.num_rows, 'row')} in "
        f"{count_of(facts.num_subpartitions, 'subpartition')} by {partitioner}, "
        + (f"sorted by {printable(order_text(facts.sort_by))}, " if facts.sort_by else "")
        + f"format version {facts.format_version}"
    )
    for text in result_lines(facts):
        line(f"  {text}")

    title("Versions")
    numbers = [one.version for one in facts.versions]
    end = len(numbers)
    if facts.version in numbers[:-MAX_VERSIONS]:
        end = numbers.index(facts.version) + 1
    shown = facts.versions[max(end - MAX_VERSIONS, 0) : end]
    table = [("version", "operation", "rows", "on disk", "map outputs", "committed")]
    table += [
        (
            str(one.version),
            one.operation,
            f"{one.num_rows:,}",
            format_bytes(one.num_bytes),
            f"{one.num_map_outputs:,}",
            _local_time(one.committed_at),
        )
        for one in shown
    ]
    _show_table(line, table, left=(1, 5), marks=["", *("*" if one.live else "" for one in shown)])
    if end > len(shown):
        line(f"  ... and {end - len(shown):,} earlier")
    if end < len(numbers):
        line(f"  ... and {len(numbers) - end:,} later")
    if len(shown) > 1:
        line(f"  * makes up version {facts.version}")

    title("Layout")
    sizes, layout = facts.sizes, facts.layout
    line(
        f"  {format_bytes(sizes.data_bytes)} on disk for {format_bytes(sizes.raw_bytes)} of Arrow"
        + (f" ({sizes.data_bytes / sizes.raw_bytes:.2f})" if sizes.raw_bytes else "")
        + f", and {format_bytes(sizes.index_bytes)} of index"
    )
    cut = [
        count_of(layout.num_map_outputs, "map output"),
        count_of(layout.num_files, "file"),
        count_of(layout.num_regions, "region"),
    ]
    if layout.num_chunks:
        mean = format_bytes(sizes.data_bytes / layout.num_chunks)
        cut.append(f"{count_of(layout.num_chunks, 'chunk')} of {mean} on average")
    line("  " + ", ".join(cut))
    for text in work_lines(facts.counters):
        line(f"  {text}")
    for directory in facts.directories:
        line(f"  also in {printable(directory)}")

    title(f"Columns ({len(facts.columns):,})")
    listed = facts.columns[:MAX_COLUMNS]
    width = max((len(printable(column.name)) for column in listed), default=0)
    for column in listed:
        suffix = "" if column.nullable else " not null"
        line(f"  {printable(column.name):{width}}  {cell_text(column.type)}{suffix}")
    if len(facts.columns) > len(listed):
        line(f"  ... and {len(facts.columns) - len(listed):,} more; --json lists all")

    title("Bytes per subpartition")
    console.print(
        skew_picture(facts.subpartition_rows, facts.subpartition_bytes, facts.skew), crop=False
    )


def _local_time(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else ""


def _show_table(
    line: Callable[[str], None],
    table: Sequence[Sequence[str]],
    *,
    left: Sequence[int],
    marks: Sequence[str],
) -> None:
    """Print rows of text with aligned columns; numbers stand at the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for mark, row in zip(marks, table, strict=True):
        cells = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        line(f"{mark:>1} {'  '.join(cells)}".rstrip())


def show_rows(console: Console, table: pa.Table, caption: str) -> None:
    """Print rows as a table: all columns, but on a terminal and of no rows as many as fit."""
    import pyarrow as pa

    from connector.cli.charts import printable

    names = [printable(name) for name in table.column_names]
    cells = [column_cells(column) for column in table.columns]
    widths = [
        max([len(name), *map(len, column)]) for name, column in zip(names, cells, strict=True)
    ]
    room = console.width - 2 if console.is_terminal or not table.num_rows else None
    count = columns_that_fit(widths, room)
    numeric = [
        pa.types.is_integer(field.type)
        or pa.types.is_floating(field.type)
        or pa.types.is_decimal(field.type)
        for field in table.schema
    ]

    def row(texts: Sequence[str]) -> str:
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        )
        return ("  " + "  ".join(list(padded)[:count])).rstrip()

    console.print(row(names), style="bold", soft_wrap=True)
    for values in zip(*cells, strict=True):
        console.print(row(values), soft_wrap=True)
    if count < len(names):
        caption += f"; {len(names) - count} more columns do not fit, choose with --columns"
    console.print(f"  ({caption})", style="dim", soft_wrap=True)


def cell_text(value: object) -> str:
    """Return a value as one short line for a table."""
    from connector.cli.charts import printable

    text = printable(str(value))
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def column_cells(column: pa.ChunkedArray) -> list[str]:
    """Return the values of a column as short lines."""
    from connector.cli.value_text import value_text

    return [cell_text(value_text(value, MAX_CELL)) for value in column]


def columns_that_fit(widths: Sequence[int], room: int | None) -> int:
    """How many columns, from the left, fit beside each other; at least one.

    Parameters
    ----------
    widths
        Characters of each column.
    room
        Characters of a line; None when it does not end.
    """
    if room is None:
        return len(widths)
    used = 0
    for count, width in enumerate(widths):
        used += width + 2
        if used > room and count:
            return count
    return len(widths)


def show_report(console: Console, report: VerifyReport, seconds: float) -> None:
    """Print what ``verify`` found, a line for every problem."""
    from arrow_format.jobs.receipt import count_of, format_bytes
    from connector.cli.charts import printable

    checked = (
        f"{count_of(report.num_files, 'file')}, {count_of(report.num_chunks, 'chunk')}, "
        f"{count_of(report.num_rows, 'row')}, {format_bytes(report.num_bytes)}"
    )
    where = f"{printable(report.path)} version {report.version}"
    if report.ok:
        console.print(f"{where}: sound ({checked}, {seconds:.1f} s)", soft_wrap=True)
        return
    for problem in report.problems:
        console.print(f"{type(problem).__name__}: {printable(str(problem))}", soft_wrap=True)
    print_error(f"{where}: {count_of(len(report.problems), 'problem')} found; sound are {checked}")
