"""The join of two co-partitioned shuffles, in tasks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, overload

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.stored_types import conform, in_time_zone
from arrow_format.errors import OptionError
from arrow_format.filters.spark_rules import SparkSettings
from arrow_format.keys.co_partitioning import is_broadcast
from arrow_format.operators.inputs import open_shuffles, where
from arrow_format.operators.into import check_into
from arrow_format.operators.join import join_range
from arrow_format.operators.join_plan import plan_join
from arrow_format.operators.local_run import (
    TARGET_PARTITION_BYTES,
    Workers,
    result_schema,
    run_operation,
)
from arrow_format.operators.results import results_of
from arrow_format.operators.tasks import Operation, WholeGroups

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from concurrent.futures import Executor

    import pyarrow as pa

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.operators.inputs import Filter, Path
    from arrow_format.operators.into import Options
    from arrow_format.operators.join_plan import JoinKind, JoinPlan
    from arrow_format.options import WriteMode
    from arrow_format.read.shuffle import Shuffle
    from arrow_format.storage.open import Place

    Then: TypeAlias = Callable[[BatchReader], Iterable[pa.RecordBatch]]


def check_then(then: Then | None, schema: object) -> None:
    """Raise OptionError unless both or neither were given."""
    if (then is None) != (schema is None):
        msg = "then and schema: expected both or neither; schema is that of what then yields"
        raise OptionError(msg)


def join_operation(
    left: Shuffle,
    right: Shuffle,
    plan: JoinPlan,
    *,
    joined: pa.Schema,
    then: Then | None,
    schema: pa.Schema,
) -> Operation:
    """Return a planned join of two shuffles, and what is done ``then`` with its rows.

    ``joined`` is the schema of the rows that ``then`` reads, ``schema`` that of the results.
    """
    join = partial(join_range, left, right, plan)
    work = WholeGroups(join)
    if then is not None:
        work = WholeGroups(ThenOfGroup(join, joined, then, schema, f"{left.path} and {right.path}"))
    in_right = plan.how == "right" or is_broadcast(left)
    return Operation(
        (left, right),
        work,
        candidates=plan.candidates(_candidates(left), _candidates(right)),
        source=right if in_right else left,
        names=partial(plan.name_of, of_right=in_right),
    )


def _candidates(shuffle: Shuffle) -> list[int] | None:
    """Return the subpartitions that can have rows; a broadcast shuffle has them in all."""
    return None if is_broadcast(shuffle) else shuffle.candidates()


@overload
def join_shuffles(
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_filter: Filter = None,
    right_filter: Filter = None,
    suffixes: tuple[str, str] | None = None,
    then: Then | None = None,
    schema: pa.Schema | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    check: bool = False,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: None = None,
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchReader: ...
@overload
def join_shuffles(
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_filter: Filter = None,
    right_filter: Filter = None,
    suffixes: tuple[str, str] | None = None,
    then: Then | None = None,
    schema: pa.Schema | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    check: bool = False,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: Place,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt: ...
def join_shuffles(
    left: Path,
    right: Path,
    on: str | Sequence[str | tuple[str, str]] | None = None,
    how: JoinKind = "inner",
    *,
    left_columns: Sequence[str] | None = None,
    right_columns: Sequence[str] | None = None,
    left_filter: Filter = None,
    right_filter: Filter = None,
    suffixes: tuple[str, str] | None = None,
    then: Then | None = None,
    schema: pa.Schema | None = None,
    subpartitions: int | Iterable[int] | None = None,
    version: int | Sequence[int | None] | None = None,
    target_partition_bytes: int = TARGET_PARTITION_BYTES,
    check: bool = False,
    executor: Executor | None = None,
    time_zone: str | None = None,
    into: Place | None = None,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    mode: WriteMode = "errorifexists",
    options: Options = None,
    storage_options: Mapping[str, str] | None = None,
) -> BatchReader | ShuffleReceipt:
    """Join two co-partitioned shuffles, in threads or processes of this machine.

    The rows are those of Spark's join: a null equals nothing, NaN equals NaN, -0.0 equals 0.0, and
    text is compared by its bytes. Columns are in the order of ``df.join(other, on=[...])``: keys
    with one name first and once, then the other columns of the left side, then of the right.
    ``connector.join_shuffles`` joins them in Spark's tasks.

    Parameters
    ----------
    left, right
        Paths or URIs of shuffles that are co-partitioned (see :func:`map_subpartitions`). One of
        them may be broadcast: the right one of an inner, left, semi or anti join, the left one of
        an inner or right join.
    on
        Columns that are equal: names, or pairs (left, right) of names; they contain the partition
        keys. When None, the partition keys, if they have the same names on both sides.
    how
        ``inner``, ``left``, ``right``, ``full``, ``semi`` or ``anti``, or Spark's other names of
        these.
    left_columns, right_columns
        Columns of the result besides keys with one name; all when None. Others are not decoded.
    left_filter, right_filter
        Join only the rows of a side for which it is true: text or an expression, as for
        :meth:`Shuffle.read`. It applies before the join, as if the side had no other rows.
    suffixes
        Appended to names that both sides have; when None, such names are an error.
    then
        ``then(joined)`` is called in each task with a reader of the rows it joined, and returns or
        yields the result: a partial sum, say, instead of every row. It must not depend on which
        rows a task has.
    schema
        Of what ``then`` yields; given if and only if ``then`` is.
    subpartitions
        One, a range or several; all when None.
    version
        Of both, or a pair; the newest when None.
    target_partition_bytes
        Bytes on disk that one task reads, of all shuffles together; one large subpartition may be
        more. Adjacent subpartitions share a task.
    check
        Ask the partitioner of each shuffle about each row that is read: the first one that is in
        another subpartition than it belongs to is a CorruptShuffleError with its file. Otherwise
        rows are taken to be where the log says. Costs the decoding of the keys.
    executor
        What runs the tasks: a ``ThreadPoolExecutor`` or ``ProcessPoolExecutor`` of
        ``concurrent.futures``, which stays open until all is read, and is not shut down. When None,
        threads on all cores, which end with the reader. ``then`` is called by several threads at a
        time, and one that yields may go on in another; to processes it goes by pickle, so it is at
        the top level of a module.
    time_zone
        Of timestamps that ``then`` reads, and of filters that are text: what the session's is in
        Spark. When None, timestamps are as they are stored, and a filter that needs one is refused.
    into
        Path or URI of a shuffle that the tasks write the result to. Rows stay in the subpartitions
        that they came from where the result has the partition keys of the input: of the right one
        in a right join or where the left one is broadcast, else of the left one. Each row is
        checked: one whose key belongs elsewhere is an error that names it.
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
        Its rows are in the order of tasks, and in none within. Tasks begin when it is read, and
        stop when it is closed, dropped, or fails. With ``into``, the receipt of what was written
        and committed.

        All workers and the results that wait share ``memory_bytes`` of ``ReadOptions`` in equal
        parts, of 16 MiB for each shuffle at least: there are no more workers than that allows.
        Without ``ReadOptions`` each part is 256 MiB. Results of processes wait in files of the
        system's temporary directory. With ``into``, the workers share ``sort_buffer_bytes`` as
        well.

    Raises
    ------
    ShuffleNotFoundError, OptionError, SchemaError, CorruptShuffleError
        An argument does not fit the shuffles, or they cannot be opened. Keys must have the same
        type on both sides, and not be nested.
    ShuffleError
        While reading or writing: a process of the executor died.
    Exception
        While reading or writing: what ``then`` raised, with a note of subpartitions and paths.
    """
    reading, target = check_into(
        into,
        options,
        keys=keys,
        num_subpartitions=num_subpartitions,
        mode=mode,
        storage_options=storage_options,
    )
    workers = Workers.of(executor, reading, 2)
    left_shuffle, right_shuffle = open_shuffles(
        (left, right), version, workers.share, storage_options, check=check
    )
    plan = plan_join(
        left_shuffle,
        right_shuffle,
        on=on,
        how=how,
        left_columns=left_columns,
        right_columns=right_columns,
        suffixes=suffixes,
    )
    check_then(then, schema)
    settings = SparkSettings(time_zone)
    joined = plan.schema(left_shuffle.schema, right_shuffle.schema)
    result = joined if schema is None else result_schema(schema)
    operation = join_operation(
        where(left_shuffle, left_filter, settings, "left_filter"),
        where(right_shuffle, right_filter, settings, "right_filter"),
        plan,
        joined=joined if time_zone is None else in_time_zone(joined, time_zone),
        then=then,
        schema=result,
    )
    return run_operation(
        operation,
        workers,
        result,
        subpartitions=subpartitions,
        target_partition_bytes=target_partition_bytes,
        into=target,
    )


@dataclass(frozen=True)
class ThenOfGroup:
    """Calls the user's function with the joined rows of a group."""

    join: Callable[[Sequence[int]], Generator[pa.RecordBatch]]
    joined: pa.Schema
    """Of the rows that the function reads."""
    then: Then
    schema: pa.Schema
    """Of its results."""
    paths: str
    """Of the shuffles, for messages."""

    def __call__(self, subpartitions: Sequence[int]) -> Generator[pa.RecordBatch]:
        """Yield the results of the function."""
        with closing(self.join(subpartitions)) as batches:
            reader = BatchReader(self.joined, (conform(batch, self.joined) for batch in batches))
            where = f"subpartitions {subpartitions[0]} to {subpartitions[-1]} of {self.paths}"
            yield from results_of(
                lambda: self.then(reader), self.schema, caller="join_shuffles", where=where
            )
