"""Groups of which 1 % changed: ``map_groups(since="last")`` into a result, against all groups.

10,000 keys at scale 1, so that a round takes seconds, with 500 or 50 rows each; a function of a
table of PyArrow that takes about 300 us. Rows of a key are together, or in any order in the files
of 16 appends. A change appends a row to each of 1 % of the keys. One core, a fresh process per
round, which has computed another copy before; processor time. Results are compared by their sums.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import arrow_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.results import Part, compare, cpu_line
from integration.bench.spark import measure_actions, session

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from integration.bench.rounds import Settings

NUM_KEYS = 10_000
NUM_APPENDS = 16
CALL_SECONDS = 300e-6
OPTIONS = arrow_shuffle.WriteOptions(sync=False)
NUM_BUCKETS = 16
SINCE, ALL, APPLY = "since", "all groups", "applyInPandas of all"
MADE = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])


def features(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
    """Return one row of a group, after about 300 us of work."""
    until = time.perf_counter() + CALL_SECONDS
    total = pc.sum(rows["price"]).as_py()
    while time.perf_counter() < until:
        pass
    return pa.table([[key[0].as_py()], [rows.num_rows], [total]], schema=MADE)


def lines(keys: np.ndarray, seed: int) -> pa.Table:
    """Return rows of about 170 bytes."""
    random = np.random.default_rng(seed)
    columns = {f"c{i}": random.integers(0, 1 << 30, len(keys)) for i in range(14)}
    text = pa.array(random.integers(0, 1 << 40, len(keys))).cast(pa.string())
    return pa.table(
        {"key": keys, "price": random.integers(0, 1000, len(keys)), **columns, "t": text}
    )


def write_all(source: str, num_keys: int, num_rows: int, n: int, together: bool) -> dict[str, Any]:
    """Write the rows, compute the result, and change 1 % of the keys."""
    how: dict[str, Any] = {"keys": "key", "num_subpartitions": n, "options": OPTIONS}
    keys = np.repeat(np.arange(num_keys), num_rows)
    if together:
        arrow_shuffle.write_shuffle(lines(keys, 1), source, sort_by="key", **how)
    else:
        keys = np.random.default_rng(0).permutation(keys)
        for seed, part in enumerate(np.array_split(keys, NUM_APPENDS)):
            arrow_shuffle.write_shuffle(lines(part, seed), source, mode="append", **how)
    compute(source, f"{source}-result", SINCE)
    chosen = np.random.default_rng(2).choice(num_keys, num_keys // 100, replace=False)
    arrow_shuffle.open_shuffle(source).append(lines(chosen, 3), options=OPTIONS)
    changed = arrow_shuffle.open_shuffle(source).map_groups(features, MADE, since="last")
    return {"notes": changed.explain(into=f"{source}-result").notes[-1].split(" of /")[0]}


def compute(source: str, result: str, label: str) -> None:
    """Compute the groups that changed, or all."""
    since = "last" if label == SINCE else "all"
    groups = arrow_shuffle.open_shuffle(source).map_groups(features, MADE, since=since)
    groups.write(result, mode="replace_groups", options=OPTIONS)


def run_once(source: str, label: str) -> dict[str, Any]:
    """Compute a copy of the result; the first loads the code."""
    total = 0
    for _ in range(2):
        copy = f"{source}-copy"
        # Nothing changes a file that is there: links are copies enough.
        shutil.copytree(f"{source}-result", copy, copy_function=os.link)
        with timed() as answer:
            compute(source, copy, label)
        total = pc.sum(arrow_shuffle.open_shuffle(copy).to_table()["total"]).as_py()
        shutil.rmtree(copy)
    return {**answer, "num_rows": total}


def of_frame(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    """Return what :func:`features` does, of a frame of pandas."""
    until = time.perf_counter() + CALL_SECONDS
    total = rows["price"].sum()
    while time.perf_counter() < until:
        pass
    return pd.DataFrame({"key": [key[0]], "n": [len(rows)], "total": [total]})


def run_in_spark(settings: Settings, part: Part, spark: SparkSession, source: str) -> None:
    """Measure the same in tasks of Spark, against all groups of a bucketed table."""
    schema, copy = "key bigint, n bigint, total bigint", f"{source}-copy"
    rows = arrow_shuffle.open_shuffle(source)
    case = f"50 rows a key, Spark local[2], {NUM_BUCKETS} buckets"
    table = rows.to_spark(spark).write.bucketBy(NUM_BUCKETS, "key").sortBy("key")
    table.mode("overwrite").saveAsTable("since_bucketed")

    def apply(out: Path) -> None:
        groups = spark.table("since_bucketed").groupBy("key")
        groups.applyInPandas(of_frame, schema).write.parquet(str(out))

    def since(_: Path) -> None:
        groups = rows.newest().map_groups(of_frame, schema, since="last", name="features")
        groups.write(copy, mode="replace_groups", spark=spark, options=OPTIONS)

    def renew() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(f"{source}-result", copy, copy_function=os.link)

    renew()
    timings = measure_actions(settings, part, case, {SINCE: since, APPLY: apply}, renew)
    goal = targets.SINCE_AGAINST_APPLY
    part.lines.append(compare(case, "speed", "applyInPandas", timings[SINCE], timings[APPLY], goal))


def run(settings: Settings) -> Part:
    """Measure results of groups of which 1 % changed."""
    part = Part("since", f"1 % of {NUM_KEYS * settings.scale:,.0f} keys changed, one core")
    num_keys = max(int(NUM_KEYS * settings.scale), 100)
    for n in settings.numbers:
        for num_rows, together in ((500, True), (50, True), (50, False)):
            how = "together" if together else "not together"
            case = f"{num_rows} rows a key, {how}, n = {n:,}"
            settings.report(f"{case}: writing")
            source = str(settings.scratch / f"since-{num_rows}-{together}-{n}")
            written = run_in_child(
                write_all, source=source, num_keys=num_keys, num_rows=num_rows, n=n,
                together=together,
            )  # fmt: skip
            part.notes.append(f"{case}: {written['notes']}")
            measures = {
                label: partial(run_in_child, run_once, source=source, label=label)
                for label in (SINCE, ALL)
            }
            timings = settings.measure(part, case, measures)
            if len({timing.num_rows for timing in timings.values()}) > 1:
                msg = f"{case}: {timings} disagree on the result"
                raise RuntimeError(msg)
            goal = targets.SINCE_AGAINST_ALL[num_rows] if together else None
            part.lines.append(cpu_line(case, timings, SINCE, ALL, goal))
        with session(settings) as spark:
            run_in_spark(settings, part, spark, str(settings.scratch / f"since-50-True-{n}"))
    return part
