"""Joins and aggregations of shuffles on two local cores, against Spark SQL.

The query is revenue per order priority over TPC-H ``lineitem`` and ``orders``: a join on the order
key, and five sums. Both sides read the same columns of the same Parquet files. As in the part
``spark``, all run in one session after a round that does not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.bench import targets
from integration.bench.results import Line, Part, compare
from integration.bench.spark import measure_actions, session, to_noop
from integration.programs.datasets import LINEITEM_PARTS, lineitem, orders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.results import Timing
    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

ITEMS = ("l_orderkey", "l_extendedprice", "l_discount")
ORDERS = ("o_orderkey", "o_orderpriority")
GROUPED = ("l_suppkey", "l_extendedprice", "l_quantity")
REVENUE = "sum(l_extendedprice * (1 - l_discount)) AS revenue"

SQL = "Spark SQL, sort-merge join"
WHOLE = "lane shuffles + join"
KEPT = "join, kept with all columns"
KEPT_FEW = "join, kept with five columns"
OTHER_N = "join, kept with five columns, orders by 1.5 n"
KEPT_ROWS = "join, kept with all columns, all rows to the JVM"
APPLY = "groupBy.applyInArrow"
SQL_AGGREGATE = "Spark SQL, groupBy.agg"
AGGREGATE = "aggregate, kept"


def join_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on the query with a join, for one number of subpartitions."""
    goals = {
        WHOLE: targets.JOIN_AGAINST_SQL,
        KEPT: targets.KEPT_JOIN_AGAINST_SQL,
        KEPT_FEW: None,
        OTHER_N: targets.OTHER_N_AGAINST_SQL,
        KEPT_ROWS: None,
    }
    lines = [
        compare(case, "speed", "Spark SQL", timings[label], timings[SQL], goal)
        for label, goal in goals.items()
    ]
    same, other = timings[KEPT_FEW], timings[OTHER_N]
    goal = targets.OTHER_N_AGAINST_SAME
    return [*lines, compare(case, "time", "both of n", other, same, goal)]


def aggregate_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on the aggregation, for one number of subpartitions."""
    ours, goal = timings[AGGREGATE], targets.AGGREGATE_AGAINST_APPLY
    return [
        compare(case, "speed", "applyInArrow", ours, timings[APPLY], goal),
        compare(case, "speed", "Spark SQL", ours, timings[SQL_AGGREGATE]),
    ]


def run(settings: Settings) -> Part:
    """Measure joins and aggregations."""
    settings.report("making the input")
    items, others = lineitem(settings.scale), orders(settings.scale)
    title = f"Joins, Spark local[2], lineitem and orders SF {settings.scale:g} by order key"
    part = Part("joins", title)
    part.notes += [
        f"local[2], {LINEITEM_PARTS} input files each, one session, one warm-up round; both sides "
        "with adaptive execution, Spark's joins without broadcast",
        f"columns {', '.join(ITEMS + ORDERS)}, of shuffles that are kept with all columns or these "
        "five, and written with these; our writes fsync, Spark's shuffle files do not",
    ]
    with session(settings, {"spark.sql.autoBroadcastJoinThreshold": "-1"}) as spark:
        for n in settings.numbers:
            _joins(settings, part, spark, items, others, n)
        _aggregations(settings, part, spark, items)
    return part


def _joins(
    settings: Settings, part: Part, spark: SparkSession, items: Path, others: Path, n: int
) -> None:
    def write(out: Path, *, all_columns: bool = False, of_orders: int = n) -> None:
        for name, source, columns in (("items", items, ITEMS), ("orders", others, ORDERS)):
            arrow_shuffle.write_shuffle(
                ds.dataset(source), out / name, keys=columns[0],
                num_subpartitions=of_orders if name == "orders" else n,
                columns=None if all_columns else list(columns), spark=spark,
            )  # fmt: skip

    def joined(out: Path, **how: Any) -> DataFrame:  # noqa: ANN401
        kept_items, kept_orders = (open_shuffle(out / name) for name in ("items", "orders"))
        right = kept_orders.select(*ORDERS[1:])
        both = kept_items.select(*ITEMS[1:]).join(right, [(ITEMS[0], ORDERS[0])], **how)
        return both.to_spark(spark)

    def summed(out: Path) -> list[object]:
        schema = "o_orderpriority string, part decimal(38,4)"
        parts = joined(out, then=partial_revenue, schema=schema)
        return sorted(parts.groupBy("o_orderpriority").agg({"part": "sum"}).collect())

    def sql(_: Path) -> list[object]:
        left = spark.read.parquet(str(items)).select(*ITEMS)
        right = spark.read.parquet(str(others)).select(*ORDERS)
        return _revenue(left.join(right, left.l_orderkey == right.o_orderkey))

    def whole(out: Path) -> list[object]:
        write(out)
        return summed(out)

    names = ("all", "few", "other")
    kept, kept_few, other_n = (_kept(settings, columns, n) for columns in names)
    write(kept, all_columns=True)
    write(kept_few)
    write(other_n, of_orders=n * 3 // 2)
    expected = list(map(tuple, sql(kept)))
    for revenue in (summed(kept), summed(kept_few), summed(other_n), _revenue(joined(kept))):
        if list(map(tuple, revenue)) != expected:
            msg = f"n = {n:,}: the join gives another revenue than Spark SQL"
            raise RuntimeError(msg)
    spark.conf.set("spark.sql.shuffle.partitions", min(n, 200))
    actions: dict[str, Action] = {
        SQL: sql,
        WHOLE: whole,
        KEPT: lambda _: summed(kept),
        KEPT_FEW: lambda _: summed(kept_few),
        OTHER_N: lambda _: summed(other_n),
        KEPT_ROWS: lambda _: _revenue(joined(kept)),
    }
    case = f"join, n = {n:,}"
    part.lines += join_lines(case, measure_actions(settings, part, case, actions))


def _kept(settings: Settings, columns: str, n: int) -> Path:
    return settings.scratch / f"kept-{columns}-{n}"


def partial_revenue(joined: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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


def _aggregations(settings: Settings, part: Part, spark: SparkSession, items: Path) -> None:
    """Ten thousand groups at scale 1: Python is called for each of them by ``applyInArrow``."""

    n = settings.numbers[0]
    key, price, quantity = GROUPED
    kept = settings.scratch / "kept-suppliers"
    arrow_shuffle.write_shuffle(
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
        APPLY: lambda _: to_noop(rows.groupBy(key).applyInArrow(of_group, schema)),
        SQL_AGGREGATE: lambda _: to_noop(
            rows.groupBy(key).agg({price: "sum", quantity: "max", "*": "count"})
        ),
        AGGREGATE: lambda _: to_noop(open_shuffle(kept).aggregate(key, ours).to_spark(spark)),
    }
    case = f"aggregate by {key}, n = {n:,}"
    part.lines += aggregate_lines(case, measure_actions(settings, part, case, actions))
