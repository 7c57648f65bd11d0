"""What ``inspect`` and ``head`` show on a terminal, and values of Arrow as text."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import types as pt
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from arrow_format.keys.combination import combine_text
from arrow_format.read.presentation import count_of, format_bytes
from arrow_format.report import printable
from connector.cli.charts import skew_picture
from connector.cli.inspection import order_text, partitioner_text, result_lines, work_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console, RenderableType

    from connector.cli.inspection import ShuffleFacts

MAX_COLUMNS = 24
"""Columns that ``inspect`` lists; ``--json`` lists all."""

MAX_VERSIONS = 8
"""Versions that ``inspect`` lists, up to the one it shows; ``--json`` lists all."""

MAX_CELL = 32
"""Characters of a cell that ``head`` shows."""

_NO_VALUE = (pa.ArrowException, ArithmeticError, LookupError, TypeError, ValueError)
"""What PyArrow raises for values that Python lacks: year 10000, unknown zones, invalid UTF-8."""


def show_facts(console: Console, facts: ShuffleFacts) -> None:
    """Print what ``inspect`` read."""

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
        + (f"combined by {printable(combine_text(facts.combine))}, " if facts.combine else "")
        + (f"rows identified by {printable(', '.join(facts.unique))}, " if facts.unique else "")
        + f"format version {facts.format_version}"
    )
    for text in result_lines(facts):
        line(f"  {text}")

    title("Versions")
    numbers = [entry.version for entry in facts.versions]
    end = len(numbers)
    if facts.version in numbers[:-MAX_VERSIONS]:
        end = numbers.index(facts.version) + 1
    shown = facts.versions[max(end - MAX_VERSIONS, 0) : end]
    table = _table(
        ["", "version", "operation", "rows", "on disk", "map outputs", "committed"],
        [False, True, False, True, True, True, False],
    )
    for entry in shown:
        table.add_row(
            "*" if entry.live else "",
            str(entry.version),
            entry.operation,
            f"{entry.num_rows:,}",
            format_bytes(entry.num_bytes),
            f"{entry.num_map_outputs:,}",
            _local_time(entry.committed_at),
        )
    _print_table(console, table, indent=0)
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
    parts = [
        count_of(layout.num_map_outputs, "map output"),
        count_of(layout.num_files, "file"),
        count_of(layout.num_regions, "region"),
    ]
    if layout.num_chunks:
        mean = format_bytes(sizes.data_bytes / layout.num_chunks)
        parts.append(f"{count_of(layout.num_chunks, 'chunk')} of {mean} on average")
    line("  " + ", ".join(parts))
    if layout.num_masked_rows:
        line(f"  {count_of(layout.num_masked_rows, 'row')} masked: on disk, and not read")
    for directory in facts.directories:
        line(f"  also in {printable(directory)}")

    work = work_lines(facts.counters)
    if work:
        title(f"Tasks that wrote version {facts.version}")
    for text in work:
        line(f"  {text}")

    title(f"Columns ({len(facts.columns):,})")
    listed = facts.columns[:MAX_COLUMNS]
    table = _table(None, [False, False])
    for column in listed:
        suffix = "" if column.nullable else " not null"
        table.add_row(printable(column.name), cell_text(column.type) + suffix)
    _print_table(console, table)
    if len(facts.columns) > len(listed):
        line(f"  ... and {len(facts.columns) - len(listed):,} more; --json lists all")

    title("Bytes per subpartition")
    console.print(
        skew_picture(facts.subpartition_rows, facts.subpartition_bytes, facts.skew), crop=False
    )


def _local_time(iso: str) -> str:
    return f"{datetime.fromisoformat(iso).astimezone():%Y-%m-%d %H:%M:%S}" if iso else ""


def show_rows(console: Console, rows: pa.Table, caption: str) -> None:
    """Print rows as a table: all columns, or on a terminal, and of no rows, as many as fit."""
    names = [printable(name) for name in rows.column_names]
    cells = [column_cells(column) for column in rows.columns]
    count = len(names)
    if console.is_terminal or not rows.num_rows:
        widths = (
            max(map(cell_len, [name, *column])) + 2
            for name, column in zip(names, cells, strict=True)
        )
        count = max(1, sum(end + 2 <= console.width for end in accumulate(widths)))
    is_number = [
        pt.is_integer(type_) or pt.is_floating(type_) or pt.is_decimal(type_)
        for type_ in rows.schema.types
    ]
    table = _table(names[:count], is_number[:count])
    for row in zip(*cells[:count], strict=True):
        table.add_row(*row)
    _print_table(console, table)
    if count < len(names):
        caption += f"; {len(names) - count} more columns do not fit, choose with --columns"
    console.print(f"  ({caption})", style="dim", soft_wrap=True)


def cell_text(value: object) -> str:
    """Return a value as one short line for a table."""
    text = printable(str(value))
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def column_cells(column: pa.ChunkedArray) -> list[str]:
    """Return the values of a column as short lines."""
    return [cell_text(value_text(value, MAX_CELL)) for value in column]


def _table(header: Sequence[str] | None, is_number: Iterable[bool]) -> Table:
    """Return a table without lines, its numbers at the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=header is not None)
    for name, right in zip(header or repeat(""), is_number, strict=False):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    return table


def _print_table(console: Console, table: Table, indent: int = 2) -> None:
    """Print a table at its full width; where output is piped, lines may be longer than usual."""
    wide = console.options.update(max_width=1 << 20)
    width = console.measure(table, options=wide).maximum
    for cells in console.render_lines(table, console.options.update(width=width), pad=False):
        line = Text.assemble(*((cell.text, cell.style or "") for cell in cells))
        line.rstrip()
        console.print(Text(" " * indent) + line, soft_wrap=True)


def value_text(value: pa.Scalar, max_length: int) -> str:
    """Return a value of any stored type as text; lists and the like as Python writes them.

    Text ends somewhere after ``max_length`` characters, so that a list of millions costs little.
    """
    text = ""
    for part in _parts(value, max_length, is_inner=False):
        text += part
        if len(text) > max_length:
            break
    return text


def _parts(value: Any, max_length: int, *, is_inner: bool) -> Iterator[str]:  # noqa: ANN401
    """Yield the text of a value from left to right; lazily, so that its reader can stop."""
    type_ = value.type
    if not value.is_valid:
        yield "None" if is_inner else "null"
    elif isinstance(value, pa.ExtensionScalar | pa.DictionaryScalar):
        yield from _parts(value.value, max_length, is_inner=is_inner)
    elif isinstance(value, pa.ListScalar):
        of_item = _entry if pt.is_map(type_) else partial(_parts, is_inner=True)
        items = (of_item(item, max_length) for item in _items(value.values))
        yield from _joined("[", items, "]")
    elif isinstance(value, pa.StructScalar):
        fields = (_field(value, number, max_length) for number in range(type_.num_fields))
        yield from _joined("{", fields, "}")
    else:
        yield _plain_text(value, max_length, is_inner=is_inner)


def _items(values: pa.Array) -> Iterator[pa.Scalar]:
    return (values[number] for number in range(len(values)))


def _entry(entry: Any, max_length: int) -> Iterator[str]:  # noqa: ANN401
    sides = (_parts(entry[side], max_length, is_inner=True) for side in (0, 1))
    return _joined("(", sides, ")")


def _field(value: Any, number: int, max_length: int) -> Iterator[str]:  # noqa: ANN401
    yield f"{value.type.field(number).name!r}: "
    yield from _parts(value[number], max_length, is_inner=True)


def _joined(start: str, items: Iterable[Iterable[str]], end: str) -> Iterator[str]:
    yield start
    for number, item in enumerate(items):
        if number:
            yield ", "
        yield from item
    yield end


def _plain_text(value: Any, max_length: int, *, is_inner: bool) -> str:  # noqa: ANN401
    type_ = value.type
    if pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_):
        text = _bytes(value, 4 * (max_length + 1)).decode(errors="replace")
        return repr(text) if is_inner else text
    if pt.is_temporal(type_) and not (pt.is_duration(type_) or pt.is_interval(type_)):
        return _time_text(value)
    if isinstance(value, pa.BinaryScalar):
        return str(_bytes(value, max_length + 1))
    try:
        return str(value.as_py())
    except _NO_VALUE:
        return f"{value.value} {type_.unit}" if pt.is_duration(type_) else f"<{type_}>"


def _bytes(value: Any, max_length: int) -> bytes:  # noqa: ANN401
    return bytes(value.as_buffer()[:max_length])


def _time_text(value: Any) -> str:  # noqa: ANN401
    """Return a date, time or timestamp as Arrow writes it: its range is wider than Python's."""
    type_ = value.type
    try:
        return str(value.cast(pa.string()).as_py())
    except _NO_VALUE:
        pass
    try:
        # The time zone is not known here: show the instant.
        return str(value.cast(pa.timestamp(type_.unit, "UTC")).cast(pa.string()).as_py())
    except _NO_VALUE:
        return f"{value.value} {type_}"
