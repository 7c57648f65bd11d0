"""What a write takes its rows from, looked at once: files, a table, or rows in memory.

What needs PyArrow's datasets, or the library of a table, is imported where there is one: the first
import pandas, which takes 0.3 s.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from arrow_format.arrays.batch_stream import BatchReader
from arrow_format.arrays.types_for_spark import rows_for_spark, schema_for_spark
from arrow_format.errors import OptionError, SchemaError
from arrow_format.keys.range_partitioner import RangePartitioner

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from deltalake import DeltaTable
    from pyiceberg.table import DataScan as IcebergDataScan
    from pyiceberg.table import Table as IcebergTable

    from arrow_format.ingest.tasks import Scan


class ArrowStream(Protocol):
    """Rows of a pandas or Polars frame, or of any other table with an Arrow C stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Given: TypeAlias = (
    "pa.Table | pa.RecordBatchReader | BatchReader | ArrowStream | Iterable[pa.RecordBatch]"
    " | ds.Dataset | DeltaTable | IcebergTable | IcebergDataScan"
)
"""What a user gives as the source of a write, if it is no DataFrame of Spark."""


class Source(Protocol):
    """Where the rows of a write come from."""

    @property
    def reads_ahead(self) -> bool:
        """Whether any thread may take rows. What makes those of users may depend on the thread."""

    @property
    def schema(self) -> pa.Schema:
        """Of the rows as they are there."""

    def plan(
        self,
        *,
        for_spark: bool,
        parallelism: int = 1,
        num_tasks: int | None = None,
        subpartition: str | None = None,
    ) -> Scan:
        """Plan what each map task reads.

        Parameters
        ----------
        for_spark
            Whether the rows come in types that Spark reads.
        parallelism
            Tasks that run concurrently.
        num_tasks
            Map tasks, or as many as the bytes need when None; there may be fewer.
        subpartition
            A column that stays an integer.
        """

    def sample(
        self, ranges: RangePartitioner, num_subpartitions: int, *, for_spark: bool
    ) -> RangePartitioner:
        """Return a range partitioner with bounds that split a sample of the rows evenly."""


def source_of(
    value: Any,  # noqa: ANN401
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
) -> Source:
    """Look at what a user wants to write.

    Raises
    ------
    SchemaError
        It is a DataFrame of Spark, or no rows at all.
    OptionError
        ``columns`` or ``filter`` are given of rows that have none; or a table cannot be read.
    """
    kind = table_format(value)
    if kind == "iceberg":
        from arrow_format.ingest.tables import IcebergSource

        return IcebergSource.of(value, columns, filter)
    if kind == "delta":
        from arrow_format.ingest.tables import delta_dataset

        value = delta_dataset(value)
    if _is_dataset(value):
        from arrow_format.ingest.files_source import FilesSource, is_of_files

        if is_of_files(value):
            return FilesSource(value, columns, filter)
        value = value.scanner().to_reader()
    for name, part in {"columns": columns, "filter": filter}.items():
        if part is not None:
            msg = (
                f"{name}: only for a pyarrow dataset of files, and source is {named(value)}; "
                "select columns and rows before"
            )
            raise OptionError(msg)
    return StreamSource.of(value)


def table_format(source: object) -> str | None:
    """Return ``delta`` or ``iceberg`` for a table of these, or a scan of one; None for others."""
    for kind in type(source).__mro__:
        package = kind.__module__.partition(".")[0]
        if (package, kind.__name__) == ("deltalake", "DeltaTable"):
            return "delta"
        if package == "pyiceberg" and kind.__name__ in ("Table", "DataScan"):
            return "iceberg"
    return None


def named(source: object) -> str:
    """Return package and class of a source, for messages."""
    package = type(source).__module__.partition(".")[0]
    return f"{package} {type(source).__name__}".removeprefix("builtins ")


def _is_dataset(value: object) -> bool:
    """Whether a source is a dataset of PyArrow, whose module is loaded then, and else need not."""
    datasets = sys.modules.get("pyarrow._dataset")
    return datasets is not None and isinstance(value, datasets.Dataset)


# Rows in memory, or that come once ----------------------------------------------------------------


@dataclass(frozen=True)
class StreamSource:
    """A table, reader or frame, or record batches: rows that one task takes once, as its scan."""

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    given: Any
    """What the user gave."""

    reads_ahead = False
    num_tasks = 1

    @staticmethod
    def of(value: Any) -> StreamSource:  # noqa: ANN401
        """Return the rows of a value; SchemaError where it has none."""
        _refuse_path(value)
        _refuse_frame_of_spark(value)
        return StreamSource(*_as_stream(value), value)

    def plan(
        self,
        *,
        for_spark: bool,
        parallelism: int = 1,
        num_tasks: int | None = None,
        subpartition: str | None = None,
    ) -> StreamSource:
        """Return all rows as those of one task; see :class:`Source`."""
        del parallelism, num_tasks
        if not for_spark:
            return self
        rows = rows_for_spark(self.batches, self.schema, subpartition)
        return StreamSource(schema_for_spark(self.schema, subpartition), rows, self.given)

    def read(self, task: int) -> Iterable[pa.RecordBatch]:
        """Return all rows."""
        del task
        return self.batches

    @property
    def num_bytes(self) -> int | None:
        """Bytes of rows that are in memory; None of those that come once."""
        given = self.given
        if isinstance(given, pa.Table | pa.RecordBatch):
            return int(given.nbytes)
        if isinstance(given, list | tuple):
            return sum(int(batch.nbytes) for batch in given if isinstance(batch, pa.RecordBatch))
        if _is_of_pandas(given):
            return int(given.memory_usage(index=False).sum())
        return int(given.estimated_size()) if hasattr(given, "estimated_size") else None

    def sample(
        self, ranges: RangePartitioner, num_subpartitions: int, *, for_spark: bool
    ) -> RangePartitioner:
        """Take a sample of a table; rows that come once are an OptionError."""
        if not isinstance(self.given, pa.Table | pa.RecordBatch):
            msg = (
                f"{ranges!r} has no bounds, and source is {type(self.given).__name__}, which can "
                "be read only once: give bounds=..., a pyarrow Table, or take a sample with "
                "RangePartitioner.sampled(table_or_dataset, keys, num_subpartitions)"
            )
            raise OptionError(msg)
        sampled = RangePartitioner.sampled(self.given, ranges.keys, num_subpartitions)
        if sampled.bounds is None or not for_spark:
            return sampled
        bounds = rows_for_spark([sampled.bounds], sampled.bounds.schema)
        return RangePartitioner(
            keys=sampled.keys,
            bounds=pa.Table.from_batches(bounds, schema_for_spark(sampled.bounds.schema)),
        )

    @property
    def index_columns(self) -> list[str]:
        """Columns that are the index of a frame of pandas and have a name; they are not written."""
        names = _index_columns(self.given)
        return [name for name in names if not name.startswith("__index_level_")]


def _refuse_path(value: object) -> None:
    """Refuse a path, which may be that of files, or was given first."""
    if isinstance(value, str | os.PathLike):
        msg = (
            f"source is the path {os.fspath(value)!r}: expected rows. Files are "
            "pyarrow.dataset.dataset(path), the rows of a shuffle open_shuffle(path); the path of "
            "what is written comes after them, write_shuffle(rows, path, keys=...)"
        )
        raise SchemaError(msg)


def _refuse_frame_of_spark(value: object) -> None:
    """Refuse what Spark has besides a DataFrame of its own, and that where Spark does not run."""
    if any(kind.__module__.partition(".")[0] == "pyspark" for kind in type(value).__mro__):
        instead = "expected a DataFrame; aggregate it first, as in groups.count()"
        is_frame = any(kind.__name__ == "DataFrame" for kind in type(value).__mro__)
        if is_frame and not hasattr(type(value), "to_spark"):
            instead = (
                "all its rows would pass through this process. arrow_shuffle.write_shuffle writes "
                "it in Spark's tasks; a small one can be given as df.toArrow()"
            )
        elif hasattr(type(value), "to_spark"):
            instead = "expected a DataFrame; give source.to_spark()"
        elif hasattr(type(value), "toDF"):
            instead = "expected a DataFrame; give spark.createDataFrame(source)"
        msg = f"source is a Spark {type(value).__name__}: {instead}"
        raise SchemaError(msg)


def _is_of_pandas(value: object) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas"


def _index_columns(value: Any) -> list[str]:  # noqa: ANN401
    """Return the columns that are the index of a frame of pandas, which is not written.

    As Spark and Polars have it: ``frame.reset_index()`` asks for it.
    """
    if not _is_of_pandas(value):
        return []
    metadata = pa.RecordBatchReader.from_stream(value.iloc[:0]).schema.metadata or {}
    described = json.loads(metadata.get(b"pandas", b"{}"))
    return [name for name in described.get("index_columns", ()) if isinstance(name, str)]


def _as_stream(value: Any) -> tuple[pa.Schema, Iterable[pa.RecordBatch]]:  # noqa: ANN401
    # Not through the C interface, where errors of a reader would lose their types.
    if isinstance(value, pa.Table):
        value = value.to_reader()
    if isinstance(value, pa.RecordBatchReader | BatchReader):
        return value.schema, value
    if hasattr(value, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(value)
        index = _index_columns(value)
        if not index:
            return reader.schema, reader
        columns = [name for name in reader.schema.names if name not in index]
        schema = pa.schema([reader.schema.field(name) for name in columns])
        return schema, (batch.select(columns) for batch in reader)
    if not isinstance(value, Iterable):
        msg = (
            f"source is {type(value).__name__}: expected a table, a reader, a frame, a dataset or "
            "record batches"
        )
        raise SchemaError(msg)
    batches = iter(value)
    first = next(batches, None)
    if not isinstance(first, pa.RecordBatch):
        msg = (
            f"source begins with {type(first).__name__}: expected Arrow record batches; for no "
            "rows at all give a table or reader, which has a schema"
        )
        raise SchemaError(msg)
    return first.schema, chain([first], batches)
