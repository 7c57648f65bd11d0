"""Reads a version of a shuffle, or what a consumer has not consumed yet, as a DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import OptionError
from arrow_format.filters.keys import KeyFilter
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.read.chunk_plan import check_subpartitions
from connector.jvm_reader import frame_of_jvm, why_not_jvm
from connector.operators.spark_run import session_settings
from connector.options.batch import (
    ARROW_FILTER,
    DEFAULT_TARGET_PARTITION_BYTES,
    PIN,
    BatchReadOptions,
)
from connector.options.filters import format_arrow_filter
from connector.options.text import Pin, format_subpartitions
from connector.source.described import described_format, loaded_once
from connector.source.reader import restricted, spark_schema
from connector.worker_python import check_worker_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.filters.keys import Keys
    from arrow_format.read.shuffle import Shuffle


def frame_of_shuffle(
    spark: SparkSession,
    shuffle: Shuffle,
    *,
    columns: Sequence[str] | None = None,
    subpartitions: int | Iterable[int] | None = None,
    filter: str | pc.Expression | None = None,
    keys: Keys | None = None,
    coalesce: bool | None = None,
    target_partition_bytes: int | None = None,
    split_skewed: bool = False,
    with_subpartition: bool = False,
) -> DataFrame:
    """Return the lazy DataFrame of rows of an open shuffle.

    Parameters and errors are those of :meth:`arrow_shuffle.Shuffle.to_spark`, and of ``select``.
    """
    scan = BatchReadOptions(
        shuffle.path,
        coalesce=coalesce is not False,
        target_partition_bytes=(
            DEFAULT_TARGET_PARTITION_BYTES
            if target_partition_bytes is None
            else target_partition_bytes
        ),
        split_skewed=split_skewed,
        with_subpartition=with_subpartition,
    )
    wanted = check_subpartitions(subpartitions, shuffle.num_subpartitions)
    if wanted is not None and not wanted:
        msg = "subpartitions is empty: expected at least one"
        raise OptionError(msg)
    selection = None if wanted is None else format_subpartitions(wanted)
    settings = SparkSettings() if filter is None else session_settings(spark, filter)
    shuffle = restricted(shuffle, filter, keys, settings)
    schema = spark_schema(shuffle, columns, with_subpartition=with_subpartition)
    pin = str(Pin(shuffle.commit_id, shuffle.span))
    is_divided = coalesce is not None or split_skewed or target_partition_bytes is not None
    why = why_not_jvm(
        spark,
        shuffle,
        filter=filter,
        keys=keys,
        subpartitions=subpartitions,
        is_divided=is_divided,
    )
    if why is None:
        text = filter if isinstance(filter, str) else None
        return frame_of_jvm(spark, shuffle, schema, text, pin)
    check_worker_python(spark)
    options: dict[str, str | int] = {
        "version": shuffle.version,
        PIN.name: pin,
        "coalesce": str(scan.coalesce).lower(),
        "targetPartitionBytes": scan.target_partition_bytes,
        "splitSkewed": str(scan.split_skewed).lower(),
        "withSubpartition": str(scan.with_subpartition).lower(),
        "memoryBytes": shuffle.options.memory_bytes,
        "memoryMap": str(shuffle.options.memory_map).lower(),
    }
    if shuffle.latest_column is not None:
        options["latestBy"] = shuffle.latest_column
    if settings.time_zone is not None:
        options["timeZone"] = settings.time_zone
    if selection is not None:
        options["subpartitions"] = selection
    if isinstance(filter, str):
        options["filter"] = filter
    elif filter is not None:
        options[ARROW_FILTER.name] = format_arrow_filter(filter)
    elif isinstance(shuffle.filter, KeyFilter):
        options[ARROW_FILTER.name] = format_arrow_filter(shuffle.filter.batch)
    format_ = described_format(spark, shuffle, selection)
    reader = spark.read.format(format_).options(**options).schema(schema)
    key = (format_, schema.json(), tuple(sorted(options.items())))
    return loaded_once(spark, key, lambda: reader.load(shuffle.path))
