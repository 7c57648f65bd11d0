"""A user's function per subpartition of one shuffle or several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.errors import OptionError
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.keys.co_partitioning import check_co_partitioned, is_broadcast
from arrow_format.operators.inputs import open_shuffles, paths_of, where_each
from arrow_format.operators.into import check_into
from arrow_format.operators.local_run import (
    TARGET_PARTITION_BYTES,
    Workers,
    result_schema,
    run_operation,
)
from arrow_format.operators.results import results_of
from arrow_format.operators.subpartition_readers import each_subpartition, row_source
from arrow_format.operators.tasks import CALL_BYTES, Operation
from arrow_format.read.chunk_plan import check_subpartitions

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from concurrent.futures import Executor

    import pyarrow as pa

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.inputs import Filter, Path
    from arrow_format.operators.into import Options
    from arrow_format.operators.placement import Result
    from arrow_format.operators.subpartition_readers import RowSource
    from arrow_format.options import WriteMode
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place

    Function: TypeAlias = Callable[..., Iterable[pa.RecordBatch]]

Columns: TypeAlias = Sequence[str] | None


def map_operation(
    shuffles: Sequence[Shuffle],
    function: Function,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | Sequence[Columns] | None,
    filter: Filter | Sequence[Filter],
    settings: SparkSettings,
    time_zone: str | None,
) -> Operation:
    """Return the calls of a function for each subpartition of co-partitioned shuffles.

    ``schema`` is that of what the function yields, ``settings`` are those of text filters, and
    ``time_zone`` is that of the timestamps that the function reads; as they are stored when None.
    Raises OptionError and SchemaError.
    """
    check_co_partitioned(shuffles)
    shuffles = where_each(shuffles, filter, settings)
    if not callable(function):
        msg = f"function is {type(function).__name__}: expected a callable(subpartition, *readers)"
        raise OptionError(msg)
    chosen = _columns_of_each(columns, len(shuffles))
    for shuffle, names in zip(shuffles, chosen, strict=True):
        row_source(shuffle, (), names).close()
    work = EachSubpartition(shuffles, chosen, function, schema, time_zone)
    return Operation(shuffles, work, subpartition_bytes=CALL_BYTES)


def check_stored_once(shuffles: Sequence[Shuffle], subpartitions: Sequence[int] | None) -> None:
    """Refuse to store what several calls make of the same rows; raises OptionError."""
    n = shuffles[0].num_subpartitions
    times = n if subpartitions is None else len(subpartitions)
    if times > 1 and all(map(is_broadcast, shuffles)):
        msg = (
            f"into: every subpartition reads all rows of {shuffles[0].path}, which is broadcast, "
            f"so the results of {times} subpartitions would have them {times} times: add "
            "subpartitions=0, for which the function is called once"
        )
        raise OptionError(msg)


def _columns_of_each(columns: Any, number: int) -> tuple[Columns, ...]:  # noqa: ANN401
    if isinstance(columns, str):
        columns = [columns]
    if columns is not None and not isinstance(columns, Sequence):
        msg = f"columns={columns!r}: expected a list of column names, or a list for each shuffle"
        raise OptionError(msg)
    if columns is None or _are_names(columns):
        return (columns,) * number
    if len(columns) != number or not all(each is None or _are_names(each) for each in columns):
        msg = f"columns={columns!r}: expected column names, or a list for each of {number} shuffles"
        raise OptionError(msg)
    return tuple([each] if isinstance(each, str) else each for each in columns)


def _are_names(columns: object) -> bool:
    return isinstance(columns, Sequence) and all(isinstance(name, str) for name in columns)


@overload
def map_subpartitions(
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | Sequence[Columns] | None = None,
    filter: Filter | Sequence[Filter] = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchReader: ...
@overload
def map_subpartitions(
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | Sequence[Columns] | None = None,
    filter: Filter | Sequence[Filter] = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: Place,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def map_subpartitions(
    shuffles: Path | Sequence[Path],
    function: Function,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | Sequence[Columns] | None = None,
    filter: Filter | Sequence[Filter] = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: Place | None = None,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchReader | ShuffleReceipt:
    """Call a function once per subpartition, in threads or processes of this machine.

    .. code-block:: python

        def last_visit(subpartition, visits, prices):
            rows = visits.read_all().join(prices.read_all(), "item")
            yield from rows.group_by("user").aggregate([("at", "max")]).to_batches()

        schema = pa.schema({"user": pa.string(), "at_max": pa.timestamp("us", "UTC")})
        map_subpartitions([visits, prices], last_visit, schema).read_all()

    ``connector.map_subpartitions`` calls the same function in Spark's tasks, with the same result.

    Parameters
    ----------
    shuffles
        One path or URI, or several of co-partitioned shuffles: the same partitioner over the same
        number of subpartitions, with keys that it places alike; names of keys may differ. A
        broadcast shuffle is co-partitioned with every other one; each subpartition reads all of it.
    function
        ``function(subpartition, *readers)``, called once for every subpartition, the empty ones
        too, with a :class:`~arrow_format.BatchReader` for each shuffle; returns or yields record
        batches. A reader buffers a bounded part of its rows, may be left half read, and is closed
        when the function's result ends.
    schema
        Of what the function yields. Columns are matched by name. Another type is an error; another
        time zone is converted.
    columns
        Columns to read, in that order: a list for all shuffles, or a list (or None) for each; all
        when None.
    filter
        The readers deliver only the rows for which it is true: text or an expression, as for
        :meth:`Shuffle.read`, for all shuffles; or a sequence with one (or None) for each. The
        function is called for subpartitions without such rows, too.
    subpartitions
        One, a range or several; all when None.
    version
        Of all shuffles, or a sequence with one for each; the newest when None.
    target_partition_bytes
        Bytes on disk that one task reads, of all shuffles together; one large subpartition may be
        more. Adjacent subpartitions share a task.
    executor
        What runs the tasks: a ``ThreadPoolExecutor`` or ``ProcessPoolExecutor`` of
        ``concurrent.futures``, which stays open until all is read, and is not shut down. When None,
        threads on all cores, which end with the reader. Functions are called by several threads at
        a time, and one that yields may go on in another; to processes they go by pickle, so they
        are at the top level of a module.
    time_zone
        Of timestamps that the function reads, and of filters that are text: what the session's is
        in Spark. When None, timestamps are as they are stored, and a filter that needs one is
        refused.
    into
        Path or URI of a shuffle that the tasks write the result to. Rows stay in the subpartitions
        that they came from where the result has the partition keys of the input, or of the first of
        several that is not broadcast. Each row is checked: one whose key belongs elsewhere is an
        error that names it.
    keys
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
        Its batches are in the order of subpartitions. Tasks begin when it is read, and stop when it
        is closed, dropped, or fails. With ``into``, the receipt of what was written and committed.

        All workers and the results that wait share ``memory_bytes`` of ``ReadOptions`` in equal
        parts, of 16 MiB for each shuffle at least: there are no more workers than that allows.
        Without ``ReadOptions`` each part is 256 MiB. Results of processes wait in files of the
        system's temporary directory. With ``into``, the workers share ``sort_buffer_bytes`` as
        well.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffles, or they cannot be opened. For shuffles that are not
        co-partitioned it says what differs.
    ShuffleError
        While reading or writing: a process of the executor died.
    Exception
        While reading or writing: what the function raised, with a note of subpartition and paths;
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
    workers = Workers.of(executor, reading, len(paths_of(shuffles)))
    stored = result_schema(schema)
    opened = open_shuffles(shuffles, version, workers.share, storage_options)
    called = check_subpartitions(subpartitions, opened[0].num_subpartitions)
    operation = map_operation(
        opened,
        function,
        stored,
        columns=columns,
        filter=filter,
        settings=SparkSettings(time_zone),
        time_zone=time_zone,
    )
    if target is not None:
        check_stored_once(opened, called)
    return run_operation(
        operation,
        workers,
        stored,
        subpartitions=called,
        target_partition_bytes=target_partition_bytes,
        into=target,
    )


@dataclass(frozen=True)
class EachSubpartition:
    """Calls the user's function for subpartitions, and checks its results."""

    shuffles: tuple[Shuffle, ...]
    columns: tuple[Columns, ...]
    function: Callable[..., Iterable[pa.RecordBatch]]
    schema: pa.Schema
    time_zone: str | None
    """Of the timestamps that the function reads; as they are stored when None."""

    def __call__(self, subpartitions: Sequence[int]) -> Generator[Result]:
        """Yield the results of the function, subpartition after subpartition."""
        paths = ", ".join(shuffle.path for shuffle in self.shuffles)
        sources: list[RowSource] = [
            row_source(shuffle, subpartitions, names)
            for shuffle, names in zip(self.shuffles, self.columns, strict=True)
        ]
        if self.time_zone is not None:
            sources = [RowSourceInTimeZone(source, self.time_zone) for source in sources]
        with closing(each_subpartition(subpartitions, sources)) as turns:
            for subpartition, readers in turns:
                where = f"subpartition {subpartition} of {paths}"
                call = partial(self.function, subpartition, *readers)
                for batch in results_of(call, self.schema, caller="map_subpartitions", where=where):
                    yield range(subpartition, subpartition + 1), batch
                # They would keep the rows of a broadcast shuffle.
                del readers, call


class RowSourceInTimeZone:
    """Reads rows through another reader of subpartitions, with timestamps in a time zone."""

    def __init__(self, source: RowSource, time_zone: str) -> None:
        self._source = source
        self.schema = in_time_zone(source.schema, time_zone)

    def batches_of(self, subpartition: int) -> Generator[pa.RecordBatch]:
        """Yield the rows of a subpartition."""
        with closing(self._source.batches_of(subpartition)) as batches:
            for batch in batches:
                yield conform(batch, self.schema)
                del batch  # before the next is read

    def close(self) -> None:
        """Stop reading."""
        self._source.close()
