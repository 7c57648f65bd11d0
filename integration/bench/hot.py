"""A key that has half of the rows: the longest task against the mean, in pieces or not.

Rows of ``lineitem``, of which every other one has the key 0 in place of its supplier, by that key,
merged to one region of each subpartition; the hot subpartition is read in 8 pieces. They are joined
with one row of each key. Each task runs alone, in this process; processor time of its best round,
since a task of some milliseconds is longer where others interrupt it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

import arrow_shuffle
from arrow_format.operators.description import ANY_PLACE
from integration.bench import targets
from integration.bench.results import Part, Timing, compare
from integration.bench.rounds import check_rows
from integration.programs.datasets import lineitem

if TYPE_CHECKING:
    from arrow_shuffle import Operation
    from integration.bench.rounds import Settings

COLUMNS = ("l_suppkey", "l_extendedprice", "l_quantity", "l_shipdate")
NUM_PIECES = 8
WHOLE, CUT = "hot subpartition in one task", f"in {NUM_PIECES} pieces"
LONGEST, MEAN, ALL = "longest task", "mean task", "all tasks"


def run(settings: Settings) -> Part:
    """Measure the tasks of joins, and of an aggregation that is read in this process."""
    settings.report("making the input")
    (n,) = settings.numbers
    part = Part("hot", f"One key has half of lineitem SF {settings.scale:g}, n = {n}, one region")
    rows = ds.dataset(lineitem(settings.scale)).to_table(columns=list(COLUMNS))
    keys = rows["l_suppkey"].to_numpy().copy()
    keys[::2] = 0
    rows = rows.set_column(0, "l_suppkey", pa.array(keys))
    names = np.unique(keys)
    suppliers = pa.table({"l_suppkey": names, "name": pa.array(names).cast(pa.string())})
    for name, table in (("rows", rows), ("suppliers", suppliers)):
        arrow_shuffle.write_shuffle(
            table, settings.scratch / name, keys="l_suppkey", num_subpartitions=n
        )
        always = arrow_shuffle.MergePolicy(rewrite="always")
        arrow_shuffle.open_shuffle(settings.scratch / name).merge("subpartition", policy=always)
    part.notes.append("each task alone in one process, processor time of its best round")
    left, right = (
        arrow_shuffle.open_shuffle(settings.scratch / name) for name in ("rows", "suppliers")
    )
    _measure(settings, part, "inner join", left.join(right), left)
    _measure(settings, part, "left join", left.join(right, how="left"), left)
    kept = {
        "rows": ("*", "count"),
        "price": ("l_extendedprice", "sum"),
        "day": ("l_shipdate", "last"),
    }
    _measure(settings, part, "aggregate", left.aggregate("l_suppkey", kept), left)
    return part


def _measure(
    settings: Settings, part: Part, case: str, asked: Operation, rows: arrow_shuffle.Shuffle
) -> None:
    plan = asked._description.bind(replace(ANY_PLACE, joins_pieces=True))
    target = max(rows.subpartition_bytes.to_pylist()) // NUM_PIECES + 1
    made = asked.read(target_partition_bytes=target).read_all()
    if case == "aggregate":
        check_rows(sum(made["rows"].to_pylist()), rows.num_rows)
    else:
        check_rows(made.num_rows, rows.num_rows)
    found: dict[str, list[list[float]]] = {CUT: [], WHOLE: []}
    for number in range(settings.repeat + 1):
        for label, tasks in ((CUT, plan), (WHOLE, replace(plan, cuts=()))):
            settings.report(f"hot, {case}, round {number}: {label}")
            results = tasks.in_groups(target_partition_bytes=target)
            seconds = []
            for task in range(len(results.groups)):
                started = time.process_time()
                for batch in results.batches(task):
                    del batch  # before the next is made
                seconds.append(time.process_time() - started)
            if number:
                found[label].append(seconds)
    best = {label: [*map(min, zip(*rounds, strict=True))] for label, rounds in found.items()}
    timings = {
        (label, what): Timing(f"{what}, {label}", (of(seconds),))
        for label, seconds in best.items()
        for what, of in ((LONGEST, max), (MEAN, fmean), (ALL, sum))
    }
    part.timings[case] = tuple(timings.values())
    for label, goal in ((CUT, targets.LONGEST_AGAINST_MEAN), (WHOLE, None)):
        longest, mean = timings[label, LONGEST], timings[label, MEAN]
        part.lines.append(compare(case, "time", "mean task", longest, mean, goal))
    cut, whole = timings[CUT, ALL], timings[WHOLE, ALL]
    part.lines.append(compare(case, "time", "not cut", cut, whole))
