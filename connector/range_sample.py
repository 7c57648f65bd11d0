"""Bounds of ranges from a sample of a DataFrame, which Spark computes once for it.

An expression thins the rows where they are made: none passes through Python, and most leave no
task. A task cannot know how many rows will follow, nor how many tasks. So a row is kept with a
probability that falls with the rows before it, and represents as many as one over that.

Spark's own ``RangePartitioner.sketch`` keeps a reservoir per task, and computes those tasks again
that had more rows than expected. Here all are computed again where the sample says little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.keys.bounds import WHAT
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.sampling import MAX_ROWS, sample_size
from arrow_format.keys.sort_keys import key_fields
from arrow_format.options import check_num_subpartitions
from connector.spark_job import run_as_job
from connector.spark_types import arrow_schema_of, check_sort_keys, stored_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

SEED = 0x5A3E_91C7_0D42_F86B
"""Unlike any a user takes: where a key is ``rand(42)``, rows chosen by it have the least keys."""

LEAST_ROWS = 100
"""So many rows of a task are kept at least, however many tasks come before it."""

LEAST_PER_RANGE = 40
"""Rows of equal weight per range that a sample should be as good as; else another is taken."""

WEIGHT = "weight"
"""Column behind those of the keys, whose names are numbers: rows that a row represents."""


def sample_range_partitioner(
    df: DataFrame, keys: Sequence[str | tuple[str, str]] | str, num_subpartitions: int
) -> RangePartitioner:
    """Return a range partitioner whose bounds split a sample of a DataFrame evenly.

    .. code-block:: python

        by_k = arrow_shuffle.sample_range_partitioner(df, "k", 8)
        arrow_shuffle.write_shuffle(df, "/data/ranges", partitioner=by_k, num_subpartitions=8)

    Spark computes the rows once for it, in one job, and only the key columns of some hundred rows
    per subpartition are collected, of some tens of thousands at least. It computes them a second
    time where most are in a few of the last tasks, as those of a filter may be, since the first
    sample has few of them then. The seed is fixed: equal rows in equal Spark partitions give equal
    bounds.

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
    rows, size = df.select(*columns), sample_size(n)
    found = _collected(thinned(rows, size))
    weights = found[WEIGHT].to_numpy()
    if says_little(weights, size, n):
        share = size / weights.sum()
        found = _collected(rows.where(F.rand(SEED) < share).withColumn(WEIGHT, F.lit(1.0)))
        weights = found[WEIGHT].to_numpy()
    schema = pa.schema([pa.field(field.name, field.type) for field in fields])
    found = found.drop_columns(WEIGHT).rename_columns(schema.names)
    parts = [normalise(part, schema) for part in found.to_batches()]
    return partitioner.with_sample(pa.Table.from_batches(parts, schema=schema), n, weights)


def thinned(rows: DataFrame, size: int) -> DataFrame:
    """Return random rows that are as good as ``size`` of equal weight, and a column of weights.

    Row i of task j, both from 0, is kept with the probability ``size / ((i + 1) (j + 1))`` at most:
    where tasks are about equally long, there are at least so many rows as the divisor. Early rows
    are thereby kept too often, and have the smaller weight. Of T tasks of N rows each, about
    ``size * ln(T) * (1 + ln(N T / size) - ln(T) / 2)`` are kept. Bounds from them are as even as
    from ``4 * size`` rows of equal weight; from ``2 * size`` if all rows are in the first task, and
    from ``2 * size / T``, but ``2 * LEAST_ROWS`` at least, if all are in the last.
    """
    # The lower 33 bits of this number count the rows of a task.
    position = F.monotonically_increasing_id().bitwiseAND((1 << 33) - 1) + F.lit(1.0)
    share = F.lit(float(min(size, MAX_ROWS // 4))) / (F.spark_partition_id() + F.lit(1.0))
    weight = F.greatest(position / F.greatest(share, F.lit(float(LEAST_ROWS))), F.lit(1.0))
    numbered = rows.select("*", weight.alias(WEIGHT), F.rand(SEED).alias("draw"))
    return numbered.where(F.col("draw") * F.col(WEIGHT) < 1).drop("draw")


def says_little(weights: NDArray[np.float64], size: int, num_ranges: int) -> bool:
    """Whether ``size`` rows of equal weight would be worth more than a sample, by far.

    One that has all rows is worth most. Otherwise it is worth ``sum(w) ** 2 / sum(w ** 2)`` rows of
    equal weight (Kish's effective sample size).
    """
    squares = float(weights @ weights)
    least = min(size / 3, LEAST_PER_RANGE * num_ranges)
    return squares > len(weights) and float(weights.sum()) ** 2 < least * squares


def _collected(rows: DataFrame) -> pa.Table:
    return run_as_job(rows.sparkSession, "sample of ranges", rows.toArrow)


def _as_stored(df: DataFrame, stored: StructType, name: str) -> Column:
    """Return a column as a type that Spark passes as Arrow, which it does not do with CHAR."""
    column = F.col("`" + name.replace("`", "``") + "`")
    type_ = stored[name].dataType
    return column if df.schema[name].dataType == type_ else column.cast(type_)
