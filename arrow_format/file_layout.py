"""What is known of a file without reading its rows: which row groups, which columns, how large.

Source: the footers of Parquet and Arrow files.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.parquet as pq


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
    int96: frozenset[str] = frozenset()
    """Columns whose timestamps Parquet holds as INT96."""


def is_encrypted(format_: Any) -> bool:  # noqa: ANN401
    """Whether files of a format are read with keys."""
    if not isinstance(format_, ds.ParquetFileFormat):
        return False
    options = format_.default_fragment_scan_options
    return any(
        getattr(options, name, None) is not None
        for name in ("decryption_properties", "parquet_decryption_config")
    )


def row_groups_to_read(
    fragment: Any,  # noqa: ANN401
    file: ScanFile,
    wanted: Wanted,
    start: int,
    stop: int | None,
) -> list[int]:
    """Row groups of a range that belong to the file and may have rows that pass the filter."""
    if wanted.filter is not None:
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


def columns_to_read(physical: pa.Schema, file: ScanFile, wanted: Wanted) -> list[str]:
    """Columns that are wanted and are in the file itself."""
    given = partition_values(file)
    return [name for name in wanted.schema.names if name in physical.names and name not in given]


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


def look_into_parquet(
    metadata: pq.FileMetaData, names: Sequence[str]
) -> tuple[frozenset[str], float]:
    """INT96 columns of a Parquet file, and the share of its bytes that some columns have.

    Returns
    -------
    tuple of frozenset of str and float
        Names of columns with an INT96 at any depth; a share from 0 to 1, which is 1 without rows.
    """
    leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    int96 = {leaf.path.partition(".")[0] for leaf in leaves if leaf.physical_type == "INT96"}
    groups = range(metadata.num_row_groups)
    every = sum(chunk_bytes_of(metadata, groups, [leaf.path for leaf in leaves]).values())
    read = sum(chunk_bytes_of(metadata, groups, names).values())
    return frozenset(int96), read / every if every else 1.0


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
    """
    if isinstance(origin.format, ds.ParquetFileFormat):
        fragment = origin.format.make_fragment(file.path, origin.filesystem, file.partition)
        metadata = fragment.metadata
        groups = row_groups_to_read(fragment, file, wanted, 0, None)
        names = columns_to_read(fragment.physical_schema, file, wanted)
        sizes = chunk_bytes_of(metadata, range(metadata.num_row_groups), names)
        every = max(1, sum(sizes.values()))
        return [(one, one + 1, file.num_bytes * sizes[one] // every) for one in groups]
    if isinstance(origin.format, ds.IpcFileFormat):
        with origin.filesystem.open_input_file(file.path) as source:
            count = pa.ipc.open_file(source).num_record_batches
        return [(one, one + 1, file.num_bytes // count) for one in range(count)]
    return [(0, None, file.num_bytes)]
