"""Plain SQL on kept shuffles by the reader in Spark's planner, against the same on Parquet.

One session has all contenders; rows are compared before anything is timed. Of Parquet there are
200 files, clustered by the key, which count as 1; one file; and a table in 8 sorted buckets, which
Spark joins without an exchange too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import arrow_shuffle
from integration.bench import targets
from integration.bench.results import Part, compare
from integration.bench.spark import measure_actions, session, to_noop
from integration.programs.datasets import lineitem, orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

NUM_BUCKETS = 8
KEYS = {"lineitem": "l_orderkey", "orders": "o_orderkey"}

PARQUET = "Parquet of {n} files"
ONE_FILE = "one Parquet file"
BUCKETS = f"Parquet in {NUM_BUCKETS} sorted buckets"
PLAIN = "Parquet as it comes"
PYTHON = "Python source"
OURS = "ours"

Q1 = (
    "SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice), "
    "sum(l_extendedprice * (1 - l_discount)), "
    "sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), avg(l_quantity), "
    "avg(l_extendedprice), avg(l_discount), count(*) FROM {lineitem} "
    "WHERE l_shipdate <= DATE '1998-09-02' GROUP BY 1, 2"
)
JOIN = (
    "SELECT o_orderpriority, count(*), sum(l_extendedprice), max(o_totalprice) "
    "FROM {lineitem} JOIN {orders} ON l_orderkey = o_orderkey GROUP BY 1"
)
QUERIES = {
    "all columns": "SELECT * FROM {lineitem}",
    "all columns hashed": "SELECT bit_xor(xxhash64(*)) FROM {lineitem}",
    "two columns": "SELECT sum(l_quantity), max(l_shipdate) FROM {lineitem} WHERE l_quantity > 0",
    "TPC-H Q1": Q1,
    "group by the key": (
        "SELECT count(*), max(q) FROM (SELECT l_orderkey, sum(l_quantity) AS q, count(*) AS c "
        "FROM {lineitem} GROUP BY l_orderkey) WHERE q > 0 AND c > 0"
    ),
    "join of two shuffles": JOIN,
    "count(*)": "SELECT count(*) FROM {lineitem}",
    "max of a column": "SELECT max(l_shipdate) FROM {lineitem}",
    "one key": "SELECT * FROM {lineitem} WHERE l_orderkey = 1234567",
    "join with few rows": (
        "SELECT count(*), sum(l_quantity) FROM {lineitem} "
        "JOIN (SELECT o_orderkey FROM {orders} WHERE o_custkey = 7) ON l_orderkey = o_orderkey"
    ),
}
"""SQL by name; tables are to be filled in."""

WITHOUT_BUCKETS = ("all columns", "all columns hashed", "two columns", "TPC-H Q1")
"""Queries to which buckets make no difference that matters here."""


def run(settings: Settings) -> Part:
    """Measure the queries."""
    part = Part("planner", f"Plain SQL by the planner's reader, local[2], SF {settings.scale:g}")
    part.notes.append("local[2], one session, one warm-up round, contenders in turns")
    warehouse = settings.scratch / "shuffles"
    configuration = arrow_shuffle.spark_config(warehouse=str(warehouse))
    with session(settings, configuration) as spark:
        for n in settings.numbers:
            tables = _written(settings, spark, n)
            for name, sql in QUERIES.items():
                _query(settings, part, spark, n, name, sql, tables)
            _write_and_join(settings, part, spark, n)
    return part


def _written(settings: Settings, spark: SparkSession, n: int) -> dict[str, dict[str, str]]:
    """Write the tables for each contender; return what SQL calls them, by contender."""
    tables: dict[str, dict[str, str]] = {
        who: {} for who in (PARQUET.format(n=n), ONE_FILE, BUCKETS, PYTHON, OURS)
    }
    home = settings.scratch / f"tables-{n}"
    for table, source in {"lineitem": lineitem, "orders": orders}.items():
        settings.report(f"writing {table}, n = {n:,}")
        rows, key = spark.read.parquet(str(source(settings.scale))), KEYS[table]
        files, one = home / f"{table}-files", home / f"{table}-one"
        rows.repartition(n, key).write.parquet(str(files))
        rows.coalesce(1).write.parquet(str(one))
        for who, path in ((PARQUET.format(n=n), files), (ONE_FILE, one)):
            name = f"{table}_{path.name.rpartition('-')[2]}_{n}"
            spark.read.parquet(str(path)).createOrReplaceTempView(name)
            tables[who][table] = name
        buckets = f"{table}_buckets_{n}"
        rows.write.bucketBy(NUM_BUCKETS, key).sortBy(key).option(
            "path", str(home / buckets)
        ).saveAsTable(buckets)
        tables[BUCKETS][table] = buckets
        shuffle = settings.scratch / "shuffles" / f"{table}_{n}"
        arrow_shuffle.write_shuffle(rows, str(shuffle), keys=[key], num_subpartitions=n)
        python = f"{table}_python_{n}"
        spark.read.format("arrow_shuffle").load(str(shuffle)).createOrReplaceTempView(python)
        tables[PYTHON][table] = python
        tables[OURS][table] = f"shuffles.{table}_{n}"
    return tables


def _query(
    settings: Settings,
    part: Part,
    spark: SparkSession,
    n: int,
    name: str,
    sql: str,
    tables: dict[str, dict[str, str]],
) -> None:
    def asked(who: str) -> DataFrame:
        return spark.sql(sql.format(**tables[who]))

    contenders = [who for who in tables if not (who == BUCKETS and name in WITHOUT_BUCKETS)]
    if name != "all columns":
        answers = {who: sorted(map(str, asked(who).collect())) for who in contenders}
        first = answers[contenders[0]]
        other = [who for who, rows in answers.items() if rows != first]
        if other:
            msg = f"{name}: rows of {', '.join(other)} differ from those of {contenders[0]}"
            raise RuntimeError(msg)
    actions: dict[str, Action] = {
        who: partial(lambda who, _: to_noop(asked(who)), who) for who in contenders
    }
    case = f"{name}, n = {n:,}"
    timings = measure_actions(settings, part, case, actions)
    parquet, goal = timings[PARQUET.format(n=n)], targets.PLANNER_AGAINST_PARQUET.get(name)
    for who in contenders[1:]:
        target = goal if who == OURS else None
        part.lines.append(compare(case, "speed", "Parquet", timings[who], parquet, target))


def _write_and_join(settings: Settings, part: Part, spark: SparkSession, n: int) -> None:
    """Write both tables and join them three times: what a shuffle that is kept has to earn."""
    sources = {"lineitem": lineitem, "orders": orders}

    def parquet(write: Callable[[DataFrame, str, Path], None], out: Path) -> None:
        for table, source in sources.items():
            write(spark.read.parquet(str(source(settings.scale))), KEYS[table], out / table)
            spark.read.parquet(str(out / table)).createOrReplaceTempView(f"{table}_written")
        join({table: f"{table}_written" for table in sources})

    def clustered(rows: DataFrame, key: str, path: Path) -> None:
        rows.repartition(n, key).write.parquet(str(path))

    def plain(rows: DataFrame, _: str, path: Path) -> None:
        rows.write.parquet(str(path))

    def ours(out: Path) -> None:
        for table, source in sources.items():
            rows = spark.read.parquet(str(source(settings.scale)))
            arrow_shuffle.write_shuffle(rows, out / table, keys=KEYS[table], num_subpartitions=n)
        join({table: f"shuffles.`{out / table}`" for table in sources})

    def join(tables: dict[str, str]) -> None:
        for _ in range(3):
            to_noop(spark.sql(JOIN.format(**tables)))

    case = f"write, then three joins, n = {n:,}"
    who = PARQUET.format(n=n)
    actions: dict[str, Action] = {
        who: partial(parquet, clustered),
        PLAIN: partial(parquet, plain),
        OURS: ours,
    }
    timings = measure_actions(settings, part, case, actions)
    for other, unit in ((who, "Parquet"), (PLAIN, "plain Parquet")):
        goal = targets.WRITE_AND_JOINS_AGAINST_PARQUET[unit]
        part.lines.append(compare(case, "speed", unit, timings[OURS], timings[other], goal))
