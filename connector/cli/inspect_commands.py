"""Commands that read a shuffle and change nothing: inspect, head, plan, verify."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from arrow_format.errors import ShuffleNotFoundError
from connector.cli.output import (
    FOUND_WRONG,
    JsonOption,
    PathArgument,
    VersionOption,
    print_error,
    print_json,
    progress,
    show_result,
    stdout,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from arrow_format.arrays.batch_stream import BatchReader


def inspect(path: PathArgument, version: VersionOption = None, as_json: JsonOption = False) -> None:
    """Show schema, versions, sizes, layout and skew."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.inspection import facts_as_json, inspect_shuffle
    from connector.cli.summaries import pending_as_json, pending_facts, pending_lines

    try:
        shuffle = open_shuffle(path, version)
    except ShuffleNotFoundError:
        pending = pending_facts(path) if version is None else None
        if pending is None or not pending.num_commits:
            raise
        show_result(pending_as_json(pending) if as_json else pending_lines(pending))
        return
    facts = inspect_shuffle(shuffle)
    if as_json:
        print_json(facts_as_json(facts))
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
    subpartition: Annotated[int, typer.Option(help="The subpartition to read.")],
    rows: Annotated[int, typer.Option(min=1, help="How many rows to show.")] = 10,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to show; all by default.")
    ] = None,
    version: VersionOption = None,
) -> None:
    """Show the first rows of one subpartition."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.tables import show_rows

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
        str | None, typer.Option(metavar="3,7-9", help="Subpartitions to read; all by default.")
    ] = None,
    version: VersionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which bytes of which files are read for some subpartitions."""
    from arrow_format.read.shuffle import open_shuffle
    from connector.cli.summaries import read_plan_as_json, read_plan_lines
    from connector.options.text import parse_subpartitions

    wanted = None if subpartitions is None else parse_subpartitions("subpartitions", subpartitions)
    shuffle = open_shuffle(path, version)
    read_plan = shuffle.plan(wanted)
    show_result(
        read_plan_as_json(read_plan) if as_json else read_plan_lines(read_plan, shuffle.num_bytes)
    )


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
        from connector.cli.tables import show_report

        show_report(stdout(), report, time.perf_counter() - started)
    if not report.ok:
        raise typer.Exit(FOUND_WRONG)


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
