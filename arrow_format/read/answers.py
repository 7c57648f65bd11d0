"""How many rows there are, and the least and greatest values of columns, read as little as need be.

The log says it of a file, and an index of a chunk, where all rows of it match and its bounds are
values. Only what is left is decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.errors import SchemaError
from arrow_format.format.regions import RegionKind
from arrow_format.format.statistics import ColumnStatistics, has_statistics
from arrow_format.keys.column_statistics import combined, statistics_of_rows
from arrow_format.read.partitioned_file import IndexPart, chunk_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.model import Int64Array
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.chunk_reader import ChunkReader
    from arrow_format.read.selection import Selection
    from arrow_format.read.subpartition_reader import SortMergeSubpartitionReader

    Flags = NDArray[np.bool_]

_FIRST = np.zeros(1, np.int64)
_TOGETHER = 256
"""Units whose bounds are kept until they become one."""


@dataclass
class Answer:
    """What is known of rows so far."""

    types: Mapping[str, pa.DataType]
    """Of the columns whose bounds are asked for."""
    num_rows: int = 0
    _parts: dict[str, list[ColumnStatistics]] = field(default_factory=dict)

    def bounds(self, name: str) -> tuple[pa.Scalar, pa.Scalar]:
        """Return the least and the greatest value of a column; null where there is none."""
        parts = self._parts.get(name)
        if not parts:
            none = pa.scalar(None, self.types[name])
            return none, none
        whole = combined(ColumnStatistics.joined(parts), _FIRST)
        return whole.minimum[0], whole.maximum[0]

    def add(self, num_rows: int, statistics: Mapping[str, ColumnStatistics]) -> None:
        """Take rows, and what is known of the columns in one unit or several of them."""
        self.num_rows += num_rows
        for name, column in statistics.items():
            parts = self._parts.setdefault(name, [])
            parts.append(combined(column.of_type(self.types[name]), _FIRST))
            if len(parts) == _TOGETHER:
                parts[:] = [combined(ColumnStatistics.joined(parts), _FIRST)]


def answer(
    snapshot: Snapshot,
    selection: Selection | None,
    names: Sequence[str],
    readers: Callable[[], Iterable[SortMergeSubpartitionReader]],
) -> Answer:
    """Return what is known of the rows of a version that a selection leaves; of all when None.

    ``readers`` makes those of all its subpartitions, of a range each, that deliver the columns
    ``names``. Raises SchemaError where the values of one have no order, and as a reader.
    """
    version, outputs = snapshot.newest, snapshot.map_outputs
    schema, n = version.data_schema, version.num_subpartitions
    found = Answer({name: schema.field(name).type for name in names})
    for name, type_ in found.types.items():
        if not has_statistics(type_):
            msg = f"column {name!r} is {type_}, whose values have no order"
            raise SchemaError(msg)
    if selection is None and not names:
        # Every subpartition reads the rows of a broadcast region.
        found.num_rows = snapshot.num_rows + (n - 1) * snapshot.num_broadcast_rows
        return found
    where = None if selection is None else selection.where
    rows = outputs.of_files("num_rows")
    asked = [*names, *(() if where is None else where.columns)]
    statistics = outputs.file_statistics(asked, version.columns)
    is_known = _is_known(statistics, names, outputs.stored_rows, where)
    if names:  # a bound may be of a row that is gone
        is_known &= outputs.of_files("mask_rows") == 0
    if selection is not None and selection.last is not None:  # which row that is, no sums tell
        is_known[:] = False
    delivered = rows + (n - 1) * outputs.of_files("num_broadcast_rows")
    found.add(int(delivered[is_known].sum()), _among(statistics, names, is_known))
    left = ~is_known if selection is None else ~is_known & selection.files
    if left.any():
        for reader in readers():
            _read_on(found, reader, left, names, where, schema)
    return found


def logged_bounds(
    snapshot: Snapshot, selection: Selection | None, name: str
) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Return the least and the greatest value of a column in files that a selection leaves.

    By the log alone, so they may be of rows that are left out; None where it does not know them.
    """
    version, outputs = snapshot.newest, snapshot.map_outputs
    statistics = outputs.file_statistics([name], version.columns)
    files = np.ones(len(outputs.stored_rows), np.bool_) if selection is None else selection.files
    if not _is_known(statistics, [name], outputs.stored_rows, None)[files].all():
        return None
    found = Answer({name: version.data_schema.field(name).type})
    found.add(0, _among(statistics, [name], files))
    return found.bounds(name)


def _read_on(
    found: Answer,
    reader: SortMergeSubpartitionReader,
    files: Flags,
    names: Sequence[str],
    where: RowFilter | None,
    schema: pa.Schema,
) -> None:
    """Add what the rows of some files say, of chunks whose index does not."""
    num_subpartitions, wanted = reader.end - reader.first, reader.to_deliver(files)

    def undecided() -> Iterator[tuple[ChunkReader, list[ChunkRead]]]:
        for source, planned in wanted:
            index = source.index
            assert isinstance(index, IndexPart)  # since it was committed
            rows = chunk_rows(index.regions)
            asked = [*names, *(() if where is None else where.columns)]
            statistics = index.chunk_statistics(asked, schema)
            is_known = _is_known(statistics, names, rows, where)
            first_chunk = np.cumsum([0, *(len(region.chunks) for region in index.regions)])
            counted = np.zeros(len(rows), np.bool_)
            left = []
            for chunk in planned:
                number = first_chunk[chunk.part] + chunk.chunk
                num_rows = source.num_rows_left(chunk)
                if not is_known[number] or (names and num_rows < rows[number]):
                    left.append(chunk)
                    continue
                counted[number] = True
                is_broadcast = index.regions[chunk.part].kind is RegionKind.BROADCAST
                found.num_rows += num_rows * (num_subpartitions if is_broadcast else 1)
            found.add(0, _among(statistics, names, counted))
            if left:
                yield source, left

    for run in reader.rows(undecided()):
        if run.batch.num_rows:
            found.add(run.batch.num_rows, statistics_of_rows(run.batch, names, _FIRST))


def _is_known(
    statistics: Mapping[str, ColumnStatistics],
    names: Sequence[str],
    num_rows: Int64Array,
    where: RowFilter | None,
) -> Flags:
    """Return of which units all rows match, and the bounds of all columns are values."""
    is_known = np.ones(len(num_rows), np.bool_)
    if where is not None:
        is_known &= where.must_match(statistics, num_rows)
    for name in names:
        column = statistics.get(name)
        is_known &= False if column is None else column.has_values_as_bounds
    return is_known


def _among(
    statistics: Mapping[str, ColumnStatistics], names: Sequence[str], units: Flags
) -> dict[str, ColumnStatistics]:
    """Return what is known of the columns in some units; nothing where there are none."""
    return {name: statistics[name].only(units) for name in names} if units.any() else {}
