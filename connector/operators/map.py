"""A user's function per subpartition of one shuffle or several, in the tasks that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

from arrow_format.operators.inputs import open_shuffles
from arrow_format.operators.into import check_into
from arrow_format.operators.map_subpartitions import check_stored_once, map_operation
from arrow_format.read.chunk_plan import check_subpartitions
from connector.operators.tasks import (
    run_in_groups,
    session_settings,
    session_time_zone,
    spark_struct,
)
from connector.options.batch import DEFAULT_TARGET_PARTITION_BYTES
from connector.spark_types import arrow_schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.inputs import Filter, Path
    from arrow_format.operators.into import Options
    from arrow_format.operators.map_subpartitions import Columns, Function
    from arrow_format.options import WriteMode
    from arrow_format.storage.open import Place


@overload
def map_subpartitions(
    spark: SparkSession,
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: StructType | pa.Schema | str,
    *,
    columns: Sequence[str] | Sequence[Columns] | None = None,
    filter: Filter | Sequence[Filter] = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame: ...
@overload
def map_subpartitions(
    spark: SparkSession,
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: StructType | pa.Schema | str,
    *,
    columns: Sequence[str] | Sequence[Columns] | None = None,
    filter: Filter | Sequence[Filter] = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    into: Place,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def map_subpartitions(
    spark: SparkSession,
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: StructType | pa.Schema | str,
    *,
    columns: Sequence[str] | Sequence[Columns] | None = None,
    filter: Filter | Sequence[Filter] = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = DEFAULT_TARGET_PARTITION_BYTES,
    into: Place | None = None,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame | ShuffleReceipt:
    """Call a function once per subpartition, in the task that reads it.

    .. code-block:: python

        def last_visit(subpartition, visits, prices):
            rows = visits.read_all().join(prices.read_all(), "item")
            yield from rows.group_by("user").aggregate([("at", "max")]).to_batches()

        map_subpartitions(spark, [visits, prices], last_visit, "user string, at_max timestamp")

    The rows that the function reads never pass through the JVM; those that it yields do. Rows are
    in the order of :meth:`arrow_format.Shuffle.read`. Versions are fixed here: later commits do not
    change the result. The calling process checks the arguments, so it must see the paths as the
    tasks do.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    shuffles
        One path or URI, or several of co-partitioned shuffles: the same partitioner over the same
        number of subpartitions, with keys that it places alike; names of keys may differ.
        Partitioners by column and your own must have equal descriptions. A broadcast shuffle is
        co-partitioned with every other one; each subpartition reads all of it, and likewise the
        rows that a partitioner of your own broadcasts.
    function
        ``function(subpartition, *readers)``, called once for every subpartition, the empty ones
        too, with a :class:`~arrow_format.BatchReader` for each shuffle; returns or yields record
        batches, whose buffers it may use again. A reader buffers a bounded part of its rows, may be
        left half read, and is closed when the function's result ends. Its timestamps have the
        session's time zone, as in ``applyInPandas``, so hours and days are those of Spark's SQL.
    schema
        Of what the function yields: a StructType, DDL text or a ``pyarrow`` schema. Columns are
        matched by name. Another type is an error; another time zone is converted.
    columns
        Columns to read, in that order: a list for all shuffles, or a list (or None) for each; all
        when None.
    filter
        The readers deliver only the rows for which it is true: text or an expression, as for
        :func:`~connector.read_shuffle`, for all shuffles; or a sequence with one (or None) for
        each. The function is called for subpartitions without such rows, too.
    subpartitions
        One, a range or several; all when None.
    version
        Of all shuffles, or a sequence with one for each; the newest when None.
    target_partition_bytes
        Bytes on disk that one task may read, of all shuffles together; one large subpartition may
        be more. Adjacent subpartitions share a task. However few bytes there are, there are two
        tasks for each core that Spark has.
    into
        Path or URI of a shuffle that the tasks write the result to, instead of passing it to the
        JVM. Rows stay in the subpartitions that they came from, without an exchange, where the
        result has the partition keys of the input. Of several inputs, it
        is the first that is not broadcast. Each row is checked: one whose key
        belongs elsewhere is an error that names it. Of broadcast shuffles alone, one subpartition
        must be chosen, as each reads all their rows.
    keys
        With ``into`` only: columns of the result to partition it by, as Spark hashes them. If
        they are the partition keys of the input, and n is its too, rows stay.
    num_subpartitions, mode
        With ``into`` only: of the shuffle that is written, as for
        :func:`~connector.write_shuffle`; the number is that of the input when None.
    options
        Memory of a task, for all shuffles together, and whether files are mapped: a
        :class:`~arrow_format.ReadOptions`. With ``into`` also, or instead, how to write: a
        :class:`~arrow_format.WriteOptions`. Defaults when None.
    storage_options
        Of object stores: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    DataFrame or ShuffleReceipt
        Lazy; its Spark partitions are in subpartition order. With ``into``, once all is written and
        committed, its receipt.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffles, or they cannot be opened; raised here and not at the
        first action. For shuffles that are not co-partitioned it says what differs.
    pyspark.errors.PySparkException
        At the first action. It contains what the function raised, with subpartition and paths;
        SchemaError for a result of another schema.
    """
    reading, target = check_into(
        into,
        options,
        keys=keys,
        num_subpartitions=num_subpartitions,
        mode=mode,
        storage_options=storage_options,
    )
    opened = open_shuffles(shuffles, version, reading, storage_options)
    called = check_subpartitions(subpartitions, opened[0].num_subpartitions)
    struct = spark_struct(spark, schema)
    operation = map_operation(
        opened,
        function,
        arrow_schema_of(struct),
        columns=columns,
        filter=filter,
        settings=session_settings(spark, filter),
        time_zone=session_time_zone(spark),
    )
    if target is not None:
        check_stored_once(opened, called)
    return run_in_groups(
        spark,
        operation,
        struct,
        what="map_subpartitions",
        subpartitions=called,
        target_partition_bytes=target_partition_bytes,
        into=target,
        calls_function=True,
    )
