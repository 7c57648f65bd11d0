"""Reads a version of a shuffle, or what a consumer has not consumed yet, as a DataFrame."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from arrow_format.errors import OptionError
from arrow_format.filters.keys import KeyFilter
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.log.version_names import parse_version_name, with_zone
from arrow_format.options import SECONDS
from arrow_format.read.chunk_plan import check_subpartitions
from arrow_format.read.shuffle import open_shuffle
from arrow_format.read.subpartition_reader import SUBPARTITION_COLUMN, select_columns
from arrow_format.streaming.consumption import Consumption, request_result
from connector.operators.tasks import session_settings
from connector.options.batch import (
    ARROW_FILTER,
    DEFAULT_TARGET_PARTITION_BYTES,
    PIN,
    BatchReadOptions,
)
from connector.options.filters import format_arrow_filter
from connector.options.text import Pin, format_subpartitions
from connector.source.described import described_format, loaded_once
from connector.source.reader import restricted, spark_schema, stored_columns
from connector.spark_version import refuse_no_columns
from connector.worker_python import check_worker_python

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow.compute as pc
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.filters.keys import Keys
    from arrow_format.log.version_names import VersionName
    from arrow_format.options import ReadOptions
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place
    from arrow_format.streaming.consumption import Consumer


def read_shuffle(
    spark: SparkSession,
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    subpartitions: int | Iterable[int] | None = None,
    filter: str | pc.Expression | None = None,
    keys: Keys | None = None,
    coalesce: bool = True,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    split_skewed: bool = False,
    version: VersionName | None = None,
    with_subpartition: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a DataFrame of a committed version of a shuffle.

    The version is fixed here: later commits do not change the DataFrame. The calling process
    checks the arguments, so it must see ``path`` as the tasks do.

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
    filter
        Read only the rows for which it is true: text in the subset of SQL that
        :meth:`arrow_format.Shuffle.read` takes, or a :class:`pyarrow.compute.Expression`. The rows
        are those of ``where(filter)``, or those that PyArrow finds, and only they enter the JVM;
        files, regions and chunks that cannot have such rows are not read. Timestamps that name no
        zone have the session's. A text that may mean something else to Spark is an error.
    keys
        Read only the rows of these keys, values of all partition keys by name:
        ``{"customer": [17, 18]}``, those of several keys aligned by position; or a table. A null is
        a key like any other. Not together with ``filter``.
    coalesce
        Let one Spark partition read adjacent subpartitions up to ``target_partition_bytes``;
        otherwise each subpartition is exactly one Spark partition, also without rows to deliver.
    target_partition_bytes
        Bytes on disk that a coalesced Spark partition may have.
    split_skewed
        Let several Spark partitions read one subpartition larger than that, by map output or
        region. Of a sorted shuffle, each of them has its rows in order.
    version
        Number of the version; or name of its tag; or a time, as a ``datetime`` or a text such as
        ``2026-11-20 12:00``, for the newest version that was committed by then. A time without a
        zone is one of the session's time zone. The newest when None.
    with_subpartition
        Append the int column ``_subpartition``.
    options
        Memory of a task, and whether files are mapped; defaults when None.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame
        Lazy; its Spark partitions are in subpartition order.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffle, or the shuffle cannot be opened; raised here and not
        at the first action.
    """
    version = _with_session_zone(spark, version)
    shuffle = open_shuffle(path, version, options=options, storage_options=storage_options)
    return _frame_of(
        spark,
        shuffle,
        columns=columns,
        subpartitions=subpartitions,
        filter=filter,
        keys=keys,
        coalesce=coalesce,
        target_partition_bytes=target_partition_bytes,
        split_skewed=split_skewed,
        with_subpartition=with_subpartition,
    )


def _with_session_zone(spark: SparkSession, version: VersionName | None) -> VersionName | None:
    """Return a version that is a time without a zone as one of the session's time zone."""
    name = None if version is None else parse_version_name(version)
    if not isinstance(name, datetime) or name.tzinfo is not None:
        return name
    session_zone = str(spark.conf.get("spark.sql.session.timeZone"))
    try:  # Arrow knows the regions and offsets that Spark has
        zone = pa.scalar(0, pa.timestamp("us", session_zone)).as_py().tzinfo
    except (pa.ArrowException, LookupError, ValueError) as error:
        msg = (
            f"version={version!r}: the session's time zone {session_zone!r} is not known here; "
            "give the time with a zone"
        )
        raise OptionError(msg) from error
    return with_zone(name, zone)


def _frame_of(
    spark: SparkSession,
    shuffle: Shuffle,
    *,
    columns: Sequence[str] | None = None,
    subpartitions: int | Iterable[int] | None = None,
    filter: str | pc.Expression | None = None,
    keys: Keys | None = None,
    coalesce: bool = True,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    split_skewed: bool = False,
    with_subpartition: bool = False,
) -> DataFrame:
    """Return the DataFrame of an open shuffle; see :func:`read_shuffle`."""
    check_worker_python(spark)
    scan = BatchReadOptions(
        shuffle.path,
        coalesce=coalesce,
        target_partition_bytes=target_partition_bytes,
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
    schema = _schema_of(shuffle, columns, with_subpartition=with_subpartition)
    options: dict[str, str | int] = {
        "version": shuffle.version,
        PIN.name: str(Pin(shuffle.commit_id, shuffle.span)),
        "coalesce": str(scan.coalesce).lower(),
        "targetPartitionBytes": scan.target_partition_bytes,
        "splitSkewed": str(scan.split_skewed).lower(),
        "withSubpartition": str(scan.with_subpartition).lower(),
        "memoryBytes": shuffle.options.memory_bytes,
        "memoryMap": str(shuffle.options.memory_map).lower(),
    }
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


def _schema_of(
    shuffle: Shuffle, columns: Sequence[str] | None, *, with_subpartition: bool
) -> StructType:
    """Return the schema of a read; ``_subpartition`` may be named among the columns, or is last."""
    if columns is None:
        return spark_schema(shuffle, with_subpartition=with_subpartition)
    names = [columns] if isinstance(columns, str) else list(columns)
    stored = stored_columns(names, with_subpartition=with_subpartition)
    select_columns(shuffle.schema, stored)
    schema = spark_schema(shuffle, stored, with_subpartition=with_subpartition)
    refuse_no_columns(schema)
    if with_subpartition and SUBPARTITION_COLUMN in names:
        return StructType([schema[name] for name in names])
    return schema


# Consuming ----------------------------------------------------------------------------------------


class SparkConsumption(Consumption):
    """What a consumer has not consumed yet, read by Spark; made by :func:`consume`."""

    def __init__(self, spark: SparkSession, consumer: Consumer, shuffle: Shuffle) -> None:
        super().__init__(consumer, shuffle)
        self._spark = spark

    def read(self, **arguments: Any) -> DataFrame:  # noqa: ANN401
        """Return a DataFrame of the rows to consume.

        Parameters
        ----------
        arguments
            ``columns``, ``subpartitions``, ``filter``, ``keys``, ``coalesce``,
            ``target_partition_bytes``, ``split_skewed`` and ``with_subpartition`` as for
            :func:`~connector.read_shuffle`. All rows count as consumed, whatever the filter.
        """
        return _frame_of(self._spark, self.shuffle, **arguments)


def consume(
    spark: SparkSession,
    path: Place,
    *,
    consumer: str,
    request_timeout: str | float = 0.0,
    allow_empty: bool = False,
    flush: bool = False,
    options: ReadOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> SparkConsumption:
    """Request a result as a consumer; wait for it if it does not exist yet.

    .. code-block:: python

        with consume(spark, path, consumer="report", request_timeout="10min") as consumption:
            consumption.read().groupBy("page").count().write.parquet(target)

    Parameters
    ----------
    spark
        Session, classic or Connect.
    path
        Directory or URI of the shuffle.
    consumer
        Name of the consumer, under which its progress is kept: 1 to 100 letters, digits, ``_`` and
        ``-``. One process holds it at a time.
    request_timeout
        How long to wait for the result, for new versions of a pipelined one, or for the name:
        seconds, or text such as ``10min``.
    allow_empty
        Whether a pipelined result without new versions by then gives a shuffle without rows;
        otherwise RequestTimeoutError.
    flush
        Whether rows of a stream that have waited longer than its flush interval become a version
        first, as in :func:`arrow_format.consume`; in this process.
    options, storage_options
        As for :func:`~connector.read_shuffle`.

    Returns
    -------
    SparkConsumption
        A context manager: the rows count as consumed when it ends without an exception.

    Raises
    ------
    ConsumerError, ResultReleasedError, ResultFailedError, RequestTimeoutError, OptionError
        As :func:`arrow_format.consume`.
    """
    requested = request_result(
        path,
        consumer=consumer,
        request_timeout=(
            SECONDS.of_text("request_timeout", request_timeout)
            if isinstance(request_timeout, str)
            else request_timeout
        ),
        allow_empty=allow_empty,
        options=options,
        storage_options=storage_options,
        flush=flush,
    )
    return SparkConsumption(spark, *requested)
