"""Bounds of ranges from a sample of a DataFrame, which Spark computes once for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StructType

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.keys.bounds import WHAT
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.reservoir import Reservoir, proportional, reservoir_size
from arrow_format.keys.sampling import sample_size
from arrow_format.keys.sort_keys import key_fields
from arrow_format.options import check_num_subpartitions
from connector.arrival import Travels
from connector.plain_errors import plain_errors
from connector.spark_job import run_as_job
from connector.spark_types import arrow_schema_of, check_sort_keys, stored_schema
from connector.task_process import begin_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import Column, DataFrame

TASK, NUM_ROWS = "task", "num_rows"
"""Columns behind those of a reservoir, whose names are numbers."""


def sample_range_partitioner(
    df: DataFrame, keys: Sequence[str | tuple[str, str]] | str, num_subpartitions: int
) -> RangePartitioner:
    """Return a range partitioner whose bounds split a sample of a DataFrame evenly.

    Spark computes the rows once for it, and takes about 100 per subpartition, 10,000 at least and a
    million at most. Each task keeps a random sample of its rows, and only the key columns of these
    are collected. The seed is fixed: equal rows in equal Spark partitions give an equal sample.

    Parameters
    ----------
    df
        The rows that will be written, of a classic session or of Spark Connect.
    keys
        As in :class:`~arrow_format.keys.range_partitioner.RangePartitioner`.
    num_subpartitions
        Ranges wanted; fewer when keys repeat.

    Raises
    ------
    OptionError, SchemaError
        A key has the wrong form, names no column, or its values have no order.
    """
    n = check_num_subpartitions(num_subpartitions)
    partitioner = RangePartitioner(keys=keys)
    stored = stored_schema(df.schema)
    check_sort_keys(stored, partitioner.keys, WHAT)
    fields = key_fields(data_schema(arrow_schema_of(stored)), partitioner.keys, WHAT)
    columns = [
        _as_stored(df, stored, name).alias(str(i)) for i, (name, _) in enumerate(partitioner.keys)
    ]
    rows = df.select(*columns)
    task = ReservoirTask(sample_size(n))
    schema = StructType([*rows.schema.fields]).add(TASK, IntegerType()).add(NUM_ROWS, LongType())
    found = run_as_job(
        df.sparkSession, "sample of ranges", lambda: rows.mapInArrow(task, schema).toArrow()
    )
    schema_of_keys = pa.schema([pa.field(field.name, field.type) for field in fields])
    parts = [normalise(part, schema_of_keys) for part in _columns_of_keys(found, schema_of_keys)]
    sample = pa.Table.from_batches(parts, schema=schema_of_keys)
    tasks, num_rows = (found.column(name).to_numpy() for name in (TASK, NUM_ROWS))
    return partitioner.with_sample(proportional(sample, tasks, num_rows, sample_size(n)), n)


def _columns_of_keys(found: pa.Table, schema: pa.Schema) -> list[pa.RecordBatch]:
    keys = found.select(range(len(schema))).rename_columns(schema.names)
    batches: list[pa.RecordBatch] = keys.to_batches()
    return batches


class ReservoirTask(Travels):
    """Callable for ``mapInArrow`` that yields a sample of a Spark partition, and its length."""

    def __init__(self, size: int) -> None:
        self.size = size

    @plain_errors
    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one batch, of the columns that arrive, the task's number and its rows."""
        begin_task()
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()
        reservoir = Reservoir(reservoir_size(self.size, number), number)
        for batch in batches:
            reservoir.add(batch)
        if reservoir.num_rows:
            rows = reservoir.rows()
            columns = {
                **dict(zip(rows.schema.names, rows.columns, strict=True)),
                TASK: to_arrow(np.full(rows.num_rows, number, np.int32)),
                NUM_ROWS: to_arrow(np.full(rows.num_rows, reservoir.num_rows, np.int64)),
            }
            yield pa.RecordBatch.from_pydict(columns)


def _as_stored(df: DataFrame, stored: StructType, name: str) -> Column:
    """Return a column as a type that Spark passes as Arrow, which it does not do with CHAR."""
    column = F.col("`" + name.replace("`", "``") + "`")
    type_ = stored[name].dataType
    return column if df.schema[name].dataType == type_ else column.cast(type_)
