"""Rows of a range of subpartitions from all map outputs of a version, as verified batches.

Source: FLIP-148, ``SortMergeSubpartitionReader``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.batching import Rows
from arrow_format.chunk_reader import ChunkReader
from arrow_format.codec import ChunkDecoder
from arrow_format.errors import SchemaError
from arrow_format.index_cache import IndexCache
from arrow_format.model import RegionKind
from arrow_format.read_plan import ChunkRead, plan_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from arrow_format.log_entry import LogEntry
    from arrow_format.model import MapOutput, PartitionedFile
    from arrow_format.storage import Storage

SUBPARTITION_COLUMN = "_subpartition"
"""Name of the int32 column that ``with_subpartition`` appends."""


class SortMergeSubpartitionReader:
    """Reads the rows of subpartitions ``[first, end)``, map output after map output.

    Within a subpartition rows come in the order version, map task, region, arrival. Between
    subpartitions of the range they do not come in order; each run says which rows are whose.

    Parameters
    ----------
    storage
        Where the files are.
    entries
        Log entries of the version, oldest first.
    first, end
        Range of subpartitions, within the shuffle's.
    columns
        Columns to deliver, in that order; all when None. Every chunk is verified whole either way.
    indexes
        Indexes shared with other readers of the same version.
    """

    def __init__(
        self,
        storage: Storage,
        entries: Sequence[LogEntry],
        first: int,
        end: int,
        *,
        columns: Sequence[str] | None = None,
        indexes: IndexCache | None = None,
    ) -> None:
        self._indexes = indexes or IndexCache(storage)
        self._entries = tuple(entries)
        self._first = first
        self._end = end
        self._data_schema = entries[-1].data_schema
        self._columns = select_columns(self._data_schema, columns)
        self._decoder = ChunkDecoder(self._data_schema)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches delivered."""
        return pa.schema([self._data_schema.field(i) for i in self._columns])

    def __iter__(self) -> Iterator[Rows]:
        for entry, output, file in self.files():
            yield from self.file_rows(entry, output, file)

    def files(self) -> Iterator[tuple[LogEntry, MapOutput, PartitionedFile]]:
        """All partitioned files of the version, in reading order."""
        for entry in self._entries:
            for output in entry.map_outputs:
                for file in output.files:
                    yield entry, output, file

    def file_plan(
        self, entry: LogEntry, output: MapOutput, file: PartitionedFile
    ) -> Iterator[ChunkRead]:
        """Chunks of one partitioned file that hold rows of the range, by offset."""
        regions = self._indexes.index_of(entry, output, file).regions
        return plan_chunks(regions, self._first, self._end, entry.num_subpartitions)

    def file_rows(
        self,
        entry: LogEntry,
        output: MapOutput,
        file: PartitionedFile,
        plan: Iterable[ChunkRead] | None = None,
    ) -> Iterator[Rows]:
        """Rows of the range from one partitioned file, one run per chunk.

        A chunk of a broadcast region makes one run for each subpartition of the range.

        Parameters
        ----------
        entry, output, file
            Which file.
        plan
            Part of :meth:`file_plan` to read; all of it when None.
        """
        n = entry.num_subpartitions
        regions = self._indexes.index_of(entry, output, file).regions
        for chunk, batch in self.file_chunks(entry, output, file, plan):
            region = regions[chunk.region]
            lo, hi = chunk.first_row, chunk.end_row
            wanted = batch.select(self._columns)
            if 2 * (hi - lo) < batch.num_rows and self._columns:
                # A small part must not keep the whole chunk in memory.
                wanted = wanted.take(pa.array(np.arange(lo, hi)))
            else:
                wanted = wanted.slice(lo, hi - lo)
            if region.kind is RegionKind.BROADCAST:
                for one in range(self._first, self._end):
                    yield Rows(wanted, np.full(wanted.num_rows, one, np.int32))
            else:
                start = int(region.chunks.first_row[chunk.chunk])
                yield Rows(wanted, region.subpartitions_of_rows(start + lo, start + hi, n))

    def file_chunks(
        self,
        entry: LogEntry,
        output: MapOutput,
        file: PartitionedFile,
        plan: Iterable[ChunkRead] | None = None,
    ) -> Iterator[tuple[ChunkRead, pa.RecordBatch]]:
        """Chunks of one partitioned file that hold rows of the range, whole and verified."""
        plan = self.file_plan(entry, output, file) if plan is None else plan
        index = self._indexes.index_of(entry, output, file)
        wanted = f"subpartitions {self._first} to {self._end - 1}"
        return ChunkReader(index, self._decoder, wanted=wanted).decoded(plan)


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> list[int]:
    """Positions of ``columns`` in ``schema``; of all when None.

    Raises
    ------
    SchemaError
        One is not there; the message lists those there are.
    """
    if columns is None:
        return list(range(len(schema)))
    if isinstance(columns, str):
        columns = [columns]
    if len(set(columns)) < len(columns):
        msg = f"columns={list(columns)!r}: a column is named twice"
        raise SchemaError(msg)
    missing = [name for name in columns if schema.get_field_index(name) < 0]
    if missing:
        msg = f"column {missing[0]!r} is not there; columns are {', '.join(schema.names)}"
        raise SchemaError(msg)
    return [schema.get_field_index(name) for name in columns]


def with_subpartition_schema(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` with the int32 column ``_subpartition`` at the end.

    Raises
    ------
    SchemaError
        A column of that name is there already.
    """
    if SUBPARTITION_COLUMN in schema.names:
        msg = f"column {SUBPARTITION_COLUMN!r} is there already; leave with_subpartition out"
        raise SchemaError(msg)
    return schema.append(pa.field(SUBPARTITION_COLUMN, pa.int32(), nullable=False))
