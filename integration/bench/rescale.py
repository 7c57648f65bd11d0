"""Another number of subpartitions for a table that is there, and reading it, on one core.

A rescale against an append of one row; reading all rows right after it, when 1 % was appended with
the new number, and after a merge, against reading those of a shuffle that was written with it. Each
round is a fresh process that has done the same to another copy before. Processor time.
"""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import arrow_shuffle
from arrow_format import WriteOptions, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY, ipc_stream, read_batches
from integration.bench.results import Part, cpu_line

if TYPE_CHECKING:
    from integration.bench.rounds import Settings

OPTIONS = WriteOptions(sync=False)
RESCALE, APPEND = "rescale", "append of a row"
BEFORE, SCALED, APPENDED, MERGED = "before", "after it", "and an append", "merged"


def write_all(rows: str, out: str, n: int) -> dict[str, Any]:
    """Write a shuffle, the same rescaled, with rows appended after that, and merged."""
    batches = read_batches(Path(rows))
    num_rows = sum(batch.num_rows for batch in batches) // 100
    few = pa.Table.from_batches(batches).slice(0, num_rows)
    for name in (SCALED, APPENDED, MERGED):
        write_shuffle(batches, f"{out}-{name}", num_subpartitions=n, keys=KEY, options=OPTIONS)
        shuffle = arrow_shuffle.open_shuffle(f"{out}-{name}")
        shuffle.rescale(2 * n)
        if name != SCALED:
            shuffle.append(few, options=OPTIONS)
        if name == MERGED:
            shuffle.merge(options=OPTIONS)
            assert shuffle.newest().num_subpartitions == 2 * n
    write_shuffle(batches, f"{out}-{BEFORE}", num_subpartitions=n, keys=KEY, options=OPTIONS)
    whole = [*batches, *few.to_batches()]
    write_shuffle(whole, f"{out}-written", num_subpartitions=2 * n, keys=KEY, options=OPTIONS)
    return {}


def change(rows: str, source: str, label: str, n: int) -> dict[str, Any]:
    """Rescale a copy, or append a row to it."""
    row = next(iter(read_batches(Path(rows)))).slice(0, 1)
    for _ in range(2):  # the first loads the code
        copy = f"{source}-copy"
        # Neither changes a file that is there: links are copies enough.
        shutil.copytree(source, copy, copy_function=os.link)
        shuffle = arrow_shuffle.open_shuffle(copy)
        with timed() as answer:
            if label == RESCALE:
                shuffle.rescale(2 * n)
            else:
                shuffle.append(pa.Table.from_batches([row]), options=OPTIONS)
        shutil.rmtree(copy)
    return {**answer, "num_rows": 0, "num_bytes": 0}


def read(path: str) -> dict[str, Any]:
    """Read all rows in order, one time before the clock starts."""
    shuffle = open_shuffle(path)
    for _ in range(2):
        with timed() as answer:
            num_rows = sum(batch.num_rows for batch in shuffle.read())
    return {**answer, "num_rows": num_rows}


def run(settings: Settings) -> Part:
    """Measure a rescale."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("rescale", f"Engine, twice as many subpartitions, scale {settings.scale:g}")
    part.notes += ["one core, a fresh process per round; processor time of the best rounds"]
    for n in settings.numbers:
        settings.report(f"n = {n:,}: writing")
        out = str(settings.scratch / f"rescale-{n}")
        run_in_child(write_all, rows=rows, out=out, n=n)
        case = f"{n:,} to {2 * n:,}"
        changes = {
            label: partial(
                run_in_child, change, rows=rows, source=f"{out}-{BEFORE}", label=label, n=n
            )
            for label in (RESCALE, APPEND)
        }
        names = (BEFORE, SCALED, APPENDED, MERGED, "written")
        reads = {name: partial(run_in_child, read, path=f"{out}-{name}") for name in names}
        timings = settings.measure(part, case, changes)
        timings |= settings.measure(part, f"{case}: reading", reads)
        part.lines.append(cpu_line(case, timings, RESCALE, APPEND, targets.RESCALE))
        for name, against, target in (
            (SCALED, BEFORE, targets.READ_AFTER_RESCALE),
            (APPENDED, "written", targets.READ_AFTER_RESCALE),
            (MERGED, "written", targets.READ_AFTER_MERGE),
        ):
            part.lines.append(cpu_line(case, timings, name, against, target))
    return part
