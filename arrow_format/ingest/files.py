"""Reads the rows of a dataset's file in order, a few megabytes at a time.

PyArrow's scanner decodes whole row groups: one of a gigabyte would take more than that in memory.
So Parquet and Arrow files are read with their own readers; other formats with the scanner, without
read-ahead.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import types as pt

from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.selection import keep
from arrow_format.arrays.stored_types import normalise, same_but_labels
from arrow_format.errors import OptionError, StorageError
from arrow_format.ingest.footers import (
    calendar_of_parquet,
    check_timestamps,
    checked_columns,
    chunk_bytes_of,
    columns_to_read,
    is_orc,
    partition_values,
    row_groups_to_read,
    timestamp_columns,
)
from arrow_format.ingest.spark_footer import Calendar
from arrow_format.ingest.spark_types import cast_column, plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from arrow_format.ingest.footers import FileOrigin, ScanFile, Wanted

BATCH_BYTES = 8 << 20
"""Bytes of rows that are decoded at a time."""

MAX_BATCH_ROWS = 1 << 16

PROBE_ROWS = 1 << 10
"""Rows that are decoded first to measure row size: a dictionary-encoded value takes more in memory
than its share on disk."""

STREAM_BYTES = 16 << 20
"""Memory for the buffers of all columns of a row group whose column chunks are larger than this.
Smaller row groups are read in few large requests."""

LARGEST_INT64 = (1 << 63) - 1

SMALLEST_BUFFER, LARGEST_BUFFER = 16 << 10, 1 << 20


class RowSize:
    """Bytes per row that a task has seen; decides how many rows are decoded at a time."""

    def __init__(self) -> None:
        self._bytes_per_row = 0.0

    @property
    def is_known(self) -> bool:
        """Whether any rows were seen."""
        return self._bytes_per_row > 0

    def see(self, batch: pa.RecordBatch) -> None:
        """Keep the largest average row size seen."""
        if batch.num_rows:
            self._bytes_per_row = max(self._bytes_per_row, batch.nbytes / batch.num_rows)

    def num_rows(self, at_least: float) -> int:
        """Return the rows of a batch, given the bytes that a row takes ``at_least``."""
        size = max(self._bytes_per_row, at_least, 1.0)
        return max(1, min(MAX_BATCH_ROWS, int(BATCH_BYTES / size)))


def read_file(
    file: ScanFile,
    origin: FileOrigin,
    wanted: Wanted,
    start: int = 0,
    stop: int | None = None,
    size: RowSize | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read rows of a file in file order, in the wanted schema; columns the file lacks are null.

    ``start`` and ``stop`` bound the row groups (Parquet) or record batches (Arrow); other files are
    read whole. ``size`` is updated from the rows read.

    Raises
    ------
    StorageError
        The file cannot be read, is gone, or changed since the scan was planned; the last may be
        raised after its rows.
    SchemaError
        A column's type does not convert to the dataset's, or only Spark can read it; its name is
        ambiguous; timestamps mix (:func:`~arrow_format.ingest.footers.check_timestamps`); or values
        of Spark 2's calendar are other days today.
    OptionError
        The filter fails on a row, as with a division by zero.
    """
    try:
        _check_unchanged(file, origin)
        if isinstance(origin.format, ds.ParquetFileFormat):
            batches = _parquet_batches(file, origin, wanted, start, stop, size or RowSize())
        elif isinstance(origin.format, ds.IpcFileFormat):
            batches = _ipc_batches(file, origin, wanted, start, stop)
        else:
            batches = _scanned_batches(file, origin, wanted)
        yield from batches
        _check_unchanged(file, origin)
    except (OSError, EOFError, pa.ArrowException) as error:
        with contextlib.suppress(OSError):
            _check_unchanged(file, origin)
        msg = (
            f"{file.path}: cannot be read as {origin.format.default_extname}: {error}. Repair "
            "this file of the source dataset or leave it out, then write again"
        )
        raise StorageError(msg) from error


def _check_unchanged(file: ScanFile, origin: FileOrigin) -> None:
    (info,) = origin.filesystem.get_file_info([file.path])
    planned = f"had {file.num_bytes:,} bytes"
    if info.size is None:
        now = "does not exist"
    elif info.size != file.num_bytes:
        now = f"has {info.size:,} bytes"
    elif None not in (file.mtime_ns, info.mtime_ns) and info.mtime_ns != file.mtime_ns:
        now = f"was modified at {_time_of(info.mtime_ns)}"
        planned = f"had last been modified at {_time_of(file.mtime_ns)}"
    else:
        return
    msg = (
        f"{file.path}: {now}, but {planned} when the write was planned; "
        "the files of a source must not change during a write: write again"
    )
    raise StorageError(msg)


def _time_of(nanoseconds: int | None) -> str:
    seconds, rest = divmod(nanoseconds or 0, 10**9)
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M:%S}.{rest:09d} UTC"


# Formats -----------------------------------------------------------------------------------------


def _parquet_batches(
    file: ScanFile,
    origin: FileOrigin,
    wanted: Wanted,
    start: int,
    stop: int | None,
    size: RowSize,
) -> Iterator[pa.RecordBatch]:
    fragment = origin.format.make_fragment(file.path, origin.filesystem, file.partition)
    metadata = fragment.metadata
    names = checked_columns(fragment, file, wanted)
    groups = row_groups_to_read(fragment, file, wanted, start, stop)
    if not groups:
        return
    given, options = origin.format.read_options, origin.format.default_fragment_scan_options
    chunk_bytes = chunk_bytes_of(metadata, groups, names)
    buffer = min(max(STREAM_BYTES // max(1, len(names)), SMALLEST_BUFFER), LARGEST_BUFFER)
    fits = max(chunk_bytes.values()) <= STREAM_BYTES
    with origin.filesystem.open_input_file(file.path) as source:
        reader = pq.ParquetFile(
            source,
            metadata=metadata,
            read_dictionary=sorted(given.dictionary_columns),
            binary_type=given.binary_type,
            list_type=given.list_type,
            buffer_size=0 if fits else buffer,
            # Reading ahead costs a copy, which pays only where requests are slow.
            pre_buffer=fits and origin.filesystem.type_name != "local",
            coerce_int96_timestamp_unit="us",
            page_checksum_verification=options.page_checksum_verification,
            thrift_string_size_limit=options.thrift_string_size_limit,
            thrift_container_size_limit=options.thrift_container_size_limit,
            arrow_extensions_enabled=options.arrow_extensions_enabled,
        )
        fit = _Fit(file, wanted, calendar_of_parquet(fragment))
        for group in groups:
            described = metadata.row_group(group)
            if not size.is_known and described.num_rows > PROBE_ROWS:
                probe = reader.iter_batches(PROBE_ROWS, [group], names, use_threads=False)
                for piece in fit.plain(next(probe)):
                    size.see(piece)
                del probe
            num_rows = size.num_rows(chunk_bytes[group] / max(1, described.num_rows))
            for batch in reader.iter_batches(num_rows, [group], names, use_threads=False):
                for piece in fit.plain(batch):
                    size.see(piece)
                    yield fit.filtered(piece)


def _ipc_batches(
    file: ScanFile, origin: FileOrigin, wanted: Wanted, start: int, stop: int | None
) -> Iterator[pa.RecordBatch]:
    fit = _Fit(file, wanted, Calendar())
    with origin.filesystem.open_input_file(file.path) as source:
        schema = pa.ipc.open_file(source).schema
        read = columns_to_read(schema, file, wanted)
        check_timestamps(file, wanted, read, timestamp_columns(schema))
        options = pa.ipc.IpcReadOptions(
            use_threads=False, included_fields=[schema.get_field_index(name) for name in read]
        )
        reader = pa.ipc.open_file(source, options=options)
        num_batches = reader.num_record_batches
        for number in range(start, num_batches if stop is None else stop):
            for piece in fit.plain(reader.get_batch(number)):
                yield fit.filtered(piece)


def _scanned_batches(
    file: ScanFile, origin: FileOrigin, wanted: Wanted
) -> Iterator[pa.RecordBatch]:
    fragment = origin.format.make_fragment(file.path, origin.filesystem, file.partition)
    read = checked_columns(fragment, file, wanted)
    # Text is parsed as the wanted types; ORC is read as its own.
    schema, calendar = wanted.schema, Calendar()
    if is_orc(origin.format):
        schema = pa.schema([fragment.physical_schema.field(name) for name in read])
        calendar = Calendar(dates=True)  # as Spark assumes of all ORC files
    scanner = fragment.scanner(
        schema=schema,
        columns=schema.names,
        use_threads=False,
        batch_size=MAX_BATCH_ROWS,
        batch_readahead=0,
        fragment_readahead=1,
        cache_metadata=False,
    )
    fit = _Fit(file, wanted, calendar)
    for batch in scanner.to_batches():
        for piece in fit.plain(batch):
            yield fit.filtered(piece)


# Columns -----------------------------------------------------------------------------------------


class _Fit:
    """Brings batches of one file to the wanted columns and types."""

    def __init__(self, file: ScanFile, wanted: Wanted, calendar: Calendar) -> None:
        self._file = file
        self._calendar = calendar
        self._wanted = wanted
        self._given = partition_values(file)

    def plain(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Rows of the plain schema that is wanted, a few megabytes at a time."""
        schema = self._wanted.schema
        columns = [self._column(batch, field) for field in schema]
        fitted = pa.RecordBatch.from_arrays(columns, names=schema.names)
        return stored_batches(fitted, schema)

    def filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that pass the filter."""
        condition = self._wanted.filter
        if condition is None or not batch.num_rows:
            return batch
        try:
            mask = _evaluated(condition, batch)
        except pa.ArrowException as error:
            msg = f"{self._file.path}: filter {condition} fails on a row: {error}"
            raise OptionError(msg) from error
        return keep(batch, mask)

    def _column(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        if field.name in self._given:
            given = self._given[field.name]
            # PyArrow makes int64 of a whole number unless given a type.
            is_beyond = isinstance(given, int) and given > LARGEST_INT64
            value = pa.scalar(given, pa.uint64() if is_beyond else None)
            return cast_column(pa.repeat(value, batch.num_rows), field, self._file.path)
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            return pa.nulls(batch.num_rows, field.type)
        # Where only encodings differ they stay: normalise resolves them piece by piece.
        column = batch.column(index)
        self._calendar.check(column, batch.schema.field(index), self._file.path)
        (plain,) = plain_schema(pa.schema([batch.schema.field(index)]))
        if same_but_labels(plain.type, field.type):
            is_view = pt.is_string_view(column.type) or pt.is_binary_view(column.type)
            short = is_view and _bytes_of_views(column) <= BATCH_BYTES
            return column.cast(plain.type) if short else column
        source = pa.RecordBatch.from_arrays([column], names=[field.name])
        column = normalise(source, pa.schema([plain])).column(0)
        return cast_column(column, field, self._file.path)


def _evaluated(condition: Any, batch: pa.RecordBatch) -> pa.Array:  # noqa: ANN401
    """Evaluate a filter on each row.

    PyArrow's ``batch.filter(condition)`` takes slices of rows wrongly,
    see :mod:`arrow_format.arrays.selection`.
    """
    columns = {"passes": condition}
    scanner = ds.Scanner.from_batches(
        [batch], schema=batch.schema, columns=columns, use_threads=False
    )
    return pa.concat_arrays(scanner.to_table().column("passes").chunks)


def _bytes_of_views(column: pa.Array) -> int:
    """Return the bytes of all values from their views: measuring row by row costs far more."""
    views = np.frombuffer(column.buffers()[1], np.int32).reshape(-1, 4)
    lengths = views[column.offset : column.offset + len(column), 0]
    return int(lengths.sum(dtype=np.int64))
