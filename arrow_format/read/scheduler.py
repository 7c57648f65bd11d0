"""Carries out the plans of many readers: large reads in file order, in a bounded number of bytes.

Readers with no buffered chunk are served first, then by file and offset. A starved reader reads
synchronously; a background thread prefetches for the others while the pool has free bytes, and
exits when it has none.
Source: FLIP-148, "I/O scheduler"; Flink's ``SortMergeResultPartitionReadScheduler``.
"""

from __future__ import annotations

import contextlib
import threading
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Generic

from arrow_format.concurrency import run_concurrently
from arrow_format.errors import ClosedError, CorruptShuffleError
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.open_files import OpenFiles
from arrow_format.read.read_queue import FileT, ReadQueue, joined_pieces

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    import pyarrow as pa

    from arrow_format.read.chunk_plan import ChunkRead, RangeRead
    from arrow_format.read.open_files import DataFile

MAX_ROUND_BYTES = 8 << 20
"""Bytes read for a reader at a time: more gains nothing and delays the others."""

TOGETHER_BYTES = 512 << 10
"""Bytes that are read in one call where nothing is read ahead: the processor's cache keeps them."""

ADVICE = "Restore the file from a copy or write the shuffle again"


def next_to_serve(queues: Sequence[ReadQueue[Any]], average_bytes: int) -> ReadQueue[Any] | None:
    """Return the queue to read ahead for, or None. Pure.

    Each may buffer ``average_bytes``; one that has more than half of that buffered is full.
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
    """Reads for many readers of some files within one memory budget.

    Parameters
    ----------
    pool
        Bounds the bytes that were read and not delivered; a pool of its own when None.
    max_gap_bytes
        What has at most so many unwanted bytes between is read together; those of the files'
        storage when None.
    max_round_bytes
        Limit of the bytes read for a reader at a time, unless one chunk is larger.
    read_ahead
        Whether a thread reads ahead of the consumers. Otherwise each reads synchronously.
    mapped
        Map data files instead of reading from them: for local files that do not change.
    """

    def __init__(
        self,
        pool: ReadBufferPool | None = None,
        *,
        max_gap_bytes: int | None = None,
        max_round_bytes: int = MAX_ROUND_BYTES,
        read_ahead: bool = True,
        mapped: bool = False,
    ) -> None:
        self._pool = pool or ReadBufferPool()
        self._max_gap_bytes = max_gap_bytes
        self._max_round_bytes = max_round_bytes
        self._reads_ahead = read_ahead
        # One reentrant lock for both: a reader that is garbage closes itself in any thread.
        self._files = OpenFiles(self._pool.changed, mapped=mapped)
        self._mapped = mapped
        self._readers: list[ScheduledReader[Any]] = []
        self._thread: threading.Thread | None = None

    @property
    def pool(self) -> ReadBufferPool:
        """The memory budget."""
        return self._pool

    def add_reader(
        self, files: Iterable[tuple[FileT, Iterable[ChunkRead]]]
    ) -> ScheduledReader[FileT]:
        """Add a reader. Nothing is read before it asks for its first chunk.

        Parameters
        ----------
        files
            Data files in reading order, each with its chunks by offset. The scheduler's threads
            pull them as reading goes on, so that planning is done ahead too.
        """
        reader = ScheduledReader(self, ReadQueue(files))
        with self._pool.changed:
            self._readers.append(reader)
            self._pool.join(reader)
        return reader

    def fetch(
        self, file: DataFile, chunks: Iterable[ChunkRead]
    ) -> Iterator[tuple[ChunkRead, pa.Buffer]]:
        """Yield the stored bytes of chunks of one data file, in their order.

        Parameters
        ----------
        file
            The data file.
        chunks
            Chunks to read, by offset.

        Raises
        ------
        CorruptShuffleError
            The file is missing or too short.
        """
        with self.add_reader([(file, chunks)]) as reader:
            for _, chunk, stored in reader:
                yield chunk, stored

    @contextlib.contextmanager
    def reading(
        self, files: Iterable[tuple[FileT, Iterable[ChunkRead]]]
    ) -> Iterator[Iterable[tuple[FileT, ChunkRead, pa.Buffer]]]:
        """Read the chunks of files as they come: local ones :meth:`straight`, others ahead."""
        each = iter(files)
        first = [*islice(each, 1)]
        each = chain(first, each)
        if first and first[0][0].storage.max_requests > 1:
            with self.add_reader(each) as reader:
                yield reader
        else:
            with contextlib.closing(self.straight(each)) as chunks:
                yield chunks

    def straight(
        self, files: Iterable[tuple[FileT, Iterable[ChunkRead]]]
    ) -> Generator[tuple[FileT, ChunkRead, pa.Buffer]]:
        """Yield the chunks of files as :meth:`add_reader` does, each read when it is asked for.

        For local files that are read from one end to the other, where the system reads ahead: it
        takes no thread, and no bytes of the pool, since it has :data:`TOGETHER_BYTES` at a time.
        """
        for file, chunks in files:
            opened = None
            try:
                for together in _in_runs(chunks):
                    try:
                        if opened is None:
                            opened = file.storage.open_reader(file.path, mapped=self._mapped)
                        read = opened.get_ranges([at for chunk in together for at in chunk.ranges])
                    except CorruptShuffleError as error:
                        raise _wanted_for(error, file, together) from error
                    buffers = iter(read)
                    for chunk in together:
                        pieces = [*islice(buffers, len(chunk.ranges))]
                        yield file, chunk, joined_pieces(pieces)
            finally:
                if opened is not None:
                    opened.close()

    def release(self) -> None:
        """Close all readers; consumers that wait for a chunk get a :class:`ClosedError`."""
        with self._pool.changed:
            for reader in list(self._readers):
                reader.close()

    def _leave(self, reader: ScheduledReader[Any]) -> None:
        with self._pool.changed:
            if reader in self._readers:
                self._readers.remove(reader)
            self._pool.leave(reader)

    def _read_ahead(self) -> None:
        """Serve readers in turn until none needs it or the pool is full."""
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
            # Where no thread can be started, readers go on reading synchronously.
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread

    def _serve(self, reader: ScheduledReader[FileT], *, is_starving: bool) -> bool:
        """Read once for a reader whose queue is marked as served; False when the pool is full."""
        queue, pool = reader.queue, self._pool
        fetched: list[tuple[FileT, RangeRead, list[pa.Buffer]]] = []
        held_bytes = 0
        try:
            free_bytes = pool.average_bytes - (0 if is_starving else queue.ready_bytes)
            planned = queue.plan(
                min(self._max_round_bytes, free_bytes), max_gap_bytes=self._max_gap_bytes
            )
            num_bytes = sum(read.num_bytes for _, reads in planned for read in reads)
            if is_starving:
                pool.request(num_bytes, reclaim=True)
            elif not pool.try_request(num_bytes):
                queue.put_back(
                    [(f, chunk) for f, reads in planned for read in reads for chunk in read.chunks]
                )
                return False
            held_bytes = num_bytes
            reader.use([file for file, _ in planned])
            buffers = run_concurrently(
                [partial(self._read, file, reads) for file, reads in planned],
                planned[0][0].storage.max_requests,
            )
            fetched = [
                (file, read, list(islice(of_file, len(read.ranges))))
                for (file, reads), of_file in zip(planned, map(iter, buffers), strict=True)
                for read in reads
            ]
            queue.look_ahead()
        except StopIteration:
            queue.look_ahead()
        except Exception as error:
            queue.error = error
        except BaseException:
            # What was taken off the plan was not read: the reader must not skip it.
            queue.error = ClosedError("reading was interrupted; read again")
            raise
        finally:
            with pool.changed:
                queue.is_served = False
                if not queue.is_closed:
                    for file, read, of_read in fetched:
                        queue.add(file, read, of_read)
                        held_bytes -= read.num_bytes
                # Requested and not read, or read for a reader that was closed meanwhile.
                if held_bytes:
                    pool.recycle(held_bytes)
                if not queue.has_more:
                    reader.use([])
                pool.changed.notify_all()
        return True

    def _read(self, file: DataFile, reads: Sequence[RangeRead]) -> list[pa.Buffer]:
        try:
            ranges = [place for read in reads for place in read.ranges]
            return self._files.read(file, ranges) if ranges else []
        except CorruptShuffleError as error:
            raise _wanted_for(
                error, file, [chunk for read in reads for chunk in read.chunks]
            ) from error


def _in_runs(chunks: Iterable[ChunkRead]) -> Iterator[list[ChunkRead]]:
    """Yield chunks in runs of at most :data:`TOGETHER_BYTES` of what is wanted, one at least."""
    run: list[ChunkRead] = []
    num_bytes = 0
    for chunk in chunks:
        num_bytes += chunk.num_bytes
        if run and num_bytes > TOGETHER_BYTES:
            yield run
            run, num_bytes = [], chunk.num_bytes
        run.append(chunk)
    if run:
        yield run


def _wanted_for(
    error: CorruptShuffleError, file: DataFile, chunks: Sequence[ChunkRead]
) -> CorruptShuffleError:
    first, last = chunks[0].region, chunks[-1].region
    which = f"region {first}" if first == last else f"regions {first} to {last}"
    return type(error)(f"{error}; wanted for {which} of {file.described}. {ADVICE}")


class ScheduledReader(Generic[FileT]):
    """Yields the chunks of one reader's plan, in its order; close it to stop early.

    Each item is the data file as it was given, the chunk, and its stored bytes: a view of what was
    read, which belongs to the consumer from then on.
    """

    def __init__(self, scheduler: ReadScheduler, queue: ReadQueue[FileT]) -> None:
        self.queue = queue
        self._scheduler = scheduler
        self._as_user = object()
        """Represents it to the open files, which would otherwise keep it alive."""

    @property
    def position(self) -> tuple[int, int]:
        """Next read, for the pool."""
        return self.queue.position

    def give_back(self) -> bool:
        """Drop the last range that was fetched, for the pool; False when there is none."""
        num_bytes = self.queue.take_back()
        if num_bytes:
            self._scheduler.pool.recycle(num_bytes)
        return num_bytes > 0

    def use(self, files: Sequence[DataFile]) -> None:
        """Set the files that are read next; see :meth:`OpenFiles.use`."""
        self._scheduler._files.use(self._as_user, files)

    def __iter__(self) -> ScheduledReader[FileT]:
        return self

    def __next__(self) -> tuple[FileT, ChunkRead, pa.Buffer]:
        queue, scheduler = self.queue, self._scheduler
        while True:
            with scheduler.pool.changed:
                scheduler.pool.check()
                taken = queue.take()
                if taken is not None:
                    item, num_done = taken
                    if num_done:
                        scheduler.pool.recycle(num_done)
                        if next_to_serve([queue], scheduler.pool.average_bytes):
                            scheduler._start_reading_ahead()
                    return item
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
        """Give all bytes back; does nothing the second time."""
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

    def __enter__(self) -> ScheduledReader[FileT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
