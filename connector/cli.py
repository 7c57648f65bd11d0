"""The command ``arrow-shuffle``: look at a shuffle, take a few rows of it, check every byte.

Exit status 0; 1 for what was found wrong (damage, not a shuffle, not there); 2 for bad usage.
Results go to stdout; errors, one line each, and progress go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arrow_format.errors import OptionError, SchemaError, ShuffleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from rich.console import Console, RenderableType

    from arrow_format.verify import VerifyReport
    from connector.inspection import ShuffleFacts

PROGRAM = "arrow-shuffle"

FOUND_WRONG = 1
BAD_USAGE = 2

MAX_COLUMNS = 24
"""Columns that ``inspect`` lists; ``--json`` lists all."""

MAX_VERSIONS = 8
"""Versions that ``inspect`` lists; ``--json`` lists all."""

MAX_CELL = 32
"""Characters of a cell that ``head`` shows."""

app = typer.Typer(
    name=PROGRAM,
    help="Look at shuffles written by arrow-shuffle, without Spark.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="Directory of the shuffle.")]
VersionOption = Annotated[
    int | None, typer.Option("--version", help="A committed version; the newest when left out.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version of this program.")
    ] = False,
) -> None:
    if show_version:
        from importlib.metadata import version

        from arrow_format.model import FORMAT_VERSION

        print(f"{PROGRAM} {version(PROGRAM)}, format version {FORMAT_VERSION}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def inspect(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Show schema, versions, sizes, layout and how evenly rows are spread."""
    from arrow_format.dataset import open_shuffle
    from connector.inspection import facts_as_json, inspect_shuffle

    facts = inspect_shuffle(open_shuffle(path, version))
    if as_json:
        print_json(facts_as_json(facts))
    else:
        show_facts(stdout(), facts)
    problems = [v.problem for v in facts.versions if v.problem]
    if facts.layout.problem:
        problems.append(facts.layout.problem)
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(FOUND_WRONG)


@app.command()
def head(
    path: PathArgument,
    subpartition: Annotated[int, typer.Option(help="The subpartition to read.")],
    rows: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 10,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to show; all when left out.")
    ] = None,
    version: VersionOption = None,
) -> None:
    """Show the first rows of one subpartition."""
    from arrow_format.dataset import open_shuffle

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    shuffle = open_shuffle(path, version)
    table = first_rows(shuffle.subpartition(subpartition, names), rows)
    total = shuffle.subpartition_rows[subpartition].as_py()
    show_rows(
        stdout(), table, f"{table.num_rows:,} of {total:,} rows of subpartition {subpartition}"
    )


@app.command()
def plan(
    path: PathArgument,
    subpartitions: Annotated[
        str | None, typer.Option(metavar="3,7-9", help="Subpartitions to read; all when left out.")
    ] = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which bytes of which files reading some subpartitions reads."""
    from arrow_format.dataset import open_shuffle
    from connector.plan_summary import read_plan_as_json, read_plan_lines
    from connector.source_options import parse_subpartitions

    wanted = None if subpartitions is None else parse_subpartitions(subpartitions)
    shuffle = open_shuffle(path, version)
    found = shuffle.plan(wanted)
    if as_json:
        print_json(read_plan_as_json(found))
    else:
        show_result(read_plan_lines(found, shuffle.num_bytes))


@app.command()
def verify(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Read a whole version and check every checksum and count."""
    from arrow_format.dataset import open_shuffle
    from connector.inspection import report_as_json

    shuffle = open_shuffle(path, version)
    started = time.perf_counter()
    with progress(f"Checking {shuffle.path}", shuffle.num_bytes) as advance:
        report = shuffle.verify(
            raise_on_damage=False, on_file=lambda output: advance(output.num_bytes)
        )
    if as_json:
        print_json(report_as_json(report))
    else:
        show_report(stdout(), report, time.perf_counter() - started)
    if not report.ok:
        raise typer.Exit(FOUND_WRONG)


@app.command()
def merge(
    path: PathArgument,
    rewrite: Annotated[
        str,
        typer.Option(
            metavar="auto|always|never",
            help="Whether regions are joined, or only copied into fewer files.",
        ),
    ] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be merged and change nothing.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Merge map outputs into fewer files and regions, as a new version of the same rows."""
    from arrow_format.dataset import open_shuffle
    from arrow_format.merge_job import merge_shuffle, plan_merge
    from arrow_format.merge_policy import MergePolicy
    from connector.merge_summary import plan_as_json, plan_lines, report_as_json, report_lines

    policy = MergePolicy(rewrite=rewrite)
    plan = plan_merge(open_shuffle(path), policy)
    if dry_run:
        show_result(plan_as_json(plan) if as_json else plan_lines(plan))
        return
    started = time.perf_counter()
    with progress(f"Merging {plan.path}", plan.num_bytes) as advance:
        report = merge_shuffle(path, policy=policy, on_bytes=advance)
    seconds = time.perf_counter() - started
    show_result(report_as_json(report) if as_json else report_lines(report, seconds))


@app.command(context_settings=_ANY_ARGUMENTS)
def gc() -> None:
    """Remove versions and files nobody needs (not supported yet)."""
    _not_yet("gc")


@app.command(context_settings=_ANY_ARGUMENTS)
def bench() -> None:
    """Measure engine and Spark (not supported yet; 'make bench' in a clone does)."""
    _not_yet("bench", "; run 'make bench' in a clone of the project")


def _not_yet(command: str, instead: str = "") -> None:
    msg = f"not supported yet: {command}{instead}"
    raise OptionError(msg)


def first_rows(reader: pa.RecordBatchReader, num_rows: int) -> pa.Table:
    """Return up to ``num_rows`` rows from the start of ``reader``, which is closed then."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    missing = num_rows
    with reader:
        for batch in reader:
            held.append(batch.slice(0, missing))
            missing -= held[-1].num_rows
            if missing == 0:
                break
    return pa.Table.from_batches(held, schema=reader.schema)


def cell_text(value: object) -> str:
    """Return a value as one short line for a table."""
    from connector.picture import printable

    text = "null" if value is None else printable(str(value))
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def column_cells(column: pa.ChunkedArray) -> list[str]:
    """Return the values of a column as short lines."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        # Arrow knows more years than Python does.
        column = column.cast(pa.string())
    return [cell_text(value if value.is_valid else None) for value in column]


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


def stdout() -> Console:
    """Console for results: colours only on a terminal, text as it is."""
    from rich.console import Console

    return Console(highlight=False, markup=False, emoji=False)


def print_json(value: dict[str, Any]) -> None:
    """Print JSON, one line per name, with no control codes wherever it goes."""
    lines = (f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
    print("{\n" + ",\n".join(lines) + "\n}")


def show_result(result: dict[str, Any] | Sequence[str]) -> None:
    """Print lines, or JSON."""
    if isinstance(result, dict):
        print_json(result)
        return
    console = stdout()
    for line in result:
        console.print(line, soft_wrap=True)


def print_error(message: str) -> None:
    """Print one line to stderr."""
    from connector.picture import printable

    print(f"{PROGRAM}: {printable(message)}", file=sys.stderr)


@contextlib.contextmanager
def progress(title: str, num_bytes: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal; yield the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task(title, total=num_bytes)
        yield lambda more: bar.advance(task, more)


def show_facts(console: Console, facts: ShuffleFacts) -> None:
    """Print what ``inspect`` found."""
    from arrow_format.receipt import format_bytes
    from connector.inspection import order_text, partitioner_text
    from connector.picture import count_of, printable, skew_picture
    from connector.work_summary import work_lines

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

    title("Versions")
    shown = facts.versions[-MAX_VERSIONS:]
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
    if len(facts.versions) > len(shown):
        line(f"  ... and {len(facts.versions) - len(shown):,} earlier")
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
    """Print rows as a table, as many columns as fit; all when it is no terminal."""
    import pyarrow as pa

    from connector.picture import printable

    names = [printable(name) for name in table.column_names]
    cells = [column_cells(column) for column in table.columns]
    widths = [
        max([len(name), *map(len, column)]) for name, column in zip(names, cells, strict=True)
    ]
    room = console.width - 2 if console.is_terminal else None
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


def show_report(console: Console, report: VerifyReport, seconds: float) -> None:
    """Print what ``verify`` found, a line for every problem."""
    from arrow_format.receipt import format_bytes
    from connector.picture import count_of, printable

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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    arguments
        Those of the process when None.

    Returns
    -------
    int
        Exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A path may hold bytes that are no text.
            stream.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(app)
        status = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=PROGRAM,
            standalone_mode=False,
        )
        sys.stdout.flush()
    except (OptionError, SchemaError) as error:
        print_error(f"{type(error).__name__}: {error}")
        return BAD_USAGE
    except ShuffleError as error:
        print_error(f"{type(error).__name__}: {error}")
        return FOUND_WRONG
    except BrokenPipeError:
        # Whoever read the output has seen enough; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FOUND_WRONG
    except Exception as error:
        return _other_error(error)
    return int(status or 0)


def _other_error(error: Exception) -> int:
    """Exit status for an error that is not ours, after one line about it."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        # Bad usage: the class is click's or typer's own, depending on typer's version.
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", PROGRAM)
        print_error(f"{format_message().rstrip('.')}. Try '{command} --help'.")
        return int(getattr(error, "exit_code", BAD_USAGE))
    if isinstance(error, typer.Abort):
        print_error("interrupted")
        return 130
    print_error(f"unexpected {type(error).__name__}: {error}")
    return FOUND_WRONG


if __name__ == "__main__":
    sys.exit(main())
