"""Carries out a read plan: large reads in file order, a bounded number of bytes at a time.

Source: FLIP-148, "I/O scheduler".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError
from arrow_format.read_plan import ChunkRead, RangeRead, merge_reads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from arrow_format.storage import Storage


class ReadScheduler:
    """Reads the chunks of a plan in the order of the plan.

    Parameters
    ----------
    storage
        Where the files are.
    max_bytes
        Bytes fetched ahead of the consumer at most, unless one chunk is larger.
    max_gap_bytes
        Chunks with at most this many unwanted bytes between them are read together.
    """

    def __init__(
        self, storage: Storage, *, max_bytes: int = 8 << 20, max_gap_bytes: int = 64 << 10
    ) -> None:
        self._storage = storage
        self._max_bytes = max_bytes
        self._max_gap_bytes = max_gap_bytes

    def fetch(
        self, path: str, chunks: Iterable[ChunkRead]
    ) -> Iterator[tuple[ChunkRead, pa.Buffer]]:
        """Yield the stored bytes of each chunk of one data file.

        Parameters
        ----------
        path
            The data file.
        chunks
            By offset.

        Raises
        ------
        CorruptShuffleError
            The file is missing or too short.
        """
        for reads in self._rounds(chunks):
            try:
                buffers = self._storage.get_ranges(path, [(r.offset, r.length) for r in reads])
            except CorruptShuffleError as error:
                first, last = reads[0].chunks[0].region, reads[-1].chunks[-1].region
                which = f"region {first}" if first == last else f"regions {first} to {last}"
                msg = f"{error}; wanted for {which}"
                raise type(error)(msg) from error
            for number, read in enumerate(reads):
                buffer = buffers[number]
                buffers[number] = None  # the consumer's views are what keeps it alive
                for chunk in read.chunks:
                    yield chunk, buffer.slice(chunk.offset - read.offset, chunk.length)

    def _rounds(self, chunks: Iterable[ChunkRead]) -> Iterator[list[RangeRead]]:
        """Yield reads that are fetched together: one open of the file, at most ``max_bytes``."""
        held: list[RangeRead] = []
        held_bytes = 0
        for read in merge_reads(
            chunks, max_gap_bytes=self._max_gap_bytes, max_read_bytes=self._max_bytes
        ):
            if held and held_bytes + read.length > self._max_bytes:
                yield held
                held, held_bytes = [], 0
            held.append(read)
            held_bytes += read.length
        if held:
            yield held
