"""The commands that look at a shuffle and change nothing: inspect, head, plan, verify."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from arrow_format.errors import ShuffleNotFoundError
from connector.cli.app import FOUND_WRONG, JsonOption, PathArgument, VersionOption
from connector.cli.output import print_error, print_json, progress, show_result, stdout
from connector.cli.tables import show_facts, show_report, show_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from arrow_format.arrays.batch_stream import BatchReader


def inspect(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Show schema, versions, sizes, layout and how evenly rows are spread."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.inspection import facts_as_json, inspect_shuffle
    from connector.cli.summaries import pending_as_json, pending_facts, pending_lines

    try:
        shuffle = open_shuffle(path, version)
    except ShuffleNotFoundError:
        waiting = pending_facts(path) if version is None else None
        if waiting is None or not waiting.num_commits:
            raise
        show_result(pending_as_json(waiting) if as_json else pending_lines(waiting))
        return
    facts = inspect_shuffle(shuffle)
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
    from arrow_format.read.shuffle import open_shuffle

    names = None if columns is None else [name.strip() for name in columns.split(",")]
    shuffle = open_shuffle(path, version)
    table = first_rows(shuffle.subpartition(subpartition, names), rows)
    total = shuffle.subpartition_rows[subpartition].as_py()
    show_rows(
        stdout(), table, f"{table.num_rows:,} of {total:,} rows of subpartition {subpartition}"
    )


def plan(
    path: PathArgument,
    subpartitions: Annotated[
        str | None, typer.Option(metavar="3,7-9", help="Subpartitions to read; all when left out.")
    ] = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which bytes of which files reading some subpartitions reads."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.summaries import read_plan_as_json, read_plan_lines
    from connector.options.text import parse_subpartitions

    wanted = None if subpartitions is None else parse_subpartitions("subpartitions", subpartitions)
    shuffle = open_shuffle(path, version)
    found = shuffle.plan(wanted)
    if as_json:
        print_json(read_plan_as_json(found))
    else:
        show_result(read_plan_lines(found, shuffle.num_bytes))


def verify(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Read a whole version and check every checksum and count."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.inspection import report_as_json

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


def first_rows(reader: BatchReader, num_rows: int) -> pa.Table:
    """Return up to ``num_rows`` rows from the start of ``reader``, which is closed then."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    missing = num_rows
    with reader:
        for batch in reader:
            held.append(batch.slice(0, min(missing, batch.num_rows)))
            missing -= held[-1].num_rows
            if missing == 0:
                break
    return pa.Table.from_batches(held, schema=reader.schema)
