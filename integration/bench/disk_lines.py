"""Lines of the table on bytes on disk. Pure."""

from __future__ import annotations

from integration.bench import targets
from integration.bench.results import Line, amount_line


def byte_lines(n: int, data_bytes: int, all_bytes: int, spark_bytes: int) -> list[Line]:
    """Lines on our bytes at ``n`` subpartitions; all of them together carry the target."""
    case = f"n = {n:,}"
    sparks = ("Spark shuffle data", spark_bytes / 1e6)
    target = targets.BYTES_AGAINST_SPARK.get(n)
    what = "bytes, Spark = 1"
    return [
        amount_line(case, what, ("ours, all files", all_bytes / 1e6), sparks, "MB", target),
        amount_line(case, what, ("ours, data files", data_bytes / 1e6), sparks, "MB"),
    ]
