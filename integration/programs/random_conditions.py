"""Conditions in SQL, drawn at random, and the rows for which Spark finds them true."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""So many different conditions take longer to compile than to evaluate."""

TYPES = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,38)",
    "DECIMAL(5,1)", "STRING", "BINARY", "BOOLEAN", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ",
    "VARCHAR(3)",
)  # fmt: skip


class Conditions:
    """Draws conditions.

    Parameters
    ----------
    fitting
        Values in SQL that fit a column, by its name.
    any_values
        Those that are drawn now and then, whether they fit or not.
    alike
        Columns that are compared with each other more often.
    seldom
        Columns that are asked for less often; the first text stands in.
    words
        Other conditions, with a column's name and a value of it as ``{0}`` and ``{1}``.
    """

    def __init__(
        self,
        seed: int,
        fitting: Mapping[str, Sequence[str]],
        any_values: Sequence[str],
        *,
        alike: Collection[str] = (),
        seldom: Collection[str] = (),
        words: Sequence[str] = (),
    ) -> None:
        self._random = random.Random(seed)
        self._fitting = fitting
        self._any_values = any_values
        self._alike = alike
        self._seldom = seldom
        self._words = words

    def draw(self, depth: int = 2) -> str:
        """Return a condition, nested so deeply."""
        choose = self._random
        if depth and choose.random() < 0.3:
            parts = [self.draw(depth - 1) for _ in range(choose.choice((2, 2, 3)))]
            return f" {choose.choice(('AND', 'OR'))} ".join(f"({part})" for part in parts)
        if depth and choose.random() < 0.15:
            return f"NOT ({self.draw(depth - 1)})"
        return self._leaf()

    def _leaf(self) -> str:
        choose = self._random
        column = choose.choice(list(self._fitting))
        if column in self._seldom and choose.random() < 0.7:
            column = "s"
        name = column.upper() if choose.random() < 0.1 else column
        kind = choose.random()
        if kind < 0.5:
            operator = choose.choice(("=", "!=", "<", "<=", ">", ">=", "<=>"))
            sides = [name, self._value(column)]
            if choose.random() < 0.2:
                sides.reverse()
            return f" {operator} ".join(sides)
        if kind < 0.65:
            values = [self._value(column) for _ in range(choose.randint(1, 3))]
            return f"{name} {choose.choice(('IN', 'NOT IN'))} ({', '.join(values)})"
        if kind < 0.73:
            return f"{name} BETWEEN {self._value(column)} AND {self._value(column)}"
        if kind < 0.83:
            alike = self._alike if column in self._alike else ()
            other = choose.choice([*self._fitting, *alike])
            return f"{name} {choose.choice(('=', '<', '>=', '<=>'))} {other}"
        value = self._value(column)
        return choose.choice((*self._words, "({0} = {1}) IS NULL")).format(name, value)

    def _value(self, column: str) -> str:
        choose = self._random
        fitting = choose.random() < 0.9
        value = choose.choice(self._fitting[column] if fitting else self._any_values)
        if choose.random() < 0.1:
            return f"CAST({value} AS {choose.choice(TYPES)})"
        return value


def distinct(conditions: Iterator[str]) -> Iterator[str]:
    """Leave out what came before."""
    seen = set()
    for condition in conditions:
        if condition not in seen:
            seen.add(condition)
            yield condition


def keys_in_spark(rows: DataFrame, conditions: Sequence[str]) -> dict[str, list[int] | str]:
    """Return the keys that Spark keeps for each condition, or its error."""
    if not conditions:
        return {}
    truths: list[Column] = [
        F.expr(f"CAST({condition} AS BOOLEAN)").alias(str(number))
        for number, condition in enumerate(conditions)
    ]
    try:
        table = rows.select("k", *truths).toArrow().sort_by("k")
    except PySparkException as error:
        if len(conditions) == 1:
            return {conditions[0]: str(error).splitlines()[0]}
        half = len(conditions) // 2
        return keys_in_spark(rows, conditions[:half]) | keys_in_spark(rows, conditions[half:])
    keys = table["k"].combine_chunks()
    return {
        condition: keys.filter(table[str(number)].combine_chunks()).to_pylist()
        for number, condition in enumerate(conditions)
    }
