"""Tables of Delta and Iceberg as sources of map tasks; deletes hold, or the table is refused.

Their libraries are installed where a user has such a table, and imported when it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import OptionError, SchemaError, StorageError
from arrow_format.ingest.scan import MAX_TASKS, ScannedRows
from arrow_format.ingest.spark_types import as_spark_reads, plain_schema, schema_as_spark_reads
from arrow_format.ingest.tasks import MEMORY_PER_BYTE, ScanUnit, choose_num_tasks, spread
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.options import check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.dataset as ds

MAPPED = "delta.columnMapping.mode"


# Delta --------------------------------------------------------------------------------------------


def delta_dataset(table: Any) -> ds.Dataset:  # noqa: ANN401
    """Return the files of a ``deltalake.DeltaTable`` as a dataset.

    Raises
    ------
    OptionError
        The files are not the rows: the table has deletion vectors or mapped columns, or needs what
        deltalake does not read.
    """
    from deltalake.exceptions import DeltaProtocolError

    what = f"Delta table {table.table_uri} version {table.version()}"
    way = (
        "Write the rows that deltalake reads in this process, write_shuffle(table.scan(), ...), or "
        "let Spark read the table"
    )
    mode = table.metadata().configuration.get(MAPPED, "none")
    if mode != "none":
        # deltalake refuses it in newer protocols only, and reads nulls in others.
        msg = f"{what}: {MAPPED} is {mode}, so its files have other names of columns. {way}"
        raise OptionError(msg)
    try:
        return table.to_pyarrow_dataset()
    except DeltaProtocolError as error:
        msg = f"{what}: tasks cannot read its files as they are: {error} {way}"
        raise OptionError(msg) from error


# Iceberg ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IcebergScan:
    """A planned scan of an Iceberg table. Map tasks get it by pickle, and read with pyiceberg."""

    schema: pa.Schema
    """Data schema of the rows that come out."""
    plain: pa.Schema
    """Schema of the columns before they are as Spark reads them."""
    scan: Any
    """A ``pyiceberg.io.pyarrow.ArrowScan``."""
    files: tuple[Any, ...]
    """A ``pyiceberg.table.FileScanTask`` for each file, with its deletes."""
    tasks: tuple[tuple[ScanUnit, ...], ...]
    """Files of each task, in reading order. At least one task, which may have none."""
    num_bytes: int
    """Bytes of the rows in memory, about."""

    @property
    def num_tasks(self) -> int:
        """Number of map tasks."""
        return len(self.tasks)

    def read(self, task: int) -> Iterator[pa.RecordBatch]:
        """Read the rows of map task ``task``, file by file, each of which is in memory as a whole.

        Raises
        ------
        StorageError
            A file cannot be read.
        SchemaError
            A value does not fit the type that Spark would read.
        """
        for unit in self.tasks[task]:
            file = self.files[unit.file]
            path = file.file.file_path
            try:
                batches = list(self.scan.to_record_batches([file]))
            except (OSError, ValueError, NotImplementedError, pa.ArrowException) as error:
                msg = (
                    f"{path}: pyiceberg cannot read it: {error}. Repair the table, then write again"
                )
                raise StorageError(msg) from error
            for batch in batches:
                for piece in stored_batches(batch, self.plain):
                    yield as_spark_reads(piece, self.schema, path)


def plan_iceberg(
    source: Any,  # noqa: ANN401
    *,
    parallelism: int,
    columns: Sequence[str] | None = None,
    num_tasks: int | None = None,
) -> IcebergScan:
    """Plan what each map task reads of a ``pyiceberg`` table, or of a scan of one.

    Raises
    ------
    OptionError
        The scan has a limit, or the table has deletes that pyiceberg does not apply.
    """
    from pyiceberg.io.pyarrow import ArrowScan

    if num_tasks is not None:
        check_integer("num_map_tasks", num_tasks, 1, MAX_TASKS, "map tasks")
    scan = _scan_of(source, columns)
    what = _named(scan)
    if scan.limit is not None:
        msg = f"{what}: the scan has limit={scan.limit}, and tasks read apart: leave it out"
        raise OptionError(msg)
    try:
        files = tuple(sorted(scan.plan_files(), key=lambda file: file.file.file_path))
    except (ValueError, NotImplementedError) as error:
        msg = (
            f"{what}: cannot be planned by pyiceberg: {error}. Compact the table's deletes, or let "
            "Spark read it"
        )
        raise OptionError(msg) from error
    plain = _plain_schema(scan)
    total = sum(file.file.file_size_in_bytes for file in files)
    units = [ScanUnit(i, file.file.file_size_in_bytes) for i, file in enumerate(files)]
    tasks = spread(units, num_tasks or choose_num_tasks(total, parallelism))
    return IcebergScan(
        schema_as_spark_reads(plain),
        plain,
        ArrowScan(
            scan.table_metadata, scan.io, scan.projection(), scan.row_filter, scan.case_sensitive
        ),
        files,
        tuple(tasks) or ((),),
        MEMORY_PER_BYTE * total,
    )


def _scan_of(source: Any, columns: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Return the scan of a table, or the given one, of these columns."""
    scan = source.scan() if hasattr(source, "scan") else source
    if columns is None:
        return scan
    return scan.select(*_known(columns, scan.projection().column_names))


def _named(scan: Any) -> str:  # noqa: ANN401
    return f"Iceberg table {scan.table_metadata.location}"


def _plain_schema(scan: Any) -> pa.Schema:  # noqa: ANN401
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    return plain_schema(schema_to_pyarrow(scan.projection(), include_field_ids=False))


def _known(columns: Sequence[str] | str, names: Sequence[str]) -> list[str]:
    """Return the columns; SchemaError for one that is not among the names."""
    chosen = [columns] if isinstance(columns, str) else list(columns)
    for name in chosen:
        if name not in names:
            raise SchemaError(missing_column(name, names, "columns: column"))
    return chosen


@dataclass(frozen=True)
class IcebergSource:
    """Some columns of a table of Iceberg, or of a scan of one; raises as :func:`plan_iceberg`.

    Its rows come as Spark reads them, as they are: Iceberg has no types that Spark lacks.
    """

    table: Any
    """A ``pyiceberg.table.Table`` or ``DataScan``."""
    columns: Sequence[str] | None

    reads_ahead = True

    @staticmethod
    def of(table: Any, columns: Sequence[str] | None, filter: object) -> IcebergSource:  # noqa: ANN401
        """Return the source; OptionError where there is a filter."""
        if filter is not None:
            msg = "filter: give it to Iceberg, which finds files by it: table.scan(row_filter=...)"
            raise OptionError(msg)
        return IcebergSource(table, columns)

    @property
    def schema(self) -> pa.Schema:
        """Of the rows, as Spark reads them."""
        return schema_as_spark_reads(_plain_schema(_scan_of(self.table, self.columns)))

    def plan(
        self,
        *,
        for_spark: bool,
        parallelism: int = 1,
        num_tasks: int | None = None,
        subpartition: str | None = None,
    ) -> IcebergScan:
        """Plan the scan; see :class:`~arrow_format.ingest.source.Source`."""
        del for_spark, subpartition
        return plan_iceberg(
            self.table, parallelism=parallelism, columns=self.columns, num_tasks=num_tasks
        )

    def sample(
        self, ranges: RangePartitioner, num_subpartitions: int, *, for_spark: bool
    ) -> RangePartitioner:
        """Read the key columns twice: to count rows, and to take some."""
        part = IcebergSource(self.table, [name for name, _ in ranges.keys])
        rows = ScannedRows(part.plan(for_spark=for_spark, num_tasks=1))
        return RangePartitioner.sampled(rows, ranges.keys, num_subpartitions)
