"""Rows of a range of subpartitions from all map outputs of a version, as verified batches.

Source: FLIP-148, ``SortMergeSubpartitionReader``.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.arrays.stored_types import missing_column
from arrow_format.errors import SchemaError
from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.log.reader import translate_gone
from arrow_format.read.chunk_cache import ChunkCache, KeptAside, KeptChunk, KeptRead, pinned_bytes
from arrow_format.read.chunk_plan import (
    ChunkRead,
    Piece,
    chunks_of_ranges,
    chunks_within,
    plan_together,
    without_places,
)
from arrow_format.read.chunk_reader import ChunkReader
from arrow_format.read.fetched_chunks import (
    MAX_RUN_BYTES,
    ONE_CHUNK,
    FetchedChunk,
    Tested,
    decode_run,
    decoded_rows,
    in_runs,
    located_rows,
    rows_of,
)
from arrow_format.read.index_cache import IndexCache
from arrow_format.read.key_search import with_matches
from arrow_format.read.scheduler import ReadScheduler
from arrow_format.read.selection import select_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from arrow_format.format.masks import RowMask
    from arrow_format.log.entry import LogEntry
    from arrow_format.model import Int64Array, MapOutput, PartitionedFile
    from arrow_format.read.partitioned_file import IndexPart
    from arrow_format.read.placement_check import PlacementCheck
    from arrow_format.read.rows import Rows
    from arrow_format.read.selection import Selection
    from arrow_format.storage.open import Storage

_T = TypeVar("_T")
_Fetched = tuple[ChunkReader, ChunkRead, pa.Buffer]
"""A chunk as it is stored."""

MIN_SLICE_BYTES = 32 << 10
"""Rows of a region are not read in smaller slices: each costs the decoding of a chunk."""

FEW_BYTES = 512 << 10
"""Of rows that are read as soon as their statistics are."""

SUBPARTITION_COLUMN = "_subpartition"
"""Name of the int32 column that ``with_subpartition`` appends."""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A partitioned file and its position in a version."""

    order: int
    """Its number, in reading order."""
    first_region: int
    """Number of its first region: regions are numbered through the version, in reading order."""
    output: MapOutput
    file: PartitionedFile


class _Kept(NamedTuple):
    """A file that may have rows to deliver."""

    file: VersionFile
    regions: range
    """Regions of it to read, numbered through the file."""
    ranges: Sequence[tuple[int, int]]
    """Subpartitions of it that can have such rows."""
    compared: Sequence[str]
    """Columns whose statistics may say which of its chunks do."""


def files_of(outputs: Iterable[MapOutput]) -> Iterator[VersionFile]:
    """Yield the partitioned files of map outputs, in reading order."""
    order = first_region = 0
    for output in outputs:
        for file in output.files:
            yield VersionFile(order, first_region, output, file)
            order += 1
            first_region += file.num_regions


class SortMergeSubpartitionReader:
    """Reads the rows of subpartitions ``[first, end)``, map output after map output.

    Iterating it yields runs of rows, one per chunk, with the subpartition of each row. The rows of
    a subpartition come by version, map task, region and arrival; those of different subpartitions
    are interleaved. A chunk of a broadcast region makes one run for each subpartition.

    Parameters
    ----------
    storage
        Storage of the shuffle.
    version
        Newest log entry of the version: it says what rows are read as.
    outputs
        Map outputs of the version, in reading order.
    first, end
        Range of subpartitions, within the shuffle's.
    columns
        Columns to deliver, in that order; all when None. The frames of others are not verified.
    regions
        Read these regions only, numbered through the version in reading order; all when None.
    piece
        Read this one of the runs of rows that they are cut into; all rows when None.
    selection
        Deliver only the rows of its filter, whose columns need not be delivered; all when None.
    indexes
        Indexes shared with other readers of the same version; a cache of its own when None.
    scheduler
        Reads for this and for other readers of the same version; one of its own when None.
    oldest_needed
        Oldest version whose expiry may remove files that are read; the version itself when None.
    kept
        What readers of the same columns decoded of chunks and left for the next one. They are
        iterated one after the other, each at most once. Nothing is kept when None.
    placement
        Asked about each row of the chunks that are read; no row is when None.
    passed_over
        Returns the rows that are not delivered, by the number of their file; called before the
        first row is read. None: there are none.

    Raises
    ------
    SchemaError
        The shuffle has no such column.
    CorruptShuffleError, FormatVersionError
        While reading: a file is missing, damaged, or of a newer version.
    ShuffleNotFoundError
        While reading: the version has expired, and was removed by garbage collection.
    """

    def __init__(
        self,
        storage: Storage,
        version: LogEntry,
        outputs: Sequence[MapOutput],
        first: int,
        end: int,
        *,
        columns: Sequence[str] | None = None,
        regions: range | None = None,
        piece: Piece | None = None,
        selection: Selection | None = None,
        indexes: IndexCache | None = None,
        scheduler: ReadScheduler | None = None,
        oldest_needed: int | None = None,
        kept: ChunkCache | None = None,
        placement: PlacementCheck | None = None,
        passed_over: Callable[[], Mapping[int, RowMask]] | None = None,
    ) -> None:
        self._passed_over = passed_over
        self._placement = placement
        self._kept = kept
        self._keeps_gone = False
        self._storage = storage
        self._oldest_needed = oldest_needed or version.version
        self._indexes = indexes or IndexCache(storage)
        self._scheduler = scheduler or ReadScheduler()
        self._version = version
        self._outputs = outputs
        self.first = first
        self.end = end
        self._regions = regions
        self._piece = piece
        self._data_schema = version.data_schema
        self._columns = select_columns(self._data_schema, columns)
        self._selection = selection
        self._whole: tuple[tuple[int, int], ...] = ((first, end),)
        self._ranges: tuple[tuple[int, int], ...] = self._whole
        if selection is not None:
            self._ranges = selection.ranges(first, end, of_trusted=True)
        self._tested: Tested | None = None
        decoded = list(self._columns)
        if selection is not None and selection.where is not None:
            tested = select_columns(self._data_schema, selection.columns)
            decoded += [i for i in tested if i not in decoded]
            positions = tuple(decoded.index(i) for i in tested)
            self._tested = Tested(selection.where, positions, len(self._columns))
            self._deciding = ChunkDecoders(self._data_schema, tested)
        self._decoders = ChunkDecoders(self._data_schema, decoded)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the batches delivered."""
        return pa.schema([self._data_schema.field(i) for i in self._columns])

    def __iter__(self) -> Iterator[Rows]:
        return self.rows(self._to_read(), self._kept)

    def with_gone(self) -> Iterator[Rows]:
        """Yield the same rows, among others that masks took, where these are few and marked."""
        self._keeps_gone = True
        return iter(self)

    def runs(self, max_bytes: int, row_bytes: int = 0) -> list[Iterator[Rows]]:
        """Return the rows of each part of a region as an iterator of its own, in reading order.

        Each reads as it is consumed. All share the scheduler's memory budget, so any number of them
        may be read interleaved.

        Parameters
        ----------
        max_bytes
            Limit of the raw bytes of two chunks of every region. Where chunks are larger, nothing
            is read ahead, and each comes in slices of half of its region's share, but of 32 KiB at
            least: a chunk is read and decoded again for each slice of it.
        row_bytes
            Bytes to count for each row in addition to its own.
        """
        planned = ((source, chunk) for source, chunks in self._to_read() for chunk in chunks)
        pieces = groupby(planned, key=lambda one: (one[0].order, one[1].part))
        runs: list[tuple[ChunkReader, list[ChunkRead]]] = []
        for _, piece in pieces:
            source, chunk = next(piece)
            chunks = [without_places(one) for one in chain([chunk], map(itemgetter(1), piece))]
            runs.append((source, chunks))
        resident_bytes = sum(
            max(_wanted_bytes(source, chunks, row_bytes)) for source, chunks in runs
        )
        if 2 * resident_bytes <= max_bytes:
            return [
                self.rows([(source, self._wanted(source, chunks))], run_bytes=ONE_CHUNK)
                for source, chunks in runs
            ]
        slice_bytes = max(max_bytes // (2 * len(runs)), MIN_SLICE_BYTES)
        return [
            self._slices(source, self._wanted(source, chunks), slice_bytes, row_bytes)
            for source, chunks in runs
        ]

    def _to_read(self) -> Iterator[tuple[ChunkReader, Iterable[ChunkRead]]]:
        """Yield what is planned, without the chunks that turn out to have no row of given keys.

        All are read where their rows are checked, whatever their keys.
        """
        selection, planned = self._selection, self.to_deliver()
        if selection is None or selection.of_keys is None or self._placement is not None:
            return planned
        assert selection.where is not None  # which asks for the keys
        return with_matches(planned, selection.where, self._deciding)

    def to_deliver(
        self, files: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[ChunkReader, Iterable[ChunkRead]]]:
        """Return what is :meth:`planned`, of which readers of chunks know the rows passed over."""
        planned = self.planned(files)
        if self._passed_over is None:
            return planned
        # Now, and in this thread: those of the scheduler pull the plan.
        masks = self._passed_over()
        return (_passing(source, masks.get(source.order), chunks) for source, chunks in planned)

    def located(
        self,
    ) -> Iterator[tuple[list[tuple[ChunkReader, ChunkRead]], pa.RecordBatch, Int64Array]]:
        """Yield the rows of :meth:`__iter__` with the chunks that they are of, and where in these.

        That is their positions among all rows that are wanted of these chunks, ascending. Each call
        has the same, as long as indexes can be read.
        """
        with self._translated(), self._scheduler.reading(self._to_read()) as fetched:
            for run in in_runs(self._checked(fetched)):
                yield from located_rows(run, self._tested)

    def planned(
        self, files: NDArray[np.bool_] | None = None
    ) -> Iterator[tuple[ChunkReader, Iterable[ChunkRead]]]:
        """Yield the data files in reading order, each with its chunks of the range by offset.

        ``files`` says of each file of the version, in reading order, whether it is wanted; all when
        None.
        """
        wanted = f"subpartitions {self.first} to {self.end - 1}"
        with self._translated():
            kept = [
                one
                for version_file in files_of(self._outputs)
                if (files is None or files[version_file.order])
                and (one := self._kept_of(version_file))
            ]
            shares: Mapping[int, tuple[float, float]] = {}
            if self._piece is not None:
                shares = _shares(self._piece, kept)
                kept = [one for one in kept if one.file.order in shares]
            windows = self._indexes.parts_of(
                self._version,
                ((one.file.output, one.file.file, one.ranges, one.compared) for one in kept),
            )
            left = iter(kept)
            together = (planned for window in windows for planned in self._plans(left, window))
            for one, index, chunks in together:
                order = one.file.order
                if self._selection is not None and one.compared:
                    chunks = select_chunks(
                        chunks,
                        self._selection,
                        index,
                        self._data_schema,
                        is_trusted=bool(self._selection.trusted[order]),
                    )
                stored = index.metadata.data_schema
                reader = ChunkReader(index, self._decoders.of(stored), wanted=wanted, order=order)
                if one.file.file.mask.num_rows > one.file.file.num_rows:  # many chunks have no row
                    chunks = filter(reader.num_rows_left, chunks)
                if shares:
                    chunks = chunks_within(chunks, shares[order])
                yield reader, self._wanted(reader, chunks)

    def _wanted(self, reader: ChunkReader, chunks: Iterable[ChunkRead]) -> Iterable[ChunkRead]:
        """Return chunks with what is fetched of them: what is decoded, and what is checked."""
        stored = reader.index.metadata.data_schema
        keys = () if self._placement is None else self._placement.columns_of(stored)
        return reader.wanted(chunks, keys)

    def _plans(
        self, files: Iterator[_Kept], indexes: Sequence[IndexPart]
    ) -> Iterator[tuple[_Kept, IndexPart, Iterable[ChunkRead]]]:
        """Yield the next of some files, as many as there are indexes, with the chunks to read."""
        kept, n = [*islice(files, len(indexes))], self._version.num_subpartitions
        if self._regions is None:
            plans: Iterable[Iterable[ChunkRead]] = plan_together(
                indexes, [one.ranges for one in kept], n
            )
        else:
            plans = (
                _plan_regions(index, one.regions, one.ranges, n)
                for index, one in zip(indexes, kept, strict=True)
            )
        return zip(kept, indexes, plans, strict=True)

    def _kept_of(self, version_file: VersionFile) -> _Kept | None:
        """Return what is wanted of a file; None where it has no row to deliver, as the log says."""
        file, selection, ranges = version_file.file, self._selection, self._ranges
        if selection is not None:
            if not selection.files[version_file.order]:
                return None
            if not selection.trusted[version_file.order]:
                ranges = self._whole
        first_subpartition, end_subpartition = file.first_subpartition, file.end_subpartition
        if file.num_subpartitions <= self._version.num_subpartitions and not any(
            first < end_subpartition and first_subpartition < end for first, end in ranges
        ):
            return None
        regions = self._regions_of(version_file)
        if not regions:
            return None
        return _Kept(version_file, regions, ranges, self._compared_in(file, ranges))

    def _compared_in(
        self, file: PartitionedFile, ranges: Sequence[tuple[int, int]]
    ) -> Sequence[str]:
        """Return the columns whose statistics may say which chunks of a file can match.

        None where a chunk or two of a region may have the given keys: it is as well to read them.
        """
        selection = self._selection
        if selection is None:
            return ()
        if selection.keys is not None and file.num_regions == 1:
            num_bytes = file.raw_bytes * sum([end - first for first, end in ranges])
            if num_bytes <= FEW_BYTES * (file.end_subpartition - file.first_subpartition):
                return ()
        return selection.columns

    def _regions_of(self, version_file: VersionFile) -> range:
        """Regions of a file to read, numbered through the file; empty for none."""
        regions = range(version_file.file.num_regions)
        if self._regions is None:
            return regions
        first_region, end_region = (
            max(edge - version_file.first_region, 0)
            for edge in (self._regions.start, self._regions.stop)
        )
        return regions[first_region:end_region]

    def _translated(self) -> AbstractContextManager[None]:
        return translate_gone(self._storage, self._version, self._oldest_needed)

    def rows(
        self,
        plan: Iterable[tuple[ChunkReader, Iterable[ChunkRead]]],
        kept: ChunkCache | None = None,
        run_bytes: int = MAX_RUN_BYTES,
    ) -> Iterator[Rows]:
        """Yield the rows of chunks of :meth:`planned`, and of those ``kept`` of readers before.

        Those of ``run_bytes`` of packed columns come together.
        """
        aside = KeptAside({} if kept is None else kept.take())
        with (
            self._translated(),
            self._scheduler.add_reader(aside.to_fetch(plan)) as fetched,
        ):
            if self._tested is not None:
                # No chunk that a filter was asked about is kept.
                yield from self._decoded_rows(fetched, run_bytes)
                return
            chunks = self._checked(fetched, to_their_end=kept is not None)
            for parts in map(decode_run, in_runs(chunks, run_bytes)):
                for run, batch in parts:
                    found = self._in_order(run, batch, kept)
                    del run, batch  # not to be kept while their consumer works
                    yield from found
            yield from self._rows_kept(aside.left, kept)

    def straight(self) -> Iterator[Rows]:
        """Yield the same rows by a shorter way: nothing is kept, nor read ahead of local files."""
        with self._translated(), self._scheduler.reading(self._to_read()) as fetched:
            yield from self._decoded_rows(fetched)

    def _decoded_rows(
        self, fetched: Iterable[_Fetched], run_bytes: int = MAX_RUN_BYTES
    ) -> Iterator[Rows]:
        """Yield the rows wanted of chunks, of which nothing is kept."""
        for run in in_runs(self._checked(fetched), run_bytes):
            found = decoded_rows(run, self.first, self.end, self._tested)
            del run  # not to be kept while its consumer works
            yield from found

    def _checked(
        self, fetched: Iterable[_Fetched], *, to_their_end: bool = False
    ) -> Iterator[FetchedChunk]:
        """Yield chunks with what is wanted of them, once it is known where their rows belong."""
        for source, chunk, stored in fetched:
            if self._placement is not None:
                self._placement.check_stored(source, chunk, stored)
            part = source.to_decode(chunk, stored, to_its_end=to_their_end)
            yield FetchedChunk(source, chunk, part)

    def _in_order(
        self,
        run: Sequence[FetchedChunk],
        batch: pa.RecordBatch,
        kept: ChunkCache | None,
    ) -> Iterator[Rows]:
        """Yield the rows wanted of decoded chunks, and before each those that were kept.

        The rows behind those wanted of a chunk are kept.
        """
        source, chunk, part = run[0]
        pinned = pinned_bytes(batch, part.stored, is_plain=source.is_plain(chunk))
        # Slices of one batch keep it once.
        charges = repeat(None) if len(run) == 1 else chain([pinned], repeat(0))
        segment: list[tuple[ChunkReader, ChunkRead]] = []
        begin = at = 0
        for source, chunk, part in run:
            if chunk.before:
                yield from self._segment(segment, batch.slice(begin, at - begin), charges)
                yield from self._rows_kept(chunk.before, kept)
                segment = []
            begin = begin if segment else at
            segment.append((source, chunk))
            at += chunk.end_row - chunk.first_row
            num_behind = part.rows[1] - chunk.end_row
            if num_behind and kept is not None:
                yield from self._segment(segment, batch.slice(begin, at - begin), charges)
                left = KeptChunk(batch.slice(at, num_behind), chunk.end_row, pinned)
                kept.keep(source, chunk, left, self.end)
                segment = []
                at += num_behind
        yield from self._segment(segment, batch.slice(begin, at - begin), charges)

    def _segment(
        self,
        segment: Sequence[tuple[ChunkReader, ChunkRead]],
        batch: pa.RecordBatch,
        charges: Iterator[int | None],
    ) -> Iterator[Rows]:
        """Yield the rows of adjacent chunks, if there are any, with the bytes that they pin."""
        of_segment = rows_of(segment, batch, self.first, self.end, with_gone=self._keeps_gone)
        for rows in of_segment if segment else ():
            rows.pinned_bytes = next(charges)
            yield rows

    def _rows_kept(self, reads: Iterable[KeptRead], kept: ChunkCache | None) -> Iterator[Rows]:
        for source, chunk, decoded in reads:
            first = chunk.first_row - decoded.first_row
            num_rows = chunk.end_row - chunk.first_row
            if kept is not None:
                kept.keep(source, chunk, decoded.behind(first + num_rows), self.end)
            wanted = decoded.batch.slice(first, num_rows)
            if 2 * num_rows < decoded.batch.num_rows:
                wanted = copied(wanted)
            yield from self._segment([(source, chunk)], wanted, repeat(None))

    def _slices(
        self, source: ChunkReader, chunks: Iterable[ChunkRead], slice_bytes: int, row_bytes: int
    ) -> Iterator[Rows]:
        """Rows of chunks, of which no more stays in memory than the slice that is yielded."""
        for chunk in chunks:
            first_row = chunk.first_row
            while first_row < chunk.end_row:
                with self._translated():
                    ((_, stored),) = self._scheduler.fetch(source, [chunk])
                if self._placement is not None and first_row == chunk.first_row:
                    self._placement.check_stored(source, chunk, stored)
                num_rows = chunk.end_row - first_row
                batch = source.decode(chunk, stored).slice(first_row, num_rows)
                num_bytes = batch.nbytes + row_bytes * num_rows
                num_rows = -(-num_rows // max(-(-num_bytes // slice_bytes), 1))
                part = chunk._replace(first_row=first_row, end_row=first_row + num_rows)
                del batch  # its rows are decoded again, without the others
                found = decoded_rows(
                    [FetchedChunk(source, part, source.to_decode(part, stored))],
                    self.first,
                    self.end,
                    self._tested,
                )
                del stored
                for rows in found:
                    if source.is_plain(chunk):
                        rows.batch = copied(rows.batch)
                    yield rows
                    del rows
                first_row += num_rows


def _shares(piece: Piece, kept: Sequence[_Kept]) -> dict[int, tuple[float, float]]:
    """Return the part of each file, by its number, that is in a piece, if it has one."""
    shares = piece.shares([max(one.file.file.data_bytes, 1) for one in kept])
    return {
        one.file.order: share
        for one, share in zip(kept, shares, strict=True)
        if share[0] < 1 and share[1] > 0
    }


def _passing(
    source: ChunkReader, mask: RowMask | None, chunks: Iterable[ChunkRead]
) -> tuple[ChunkReader, Iterable[ChunkRead]]:
    """Let a reader of chunks leave out rows, and return those chunks that have others."""
    source.passed_over = mask
    return source, chunks if mask is None else filter(source.num_rows_left, chunks)


def _plan_regions(
    index: IndexPart, regions: range, ranges: Sequence[tuple[int, int]], num_subpartitions: int
) -> Iterable[ChunkRead]:
    """Return the chunks of some adjacent regions of a file."""
    numbers = [region.number for region in index.regions]
    first, end = (bisect_left(numbers, edge) for edge in (regions.start, regions.stop))
    return chunks_of_ranges(index.regions[first:end], ranges, num_subpartitions, first_region=first)


def _wanted_bytes(source: ChunkReader, chunks: Sequence[ChunkRead], row_bytes: int) -> list[int]:
    """Estimate the raw bytes of the rows wanted from each chunk, plus ``row_bytes`` for each."""
    regions, file = source.index.regions, source.index.file
    row_bytes += source.added_row_bytes
    raw_length = sum(region.raw_length for region in regions)
    expansion = file.raw_bytes / max(raw_length, 1)
    sizes = []
    for chunk in chunks:
        region = regions[chunk.part]
        start, stop = region.chunk_rows(chunk.chunk)
        raw = int(region.chunks.raw_length[chunk.chunk]) * expansion
        num_rows = chunk.end_row - chunk.first_row
        sizes.append(int(num_rows * (raw / (stop - start) + row_bytes)))
    return sizes


def select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> list[int]:
    """Return the positions of columns in a schema, of all when None; SchemaError for others."""
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
    """Append the int32 column ``_subpartition``; SchemaError for a schema that has it already."""
    if SUBPARTITION_COLUMN in schema.names:
        msg = f"column {SUBPARTITION_COLUMN!r} is there already; leave with_subpartition out"
        raise SchemaError(msg)
    return schema.append(pa.field(SUBPARTITION_COLUMN, pa.int32(), nullable=False))
