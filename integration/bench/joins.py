"""Joins and aggregations of shuffles on two local cores, against Spark SQL.

The query is revenue per order priority over TPC-H ``lineitem`` and ``orders``: a join on the order
key, and five sums. Both sides read the same columns of the same Parquet files. As in the part
``spark``, all run in one session, in turns, after a round that does not count; what joins inside a
task is measured by itself, in a process of its own on one core.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from integration.bench import joins_lines as labels
from integration.bench.child import run_in_child
from integration.bench.join_kernels import KERNELS, join_once
from integration.bench.results import Line, Part, Timing
from integration.bench.spark import _Rounds, _to_noop, session
from integration.programs.datasets import LINEITEM_PARTS, lineitem, orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.spark import Action

ITEMS = ("l_orderkey", "l_extendedprice", "l_discount")
ORDERS = ("o_orderkey", "o_orderpriority")
GROUPED = ("l_suppkey", "l_extendedprice", "l_quantity")
REVENUE = "sum(l_extendedprice * (1 - l_discount)) AS revenue"


def run(
    scale: float,
    *,
    numbers: tuple[int, ...],
    repeat: int,
    scratch: Path,
    step: Callable[[str], None],
) -> Part:
    """Measure joins and aggregations; ``step`` is told what comes next."""
    step("making the input")
    items, others = lineitem(scale), orders(scale)
    rounds = _Rounds(scratch, repeat, step)
    lines: list[Line] = []
    logging.getLogger("py4j").setLevel(logging.ERROR)
    step("starting Spark")
    with session(scratch, {"spark.sql.autoBroadcastJoinThreshold": "-1"}) as spark:
        for n in numbers:
            lines += _joins(spark, items, others, n, rounds)
        lines += _aggregations(spark, items, numbers[0], rounds)
    for n in numbers:
        lines += _kernels(n, rounds)
    notes = (
        f"local[2], {LINEITEM_PARTS} input files each, one session, in turns, one warm-up round; "
        "both sides with adaptive execution, Spark's joins without broadcast",
        f"columns {', '.join(ITEMS + ORDERS)}; our writes fsync, Spark's shuffle files do not",
    )
    title = f"Joins, Spark local[2], lineitem and orders SF {scale:g} by order key"
    return Part("joins", title, tuple(lines), rounds.timings, notes)


def _joins(spark: SparkSession, items: Path, others: Path, n: int, rounds: _Rounds) -> list[Line]:
    import connector

    def write(out: Path) -> None:
        for name, source, columns in (("items", items, ITEMS), ("orders", others, ORDERS)):
            connector.write_shuffle(
                ds.dataset(source), out / name, num_subpartitions=n, keys=columns[0],
                columns=list(columns), spark=spark,
            )  # fmt: skip

    def joined(out: Path, **how: Any) -> DataFrame:  # noqa: ANN401
        columns = {
            "on": [(ITEMS[0], ORDERS[0])], "left_columns": ITEMS[1:], "right_columns": ORDERS[1:],
        }  # fmt: skip
        return connector.join_shuffles(spark, out / "items", out / "orders", **columns, **how)

    def summed(out: Path) -> list[object]:
        schema = "o_orderpriority string, part decimal(38,4)"
        parts = joined(out, then=_partial_revenue, schema=schema)
        return sorted(parts.groupBy("o_orderpriority").agg({"part": "sum"}).collect())

    def sql(_: Path) -> list[object]:
        left = spark.read.parquet(str(items)).select(*ITEMS)
        right = spark.read.parquet(str(others)).select(*ORDERS)
        return _revenue(left.join(right, left.l_orderkey == right.o_orderkey))

    def whole(out: Path) -> list[object]:
        write(out)
        return summed(out)

    kept = rounds.scratch / f"kept-{n}"
    write(kept)
    expected = list(map(tuple, sql(kept)))
    if any(list(map(tuple, found)) != expected for found in (summed(kept), _revenue(joined(kept)))):
        msg = f"n = {n:,}: the join gives another revenue than Spark SQL"
        raise RuntimeError(msg)
    spark.conf.set("spark.sql.shuffle.partitions", min(n, 200))
    actions: dict[str, Action] = {
        labels.SQL: sql,
        labels.WHOLE: whole,
        labels.KEPT: lambda _: summed(kept),
        labels.KEPT_ROWS: lambda _: _revenue(joined(kept)),
    }
    case = f"join, n = {n:,}"
    return labels.join_lines(case, rounds.measure(case, actions))


def _partial_revenue(joined: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Sum up batch after batch in the task, as Spark SQL does before its exchange."""
    for batch in joined:
        price, discount, priority = batch.columns
        revenue = pc.multiply(price, pc.subtract(pa.scalar(1, pa.decimal128(3, 0)), discount))
        table = pa.table({"o_orderpriority": priority, "part": revenue})
        sums = table.group_by("o_orderpriority", use_threads=False).aggregate([("part", "sum")])
        yield from sums.rename_columns(["o_orderpriority", "part"]).to_batches()


def _revenue(rows: DataFrame) -> list[object]:
    from pyspark.sql.functions import expr

    return sorted(rows.groupBy("o_orderpriority").agg(expr(REVENUE)).collect())


def _aggregations(spark: SparkSession, items: Path, n: int, rounds: _Rounds) -> list[Line]:
    """Ten thousand groups at scale 1: Python is called for each of them by ``applyInArrow``."""
    import connector

    key, price, quantity = GROUPED
    kept = rounds.scratch / "kept-suppliers"
    connector.write_shuffle(
        ds.dataset(items), kept, num_subpartitions=n, keys=key, columns=list(GROUPED), spark=spark
    )
    rows = spark.read.parquet(str(items)).select(*GROUPED)

    def of_group(table: pa.Table) -> pa.Table:
        asked = [(price, "sum"), (quantity, "max"), ([], "count_all")]
        return table.group_by(key, use_threads=False).aggregate(asked)

    schema = (
        f"{key} bigint, {price}_sum decimal(38,2), {quantity}_max decimal(15,2), count_all bigint"
    )
    ours = {"price": (price, "sum"), "most": (quantity, "max"), "n": ([], "count_all")}
    actions: dict[str, Action] = {
        labels.APPLY: lambda _: _to_noop(rows.groupBy(key).applyInArrow(of_group, schema)),
        labels.SQL_AGGREGATE: lambda _: _to_noop(
            rows.groupBy(key).agg({price: "sum", quantity: "max", "*": "count"})
        ),
        labels.AGGREGATE: lambda _: _to_noop(connector.aggregate_shuffle(spark, kept, key, ours)),
    }
    case = f"aggregate by {key}, n = {n:,}"
    return labels.aggregate_lines(case, rounds.measure(case, actions))


def _kernels(n: int, rounds: _Rounds) -> list[Line]:
    """What joins inside a task, each way in a process of its own."""
    case = f"inside a task, n = {n:,}"
    timings = []
    for label in KERNELS:
        rounds.step(f"{case}: {label}")
        found = run_in_child(
            join_once,
            kernel=label,
            shuffles=str(rounds.scratch / f"kept-{n}"),
            repeat=rounds.repeat,
        )
        timings.append(Timing(label, tuple(found["seconds"]), num_rows=found["num_rows"]))
    rounds.timings[case] = tuple(timings)
    return labels.kernel_lines(case, timings)
