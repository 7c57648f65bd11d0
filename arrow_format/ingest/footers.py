"""What the footers of Parquet and Arrow files say: row groups, columns, sizes."""

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
from arrow_format.ingest.spark_footer import (
    calendar_of,
    check_orc_types,
    check_parquet_types,
    fields_within,
    spark_footer,
)
from arrow_format.ingest.spark_types import leaves, plain_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow.parquet as pq

    from arrow_format.ingest.spark_footer import Calendar


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """Format and file system of the files of one dataset."""

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
    """Last modified, nanoseconds since 1970; None where the file system has no such time."""
    partition: Any = None
    """Expression that holds for all rows, from directory names; None without one."""
    row_groups: tuple[int, ...] | None = None
    """The row groups that belong to the dataset; None for all."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows and columns are read."""

    schema: pa.Schema
    """Plain schema of the columns that are written or that the filter uses."""
    filter: Any = None
    """Expression over these columns, or None for all rows."""
    filter_columns: frozenset[str] = frozenset()
    """Columns that the filter uses."""
    int96: frozenset[str] = frozenset()
    """Columns whose timestamps are instants, since Parquet files hold them as INT96."""


@dataclass(frozen=True, slots=True)
class TimestampColumns:
    """Columns of one file that have timestamps without a time zone, at any depth."""

    int96: frozenset[str]
    """Those that Parquet holds as INT96, which are instants in UTC."""
    zoneless: frozenset[str]
    """Those that are not."""


def is_encrypted(format_: Any) -> bool:  # noqa: ANN401
    """Whether files of a format are encrypted."""
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


def is_compressed(format_: Any) -> bool:  # noqa: ANN401
    """Whether files of a format are compressed by column, as a rule."""
    return format_.default_extname in ("orc", "parquet")


def row_groups_to_read(
    fragment: Any,  # noqa: ANN401
    file: ScanFile,
    wanted: Wanted,
    start: int,
    stop: int | None,
) -> list[int]:
    """Return the row groups of a range that belong to the file and may have rows for the filter."""
    if wanted.filter is not None and _statistics_tell(fragment, wanted):
        # Statistics of text views cannot be compared: then all row groups are read.
        with contextlib.suppress(pa.ArrowNotImplementedError):
            fragment = fragment.subset(filter=wanted.filter, schema=wanted.schema)
    own = None if file.row_groups is None else set(file.row_groups)
    return [
        group.id
        for group in fragment.row_groups
        if start <= group.id and (stop is None or group.id < stop)
        if own is None or group.id in own
    ]


def _statistics_tell(fragment: Any, wanted: Wanted) -> bool:  # noqa: ANN401
    """Whether statistics of a file's row groups can be compared with the filter.

    Not those of floating point: NaN is outside of minimum and maximum, and -0.0 equals 0.0, which
    PyArrow ignores. Other types than in the file may be ordered otherwise, and values of the older
    calendar are other days.
    """
    physical, calendar = fragment.physical_schema, calendar_of_parquet(fragment)
    for name in wanted.filter_columns:
        schema = pa.schema([wanted.schema.field(name)])
        if any(pt.is_floating(leaf) for _, leaf in leaves(schema)):
            return False
        if name in physical.names:
            (stored,) = plain_schema(pa.schema([physical.field(name)]))
            is_same = same_but_labels(stored.type, schema.field(name).type)
            if not is_same or calendar.concerns(stored):
                return False
    return True


def checked_columns(fragment: Any, file: ScanFile, wanted: Wanted) -> list[str]:  # noqa: ANN401
    """Return the wanted columns that are in the file itself, once all of them can be read.

    Raises
    ------
    SchemaError
        As :func:`columns_to_read`, :func:`check_timestamps`, and ``check_parquet_types`` and
        ``check_orc_types`` of :mod:`arrow_format.ingest.spark_footer`.
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
    """Return which values of a Parquet file Spark reads otherwise than PyArrow."""
    metadata = fragment.metadata
    int96 = timestamp_columns(fragment.physical_schema, metadata).int96
    return calendar_of(spark_footer(metadata.metadata), int96, metadata.created_by)


def columns_to_read(physical: pa.Schema, file: ScanFile, wanted: Wanted) -> list[str]:
    """Return the wanted columns that are in the file itself.

    SchemaError if the file has such a name twice, or one that differs only in case.
    """
    given, counts = partition_values(file), Counter(physical.names)
    all_names = {*counts, *given}
    lowered = {name.lower() for name in all_names}
    for name in wanted.schema.names:
        if (name in given or name not in counts) and name.lower() in lowered:
            _refuse_alike(file, name, all_names)
    names = [name for name in wanted.schema.names if name in counts and name not in given]
    for name in names:
        if counts[name] > 1:
            msg = (
                f"{file.path}: has {counts[name]} columns {name!r}; it is not known which is "
                "meant. Leave the column out, or rename the columns in the file"
            )
            raise SchemaError(msg)
        _refuse_alike_inside(file, physical.field(name).type, wanted.schema.field(name).type, name)
    return names


def _refuse_alike(file: ScanFile, name: str, names: Iterable[str], path: str = "") -> None:
    """Refuse a missing name of which another spelling exists: Spark takes them for one."""
    for other in sorted(names):
        if other != name and other.lower() == name.lower():
            msg = (
                f"{file.path}: has a column {path + other!r} where the dataset has "
                f"{path + name!r}. For Spark they are the same unless spark.sql.caseSensitive is "
                "set. Spell them alike, or write the files as separate datasets"
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
        pairs = zip(fields_within(have, path), fields_within(want, path), strict=False)
        for (_, stored), (inside, child) in pairs:
            _refuse_alike_inside(file, stored.type, child.type, inside)


def timestamp_columns(
    physical: pa.Schema, metadata: pq.FileMetaData | None = None
) -> TimestampColumns:
    """Return which columns have timestamps without a time zone.

    Only the ``metadata`` of a Parquet file shows which are INT96.
    """
    all_leaves = list(leaves(physical))
    is_int96 = [False] * len(all_leaves)
    if metadata is not None:
        # Parquet has a column for each leaf, in the same order; names may contain dots.
        described = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        is_int96 = [leaf.physical_type == "INT96" for leaf in described]
    int96, zoneless = set(), set()
    for (name, type_), legacy in zip(all_leaves, is_int96, strict=True):
        if legacy:
            int96.add(name)
        elif pt.is_timestamp(type_) and type_.tz is None:
            zoneless.add(name)
    return TimestampColumns(frozenset(int96), frozenset(zoneless))


def check_timestamps(
    file: ScanFile, wanted: Wanted, names: Iterable[str], columns: TimestampColumns
) -> None:
    """Refuse a file whose timestamps mean something else than those of the other files.

    INT96 are instants; others without a time zone are not. Timestamps with a time zone are instants
    too and may mix with INT96; where the dataset declares a time zone, all are instants.

    Raises
    ------
    SchemaError
        A column of ``names`` mixes INT96 and others without a time zone.
    """
    int96, other = "as INT96, which are instants", "without a time zone, which are not instants"
    declared = zoneless_columns(wanted.schema)
    for name in declared.intersection(names):
        if name in columns.int96 and name in columns.zoneless:
            have, rest = f"both {int96}, and {other}", ""
        elif name in columns.zoneless and name in wanted.int96:
            have, rest = other, f", but other files of the dataset have them {int96}"
        elif name in columns.int96 and name not in wanted.int96:
            have, rest = int96, f", but other files of the dataset have them {other}"
        else:
            continue
        msg = (
            f"{file.path}: column {name!r} has timestamps {have}{rest}. Write these files and the "
            "others as separate datasets, leave the column out, or rewrite the files alike"
        )
        raise SchemaError(msg)


def zoneless_columns(schema: pa.Schema) -> frozenset[str]:
    """Return the columns of a dataset with timestamps without a time zone: they may be INT96."""
    return timestamp_columns(schema).zoneless


def chunk_bytes_of(
    metadata: pq.FileMetaData, groups: Sequence[int], names: Sequence[str]
) -> dict[int, int]:
    """Return the bytes on disk of the named columns, by row group."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    read = [i for i, path in enumerate(paths) if any(_is_below(path, name) for name in names)]
    return {
        group: sum(metadata.row_group(group).column(i).total_compressed_size for i in read)
        for group in groups
    }


def _is_below(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def partition_values(file: ScanFile) -> dict[str, Any]:
    """Return the values of the columns that directory names give."""
    return {} if file.partition is None else ds.get_partition_keys(file.partition)


def share_of_bytes(metadata: pq.FileMetaData, names: Sequence[str]) -> float:
    """Return the share of a Parquet file's bytes that some columns have, 0 to 1; 1 without rows."""
    paths = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    groups = range(metadata.num_row_groups)
    total = sum(chunk_bytes_of(metadata, groups, paths).values())
    read = sum(chunk_bytes_of(metadata, groups, names).values())
    return read / total if total else 1.0


def viewed_row_groups(fragment: Any) -> tuple[int, ...] | None:  # noqa: ANN401
    """Return the row groups of a Parquet file that a fragment is limited to; None for all.

    Does not read the footer: a fragment that has not read it is not limited.
    """
    if not isinstance(fragment, ds.ParquetFileFragment):
        return None
    # What a fragment pickles; asking for its row groups would read the footer.
    known = fragment.__reduce__()[1][3]
    if known is None or len(known) == fragment.metadata.num_row_groups:
        return None
    return tuple(known)


def pieces_of_file(
    file: ScanFile, origin: FileOrigin, wanted: Wanted
) -> list[tuple[int, int | None, int]]:
    """Return (start, stop, bytes) of each part of a file that can be read by itself.

    Parts are row groups of a Parquet file that may have rows for the filter, record batches of an
    Arrow file, or a whole file of another format. Bytes are the file's, shared out.
    """
    if isinstance(origin.format, ds.ParquetFileFormat):
        fragment = origin.format.make_fragment(file.path, origin.filesystem, file.partition)
        metadata = fragment.metadata
        names = checked_columns(fragment, file, wanted)
        groups = row_groups_to_read(fragment, file, wanted, 0, None)
        sizes = chunk_bytes_of(metadata, range(metadata.num_row_groups), names)
        total = max(1, sum(sizes.values()))
        return [(i, i + 1, file.num_bytes * sizes[i] // total) for i in groups]
    if isinstance(origin.format, ds.IpcFileFormat):
        with origin.filesystem.open_input_file(file.path) as source:
            count = pa.ipc.open_file(source).num_record_batches
        return [(i, i + 1, file.num_bytes // count) for i in range(count)]
    return [(0, None, file.num_bytes)]
