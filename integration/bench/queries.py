"""TPC-H Q3, Q5 and Q18 from kept shuffles, written in between where keys change, against Spark SQL.

Ours begins with shuffles of whole tables that were written before, and the measured time has all
steps: what they write, with fsync, and the last one's rows to a sink that drops them. Spark SQL
reads the Parquet files of the same tables, with its defaults: adaptive execution, and broadcast
joins of small tables.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Part, compare
from integration.bench.spark import measure_actions, session, to_noop
from integration.programs.datasets import LINEITEM_PARTS
from integration.programs.tpch_queries import QUERIES, SQL, keep, register_tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

SPARK_SQL = "Spark SQL from Parquet"
OURS = "kept shuffles, chained"


def run(settings: Settings) -> Part:
    """Measure the queries."""
    part = Part("queries", f"TPC-H from kept shuffles, Spark local[2], SF {settings.scale:g}")
    part.notes.append(
        f"local[2], {LINEITEM_PARTS} input files, one session, one warm-up round; all steps of a "
        "query are timed, with fsync of what they write; the shuffles they begin with are kept"
    )
    with session(settings) as spark:
        settings.report("writing the shuffles")
        register_tables(spark, settings.scale)
        for n in settings.numbers:
            home = settings.scratch / f"kept-{n}"
            keep(spark, home, settings.scale, n)
            for name in QUERIES:
                _query(settings, part, spark, home, n, name)
    return part


def _query(
    settings: Settings, part: Part, spark: SparkSession, home: Path, n: int, name: str
) -> None:
    def sql() -> DataFrame:
        return spark.sql(SQL[name].format(quantity=300))

    ours = partial(QUERIES[name], spark, home)
    check = settings.scratch / f"check-{name}-{n}"
    found, expected = (sorted(map(str, rows.collect())) for rows in (ours(check), sql()))
    if found != expected:
        msg = (
            f"{name}: {len(found):,} rows from shuffles differ from {len(expected):,} of Spark SQL"
        )
        raise RuntimeError(msg)
    actions: dict[str, Action] = {
        SPARK_SQL: lambda _: to_noop(sql()),
        OURS: lambda out: to_noop(ours(out)),
    }
    case = f"{name}, n = {n:,}"
    timings = measure_actions(settings, part, case, actions)
    goal = targets.QUERIES_AGAINST_SQL
    part.lines.append(compare(case, "speed", "Spark SQL", timings[OURS], timings[SPARK_SQL], goal))
