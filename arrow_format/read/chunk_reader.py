"""The chunks of one partitioned file, read by a plan and verified, as stored bytes or as rows."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import Rows, copied
from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take, take_runs
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_codec import EncodedChunk, batch_of, check_frame
from arrow_format.format.chunk_table import FRAMES, Encoding
from arrow_format.format.regions import RegionKind
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.partitioned_file import IndexPart
from arrow_format.read.plan import ChunkRead, plan_chunks, with_frames
from arrow_format.read.scheduler import ADVICE, ReadScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.format.chunk_codec import ChunkDecoder, OpenChunk
    from arrow_format.format.chunk_table import ChunkPlaces
    from arrow_format.format.evolved_chunks import ChunkDecoders
    from arrow_format.model import Int32Array, Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader, UnfinishedFile

READ_AHEAD_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Tested:
    """A filter on decoded columns."""

    where: RowFilter
    positions: tuple[int, ...]
    """Of the filter's columns in the decoder's schema."""
    num_wanted: int
    """Columns of that schema to be delivered: the first ones."""


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
        self._decoder = decoder
        self._read_ahead_bytes = read_ahead_bytes
        self._known_places: dict[tuple[int, int], ChunkPlaces] = {}
        """Of chunks that were planned and not decoded yet, by part and number."""

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
        return self._decoder.added_row_bytes

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
        if frames.encoding == Encoding.FRAMES:
            with self.located(chunk):
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

    def decode(
        self, chunk: ChunkRead, stored: pa.Buffer, rows: tuple[int, int | None] = (0, None)
    ) -> pa.RecordBatch:
        """Return ``rows`` of a chunk, ``[first, end)``, from its stored bytes; all by default."""
        with self.located(chunk):
            places = self._places(chunk)
            first, end = rows[0], places.num_rows if rows[1] is None else rows[1]
            return self._decoder.decode(stored, places, (first, end))

    def decode_wanted(self, chunk: ChunkRead, stored: pa.Buffer) -> pa.RecordBatch:
        """Return the rows that are wanted of a chunk; they keep no others in memory."""
        return self.decode(chunk, stored, (chunk.first_row, chunk.end_row))

    def open_chunk(self, chunk: ChunkRead, stored: pa.Buffer) -> OpenChunk:
        """Return the rows that are wanted of a chunk, with no column decoded.

        Its positions are those of the decoder's schema. Decode columns within :meth:`located`.
        """
        with self.located(chunk):
            rows = chunk.first_row, chunk.end_row
            return self._decoder.open_chunk(stored, self._places(chunk), rows)

    @contextmanager
    def located(self, chunk: ChunkRead) -> Iterator[None]:
        """Add to errors of the block which chunk it is about."""
        try:
            yield
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{self.where(chunk)}: {error}. {ADVICE}"
            raise type(error)(msg) from error

    def wanted(self, chunks: Iterable[ChunkRead], also: Sequence[int] = ()) -> Iterable[ChunkRead]:
        """Return chunks of a plan with the frames that are read of them.

        Those have the columns that are decoded, and ``also`` others of the file, by position.
        """
        columns = self._decoder.columns
        columns = [*columns, *(column for column in also if column not in columns)]
        if len(columns) == len(self._decoder.stored):
            return chunks
        return (self._with_frames(chunk, columns) for chunk in chunks)

    def _with_frames(self, chunk: ChunkRead, columns: Sequence[int]) -> ChunkRead:
        places = self.index.regions[chunk.part].chunks.places(chunk.chunk, columns)
        if places.encoding != FRAMES:
            return chunk
        if len(columns) == len(self._decoder.columns):
            self._known_places[chunk.part, chunk.chunk] = places
        frames = [frame[:3] for frame in places.frames]
        return with_frames(chunk, frames, self.storage.gap_bytes)

    def _places(self, chunk: ChunkRead) -> ChunkPlaces:
        places = self._known_places.pop((chunk.part, chunk.chunk), None)
        if places is None:
            table = self.index.regions[chunk.part].chunks
            places = table.places(chunk.chunk, self._decoder.columns)
        return places.in_fetched(chunk.frames)

    def raw_bytes(self, chunk: ChunkRead) -> int:
        """Estimate the bytes in Arrow of all rows of a chunk."""
        region, file = self.index.regions[chunk.part], self.index.file
        start, stop = region.chunk_rows(chunk.chunk)
        row_bytes = file.raw_bytes / max(file.stored_rows, 1) + self.added_row_bytes
        return max(int((stop - start) * row_bytes), int(region.chunks.raw_length[chunk.chunk]))

    def is_plain(self, chunk: ChunkRead) -> bool:
        """Whether a chunk is a plain Arrow message, whose columns may be views of what was read."""
        return int(self.index.regions[chunk.part].chunks.encoding[chunk.chunk]) == Encoding.IPC

    def rows_of(
        self,
        chunk: ChunkRead,
        batch: pa.RecordBatch,
        first: int,
        end: int,
        *,
        batch_start: int = 0,
        may_keep_chunk: bool = True,
    ) -> Iterator[Rows]:
        """Yield the rows that subpartitions ``[first, end)`` want of a decoded chunk.

        ``batch`` has its rows from ``batch_start`` on, those too that a mask took: they are left
        out here.

        A unicast chunk makes one run, a broadcast chunk one for each subpartition. A run that is
        less than half of the chunk is copied, so that it does not keep all of it in memory; without
        ``may_keep_chunk`` every part is.
        """
        lo, hi = chunk.first_row, chunk.end_row
        left = self.rows_left(chunk)
        if left is not None:
            if not len(left):
                return iter(())
            kept = take_runs(batch, left + lo - batch_start)
            is_view = left[-1] - left[0] == len(left) - 1
            kept = copied(kept) if is_view and 2 * len(left) < batch.num_rows else kept
            return self._runs(chunk, kept, left, first, end)
        if hi - lo == batch.num_rows:
            return self._runs(chunk, batch, None, first, end)
        wanted = batch.slice(lo - batch_start, hi - lo)
        if 2 * (hi - lo) < batch.num_rows or (not may_keep_chunk and hi - lo < batch.num_rows):
            wanted = copied(wanted)
        return self._runs(chunk, wanted, None, first, end)

    def matching_rows_of(
        self,
        chunk: ChunkRead,
        stored: pa.Buffer,
        first: int,
        end: int,
        tested: Tested,
        *,
        may_keep_chunk: bool = True,
    ) -> Iterator[Rows]:
        """Yield the rows of :meth:`rows_of` that a filter keeps.

        The columns that decide are decoded first, the others only if a row is kept.
        """
        batch, rows = self._matching(chunk, stored, tested)
        if batch is None:
            return iter(())
        if len(rows) < batch.num_rows:
            return self._runs(chunk, take(batch, to_arrow(rows)), rows, first, end)
        # A few small columns must not pin the whole chunk.
        if self.is_plain(chunk) and (not may_keep_chunk or 2 * batch.nbytes < stored.size):
            batch = copied(batch)
        return self._runs(chunk, batch, None, first, end)

    def _runs(
        self,
        chunk: ChunkRead,
        wanted: pa.RecordBatch,
        rows: Int64Array | None,
        first: int,
        end: int,
    ) -> Iterator[Rows]:
        """Yield rows of a chunk with their subpartitions, those of ``[first, end)``.

        ``rows`` are their positions among the rows that are wanted of it; all of these when None.
        """
        region = self.index.regions[chunk.part]
        if region.kind is RegionKind.BROADCAST and end - first > 1:
            for subpartition in range(first, end):
                yield Rows(wanted, np.full(wanted.num_rows, subpartition, np.int32))
            return
        ids: Int32Array | Callable[[], Int32Array]
        if end - first == 1:  # as in a lookup, which has little else to do
            ids = np.full(wanted.num_rows, first, np.int32)
        else:
            n = self.index.metadata.num_subpartitions
            start = int(region.chunks.first_row[chunk.chunk])
            first_row, end_row = start + chunk.first_row, start + chunk.end_row
            ids = partial(region.subpartitions_of_rows, first_row, end_row, n)
            ids = ids if rows is None else ids()[rows]
        run = [Rows(wanted, ids)]
        del wanted  # a suspended frame would keep it while its consumer works
        yield run.pop()

    def rows_left(self, chunk: ChunkRead) -> Int64Array | None:
        """Return which of the rows wanted of a chunk no mask took, ascending; None: all."""
        mask = self.index.mask
        if mask is None:
            return None
        region = self.index.regions[chunk.part]
        start = region.first_row + region.chunk_rows(chunk.chunk)[0]
        gone = mask.gone(chunk.region, start + chunk.first_row, start + chunk.end_row)
        return None if gone is None else np.flatnonzero(~gone)

    def num_rows_left(self, chunk: ChunkRead) -> int:
        """Return how many of the rows wanted of a chunk no mask took."""
        left = self.rows_left(chunk)
        return chunk.end_row - chunk.first_row if left is None else len(left)

    def _matching(
        self, chunk: ChunkRead, stored: pa.Buffer, tested: Tested
    ) -> tuple[pa.RecordBatch | None, Int64Array]:
        """Return what is wanted of a chunk, and which rows a filter keeps; None if it is none."""
        opened = self.open_chunk(chunk, stored)
        with self.located(chunk):
            deciding = opened.columns(tested.positions)
            mask = tested.where.mask(deciding, opened.num_rows)
            rows = np.flatnonzero(mask)
            left = self.rows_left(chunk)
            if left is not None:
                rows = np.intersect1d(rows, left, assume_unique=True)
            if not len(rows):
                return None, rows
            known = dict(zip(tested.positions, deciding, strict=True))
            others = [i for i in range(tested.num_wanted) if i not in known]
            known |= zip(others, opened.columns(others), strict=True)
        columns = [known[i] for i in range(tested.num_wanted)]
        schema = pa.schema([self._decoder.schema.field(i) for i in range(tested.num_wanted)])
        return batch_of(columns, schema, opened.num_rows), rows

    def rows(
        self, first_region: int, end_region: int, first: int, end: int
    ) -> Iterator[tuple[pa.RecordBatch, Int32Array]]:
        """Yield the rows of subpartitions ``[first, end)`` from adjacent regions, in file order.

        Each item is the rows of one chunk and the subpartition of each row; see :meth:`rows_of`.
        """
        for chunk, batch in self.decoded(self.plan(first_region, end_region, first, end)):
            parts = self.rows_of(chunk, batch, first, end)
            del batch  # nor any part: a suspended frame would keep them while its consumer works
            yield from map(attrgetter("batch", "subpartitions"), parts)

    def check(
        self,
        *,
        is_copy: Callable[[ChunkRead], bool] = lambda _: False,
        on_rows: Callable[[ChunkRead, pa.RecordBatch], None] | None = None,
    ) -> None:
        """Read the whole data file, the bytes between its chunks included, and verify it.

        A chunk that ``is_copy`` of one that was verified is not decoded: its CRC suffices. Others
        are given to ``on_rows``, in file order.
        """
        index = self.index
        data_bytes = index.file.data_bytes
        stat = self.storage.stat(self.path)
        if stat is None or stat.num_bytes != data_bytes:
            actual = "is not there" if stat is None else f"has {stat.num_bytes} bytes"
            msg = f"{self._file()}: {actual}, expected {data_bytes} bytes. {ADVICE}"
            raise CorruptShuffleError(msg)
        for chunk, stored in self.fetched(self.plan(0, len(index.regions))):
            if is_copy(chunk):
                self.encoded(chunk, stored)
                continue
            batch = self.decode(chunk, stored)
            if on_rows is not None:
                on_rows(chunk, batch)
        crc32 = 0
        for gap in self.storage.get_ranges(self.path, list(_gaps(index))):
            crc32 = zlib.crc32(gap, crc32)
        if crc32 != index.metadata.frame_crc32:
            msg = (
                f"{self._file()}: header, padding or footer differ from what was written. {ADVICE}"
            )
            raise CorruptShuffleError(msg)

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
        pool = ReadBufferPool(self._read_ahead_bytes)
        yield from ReadScheduler(pool, read_ahead=False).fetch(self, plan)

    def _task(self) -> str:
        return f"map task {self.index.metadata.map_task}, attempt {self.index.metadata.attempt}"

    def _file(self) -> str:
        return f"{self.storage.root}/{self.path} ({self._task()})"

    def where(self, chunk: ChunkRead) -> str:
        """Return the file, map task, region and chunk for a message."""
        where = f"{self._file()}, region {chunk.region}, chunk {chunk.chunk} at byte {chunk.offset}"
        return f"{where}, wanted for {self._wanted}" if self._wanted else where


def _gaps(index: PartitionedFileReader | IndexPart | UnfinishedFile) -> Iterator[tuple[int, int]]:
    """Ranges ``(offset, length)`` of a data file that belong to no chunk, in file order."""
    end = 0
    for region in index.regions:
        for offset, length in zip(
            region.chunks.offset.tolist(), region.chunks.length.tolist(), strict=True
        ):
            if offset > end:
                yield end, offset - end
            end = offset + length
    if index.file.data_bytes > end:
        yield end, index.file.data_bytes - end
