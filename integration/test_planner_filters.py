"""Conditions that Spark's planner hands to the reader: the rows that Spark finds without its help.

Conditions are drawn at random, on columns of which chunks, files and subpartitions have different
values, so that much is skipped. Each is a ``WHERE`` of its own; many are asked in one query.
"""

from __future__ import annotations

import re
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format import RangePartitioner, RoundRobinPartitioner, WriteOptions
from arrow_shuffle import open_shuffle
from integration.programs.planner import PLAIN, plan_of, planning_session
from integration.programs.random_conditions import (
    INTERPRETED,
    Conditions,
    distinct,
    keys_in_spark,
)
from tests.support.exhaustive import times
from tests.support.spark_session import spark_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

NUM_ROWS = 1_200
BLOCK = 100
"""So many rows each have values of their own."""

IN_A_QUERY = 20
"""Conditions that one query asks for, each of a scan."""

AT_ONCE = 30
"""Conditions that one query of Spark evaluates; where one fails, half of them, and so on."""

SMALL = {"sync": False, "sort_buffer_bytes": 64 << 10, "chunk_bytes": 1 << 10}
CHUNKS = WriteOptions(**SMALL, statistics="all")
PLAINLY = WriteOptions(**SMALL, codec="none")

COLUMNS = {
    "ti": "CAST(IF(id % 13 = 0, NULL, id div 10 - 60) AS TINYINT)",
    "sm": "CAST(IF(id div 100 = 5, NULL, id * 27) AS SMALLINT)",
    "i": "IF(id % 11 = 0, NULL, CAST(id div 20 AS INT))",
    "l": "IF(id % 17 = 0, NULL, 9007199254740991L + id)",
    "f": "CASE id div 100 WHEN 1 THEN float('NaN') WHEN 2 THEN -0F WHEN 3 THEN 0F "
         "WHEN 4 THEN NULL ELSE CAST(id / 8 AS FLOAT) END",
    "d": "CASE id div 100 WHEN 0 THEN double('NaN') WHEN 1 THEN IF(id % 2 = 0, -0D, 0D) "
         "WHEN 2 THEN -1D / 0.1D WHEN 3 THEN NULL WHEN 4 THEN double('Infinity') "
         "WHEN 5 THEN IF(id % 9 = 0, double('NaN'), id / 10D) ELSE -id / 10D END",
    "p": "CAST(IF(id % 9 = 0, NULL, id / 4 - 100) AS DECIMAL(9, 2))",
    "u": "CAST(id * 1000000007L AS DECIMAL(18, 4))",
    "q": "CAST(IF(id div 100 = 7, NULL, CAST(id - 600 AS DECIMAL(38, 10)) * 1000000000000000000) "
         "AS DECIMAL(38, 10))",
    "s": r"get(array('', 'it\'s', concat('ab', id div 10), NULL, "
         "concat(char(97 + id div 100), 'x'), concat('é', id), 'ab', "
         "concat('a prefix that is longer than a bound of texts is: ', id)), "
         "CAST(IF(id < 400, id div 50, id % 8) AS INT))",
    "w": "concat('w', lpad(CAST(id AS STRING), 5, '0'))",
    "y": "IF(id % 5 = 0, NULL, unhex(lpad(hex(id), 4, '0')))",
    "b": "CASE id div 100 WHEN 0 THEN true WHEN 1 THEN false WHEN 2 THEN NULL ELSE id % 2 = 0 END",
    "day": "IF(id % 19 = 0, NULL, date_add(DATE '2024-01-01', CAST(id div 10 AS INT)))",
    "t": "IF(id % 23 = 0, NULL, timestamp_seconds(1710037800 + id * 1800))",
    "n": "timestampadd(MINUTE, id * 30, TIMESTAMP_NTZ '2024-03-09 22:00:00')",
    "iv": "make_dt_interval(0, CAST(id div 50 AS INT))",
    "z": "IF(id < 600, NULL, id % 3)",
}  # fmt: skip

NUMBERS = (
    "5", "-1", "0", "-0.0", "17", "30", "59", "-60", "127", "300", "-32768", "1199", "2.5", "12.5",
    "12.50", "-100.25", "17L", "9007199254740992", "9007199254740993L", "9007199254741500.5",
    "9223372036854775808", "3000000000", "0.0D", "-0.0D", "1e300D", "-70.1D", "51.2D", "0.1F",
    "600000004200", "1000000007000.0000", "-600000000000000000000", "5e20BD",
    "CAST('NaN' AS DOUBLE)", "CAST('NaN' AS FLOAT)", "CAST('Infinity' AS DOUBLE)", "NULL",
    "CAST(17 AS TINYINT)", "CAST(270 AS SMALLINT)", "CAST(12.5 AS DECIMAL(9,2))",
    "CAST(100000000.7000 AS DECIMAL(18,4))", "CAST(17.0 AS FLOAT)", "CAST(-10 AS DOUBLE)",
)  # fmt: skip
TEXTS = (
    "'ab'", "'ab12'", "'ab3'", "'a'", "''", "'é'", "'é777'", r"'it\'s'", "'w00500'", "'w005'",
    "'b'", "'cx'", "'zz'", "'a prefix that is longer than a bound of texts is: 711'",
    "'a prefix that is longer than a bound of texts'", "NULL",
)  # fmt: skip
BYTES = ("X'00'", "X'01F3'", "X'0200'", "X'04AF'", "X''", "X'FF'", "NULL")
DAYS = ("DATE '2024-01-05'", "DATE '2024-02-29'", "DATE '2024-04-29'", "'2024-03-01'", "NULL")
MOMENTS = (
    "TIMESTAMP '2024-03-10 02:30:00'", "TIMESTAMP '2024-03-20 07:00:00Z'", "DATE '2024-03-12'",
    "TIMESTAMP '2024-04-03 23:00:00'", "'2024-03-15 12:00:00'", "NULL",
)  # fmt: skip
WALLS = (
    "TIMESTAMP_NTZ '2024-03-10 02:30:00'", "TIMESTAMP_NTZ '2024-03-20 00:00:00'",
    "TIMESTAMP_NTZ '2024-04-03 21:30:00'", "'2024-03-15 12:00:00'", "NULL",
)  # fmt: skip
FITTING: dict[str, Sequence[str]] = {
    **dict.fromkeys(("ti", "sm", "i", "l", "f", "d", "p", "u", "q", "z"), NUMBERS),
    **dict.fromkeys(("s", "w"), TEXTS),
    "y": BYTES,
    "b": ("TRUE", "FALSE", "NULL"),
    "day": DAYS,
    "t": MOMENTS,
    "n": WALLS,
    "iv": ("INTERVAL '0' HOUR", "INTERVAL '1' DAY", "INTERVAL '5' HOUR"),
    "k": ("0", "17L", "700", "1199", "2000", "NULL", "17.5"),
}
ALIKE = ("ti", "sm", "i", "l", "f", "d", "p", "u", "q", "z", "k")
WORDS = (
    "{0} IS NULL", "{0} IS NOT NULL", "{0} = {1}", "{0} = {1}", "{0} <=> {1}", "b", "NOT b",
    "isnan(d)", "isnan(f)", "s LIKE 'ab%'", "s LIKE 'ab1%'", "w LIKE 'w004%'", "s LIKE 'a pre%'",
    "w LIKE '%500'", "startswith(w, 'w01')", "s NOT LIKE 'ab%'", "w LIKE 'w00_00'", "s LIKE ''",
    "k IN (3, 17, 700, NULL)", "k = 700", "k <=> 17", "d = 0", "f = 0", "s LIKE 'é%'",
    "{0} IN ({1}, {1})", "coalesce({0}, {1}) = {1}", "i IN (1, 2, 3, 5, 8, 13, 21, 34, 55)",
)  # fmt: skip


SPARK_S_OWN_FAULT = "V2ExpressionBuilder.generateExpression"
"""Spark fails to hand ``(ti = 1000) IS NULL`` to any source: it made an AND with a null of it."""


# The shuffles ------------------------------------------------------------------------------------


def some(spark: SparkSession, first: int = 0, end: int = NUM_ROWS) -> DataFrame:
    """Return rows of consecutive ``k``, which one task writes, in that order."""
    exprs = [F.expr(text).alias(name) for name, text in COLUMNS.items()]
    return spark.range(first, end, 1, 1).select(F.col("id").alias("k"), *exprs)


def write(df: DataFrame, path: Path, keys: list[str] | None, n: int, **how: object) -> None:
    how = {"options": CHUNKS, **how}
    arrow_shuffle.write_shuffle(df, path, keys=keys, num_subpartitions=n, mode="append", **how)


def by_number(spark: SparkSession, path: Path) -> None:
    for first in range(0, NUM_ROWS, NUM_ROWS // 3):
        write(some(spark, first, first + NUM_ROWS // 3), path, ["k"], 6)


def in_order(spark: SparkSession, path: Path) -> None:
    write(some(spark), path, ["i"], 4, sort_by=["s", ("d", "descending")])


def by_two_keys(spark: SparkSession, path: Path) -> None:
    for first in (0, 500):
        write(some(spark, first, first + 700), path, ["s", "day"], 12, options=PLAINLY)


def by_double(spark: SparkSession, path: Path) -> None:
    write(some(spark), path, ["d"], 5)


def by_many_keys(spark: SparkSession, path: Path) -> None:
    write(some(spark), path, ["b", "p"], 16)


def by_other_types(spark: SparkSession, path: Path) -> None:
    write(some(spark), path, ["q"], 7)
    write(some(spark, 0, 300), path, ["q"], 7)


def of_ranges(spark: SparkSession, path: Path) -> None:
    how = {"partitioner": RangePartitioner(keys=["w"])}
    write(some(spark), path, None, 5, **how)


def in_turns(spark: SparkSession, path: Path) -> None:
    write(some(spark), path, None, 3, partitioner=RoundRobinPartitioner())


def masked(spark: SparkSession, path: Path) -> None:
    write(some(spark), path, ["k"], 4)
    gone = [k for k in range(NUM_ROWS) if k % 5 == 0 or 200 <= k < 430]
    open_shuffle(path).delete({"k": gone}, erase=False)


def rewritten(spark: SparkSession, path: Path) -> None:
    by_number(spark, path)
    open_shuffle(path).delete({"k": [*range(0, NUM_ROWS, 7)]})
    open_shuffle(path).merge(by="subpartition")


def evolved(spark: SparkSession, path: Path) -> None:
    """Columns that were narrower, of other names, or not there."""
    narrow = {
        "i": "CAST(i AS SMALLINT)", "l": "CAST(l % 100 AS INT)", "d": "CAST(d AS FLOAT)",
        "p": "CAST(p AS DECIMAL(7, 2))", "sm": "CAST(sm % 100 AS TINYINT)", "w": "s", "s": "w",
    }  # fmt: skip
    before = some(spark, 0, 700)
    names = [name for name in before.columns if name not in ("z", "y", "u")]
    before = before.selectExpr(*(f"{narrow.get(name, name)} AS {name}" for name in names), "1 AS u")
    write(before, path, ["k"], 6)
    open_shuffle(path).rename_columns({"s": "w", "w": "s"})
    open_shuffle(path).drop_columns("u")
    evolves = WriteOptions(**SMALL, statistics="all", schema_evolution=True)
    write(some(spark, 500, 1_000), path, ["k"], 6, options=evolves)
    open_shuffle(path).delete({"k": [*range(0, NUM_ROWS, 11)]}, erase=False)
    write(some(spark, 1_000, 1_200), path, ["k"], 6)


SHUFFLES: tuple[Callable[[SparkSession, Path], None], ...] = (
    by_number, in_order, by_two_keys, by_double, by_many_keys, by_other_types, of_ranges, in_turns,
    masked, rewritten, evolved,
)  # fmt: skip


@pytest.fixture(scope="module")
def warehouse(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filters")
    for make in SHUFFLES:
        make(spark, directory / make.__name__)
    return directory


@pytest.fixture(scope="module")
def planner(spark: SparkSession, warehouse: Path) -> SparkSession:
    return planning_session(spark, warehouse, PLAIN | INTERPRETED, num_ranges=2)


def unpushed(spark: SparkSession, warehouse: Path, name: str) -> DataFrame:
    """Return all rows by the Python source, kept in memory: Spark alone compares them."""
    return spark.read.format("arrow_shuffle").load(str(warehouse / name)).cache()


# Pushed against not pushed -----------------------------------------------------------------------


def asked(planner: SparkSession, name: str, conditions: Sequence[str]) -> DataFrame:
    """Return `k` of the rows of each condition, and its number: of one scan for each."""
    parts = [
        f"SELECT {number} AS c, k FROM {name} WHERE {condition}"
        for number, condition in enumerate(conditions)
    ]
    return planner.sql(" UNION ALL ".join(parts))


def found_by(
    planner: SparkSession, name: str, conditions: Sequence[str]
) -> dict[str, list[int] | str]:
    """Return the keys that are read for each condition, or the error."""
    try:
        rows = asked(planner, name, conditions).collect()
    except (PySparkException, Py4JJavaError) as error:
        if len(conditions) == 1:
            return {conditions[0]: str(error)}
        half = len(conditions) // 2
        first = found_by(planner, name, conditions[:half])
        return first | found_by(planner, name, conditions[half:])
    keys: dict[int, list[int]] = {number: [] for number in range(len(conditions))}
    for number, key in rows:
        keys[number].append(key)
    return {condition: sorted(keys[number]) for number, condition in enumerate(conditions)}


@pytest.mark.parametrize("seed", [41])
def test_a_condition_that_is_pushed_keeps_the_rows_of_one_that_is_not(
    spark: SparkSession, planner: SparkSession, warehouse: Path, seed: int
) -> None:
    draw = Conditions(seed, FITTING, ["NULL"], alike=ALIKE, words=WORDS).draw
    drawn = filter(partial(has_meaning, planner.table("by_number")), distinct(iter(draw, None)))
    number = times(165, 3_300)
    wrong: list[str] = []
    num_compared = num_with_rows = 0
    for make, share in zip(SHUFFLES, _shares(number, len(SHUFFLES)), strict=True):
        name = make.__name__
        rows = unpushed(spark, warehouse, name)
        left = share
        with spark_settings(spark, INTERPRETED):
            while left > 0:
                conditions = list(islice(drawn, min(left + 10, AT_ONCE)))
                evaluated = keys_in_spark(rows, conditions)
                known = {c: keys for c, keys in evaluated.items() if not isinstance(keys, str)}
                known = dict(islice(known.items(), left))
                left -= len(known)
                several = list(known)
                for first in range(0, len(several), IN_A_QUERY):
                    found = found_by(planner, name, several[first : first + IN_A_QUERY])
                    wrong += [
                        f"{name}: {condition}: {str(keys)[:500]}, Spark: {known[condition]}"
                        for condition, keys in found.items()
                        if keys != known[condition] and not fails_anyway(rows, condition, keys)
                    ]
                num_compared += len(known)
                num_with_rows += sum(0 < len(keys) < NUM_ROWS // 2 for keys in known.values())
        rows.unpersist()
    assert not wrong, f"{len(wrong)} of {num_compared}:\n" + "\n".join(wrong[:40])
    assert num_compared == number
    assert num_with_rows > number / 4


def fails_anyway(rows: DataFrame, condition: str, found: list[int] | str) -> bool:
    """Whether Spark fails in any query with the condition, by what it makes of it.

    ``s = 'b' AND s <=> day`` makes a date of 'b'.
    """
    if not isinstance(found, str):
        return False
    if SPARK_S_OWN_FAULT in found:
        return True
    try:
        rows.where(condition).collect()
    except PySparkException as error:
        return str(error).splitlines()[0] == found.splitlines()[0]
    return False


def has_meaning(rows: DataFrame, condition: str) -> bool:
    """Whether Spark takes a condition; some compare what does not compare."""
    try:
        rows.where(condition)
    except AnalysisException:
        return False
    return True


def _shares(number: int, of: int) -> list[int]:
    return [number * (i + 1) // of - number * i // of for i in range(of)]


# What is skipped ---------------------------------------------------------------------------------


def rows_read(df: DataFrame) -> int:
    """Return how many rows the scans of a query give Spark, once it was run."""
    plan = df._jdf.queryExecution().executedPlan()
    leaves = plan.collectLeaves()
    return sum(
        leaves.apply(i).metrics().apply("numOutputRows").value() for i in range(leaves.size())
    )


@pytest.mark.parametrize(
    ("name", "condition", "most"),
    [
        ("by_number", "k = 700", 1_200 // 6),
        ("by_number", "700 = k", 1_200 // 6),
        ("by_number", "k IN (3, 17, NULL)", 1_200 // 3),
        ("by_number", "k <=> 700", 1_200 // 6),
        ("by_number", "k = 3 AND d > 0", 1_200 // 6),
        ("by_number", "(k = 3 OR k = 17) AND b", 1_200 // 3),
        ("by_number", "i >= 55", 400),
        ("by_number", "b IS NULL", 400),
        ("by_number", "w LIKE 'w0119%'", 400),
        ("by_number", "day < DATE '2024-01-05'", 400),
        ("by_number", "t > TIMESTAMP '2024-04-03 00:00:00'", 400),
        ("by_number", "q > 500000000000000000000", 400),
        ("by_number", "isnan(d)", 1_200),
        ("in_order", "s = 'ab12'", 1_000),
        ("in_order", "s LIKE 'é7%'", 1_000),
        ("by_double", "d = 0", 1_200 // 2),
        ("by_double", "d = CAST('NaN' AS DOUBLE)", 1_200 // 2),
        ("by_many_keys", "b AND p = -97.50", 1_200 // 4),
        ("by_many_keys", "p = -97.50", 1_200),
        ("masked", "k = 7", 1_200 // 4),
        ("of_ranges", "w = 'w00500'", 1_200 // 3),
    ],
)  # fmt: skip
def test_rows_that_cannot_match_are_not_read(
    spark: SparkSession,
    planner: SparkSession,
    warehouse: Path,
    name: str,
    condition: str,
    most: int,
) -> None:
    df = planner.sql(f"SELECT k FROM {name} WHERE {condition}")
    found = sorted(row["k"] for row in df.collect())
    rows = spark.read.format("arrow_shuffle").load(str(warehouse / name))
    assert found == sorted(row["k"] for row in rows.where(condition).select("k").collect())
    assert found
    assert len(found) <= rows_read(df) <= most
    is_told = re.search(r"pushed \[", plan_of(df)) is not None
    assert is_told == (condition != "isnan(d)")
