"""Reads shuffles for Spark: plans Spark partitions, and reads each as Arrow batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, StructField, StructType

from arrow_format.arrays.batches import BATCH_ROWS
from arrow_format.arrays.buffers import to_numpy
from arrow_format.arrays.spark_schema_evolution import same_spark_type
from arrow_format.arrays.stored_types import conform
from arrow_format.errors import OptionError, SchemaError
from arrow_format.filters.spark_rules import SPARK_DEFAULTS, SparkSettings
from arrow_format.read.chunk_plan import check_subpartitions
from arrow_format.read.estimates import partition_bytes, plan_shards
from arrow_format.read.rows import as_batches
from arrow_format.read.shuffle import Shuffle, check_there, open_pinned, open_shuffle
from arrow_format.read.subpartition_reader import (
    SUBPARTITION_COLUMN,
    select_columns,
    with_subpartition_schema,
)
from arrow_format.storage.open import open_storage
from arrow_format.streaming.result_request import await_result
from connector.options.batch import parse_read_options
from connector.options.stream import parse_schema_options
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.spark_types import spark_schema_of_stored
from connector.spark_version import refuse_no_columns, to_arrow_schema
from connector.task_process import begin_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow.compute as pc

    from arrow_format.arrays.column_ids import Columns
    from arrow_format.filters.keys import Keys
    from arrow_format.read.chunk_plan import Piece
    from arrow_format.read.rows import Rows
    from arrow_format.storage.open import Storage
    from connector.options.batch import BatchReadOptions


@dataclass
class SubpartitionRanges(InputPartition):
    """What one Spark task reads: a :class:`~arrow_format.read.estimates.Shard`."""

    ranges: tuple[tuple[int, int], ...]
    piece: Piece | None = None
    shuffle: Shuffle | None = None
    """What it reads of, where that is not what the reader carries."""


class ShuffleSourceReader(ChecksOnArrival, DataSourceReader):
    """Reads one version of a shuffle.

    Filters are never pushed down: Spark caches the plan per ``load()`` and gives wrong rows when a
    DataFrame is used again with another filter. Options and columns are checked here, before any
    task runs.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        meant: Mapping[str, int] | None = None,
    ) -> None:
        parsed = parse_read_options(options)
        self._options = parsed
        self._schema = to_arrow_schema(schema)
        if parsed.request.consumer is not None:
            msg = (
                "option consumer: a batch read cannot know when its rows have been consumed. Use "
                "arrow_shuffle.consume(path, consumer=...), or spark.readStream"
            )
            raise OptionError(msg)
        self._shuffle = shuffle = open_requested(parsed)
        now = shuffle.snapshot.newest.columns
        check_meant(shuffle.path, schema.names, meant, now, "DataFrame or view", "make it again")
        self._columns = check_columns(shuffle, schema, with_subpartition=parsed.with_subpartition)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Spark partitions in subpartition order."""
        shuffle = self._shuffle
        partitions = spark_partitions(shuffle, self._options)
        parts = shuffle.for_tasks([partition.ranges for partition in partitions])
        return [
            partition if part is shuffle else replace(partition, shuffle=part)
            for partition, part in zip(partitions, parts, strict=True)
        ]

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the verified batches of one Spark partition; runs in the task."""
        if not isinstance(partition, SubpartitionRanges):
            msg = f"partition is {type(partition).__name__}: expected one of partitions()"
            raise OptionError(msg)
        shuffle = partition.shuffle or self._shuffle
        yield from read_ranges(shuffle, partition, self._schema, self._columns)


# Opening and schemas ------------------------------------------------------------------------------


def storage_of(options: BatchReadOptions) -> Storage:
    """Open the storage of the path that the options name."""
    return open_storage(options.path, options.storage_options)


def open_requested(options: BatchReadOptions) -> Shuffle:
    """Open the version to read, with its filter; first wait for it, where the options say so.

    Raises CorruptShuffleError if another commit has the number of a pinned version, and as
    :func:`restricted`.
    """
    return restricted_by(_open(options), options)


def restricted_by(shuffle: Shuffle, options: BatchReadOptions) -> Shuffle:
    """Return a shuffle restricted to the rows that options ask for; as :func:`restricted`."""
    shuffle = shuffle.latest_by(options.latest_by)
    given = options.filter if options.arrow_filter is None else options.arrow_filter
    if isinstance(given, pa.RecordBatch):
        return restricted(shuffle, keys=given)
    return restricted(shuffle, given, settings=options.settings)


def restricted(
    shuffle: Shuffle,
    filter: str | pc.Expression | None = None,
    keys: Keys | None = None,
    settings: SparkSettings = SPARK_DEFAULTS,
) -> Shuffle:
    """Return a shuffle restricted to the rows of a filter or of keys; itself where both are None.

    Raises OptionError and SchemaError where they do not fit the shuffle, or both are given.
    """
    if keys is None:
        return shuffle if filter is None else shuffle.where(shuffle.bound(filter, settings))
    if filter is not None:
        msg = "filter and keys: give one of them, and filter the rows of the keys with where()"
        raise OptionError(msg)
    return shuffle.where(shuffle.bound_keys(keys))


def _open(options: BatchReadOptions) -> Shuffle:
    storage = storage_of(options)
    if isinstance(options.version, int) and options.pin is not None:
        check_there(storage)
        commit_id, span = options.pin
        return open_pinned(storage, options.version, commit_id, options.options, span)
    if options.request.timeout and options.version is None:
        await_result(storage, options.request.timeout)
    return open_shuffle(storage, options.version, options=options.options)


def schema_of_source(options: Mapping[str, str]) -> tuple[StructType, dict[str, int]]:
    """Return the schema of the shuffle that options name, and the ids of its columns by name."""
    parsed = parse_schema_options(options)
    shuffle = open_requested(parsed)
    schema = spark_schema(shuffle, with_subpartition=parsed.with_subpartition)
    return schema, shuffle.snapshot.newest.columns.by_name


def spark_schema(
    shuffle: Shuffle, columns: Sequence[str] | None = None, *, with_subpartition: bool = False
) -> StructType:
    """Return the Spark schema of columns of a shuffle, all when None, in the order given.

    Other columns may have any type. ``with_subpartition`` appends the column ``_subpartition``,
    which the shuffle must not have itself.
    """
    schema = spark_schema_of_stored(shuffle.schema_of(columns), shuffle.spark_schema)
    if with_subpartition:
        with_subpartition_schema(shuffle.schema)
        schema = StructType(
            [*schema.fields, StructField(SUBPARTITION_COLUMN, IntegerType(), nullable=False)]
        )
    return schema


def check_columns(shuffle: Shuffle, schema: StructType, *, with_subpartition: bool) -> list[str]:
    """Check names and types of a requested schema; return the columns to read from the shuffle."""
    refuse_no_columns(schema)
    columns = stored_columns(schema.names, with_subpartition=with_subpartition)
    stored = shuffle.schema
    try:
        select_columns(with_subpartition_schema(stored) if with_subpartition else stored, columns)
    except SchemaError as error:
        msg = f"{shuffle.path}: {error}"
        raise SchemaError(msg) from None
    delivered = spark_schema(shuffle, columns, with_subpartition=with_subpartition)
    for field in schema.fields:
        type_ = delivered[field.name].dataType
        if not same_spark_type(type_.jsonValue(), field.dataType.jsonValue()):
            msg = (
                f"{shuffle.path}: column {field.name!r} is {type_.simpleString()}, not "
                f"{field.dataType.simpleString()}; cast after reading"
            )
            raise SchemaError(msg)
    if with_subpartition and SUBPARTITION_COLUMN not in schema.names:
        msg = (
            f"option withSubpartition: the schema that was given lacks it; add "
            f"`{SUBPARTITION_COLUMN} int` to it"
        )
        raise OptionError(msg)
    return columns


def check_meant(
    root: str,
    names: Iterable[str],
    meant: Mapping[str, int] | None,
    now: Columns,
    what: str,
    advice: str,
) -> None:
    """Check that names are still those of the columns that they meant.

    ``meant`` are ids by name; None where it is not known what a name meant, and one that it lacks
    meant nothing. ``what`` uses the names, since when is what the message says.

    Raises
    ------
    SchemaError
        A column was renamed or dropped; another may have its name now.
    """
    ids, meant = now.by_name, meant or {}
    altered = [name for name in names if name in meant and meant[name] != ids.get(name)]
    if altered:
        msg = (
            f"{root}: {', '.join(map(repr, altered))} was renamed or dropped since the {what} "
            f"began: {advice}, to use the columns that there are now"
        )
        raise SchemaError(msg)


def stored_columns(names: Iterable[str], *, with_subpartition: bool) -> list[str]:
    """Return the requested names, without that of the subpartition where it is appended."""
    return [name for name in names if not (with_subpartition and name == SUBPARTITION_COLUMN)]


# Planning and reading -----------------------------------------------------------------------------


def spark_partitions(shuffle: Shuffle, options: BatchReadOptions) -> list[SubpartitionRanges]:
    """Distribute the subpartitions of the options over Spark partitions, in order.

    Those without rows of the filter are left out where Spark partitions are coalesced; otherwise
    each has one.
    """
    wanted = (
        shuffle.candidates(options.subpartitions)
        if options.coalesce
        else check_subpartitions(options.subpartitions, shuffle.num_subpartitions)
    )
    weights = to_numpy(shuffle.read_bytes)
    numbers = (
        np.arange(shuffle.num_subpartitions) if wanted is None else np.asarray(wanted, np.int64)
    )
    if not options.coalesce:
        return [SubpartitionRanges(((number, number + 1),)) for number in numbers.tolist()]
    max_bytes = partition_bytes(int(weights[numbers].sum()), options.target_partition_bytes)
    shards = plan_shards(
        weights, numbers, max_bytes, cuts=options.split_skewed and shuffle.cut_bytes is not None
    )
    return [SubpartitionRanges(shard.ranges, shard.piece) for shard in shards] or [
        SubpartitionRanges(())
    ]


def read_ranges(
    shuffle: Shuffle, partition: SubpartitionRanges, schema: pa.Schema, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the verified batches of one Spark partition, in subpartition order; runs in the task.

    ``schema`` is that of the batches as Spark takes them: the ``columns`` of the shuffle, and last
    the subpartition if it has one column more.
    """
    begin_task()
    with_subpartition = len(columns) < len(schema)
    stored = pa.schema([shuffle.schema.field(name) for name in columns])

    def rows() -> Iterator[Rows]:
        for first, end in partition.ranges:
            if shuffle.sort_by:
                yield from shuffle.rows(range(first, end), columns, piece=partition.piece)
            else:
                yield from shuffle.reader(first, end, columns, piece=partition.piece)

    for batch in as_batches(
        rows(),
        with_subpartition_schema(stored) if with_subpartition else stored,
        with_subpartition=with_subpartition,
        min_rows=BATCH_ROWS,
        max_bytes=shuffle.options.batch_bytes,
    ):
        yield conform(batch, schema)
