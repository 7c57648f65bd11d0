"""Where the chunks of a data file are, which frames they have, and which columns those hold. Pure.

A chunk is frames one behind the other, each of the packed columns that name it, in their order; but
one of encoding ``MESSAGE`` is a single frame, an Arrow message that all columns name. See
``docs/format/reading.md`` and ``docs/adr/0011-column-frames.md``.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, fields
from itertools import accumulate, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from arrow_format.arrays.selection import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from arrow_format.model import Int64Array


MESSAGE = 0
"""Encoding of a chunk that is an encapsulated Arrow IPC record batch message; see :mod:`.codecs`
for others, which all have frames of packed columns."""

MANY_CHUNKS = 24
"""Of so many chunks arrays find the places of columns faster than a loop over plain integers."""

FRAME_BYTES = 12
"""Bytes of memory that a frame of a table takes."""


class ChunkPlaces(NamedTuple):
    """Where some columns of a chunk are, and the frames that have them, by ascending number.

    Plain integers: for few columns they are much faster than arrays.
    """

    table: ChunkTable
    chunk: int
    """Its number in the table."""
    num_rows: int
    """Rows of the chunk."""
    encoding: int
    """Of its codec; another where a newer version wrote the chunk."""
    number: list[int]
    """Of each of these frames, among all of the chunk."""
    offset: list[int]
    """Byte at which each starts, of the chunk, or of what is fetched of it."""
    length: list[int]
    """Stored bytes of each."""
    crc32: list[int]
    """CRC-32 (zlib) of these."""
    raw_length: list[int]
    """Bytes of the columns of each before compression."""
    columns: list[tuple[int, int, int]]
    """For each column which of these frames has it, and its bytes ``[start, stop)`` there."""

    def of_columns(self, positions: Sequence[int]) -> ChunkPlaces:
        """Return the same of some of the columns."""
        wanted = [self.columns[i] for i in positions]
        used = sorted({held for held, _, _ in wanted})
        index = {held: i for i, held in enumerate(used)}
        return self._replace(
            number=[self.number[i] for i in used],
            offset=[self.offset[i] for i in used],
            length=[self.length[i] for i in used],
            crc32=[self.crc32[i] for i in used],
            raw_length=[self.raw_length[i] for i in used],
            columns=[(index[held], start, stop) for held, start, stop in wanted],
        )

    @property
    def described(self) -> ChunkFrames:
        """All frames of the chunk."""
        return self.table.frames(self.chunk)


@dataclass(frozen=True, slots=True)
class ChunkFrames:
    """The frames of one chunk."""

    encoding: int
    """Of its codec; another where a newer version wrote the chunk."""
    column_frame: Sequence[int]
    """Number of the frame that holds each column."""
    column_raw_length: Sequence[int]
    """Bytes of each packed column before compression; 0 in a message."""
    length: Sequence[int]
    """Stored bytes of each frame."""
    crc32: Sequence[int]
    """CRC-32 (zlib) of the stored bytes of each frame."""

    @property
    def num_bytes(self) -> int:
        """Stored bytes of the chunk."""
        return sum(self.length)

    @property
    def raw_length(self) -> int:
        """Bytes of the chunk before compression: of its packed columns, or of the message."""
        return self.num_bytes if self.encoding == MESSAGE else sum(self.column_raw_length)

    @property
    def edges(self) -> list[int]:
        """Byte at which each frame starts, then their length."""
        return [*accumulate(self.length, initial=0)]

    def columns_of(self, frame: int) -> list[int]:
        """Return the positions of the columns that a frame holds."""
        return [column for column, of in enumerate(self.column_frame) if of == frame]


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """Chunks of one file, in file order.

    Arrays have one value per chunk, per chunk and column, or per frame, those of a chunk one behind
    the other.
    """

    first_row: Int64Array
    """Row at which each chunk starts, counted from the first row of its region or part: less than
    0 where that begins inside of a chunk."""
    num_rows: Int64Array
    """Rows of each chunk."""
    offset: Int64Array
    """Byte in the data file at which it starts, a multiple of 8."""
    encoding: npt.NDArray[np.uint8]
    """Those of the codecs."""
    num_frames: npt.NDArray[np.int32]
    """How many frames it has."""
    column_frame: npt.NDArray[np.int32]
    """Frame of each chunk's columns, of shape (chunks, columns); counted within the chunk."""
    column_raw_length: Int64Array
    """Bytes of each chunk's columns before compression, of shape (chunks, columns)."""
    frame_length: Int64Array
    """Stored bytes of each frame."""
    frame_crc32: npt.NDArray[np.uint32]
    """CRC-32 (zlib) of the stored bytes of each frame."""
    first_frame: Int64Array = field(init=False)
    """Frames before those of each chunk, then all."""
    length: Int64Array = field(init=False)
    """Bytes that each chunk takes in the data file, without padding."""
    raw_length: Int64Array = field(init=False)
    """Bytes of each chunk before compression: of its packed columns, or of the message."""

    known: InitVar[tuple[Int64Array, Int64Array, Int64Array] | None] = None
    """These three, where they were added up before."""

    def __post_init__(self, known: tuple[Int64Array, Int64Array, Int64Array] | None) -> None:
        """Add up what the frames of each chunk have."""
        if known is None:
            first_frame = np.append(0, np.cumsum(self.num_frames, dtype=np.int64))
            length = np.add.reduceat(self.frame_length, first_frame[:-1])
            raw = self.column_raw_length.sum(axis=1, dtype=np.int64)
            known = first_frame, length, np.where(self.encoding == MESSAGE, length, raw)
        for name, value in zip(("first_frame", "length", "raw_length"), known, strict=True):
            object.__setattr__(self, name, value)

    @staticmethod
    def of(chunks: Iterable[tuple[int, int, ChunkFrames]], num_rows: int) -> ChunkTable:
        """Return the table of chunks of so many rows, by first row, offset and frames.

        There is at least one.
        """
        first_row, offset, frames = zip(*chunks, strict=True)
        return ChunkTable(
            np.array(first_row, np.int64),
            np.array([*first_row[1:], num_rows], np.int64) - np.array(first_row, np.int64),
            np.array(offset, np.int64),
            np.array([chunk.encoding for chunk in frames], np.uint8),
            np.array([len(chunk.length) for chunk in frames], np.int32),
            np.array([chunk.column_frame for chunk in frames], np.int32),
            np.array([chunk.column_raw_length for chunk in frames], np.int64),
            np.array([number for chunk in frames for number in chunk.length], np.int64),
            np.array([number for chunk in frames for number in chunk.crc32], np.uint32),
        )

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def row_edges(self) -> Int64Array:
        """Row at which each chunk starts, then that after the last one."""
        return np.append(self.first_row, self.first_row[-1:] + self.num_rows[-1:])

    def between(self, first: int, end: int, first_row: int = 0) -> ChunkTable:
        """Return adjacent chunks, whose rows count from ``first_row`` on."""
        frames = slice(self.first_frame[first], self.first_frame[end])
        return ChunkTable(
            self.first_row[first:end] - first_row,
            self.num_rows[first:end],
            self.offset[first:end],
            self.encoding[first:end],
            self.num_frames[first:end],
            self.column_frame[first:end],
            self.column_raw_length[first:end],
            self.frame_length[frames],
            self.frame_crc32[frames],
            (
                self.first_frame[first : end + 1] - self.first_frame[first],
                self.length[first:end],
                self.raw_length[first:end],
            ),
        )

    def at(self, chunks: Int64Array, first_row: Int64Array) -> ChunkTable:
        """Return some chunks, which begin at other rows."""
        begins = self.first_frame[chunks]
        frames = ranges(begins, self.first_frame[chunks + 1] - begins)
        return ChunkTable(
            first_row,
            self.num_rows[chunks],
            self.offset[chunks],
            self.encoding[chunks],
            self.num_frames[chunks],
            self.column_frame[chunks],
            self.column_raw_length[chunks],
            self.frame_length[frames],
            self.frame_crc32[frames],
        )

    @staticmethod
    def joined(tables: Sequence[ChunkTable]) -> ChunkTable:
        """Return the chunks of tables of one file and region, one behind the other."""
        arrays = [table.arrays() for table in tables]
        joined: dict[str, Any] = {
            name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]
        }
        return ChunkTable(**joined)

    @property
    def row_bytes(self) -> int:
        """Bytes of memory that a chunk takes without its frames, about."""
        return 24 + 12 * int(self.column_frame.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes, about."""
        return len(self) * self.row_bytes + len(self.frame_length) * FRAME_BYTES

    def places(self, chunks: Sequence[int], columns: Sequence[int]) -> list[ChunkPlaces]:
        """Return where columns at some positions are in each of some chunks.

        With plain integers, and of few chunks one after the other: that takes less than arrays.
        """
        if len(chunks) >= MANY_CHUNKS:
            return self._places_of_many(chunks, columns)
        found = []
        for chunk in chunks:
            frame_of = self.column_frame[chunk].tolist()
            raw_lengths = self.column_raw_length[chunk].tolist()
            first, end = self.first_frame[chunk : chunk + 2].tolist()
            # Bytes before compression, up to now, of the frames that are wanted.
            ends = dict.fromkeys(sorted({frame_of[i] for i in columns}), 0)
            stops = []
            for frame, raw_length in zip(frame_of, raw_lengths, strict=True):
                stop = ends.get(frame, 0) + raw_length
                if frame in ends:
                    ends[frame] = stop
                stops.append(stop)
            lengths = self.frame_length[first:end].tolist()
            sums = self.frame_crc32[first:end].tolist()
            offsets = [*accumulate(lengths, initial=0)]
            index = {frame: i for i, frame in enumerate(ends)}
            found.append(
                ChunkPlaces(
                    self,
                    chunk,
                    int(self.num_rows[chunk]),
                    int(self.encoding[chunk]),
                    [*ends],
                    [offsets[frame] for frame in ends],
                    [lengths[frame] for frame in ends],
                    [sums[frame] for frame in ends],
                    [*ends.values()],
                    [(index[frame_of[i]], stops[i] - raw_lengths[i], stops[i]) for i in columns],
                )
            )
        return found

    def _places_of_many(self, chunks: Sequence[int], columns: Sequence[int]) -> list[ChunkPlaces]:
        """Return the same as :meth:`places`, with arrays for all of them."""
        numbers = np.array(chunks, np.int64)
        table = self.at(numbers, self.first_row[numbers])
        firsts = table.first_frame[:-1]
        # Columns as the frames have them, one behind the other.
        frame_of = (firsts[:, None] + table.column_frame).ravel()
        order = np.argsort(frame_of, kind="stable")
        frame_of, sizes = frame_of[order], table.column_raw_length.ravel()[order]
        begin = np.flatnonzero(np.diff(frame_of, prepend=-1))
        stops, raw_lengths = sizes.cumsum(), np.add.reduceat(sizes, begin)
        frame, held = np.unique(frame_of, return_inverse=True)
        stops -= (stops - sizes)[begin][held]
        # Of these the wanted ones.
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        at = rank.reshape(len(chunks), -1)[:, columns]
        used, index = np.unique(held[at], return_inverse=True)
        frame, raw_lengths = frame[used], raw_lengths[used]
        edges = np.searchsorted(frame, table.first_frame)
        before = np.append(0, table.frame_length.cumsum())
        chunk = np.repeat(firsts, np.diff(edges))
        cuts = [*pairwise(edges.tolist())]

        def of_chunks(values: npt.NDArray[Any]) -> list[list[int]]:
            listed = values.tolist()
            return [listed[first:end] for first, end in cuts]

        in_frames = zip(
            (index.reshape(at.shape) - edges[:-1, None]).ravel().tolist(),
            (stops[at] - sizes[at]).ravel().tolist(),
            stops[at].ravel().tolist(),
            strict=True,
        )
        return [
            *map(
                ChunkPlaces,
                repeat(self),
                chunks,
                table.num_rows.tolist(),
                table.encoding.tolist(),
                of_chunks(frame - chunk),
                of_chunks(before[frame] - before[chunk]),
                of_chunks(table.frame_length[frame]),
                of_chunks(table.frame_crc32[frame]),
                of_chunks(raw_lengths),
                ([*islice(in_frames, len(columns))] for _ in chunks),
            )
        ]

    def frames(self, chunk: int) -> ChunkFrames:
        """Return the frames of a chunk."""
        first, end = self.first_frame[chunk : chunk + 2].tolist()
        return ChunkFrames(
            int(self.encoding[chunk]),
            self.column_frame[chunk].tolist(),
            self.column_raw_length[chunk].tolist(),
            self.frame_length[first:end].tolist(),
            self.frame_crc32[first:end].tolist(),
        )

    def equals(self, other: ChunkTable) -> bool:
        """Whether the index has the same of other chunks."""
        pairs = zip(self.arrays().values(), other.arrays().values(), strict=True)
        return all(np.array_equal(*pair) for pair in pairs)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what the index has of the chunks, by name."""
        names = [each.name for each in fields(self) if each.init]
        return {name: getattr(self, name) for name in names}
