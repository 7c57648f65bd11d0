"""Chunks that two groups of subpartitions share: decoded for the first, kept for the second.

A group ends inside a chunk of nearly every region. Of wide tables, whose chunks are large and whose
columns are many, decoding those again would be half of the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

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


class KeptRead(NamedTuple):
    """Rows wanted from one chunk, which an earlier reader left decoded."""

    source: ChunkReader
    chunk: ChunkRead
    decoded: KeptChunk


class KeptAside:
    """Chunks that an earlier reader left decoded.

    They are not fetched again, and come in their place in the plan: each is said of the next chunk
    that is fetched.
    """

    def __init__(self, kept: dict[tuple[int, int], KeptChunk]) -> None:
        self._kept = kept
        self.left: list[KeptRead] = []
        """Those of which no chunk is said yet; once all is fetched, the last of the plan."""

    def to_fetch(
        self, plan: Iterable[tuple[ChunkReader, Iterable[ChunkRead]]]
    ) -> Iterable[tuple[ChunkReader, Iterable[ChunkRead]]]:
        """Return the chunks of a plan to fetch; one thread at a time may pull them."""
        if not self._kept:
            return plan
        return ((source, self._of_file(source, chunks)) for source, chunks in plan)

    def _of_file(self, source: ChunkReader, chunks: Iterable[ChunkRead]) -> Iterator[ChunkRead]:
        for chunk in chunks:
            kept = self._kept.pop((source.order, chunk.offset), None)
            if kept is not None and kept.first_row <= chunk.first_row:
                self.left.append(KeptRead(source, chunk, kept))
                continue
            if self.left:
                chunk = chunk._replace(before=tuple(self.left))
                self.left.clear()
            yield chunk
