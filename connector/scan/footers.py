"""What is known of a file without reading its rows: which row groups, which columns, how large.

Source: the footers of Parquet and Arrow files.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import types as pt

from arrow_format.arrays.stored_types import same_but_labels
from arrow_format.errors import SchemaError
from connector.scan.spark_footer import (
    calendar_of,
    check_orc_types,
    check_parquet_types,
    fields_within,
    spark_footer,
)
from connector.scan.spark_types import leaves, plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow.parquet as pq

    from connector.scan.spark_footer import Calendar


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """What files of one dataset have in common."""

    format: Any
    """Format of the files, a ``pyarrow.dataset.FileFormat``."""
    filesystem: Any
    """File system on which they are, a ``pyarrow.fs.FileSystem``."""


@dataclass(frozen=True, slots=True)
class ScanFile:
    """One file as it was when the scan was planned."""

    origin: int
    """Number of its :class:`FileOrigin` in the plan."""
    path: str
    num_bytes: int
    mtime_ns: int | None = None
    """When it was last modified, in nanoseconds since 1970; None where the file system does not
    say."""
    partition: Any = None
    """Expression that holds for all rows, from the names of directories; None when it says
    nothing."""
    row_groups: tuple[int, ...] | None = None
    """The row groups that belong to the dataset; None for all."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows and columns are read."""

    schema: pa.Schema
    """Plain schema of the columns that are written or that the filter looks at."""
    filter: Any = None
    """Expression over these columns, or None for all rows."""
    filter_columns: frozenset[str] = frozenset()
    """Columns that the filter looks at."""
    int96: frozenset[str] = frozenset()
    """Columns whose timestamps are instants since Parquet files hold them as INT96."""


@dataclass(frozen=True, slots=True)
class TimestampColumns:
    """Columns of one file that have timestamps without a time zone, at any depth."""

    int96: frozenset[str]
    """Those that Parquet holds as INT96, which are instants in UTC."""
    zoneless: frozenset[str]
    """Those that are not."""


def is_encrypted(format_: Any) -> bool:  # noqa: ANN401
    """Whether files of a format are read with keys."""
    if not isinstance(format_, ds.ParquetFileFormat):
        return False
    options = format_.default_fragment_scan_options
    return any(
        getattr(options, name, None) is not None
        for name in ("decryption_properties", "parquet_decryption_config")
    )


def is_orc(format_: Any) -> bool:  # noqa: ANN401
    """Whether files of a format are ORC, which not every build of PyArrow can read."""
    return bool(format_.default_extname == "orc")


def row_groups_to_read(
    fragment: Any,  # noqa: ANN401
    file: ScanFile,
    wanted: Wanted,
    start: int,
    stop: int | None,
) -> list[int]:
    """Row groups of a range that belong to the file and may have rows that pass the filter."""
    if wanted.filter is not None and _statistics_tell(fragment, wanted):
        # Of text that Parquet gives as views the statistics cannot be compared: all are read then.
        with contextlib.suppress(pa.ArrowNotImplementedError):
            fragment = fragment.subset(filter=wanted.filter, schema=wanted.schema)
    mine = None if file.row_groups is None else set(file.row_groups)
    return [
        group.id
        for group in fragment.row_groups
        if start <= group.id and (stop is None or group.id < stop)
        if mine is None or group.id in mine
    ]


def _statistics_tell(fragment: Any, wanted: Wanted) -> bool:  # noqa: ANN401
    """Whether the statistics of a file tell which of its row groups cannot pass the filter.

    Those of floating point do not: NaN is outside of least and largest, and -0.0 equals 0.0, which
    PyArrow takes no notice of. Values of other types than in the file may be ordered otherwise, and
    those of the older calendar are other days: none may be left out unseen.
    """
    physical, calendar = fragment.physical_schema, calendar_of_parquet(fragment)
    for name in wanted.filter_columns:
        schema = pa.schema([wanted.schema.field(name)])
        if any(pt.is_floating(leaf) for _, leaf in leaves(schema)):
            return False
        if name in physical.names:
            (there,) = plain_schema(pa.schema([physical.field(name)]))
            if not same_but_labels(there.type, schema.field(name).type) or calendar.concerns(there):
                return False
    return True


def checked_columns(fragment: Any, file: ScanFile, wanted: Wanted) -> list[str]:  # noqa: ANN401
    """Columns that are wanted and are in the file itself, all of which can be read.

    Parameters
    ----------
    fragment
        The file as PyArrow sees it, of any format.
    file, wanted
        The file, and what is read.

    Raises
    ------
    SchemaError
        As :func:`columns_to_read`, :func:`check_timestamps`,
        :func:`~connector.scan.spark_footer.check_parquet_types` and
        :func:`~connector.scan.spark_footer.check_orc_types`.
    """
    physical = fragment.physical_schema
    names = columns_to_read(physical, file, wanted)
    if isinstance(fragment, ds.ParquetFileFragment):
        metadata = fragment.metadata
        check_timestamps(file, wanted, names, timestamp_columns(physical, metadata))
        footer = spark_footer(metadata.metadata)
        check_parquet_types(file.path, physical, names, footer, str(metadata.schema))
    elif is_orc(fragment.format):
        check_orc_types(file.path, physical, names)
    else:
        check_timestamps(file, wanted, names, timestamp_columns(physical))
    return names


def calendar_of_parquet(fragment: Any) -> Calendar:  # noqa: ANN401
    """Return which values of a Parquet file Spark reads as others than PyArrow."""
    metadata = fragment.metadata
    int96 = timestamp_columns(fragment.physical_schema, metadata).int96
    return calendar_of(spark_footer(metadata.metadata), int96, metadata.created_by)


def columns_to_read(physical: pa.Schema, file: ScanFile, wanted: Wanted) -> list[str]:
    """Columns that are wanted and are in the file itself.

    Raises
    ------
    SchemaError
        The file has such a name more than once, or one that differs from it in upper and lower
        case only.
    """
    given, there = partition_values(file), Counter(physical.names)
    every = {*there, *given}
    lowered = {name.lower() for name in every}
    for name in wanted.schema.names:
        if (name in given or name not in there) and name.lower() in lowered:
            _refuse_alike(file, name, every)
    names = [name for name in wanted.schema.names if name in there and name not in given]
    for name in names:
        if there[name] > 1:
            msg = (
                f"{file.path}: has {there[name]} columns {name!r}, and which of them is meant "
                "nothing tells. Leave the column out, or rename those in the file"
            )
            raise SchemaError(msg)
        _refuse_alike_inside(file, physical.field(name).type, wanted.schema.field(name).type, name)
    return names


def _refuse_alike(file: ScanFile, name: str, there: Iterable[str], path: str = "") -> None:
    """Refuse a name that is missing while another spelling of it is there.

    Arrow takes it for missing, and Spark for the same.
    """
    for other in sorted(there):
        if other != name and other.lower() == name.lower():
            msg = (
                f"{file.path}: has a column {path + other!r} where the dataset has "
                f"{path + name!r}. For Spark they are the same, unless spark.sql.caseSensitive is "
                "set; here nothing is guessed. Spell them alike, or write the files as datasets "
                "of their own"
            )
            raise SchemaError(msg)


def _refuse_alike_inside(file: ScanFile, have: pa.DataType, want: pa.DataType, path: str) -> None:
    if pt.is_struct(have) and pt.is_struct(want):
        named = {child.name: child.type for child in have}
        for inside, child in fields_within(want, path):
            if child.name in named:
                _refuse_alike_inside(file, named[child.name], child.type, inside)
            else:
                _refuse_alike(file, child.name, named, f"{path}.")
    else:
        there = fields_within(have, path)
        for (_, one), (inside, child) in zip(there, fields_within(want, path), strict=False):
            _refuse_alike_inside(file, one.type, child.type, inside)


def timestamp_columns(
    physical: pa.Schema, metadata: pq.FileMetaData | None = None
) -> TimestampColumns:
    """Return which columns of a file have timestamps without a time zone.

    Parameters
    ----------
    physical
        Schema of the file.
    metadata
        Of a Parquet file; only that tells which are INT96.
    """
    found = list(leaves(physical))
    is_int96 = [False] * len(found)
    if metadata is not None:
        # Parquet has a column for each leaf, in the same order; names may have dots of their own.
        described = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        is_int96 = [leaf.physical_type == "INT96" for leaf in described]
    int96, zoneless = set(), set()
    for (name, type_), legacy in zip(found, is_int96, strict=True):
        if legacy:
            int96.add(name)
        elif pt.is_timestamp(type_) and type_.tz is None:
            zoneless.add(name)
    return TimestampColumns(frozenset(int96), frozenset(zoneless))


def check_timestamps(
    file: ScanFile, wanted: Wanted, names: Iterable[str], found: TimestampColumns
) -> None:
    """Refuse a file whose timestamps do not mean what those of the other files do.

    Those of INT96 are instants, while others without a time zone are none. Timestamps with a time
    zone are instants as well and go with INT96; and where the dataset declares a time zone, all are
    meant to be.

    Parameters
    ----------
    file, wanted
        The file, and what is read.
    names
        Columns that are read from the file.
    found
        What the file has.

    Raises
    ------
    SchemaError
        INT96 and others without a time zone mix in a column.
    """
    int96, other = "as INT96, which are instants", "without a time zone, which are no instants"
    declared = zoneless_columns(wanted.schema)
    for name in declared.intersection(names):
        if name in found.int96 and name in found.zoneless:
            have, rest = f"both {int96}, and {other}", ""
        elif name in found.zoneless and name in wanted.int96:
            have, rest = other, f", but other files of the dataset have them {int96}"
        elif name in found.int96 and name not in wanted.int96:
            have, rest = int96, f", but other files of the dataset have them {other}"
        else:
            continue
        msg = (
            f"{file.path}: column {name!r} has timestamps {have}{rest}. Write these files and the "
            "others as datasets of their own, leave the column out, or rewrite the files alike"
        )
        raise SchemaError(msg)


def zoneless_columns(schema: pa.Schema) -> frozenset[str]:
    """Columns of a dataset that have timestamps without a time zone: they may be INT96."""
    return timestamp_columns(schema).zoneless


def chunk_bytes_of(
    metadata: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> dict[int, int]:
    """Bytes on disk of the columns that are read, by row group."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    read = [i for i, path in enumerate(paths) if any(_is_below(path, name) for name in names)]
    return {
        group: sum(metadata.row_group(group).column(i).total_compressed_size for i in read)
        for group in groups
    }


def _is_below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def partition_values(file: ScanFile) -> dict[str, Any]:
    """Values of the columns that directories name."""
    return {} if file.partition is None else ds.get_partition_keys(file.partition)


def share_of_bytes(metadata: pq.FileMetaData, names: Sequence[str]) -> float:
    """Share of the bytes of a Parquet file that some columns have: 0 to 1, and 1 without rows."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    groups = range(metadata.num_row_groups)
    every = sum(chunk_bytes_of(metadata, groups, paths).values())
    read = sum(chunk_bytes_of(metadata, groups, names).values())
    return read / every if every else 1.0


def viewed_row_groups(fragment: Any) -> tuple[int, ...] | None:  # noqa: ANN401
    """Row groups of a Parquet file that a fragment is about; None for all of any file.

    The footer is not read for that: a fragment that knows nothing of it yet is about all.
    """
    if not isinstance(fragment, ds.ParquetFileFragment):
        return None
    # What a fragment keeps when it is pickled; asking for its row groups would read the footer.
    known = fragment.__reduce__()[1][3]
    if known is None or len(known) == fragment.metadata.num_row_groups:
        return None
    return tuple(known)


def pieces_of_file(
    file: ScanFile, origin: FileOrigin, wanted: Wanted
) -> list[tuple[int, int | None, int]]:
    """Return (start, stop, bytes) for each part of a file that can be read by itself.

    The row groups of a Parquet file that may have rows that pass the filter, the record batches of
    an Arrow file, or all of another. Bytes are those of the file, shared out.

    Raises
    ------
    SchemaError
        As :func:`checked_columns`.
    """
    if isinstance(origin.format, ds.ParquetFileFormat):
        fragment = origin.format.make_fragment(file.path, origin.filesystem, file.partition)
        metadata = fragment.metadata
        names = checked_columns(fragment, file, wanted)
        groups = row_groups_to_read(fragment, file, wanted, 0, None)
        sizes = chunk_bytes_of(metadata, range(metadata.num_row_groups), names)
        every = max(1, sum(sizes.values()))
        return [(one, one + 1, file.num_bytes * sizes[one] // every) for one in groups]
    if isinstance(origin.format, ds.IpcFileFormat):
        with origin.filesystem.open_input_file(file.path) as source:
            count = pa.ipc.open_file(source).num_record_batches
        return [(one, one + 1, file.num_bytes // count) for one in range(count)]
    return [(0, None, file.num_bytes)]
