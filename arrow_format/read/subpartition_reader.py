"""Rows of a range of subpartitions from all map outputs of a version, as verified batches.

Source: FLIP-148, ``SortMergeSubpartitionReader``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import Rows, copied
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import SchemaError
from arrow_format.format.chunk_codec import ChunkDecoder
from arrow_format.log.reader import translate_expired
from arrow_format.model import RegionKind
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.plan import ChunkRead, plan_chunks
from arrow_format.read.scheduler import ReadScheduler

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Iterable, Iterator, Sequence

    from arrow_format.log.entry import LogEntry
    from arrow_format.model import MapOutput, PartitionedFile
    from arrow_format.storage.open import Storage

MIN_PIECE_BYTES = 32 << 10
"""Rows of a region are not read in smaller pieces: each costs the decoding of a chunk."""

SUBPARTITION_COLUMN = "_subpartition"
"""Name of the int32 column that ``with_subpartition`` appends."""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A partitioned file and its place in a version."""

    order: int
    """Its number, in reading order."""
    first_region: int
    """Number of its first region: regions are numbered through the version, in reading order."""
    entry: LogEntry
    output: MapOutput
    file: PartitionedFile


def files_of(entries: Iterable[LogEntry]) -> Iterator[VersionFile]:
    """All partitioned files of a version, in reading order."""
    order = first_region = 0
    for entry in entries:
        for output in entry.map_outputs:
            for file in output.files:
                yield VersionFile(order, first_region, entry, output, file)
                order += 1
                first_region += file.num_regions


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
    regions
        Read these regions only, numbered through the version in reading order; all when None.
    indexes
        Indexes shared with other readers of the same version.
    scheduler
        Reads for this and for other readers of the same version; one of its own when None.
    oldest_needed
        When this version expires, files may be gone; that of the last entry when None.
    """

    def __init__(
        self,
        storage: Storage,
        entries: Sequence[LogEntry],
        first: int,
        end: int,
        *,
        columns: Sequence[str] | None = None,
        regions: range | None = None,
        indexes: IndexCache | None = None,
        scheduler: ReadScheduler | None = None,
        oldest_needed: int | None = None,
    ) -> None:
        self._storage = storage
        self._oldest_needed = oldest_needed or entries[-1].version
        self._indexes = indexes or IndexCache(storage)
        self._scheduler = scheduler or ReadScheduler()
        self._entries = tuple(entries)
        self._first = first
        self._end = end
        self._regions = regions
        self._data_schema = entries[-1].data_schema
        self._columns = select_columns(self._data_schema, columns)
        self._decoder = ChunkDecoder(self._data_schema, self._columns)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches delivered."""
        return pa.schema([self._data_schema.field(i) for i in self._columns])

    def __iter__(self) -> Iterator[Rows]:
        return self._rows(self.planned())

    def runs(self, max_bytes: int, row_bytes: int = 0) -> list[Iterator[Rows]]:
        """Rows of each region as a sequence of its own, in reading order; read as they are asked.

        All of them share the scheduler's bound, so any number may be read by turns.

        Parameters
        ----------
        max_bytes
            Raw bytes that a chunk of every region and the next may have together. Where that is
            too little, nothing is read ahead and chunks come in pieces of half of each region's
            share, but of 32 KiB at least: a chunk is read and decoded again for each piece of it.
        row_bytes
            What each row counts beside its own bytes.
        """
        runs = [
            (source, list(chunks))
            for source, planned in self.planned()
            for _, chunks in groupby(planned, key=lambda chunk: chunk.region)
        ]
        at_hand = sum(max(_wanted_bytes(source, chunks, row_bytes)) for source, chunks in runs)
        if 2 * at_hand <= max_bytes:
            return [self._rows([run]) for run in runs]
        piece_bytes = max(max_bytes // (2 * len(runs)), MIN_PIECE_BYTES)
        return [self._pieces(source, chunks, piece_bytes, row_bytes) for source, chunks in runs]

    def _translate_expired(self) -> contextlib.AbstractContextManager[None]:
        return translate_expired(self._storage, self._oldest_needed)

    def planned(self) -> Iterator[tuple[ChunkReader, Iterator[ChunkRead]]]:
        """Chunks that hold rows of the range, by file and offset."""
        with self._translate_expired():
            yield from self._planned()

    def _planned(self) -> Iterator[tuple[ChunkReader, Iterator[ChunkRead]]]:
        wanted = f"subpartitions {self._first} to {self._end - 1}"
        files = [
            (one, lo, hi)
            for one in files_of(self._entries)
            for lo, hi in [self._regions_in(one)]
            if lo < hi
        ]
        indexes = self._indexes.indexes_of((one.entry, one.output, one.file) for one, _, _ in files)
        for (one, lo, hi), index in zip(files, indexes, strict=True):
            chunks = plan_chunks(
                index.regions[lo:hi],
                self._first,
                self._end,
                one.entry.num_subpartitions,
                first_region=lo,
            )
            yield ChunkReader(index, self._decoder, wanted=wanted, order=one.order), chunks

    def _regions_in(self, one: VersionFile) -> tuple[int, int]:
        """Regions ``[lo, hi)`` of a file that are to be read."""
        if self._regions is None:
            return 0, one.file.num_regions
        lo, hi = (edge - one.first_region for edge in (self._regions.start, self._regions.stop))
        return max(lo, 0), min(hi, one.file.num_regions)

    def _rows(self, plan: Iterable[tuple[ChunkReader, Iterable[ChunkRead]]]) -> Iterator[Rows]:
        """Read and decode what is planned, one run per chunk.

        A chunk of a broadcast region makes one run for each subpartition of the range.
        """
        with self._translate_expired(), self._scheduler.add_reader(plan) as fetched:
            for source, chunk, stored in fetched:
                reader = cast("ChunkReader", source)  # it is one of the plan's
                rows = self._of_range(reader, chunk, reader.decode(chunk, stored))
                del stored  # not to be kept while the consumer works on the rows
                yield from rows

    def _pieces(
        self,
        source: ChunkReader,
        chunks: Iterable[ChunkRead],
        piece_bytes: int,
        row_bytes: int,
    ) -> Iterator[Rows]:
        """Rows of chunks, of which no more is kept than the piece that is given out."""
        for chunk in chunks:
            first = chunk.first_row
            while first < chunk.end_row:
                with self._translate_expired():
                    ((_, stored),) = self._scheduler.fetch(source, [chunk])
                batch = source.decode(chunk, stored)
                del stored
                num_rows = chunk.end_row - first
                num_bytes = batch.slice(first, num_rows).nbytes + row_bytes * num_rows
                num_rows = -(-num_rows // max(-(-num_bytes // piece_bytes), 1))
                part = replace(chunk, first_row=first, end_row=first + num_rows)
                rows = self._of_range(source, part, batch, keeps_chunk=False)
                del batch  # not to be kept while the consumer works on the rows
                yield from rows
                first += num_rows

    def _of_range(
        self,
        source: ChunkReader,
        chunk: ChunkRead,
        batch: pa.RecordBatch,
        *,
        keeps_chunk: bool = True,
    ) -> Iterator[Rows]:
        """Rows wanted of a chunk; the larger part of one may keep all of it, if that is allowed."""
        region = source.index.regions[chunk.region]
        lo, hi = chunk.first_row, chunk.end_row
        wanted = batch.slice(lo, hi - lo)
        if 2 * (hi - lo) < batch.num_rows or (not keeps_chunk and hi - lo < batch.num_rows):
            wanted = copied(wanted)  # a small part must not keep the whole chunk in memory
        del batch
        if region.kind is RegionKind.BROADCAST:
            for one in range(self._first, self._end):
                yield Rows(wanted, np.full(wanted.num_rows, one, np.int32))
        else:
            n = source.index.metadata.num_subpartitions
            start = int(region.chunks.first_row[chunk.chunk])
            rows = [Rows(wanted, region.subpartitions_of_rows(start + lo, start + hi, n))]
            del wanted  # a frame that waits would keep it as long as its consumer waits
            yield rows.pop()


def _wanted_bytes(source: ChunkReader, chunks: Sequence[ChunkRead], row_bytes: int) -> list[int]:
    """Raw bytes of the rows wanted from each chunk, about, and what they count beside."""
    regions, file = source.index.regions, source.index.file
    raw_length = sum(int(region.chunks.raw_length.sum()) for region in regions)
    expansion = file.raw_bytes / max(raw_length, 1)
    sizes = []
    for chunk in chunks:
        region = regions[chunk.region]
        start, stop = region.chunk_rows(chunk.chunk)
        raw = int(region.chunks.raw_length[chunk.chunk]) * expansion
        num_rows = chunk.end_row - chunk.first_row
        sizes.append(int(num_rows * (raw / (stop - start) + row_bytes)))
    return sizes


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
        raise SchemaError(missing_column(missing[0], schema.names))
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
