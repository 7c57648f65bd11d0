"""The chunks of one partitioned file, read by a plan and verified, as stored bytes or as rows."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from itertools import chain, groupby, islice, pairwise, repeat
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_table import MANY_CHUNKS, MESSAGE
from arrow_format.format.codec import EncodedChunk, StoredChunk, check_frame
from arrow_format.format.codecs import codec_of_chunk
from arrow_format.format.regions import RegionKind
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.chunk_plan import ChunkRead, plan_chunks, with_places
from arrow_format.read.partitioned_file import IndexPart
from arrow_format.read.scheduler import ADVICE, TOGETHER_BYTES, ReadScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.format.chunk_table import ChunkPlaces, ChunkTable
    from arrow_format.format.codecs import ChunkDecoder
    from arrow_format.format.evolved_chunks import ChunkDecoders
    from arrow_format.format.masks import RowMask
    from arrow_format.format.part_table import PartTable
    from arrow_format.model import Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader, UnfinishedFile

READ_AHEAD_BYTES = 8 << 20

PLACES_TOGETHER = 1 << 13
"""Columns of chunks whose places are looked up at a time: each takes 350 bytes, until its chunk was
decoded, and a file of any size may be planned at once."""

FEW_GONE = 2 / 3
"""Share of the rows of a file that is left at least where those that masks took are but marked:
they take memory."""

_UNICAST = int(RegionKind.UNICAST)


class ChunkReader:
    """Reads chunks of one data file and never returns bytes that differ from what was written.

    Every method that reads raises :class:`~arrow_format.errors.CorruptShuffleError` when a chunk is
    missing, cut short, or not as the index says, and
    :class:`~arrow_format.errors.FormatVersionError` when its encoding is unknown.

    ``index`` is that of the file, or what its writer knows before there is one; ``decoder`` takes
    the file's schema. At most ``read_ahead_bytes`` are fetched ahead of the consumer, unless one
    chunk is larger. ``wanted`` is the purpose of the read for messages, such as
    ``subpartitions 3 to 5``, and ``order`` the file's position in the reading order of a scheduler.
    """

    def __init__(
        self,
        index: PartitionedFileReader | IndexPart | UnfinishedFile,
        decoder: ChunkDecoder,
        *,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        wanted: str = "",
        order: int = 0,
    ) -> None:
        self.index = index
        self.storage = index.storage
        self.path = index.file.data_path
        self.order = order
        self._wanted = wanted
        self.decoder = decoder
        self._read_ahead_bytes = read_ahead_bytes
        self._fetched = decoder.columns
        """Columns of the file of which the frames are fetched: the decoder's, perhaps others."""
        self.passed_over: RowMask | None = None
        """Rows that this reader leaves out, besides those that are gone for all."""

    def reading(self, decoders: ChunkDecoders) -> ChunkReader:
        """Return a reader of other columns of the same file."""
        return ChunkReader(
            self.index,
            decoders.of(self.index.metadata.data_schema),
            read_ahead_bytes=self._read_ahead_bytes,
            wanted=self._wanted,
            order=self.order,
        )

    @property
    def added_row_bytes(self) -> int:
        """Bytes by which a decoded row is larger than what is stored of it, at least."""
        return self.decoder.added_row_bytes

    @property
    def described(self) -> str:
        """Map task, attempt and purpose of the read."""
        return f"{self._task()}, {self._wanted}" if self._wanted else self._task()

    def stored(self, plan: Iterable[ChunkRead]) -> Iterator[EncodedChunk]:
        """Yield the chunks of a plan in its order, whole and as they are stored."""
        for chunk, stored in self.fetched(plan):
            yield self.encoded(chunk, stored)

    def encoded(self, chunk: ChunkRead, stored: pa.Buffer) -> EncodedChunk:
        """Return a whole chunk as it is stored, with no column decoded if that can be."""
        names = self.index.metadata.data_schema.names
        frames = self.index.regions[chunk.part].chunks.frames(chunk.chunk)
        if frames.encoding != MESSAGE:
            with self.located(chunk):
                codec_of_chunk(frames.encoding)  # or it is not known what is copied
                for number, (start, stop) in enumerate(pairwise(frames.edges)):
                    check_frame(memoryview(stored)[start:stop], frames, number, names)
        else:
            # Arrow parses the message to copy it into an Arrow file, and trusts its contents.
            self.decode(chunk, stored)
        return EncodedChunk(stored, frames)

    def decoded(self, plan: Iterable[ChunkRead]) -> Iterator[tuple[ChunkRead, pa.RecordBatch]]:
        """Yield the chunks of a plan in its order, each as one record batch of all its rows.

        Of all that are stored: those that a mask took are among them, see :meth:`rows_left`.
        """
        for chunk, stored in self.fetched(plan):
            yield chunk, self.decode(chunk, stored)

    def decode(self, chunk: ChunkRead, stored: pa.Buffer) -> pa.RecordBatch:
        """Return all rows of a chunk from its stored bytes."""
        with self.located(chunk):
            places = self.places(chunk)
            return self.decoder.decode([StoredChunk(stored, places, (0, places.num_rows))])

    def to_decode(
        self, chunk: ChunkRead, stored: pa.Buffer, *, to_its_end: bool = False
    ) -> StoredChunk:
        """Return a chunk with the rows wanted of it; ``to_its_end`` those behind them too."""
        places = self.places(chunk)
        end = places.num_rows if to_its_end else chunk.end_row
        return StoredChunk(stored, places, (chunk.first_row, end))

    @contextmanager
    def located(self, chunk: ChunkRead) -> Iterator[None]:
        """Add to errors of the block which chunk it is about."""
        try:
            yield
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{self.where(chunk)}: {error}. {ADVICE}"
            raise type(error)(msg) from error

    def wanted(self, chunks: Iterable[ChunkRead], also: Sequence[int] = ()) -> Iterable[ChunkRead]:
        """Return chunks of a plan with the frames that are read of them, and the places in these.

        Those have the columns that are decoded, and ``also`` others of the file, by position.
        """
        columns = self.decoder.columns
        columns = self._fetched = [*columns, *(i for i in also if i not in columns)]
        if len(columns) < len(self.decoder.stored):
            return self._with_places(chunks, columns, self.storage.gap_bytes)
        planned = iter(chunks)
        few = [*islice(planned, MANY_CHUNKS)]
        if len(few) < MANY_CHUNKS:  # places of these are looked up once it is known who reads them
            return few
        return self._with_places(chain(few, planned), columns, sys.maxsize)

    def _with_places(
        self, chunks: Iterable[ChunkRead], columns: Sequence[int], gap_bytes: int
    ) -> Iterator[ChunkRead]:
        most = max(PLACES_TOGETHER // max(len(columns), 1), MANY_CHUNKS)
        for part, of_part in groupby(chunks, attrgetter("part")):
            table, before = self.table_of(part)
            while adjacent := [*islice(of_part, most)]:
                found = table.places([before + chunk.chunk for chunk in adjacent], columns)
                yield from map(with_places, adjacent, found, repeat(gap_bytes))

    @property
    def _parts(self) -> tuple[PartTable, int] | None:
        """A table with the parts of the index, and how many others are before them."""
        found = self.index.in_table if isinstance(self.index, IndexPart) else None
        return None if found is None else (found[0], found[1].start)

    def table_of(self, part: int) -> tuple[ChunkTable, int]:
        """Return a table with the chunks of a part, perhaps of others, and how many before them."""
        if (known := self._parts) is None:
            return self.index.regions[part].chunks, 0
        table, before = known
        return table.chunks, int(table.chunk_edges[before + part])

    def is_unicast(self, part: int) -> bool:
        """Whether each row of a part is of one subpartition."""
        if (known := self._parts) is None:
            return self.index.regions[part].kind is RegionKind.UNICAST
        table, before = known
        return int(table.kind[before + part]) == _UNICAST

    def places(self, chunk: ChunkRead, columns: Sequence[int] | None = None) -> ChunkPlaces:
        """Return where columns are in what is fetched of a chunk.

        They are those that are decoded, or some of the file's that the chunk is wanted for.
        """
        places = chunk.places
        if places is None:
            wanted = self.decoder.columns if columns is None else columns
            table, before = self.table_of(chunk.part)
            (places,) = table.places([before + chunk.chunk], wanted)
        elif columns is not None:
            of_fetched = dict(zip(self._fetched, places.columns, strict=True))
            places = places._replace(columns=[of_fetched[i] for i in columns])
        return places

    def raw_bytes(self, chunk: ChunkRead) -> int:
        """Estimate the bytes in Arrow of all rows of a chunk."""
        region, file = self.index.regions[chunk.part], self.index.file
        start, stop = region.chunk_rows(chunk.chunk)
        row_bytes = file.raw_bytes / max(file.stored_rows, 1) + self.added_row_bytes
        return max(int((stop - start) * row_bytes), int(region.chunks.raw_length[chunk.chunk]))

    def is_plain(self, chunk: ChunkRead) -> bool:
        """Whether a chunk is a plain Arrow message, whose columns may be views of what was read."""
        return int(self.index.regions[chunk.part].chunks.encoding[chunk.chunk]) == MESSAGE

    def gone(self, chunk: ChunkRead) -> NDArray[np.bool_] | None:
        """Return of each row wanted of a chunk whether a mask took it; None: it took none."""
        start = int(self.index.regions[chunk.part].chunks.first_row[chunk.chunk])
        return self.gone_of(chunk.part, start + chunk.first_row, start + chunk.end_row)

    def gone_of(self, part: int, first: int, end: int) -> NDArray[np.bool_] | None:
        """Return the same of rows ``[first, end)`` of a part."""
        found = None
        for mask in (self.index.mask, self.passed_over):
            if mask is None:
                continue
            region = self.index.regions[part]
            start = region.first_row
            gone = mask.gone(region.number, start + first, start + end)
            if gone is not None:
                found = gone if found is None else found | gone
        return found

    def has_few_gone(self, part: int) -> bool:
        """Whether rows of a part are each of one subpartition, and few are gone of its file."""
        file = self.index.file
        is_few = self.passed_over is None and file.num_rows >= FEW_GONE * file.stored_rows
        return is_few and self.is_unicast(part)

    def place(self, chunk: ChunkRead) -> int:
        """Return the row of its region at which the rows wanted of a chunk begin."""
        region = self.index.regions[chunk.part]
        return int(region.first_row + region.chunk_rows(chunk.chunk)[0]) + chunk.first_row

    def rows_left(self, chunk: ChunkRead) -> Int64Array | None:
        """Return which of the rows wanted of a chunk no mask took, ascending; None: all."""
        gone = self.gone(chunk)
        return None if gone is None else np.flatnonzero(~gone)

    def num_rows_left(self, chunk: ChunkRead) -> int:
        """Return how many of the rows wanted of a chunk no mask took."""
        left = self.rows_left(chunk)
        return chunk.end_row - chunk.first_row if left is None else len(left)

    def plan(
        self, first_region: int, end_region: int, first: int = 0, end: int | None = None
    ) -> Iterator[ChunkRead]:
        """Yield the chunks that subpartitions ``[first, end)`` want of adjacent regions."""
        n = self.index.metadata.num_subpartitions
        regions = self.index.regions[first_region:end_region]
        return plan_chunks(regions, first, n if end is None else end, n, first_region=first_region)

    def every(self, first: int, end: int) -> Iterator[ChunkRead]:
        """Yield all chunks of a finished file that have rows of subpartitions ``[first, end)``."""
        index = self.index
        if isinstance(index, IndexPart):
            index = index.reader.of_ranges([(first, end)])
        return plan_chunks(index.regions, first, end, index.metadata.num_subpartitions)

    def fetched(self, plan: Iterable[ChunkRead]) -> Iterator[tuple[ChunkRead, pa.Buffer]]:
        """Yield the chunks of a plan in its order, with their stored bytes, not verified."""
        scheduler = ReadScheduler(ReadBufferPool(self._read_ahead_bytes), read_ahead=False)
        if self.storage.max_requests > 1 or self._read_ahead_bytes < TOGETHER_BYTES:
            yield from scheduler.fetch(self, plan)
            return
        for _, chunk, stored in scheduler.straight([(self, plan)]):
            yield chunk, stored

    def _task(self) -> str:
        return f"map task {self.index.metadata.map_task}, attempt {self.index.metadata.attempt}"

    @property
    def file(self) -> str:
        """Its file, map task and attempt, for a message."""
        return f"{self.storage.root}/{self.path} ({self._task()})"

    def where(self, chunk: ChunkRead) -> str:
        """Return the file, map task, region and chunk for a message."""
        where = f"{self.file}, region {chunk.region}, chunk {chunk.chunk} at byte {chunk.offset}"
        return f"{where}, wanted for {self._wanted}" if self._wanted else where


def looked_up(
    files: Sequence[tuple[ChunkReader, Sequence[ChunkRead]]],
) -> Iterator[list[ChunkRead]]:
    """Yield the chunks of each of some files with the places of what is decoded of them.

    Those of files whose indexes were decoded together are looked up together.
    """
    each = [
        (*reader.table_of(one.part), reader.decoder, one.chunk)
        for reader, chunks in files
        for one in chunks
    ]
    places: list[ChunkPlaces] = []
    for _, run in groupby(each, lambda one: (id(one[0]), id(one[2]))):
        of_run = [*run]
        table, _, decoder, _ = of_run[0]
        places += table.places([before + chunk for _, before, _, chunk in of_run], decoder.columns)
    found = iter(places)
    for reader, chunks in files:
        is_all = len(reader.decoder.columns) == len(reader.decoder.stored)
        gap_bytes = sys.maxsize if is_all else reader.storage.gap_bytes
        yield [*map(with_places, chunks, found, repeat(gap_bytes))]
