"""How commands print: results to stdout; errors, one line each, and progress to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from connector.cli.app import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console

_USUAL_WIDTH = 80


def stdout() -> Console:
    """Console for results: colours only on a terminal, text as it is."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.width < 1:
        # COLUMNS=0, as some schedulers set it: nothing at all would be printed.
        console.width = _USUAL_WIDTH
    return console


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
    """Print one line to stderr; nowhere else if that was closed before the program began."""
    from connector.cli.charts import printable

    if sys.stderr is None:  # print() would take stdout
        return
    print(f"{PROGRAM}: {printable(message)}", file=sys.stderr)


@contextlib.contextmanager
def progress(title: str, num_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, if that is a terminal; yield the function that moves it.

    Parameters
    ----------
    title
        What is going on.
    num_bytes
        How many there are in all; None when nobody knows.
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
