"""What the commands of ``arrow-shuffle`` share: its name, exit statuses, arguments."""

from __future__ import annotations

from typing import Annotated

import typer

PROGRAM = "arrow-shuffle"

FOUND_WRONG = 1
BAD_USAGE = 2

PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Directory or URI of the shuffle.")
]
VersionOption = Annotated[
    int | None, typer.Option("--version", help="A committed version; the newest when left out.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
