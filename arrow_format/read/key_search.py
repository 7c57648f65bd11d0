"""Finds the rows of given keys in partitioned files.

Of a file whose rows are known to be where they belong, only the subpartitions of the keys are read;
of any other the key columns of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.format.regions import RegionKind
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.chunk_reader import READ_AHEAD_BYTES, ChunkReader
from arrow_format.read.plan import ChunkRead
from arrow_format.read.scheduler import ReadScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.format.regions import Region
    from arrow_format.keys.key_set import KeySet
    from arrow_format.model import Int32Array, Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader


@dataclass(slots=True)
class Matches:
    """Rows of the keys in one file."""

    num_rows: int = 0
    """Rows that no mask took; a broadcast row counts once."""
    regions: set[int] = field(default_factory=set)
    """Numbers of the regions that hold them, or such that a mask took."""
    rows: dict[int, list[Int64Array]] = field(default_factory=dict)
    """Where these are in each region, ascending, chunk by chunk; empty unless asked for."""

    @property
    def by_region(self) -> dict[int, Int64Array]:
        """The places of rows in each region, ascending."""
        return {region: np.concatenate(rows) for region, rows in self.rows.items()}


def search(
    files: Iterable[PartitionedFileReader],
    keys: KeySet,
    schema: pa.Schema,
    on_bytes: Callable[[int], None],
    *,
    with_rows: bool = False,
) -> dict[int, Matches]:
    """Return what each file has of the keys, by its number in ``files``; others are left out.

    What a mask took is still stored: a file that has nothing else of the keys is among them, with
    no row.

    Rows are read with ``schema``. Chunks are read ahead, up to
    :data:`~arrow_format.read.chunk_reader.READ_AHEAD_BYTES`. ``with_rows`` keeps the places of
    rows, 8 bytes each. ``on_bytes`` gets the stored bytes of each chunk. Raises
    CorruptShuffleError or FormatVersionError where a chunk cannot be read.
    """
    columns = [schema.get_field_index(name) for name in keys.names]
    decoders = ChunkDecoders(schema, columns)
    by_file: dict[int, Matches] = {}

    def planned() -> Iterator[tuple[ChunkReader, Iterable[ChunkRead]]]:
        for order, index in enumerate(files):
            decoder = decoders.of(index.metadata.data_schema)
            source = ChunkReader(index, decoder, wanted="a search by key", order=order)
            yield source, source.wanted(_chunks_to_search(index, keys.wanted))

    scheduler = ReadScheduler(ReadBufferPool(READ_AHEAD_BYTES))
    with scheduler.add_reader(planned()) as fetched:
        for source, chunk, stored in fetched:
            batch = source.decode(chunk, stored)
            del stored
            region = source.index.regions[chunk.part]
            ids = None
            if source.index.file.placed:
                n = source.index.metadata.num_subpartitions
                ids = subpartitions_in(region, chunk, n)
            are_among = keys.among(batch.columns, ids)
            if are_among.any():
                matches = by_file.setdefault(source.order, Matches())
                matches.regions.add(chunk.region)
                left = source.rows_left(chunk)
                rows = np.flatnonzero(are_among)
                if left is not None:
                    rows = np.intersect1d(rows, left, assume_unique=True)
                matches.num_rows += len(rows)
                if with_rows and len(rows):
                    start, _ = region.chunk_rows(chunk.chunk)
                    matches.rows.setdefault(chunk.region, []).append(rows + start)
            on_bytes(chunk.num_bytes)
    return by_file


def subpartitions_in(region: Region, chunk: ChunkRead, num_subpartitions: int) -> Int32Array | None:
    """Return the subpartition of each row that is wanted of a chunk; None of a broadcast region."""
    if region.kind is RegionKind.BROADCAST:
        return None
    start, _ = region.chunk_rows(chunk.chunk)
    return region.subpartitions_of_rows(
        start + chunk.first_row, start + chunk.end_row, num_subpartitions
    )


def _chunks_to_search(
    index: PartitionedFileReader, wanted: NDArray[np.bool_]
) -> Iterator[ChunkRead]:
    """Yield the chunks, whole, that may hold rows of wanted subpartitions, by offset."""
    for number, region in enumerate(index.regions):
        table = region.chunks
        is_searched = np.ones(len(table), np.bool_)
        if index.file.placed:
            is_searched = _holds_wanted(region, wanted)
        for chunk in np.flatnonzero(is_searched).tolist():
            start, stop = region.chunk_rows(chunk)
            offset, length = int(table.offset[chunk]), int(table.length[chunk])
            yield ChunkRead(number, chunk, 0, stop - start, offset, length, number)


def _holds_wanted(region: Region, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether each chunk of a region holds rows of wanted subpartitions."""
    starts = region.chunks.first_row
    if region.kind is RegionKind.BROADCAST:
        return np.ones(len(starts), np.bool_)
    ids, counts = region.subpartition_rows(len(wanted))
    at = np.flatnonzero(wanted[ids] & (counts > 0))
    offsets = region.row_offsets
    first = np.searchsorted(starts, offsets[at], side="right") - 1
    end = np.searchsorted(starts, offsets[at + 1], side="left")
    edges = np.zeros(len(starts) + 1, np.int64)
    np.add.at(edges, first, 1)
    np.add.at(edges, end, -1)
    return np.cumsum(edges)[:-1] > 0
