"""The four ways of writing a shuffle through Spark, under one signature, and rows to compare."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

import arrow_shuffle
from arrow_format.options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

FAST = WriteOptions(sync=False)
"""Default options without fsync: tests on other subjects need no durability."""


class Way(Protocol):
    """Writes a DataFrame as a new shuffle, or appends to the one that is there."""

    def __call__(self, df: DataFrame, path: Path | str, keys: Sequence[str], n: int) -> None: ...


def by_function(df: DataFrame, path: Path | str, keys: Sequence[str], n: int) -> None:
    arrow_shuffle.write_shuffle(
        df, path, keys=keys, num_subpartitions=n, mode="append", options=FAST
    )  # fmt: skip


def by_hook(df: DataFrame, path: Path | str, keys: Sequence[str], n: int) -> None:
    task = arrow_shuffle.ShuffleMapTask(
        path, schema=df.schema, keys=keys, num_subpartitions=n, options=FAST
    )
    statuses = df.mapInArrow(task, task.status_schema).collect()
    arrow_shuffle.commit_shuffle(task, statuses, mode="append")


def by_data_source(df: DataFrame, path: Path | str, keys: Sequence[str], n: int) -> None:
    writer = df.write.format("arrow_shuffle").mode("append")
    writer.option("keys", json.dumps(list(keys))).option("numSubpartitions", n).save(str(path))


def by_sql(df: DataFrame, path: Path | str, keys: Sequence[str], n: int) -> None:
    columns = ", ".join(
        f"`{field.name}` {field.dataType.simpleString()}{'' if field.nullable else ' NOT NULL'}"
        for field in df.schema
    )
    df.createOrReplaceTempView("rows_to_write")
    df.sparkSession.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW shuffle_to_write ({columns}) USING arrow_shuffle "
        f"OPTIONS (path '{path}', keys '{json.dumps(list(keys))}', numSubpartitions '{n}')"
    )
    df.sparkSession.sql("INSERT INTO shuffle_to_write SELECT * FROM rows_to_write")


WAYS: dict[str, Way] = {
    "write_shuffle": by_function,
    "mapInArrow": by_hook,
    "df.write": by_data_source,
    "SQL": by_sql,
}


def in_one_order(table: pa.Table) -> pa.Table:
    """The rows of a table without nested columns in an order that depends on nothing else."""
    plain = pa.table(table.columns, schema=pa.schema([(f.name, f.type) for f in table.schema]))
    return plain.combine_chunks().sort_by([(name, "ascending") for name in plain.column_names])


def assert_same_rows(found: pa.Table, expected: pa.Table) -> None:
    """Both tables hold the same rows the same number of times, in any order."""
    assert found.schema.names == expected.schema.names
    assert found.schema.types == expected.schema.types
    assert found.num_rows == expected.num_rows
    assert in_one_order(found).equals(in_one_order(expected))
