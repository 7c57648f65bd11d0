"""Tombstones: of rows that changes in any order deleted, what identified each, and the sequence.

By them a change that comes after the deletion, and is older, is known to be. They are rows of files
of their own, which have these columns alone, and the entry that adds them masks them all: no reader
shows them, only an upsert looks at them. See ``docs/format/masks.md``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from arrow_format.model import NO_MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.state import VersionShape
    from arrow_format.model import MapOutput
    from arrow_format.read.index_cache import IndexCache
    from arrow_format.read.partitioned_file import PartitionedFileReader


def shape_of(shape: VersionShape) -> VersionShape:
    """Return what the tombstones of a version with a sequence are read as."""
    columns = shape.columns.only((*shape.unique_names, shape.sequence_name or ""))
    return structs.replace(
        shape,
        data_schema=columns.schema,
        column_ids=columns.ids,
        sort_by=(),
        spark_schema=None,
    )


def entry_of(version: LogEntry) -> LogEntry:
    """Return the entry of a version with the shape of its tombstones."""
    state = structs.replace(version.state, shape=shape_of(version.shape))
    return structs.replace(version, state=state)


def unmasked(output: MapOutput) -> MapOutput:
    """Return tombstones as they are stored."""
    files = (replace(file, num_rows=file.stored_rows, mask=NO_MASK) for file in output.files)
    return replace(output, files=tuple(files))


def opened(
    version: LogEntry, outputs: Iterable[MapOutput], indexes: IndexCache
) -> Iterator[PartitionedFileReader]:
    """Yield the indexes of the files of tombstones, to read what is stored.

    Raises CorruptShuffleError where one cannot be read.
    """
    files = [(output, file) for output in map(unmasked, outputs) for file in output.files]
    return indexes.indexes_of(entry_of(version), files)
