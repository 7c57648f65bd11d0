"""One reader's side of a scheduler: what it will read, and what was read and waits for it.

The scheduler's lock (that of its pool) is held around everything here but :meth:`ReadQueue.plan`,
which only the thread that serves the queue calls, one at a time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.read.plan import ChunkRead, RangeRead, merge_reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.read.open_files import DataFile

START = (-1, -1)
"""Position of a queue that was never served: before all others."""
END = (1 << 62, 0)
"""Position of a queue that has nothing left to read."""


@dataclass(slots=True)
class FetchedRead:
    """A range that was read, and the chunks of it that still wait."""

    file: DataFile
    read: RangeRead
    buffer: pa.Buffer
    handed_over: int = 0
    """Chunks of the range that are the consumer's now."""

    def next_chunk(self) -> tuple[ChunkRead, pa.Buffer]:
        """Hand over the next chunk: a view of the range's buffer."""
        chunk = self.read.chunks[self.handed_over]
        self.handed_over += 1
        return chunk, self.buffer.slice(chunk.offset - self.read.offset, chunk.length)

    @property
    def is_empty(self) -> bool:
        """Whether all chunks were handed over."""
        return self.handed_over == len(self.read.chunks)


class ReadQueue:
    """What one reader reads: a plan that shrinks from the front, and fetched ranges.

    Parameters
    ----------
    files
        Data files in reading order, each with its chunks by offset. It is pulled as reading goes
        on, by whichever thread serves the queue.
    """

    def __init__(self, files: Iterable[tuple[DataFile, Iterable[ChunkRead]]]) -> None:
        self._plan: Iterator[tuple[DataFile, ChunkRead]] = (
            (file, chunk) for file, chunks in files for chunk in chunks
        )
        self._ahead: deque[tuple[DataFile, ChunkRead]] = deque()
        """Pulled from the plan, or taken back from what was fetched."""
        self._fetched: deque[FetchedRead] = deque()
        self.ready_bytes = 0
        """Bytes of fetched ranges, those handed over in part included."""
        self.position = START
        self.next_bytes = 0
        """Length of the chunk to read next."""
        self.is_served = False
        """Whether a thread plans or reads for it right now."""
        self.is_closed = False
        self.error: Exception | None = None
        """Why there is no more after what was fetched."""

    @property
    def has_more(self) -> bool:
        """Whether there is anything left to read."""
        return self.error is None and self.position != END and not self.is_closed

    def plan(self, max_bytes: int, *, max_gap_bytes: int) -> list[tuple[DataFile, list[RangeRead]]]:
        """Take the next reads off the plan: of one file, or of a few where each costs a round trip.

        Parameters
        ----------
        max_bytes
            Bytes they take together at most, unless the first chunk is larger.
        max_gap_bytes
            Chunks with at most this many unwanted bytes between them are read together.

        Raises
        ------
        StopIteration
            There are none.
        """
        file, chunk = self._pull()
        taken: list[tuple[DataFile, list[ChunkRead]]] = [(file, [])]
        num_bytes = 0
        while True:
            taken[-1][1].append(chunk)
            end = chunk.offset + chunk.length
            num_bytes += chunk.length
            try:
                next_file, chunk = self._pull()
            except StopIteration:
                break
            same = next_file is file
            gap = chunk.offset - end if same else 0
            num_bytes += gap if 0 < gap <= max_gap_bytes else 0
            is_full = num_bytes + chunk.length > max_bytes
            if is_full or not (same or len(taken) < file.storage.max_requests):
                self._ahead.appendleft((next_file, chunk))
                break
            if not same:
                taken.append((next_file, []))
            file = next_file
        return [
            (file, list(merge_reads(some, max_gap_bytes=max_gap_bytes, max_read_bytes=max_bytes)))
            for file, some in taken
        ]

    def look_ahead(self) -> None:
        """Find out where the next read is."""
        try:
            file, chunk = self._pull()
        except StopIteration:
            self.position, self.next_bytes = END, 0
        else:
            self._ahead.appendleft((file, chunk))
            self.position, self.next_bytes = (file.order, chunk.offset), chunk.length

    def _pull(self) -> tuple[DataFile, ChunkRead]:
        return self._ahead.popleft() if self._ahead else next(self._plan)

    def put_back(self, chunks: Sequence[tuple[DataFile, ChunkRead]]) -> None:
        """Plan chunks again that were taken last and not handed over."""
        self._ahead.extendleft(chunks[::-1])
        if self._ahead:
            file, chunk = self._ahead[0]
            self.position, self.next_bytes = (file.order, chunk.offset), chunk.length

    def add(self, file: DataFile, read: RangeRead, buffer: pa.Buffer) -> None:
        """Let a range that was read wait for the consumer."""
        self._fetched.append(FetchedRead(file, read, buffer))
        self.ready_bytes += read.length

    def take(self) -> tuple[DataFile, ChunkRead, pa.Buffer, int] | None:
        """Hand over the next chunk, if one waits.

        Returns
        -------
        tuple
            The file, the chunk, its stored bytes, and the bytes that are to be recycled: those of
            a range with its last chunk, otherwise 0.
        """
        if not self._fetched:
            return None
        first = self._fetched[0]
        chunk, stored = first.next_chunk()
        done = 0
        if first.is_empty:
            self._fetched.popleft()
            done = first.read.length
            self.ready_bytes -= done
        return first.file, chunk, stored, done

    def take_back(self) -> int:
        """Let go of the range that was fetched last, to be read again; return its bytes, or 0."""
        # A queue that is being served looks at its plan without the lock.
        if not self._fetched or self.is_served:
            return 0
        last = self._fetched.pop()
        self.put_back([(last.file, chunk) for chunk in last.read.chunks[last.handed_over :]])
        self.ready_bytes -= last.read.length
        return last.read.length

    def clear(self) -> int:
        """Let go of everything; return the bytes that waited."""
        num_bytes, self.ready_bytes = self.ready_bytes, 0
        self._fetched.clear()
        self._ahead.clear()
        self._plan = iter(())
        self.position = END
        return num_bytes
