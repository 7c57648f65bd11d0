"""The command ``arrow-shuffle``: inspect, verify, merge and clean up shuffles without Spark.

Exit status: 0; 1 for damage or where there is no shuffle; 2 for bad usage; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from arrow_format.errors import OptionError, SchemaError, ShuffleError
from connector.cli.delete import delete
from connector.cli.doctor import doctor
from connector.cli.inspect_commands import head, inspect, plan, verify
from connector.cli.maintain import consumers, drop, flush, gc, merge, release
from connector.cli.output import BAD_USAGE, FOUND_WRONG, PROGRAM, print_error
from connector.cli.versions import alter, relocate, repair, rescale, rollback, tag, tags

if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERRUPTED = 130
_CLOSED_PIPE = 141
"""As of a program that SIGPIPE ends; 1 would say that something is damaged."""

app = typer.Typer(
    name=PROGRAM,
    help="Inspect, verify, merge and clean up shuffles, without Spark.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version of this program.")
    ] = False,
) -> None:
    if show_version:
        from arrow_format import __version__
        from arrow_format.model import FORMAT_VERSION

        print(f"{PROGRAM} {__version__}, format version {FORMAT_VERSION}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


app.command()(inspect)
app.command()(head)
app.command()(plan)
app.command()(verify)
app.command()(merge)
app.command()(delete)
app.command()(gc)
app.command()(consumers)
app.command()(release)
app.command()(drop)
app.command()(flush)
app.command()(rollback)
app.command()(alter)
app.command()(rescale)
app.command()(tag)
app.command()(tags)
app.command()(repair)
app.command()(relocate)
app.command()(doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with ``arguments``, by default those of the process; return exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A path may hold bytes that are not text.
            stream.reconfigure(errors="backslashreplace")
    try:
        command = typer.main.get_command(app)
        status = command.main(
            args=None if arguments is None else list(arguments),
            prog_name=PROGRAM,
            standalone_mode=False,
        )
        if sys.stdout is not None:  # None when it was closed before the program began
            sys.stdout.flush()
    except (OptionError, SchemaError) as error:
        print_error(f"{type(error).__name__}: {error}")
        return BAD_USAGE
    except ShuffleError as error:
        print_error(f"{type(error).__name__}: {error}")
        return FOUND_WRONG
    except BrokenPipeError:
        # The reader of the output has closed it; nothing may be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CLOSED_PIPE
    except SystemExit as error:  # which click raises of a closed pipe, with status 1
        if isinstance(error.__context__, BrokenPipeError):
            return _CLOSED_PIPE
        raise
    except (KeyboardInterrupt, typer.Abort):
        status = _INTERRUPTED
    except Exception as error:
        return _other_error(error)
    if status == _INTERRUPTED:  # typer's answer to Ctrl-C, which prints nothing
        print_error("interrupted")
    return int(status or 0)


def _other_error(error: Exception) -> int:
    """Print one line about an error that is not ours; return the exit status."""
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        # Bad usage: the class is click's or typer's own, depending on typer's version.
        context = getattr(error, "ctx", None)
        command = getattr(context, "command_path", PROGRAM)
        message = format_message().rstrip(".")
        ended = message if message.endswith("?") else f"{message}."
        print_error(f"{ended} Try '{command} --help'.")
        return int(getattr(error, "exit_code", BAD_USAGE))
    print_error(f"unexpected {type(error).__name__}: {error}")
    return FOUND_WRONG
