"""A join and an aggregation without Spark, on two cores, against DuckDB and Polars from Parquet.

The join is that of the part ``joins``, of shuffles that are kept with its five columns; the other
sums up a column for each supplier. Each round is a fresh process that has asked the same before.
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

from arrow_shuffle import WriteOptions, open_shuffle, write_shuffle
from integration.bench import targets
from integration.bench.child import run_in_child, timed
from integration.bench.joins import GROUPED, ITEMS, ORDERS, REVENUE, partial_revenue
from integration.bench.results import Part, compare, cpu_line
from integration.programs.datasets import lineitem, orders

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from integration.bench.rounds import Settings

CORES = 2
JOIN, AGGREGATE = "join", "aggregate"
ONE, THREADS, PROCESSES = "one thread", "two threads", "two processes"
DUCKDB, DATASETS, POLARS = "DuckDB, Parquet", "DuckDB, our datasets", "Polars, Parquet"
LABELS = (ONE, THREADS, PROCESSES, DUCKDB, DATASETS, POLARS)
KEPT = {"items": ITEMS, "orders": ORDERS, "suppliers": GROUPED[:2]}
"""Columns of the shuffles, the first of which is the key."""
SUMMED = "sum(l_extendedprice) AS total"

Rows = list[tuple[Any, ...]]


def write_kept(kept: str, items: str, others: str, num_subpartitions: int) -> dict[str, Any]:
    """Write the shuffles from the Parquet files."""
    for name, columns in KEPT.items():
        write_shuffle(
            ds.dataset(others if name == "orders" else items),
            f"{kept}/{name}",
            num_subpartitions=num_subpartitions,
            keys=columns[0],
            columns=list(columns),
            options=WriteOptions(sync=False),
        )
    return {}


def ask(kept: str, items: str, others: str, what: str, label: str) -> dict[str, Any]:
    """Join or aggregate, one time before the clock starts; ``counters`` add the answer up.

    The processor time of a pool of processes is not known.
    """
    query: Callable[[], Rows]
    with ExitStack() as stack:
        if label == POLARS:
            query = partial(_polars, items, others, what)
        elif label in (DUCKDB, DATASETS):
            query = _duckdb(kept, items, others, what, of_ours=label == DATASETS)
        else:
            forkserver = multiprocessing.get_context("forkserver")
            executor: Executor = (
                ProcessPoolExecutor(CORES, mp_context=forkserver)
                if label == PROCESSES
                else ThreadPoolExecutor(1 if label == ONE else CORES)
            )
            query = partial(_ours, kept, what, stack.enter_context(executor))
        for _ in range(2):
            with timed() as answer:
                rows = query()
    if label == PROCESSES:
        del answer["cpu_seconds"]
    total = sum(row[-1] for row in rows)
    return {**answer, "num_rows": len(rows), "counters": {"sum": int(total.scaleb(4))}}


def _ours(kept: str, what: str, executor: Executor) -> Rows:
    if what == AGGREGATE:
        sums: dict[str, Any] = {"total": ("l_extendedprice", "sum")}
        suppliers = open_shuffle(f"{kept}/suppliers")
        table = suppliers.aggregate(GROUPED[0], sums).read(executor=executor).read_all()
    else:
        schema = pa.schema({"o_orderpriority": pa.string(), "part": pa.decimal128(38, 4)})
        items, others = (open_shuffle(f"{kept}/{name}") for name in ("items", "orders"))
        joined = items.select(*ITEMS[1:]).join(
            others.select(*ORDERS[1:]),
            [(ITEMS[0], ORDERS[0])],
            then=partial_revenue,
            schema=schema,
        )
        parts = joined.read(executor=executor).read_all()
        table = parts.group_by("o_orderpriority").aggregate([("part", "sum")])
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _duckdb(kept: str, items: str, others: str, what: str, *, of_ours: bool) -> Callable[[], Rows]:
    import duckdb

    connection = duckdb.connect(config={"threads": CORES})
    tables = {"items": f"'{items}/*.parquet'", "orders": f"'{others}/*.parquet'"}
    if of_ours:
        own = {"items": "suppliers" if what == AGGREGATE else "items", "orders": "orders"}
        for name, shuffle in own.items():
            connection.register(name, open_shuffle(f"{kept}/{shuffle}").to_dataset())
            tables[name] = name
    sql = f"SELECT l_suppkey, {SUMMED} FROM {tables['items']} GROUP BY 1"
    if what == JOIN:
        sql = (
            f"SELECT o_orderpriority, {REVENUE} FROM {tables['items']} JOIN {tables['orders']} "
            "ON l_orderkey = o_orderkey GROUP BY 1"
        )
    return lambda: connection.sql(sql).fetchall()


def _polars(items: str, others: str, what: str) -> Rows:
    import polars as pl

    price = pl.col("l_extendedprice").cast(pl.Decimal(38, 4))  # else it rounds to two digits
    rows = pl.scan_parquet(items)
    if what == AGGREGATE:
        return rows.group_by("l_suppkey").agg(price.sum()).collect().rows()
    revenue = (price * (1 - pl.col("l_discount").cast(pl.Decimal(38, 4)))).sum()
    joined = rows.join(pl.scan_parquet(others), left_on="l_orderkey", right_on="o_orderkey")
    return joined.group_by("o_orderpriority").agg(revenue).collect().rows()


def run(settings: Settings) -> Part:
    """Measure what runs in this process."""
    settings.report("making the input")
    inputs = {"items": str(lineitem(settings.scale)), "others": str(orders(settings.scale))}
    part = Part("in_process", f"Joins and aggregations without Spark, scale {settings.scale:g}")
    part.notes += [f"{CORES} cores, a fresh process per round; ratios of the best rounds"]
    for n in settings.numbers:
        settings.report(f"n = {n:,}: writing")
        kept = str(settings.scratch / f"kept-{n}")
        run_in_child(write_kept, cores=CORES, kept=kept, num_subpartitions=n, **inputs)
        for what in (JOIN, AGGREGATE):
            case = f"{what}, n = {n:,}"
            asked = partial(run_in_child, ask, cores=CORES, kept=kept, what=what, **inputs)
            measures = {label: partial(asked, label=label) for label in LABELS}
            timings = settings.measure(part, case, measures)
            if len({(t.num_rows, t.counters["sum"]) for t in timings.values()}) > 1:
                msg = f"{case}: {timings} disagree"
                raise RuntimeError(msg)
            goals = {
                (THREADS, DUCKDB): targets.JOIN_AGAINST_DUCKDB,
                (ONE, DUCKDB): None,
                (PROCESSES, DUCKDB): None,
                (DATASETS, DUCKDB): targets.DUCKDB_OF_OURS,
                (THREADS, POLARS): None,
            }
            for (ours, other), goal in goals.items():
                target = goal if what == JOIN else None
                first, second = timings[ours], timings[other]
                part.lines.append(compare(case, "time", other, first, second, target, best=True))
                if first.cpu_seconds:
                    part.lines.append(cpu_line(case, timings, ours, other, target))
    return part
