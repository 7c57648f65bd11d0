"""What a codec is: how rows become the bytes of chunks, and how these are read again.

Each has a module of its own, with what encodes beside what decodes; :mod:`.codecs` lists them.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from arrow_format.errors import CorruptShuffleError
from arrow_format.format.chunk_table import ChunkFrames

if TYPE_CHECKING:
    from arrow_format.concurrency import OrderedMap
    from arrow_format.format.chunk_table import ChunkPlaces
    from arrow_format.options import Codec as CodecName


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """One chunk as it will be stored."""

    payload: pa.Buffer | bytes
    frames: ChunkFrames


ChunkRow = tuple[int, int, ChunkFrames]
"""First row, offset and frames of a chunk."""


class StoredChunk(NamedTuple):
    """A chunk as it was fetched, and what is wanted of it."""

    stored: pa.Buffer
    places: ChunkPlaces
    """Of the decoder's columns in ``stored``."""
    rows: tuple[int, int]
    """``[first, end)`` of those wanted."""


class ChunkColumns:
    """Columns of a data schema that are decoded of chunks.

    ``columns`` are their positions, in order; all when None.
    """

    def __init__(self, schema: pa.Schema, columns: Sequence[int] | None = None) -> None:
        self.stored = schema
        self.names = schema.names
        """Of all columns: PyArrow builds the list at each access."""
        self.columns = [*range(len(schema))] if columns is None else [*columns]
        self.is_whole = self.columns == [*range(len(schema))]
        self.schema = pa.schema([schema.field(i) for i in self.columns])
        """Of the batches that are returned."""


class OpenChunks(ABC):
    """Chunks whose columns are verified and decoded when they are asked for.

    Arrays may be views of the stored bytes, or of each other's frames.
    """

    schema: pa.Schema
    """That of the decoder."""
    num_rows: int
    """Of the rows that are wanted, chunk after chunk: columns have no others."""
    are_views = False
    """Whether arrays are views of what is stored."""

    @abstractmethod
    def columns(self, positions: Sequence[int]) -> list[pa.Array]:
        """Decode columns at some positions of :attr:`schema`, again with every call.

        Raises
        ------
        CorruptShuffleError
            The CRC of a frame that has them differs from the index, or they are not of the
            shuffle's schema.
        """

    def batch(self) -> pa.RecordBatch:
        """Decode all columns of :attr:`schema`; raises as :meth:`columns`."""
        return batch_of(self.columns(range(len(self.schema))), self.schema, self.num_rows)


ChunkOpener: TypeAlias = Callable[[Sequence[StoredChunk]], OpenChunks]
"""Returns chunks of one codec with no column decoded."""


class ChunkSink(Protocol):
    """A data file as a codec sees it: counts bytes and adds up their CRC-32.

    Those between :meth:`begin_chunk` and :meth:`end_chunk` are of a chunk, others of the file.
    """

    position: int

    def begin_chunk(self, position: int) -> None:
        """Begin a chunk at ``position``; what is written before it is still of the file."""

    def end_chunk(self) -> int:
        """End the chunk and return its CRC-32."""

    def write(self, buffer: bytes) -> int:
        """Take a buffer, which is kept alive until it is written; return its bytes."""

    def write_chunk(self, buffer: pa.Buffer | bytes) -> int:
        """Take a chunk whose CRC-32 is known, as :meth:`write` takes a buffer."""

    def flush(self) -> None:
        """Write what was taken to the storage."""

    def divert(self) -> list[bytes]:
        """Collect what is written until :meth:`restore` in the list returned, and nowhere else."""

    def restore(self) -> None:
        """Write to the file again."""


Rows = TypeVar("Rows")
"""Rows as a codec takes them."""
Encoded = TypeVar("Encoded")
"""A chunk as a codec writes it."""


class ChunkWriter(Protocol[Rows, Encoded]):
    """Writes rows as chunks of one codec."""

    def prepare(self, batch: pa.RecordBatch, in_order: OrderedMap) -> tuple[Rows, int]:
        """Return rows for :meth:`encode`, and the raw bytes by which they are cut into chunks."""

    def encode(self, rows: Rows, extents: Sequence[tuple[int, int]]) -> list[Encoded]:
        """Return rows ``[start, stop)`` as chunks for :meth:`write`; in any thread."""

    def write(self, chunk: Encoded, first_row: int) -> ChunkRow:
        """Write the chunk that starts at ``first_row`` of its region."""

    def write_stored(self, chunk: EncodedChunk, first_row: int) -> ChunkRow:
        """Write a chunk of another file as it is stored there."""

    def keep(self, num_chunks: int) -> None:
        """Forget all but the first chunks: the file was cut after them and will be finished."""

    def finish(self) -> None:
        """Write what follows the last chunk."""


class Codec(ABC):
    """One way to encode and decode chunks; it has no state."""

    name: ClassVar[CodecName]
    """What options and the log call it."""
    encoding: ClassVar[int]
    """Number of it in indexes, of each chunk that it wrote."""
    most_times: ClassVar[int]
    """How many times ``chunk_bytes`` a chunk of a wide table has, at most."""
    takes_others: ClassVar[bool]
    """Whether its files may have chunks of other codecs, as they are stored."""

    @abstractmethod
    def writer(
        self, sink: ChunkSink, schema: pa.Schema, *, level: int, chunk_bytes: int
    ) -> ChunkWriter[Any, Any]:
        """Begin a data file; ``level`` says how much time to spend for fewer bytes."""

    @abstractmethod
    def opener(self, wanted: ChunkColumns) -> ChunkOpener:
        """Return what opens its chunks, to decode some columns of them.

        That takes a single chunk; or several, except of messages, which cost little more together
        than one. What is decoded keeps no rows in memory that are not wanted. It raises
        CorruptShuffleError where the CRC, the form or the number of rows differs from the index.
        """


def check_frame(
    stored: pa.Buffer | memoryview, frames: ChunkFrames, frame: int, names: Sequence[str]
) -> None:
    """Raise CorruptShuffleError where the bytes of a frame are not those that were written.

    ``names`` are those of all columns, of which the message has those of the frame.
    """
    length, crc32 = frames.length[frame], frames.crc32[frame]
    if len(stored) == length and zlib.crc32(stored) == crc32:
        return
    columns = [names[i] for i in frames.columns_of(frame)]
    shown = ", ".join(columns[:_NAMES_SHOWN])
    if len(columns) > _NAMES_SHOWN:
        shown += f" and {len(columns) - _NAMES_SHOWN} more"
    msg = (
        f"frame {frame}, of the columns {shown}: CRC-32 of {len(stored)} bytes is not the "
        f"{crc32:#010x} of {length} bytes in the index"
    )
    raise CorruptShuffleError(msg)


_NAMES_SHOWN = 8
"""Columns that a message names."""


def batch_of(columns: Sequence[pa.Array], schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return columns as a batch, which has its number of rows also without any."""
    if not columns:  # from_arrays would lose it
        return pa.record_batch([pa.nulls(num_rows)], names=["rows"]).select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


DAMAGE = (pa.ArrowException, OSError, ValueError)
"""What decoding raises where bytes are not what was written."""


def not_of_this_schema(error: Exception) -> CorruptShuffleError:
    """Return the error that says so."""
    return CorruptShuffleError(f"not a record batch of the shuffle's schema ({error})")
