"""Reading a shuffle as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from arrow_format.errors import OptionError
from arrow_format.options import check_integer
from arrow_format.read.plan import check_subpartitions
from arrow_format.read.shuffle import open_shuffle
from arrow_format.read.subpartition_reader import SUBPARTITION_COLUMN, select_columns
from connector.options.source import (
    DEFAULT_TARGET_PARTITION_BYTES,
    PIN,
    check_split,
    format_pin,
    format_subpartitions,
)
from connector.source.described import described_format
from connector.source.reader import spark_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.options import ReadOptions
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place


def read_shuffle(
    spark: SparkSession,
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    subpartitions: int | Iterable[int] | None = None,
    coalesce: bool = True,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    split_skewed: bool = False,
    version: int | None = None,
    with_subpartition: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
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
        Let several Spark partitions read one subpartition that is larger than that, by map output
        or region. Of a sorted shuffle, each of them has its rows in order.
    version
        The newest when None.
    with_subpartition
        Append the int column ``_subpartition``.
    options
        Memory of a task, and mapping; defaults when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame
        Its Spark partitions are in subpartition order.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        Something does not fit; found here and not at the first action.
    """
    shuffle = open_shuffle(path, version, options=options, storage_options=storage_options)
    return frame_of(
        spark,
        shuffle,
        columns=columns,
        subpartitions=subpartitions,
        coalesce=coalesce,
        target_partition_bytes=target_partition_bytes,
        split_skewed=split_skewed,
        with_subpartition=with_subpartition,
    )


def frame_of(
    spark: SparkSession,
    shuffle: Shuffle,
    *,
    columns: Sequence[str] | None = None,
    subpartitions: int | Iterable[int] | None = None,
    coalesce: bool = True,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    split_skewed: bool = False,
    with_subpartition: bool = False,
) -> DataFrame:
    """DataFrame of a shuffle that is open, pinned; see :func:`read_shuffle`."""
    check_integer("target_partition_bytes", target_partition_bytes, 1, 1 << 62, "bytes")
    for name, value in (
        ("coalesce", coalesce),
        ("split_skewed", split_skewed),
        ("with_subpartition", with_subpartition),
    ):
        if not isinstance(value, bool):
            msg = f"{name}={value!r}: expected True or False"
            raise OptionError(msg)
    check_split("split_skewed", "coalesce=False", split_skewed, coalesce)
    wanted = check_subpartitions(subpartitions, shuffle.num_subpartitions)
    selection = None
    if wanted is not None:
        if not wanted:
            msg = "subpartitions is empty: expected at least one"
            raise OptionError(msg)
        selection = format_subpartitions(tuple(wanted))
    schema = _schema_of(shuffle, columns, with_subpartition=with_subpartition)
    reader = (
        spark.read.format(described_format(spark, shuffle, selection))
        .option("version", shuffle.version)
        .option(PIN, format_pin(shuffle.commit_id, shuffle.span))
        .option("coalesce", str(coalesce).lower())
        .option("splitSkewed", str(split_skewed).lower())
        .option("targetPartitionBytes", target_partition_bytes)
        .option("withSubpartition", str(with_subpartition).lower())
        .option("memoryBytes", shuffle.options.memory_bytes)
        .option("memoryMap", str(shuffle.options.memory_map).lower())
    )
    if selection is not None:
        reader = reader.option("subpartitions", selection)
    return reader.schema(schema).load(shuffle.path)


def _schema_of(
    shuffle: Shuffle, columns: Sequence[str] | None, *, with_subpartition: bool
) -> StructType:
    """Return the schema of a read; ``_subpartition`` may be named among the columns, or is last."""
    if columns is None:
        return spark_schema(shuffle, with_subpartition=with_subpartition)
    names = [columns] if isinstance(columns, str) else list(columns)
    stored = [name for name in names if not (with_subpartition and name == SUBPARTITION_COLUMN)]
    select_columns(shuffle.schema, stored)
    schema = spark_schema(shuffle, stored, with_subpartition=with_subpartition)
    if with_subpartition and SUBPARTITION_COLUMN in names:
        return StructType([schema[name] for name in names])
    return schema
