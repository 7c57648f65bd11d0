"""A merge by subpartition as a job of Spark, against the write of the same rows; and what it saves.

As in the part ``spark``, all run in one session after a round that does not count.
"""

from __future__ import annotations

import shutil
import statistics
import time
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_format import WriteOptions
from arrow_shuffle import open_shuffle
from integration.bench import targets
from integration.bench.inputs import KEY
from integration.bench.results import Part, compare
from integration.bench.rounds import check_rows
from integration.bench.spark import NOTE, session
from integration.programs.datasets import lineitem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from arrow_format import Shuffle
    from integration.bench.results import Timing
    from integration.bench.rounds import Settings

MAP_OUTPUTS = 200
NUM_READ = 50
"""Subpartitions that are read one by one, each for itself."""
WRITE, MERGE = "lane, zstd, no fsync", "merge by subpartition, no fsync"
BEFORE, AFTER = "a subpartition as written", "a subpartition once merged"
GOAL = "10 ms"


def in_row_groups(source: Path, target: Path, count: int) -> int:
    """Write a table again as one file of row groups for as many map tasks; return its rows."""
    dataset = ds.dataset(source)
    num_rows = int(dataset.count_rows())
    rows = -(-num_rows // count)
    with pq.ParquetWriter(target, dataset.schema, compression="zstd") as writer:
        table = dataset.to_table()
        for start in range(0, num_rows, rows):
            writer.write_table(table.slice(start, rows))
    return num_rows


def one_by_one(shuffle: Shuffle) -> float:
    """Return the median seconds that a subpartition of an open shuffle takes."""
    shuffle.subpartition(0).read_all()
    seconds = []
    for number in range(0, shuffle.num_subpartitions, -(-shuffle.num_subpartitions // NUM_READ)):
        started = time.perf_counter()
        shuffle.subpartition(number).read_all()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def run(settings: Settings) -> Part:
    """Measure merges of a shuffle of many map outputs."""
    settings.report("making the input")
    source = settings.scratch / "rows.parquet"
    num_rows = in_row_groups(lineitem(settings.scale), source, MAP_OUTPUTS)
    title = (
        f"Merge by subpartition, {MAP_OUTPUTS} map outputs, Spark local[2], lineitem SF "
        f"{settings.scale:g} by {KEY}"
    )
    part = Part("merge", title, notes=[NOTE])
    options = WriteOptions(sync=False)
    with session(settings) as spark:

        def write(n: int) -> Path:
            out = settings.scratch / "out"
            shutil.rmtree(out, ignore_errors=True)
            receipt = arrow_shuffle.write_shuffle(
                ds.dataset(source), out, num_subpartitions=n, keys=KEY, options=options,
                num_map_tasks=MAP_OUTPUTS, spark=spark,
            )  # fmt: skip
            check_rows(receipt.num_rows, num_rows)
            return out

        def timed(act: Callable[[], Any]) -> float:
            started = time.perf_counter()
            act()
            return time.perf_counter() - started

        for n in settings.numbers:
            merged = settings.scratch / f"merged-{n}"
            written = write(n).rename(settings.scratch / f"written-{n}")
            shutil.copytree(written, merged)
            open_shuffle(merged).merge(options=options, spark=spark)
            plan = open_shuffle(merged).plan(n // 2)

            def merge(n: int = n) -> float:
                out = write(n)
                return timed(lambda: open_shuffle(out).merge(options=options, spark=spark))

            # What a measure does besides what it times is not in its seconds.
            measures: Mapping[str, Callable[[], Mapping[str, float]]] = {
                WRITE: lambda n=n: {"seconds": timed(lambda: write(n))},
                MERGE: lambda: {"seconds": merge()},
                BEFORE: lambda path=written: {"seconds": one_by_one(open_shuffle(path))},
                AFTER: lambda path=merged: {"seconds": one_by_one(open_shuffle(path))},
                GOAL: lambda: {"seconds": 0.01},
            }
            case = f"merge, n = {n:,}"
            timings: Mapping[str, Timing] = settings.measure(part, case, measures, warm_up=True)
            part.lines += [
                compare(case, "time", "the write", timings[MERGE], timings[WRITE], targets.MERGE),
                compare(case, "time", "10 ms", timings[AFTER], timings[GOAL], targets.ONE_MERGED),
                compare(case, "speed", "as written", timings[AFTER], timings[BEFORE]),
            ]
            before, after = (len(open_shuffle(path).map_outputs) for path in (written, merged))
            part.notes.append(
                f"n = {n:,}: {before} map outputs became {after}; a subpartition is "
                f"{len(plan.reads)} read of {plan.num_bytes:,} bytes"
            )
            for path in (written, merged):
                shutil.rmtree(path)
    return part
