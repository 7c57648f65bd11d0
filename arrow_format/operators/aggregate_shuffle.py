"""The aggregation of a shuffle, in tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, overload

from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.operators.aggregate import aggregate_range
from arrow_format.operators.aggregation_plan import plan_aggregation, refuse_partial_filter
from arrow_format.operators.inputs import open_shuffles, where
from arrow_format.operators.into import check_into
from arrow_format.operators.local_run import TARGET_PARTITION_BYTES, Workers, run_operation
from arrow_format.operators.tasks import Operation, WholeGroups

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.aggregation_plan import Aggregation, AggregationPlan
    from arrow_format.operators.inputs import Filter, Path
    from arrow_format.operators.into import Options
    from arrow_format.options import WriteMode
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place


LEAST_BYTES = 32 << 20
"""Memory of a worker: measured, the decoded chunks, a block of rows and its groups take as much as
that where its share is the least."""


def aggregate_operation(shuffle: Shuffle, plan: AggregationPlan) -> Operation:
    """Return a planned aggregation of a shuffle; OptionError for a filter of partial results."""
    refuse_partial_filter(shuffle)
    work = WholeGroups(partial(aggregate_range, shuffle, plan))
    return Operation((shuffle,), work, candidates=shuffle.candidates())


@overload
def aggregate_shuffle(
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    filter: Filter = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchReader: ...
@overload
def aggregate_shuffle(
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    filter: Filter = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: Place,
    partition_by: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def aggregate_shuffle(
    shuffle: Path,
    keys: str | Sequence[str],
    aggregations: Sequence[Aggregation] | Mapping[str, Aggregation | str],
    *,
    filter: Filter = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: Place | None = None,
    partition_by: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchReader | ShuffleReceipt:
    """Aggregate rows with equal keys, in threads or processes of this machine.

    .. code-block:: python

        aggregate_shuffle(path, "user", [("price", "sum"), ("price", "avg")])
        aggregate_shuffle(path, "user", {"price": "sum", "*": "count"})
        aggregate_shuffle(path, "user", {"spent": ("price", "sum")})

    ``connector.aggregate_shuffle`` computes the same in Spark's tasks.

    Parameters
    ----------
    shuffle
        Path or URI. None of its rows may be broadcast, since every subpartition would count them.
    keys
        Columns to group by; they contain the partition keys, so that no group spans two
        subpartitions. Nulls form a group; so do all NaN, and -0.0 with 0.0. With a partitioner of
        your own, they must contain the columns that it uses.
    aggregations
        (column, function) or (column, function, options), with results named ``price_sum``; or a
        mapping from names of results to these, or from columns to functions. When empty, the result
        is the distinct keys.

        Functions of Spark's SQL give its values and types: ``sum``, ``avg``, ``min``, ``max``,
        ``count`` (of ``"*"``: rows), ``count_distinct``, ``first``, ``last``, ``stddev``,
        ``collect_list`` and more. Functions that only PyArrow has give its results: ``tdigest``,
        ``min_max`` and more. All of them, and differences from Spark, are in
        ``docs/guide/joins-and-aggregation.md``. Options are PyArrow's, for functions that it has.
    filter
        Aggregate only the rows for which it is true: text or an expression, as for
        :meth:`Shuffle.read`. A group without such rows is not in the result.
    subpartitions
        One, a range or several; all when None.
    version
        The newest when None.
    target_partition_bytes
        Bytes on disk that one task reads, unless one subpartition has more. Adjacent subpartitions
        share a task.
    executor
        What runs the tasks: a ``ThreadPoolExecutor`` or ``ProcessPoolExecutor`` of
        ``concurrent.futures``, which stays open until all is read, and is not shut down. When None,
        threads on all cores, which end with the reader.
    time_zone
        Of timestamps without one in a filter; when None, a filter that needs it is refused.
    into
        Path or URI of a shuffle that the tasks write the result to. Rows stay in the subpartitions
        that they came from where the result has the partition keys of the input. Each row is
        checked: one whose key belongs elsewhere is an error that names it.
    partition_by
        With ``into`` only: columns of the result to partition it by, as Spark hashes them.
    num_subpartitions, mode
        With ``into`` only: of the shuffle that is written, as for
        :func:`~arrow_format.write_shuffle`; the number is that of the input when None.
    options
        Memory, and whether files are mapped: a :class:`~arrow_format.ReadOptions`. With ``into``
        also, or instead, how to write: a :class:`~arrow_format.WriteOptions`. Defaults when None.
    storage_options
        Of object stores: credentials, region, endpoint, as obstore names them. They win over the
        environment, and are never shown.

    Returns
    -------
    BatchReader or ShuffleReceipt
        The keys, then a column for each aggregation, one row per group, in the order of tasks, and
        in none within. Tasks begin when it is read, and stop when it is closed, dropped, or fails.
        With ``into``, the receipt of what was written and committed.

        All workers and the results that wait share ``memory_bytes`` of ``ReadOptions`` in equal
        parts, of 32 MiB at least: there are no more workers than that allows. Without
        ``ReadOptions`` each part is 256 MiB. Results of processes wait in files of the system's
        temporary directory. With ``into``, the workers share ``sort_buffer_bytes`` as well.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffles, or they cannot be opened.
    ShuffleError
        While reading or writing: a process of the executor died.
    ArithmeticOverflowError
        While reading or writing: a result exceeds its type; the message names column and group.
    """
    reading, target = check_into(
        into,
        options,
        keys=partition_by,
        num_subpartitions=num_subpartitions,
        mode=mode,
        storage_options=storage_options,
        name_of_keys="partition_by",
    )
    workers = Workers.of(executor, reading, 1, least_bytes=LEAST_BYTES)
    (opened,) = open_shuffles(shuffle, version, workers.share, storage_options)
    plan = plan_aggregation(opened, keys, aggregations)
    opened = where(opened, filter, SparkSettings(time_zone))
    return run_operation(
        aggregate_operation(opened, plan),
        workers,
        plan.schema,
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
        into=target,
    )
