"""Bounds of ranges from a sample of a DataFrame, which Spark takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.keys.bounds import WHAT
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.sampling import SEED, sample_size
from arrow_format.keys.sort_keys import key_fields
from arrow_format.options import check_num_subpartitions
from connector.spark_types import arrow_schema_of, check_sort_keys, stored_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def sample_range_partitioner(
    df: DataFrame, keys: Sequence[str | tuple[str, str]] | str, num_subpartitions: int
) -> RangePartitioner:
    """Range partitioner whose bounds split a sample of a DataFrame evenly.

    Spark counts the rows and then takes the sample: about 100 rows per subpartition, 10,000 at
    least and a million at most. Only the key columns of these come here. Rows and seed being equal,
    so is the sample.

    Parameters
    ----------
    df
        The rows that will be written, of a classic session or of Spark Connect.
    keys
        As in :class:`~arrow_format.keys.range_partitioner.RangePartitioner`.
    num_subpartitions
        Ranges wanted; there may be fewer bounds than that takes when keys repeat.

    Raises
    ------
    OptionError, SchemaError
        A key is not of its form, not there, or its values have no order.
    """
    n = check_num_subpartitions(num_subpartitions)
    partitioner = RangePartitioner(keys=keys)
    stored = stored_schema(df.schema)
    check_sort_keys(stored, partitioner.keys, WHAT)
    fields = key_fields(data_schema(arrow_schema_of(stored)), partitioner.keys, WHAT)
    rows = df.select(*(_as_stored(df, stored, name) for name, _ in partitioner.keys))
    size = sample_size(n)
    num_rows = rows.count()
    if num_rows > size:
        rows = rows.sample(withReplacement=False, fraction=size / num_rows, seed=SEED)
    schema = pa.schema([pa.field(field.name, field.type) for field in fields])
    batches = [normalise(batch, schema) for batch in rows.toArrow().to_batches()]
    return partitioner.with_sample(pa.Table.from_batches(batches, schema=schema), n)


def _as_stored(df: DataFrame, stored: StructType, name: str) -> Column:
    """Return a column that Spark can hand over as Arrow, which it does not do with CHAR."""
    column = F.col("`" + name.replace("`", "``") + "`")
    type_ = stored[name].dataType
    return column if df.schema[name].dataType == type_ else column.cast(type_).alias(name)
