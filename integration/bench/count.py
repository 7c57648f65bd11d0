"""Counting rows on one core: by the log, and by engines that ask for a column to count them.

Against the same rows in one Parquet file that PyArrow reads. Each round is a fresh process that has
opened the table before.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from arrow_shuffle import WriteOptions, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.inputs import KEY, ipc_stream, read_batches
from integration.bench.results import Part, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    from integration.bench.rounds import Settings

COUNTS = 200
"""How often that is counted which takes less than a millisecond."""

OURS, PYARROW = "count_rows", "count_rows, PyArrow on Parquet"
DUCKDB, POLARS, COLUMN = "DuckDB", "Polars", "one column, PyArrow on Parquet"
LABELS = (OURS, PYARROW, DUCKDB, POLARS, COLUMN)


def write_both(rows: str, out: str, num_subpartitions: int) -> dict[str, Any]:
    """Write a shuffle, and a Parquet file beside it; both with zstd."""
    batches = read_batches(Path(rows))
    options = WriteOptions(sync=False)
    write_shuffle(batches, out, num_subpartitions=num_subpartitions, keys=KEY, options=options)
    pq.write_table(pa.Table.from_batches(batches), f"{out}.parquet", compression="zstd")
    return {}


def count(path: str, label: str) -> dict[str, Any]:
    """Count the rows in one way of :data:`LABELS`."""
    counts: Callable[[], int]
    if label in (PYARROW, COLUMN):
        parquet = ds.dataset(f"{path}.parquet")
        first = parquet.schema.names[:1]
        counts = parquet.count_rows
        if label == COLUMN:
            counts = partial(_rows_of, parquet, first)
    elif label == OURS:
        counts = open_shuffle(path).count_rows
    elif label == POLARS:
        import polars as pl

        frame = open_shuffle(path).to_polars().select(pl.len())
        counts = lambda: frame.collect().item()  # noqa: E731
    else:
        import duckdb

        connection = duckdb.connect(config={"threads": 1})
        connection.register("rows", open_shuffle(path).to_dataset())
        counts = lambda: connection.sql("SELECT count(*) FROM rows").fetchall()[0][0]  # noqa: E731
    num_rows = counts()  # loads the code
    times = COUNTS if label in (OURS, PYARROW) else 1
    with timed() as answer:
        for _ in range(times):
            counts()
    return {name: value / times for name, value in answer.items()} | {"num_rows": num_rows}


def _rows_of(dataset: ds.Dataset, columns: list[str]) -> int:
    num_rows: int = dataset.to_table(columns, use_threads=False).num_rows
    return num_rows


def run(settings: Settings) -> Part:
    """Measure counting."""
    settings.report("making the input")
    rows = str(ipc_stream(settings.scale))
    part = Part("count", f"Engine, counting rows, scale {settings.scale:g}")
    part.notes += ["one core, a fresh process per round; ratios of the best rounds"]
    for n in settings.numbers:
        case = f"n = {n:,}"
        settings.report(f"{case}: writing")
        path = str(settings.scratch / f"counted-{n}")
        run_in_child(write_both, rows=rows, out=path, num_subpartitions=n)
        measures = {label: partial(run_in_child, count, path=path, label=label) for label in LABELS}
        timings = settings.measure(part, case, measures)
        if len({timing.num_rows for timing in timings.values()}) > 1:
            msg = f"{case}: {timings} disagree on the number of rows"
            raise RuntimeError(msg)
        part.lines.append(
            compare(
                case, "time", "PyArrow", timings[OURS], timings[PYARROW], targets.COUNT_ROWS,
                best=True,
            )
        )  # fmt: skip
        part.lines += [
            compare(
                case, "time", "one column", timings[label], timings[COLUMN],
                targets.COUNT_OF_ENGINES, best=True,
            )
            for label in (DUCKDB, POLARS)
        ]  # fmt: skip
    return part
