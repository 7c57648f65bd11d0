"""Reading a shuffle as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from arrow_format.dataset import check_subpartitions, open_shuffle
from arrow_format.errors import OptionError
from arrow_format.options import check_integer
from arrow_format.subpartition_reader import SUBPARTITION_COLUMN, select_columns
from connector.source_options import DEFAULT_TARGET_PARTITION_BYTES, format_subpartitions
from connector.source_reader import spark_schema

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession


def read_shuffle(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    subpartitions: int | Iterable[int] | None = None,
    coalesce: bool = True,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    split_skewed: bool = False,
    version: int | None = None,
    with_subpartition: bool = False,
) -> DataFrame:
    """DataFrame of a committed version of a shuffle.

    Always a fresh ``load()`` of one version, fixed here: later commits do not change it. The
    calling process checks the arguments, so it must see ``path`` as the tasks do.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    path
        Directory or URI of the shuffle.
    columns
        Columns to read, in that order; all when None.
    subpartitions
        One, a range or several; all when None.
    coalesce
        Let one Spark partition read adjacent subpartitions up to ``target_partition_bytes``;
        otherwise it is exactly one Spark partition per subpartition, empty ones too.
    target_partition_bytes
        Bytes on disk a coalesced Spark partition may have.
    split_skewed
        Not supported yet.
    version
        The newest when None.
    with_subpartition
        Append the int column ``_subpartition``.

    Returns
    -------
    DataFrame
        Its Spark partitions are in subpartition order.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        Something does not fit; found here and not at the first action.
    """
    if split_skewed:
        msg = "split_skewed: not supported yet; leave it out"
        raise OptionError(msg)
    check_integer("target_partition_bytes", target_partition_bytes, 1, 1 << 62, "bytes")
    for name, value in (("coalesce", coalesce), ("with_subpartition", with_subpartition)):
        if not isinstance(value, bool):
            msg = f"{name}={value!r}: expected True or False"
            raise OptionError(msg)
    shuffle = open_shuffle(path, version)
    reader = (
        spark.read.format("arrow_shuffle")
        .option("version", shuffle.version)
        .option("coalesce", str(coalesce).lower())
        .option("targetPartitionBytes", target_partition_bytes)
        .option("withSubpartition", str(with_subpartition).lower())
    )
    wanted = check_subpartitions(subpartitions, shuffle.num_subpartitions)
    if wanted is not None:
        if not wanted:
            msg = "subpartitions is empty: expected at least one"
            raise OptionError(msg)
        reader = reader.option("subpartitions", format_subpartitions(tuple(wanted)))
    schema = spark_schema(shuffle, with_subpartition=with_subpartition)
    if columns is not None:
        names = [columns] if isinstance(columns, str) else list(columns)
        select_columns(shuffle.schema, [name for name in names if name != SUBPARTITION_COLUMN])
        if with_subpartition and SUBPARTITION_COLUMN not in names:
            names.append(SUBPARTITION_COLUMN)
        if SUBPARTITION_COLUMN in names and SUBPARTITION_COLUMN not in schema.names:
            select_columns(shuffle.schema, names)
        schema = StructType([schema[name] for name in names])
    return reader.schema(schema).load(shuffle.path)
