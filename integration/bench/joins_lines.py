"""Lines of the table on joins and aggregations, from timings by label. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from integration.bench import targets
from integration.bench.results import Line, cost_line, speed_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from integration.bench.results import Timing

SQL = "Spark SQL, sort-merge join"
WHOLE = "lane shuffles + join_shuffles"
KEPT = "join_shuffles, kept"
KEPT_ROWS = "join_shuffles, kept, all rows to the JVM"
APPLY = "groupBy.applyInArrow"
SQL_AGGREGATE = "Spark SQL, groupBy.agg"
AGGREGATE = "aggregate_shuffle, kept"


def join_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on the query with a join, for one number of subpartitions."""
    sql, whole, kept = timings[SQL], timings[WHOLE], timings[KEPT]
    return [
        speed_line(case, "speed, Spark SQL = 1", whole, sql, targets.JOIN_AGAINST_SQL),
        speed_line(case, "speed, Spark SQL = 1", kept, sql, targets.KEPT_JOIN_AGAINST_SQL),
        speed_line(case, "speed, Spark SQL = 1", timings[KEPT_ROWS], sql),
    ]


def aggregate_lines(case: str, timings: Mapping[str, Timing]) -> list[Line]:
    """Lines on the aggregation, for one number of subpartitions."""
    ours = timings[AGGREGATE]
    goal = targets.AGGREGATE_AGAINST_APPLY
    return [
        speed_line(case, "speed, applyInArrow = 1", ours, timings[APPLY], goal),
        speed_line(case, "speed, Spark SQL = 1", ours, timings[SQL_AGGREGATE]),
    ]


def kernel_lines(case: str, timings: Sequence[Timing]) -> list[Line]:
    """Lines on what joins inside a task: ours against each other way."""
    ours, *others = timings
    return [cost_line(case, f"time, {other.label} = 1", ours, other) for other in others]
