"""Training sets as of a time: labels with three feature tables, against Spark's ways and DuckDB's.

At scale 1 a million labels and three tables of three million rows with eight columns, of 40,000
entities over a year. Shuffles are kept by entity and sorted by entity and time; Spark reads the
same rows from Parquet as it came, and from bucketed, sorted tables. Each writes the set, ours as a
shuffle.
"""

from __future__ import annotations

import shutil
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.results import Part, amount_line, compare
from integration.bench.spark import measure_actions, session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.results import Line
    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

NUM_ENTITIES = 40_000
LABELS, ROWS = 1_000_000, 3_000_000
TABLES = tuple(f"f{i}" for i in range(3))
NUM_COLUMNS = 8
DAYS, FILES, BUCKETS = 365, 4, 16
DAY = 86_400_000_000
"""In microseconds."""
OPTIONS = arrow_shuffle.WriteOptions(sync=False)

OURS, ASOF, WINDOW = "ours", "as-of join", "union, window"
BUCKETED = ", bucketed"
HERE, DUCKDB = "ours, this process", "DuckDB"


def columns_of(table: str) -> list[str]:
    """Return the names of the columns of features."""
    return [f"{table}_{i}" for i in range(NUM_COLUMNS)]


def rows_of(
    num_rows: int, columns: Sequence[str], seed: int, days: range = range(DAYS)
) -> pa.Table:
    """Return rows of random entities at random times of some days."""
    random = np.random.default_rng(seed)
    # Integers, since the sort-merge join of Spark 4.3 refuses timestamps.
    times = random.integers(days.start * DAY, days.stop * DAY, num_rows)
    values = {name: np.round(random.random(num_rows) * 1000, 2) for name in columns}
    return pa.table({"entity": random.integers(0, NUM_ENTITIES, num_rows), "ts": times, **values})


def write_inputs(directory: Path, scale: float, n: int) -> None:
    """Write labels and features, as Parquet files and as shuffles."""
    tables = {"labels": (LABELS, ["label"]), **{t: (ROWS, columns_of(t)) for t in TABLES}}
    for seed, (name, (num_rows, columns)) in enumerate(tables.items()):
        rows = rows_of(int(num_rows * scale), columns, seed)
        (directory / "parquet" / name).mkdir(parents=True)
        for number, start in enumerate(range(0, len(rows), -(-len(rows) // FILES))):
            part = rows.slice(start, -(-len(rows) // FILES))
            pq.write_table(part, directory / "parquet" / name / f"{number}.parquet")
        arrow_shuffle.write_shuffle(
            rows, directory / name, keys="entity", num_subpartitions=n, sort_by=["entity", "ts"],
            options=OPTIONS,
        )  # fmt: skip


def training_set(directory: str) -> arrow_shuffle.Operation:
    """Return the labels with what each table has as of their time."""
    labels, *features = (open_shuffle(f"{directory}/{name}") for name in ("labels", *TABLES))
    return labels.join(features, how="asof", time="ts")


def as_of_join(labels: DataFrame, features: Sequence[DataFrame]) -> DataFrame:
    """Return the same by Spark's own operator."""

    def joined(left: DataFrame, right: DataFrame) -> DataFrame:
        both = left._joinAsOf(right, left.ts, right.ts, on="entity", how="left")  # type: ignore[operator]
        kept = [column for column in right.columns if column not in ("entity", "ts")]
        return both.select(*(left[name] for name in left.columns), *kept)

    return reduce(joined, features, labels)


def union_and_window(labels: DataFrame, features: Sequence[DataFrame]) -> DataFrame:
    """Return the same by a union of all rows, in which the last value is carried on."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    every = [name for table in TABLES for name in columns_of(table)]

    def aligned(rows: DataFrame, rank: int) -> DataFrame:
        there = [
            F.col(name) if name in rows.columns else F.lit(None).cast("double").alias(name)
            for name in ("label", *every)
        ]
        return rows.select("entity", "ts", F.lit(rank).alias("_rank"), *there)

    rows = reduce(
        lambda a, b: a.unionByName(b), [aligned(labels, 1), *(aligned(f, 0) for f in features)]
    )
    until = Window.partitionBy("entity").orderBy("ts", "_rank")
    until = until.rowsBetween(Window.unboundedPreceding, 0)
    carried = [F.last(name, ignorenulls=True).over(until).alias(name) for name in every]
    return rows.select("entity", "ts", "label", "_rank", *carried).where("_rank = 1").drop("_rank")


def run(settings: Settings) -> Part:
    """Measure training sets."""
    scale = settings.scale
    part = Part(
        "asof",
        f"{LABELS * scale:,.0f} labels as of their time, three tables of {ROWS * scale:,.0f} rows",
    )
    part.notes.append(
        "Spark local[2], one warm-up round, adaptive execution, no broadcast; 16 shuffle "
        "partitions and buckets; ours without fsync as Spark's; results compared by their sums"
    )
    for n in settings.numbers:
        directory = settings.scratch / f"asof-{n}"
        settings.report(f"asof, n = {n:,}: writing")
        write_inputs(directory, scale, n)
        configuration = {
            "spark.sql.autoBroadcastJoinThreshold": "-1",
            # Without it the operator is a join of all pairs of an entity.
            "spark.sql.join.sortMergeAsOfJoin.enabled": "true",
            "spark.sql.shuffle.partitions": str(BUCKETS),
        }
        with session(settings, configuration) as spark:
            _in_spark(settings, part, spark, directory, n)
        case = f"one process, two cores, n = {n:,}"
        measures = {
            label: partial(run_in_child, ask, cores=2, directory=str(directory), label=label)
            for label in (HERE, DUCKDB)
        }
        timings = settings.measure(part, case, measures)
        _check({label: timing.counters["sum"] for label, timing in timings.items()})
        goal = targets.ASOF_AGAINST_DUCKDB
        theirs, mine = ((label, min(timings[label].cpu_seconds)) for label in (DUCKDB, HERE))
        part.lines += [
            amount_line(case, "processor time, ours = 1", theirs, mine, "s", goal),
            compare(case, "speed", "DuckDB", timings[HERE], timings[DUCKDB]),
        ]
        part.lines.append(_one_more_day(settings, n))
    return part


def _in_spark(settings: Settings, part: Part, spark: SparkSession, directory: Path, n: int) -> None:
    names = ("labels", *TABLES)
    files = [spark.read.parquet(str(directory / "parquet" / name)) for name in names]
    for name, rows in zip(names, files, strict=True):
        writer = rows.repartition(BUCKETS, "entity").write.bucketBy(BUCKETS, "entity")
        writer.sortBy("entity", "ts").saveAsTable(f"{name}_sorted")
    tables = [spark.table(f"{name}_sorted") for name in names]
    made: dict[str, DataFrame] = {}
    for kind, (labels, *features) in (("", files), (BUCKETED, tables)):
        made[ASOF + kind] = as_of_join(labels, features)
        made[WINDOW + kind] = union_and_window(labels, features)

    def ours(out: Path) -> None:
        training_set(str(directory)).write(out, spark=spark, options=OPTIONS)

    actions: dict[str, Action] = {OURS: ours}
    for label, rows in made.items():
        actions[label] = lambda out, rows=rows: rows.write.parquet(str(out))
    sums = {}
    for number, (label, action) in enumerate(actions.items()):
        out = directory / f"checked-{number}"
        action(out)
        is_ours = label == OURS
        sums[label] = _sum_in_spark(
            open_shuffle(out).to_spark(spark) if is_ours else spark.read.parquet(str(out))
        )
        shutil.rmtree(out)
    _check(sums)
    case = f"Spark local[2], n = {n:,}"
    timings = measure_actions(settings, part, case, actions)
    goals = {"": targets.ASOF_AGAINST_PARQUET, BUCKETED: targets.ASOF_AGAINST_BUCKETED}
    mine = OURS, min(timings[OURS].cpu_seconds)
    for kind, goal in goals.items():
        for label in (ASOF + kind, WINDOW + kind):
            theirs = label, min(timings[label].cpu_seconds)
            what = "processor time, ours = 1"
            part.lines += [
                amount_line(case, what, theirs, mine, "s", goal),
                compare(case, "speed", label, timings[OURS], timings[label]),
            ]


def _sum_in_spark(rows: DataFrame) -> int:
    every = [name for table in TABLES for name in columns_of(table)]
    cents = " + ".join(f"CAST(coalesce(round({name} * 100), 0) AS BIGINT)" for name in every)
    return int(rows.selectExpr(f"{cents} AS cents").agg({"cents": "sum"}).collect()[0][0])


def ask(directory: str, label: str) -> dict[str, Any]:
    """Make all rows of the set, one time before the clock starts; ``counters`` add them up."""
    total = 0
    for _ in range(2):
        with timed() as answer:
            batches = _duckdb(directory) if label == DUCKDB else training_set(directory).read()
            kept = list(batches)
        total = sum(
            pc.sum(pc.round(pc.multiply(pc.fill_null(batch[name], 0), 100))).as_py()
            for batch in kept
            for table in TABLES
            for name in columns_of(table)
        )
    return {**answer, "num_rows": sum(b.num_rows for b in kept), "counters": {"sum": int(total)}}


def _duckdb(directory: str) -> pa.RecordBatchReader:
    import duckdb

    connection = duckdb.connect(config={"threads": 2})
    at = f"'{directory}/parquet"
    joins = " ".join(
        f"ASOF LEFT JOIN {at}/{table}/*.parquet' {table} "
        f"ON l.entity = {table}.entity AND l.ts >= {table}.ts"
        for table in TABLES
    )
    columns = ", ".join(name for table in TABLES for name in columns_of(table))
    sql = f"SELECT l.*, {columns} FROM {at}/labels/*.parquet' l {joins}"
    return connection.sql(sql).to_arrow_reader(1 << 16)


def _one_more_day(settings: Settings, n: int) -> Line:
    """Return the bytes of a year of features, appended by days, that a day of labels reads."""
    directory = settings.scratch / f"asof-days-{n}"
    num_rows = int(ROWS * settings.scale) // DAYS
    how: dict[str, Any] = {
        "keys": "entity", "num_subpartitions": n, "sort_by": ["entity", "ts"], "options": OPTIONS,
        "mode": "append",
    }  # fmt: skip
    for day in range(DAYS):
        rows = rows_of(num_rows, columns_of("f0"), day, range(day, day + 1))
        arrow_shuffle.write_shuffle(rows, directory / "f0", **how)
    labels = rows_of(num_rows // 3, ["label"], DAYS, range(DAYS - 1, DAYS))
    arrow_shuffle.write_shuffle(labels, directory / "labels", **how)
    features = open_shuffle(directory / "f0")
    asked = open_shuffle(directory / "labels").join(
        features, how="asof", time="ts", tolerance=7 * DAY
    )
    (_, read) = asked.explain().reads[1]
    return amount_line(
        "one more day of labels, features appended by days, tolerance 7 days",
        "bytes read of the features",
        ("7 days", read.plan.num_bytes / 1e6),
        ("365 days", features.plan().num_bytes / 1e6),
        "MB",
        targets.DAY_BYTES,
    )


def _check(sums: dict[str, int]) -> None:
    if len(set(sums.values())) > 1:
        msg = f"training sets differ: {sums}"
        raise RuntimeError(msg)
