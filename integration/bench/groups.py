"""A function of pandas per group: ``map_groups`` of a kept shuffle against ``applyInPandas``.

Groups have about 4, 100 and 10,000 rows: a key, two integers, three doubles and a text. One
function makes a row of features of each group, the other returns all its rows with a column more;
so all of the latter pass to the JVM on both sides. A third takes TPC-H's decimals, which are Python
objects in pandas. Both sides call the same function and drop the rows that come out; ``map_groups``
reads a shuffle that was written before, ``applyInPandas`` Parquet files with the same rows and
columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import arrow_shuffle
from arrow_shuffle import open_shuffle
from integration.bench import targets
from integration.bench.results import Part, compare
from integration.bench.spark import measure_actions, session, to_noop
from integration.programs.datasets import LINEITEM_PARTS, lineitem

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from integration.bench.rounds import Settings
    from integration.bench.spark import Action

    Function = Callable[..., pd.DataFrame]

GROUPS = {4: 15_000, 100: 10_000, 10_000: 600}
"""Rows of a group, and number of groups at scale 1: more would take ``applyInPandas`` minutes."""

DECIMALS = ("l_suppkey", "l_extendedprice", "l_quantity")
APPLY = "groupBy.applyInPandas from Parquet"
OURS = "map_groups, kept"


def features(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row of a group."""
    price = rows["price"]
    return pd.DataFrame(
        {
            "key": [key[0]],
            "n": [len(rows)],
            "mean": [price.mean()],
            "largest": [price.max()],
            "returned": [(rows["flag"] == "R").sum()],
        }
    )


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows of a group."""
    return rows.assign(share=rows["price"] / rows["price"].sum())


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return three rows of a group."""
    share = rows["l_quantity"].astype(float)
    made = rows[["l_suppkey", "l_extendedprice"]].assign(share=share / share.sum())
    return made.nlargest(3, "share")


FUNCTIONS: dict[str, tuple[Function, str, tuple[str, ...]]] = {
    "features": (
        features,
        "key bigint, n bigint, mean double, largest double, returned bigint",
        (
            "round(sum(mean), 2)",
            "sum(CAST(largest AS decimal(15,2)))",
            "sum(key)",
            "sum(n)",
            "sum(returned)",
        ),
    ),
    "shares": (
        shares,
        "key bigint, line int, flag string, price double, quantity double, discount double, "
        "share double",
        (
            "round(sum(share), 2)",
            "sum(CAST(price AS decimal(15,2)))",
            "sum(key)",
            "sum(line)",
            "max(flag)",
        ),
    ),
    "largest": (
        largest,
        "l_suppkey bigint, l_extendedprice decimal(15,2), share double",
        ("round(sum(share), 6)", "sum(l_suppkey)"),
    ),
}
"""Functions, the schema of their result, and sums of it that both sides must have alike."""


def run(settings: Settings) -> Part:
    """Measure functions per group."""
    title = f"A function per group, Spark local[2], rows of lineitem SF {settings.scale:g}"
    part = Part("groups", title)
    part.notes.append(
        f"local[2], {LINEITEM_PARTS} input files, one session, one warm-up round; results are "
        "dropped by a noop sink; the shuffle is kept"
    )
    with session(settings) as spark:
        for n in settings.numbers:
            for num_rows in GROUPS:
                settings.report(f"writing groups of {num_rows:,} rows")
                source = settings.scratch / f"rows-{num_rows}"
                if not source.exists():
                    _write_rows(source, settings.scale, num_rows)
                for name in ("features", "shares"):
                    case = f"{name} of groups of {num_rows:,} rows, n = {n:,}"
                    _measure(settings, part, spark, case, source, "key", n, name)
            case = f"largest three of groups of 600 rows with decimals, n = {n:,}"
            source = lineitem(settings.scale)
            _measure(settings, part, spark, case, source, "l_suppkey", n, "largest")
    return part


def _write_rows(out: Path, scale: float, num_rows: int) -> None:
    """Write rows of the table in groups of about so many, as Parquet files."""
    num_groups = max(int(GROUPS[num_rows] * scale), 1)
    asked = {
        "key": ds.field("l_orderkey"),
        "line": ds.field("l_linenumber").cast(pa.int32()),
        "flag": ds.field("l_returnflag").cast(pa.string()),
        **{
            name.removeprefix("extended"): ds.field(f"l_{name}").cast(pa.float64())
            for name in ("extendedprice", "quantity", "discount")
        },
    }
    source = ds.dataset(lineitem(scale), format="parquet")
    table = source.scanner(columns=asked).head(num_groups * num_rows)
    # Spread over the files, as rows that arrive over time are.
    keys = np.arange(table.num_rows) * 7_919 % num_groups
    table = table.set_column(0, "key", pa.array(keys, pa.int64()))
    out.mkdir()
    rows = -(-table.num_rows // LINEITEM_PARTS)
    for number in range(LINEITEM_PARTS):
        pq.write_table(table.slice(number * rows, rows), out / f"{number}.parquet")


def _measure(
    settings: Settings,
    part: Part,
    spark: SparkSession,
    case: str,
    source: Path,
    key: str,
    n: int,
    name: str,
) -> None:

    function, schema, sums = FUNCTIONS[name]
    columns = list(DECIMALS) if name == "largest" else None
    kept = settings.scratch / f"kept-{source.name}-{n}"
    if not kept.exists():
        arrow_shuffle.write_shuffle(
            ds.dataset(source), kept, num_subpartitions=n, keys=key, columns=columns, spark=spark
        )
    rows = spark.read.parquet(str(source)).select(*columns or "*")

    def apply() -> DataFrame:
        return rows.groupBy(key).applyInPandas(function, schema)

    def ours() -> DataFrame:
        return open_shuffle(kept).map_groups(function, schema).to_spark(spark)

    expected, found = (rows.selectExpr("count(*)", *sums).first() for rows in (apply(), ours()))
    if found != expected:
        msg = f"{case}: map_groups gives {found}, and applyInPandas {expected}"
        raise RuntimeError(msg)
    actions: dict[str, Action] = {
        APPLY: lambda _: to_noop(apply()),
        OURS: lambda _: to_noop(ours()),
    }
    timings = measure_actions(settings, part, case, actions)
    goal = targets.GROUPS_AGAINST_APPLY
    part.lines.append(compare(case, "speed", "applyInPandas", timings[OURS], timings[APPLY], goal))
