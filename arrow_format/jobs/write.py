"""Writing a shuffle without Spark, in one process."""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.schema_evolution import is_appendable
from arrow_format.arrays.stored_types import data_schema
from arrow_format.arrays.types_for_spark import rows_for_spark, schema_for_spark
from arrow_format.errors import OptionError, SchemaError
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.run import run_job
from arrow_format.jobs.target import newest_entry, settle_bounds
from arrow_format.keys.partitioner import ColumnPartitioner, Partitioner, choose_partitioner
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.model import Transaction
from arrow_format.options import WriteMode, WriteOptions, check_mode, check_type
from arrow_format.storage.open import Place, Storage, open_storage

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from arrow_format.ingest.source import FileRows
    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.model import MapStatus

Source: TypeAlias = (
    "pa.Table | pa.RecordBatchReader | BatchReader | ds.Dataset | Iterable[pa.RecordBatch]"
)
"""Rows that this process writes."""


def write_shuffle(
    batches: Source,
    path: Place,
    *,
    num_subpartitions: int,
    keys: str | Sequence[str] | None = None,
    partitioner: Partitioner | None = None,
    sort_by: Sequence[str | tuple[str, str]] | None = (),
    combine: Mapping[str, str] | None = None,
    mode: WriteMode = "errorifexists",
    for_spark: bool = True,
    options: WriteOptions | None = None,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    expected_version: int | None = None,
    transaction: tuple[str, int] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt:
    """Write and commit a shuffle in this process, as one map output.

    Parameters
    ----------
    batches
        A table, a reader, anything with an Arrow C stream, or record batches of one schema (at
        least one, since the schema is taken from it), whose memory does not change before the write
        ends: rows are copied when a buffer is full. Or a ``pyarrow.dataset.Dataset``, whose own
        filter holds: its files are decoded a few megabytes at a time, however large their row
        groups are, and with threads ahead of the write. A Spark DataFrame is refused: all its rows
        would pass through this process, and ``connector.write_shuffle`` writes them in tasks.
    path
        Directory or URI of the shuffle.
    num_subpartitions
        1 to 1,000,000.
    keys
        Column name or names to hash as Spark does; or give ``partitioner``.
    partitioner
        Decides the subpartition of each row. A RangePartitioner without bounds gets them from a
        sample of ``batches`` if that is a table or a dataset of files, or when appending from the
        existing shuffle.
    sort_by
        Keys by which the rows of each subpartition are sorted, ``("a", ("b", "descending"))``: a
        column, or a pair of column and ``ascending`` (nulls first), ``descending`` (nulls last),
        ``ascending nulls last`` or ``descending nulls first``. When empty, in order of arrival.
    combine
        Functions of the columns that are not keys, ``{"n": "sum", "price": "max"}``: rows with
        equal keys become one row, of ``sum``, ``min`` or ``max``, as far as they meet in the memory
        of a map task. What is stored are partial results in the types that Spark gives sums;
        ``aggregate_shuffle`` completes them. A task in which few keys repeat writes its rows as
        they are. None: rows are stored as they are.
    mode
        errorifexists, overwrite, append or ignore.
    for_spark
        Whether types that Spark lacks are stored as types that it reads: timestamps and durations
        in microseconds, unsigned integers as larger signed ones, and so on; see
        ``docs/guide/types.md``.
        No value changes: one that would, as a timestamp with nanoseconds, is a SchemaError; but of
        files in a dataset it is rounded down, as Spark reads it. False:
        all types are stored as they are, which other readers take and Spark may not. An append
        keeps the types of the existing shuffle.
    options
        How to write; defaults when None.
    columns
        Of a dataset of files only: names of the columns to write, in that order; all when None.
        Only these and the columns of the filter are read.
    filter
        Of a dataset of files only: a boolean ``pyarrow`` expression over columns by name; rows for
        which it is true are written. Partitions for which it cannot be true are not read, nor are
        row groups unless it uses a floating-point column.
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
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, and are never shown.

    Returns
    -------
    ShuffleReceipt
        What was written; with mode ``ignore`` and an existing shuffle, its newest version.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError, StorageError
        An argument, the rows or the path do not fit, as the message says; nothing is left behind.
    CommitConflictError
        Rows were changed after the expected version, or it is not there; or a larger number of the
        application is in the log, and that of the transaction is not. Nothing is left behind.
    """
    mode = check_mode(mode)
    once = Transaction.of(transaction)
    if not isinstance(for_spark, bool):
        msg = f"for_spark={for_spark!r}: expected True or False"
        raise OptionError(msg)
    _check_source(batches)
    storage = open_storage(path, storage_options)
    partitioner = choose_partitioner(keys, partitioner)
    options = WriteOptions() if options is None else check_type("options", options, WriteOptions)
    files = _files_of(batches, columns, filter)
    schema, stream = _as_stream(batches) if files is None else (files.schema, iter(()))
    subpartition = partitioner.column if isinstance(partitioner, ColumnPartitioner) else None
    converts = for_spark and _changes_for_spark(schema, storage, mode, subpartition)
    if files is not None:
        schema, stream = files.read(for_spark=converts)
    elif converts:
        stream = rows_for_spark(stream, schema, subpartition)
        schema = schema_for_spark(schema, subpartition)

    def sample(ranges: RangePartitioner) -> RangePartitioner:
        if files is None:
            return _sampled(ranges, batches, num_subpartitions, converts=converts)
        rows = files.for_sample([name for name, _ in ranges.keys], for_spark=converts)
        return RangePartitioner.sampled(rows, ranges.keys, num_subpartitions)

    partitioner = settle_bounds(partitioner, storage, mode, sample)
    try:
        job = begin_job(
            storage,
            schema,
            num_subpartitions=num_subpartitions,
            partitioner=partitioner,
            sort_by=sort_by,
            combine=combine,
            options=options,
        )
    except SchemaError as error:
        index = [name for name in _index_columns(batches) if not name.startswith("__index_level_")]
        if index:
            error.add_note(
                f"the index of the frame ({', '.join(index)}) is not written; frame.reset_index() "
                "makes it a column"
            )
        raise

    def run(job: ShuffleJob) -> list[MapStatus]:
        # Other rows come from the user's code, which may depend on the thread.
        return [run_map_task(job, 0, 0, stream, reads_ahead=files is not None)]

    try:
        return run_job(
            job, mode, run, num_map_outputs=1, expected_version=expected_version, transaction=once
        )
    finally:
        # Now, and not when Python collects garbage: it has an open file.
        if isinstance(stream, Generator):
            stream.close()


def _changes_for_spark(
    schema: pa.Schema, storage: Storage, mode: str, subpartition: str | None
) -> bool:
    """Whether rows are converted for Spark.

    Not if they fit the shuffle that they are appended to, or if that has types that Spark lacks.
    """
    plain = data_schema(schema)
    try:
        if schema_for_spark(schema, subpartition).equals(plain):
            return False
    except SchemaError:
        if mode != "append":
            raise
    existing = newest_entry(storage) if mode == "append" else None
    if existing is None:
        return True
    stored = existing.data_schema
    return not is_appendable(stored, plain) and _is_for_spark(stored)


def _is_for_spark(stored: pa.Schema) -> bool:
    """Whether Spark has all types of a shuffle."""
    try:
        return bool(schema_for_spark(stored).equals(stored))
    except SchemaError:
        return False


def _sampled(
    ranges: RangePartitioner, batches: object, num_subpartitions: int, *, converts: bool
) -> RangePartitioner:
    """Return a range partitioner with bounds from a sample; rows that come once have none."""
    if not isinstance(batches, pa.Table | pa.RecordBatch):
        msg = (
            f"{ranges!r} has no bounds, and batches is {type(batches).__name__}, which can be read "
            "only once: give bounds=..., a pyarrow Table, or take a sample with "
            "RangePartitioner.sampled(table_or_dataset, keys, num_subpartitions)"
        )
        raise OptionError(msg)
    sampled = RangePartitioner.sampled(batches, ranges.keys, num_subpartitions)
    if sampled.bounds is None or not converts:
        return sampled
    bounds = rows_for_spark([sampled.bounds], sampled.bounds.schema)
    return RangePartitioner(
        keys=sampled.keys,
        bounds=pa.Table.from_batches(bounds, schema_for_spark(sampled.bounds.schema)),
    )


def _check_source(batches: object) -> None:
    """Refuse a Spark DataFrame, whose Arrow C stream collects all of its rows."""
    if any(cls.__module__.partition(".")[0] == "pyspark" for cls in type(batches).__mro__):
        msg = (
            f"batches is a Spark {type(batches).__name__}: all its rows would pass through this "
            "process. connector.write_shuffle writes it in Spark's tasks; a small one can be given "
            "as df.toArrow()"
        )
        raise SchemaError(msg)


def _dataset_of(batches: object) -> ds.Dataset | None:
    """Return ``batches`` if it is a dataset; whose module is loaded then, and else need not be."""
    datasets = sys.modules.get("pyarrow._dataset")
    return batches if datasets is not None and isinstance(batches, datasets.Dataset) else None


def _files_of(
    batches: object, columns: Sequence[str] | None, filter: ds.Expression | None
) -> FileRows | None:
    """Return what to read of a dataset of files; None for other rows.

    Raises OptionError where a part is asked of these.
    """
    dataset = _dataset_of(batches)
    if dataset is not None:
        from arrow_format.ingest.source import FileRows, is_of_files

        if is_of_files(dataset):
            return FileRows(dataset, columns, filter)
    for name, value in {"columns": columns, "filter": filter}.items():
        if value is not None:
            msg = (
                f"{name}: only for a pyarrow dataset of files, and batches is "
                f"{type(batches).__name__}; select columns and rows before"
            )
            raise OptionError(msg)
    return None


def _index_columns(batches: Any) -> list[str]:  # noqa: ANN401
    """Return the columns that are the index of a frame of pandas, which is not written.

    As Spark and Polars have it: ``frame.reset_index()`` asks for it.
    """
    if type(batches).__module__.partition(".")[0] != "pandas":
        return []
    metadata = pa.RecordBatchReader.from_stream(batches.iloc[:0]).schema.metadata or {}
    described = json.loads(metadata.get(b"pandas", b"{}"))
    return [name for name in described.get("index_columns", ()) if isinstance(name, str)]


def _as_stream(batches: Source) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:
    dataset = _dataset_of(batches)
    if dataset is not None:
        batches = dataset.scanner().to_reader()
    # Not through the C interface, where errors of a reader would lose their types.
    if isinstance(batches, pa.Table):
        batches = batches.to_reader()
    if isinstance(batches, pa.RecordBatchReader | BatchReader):
        return batches.schema, batches
    if hasattr(batches, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(batches)
        index = _index_columns(batches)
        if not index:
            return reader.schema, reader
        columns = [name for name in reader.schema.names if name not in index]
        schema = pa.schema([reader.schema.field(name) for name in columns])
        return schema, (batch.select(columns) for batch in reader)
    if not isinstance(batches, Iterable):
        msg = (
            f"batches is {type(batches).__name__}: expected a table, a reader, a dataset or record "
            "batches"
        )
        raise SchemaError(msg)
    iterator = iter(batches)
    first = next(iterator, None)
    if not isinstance(first, pa.RecordBatch):
        msg = (
            f"batches begins with {type(first).__name__}: expected Arrow record batches; for no "
            "rows at all give a table or reader, which has a schema"
        )
        raise SchemaError(msg)
    return first.schema, chain([first], iterator)
