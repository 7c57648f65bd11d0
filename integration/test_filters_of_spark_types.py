"""Conditions on Spark's own types, by every way of asking: the rows of ``where``, or an error.

Conditions are drawn at random, some of them absurd. Those that are taken are evaluated by Spark,
many in one query. The ways run in this process, by the code that Spark's workers run.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

import arrow_shuffle
from arrow_format.errors import OptionError, SchemaError
from arrow_shuffle import open_shuffle
from connector.operators.spark_run import session_settings
from connector.source.reader import ShuffleSourceReader, restricted
from connector.source.stream_reader import ShuffleStreamReader
from integration.programs.random_conditions import (
    INTERPRETED,
    Conditions,
    distinct,
    keys_in_spark,
)
from integration.programs.ways import FAST
from tests.support.exhaustive import times
from tests.support.guarantees import guarantee
from tests.support.session_in_process import SessionInProcess, Settings
from tests.support.spark_session import SESSION_TIME_ZONE, spark_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NUM_ROWS = 72
AT_ONCE = 100
"""Conditions that one query of Spark evaluates."""

COLUMNS = {
    "ti": "CAST(IF(id % 13 = 0, NULL, id % 5 - 2) AS TINYINT)",
    "i": "IF(id % 11 = 0, NULL, CAST(id % 7 AS INT))",
    "j": "CAST(16777216 + id % 3 AS INT)",
    "l": "get(array(9007199254740993L, -1L, 9223372036854775807L, NULL, 5L, 0L), "
         "CAST(id % 6 AS INT))",
    "f": "get(array(0.1F, -0F, float('NaN'), NULL, 1e30F, 16777216F, 5F), CAST(id % 7 AS INT))",
    "d": "get(array(0D, -0D, double('NaN'), double('Infinity'), -1e300D, 1.5D, NULL, 5D, 0.1D), "
         "CAST(id % 9 AS INT))",
    "p": "CAST(IF(id % 9 = 0, NULL, id / 2) AS DECIMAL(9, 2))",
    "q": "CAST(id AS DECIMAL(38, 10)) / 3",
    "w": "CAST(IF(id % 2 = 0, 0, 1e-38) AS DECIMAL(38, 38))",
    "s": r"get(array('', 'it\'s', 'abc', NULL, 'ABC', 'ab', 'ab   ', '5', '5.0', 'true', "
         r"'2024-03-10', 'a\nb', 'a\\nb', '1.0'), CAST(id % 14 AS INT))",
    "c": "get(array('abc', 'ABC', 'Abc', NULL, 'x'), CAST(id % 5 AS INT)) COLLATE UTF8_LCASE",
    "r": "get(array('abc', 'abc  ', 'x', NULL), CAST(id % 4 AS INT)) COLLATE UTF8_BINARY_RTRIM",
    "ch": "rpad(get(array('ab', 'abc', '', NULL), CAST(id % 4 AS INT)), 5, ' ')",
    "v": "get(array('ab', 'ab   ', 'abc', NULL), CAST(id % 4 AS INT))",
    "b": "IF(id % 3 = 0, NULL, id % 2 = 0)",
    "y": "IF(id % 5 = 0, NULL, CAST(CAST(id % 8 AS STRING) AS BINARY))",
    "day": "date_add(DATE '2024-03-08', CAST(id % 7 AS INT))",
    "t": "timestamp_seconds(1710037800 + id * 1800)",
    "n": "timestampadd(MINUTE, id * 30, TIMESTAMP_NTZ '2024-03-09 22:00:00')",
    "iv": "make_dt_interval(0, CAST(id % 5 AS INT))",
    "iv2": "make_dt_interval(0, CAST(id % 3 AS INT))",
}  # fmt: skip
REFUSED = ("c", "r", "ch")
"""Columns that no text is compared with; asked for less often."""

LABELS = {"ch": "char(5)", "v": "varchar(5)"}

NUMBERS = (
    "5", "-1", "0", "300", "3000000000", "16777217", "5L", "5S", "2.5", "0.1", "0.10", "-0.0",
    "5.00", "1e0", "0.1e0", "-1e300", "1.5D", "0.1F", "5F", "16777217F", "9223372036854775807",
    "9223372036854775808", "-9223372036854775809", "1.5BD", "1e-38", "1234567890123456789012345",
    "12345678901234567890123456789012345678", "0.00000000000000000000000000000000000001",
)  # fmt: skip
TEXTS = [
    repr(text) for text in (
        "5", " 5 ", "5.0", "1_0", "+5", "\uff11\uff10", "1e0", "0.1", "NaN", "-inf", "abc", "ABC",
        "ab",
        "ab   ", "", "true", "f", "2024-03-10", "2024-3-10", "2024-03-10 02:30:00",
        "2024-03-10 03:00:00Z", "2024-03-10 03:00:00 Europe/Berlin", "2024-03-10 21", "300",
    )
] + [r"'it\'s'", r"'a\nb'", r"'a\\nb'", '"abc"', r"'\u0041BC'", "X'35'", "X''"]  # fmt: skip
TIMES = [
    f"{word} '{at}'"
    for word, moments in {
        "DATE": ("2024-03-10", "2024-03-11", "0001-01-01"),
        "TIMESTAMP": (
            "2024-03-10 02:30:00", "2024-03-10 22:00:00", "2024-03-10 07:00:00Z", "2024-03-10",
        ),
        "TIMESTAMP_NTZ": ("2024-03-10 02:30:00", "2024-03-10 00:00:00"),
    }.items()
    for at in moments
]  # fmt: skip
OTHERS = ["NULL", "TRUE", "FALSE", "INTERVAL '1' DAY", "CAST('NaN' AS DOUBLE)"]
ALIKE = ("ti", "i", "j", "l", "f", "d", "p")
FITTING = {
    **dict.fromkeys(("ti", "i", "j", "l", "f", "d", "p", "q", "w"), NUMBERS),
    **dict.fromkeys(("s", "c", "r", "ch", "v", "y"), TEXTS),
    **dict.fromkeys(("day", "t", "n"), TIMES),
    **dict.fromkeys(("b", "iv", "iv2"), OTHERS),
}

WORDS = (
    "{0} IS NULL", "{0} IS NOT NULL", "b", "isnan(d)", "isnan(f)", "b IS NOT TRUE",
    "{0} LIKE 'a%'",
)  # fmt: skip

SETTINGS: list[tuple[int, dict[str, str]]] = [
    (2_000, {}),
    (400, {"spark.sql.session.timeZone": "Europe/Berlin"}),
    (300, {"spark.sql.ansi.enabled": "false"}),
    (150, {"spark.sql.parser.escapedStringLiterals": "true"}),
    (50, {"spark.sql.ansi.doubleQuotedIdentifiers": "true"}),
    (50, {"spark.sql.caseSensitive": "true"}),
    (50, {"spark.sql.legacy.literal.pickMinimumPrecision": "false"}),
]
"""Numbers of conditions, and the settings of the session that they are for."""


@pytest.fixture(scope="module")
def path(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shuffle with a row for each of several edges of each type."""
    path = tmp_path_factory.mktemp("types") / "s"
    exprs = [F.expr(text).alias(name, **_label(name)) for name, text in COLUMNS.items()]
    rows = spark.range(0, NUM_ROWS, 1, 2).select(F.col("id").alias("k"), *exprs)
    arrow_shuffle.write_shuffle(rows, path, keys="k", num_subpartitions=3, options=FAST)
    return path


def _label(name: str) -> dict[str, object]:
    if name not in LABELS:
        return {}
    return {"metadata": {"__CHAR_VARCHAR_TYPE_STRING": LABELS[name]}}


# The ways ----------------------------------------------------------------------------------------


class Ways:
    """Every way of asking for the rows of a condition: their keys, ascending."""

    def __init__(self, path: Path, schema: StructType, settings: Mapping[str, str]) -> None:
        self._path = path
        self._schema = schema
        self._session = SessionInProcess(Settings(**settings))
        self._zone = settings["spark.sql.session.timeZone"]
        self._is_case_sensitive = settings.get("spark.sql.caseSensitive") == "true"

    def all(self) -> list[Callable[[str], list[int]]]:
        """Return those that see the settings; option and stream take names in any case."""
        found = [self.argument, self.join, self.aggregation, self.groups, self.subpartitions]
        return found if self._is_case_sensitive else [*found, self.option, self.stream]

    def argument(self, condition: str) -> list[int]:
        """``select(filter=)``, but for the session's part."""
        settings = session_settings(self._session, condition)  # type: ignore[arg-type]
        shuffle = restricted(open_shuffle(self._path), condition, None, settings)
        return sorted(shuffle.read(columns=["k"]).read_all()["k"].to_pylist())

    def option(self, condition: str) -> list[int]:
        reader = ShuffleSourceReader(self._options(condition), self._schema)
        return _keys(batch for part in reader.partitions() for batch in reader.read(part))

    def stream(self, condition: str) -> list[int]:
        reader = ShuffleStreamReader(self._options(condition), self._schema)
        start = reader.initialOffset()
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        parts = reader.partitions(start, end)
        return _keys(batch for part in parts for batch in reader.read(part))

    def join(self, condition: str) -> list[int]:
        left = open_shuffle(self._path).select("k", filter=condition)
        joined = left.join(open_shuffle(self._path).select("k"), "k", "inner")
        return _keys(joined.to_spark(self._session).toArrow().to_batches())

    def aggregation(self, condition: str) -> list[int]:
        counted = (
            open_shuffle(self._path)
            .select(filter=condition)
            .aggregate("k", {"*": "count"})
            .to_spark(self._session)
        )
        return _keys(counted.toArrow().to_batches())

    def groups(self, condition: str) -> list[int]:
        result = (
            open_shuffle(self._path)
            .select("k", filter=condition)
            .map_groups(_keys_of_group, pa.schema([("k", pa.int64())]))
            .to_spark(self._session)
        )
        return _keys(result.toArrow().to_batches())

    def subpartitions(self, condition: str) -> list[int]:
        result = (
            open_shuffle(self._path)
            .select("k", filter=condition)
            .map_subpartitions(_keys_of_subpartition, pa.schema([("k", pa.int64())]))
            .to_spark(self._session)
        )
        return _keys(result.toArrow().to_batches())

    def _options(self, condition: str) -> dict[str, str]:
        return {"path": str(self._path), "filter": condition, "timeZone": self._zone}


def _keys_of_group(rows: pa.Table) -> pa.Table:
    return rows.select(["k"])


def _keys_of_subpartition(_: int, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from rows


def _keys(batches: Iterator[pa.RecordBatch] | Sequence[pa.RecordBatch]) -> list[int]:
    return sorted(key for batch in batches for key in batch.column("k").to_pylist())


@guarantee("filters in SQL")
@pytest.mark.parametrize("seed", [36])
def test_a_condition_keeps_the_rows_of_where_or_is_refused(
    spark: SparkSession, path: Path, seed: int
) -> None:
    rows = spark.read.format("arrow_shuffle").load(str(path)).cache()
    values = [*NUMBERS, *TEXTS, *TIMES, *OTHERS]
    fitting = {name: FITTING[name] for name in COLUMNS}
    draw = Conditions(seed, fitting, values, alike=ALIKE, seldom=REFUSED, words=WORDS).draw
    wrong: list[str] = []
    num_refused = num_taken = 0
    num_asked = 0
    for number_at_night, settings in SETTINGS:
        number = times(number_at_night // 4, number_at_night)
        num_asked += number
        every = {"spark.sql.session.timeZone": SESSION_TIME_ZONE} | settings
        ways = Ways(path, rows.select("k").schema, every)
        asked = cycle(ways.all())
        found: dict[str, tuple[str, list[int]]] = {}
        for condition in islice(distinct(iter(draw, None)), number):
            way = next(asked)
            try:
                found[condition] = way.__name__, way(condition)
            except (OptionError, SchemaError):
                num_refused += 1
        num_taken += len(found)
        taken = list(found)
        with spark_settings(spark, every | INTERPRETED):
            for first in range(0, len(taken), AT_ONCE):
                kept = keys_in_spark(rows, taken[first : first + AT_ONCE])
                wrong += [
                    f"{found[condition][0]} {condition} {settings}: {found[condition][1]}, "
                    f"where: {expected}"
                    for condition, expected in kept.items()
                    if expected != found[condition][1]
                ]
    rows.unpersist()
    assert not wrong, f"{len(wrong)} of {num_taken}:\n" + "\n".join(wrong[:40])
    assert num_taken + num_refused == num_asked
    assert num_taken > num_asked / 3, num_refused
