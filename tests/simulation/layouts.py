"""How the rows of a scenario are written: their columns, keys, statistics and directories."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.keys.partitioner import HashPartitioner, Partitioner, key_columns
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.options import WriteOptions
from tests.simulation.traces import name_of, size_of

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS = WriteOptions(sync=False, codec="none", sort_buffer_bytes=1 << 20)

DISK = "/disk"
"""A local directory."""

COPY = "/copy"
"""Where a copy of the shuffle is."""

ORIGINAL = "/original"
"""Where the shuffle is of which the one that is judged is a copy, or where that was before."""

_NUMBER = pa.field("v", pa.int64())
_COLUMNS = {
    "v": lambda rows: pa.array(rows, pa.int64()),
    "k": lambda rows: pa.array([key_of(row) for row in rows], pa.int64()),
    "name": lambda rows: pa.array(map(name_of, rows), pa.string()),
    "size": lambda rows: pa.array(map(size_of, rows), pa.float64()),
}


def key_of(row: int) -> int:
    """Return what identifies a row where something does: ten rows have the same.

    A negative number is the deletion of a key, by the sequence of its amount.
    """
    return abs(row) // 10


@dataclass(frozen=True)
class Layout:
    """How rows are written, each of which is a number in the column ``v``."""

    schema: pa.Schema
    partitioner: Partitioner
    num_subpartitions: int
    options: WriteOptions
    unique: tuple[str, ...] = ()
    """Columns that identify a row."""
    sequence_by: str | None = None
    """The column whose largest value is the newest change of a row."""

    def table(self, rows: Sequence[int]) -> pa.Table:
        """Return rows with all of their columns."""
        columns = [_COLUMNS[name]([*rows]) for name in self.schema.names]
        return pa.table(columns, schema=self.schema)

    def changes(self, rows: Sequence[int], row_kind: str) -> pa.Table:
        """Return rows and deletions as changes, whose kind is in a column."""
        kinds = pa.array(["d" if row < 0 else "u" for row in rows], pa.string())
        return self.table([abs(row) for row in rows]).append_column(row_kind, kinds)

    def keys(self, rows: Sequence[int]) -> dict[str, Any]:
        """Return what deletes rows."""
        return {name: _COLUMNS[name]([*rows]) for name in key_columns(self.partitioner) or ()}


NARROW = Layout(pa.schema([_NUMBER]), HashPartitioner("v"), 1, OPTIONS)

WIDE = Layout(
    pa.schema([_NUMBER, ("name", pa.string()), ("size", pa.float64())]),
    HashPartitioner("v"),
    2,
    replace(OPTIONS, statistics="all"),
)
"""Rows with a text and a number, of which the log has bounds."""

RANGES = replace(WIDE, partitioner=RangePartitioner(["name"]))
"""The text is a key: the log has bounds of ranges, besides those of files."""

UNIQUE = Layout(
    pa.schema([_NUMBER, ("k", pa.int64())]), HashPartitioner("k"), 2, OPTIONS, unique=("k",)
)
"""Rows that replace each other."""

SEQUENCED = replace(UNIQUE, sequence_by="v")
"""Rows of which the one with the largest number replaces those of its key."""

ON_DISK = replace(NARROW, options=replace(OPTIONS, local_dirs=(DISK,)))
"""Files are in the shuffle and in a directory on another disk in turn."""
