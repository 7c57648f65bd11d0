"""Commands that read a shuffle and change nothing: inspect, head, plan, verify."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from arrow_format.errors import OptionError, ShuffleNotFoundError
from arrow_format.report import builtins_of, printable
from connector.cli.output import (
    FOUND_WRONG,
    JsonOption,
    PathArgument,
    VersionOption,
    print_error,
    print_json,
    print_lines,
    progress,
    show,
    stdout,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.read.shuffle import Shuffle

WhereOption = Annotated[
    str | None,
    typer.Option(
        metavar="CONDITION",
        help="Only rows for which it is true, in SQL: \"day >= '2024-06-01'\". Timestamps that "
        "name no zone are UTC.",
    ),
]


def inspect(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Show schema, versions, sizes, layout and skew."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.inspection import inspect_shuffle, pending_facts

    try:
        shuffle = open_shuffle(path, version)
    except ShuffleNotFoundError:
        pending = pending_facts(path) if version is None else None
        if pending is None or not pending.num_commits:
            raise
        show(pending, as_json=as_json)
        return
    facts = inspect_shuffle(shuffle)
    if as_json:
        print_json(builtins_of(facts))
    else:
        from connector.cli.tables import show_facts

        show_facts(stdout(), facts)
    problems = [v.problem for v in facts.versions if v.problem]
    if facts.layout.problem:
        problems.append(facts.layout.problem)
    for problem in problems:
        print_error(problem)
    if problems:
        raise typer.Exit(FOUND_WRONG)


def head(
    path: PathArgument,
    subpartition: Annotated[
        int | None, typer.Option(help="The subpartition to read; all by default.")
    ] = None,
    where: WhereOption = None,
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Show rows of this key: once for each partition key, or several times.",
        ),
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 10,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to show; all by default.")
    ] = None,
    version: VersionOption = None,
) -> None:
    """Show the first rows of a shuffle, of a subpartition, of a condition or of a key."""
    from arrow_format.read.presentation import count_of
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.tables import show_rows

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    shuffle = open_shuffle(path, version)
    if key:
        if where is not None:
            msg = "--key and --where: give one of them"
            raise OptionError(msg)

        shuffle = shuffle.where(shuffle.bound_keys(parse_keys(key)))
    shuffle = where_of(shuffle, where)
    table = first_rows(shuffle.read(subpartition, names), rows)
    what = "" if subpartition is None else f" of subpartition {subpartition}"
    if shuffle.filter is None:
        total = shuffle.num_rows
        if subpartition is not None:
            total = shuffle.subpartition_rows[subpartition].as_py()
        title = f"{table.num_rows:,} of {total:,} rows{what}"
    else:
        # How many there are is not known without reading them all.
        some = "first " if table.num_rows == rows else ""
        word = "with" if key else "where"
        found = count_of(table.num_rows, "row")
        title = f"{some}{found}{what} {word} {printable(str(shuffle.filter))}"
    show_rows(stdout(), table, title)


def plan(
    path: PathArgument,
    subpartitions: Annotated[
        str | None, typer.Option(metavar="3,7-9", help="Subpartitions to read; all by default.")
    ] = None,
    where: WhereOption = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which bytes of which files are read for some subpartitions, or a condition."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.options.text import SUBPARTITIONS

    text = subpartitions
    wanted = None if text is None else SUBPARTITIONS.of_text("--subpartitions", text)
    shuffle = where_of(open_shuffle(path, version), where)
    explanation = shuffle.explain(wanted)
    if as_json:
        print_json({**explanation.as_json(), "plan": explanation.plan.as_json()})
        return
    show(explanation.plan, as_json=False)
    if explanation.filter is not None:
        print_lines(["", *str(explanation).splitlines()])


def verify(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Read a whole version and check every checksum and count."""
    from arrow_format.read.shuffle import open_shuffle

    shuffle = open_shuffle(path, version)
    started = time.perf_counter()
    with progress(f"Checking {shuffle.path}", shuffle.num_bytes) as advance:
        report = shuffle.verify(
            raise_on_damage=False, on_file=lambda output: advance(output.num_bytes)
        )
    seconds = time.perf_counter() - started
    if report.ok or as_json:
        show(report, as_json=as_json, seconds=seconds)
    else:
        summary, *problems = str(report).splitlines()
        print_lines(problems)
        print_error(summary)
    if not report.ok:
        raise typer.Exit(FOUND_WRONG)


def where_of(shuffle: Shuffle, condition: str | None) -> Shuffle:
    """Return a shuffle restricted to the rows of a condition; itself where that is None."""
    try:
        return shuffle.where(condition)
    except OptionError as error:  # its further lines point at the place, which the first one says
        msg = str(error).partition("\n")[0]
        raise OptionError(msg) from error


def parse_keys(given: Sequence[str]) -> dict[str, list[str]]:
    """Return values by name from texts such as ``customer=17``; raises OptionError for others."""
    keys: dict[str, list[str]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            msg = f"--key {text!r}: expected a name and a value, such as customer=17"
            raise OptionError(msg)
        keys.setdefault(name, []).append(value)
    return keys


def first_rows(reader: BatchReader, num_rows: int) -> pa.Table:
    """Return up to ``num_rows`` rows from the start of ``reader``, and close it."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    missing = num_rows
    with reader:
        for batch in reader:
            batches.append(batch.slice(0, min(missing, batch.num_rows)))
            missing -= batches[-1].num_rows
            if missing == 0:
                break
    return pa.Table.from_batches(batches, schema=reader.schema)
