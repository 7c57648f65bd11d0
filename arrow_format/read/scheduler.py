"""Carries out the plans of many readers: large reads in file order, in a bounded number of bytes.

Readers are served in the order: those that have nothing waiting first, then by file and offset.
A consumer that has nothing waiting reads for itself; meanwhile a thread reads ahead for all that
have begun, as long as there is room, and ends when there is not: nothing idle is left behind.
Source: FLIP-148, "I/O scheduler"; Flink's ``SortMergeResultPartitionReadScheduler``.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import ClosedError, CorruptShuffleError
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.open_files import DataFile, OpenFiles
from arrow_format.read.read_queue import ReadQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa

    from arrow_format.read.plan import ChunkRead, RangeRead

MAX_GAP_BYTES = 64 << 10
MAX_ROUND_BYTES = 8 << 20
"""Bytes read for a reader at a time: more gains nothing, and others wait."""

ADVICE = "Restore the file from a copy or write the shuffle again"


def next_to_serve(queues: Sequence[ReadQueue], average_bytes: int) -> ReadQueue | None:
    """Return the reader to read ahead for; None when there is none. Pure.

    Parameters
    ----------
    queues
        Readers, in any order.
    average_bytes
        What each may have waiting. One that has half of that left is full.
    """
    ready = [
        queue
        for queue in queues
        if queue.has_more
        and not queue.is_served
        and queue.next_bytes
        and 2 * queue.ready_bytes <= average_bytes
        and queue.ready_bytes + queue.next_bytes <= average_bytes
    ]
    return min(ready, key=lambda queue: (queue.ready_bytes > 0, queue.position), default=None)


class ReadScheduler:
    """Reads for all the readers of some files, in one bound of memory.

    Parameters
    ----------
    pool
        Bounds the bytes that were read and not handed over; one of its own when None.
    max_gap_bytes
        Chunks with at most this many unwanted bytes between them are read together.
    max_round_bytes
        Bytes read for a reader at a time at most, unless one chunk is larger.
    read_ahead
        Whether a thread reads ahead of the consumers. Without it they read for themselves.
    mapped
        Map data files instead of reading from them: for local files that nobody changes.
    """

    def __init__(
        self,
        pool: ReadBufferPool | None = None,
        *,
        max_gap_bytes: int = MAX_GAP_BYTES,
        max_round_bytes: int = MAX_ROUND_BYTES,
        read_ahead: bool = True,
        mapped: bool = False,
    ) -> None:
        self._pool = pool or ReadBufferPool()
        self._max_gap_bytes = max_gap_bytes
        self._max_round_bytes = max_round_bytes
        self._reads_ahead = read_ahead
        # One lock for both: a reader that memory management lets go of closes itself anywhere.
        self._files = OpenFiles(self._pool.changed, mapped=mapped)
        self._readers: list[ScheduledReader] = []
        self._thread: threading.Thread | None = None

    @property
    def pool(self) -> ReadBufferPool:
        """The bound of the bytes that wait."""
        return self._pool

    def add_reader(self, files: Iterable[tuple[DataFile, Iterable[ChunkRead]]]) -> ScheduledReader:
        """Let a reader in. Nothing is read before it asks for its first chunk.

        Parameters
        ----------
        files
            Data files in reading order, each with its chunks by offset; pulled as reading goes on,
            by this scheduler's threads, so that what it costs to plan is done ahead too.
        """
        reader = ScheduledReader(self, ReadQueue(files))
        with self._pool.changed:
            self._readers.append(reader)
            self._pool.join(reader)
        return reader

    def fetch(
        self, file: DataFile, chunks: Iterable[ChunkRead]
    ) -> Iterator[tuple[ChunkRead, pa.Buffer]]:
        """Yield the stored bytes of chunks of one data file.

        Parameters
        ----------
        file
            The data file.
        chunks
            By offset.

        Raises
        ------
        CorruptShuffleError
            The file is missing or too short.
        """
        with self.add_reader([(file, chunks)]) as reader:
            for _, chunk, stored in reader:
                yield chunk, stored

    def release(self) -> None:
        """Close all readers; those that are waited for raise :class:`ClosedError`."""
        with self._pool.changed:
            for reader in list(self._readers):
                reader.close()

    def _leave(self, reader: ScheduledReader) -> None:
        with self._pool.changed:
            if reader in self._readers:
                self._readers.remove(reader)
            self._pool.leave(reader)

    def _read_ahead(self) -> None:
        """Serve readers in turn until none needs it or there is no room."""
        served = True
        while True:
            with self._pool.changed:
                queues = {reader.queue: reader for reader in self._readers}
                queue = next_to_serve(list(queues), self._pool.average_bytes) if served else None
                if queue is None:
                    self._thread = None
                    return
                queue.is_served = True
            served = self._serve(queues[queue], is_starving=False)
            del queues, queue

    def _start_reading_ahead(self) -> None:
        """Start the thread unless it runs; called under the lock."""
        if self._reads_ahead and self._thread is None:
            thread = threading.Thread(
                target=self._read_ahead, name="arrow-shuffle-read-ahead", daemon=True
            )
            # Where there is no thread to be had, readers go on reading for themselves.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _serve(self, reader: ScheduledReader, *, is_starving: bool) -> bool:
        """Read once for a reader whose queue is marked as served; False when there was no room."""
        queue, pool = reader.queue, self._pool
        fetched: list[tuple[DataFile, RangeRead, pa.Buffer]] = []
        held = 0
        try:
            room = pool.average_bytes - (0 if is_starving else queue.ready_bytes)
            planned = queue.plan(
                min(self._max_round_bytes, room), max_gap_bytes=self._max_gap_bytes
            )
            num_bytes = sum(read.length for _, reads in planned for read in reads)
            if is_starving:
                pool.request(num_bytes, reclaim=True)
            elif not pool.try_request(num_bytes):
                queue.put_back(
                    [(f, chunk) for f, reads in planned for read in reads for chunk in read.chunks]
                )
                return False
            held = num_bytes
            reader.use([file for file, _ in planned])
            buffers = run_concurrently(
                [partial(self._read, file, reads) for file, reads in planned],
                planned[0][0].storage.max_requests,
            )
            fetched = [
                (file, read, buffer)
                for (file, reads), some in zip(planned, buffers, strict=True)
                for read, buffer in zip(reads, some, strict=True)
            ]
            queue.look_ahead()
        except StopIteration:
            queue.look_ahead()
        except Exception as error:
            queue.error = error
        except BaseException:
            # What was taken off the plan is not read: the reader must not go on without it.
            queue.error = ClosedError("reading was interrupted; read again")
            raise
        finally:
            with pool.changed:
                queue.is_served = False
                if not queue.is_closed:
                    for one in fetched:
                        queue.add(*one)
                        held -= one[1].length
                # What was requested and not read, or came for a reader that was closed meanwhile.
                if held:
                    pool.recycle(held)
                if not queue.has_more:
                    reader.use([])
                pool.changed.notify_all()
        return True

    def _read(self, file: DataFile, reads: Sequence[RangeRead]) -> list[pa.Buffer]:
        try:
            return self._files.read(file, [(read.offset, read.length) for read in reads])
        except CorruptShuffleError as error:
            first, last = reads[0].chunks[0].region, reads[-1].chunks[-1].region
            which = f"region {first}" if first == last else f"regions {first} to {last}"
            msg = f"{error}; wanted for {which} of {file.described}. {ADVICE}"
            raise type(error)(msg) from error


class ScheduledReader:
    """Chunks of one reader's plan, in its order; close it to stop early.

    Each item is the data file as it was given, the chunk, and its stored bytes: a view of what was
    read, and the consumer's from then on.
    """

    def __init__(self, scheduler: ReadScheduler, queue: ReadQueue) -> None:
        self.queue = queue
        self._scheduler = scheduler
        self._as_user = object()
        """Stands for it where a reference to it would keep it from being collected."""

    @property
    def position(self) -> tuple[int, int]:
        """See :class:`~arrow_format.read.buffer_pool.BufferHolder`."""
        return self.queue.position

    def give_back(self) -> bool:
        """See :class:`~arrow_format.read.buffer_pool.BufferHolder`."""
        num_bytes = self.queue.take_back()
        if num_bytes:
            self._scheduler.pool.recycle(num_bytes)
        return num_bytes > 0

    def use(self, files: Sequence[DataFile]) -> None:
        """Say which files are read next, if any; see :meth:`OpenFiles.use`."""
        self._scheduler._files.use(self._as_user, files)

    def __iter__(self) -> ScheduledReader:
        return self

    def __next__(self) -> tuple[DataFile, ChunkRead, pa.Buffer]:
        queue, scheduler = self.queue, self._scheduler
        while True:
            with scheduler.pool.changed:
                scheduler.pool.check()
                taken = queue.take()
                if taken is not None:
                    *item, done = taken
                    if done:
                        scheduler.pool.recycle(done)
                        if next_to_serve([queue], scheduler.pool.average_bytes):
                            scheduler._start_reading_ahead()
                    return tuple(item)
                if queue.is_closed:
                    msg = "the reader was closed while it was read from"
                    raise ClosedError(msg)
                if queue.is_served:
                    scheduler.pool.changed.wait()
                    continue
                if not queue.has_more:
                    if queue.error is not None:
                        raise queue.error
                    raise StopIteration
                queue.is_served = True
            scheduler._serve(self, is_starving=True)

    def close(self) -> None:
        """Give back everything; does nothing the second time."""
        pool = self._scheduler.pool
        with pool.changed:
            if self.queue.is_closed:
                return
            self.queue.is_closed = True
            num_bytes = self.queue.clear()
            if num_bytes:
                pool.recycle(num_bytes)
            if not self.queue.is_served:
                self.use([])
            self._scheduler._leave(self)
            pool.changed.notify_all()

    def __enter__(self) -> ScheduledReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
