"""Writes of shuffles: what users call, be it Spark or this process that runs the map tasks."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias, Unpack, cast

from arrow_format.errors import OptionError
from arrow_format.ingest.source import source_of
from arrow_format.jobs.commit import find_receipt
from arrow_format.jobs.write import (
    AppendArguments,
    LocalTasks,
    Write,
    WriteArguments,
    net_upsert,
    run_writes,
)
from arrow_format.options import as_several, check_type
from arrow_format.read.presentation import format_bytes
from connector.session import active_session, is_session_active, session_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Literal

    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

    from arrow_format.ingest.source import Given
    from arrow_format.ingest.source import Source as Rows
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.options import WriteMode, WriteOptions
    from arrow_format.storage.open import Place

    Source: TypeAlias = DataFrame | Given


def write_shuffle(
    source: Source,
    path: Place | None = None,
    *,
    table: str | None = None,
    keys: str | Sequence[str] | None = None,
    num_subpartitions: int | None = None,
    partitioner: Partitioner | None = None,
    sort_by: Sequence[str | tuple[str, str]] | None = (),
    combine: Mapping[str, str] | None = None,
    unique: str | Sequence[str] | None = None,
    sequence_by: str | None = None,
    row_kind: str | None = None,
    mode: WriteMode = "errorifexists",
    options: WriteOptions | None = None,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    for_spark: bool = True,
    num_map_tasks: int | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    spark: SparkSession | Literal[True] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Write rows as a shuffle, partitioned by keys, and commit it as one version.

    A DataFrame is written by tasks of Spark, and so are files and tables where a session is given;
    all else by this process. Readers see nothing before the commit, and everything after.

    .. code-block:: python

        import pyarrow as pa
        import arrow_shuffle

        orders = pa.table({"customer": [3, 1, 3], "price": [5.0, 7.5, 2.5]})
        receipt = arrow_shuffle.write_shuffle(orders, "/data/orders", keys="customer")
        print(receipt.num_rows, receipt.num_subpartitions)  # 3 1

    Parameters
    ----------
    source
        One of these:

        - a Spark DataFrame, classic or of Spark Connect: one Spark partition is one map task;
        - a ``pyarrow.dataset.Dataset`` of files (Parquet, Arrow IPC, CSV, ORC, ...), whose own
          filter holds. They are decoded a few megabytes at a time, however large their row groups
          are, as Spark would read them. Tasks of Spark divide them by bytes, large ones by row
          groups, and no row passes through the JVM;
        - a ``deltalake.DeltaTable``, whose files are read so; a ``pyiceberg`` table or scan of one,
          whose files pyiceberg reads. Rows that were deleted stay deleted;
        - a ``pyarrow.Table``, a reader, a frame of pandas (without its index) or Polars, or
          anything else with an Arrow C stream; or record batches of one schema, at least one. Their
          memory does not change before the write ends: rows are copied when a buffer is full.
    path
        Directory or URI of the shuffle, which this process and the tasks see alike.
    table
        Its name in the place of a path: ``"sales.orders"`` is ``sales/orders`` below the warehouse
        of the session's catalog ``shuffles``, as :func:`spark_config` sets it, and
        ``shuffles.sales.orders`` in SQL. The session is the one that writes, else the active one.
    keys
        Name or names of the columns that decide the subpartition of a row, by Spark's hash; or give
        ``partitioner``.
    num_subpartitions
        1 to 1,000,000. If left out, the number of the shuffle that is at the path; else that of the
        bounds of ranges; else of a DataFrame ``spark.sql.shuffle.partitions``, so that rows are in
        the subpartition that ``df.repartition(*keys)`` gives them; else a power of two by the bytes
        of the rows and by cores. The receipt says which, and what would have been better. Give it
        where shuffles are to be joined: the numbers must be equal.
    partitioner
        Decides the subpartition of each row in the place of ``keys``. A RangePartitioner without
        bounds gets those of the shuffle that it is appended to, else from a sample of a DataFrame,
        table, or files.
    sort_by
        Keys by which the rows of each subpartition are sorted, ``("a", ("b", "descending"))``: a
        column, or a pair of column and ``ascending`` (nulls first), ``descending`` (nulls last),
        ``ascending nulls last`` or ``descending nulls first``. When empty, in order of arrival.
    combine
        Functions of the columns that are not keys, ``{"n": "sum", "price": "max"}``: rows with
        equal keys become one row, of ``sum``, ``min`` or ``max``, as far as they meet in the memory
        of a map task. What is stored are partial results in the types that Spark gives sums; an
        aggregation completes them. A task in which few keys repeat writes its rows as they are.
        None: rows are stored as they are.
    unique
        Name or names of the columns that identify a row, those that decide its subpartition among
        them: ``unique=["customer", "order_id"]`` of ``keys="customer"``. No two rows may be equal
        in all of them, and none may be null: each write is compared with the rows that are there,
        and refused. Given at the first write, or by :meth:`Shuffle.alter`; others leave it out.
    sequence_by
        Of shuffles with ``unique``: the column of which a newer change of a row has a larger value,
        see :meth:`Shuffle.upsert`. Given at the first write, or by an upsert; others leave it out.
    row_kind
        Of upserts with a sequence: the column that says what each change does, see
        :meth:`Shuffle.upsert`. It is not stored.
    mode
        errorifexists, overwrite, append, upsert, replace_groups or ignore. ``upsert`` appends rows
        which replace those that are equal in the columns of ``unique``, ``replace_groups`` rows
        which replace all that have their partition keys, in one version.
    options
        How to write; defaults when None.
    columns
        Of files and tables only: names of the columns to write, in that order; all when None. Only
        these and the columns of the filter are read.
    filter
        Of files and Delta only: a boolean ``pyarrow`` expression over columns by name; rows for
        which it is true are written. Partitions for which it cannot be true are not read, nor are
        row groups unless it uses a floating-point column.
    for_spark
        Whether types that Spark lacks are stored as types that it reads: timestamps and durations
        in microseconds, unsigned integers as larger signed ones, and so on; see
        ``docs/guide/types.md``. No value changes: one that would, as a timestamp with nanoseconds,
        is a SchemaError; but of files it is rounded down, as Spark reads it. False: all types are
        stored as they are, which other readers take and Spark may not; only where this process
        writes. An append keeps the types of the shuffle that is there.
    num_map_tasks
        Of files and tables that Spark's tasks read: number of map tasks, fewer where files cannot
        be split further. When None, about one per 64 MiB on disk, in a multiple of those that run
        concurrently.
    expected_version
        Write only if no rows were added or taken away after that version, which merges do not; 0
        expects that there is none yet. Checked before any row is written, and when the write is
        committed. None: do not ask.
    transaction
        An application and a number, ``("nightly", 20251124)``: the write is committed once, however
        often it is repeated with them. Numbers of an application ascend; its name is 1 to 100 of
        ``A-Z a-z 0-9 _ -``. Where they are in the log already, no row is written and the receipt
        ``is_repetition`` of the first; that is so whatever became of its rows. None: each call
        writes.
    spark
        Of files and tables: the session whose tasks write; True for the active one. None: this
        process writes. A DataFrame is written by its own session.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    ShuffleReceipt
        What was written: rows, bytes, and both of each subpartition. With mode ``ignore`` and an
        existing shuffle, that of its newest version.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError, StorageError
        An argument, the rows or the path do not fit, as the message says; nothing is left behind.
    DuplicateKeyError
        Two rows are equal in the columns that identify one, or such a column is null.
    CommitConflictError
        Rows were changed after the expected version, or it is not there; or a larger number of the
        application is in the log, and that of the transaction is not. Nothing is left behind.
    MissingPackageError
        Spark is to write, and pyspark or pandas is not installed.
    pyspark.errors.PySparkException
        A task failed; the files of this write are removed.
    """
    target = Target(
        path,
        table=table,
        keys=keys,
        num_subpartitions=num_subpartitions,
        partitioner=partitioner,
        sort_by=sort_by,
        combine=combine,
        unique=unique,
        sequence_by=sequence_by,
        row_kind=row_kind,
        mode=mode,
        options=options,
        expected_version=expected_version,
        transaction=transaction,
        storage_options=storage_options,
    )
    (receipt,) = write_shuffles(
        source,
        [target],
        columns=columns,
        filter=filter,
        for_spark=for_spark,
        num_map_tasks=num_map_tasks,
        spark=spark,
    )
    return receipt


class Target:
    """One shuffle that :func:`write_shuffles` writes: where, partitioned how, and in which mode.

    .. code-block:: python

        by_day = arrow_shuffle.Target("/data/by-day", keys="day", num_subpartitions=8)

    Parameters
    ----------
    path, table
        As for :func:`write_shuffle`, one of them.
    **how
        Arguments of :func:`write_shuffle`, as it takes them: those of what is written, ``keys``,
        ``num_subpartitions``, ``partitioner``, ``sort_by``, ``combine``, ``unique``,
        ``sequence_by``, ``row_kind``, ``mode``, ``options``, ``expected_version``, ``transaction``
        and ``storage_options``.

    Raises
    ------
    OptionError
        An argument has none of these names. What they are is checked when it is written.
    """

    def __init__(
        self,
        path: Place | None = None,
        *,
        table: str | None = None,
        **how: Unpack[WriteArguments],
    ) -> None:
        allowed = WriteArguments.__annotations__
        wrong = ", ".join(name for name in how if name not in allowed)
        if wrong:
            msg = f"{wrong}: no argument of a target; expected path, table, {', '.join(allowed)}"
            raise OptionError(msg)
        self.path = path
        self.table = table
        self.how = how

    def __repr__(self) -> str:
        """Show it without credentials."""
        where = f"table={self.table!r}" if self.path is None else repr(self.path)
        shown = [f"{k}={v!r}" for k, v in self.how.items() if k != "storage_options"]
        return f"Target({', '.join([where, *shown])})"


def write_shuffles(
    source: Source,
    targets: Sequence[Target],
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    for_spark: bool = True,
    num_map_tasks: int | None = None,
    spark: SparkSession | Literal[True] | None = None,
) -> tuple[ShuffleReceipt, ...]:
    """Write the same rows as several shuffles, each partitioned its own way, in one pass.

    Rows are read once, as by :func:`write_shuffle`; in Spark they pass once from the JVM. Each
    target has its own commit: in turn, in the order of targets, after all rows were written. Two
    commits are not one: a process that is killed in between leaves the first. Give each target its
    ``transaction`` and repeat the call: what was committed is not written again, and of the others
    each is there once; where all were, no row is read.

    .. code-block:: python

        from arrow_shuffle import Target

        by_customer, by_part = arrow_shuffle.write_shuffles(
            rows,
            [
                Target("/data/by-customer", keys="customer", transaction=("load", 7)),
                Target("/data/by-part", keys="part", sort_by=["price"], transaction=("load", 7)),
            ],
        )

    Parameters
    ----------
    source, columns, filter, for_spark, num_map_tasks, spark
        As for :func:`write_shuffle`.
    targets
        What to write; each has its own path, and none inside another's. All are checked before any
        row is read, be it for a sample; one with mode ``ignore`` at whose path a shuffle is, is
        left out. Each column has one type in all: a
        target that would store it in another, as an append to types that Spark lacks may, is
        refused.

        Each target has a sort buffer, and their memory adds up: where options are given, that of
        ``sort_buffer_bytes``; targets without options share the memory of one write, so that each
        has the default over the number of targets that are written. Threads are shared: there are
        as many as of the target with the most. The receipts of targets that are written say how
        much the sort buffers take together. Ranges without bounds take a sample for each target.

    Returns
    -------
    tuple of ShuffleReceipt
        One for each target, in order, as :func:`write_shuffle` returns it.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError, StorageError, DuplicateKeyError,
    CommitConflictError, MissingPackageError, pyspark.errors.PySparkException
        As :func:`write_shuffle`. What was written for targets that are not committed is removed;
        where some are there, a note of the error says so of each, as its log has it, with its
        version; and whether to repeat the call, or which targets to leave out then.
    """
    given = as_several(targets)
    if not given:
        msg = "targets: none is given; expected at least one arrow_shuffle.Target"
        raise OptionError(msg)
    given = tuple(check_type("targets", target, Target) for target in given)
    session = _session(source, spark, for_spark=for_spark, num_map_tasks=num_map_tasks)
    writes = [
        Write.of(_place(target.path, target.table, session), **target.how) for target in given
    ]
    return _run(writes, source, session, columns, filter, num_map_tasks, for_spark=for_spark)


def _place(path: Place | None, table: str | None, session: SparkSession | None) -> Place:
    """Return where a shuffle is written: a path, or what a name means in a session's catalog."""
    if (path is None) == (table is None):
        given = "neither path nor table" if path is None else f"path and table={table!r}"
        msg = f"{given}: give one of them, a directory or URI, or a name of the session's catalog"
        raise OptionError(msg)
    if table is None:
        return cast("Place", path)
    from connector.jvm_reader import path_of_table

    if session is None and is_session_active():
        session = active_session()
    return path_of_table(session, table)


def append_shuffle(
    source: Source,
    path: Place,
    *,
    mode: Literal["append", "upsert"] = "append",
    row_kind: str | None = None,
    sequence_by: str | None = None,
    options: WriteOptions | None = None,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    for_spark: bool = True,
    num_map_tasks: int | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    spark: SparkSession | Literal[True] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Append rows to a shuffle; parameters are those of :meth:`arrow_shuffle.Shuffle.append`.

    With mode ``upsert`` as :meth:`arrow_shuffle.Shuffle.upsert` does.
    """
    how = AppendArguments(
        mode=mode,
        sequence_by=sequence_by,
        options=options,
        expected_version=expected_version,
        transaction=transaction,
        storage_options=storage_options,
    )
    session = _session(source, spark, for_spark=for_spark, num_map_tasks=num_map_tasks)
    write = Write.like_newest(path, **how)
    shape = write.view.shape
    if row_kind is not None and (sequence_by or (shape is not None and shape.sequence_by)):
        write = replace(write, row_kind=row_kind)
    elif row_kind is not None:
        if session is not None:
            msg = (
                f"row_kind={row_kind!r}: tasks of Spark keep no order of changes, so that the last "
                "one of a key is not known. Give sequence_by=, the column that is larger in a "
                "newer change, or the changes to this process, in their order"
            )
            raise OptionError(msg)
        from arrow_shuffle.operation import Rows as RowsOfShuffle

        if isinstance(source, RowsOfShuffle):
            msg = (
                f"row_kind={row_kind!r}: rows of a shuffle come by subpartition, not in the order "
                "of the changes; give sequence_by=, or a table in that order, "
                "source.to_table().sort_by('lsn')"
            )
            raise OptionError(msg)
        before = find_receipt(write.storage, write.transaction)
        if before is not None:
            return before
        given = source_of(source, columns=columns, filter=filter)
        write, rows = net_upsert(write, given, row_kind, for_spark=for_spark)
        (receipt,) = _run_here([write], rows, for_spark=for_spark)
        return receipt
    (receipt,) = _run([write], source, session, columns, filter, num_map_tasks, for_spark=for_spark)
    return receipt


def _session(
    source: Source,
    spark: SparkSession | Literal[True] | None,
    *,
    for_spark: bool,
    num_map_tasks: int | None,
) -> SparkSession | None:
    """Return the session that writes: that of a DataFrame, or a given one; None: this process.

    Raises OptionError where an argument is given that is for the other.
    """
    # Of its class: a frame of pandas has its columns as attributes, whatever their names.
    is_frame = hasattr(type(source), "mapInArrow")
    session = cast("DataFrame", source).sparkSession if is_frame else session_of(spark)
    if session is not None and not for_spark:
        msg = "for_spark=False: only where this process writes; tasks of Spark write its own types"
        raise OptionError(msg)
    if session is None and num_map_tasks is not None:
        msg = (
            "num_map_tasks: only for files and tables that tasks of Spark read: give "
            "spark=session, or spark=True for the active one. This process writes one map output"
        )
        raise OptionError(msg)
    return session


def _run(
    writes: Sequence[Write],
    source: Source,
    session: SparkSession | None,
    columns: Sequence[str] | None,
    filter: ds.Expression | None,
    num_map_tasks: int | None,
    *,
    for_spark: bool,
) -> tuple[ShuffleReceipt, ...]:
    """Write in tasks of a session; else in this process, and say so where a session is active."""
    if session is not None:
        from connector.write import tasks_of

        return run_writes(writes, tasks_of(source, session, columns, filter, num_map_tasks))
    rows = source_of(source, columns=columns, filter=filter)
    return _run_here(writes, rows, for_spark=for_spark)


def _run_here(
    writes: Sequence[Write], rows: Rows, *, for_spark: bool
) -> tuple[ShuffleReceipt, ...]:
    """Write in this process, and say so where a session is active."""
    tasks = LocalTasks(rows, writes, for_spark=for_spark)
    if not is_session_active():
        return run_writes(writes, tasks)
    size, memory = tasks.num_bytes or 0, _memory()
    if size > memory:
        roots = ", ".join(write.storage.root for write in writes)
        warnings.warn(
            f"{roots}: about {format_bytes(size)} of rows are written in this "
            f"process, on a machine with {format_bytes(memory)} of memory. Of files and tables, "
            "spark=True writes them in tasks of the active session",
            stacklevel=4,
        )
    return tuple(replace(each, where="in this process") for each in run_writes(writes, tasks))


def _memory() -> int:
    """Return the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
