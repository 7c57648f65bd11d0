"""Sessions in which Spark's planner reads shuffles, and what a plan of it says.

A session of its own for each subject: catalogs keep their first settings for as long as a session
lives, and names of views are no one else's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from connector.jvm_reader import BUCKETING, CATALOG, CATALOG_CLASS, FORMAT

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["CATALOG", "FORMAT"]

SETTINGS = {
    BUCKETING: "true",  # by default from 4.1 on
    "spark.sql.timeType.enabled": "true",
}

NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
"""Joins of small tables are planned as those of large ones."""

PLAIN = NO_BROADCAST | {"spark.sql.adaptive.enabled": "false"}
"""The plan that is made is the one that is run."""

_BRANCHES = re.compile(r"[\s:+-]*")
_EXCHANGE = re.compile(r"Exchange (?:hash|keyed|keygrouped)partitioning\((.*)", re.IGNORECASE)
_INITIAL = "== Initial Plan =="


def planning_session(
    spark: SparkSession, warehouse: Path, settings: dict[str, str] | None = None, **options: object
) -> SparkSession:
    """Return a new session on the same cluster, whose catalog `shuffles` has a warehouse.

    Names without a catalog are its tables. ``options`` are those of the catalog, with ``_`` in the
    place of ``-``.
    """
    session = spark.newSession()
    prefix = f"spark.sql.catalog.{CATALOG}"
    session.conf.set(prefix, CATALOG_CLASS)
    for name, value in {"warehouse": warehouse, **options}.items():
        session.conf.set(f"{prefix}.{name.replace('_', '-')}", str(value))
    for name, value in (SETTINGS | (settings or {})).items():
        session.conf.set(name, value)
    session.sql(f"USE {CATALOG}")
    return session


def plan_of(df: DataFrame) -> str:
    """Return the plan of a query as it is, or was, run; one of Connect has none."""
    plan: str = df._jdf.queryExecution().executedPlan().toString()
    return final(plan)


def final(plan: str) -> str:
    """Return a plan without what adaptive execution planned at first."""
    kept, skipped = [], None
    for line in plan.splitlines():
        depth = _depth(line)
        if skipped is not None and depth >= skipped:
            continue
        skipped = depth if _INITIAL in line else None
        if skipped is None:
            kept.append(line)
    return "\n".join(kept)


def _depth(line: str) -> int:
    found = _BRANCHES.match(line)
    assert found is not None
    return found.end()


def exchanged(plan: str) -> list[tuple[str, ...]]:
    """Return, for each exchange by columns of a plan, the names of these; sorted.

    Exchanges into one partition and by ranges, which ends and orders of queries have, are left out,
    and so are those that are reused.
    """
    found = []
    for line in plan.splitlines():
        exchange = _EXCHANGE.match(line[_depth(line) :])
        if exchange is not None:
            found.append(tuple(re.findall(r"(\w+)#\d+", exchange[1])))
    return sorted(found)


def rows_of(df: DataFrame) -> list[tuple[object, ...]]:
    """Return the rows in an order of their own."""
    return sorted(map(tuple, df.collect()), key=repr)
