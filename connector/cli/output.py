"""What the commands share: name, exit statuses, arguments, and how they print.

Results go to stdout; errors, one line each, and progress go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from arrow_format.report import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from arrow_format.report import Report

PROGRAM = "arrow-shuffle"

FOUND_WRONG = 1
BAD_USAGE = 2

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Directory or URI of the shuffle.")
]
VersionOption = Annotated[
    str | None,
    typer.Option(
        "--version",
        metavar="NUMBER|TIME|TAG",
        help="A committed version: its number, '2026-11-20 12:00' for the newest by then, or its "
        "tag; the newest by default.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_DEFAULT_WIDTH = 80


def stdout() -> Console:
    """Return a console for results: colours only on a terminal, no markup."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.width < 1:
        # With COLUMNS=0, which some schedulers set, rich would print nothing.
        console.width = _DEFAULT_WIDTH
    return console


def print_json(value: dict[str, Any]) -> None:
    """Print JSON, one line per name, without control codes."""
    lines = (f"  {json.dumps(name)}: {json.dumps(item)}" for name, item in value.items())
    print("{\n" + ",\n".join(lines) + "\n}")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are, however long."""
    console = stdout()
    for line in lines:
        console.print(line, soft_wrap=True)


def show(report: Report, *, as_json: bool, seconds: float | None = None) -> None:
    """Print a report: JSON, or its text, with how long it took in the first line."""
    if as_json:
        print_json(report.as_json())
        return
    first, *rest = str(report).splitlines()
    print_lines([first if seconds is None else f"{first} ({seconds:.1f} s)", *rest])


def show_all(path: str, noun: str, reports: Sequence[Report], *, as_json: bool) -> None:
    """Print how many reports of a kind a path has, and each of them."""
    from arrow_format.read.presentation import count_of

    if as_json:
        print_json({"path": path, f"{noun}s": [report.as_json() for report in reports]})
        return
    print_lines(
        [f"{printable(path)}: {count_of(len(reports), noun)}", *(f"  {one}" for one in reports)]
    )


def print_error(message: str) -> None:
    """Print one line to stderr, or nothing where stderr was closed before the program began."""
    if sys.stderr is not None:  # print() would take stdout instead of None
        print(f"{PROGRAM}: {printable(message)}", file=sys.stderr)


@contextlib.contextmanager
def progress(title: str, num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal; yield the function that moves it.

    ``num_bytes`` is the total, or None where it is not known.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:  # a disabled bar of rich 13 still ends with an empty line
        yield lambda _: None
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=num_bytes)
        yield lambda more: bar.advance(task, more)
