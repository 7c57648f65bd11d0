"""The chunks of one partitioned file, read by a plan and verified, as stored bytes or as rows."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from arrow_format.arrays.batches import copied
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_codec import EncodedChunk
from arrow_format.model import Encoding
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.plan import ChunkRead, plan_chunks
from arrow_format.read.scheduler import ADVICE, ReadScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from arrow_format.format.chunk_codec import ChunkDecoder
    from arrow_format.model import Int32Array
    from arrow_format.read.partitioned_file import PartitionedFileReader, UnfinishedFile
    from arrow_format.storage.open import Storage

READ_AHEAD_BYTES = 8 << 20


class ChunkReader:
    """Reads chunks of one data file; none is given out that differs from what was written.

    Parameters
    ----------
    index
        The verified index of the file, or what its writer knows of it before there is one.
    decoder
        Of the schema that rows are read with: the file's own, or that widened.
    read_ahead_bytes
        Bytes fetched ahead of the consumer at most, unless one chunk is larger.
    wanted
        What is read for, such as ``subpartitions 3 to 5``; it is told with damage.
    order
        The file's place in reading order, for a :class:`ReadScheduler` it is given to.
    """

    def __init__(
        self,
        index: PartitionedFileReader | UnfinishedFile,
        decoder: ChunkDecoder,
        *,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        wanted: str = "",
        order: int = 0,
    ) -> None:
        self.order = order
        self.index = index
        """The verified index of the file."""
        self._wanted = wanted
        self._decoder = decoder
        self._read_ahead_bytes = read_ahead_bytes

    @property
    def storage(self) -> Storage:
        """Where the data file is."""
        return self.index.storage

    @property
    def path(self) -> str:
        """The data file."""
        return self.index.file.data_path

    @property
    def described(self) -> str:
        """Map task, attempt and what is read for."""
        return f"{self._task()}, {self._wanted}" if self._wanted else self._task()

    def stored(self, first_region: int, end_region: int) -> Iterator[EncodedChunk]:
        """All chunks of adjacent regions as they are stored, in file order.

        Raises
        ------
        CorruptShuffleError
            A chunk is not there whole, or its CRC is not the index's.
        FormatVersionError
            Its encoding is not known to this version.
        """
        for chunk, stored in self._fetch(self._plan(first_region, end_region)):
            table = self.index.regions[chunk.region].chunks
            encoding = int(table.encoding[chunk.chunk])
            if encoding == Encoding.IPC:
                # To copy it into an Arrow file Arrow takes it apart, and trusts what it says.
                self.decode(chunk, stored)
            elif zlib.crc32(stored) != int(table.crc32[chunk.chunk]):
                msg = f"{self._where(chunk)}: its CRC-32 is not that of the index. {ADVICE}"
                raise CorruptShuffleError(msg)
            if encoding not in [*Encoding]:
                msg = f"{self._where(chunk)}: encoding {encoding} is not known; use a newer version"
                raise FormatVersionError(msg)
            raw_length = int(table.raw_length[chunk.chunk])
            yield EncodedChunk(stored, raw_length, Encoding(encoding))

    def decoded(self, plan: Iterable[ChunkRead]) -> Iterator[tuple[ChunkRead, pa.RecordBatch]]:
        """Chunks of a plan as record batches, whole.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            As :meth:`stored`; or what is inside is not as the index says.
        """
        for chunk, stored in self._fetch(plan):
            yield chunk, self.decode(chunk, stored)

    def decode(self, chunk: ChunkRead, stored: pa.Buffer) -> pa.RecordBatch:
        """Return the rows of a chunk, whole, from its stored bytes.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            They are not what was written; or what is inside is not as the index says.
        """
        region = self.index.regions[chunk.region]
        table = region.chunks
        start, stop = region.chunk_rows(chunk.chunk)
        try:
            return self._decoder.decode(
                stored,
                encoding=int(table.encoding[chunk.chunk]),
                raw_length=int(table.raw_length[chunk.chunk]),
                crc32=int(table.crc32[chunk.chunk]),
                num_rows=stop - start,
            )
        except (CorruptShuffleError, FormatVersionError) as error:
            msg = f"{self._where(chunk)}: {error}. {ADVICE}"
            raise type(error)(msg) from error

    def rows(
        self, first_region: int, end_region: int, first: int, end: int
    ) -> Iterator[tuple[pa.RecordBatch, Int32Array]]:
        """Rows of the subpartitions ``[first, end)`` from adjacent unicast regions.

        Yields
        ------
        tuple
            Rows of one chunk, in the order of the file, with the subpartition of each.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            As :meth:`decoded`.
        """
        n = self.index.metadata.num_subpartitions
        for chunk, batch in self.decoded(self._plan(first_region, end_region, first, end)):
            region = self.index.regions[chunk.region]
            start = int(region.chunks.first_row[chunk.chunk])
            lo, hi = chunk.first_row, chunk.end_row
            ids = region.subpartitions_of_rows(start + lo, start + hi, n)
            if 2 * (hi - lo) < batch.num_rows:
                # A small part must not keep the whole chunk in memory.
                yield copied(batch.slice(lo, hi - lo)), ids
            else:
                yield batch.slice(lo, hi - lo), ids

    def check(self, *, decode: bool = True) -> None:
        """Read the data file whole, every chunk and what lies between, and check all of it.

        Parameters
        ----------
        decode
            Whether chunks are decoded as well. Those that were copied from a sound file need not
            be: their CRC says that they are the same.

        Raises
        ------
        CorruptShuffleError, FormatVersionError
            As :meth:`rows`; or the file's length or the bytes between its chunks differ.
        """
        index = self.index
        path, data_bytes = index.file.data_path, index.file.data_bytes
        stat = index.storage.stat(path)
        if stat is None or stat.num_bytes != data_bytes:
            found = "is not there" if stat is None else f"has {stat.num_bytes} bytes"
            msg = f"{self._file()}: {found}, expected {data_bytes} bytes. {ADVICE}"
            raise CorruptShuffleError(msg)
        end = len(index.regions)
        chunks: Iterator[object] = (
            self.decoded(self._plan(0, end)) if decode else self.stored(0, end)
        )
        for _ in chunks:
            pass
        crc32 = 0
        for between in index.storage.get_ranges(path, list(_gaps(index))):
            crc32 = zlib.crc32(between, crc32)
        if crc32 != index.metadata.frame_crc32:
            msg = (
                f"{self._file()}: header, padding or footer differ from what was written. {ADVICE}"
            )
            raise CorruptShuffleError(msg)

    def _plan(
        self, first_region: int, end_region: int, first: int = 0, end: int | None = None
    ) -> Iterator[ChunkRead]:
        n = self.index.metadata.num_subpartitions
        regions = self.index.regions[first_region:end_region]
        end = n if end is None else end
        return plan_chunks(regions, first, end, n, first_region=first_region)

    def _fetch(self, plan: Iterable[ChunkRead]) -> Iterator[tuple[ChunkRead, pa.Buffer]]:
        pool = ReadBufferPool(self._read_ahead_bytes)
        yield from ReadScheduler(pool, read_ahead=False).fetch(self, plan)

    def _task(self) -> str:
        return f"map task {self.index.metadata.map_task}, attempt {self.index.metadata.attempt}"

    def _file(self) -> str:
        return f"{self.index.storage.root}/{self.index.file.data_path} ({self._task()})"

    def _where(self, chunk: ChunkRead) -> str:
        where = f"{self._file()}, region {chunk.region}, chunk {chunk.chunk} at byte {chunk.offset}"
        return f"{where}, wanted for {self._wanted}" if self._wanted else where


def _gaps(index: PartitionedFileReader | UnfinishedFile) -> Iterator[tuple[int, int]]:
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
