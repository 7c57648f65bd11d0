"""One reader's queue in a scheduler: what it will read, and what was read and waits for it.

The scheduler's lock (that of its pool) is held around everything here but :meth:`ReadQueue.plan`
and :meth:`ReadQueue.look_ahead`, which only the one thread that serves the queue calls.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import pyarrow as pa

from arrow_format.read.chunk_plan import ChunkRead, RangeRead, bytes_to_read, merge_reads
from arrow_format.read.open_files import MAX_OPEN_FILES, DataFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


FileT = TypeVar("FileT", bound=DataFile)
"""The data files of a reader, which it gets back with their chunks."""

START = (-1, -1)
"""Position of a queue that was never served: before all others."""
END = (1 << 62, 0)
"""Position of a queue that has nothing left to read."""


def joined_pieces(pieces: Sequence[pa.Buffer]) -> pa.Buffer:
    """Return the pieces of a chunk as one buffer: a copy where there are several."""
    return pieces[0] if len(pieces) == 1 else pa.py_buffer(b"".join(pieces))


@dataclass(slots=True)
class FetchedRead(Generic[FileT]):
    """What was read together, and how many of its chunks were delivered."""

    file: FileT
    read: RangeRead
    buffers: Sequence[pa.Buffer]
    """Of the ranges of the read."""
    num_delivered: int = 0
    _range: int = 0
    """Of these, the one with the last chunk that was delivered."""

    def next_chunk(self) -> tuple[ChunkRead, pa.Buffer]:
        """Deliver the next chunk: a view of what was read, a copy where it has several pieces."""
        chunk = self.read.chunks[self.num_delivered]
        self.num_delivered += 1
        pieces = []
        for offset, length in chunk.ranges:
            while offset >= sum(self.read.ranges[self._range]):
                self._range += 1
            start, _ = self.read.ranges[self._range]
            pieces.append(self.buffers[self._range].slice(offset - start, length))
        return chunk, joined_pieces(pieces)

    @property
    def is_empty(self) -> bool:
        """Whether all chunks were delivered."""
        return self.num_delivered == len(self.read.chunks)


class ReadQueue(Generic[FileT]):
    """What one reader reads: a plan that shrinks from the front, and fetched ranges.

    ``files`` are data files in reading order, each with its chunks by offset. Whichever thread
    serves the queue pulls them as reading goes on.
    """

    def __init__(self, files: Iterable[tuple[FileT, Iterable[ChunkRead]]]) -> None:
        self._plan: Iterator[tuple[FileT, ChunkRead]] = (
            (file, chunk) for file, chunks in files for chunk in chunks
        )
        self._ahead: deque[tuple[FileT, ChunkRead]] = deque()
        """Pulled from the plan, or reclaimed from what was fetched."""
        self._fetched: deque[FetchedRead[FileT]] = deque()
        self.ready_bytes = 0
        """Bytes of fetched ranges, including those delivered in part."""
        self.position = START
        self.next_bytes = 0
        """Length of the chunk to read next."""
        self.is_served = False
        """Whether a thread plans or reads for it right now."""
        self.is_closed = False
        self.error: Exception | None = None
        """Raised once what was fetched before it is delivered."""

    @property
    def has_more(self) -> bool:
        """Whether there is anything left to read."""
        return self.error is None and self.position != END and not self.is_closed

    def plan(
        self, max_bytes: int, *, max_gap_bytes: int | None = None
    ) -> list[tuple[FileT, list[RangeRead]]]:
        """Take the next reads off the plan, of a few files: handing over each alone costs more.

        Together they have at most ``max_bytes``, unless the first chunk has more. What has at most
        ``max_gap_bytes`` unwanted bytes between is read together; those of the files' storage when
        None. Raises StopIteration when no read is left.
        """

        def gap_bytes(file: FileT) -> int:
            return file.storage.gap_bytes if max_gap_bytes is None else max_gap_bytes

        file, chunk = self._pull()
        taken: list[tuple[FileT, list[ChunkRead]]] = [(file, [])]
        num_bytes, end = bytes_to_read(chunk, chunk.offset, gap_bytes(file))
        while True:
            taken[-1][1].append(chunk)
            try:
                next_file, chunk = self._pull()
            except StopIteration:
                break
            is_same = next_file is file
            more, end = bytes_to_read(chunk, end if is_same else chunk.offset, gap_bytes(next_file))
            num_bytes += more
            is_full = num_bytes > max_bytes
            max_files = max(file.storage.max_requests, MAX_OPEN_FILES)
            if is_full or not (is_same or len(taken) < max_files):
                self._ahead.appendleft((next_file, chunk))
                break
            if not is_same:
                taken.append((next_file, []))
            file = next_file
        return [
            (
                file,
                list(merge_reads(chunks, max_gap_bytes=gap_bytes(file), max_read_bytes=max_bytes)),
            )
            for file, chunks in taken
        ]

    def look_ahead(self) -> None:
        """Set position and length of the next read."""
        try:
            self.put_back([self._pull()])
        except StopIteration:
            self.position, self.next_bytes = END, 0

    def _pull(self) -> tuple[FileT, ChunkRead]:
        return self._ahead.popleft() if self._ahead else next(self._plan)

    def put_back(self, chunks: Sequence[tuple[FileT, ChunkRead]]) -> None:
        """Plan chunks again that were taken last and not delivered."""
        self._ahead.extendleft(chunks[::-1])
        if self._ahead:
            file, chunk = self._ahead[0]
            self.position, self.next_bytes = (file.order, chunk.offset), chunk.num_bytes

    def add(self, file: FileT, read: RangeRead, buffers: Sequence[pa.Buffer]) -> None:
        """Buffer the ranges of a read for the consumer."""
        self._fetched.append(FetchedRead(file, read, buffers))
        self.ready_bytes += read.num_bytes

    def take(self) -> tuple[tuple[FileT, ChunkRead, pa.Buffer], int] | None:
        """Deliver the next chunk with its file and stored bytes, if one is buffered.

        The number is the bytes to recycle: those of a range with its last chunk, otherwise 0.
        """
        if not self._fetched:
            return None
        first = self._fetched[0]
        chunk, stored = first.next_chunk()
        num_done = 0
        if first.is_empty:
            self._fetched.popleft()
            num_done = first.read.num_bytes
            self.ready_bytes -= num_done
        return (first.file, chunk, stored), num_done

    def take_back(self) -> int:
        """Drop the range that was fetched last, to be read again; return its bytes, or 0."""
        # The thread that serves a queue uses its plan without the lock.
        if not self._fetched or self.is_served:
            return 0
        last = self._fetched.pop()
        self.put_back([(last.file, chunk) for chunk in last.read.chunks[last.num_delivered :]])
        self.ready_bytes -= last.read.num_bytes
        return last.read.num_bytes

    def clear(self) -> int:
        """Drop everything; return the bytes that were buffered."""
        num_bytes, self.ready_bytes = self.ready_bytes, 0
        self._fetched.clear()
        self._ahead.clear()
        self._plan = iter(())
        self.position = END
        return num_bytes
