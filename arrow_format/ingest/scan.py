"""Scans a dataset of files: planned once, then read by map tasks.

The plan assigns files and row groups to tasks, and a task reads them one after the other: so every
attempt reads the same rows in the same order.
"""

from __future__ import annotations

import contextlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import types as pt

from arrow_format.arrays.stored_types import missing_column, refuse_duplicates
from arrow_format.errors import OptionError, SchemaError, StorageError
from arrow_format.ingest.files import RowSize, read_file
from arrow_format.ingest.footers import (
    FileOrigin,
    ScanFile,
    Wanted,
    checked_columns,
    is_compressed,
    is_encrypted,
    pieces_of_file,
    share_of_bytes,
    timestamp_columns,
    viewed_row_groups,
    zoneless_columns,
)
from arrow_format.ingest.spark_footer import SparkFooter, labelled, spark_footer
from arrow_format.ingest.spark_types import as_spark_reads, plain_schema, schema_as_spark_reads
from arrow_format.ingest.tasks import (
    MEMORY_PER_BYTE,
    ScanUnit,
    choose_num_tasks,
    join_adjacent,
    most_unit_bytes,
    spread,
)
from arrow_format.options import check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.ingest.footers import TimestampColumns
    from arrow_format.ingest.tasks import Scan

REQUESTS = 16
"""Footers that are read concurrently while a scan is planned."""

MAX_TASKS = 1_000_000


@dataclass(frozen=True, slots=True)
class DatasetScan:
    """A planned scan. Map tasks get it by pickle."""

    schema: pa.Schema
    """Data schema of the rows that come out."""
    wanted: Wanted
    origins: tuple[FileOrigin, ...]
    files: tuple[ScanFile, ...]
    tasks: tuple[tuple[ScanUnit, ...], ...]
    """Units of each task, in reading order. At least one task, which may have no units."""
    num_bytes: int
    """Bytes of the rows in memory, about, where the filter drops none."""

    @property
    def num_tasks(self) -> int:
        """Number of map tasks."""
        return len(self.tasks)

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """Read the rows of map task ``task``, from 0 to ``num_tasks - 1``, batch by batch.

        Raises
        ------
        StorageError, SchemaError
            As :func:`~arrow_format.ingest.files.read_file`.
        """
        size = RowSize()
        for unit in self.tasks[task]:
            file = self.files[unit.file]
            origin = self.origins[file.origin]
            for batch in read_file(file, origin, self.wanted, unit.start, unit.stop, size):
                if batch.num_rows:
                    yield as_spark_reads(batch, self.schema, file.path)


def plan_scan(
    dataset: ds.Dataset,
    *,
    parallelism: int,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    num_tasks: int | None = None,
    for_spark: bool = True,
) -> DatasetScan:
    """Plan what each map task reads of a dataset.

    Reads size and time of every file, the footers of files that are split, and one more Parquet
    footer, or as many as show which timestamps are INT96.

    Parameters
    ----------
    dataset
        A dataset of files on any file system of pyarrow, or a union of such. Its own filter holds
        too.
    parallelism
        Tasks that run concurrently.
    columns
        Names, in output order; all when None.
    filter
        Rows for which it is true are read; partitions and row groups for which it cannot be true
        are skipped. Statistics of row groups are used only where it uses no floating point.
    num_tasks
        Map tasks, or as many as the bytes need when None. There may be fewer, since row groups and
        files that cannot be split stay whole.
    for_spark
        Whether the rows come in types that Spark reads, rounded where it rounds; otherwise in those
        that are stored for the files' own.

    Raises
    ------
    SchemaError
        A column is missing, or cannot be stored; a split file has it twice, or has other
        timestamps than the other files.
    OptionError
        The dataset is of another kind; the filter does not fit it, is not boolean, or refers to
        columns by position.
    StorageError
        A file cannot be read.
    """
    if num_tasks is not None:
        check_integer("num_map_tasks", num_tasks, 1, MAX_TASKS, "map tasks")
    parts = _parts(dataset)
    refuse_duplicates(dataset.schema.names)
    condition = _condition(dataset, filter)
    names = selected_names(dataset.schema, columns)
    filter_columns = _names_in(condition, dataset.schema)
    needed = [*names, *(name for name in filter_columns if name not in names)]
    schema = pa.schema([dataset.schema.field(name) for name in needed])
    plain = plain_schema(schema)
    with _naming("the dataset"):
        fragments = [
            (number, fragment)
            for number, part in enumerate(parts)
            for fragment in _fragments(part, plain, condition)
        ]
        origins = tuple(FileOrigin(part.format, part.filesystem) for part in parts)
        int96, share_read = _look_into_some(fragments, origins, names, zoneless_columns(plain))
    wanted = Wanted(plain_schema(schema, int96), condition, frozenset(filter_columns), int96)
    files = _files(fragments, origins)
    total = sum(file.num_bytes for file in files)
    count = num_tasks or choose_num_tasks(int(total * share_read), parallelism)
    units = _units(files, origins, wanted, most_unit_bytes(total, count))
    stored = pa.schema([wanted.schema.field(name) for name in names])
    if for_spark:
        stored = schema_as_spark_reads(stored, int96)
    footer = _look_into_first(files, origins, wanted)
    tasks = tuple(join_adjacent(run) for run in spread(units, count))
    in_memory = sum(
        file.num_bytes * (MEMORY_PER_BYTE if is_compressed(origins[file.origin].format) else 1)
        for file in files
    )
    num_bytes = int(in_memory * share_read)
    return DatasetScan(labelled(stored, footer), wanted, origins, files, tasks or ((),), num_bytes)


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """The rows of a scan with the methods of a dataset that sampling uses."""

    scan: Scan

    @property
    def schema(self) -> pa.Schema:
        """Data schema of the rows."""
        return self.scan.schema

    def count_rows(self) -> int:
        """Count the rows, by reading them: a filter may drop some."""
        return sum(batch.num_rows for batch in self.to_batches())

    def scanner(self, columns: Sequence[str]) -> ScannedRows:
        """Return the rows; the scan was planned for these columns."""
        del columns
        return self

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read all rows, in order."""
        for task in range(self.scan.num_tasks):
            yield from self.scan.read(task)


# The user's dataset, columns and filter ---------------------------------------------------------


def _parts(dataset: Any) -> list[Any]:  # noqa: ANN401
    """Return the datasets of files that a dataset consists of."""
    if isinstance(dataset, ds.UnionDataset):
        return [part for child in dataset.children for part in _parts(child)]
    if isinstance(dataset, ds.FileSystemDataset):
        if is_encrypted(dataset.format):
            msg = "encrypted Parquet files as a source are not supported; let Spark read them"
            raise OptionError(msg)
        return [dataset]
    msg = (
        f"source is a pyarrow {type(dataset).__name__}: expected a dataset of files, which tasks "
        "can open. arrow_shuffle.write_shuffle without spark writes any dataset in this process"
    )
    raise OptionError(msg)


def selected_names(schema: pa.Schema, columns: Sequence[str] | str | None) -> list[str]:
    """Return the columns to read, all when None; raises SchemaError."""
    if columns is None:
        return list(schema.names)
    names = [columns] if isinstance(columns, str) else list(columns)
    for name in names:
        if name not in schema.names:
            raise SchemaError(missing_column(name, schema.names, "columns: column"))
    if not names:
        msg = "columns is empty: expected at least one name, or None for all columns"
        raise SchemaError(msg)
    refuse_duplicates(names)
    return names


def _condition(dataset: ds.Dataset, given: object) -> Any:  # noqa: ANN401
    """Return the filters of the dataset and of the user as one; None when there is neither."""
    if given is not None and not isinstance(given, pc.Expression):
        msg = (
            f"filter is {type(given).__name__}: expected a pyarrow expression, such as "
            'pyarrow.dataset.field("a") > 1'
        )
        raise OptionError(msg)
    own = dataset._scan_options.get("filter")
    conditions = [part for part in (own, given) if part is not None]
    if not conditions:
        return None
    condition = conditions[0] if len(conditions) == 1 else conditions[0] & conditions[1]
    schema = _bindable(dataset.schema)
    error = _why_not_bound(condition, schema)
    if error is not None:
        columns = ", ".join(f"{field.name} {field.type}" for field in dataset.schema)
        msg = f"filter {condition} does not fit the dataset: {error}; its columns are {columns}"
        raise OptionError(msg)
    _check_goes_to_tasks(condition)
    probe = ds.Scanner.from_batches([], schema=schema, columns={"filter": condition})
    (type_,) = probe.projected_schema.types
    if not pt.is_boolean(type_):
        msg = (
            f"filter {condition} gives values of type {type_}: expected a boolean, such as "
            'pyarrow.dataset.field("a") > 1'
        )
        raise OptionError(msg)
    return condition


def _check_goes_to_tasks(condition: object) -> None:
    """Refuse a filter that cannot be pickled, such as one that refers to columns by position."""
    try:
        pickle.dumps(condition)
    except (pickle.PicklingError, pa.ArrowException, TypeError, AttributeError) as error:
        msg = (
            f"filter {condition} cannot be sent to the tasks: {error}. Refer to columns by name "
            '(pyarrow.dataset.field("a")), not by position'
        )
        raise OptionError(msg) from error


def _names_in(condition: object, schema: pa.Schema) -> list[str]:
    """Return the columns that the filter uses."""
    if condition is None:
        return []
    whole = _bindable(schema)
    return [
        name
        for i, name in enumerate(schema.names)
        if _why_not_bound(condition, whole.remove(i)) is not None
    ]


def _bindable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with plain types where a column has one."""
    fields = []
    for field in schema:
        try:
            fields += plain_schema(pa.schema([field]))
        except SchemaError:  # refused only when the column is selected
            fields.append(field)
    return pa.schema(fields)


def _why_not_bound(condition: object, schema: pa.Schema) -> Exception | None:
    try:
        ds.Scanner.from_batches([], schema=schema, filter=condition)
    except pa.ArrowException as error:
        why: Exception = error
        return why
    return None


# Files -----------------------------------------------------------------------------------


def _fragments(part: ds.FileSystemDataset, plain: pa.Schema, condition: object) -> list[Any]:
    """Return the fragments in partitions that may have rows that pass the filter."""
    # The public way refuses datasets with a filter of their own.
    fragments = list(part._get_fragments(None))
    for fragment in fragments:
        if fragment.buffer is not None:
            msg = "source is a dataset with files in memory: expected files that tasks can read"
            raise OptionError(msg)
    if condition is None or not fragments:
        return fragments
    # Against plain types: Arrow compares no views of text.
    known = ds.FileSystemDataset(fragments, plain, part.format, part.filesystem)
    return list(known.get_fragments(filter=condition))


def _look_into_some(
    fragments: Sequence[tuple[int, Any]],
    origins: Sequence[FileOrigin],
    names: Sequence[str],
    zoneless: frozenset[str],
) -> tuple[frozenset[str], float]:
    """Return INT96 columns, and the share of bytes that is read, from Parquet footers.

    The first footer decides, unless it lacks a zoneless column or has time zones in it; then the
    next ones do. Reading checks that all files agree.
    """
    parquet = [
        fragment
        for number, fragment in fragments
        if isinstance(origins[number].format, ds.ParquetFileFormat)
    ]
    if not parquet:
        return frozenset(), 1.0
    share = share_of_bytes(parquet[0].metadata, names)
    int96: set[str] = set()
    # Values from directory names are in no file.
    unsettled = zoneless - ds.get_partition_keys(parquet[0].partition_expression).keys()
    with ThreadPoolExecutor(REQUESTS) as pool:
        for start in (0, *range(1, len(parquet), REQUESTS)):
            some = parquet[start : start + REQUESTS] if start else parquet[:1]
            for columns in pool.map(_timestamps_of, some):
                int96 |= columns.int96 - (zoneless - unsettled)
                unsettled -= columns.int96 | columns.zoneless
            if not unsettled:
                break
    return frozenset(int96), share


def _look_into_first(
    files: Sequence[ScanFile], origins: Sequence[FileOrigin], wanted: Wanted
) -> SparkFooter:
    """Check the first file, so that most faults are refused before a task runs.

    Returns its Spark metadata; Spark too takes the first file's as the schema of all.
    """
    if not files:
        return SparkFooter()
    file, origin = files[0], origins[files[0].origin]
    fragment = origin.format.make_fragment(file.path, origin.filesystem, file.partition)
    with _naming(file.path):
        checked_columns(fragment, file, wanted)
        is_parquet = isinstance(fragment, ds.ParquetFileFragment)
        return spark_footer(fragment.metadata.metadata) if is_parquet else SparkFooter()


def _timestamps_of(fragment: Any) -> TimestampColumns:  # noqa: ANN401
    with _naming(fragment.path):
        return timestamp_columns(fragment.physical_schema, fragment.metadata)


@contextlib.contextmanager
def _naming(what: str) -> Iterator[None]:
    """Name the file in errors of reading it."""
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        msg = f"{what}: cannot be read: {error}. Repair the dataset, then create it again"
        raise StorageError(msg) from error


def _files(
    fragments: Sequence[tuple[int, Any]], origins: Sequence[FileOrigin]
) -> tuple[ScanFile, ...]:
    def scan_file(numbered: tuple[int, Any]) -> ScanFile:
        number, fragment = numbered
        with _naming(fragment.path):
            return describe(number, fragment)

    def describe(number: int, fragment: Any) -> ScanFile:  # noqa: ANN401
        (info,) = origins[number].filesystem.get_file_info([fragment.path])
        if info.size is None:
            msg = (
                f"{fragment.path}: the dataset names this file, which does not exist; create the "
                "dataset again"
            )
            raise StorageError(msg)
        partition = fragment.partition_expression
        return ScanFile(
            origin=number,
            path=_absolute(fragment.path, origins[number].filesystem),
            num_bytes=info.size,
            mtime_ns=info.mtime_ns,
            partition=None if partition.equals(pc.scalar(True)) else partition,
            row_groups=viewed_row_groups(fragment),
        )

    with ThreadPoolExecutor(REQUESTS) as pool:
        return tuple(pool.map(scan_file, fragments))


def _absolute(path: str, filesystem: Any) -> str:  # noqa: ANN401
    """Return a path that is valid in any working directory, as tasks have their own."""
    return str(Path(path).absolute()) if filesystem.type_name == "local" else path


def _units(
    files: Sequence[ScanFile], origins: Sequence[FileOrigin], wanted: Wanted, max_bytes: int
) -> list[ScanUnit]:
    """Return the units of all files; files above ``max_bytes`` are split where they can be."""

    def cut(numbered: tuple[int, ScanFile]) -> list[ScanUnit]:
        number, file = numbered
        if file.num_bytes <= max_bytes:
            return [ScanUnit(number, file.num_bytes)]
        with _naming(file.path):
            parts = pieces_of_file(file, origins[file.origin], wanted)
        return [ScanUnit(number, num_bytes, start, stop) for start, stop, num_bytes in parts]

    with ThreadPoolExecutor(REQUESTS) as pool:
        return [unit for units in pool.map(cut, enumerate(files)) for unit in units]
