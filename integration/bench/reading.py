"""Reading without an order on one core, against what reads the same rows from Parquet.

Each round is a fresh process that has read before. Nobody looks at the batches, but their keys are
summed: all must find the same. Processor time, and the memory of the first read. Needs Linux, whose
``/proc`` shows the latter.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from arrow_format import ReadOptions, open_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.count import write_both
from integration.bench.inputs import KEY, ipc_stream
from integration.bench.results import Part, amount_line, cpu_line
from tests.support.memory import forget_peak, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from integration.bench.results import Target
    from integration.bench.rounds import Settings

TWO = (KEY, "l_quantity")
UNORDERED, ORDERED = "unordered", "ordered"
POLARS, POLARS_TO_ARROW, PYARROW = "Polars", "Polars, as Arrow", "PyArrow"
LABELS = (UNORDERED, ORDERED, POLARS, POLARS_TO_ARROW, PYARROW)
ALL = ", all"
MIB = 1 << 20


def read(path: str, label: str, columns: list[str] | None) -> dict[str, Any]:
    """Read in one way of :data:`LABELS`, one time before the clock starts."""
    reads = _ways(path, columns)[label]
    before = forget_peak()
    for _ in range(2):
        with timed() as answer:
            num_rows, total = reads()
    counters = {"sum": total, "peak_bytes": resident_bytes() - before}
    return {**answer, "num_rows": num_rows, "counters": counters}


def _ways(path: str, columns: list[str] | None) -> dict[str, Callable[[], tuple[int, int]]]:
    """Return the ways to read: each gives the number of rows, and the sum of the keys."""

    def ours(*, ordered: bool) -> tuple[int, int]:
        return _summed(open_shuffle(path).read(columns=columns, ordered=ordered))

    def polars(*, as_arrow: bool) -> tuple[int, int]:
        import polars as pl

        frame = pl.scan_parquet(f"{path}.parquet")
        found = (frame if columns is None else frame.select(columns)).collect()
        if as_arrow:
            return _summed(found.to_arrow().to_batches())
        return found.height, found[KEY].sum()

    def pyarrow() -> tuple[int, int]:
        table = pq.read_table(f"{path}.parquet", columns=columns, use_threads=False)
        return _summed(table.to_batches())

    return {
        UNORDERED: partial(ours, ordered=False),
        ORDERED: partial(ours, ordered=True),
        POLARS: partial(polars, as_arrow=False),
        POLARS_TO_ARROW: partial(polars, as_arrow=True),
        PYARROW: pyarrow,
    }


def _summed(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    num_rows = total = 0
    for batch in batches:
        num_rows += batch.num_rows
        total += pc.sum(batch.column(KEY)).as_py()
    return num_rows, total


def run(settings: Settings) -> Part:
    """Measure reading."""
    os.environ["POLARS_MAX_THREADS"] = "1"
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("reading", f"Engine, reading without an order, scale {settings.scale:g}")
    part.notes += [
        "one core, a fresh process per round; processor time of the best rounds, with the sum of "
        f"the keys; two columns are {' and '.join(TWO)}; peers read one Parquet file of zstd"
    ]
    for n in settings.numbers:
        case = f"n = {n:,}"
        settings.report(f"{case}: writing")
        path = str(settings.scratch / f"read-{n}")
        run_in_child(write_both, rows=rows, out=path, num_subpartitions=n)
        measures = {
            f"{label}{suffix}": partial(run_in_child, read, path=path, label=label, columns=columns)
            for suffix, columns in (("", [*TWO]), (ALL, None))
            for label in LABELS
        }
        timings = settings.measure(part, case, measures)
        if len({(t.num_rows, t.counters["sum"]) for t in timings.values()}) > 1:
            msg = f"{case}: {timings} disagree on the rows"
            raise RuntimeError(msg)
        pairs: list[tuple[str, str, Target | None]] = [
            (UNORDERED, POLARS, targets.TWO_AGAINST_POLARS),
            (UNORDERED, PYARROW, targets.TWO_AGAINST_PYARROW),
            (UNORDERED, ORDERED, None),
            (UNORDERED, UNORDERED + ALL, targets.FEW_OF_LINEITEM),
            (UNORDERED + ALL, POLARS_TO_ARROW + ALL, targets.ALL_AGAINST_POLARS),
            (UNORDERED + ALL, PYARROW + ALL, None),
            (UNORDERED + ALL, ORDERED + ALL, None),
        ]
        part.lines += [cpu_line(case, timings, *pair) for pair in pairs]
        promised = ReadOptions().memory_bytes / MIB
        for label, timing in timings.items():
            taken = label, timing.counters["peak_bytes"] / MIB
            is_ours = label.startswith((UNORDERED, ORDERED))
            target = targets.WITHIN_LIMIT if is_ours else None
            what = "peak memory, promised = 1"
            line = amount_line(case, what, taken, ("memory_bytes", promised), "MiB", target)
            part.lines.append(line)
    return part
