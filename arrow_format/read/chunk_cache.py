"""Chunks that two groups of subpartitions share: decoded for the first, kept for the second.

A group ends inside a chunk of nearly every region. Of wide tables, whose chunks are large and whose
columns are many, decoding those again would be half of the work.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.arrays.batches import copied

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.chunk_reader import ChunkReader


@dataclass(frozen=True, slots=True)
class KeptChunk:
    """The last rows of a decoded chunk."""

    batch: pa.RecordBatch
    first_row: int
    """Row of the chunk at which they begin."""
    pinned_bytes: int
    """Bytes of memory that they keep."""

    def behind(self, row: int) -> KeptChunk:
        """Return the rows from one of them on."""
        return KeptChunk(self.batch.slice(row), self.first_row + row, self.pinned_bytes)


def pinned_bytes(batch: pa.RecordBatch, stored: pa.Buffer, *, is_plain: bool) -> int:
    """Return the bytes of memory that a chunk keeps, decoded from what was read.

    Columns of a plain chunk, which is not compressed, may be views: these keep all that was read
    together with it.
    """
    num_bytes = int(batch.get_total_buffer_size())
    begin, end = stored.address, stored.address + stored.size
    if not is_plain or not any(
        buffer and begin <= buffer.address < end
        for column in batch.columns
        for buffer in column.buffers()
    ):
        return num_bytes
    read = stored if stored.parent is None else stored.parent
    return max(num_bytes, int(read.size))


class ChunkCache:
    """Decoded rows that are left of chunks for the next reader of the same columns.

    ``max_bytes`` bounds the memory that they pin; readers decode the rest again. Chunks count until
    a reader takes them, so those taken and those kept for the next reader pin twice as much
    together. Rows of subpartitions from ``end`` on are not kept: no reader follows that needs them.
    """

    def __init__(self, max_bytes: int, end: int) -> None:
        self._max_bytes = max_bytes
        self._end = end
        self._kept: dict[tuple[int, int], KeptChunk] = {}
        self._num_bytes = 0

    def keep(self, source: ChunkReader, chunk: ChunkRead, rows: KeptChunk, end: int) -> None:
        """Keep the rows of a chunk behind those wanted of it, if there are any, and space.

        ``end`` is that of the subpartitions wanted.
        """
        if not rows.batch.num_rows or end >= self._end or self._num_bytes >= self._max_bytes:
            return
        if 2 * rows.batch.nbytes < rows.pinned_bytes:  # it would pin all of that for a few rows
            left = copied(rows.batch)
            rows = KeptChunk(left, rows.first_row, left.get_total_buffer_size())
        if self._num_bytes + rows.pinned_bytes <= self._max_bytes:
            self._num_bytes += rows.pinned_bytes
            self._kept[source.order, chunk.offset] = rows

    def take(self) -> dict[tuple[int, int], KeptChunk]:
        """Remove all, and return them by the order of their file and their offset in it."""
        kept, self._kept, self._num_bytes = self._kept, {}, 0
        return kept


class KeptAside:
    """Takes kept chunks off a plan, and hands them out between those that are read."""

    def __init__(self, kept: dict[tuple[int, int], KeptChunk]) -> None:
        self._kept = kept
        self._found: deque[tuple[ChunkReader, ChunkRead, KeptChunk]] = deque()

    def left_to_read(
        self, plan: Iterable[tuple[ChunkReader, Iterable[ChunkRead]]]
    ) -> Iterator[tuple[ChunkReader, Iterable[ChunkRead]]]:
        """Yield a plan without the chunks that are kept; one thread at a time may pull it."""
        for source, chunks in plan:
            yield source, self._left(source, chunks)

    def _left(self, source: ChunkReader, chunks: Iterable[ChunkRead]) -> Iterator[ChunkRead]:
        for chunk in chunks:
            kept = self._kept.pop((source.order, chunk.offset), None)
            if kept is not None and kept.first_row <= chunk.first_row:
                self._found.append((source, chunk, kept))
            else:
                yield chunk

    def before(
        self, position: tuple[int, int] | None = None
    ) -> Iterator[tuple[ChunkReader, ChunkRead, KeptChunk]]:
        """Yield the kept chunks of the plan as far as it was pulled.

        With the ``position`` of a chunk that was read, only those before it: the order of its file
        and its offset there.
        """
        while self._found:
            source, chunk, _ = self._found[0]
            if position is not None and (source.order, chunk.offset) > position:
                return
            yield self._found.popleft()
