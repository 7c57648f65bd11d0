"""Finds the rows of given keys in partitioned files.

Of a file whose rows are known to be where they belong, only the subpartitions of the keys are read;
of any other the key columns of all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import ascending, take
from arrow_format.format.evolved_chunks import ChunkDecoders
from arrow_format.format.regions import RegionKind
from arrow_format.read.buffer_pool import ReadBufferPool
from arrow_format.read.chunk_plan import ChunkRead, plan_wanted
from arrow_format.read.chunk_reader import (
    PLACES_TOGETHER,
    READ_AHEAD_BYTES,
    ChunkReader,
    looked_up,
)
from arrow_format.read.fetched_chunks import (
    FetchedChunk,
    decode_run,
    edges_of,
    extents_of,
    in_runs,
    left_of,
    pairs_of,
)
from arrow_format.read.scheduler import ReadScheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.keys.key_set import KeySet
    from arrow_format.model import Int32Array, Int64Array
    from arrow_format.read.partitioned_file import PartitionedFileReader

Planned: TypeAlias = "tuple[ChunkReader, Iterable[ChunkRead]]"
"""A data file, and chunks of it by offset."""

LOOKED_AT_CHUNKS = 256
"""Chunks of a plan whose columns that decide are read before the others, at most; the first time an
eighth of them."""

LOOKED_AT_BYTES = 4 << 20
"""Of the columns that decide, that are read together."""


@dataclass(slots=True)
class Matches:
    """Rows of the keys in one file."""

    num_rows: int = 0
    """Rows that no mask took; a broadcast row counts once."""
    chunks: dict[int, set[int]] = field(default_factory=dict)
    """Numbers of the chunks of each region that hold them, or such that a mask took."""
    rows: dict[int, list[Int64Array]] = field(default_factory=dict)
    """Where these are in each region, ascending, chunk by chunk; empty unless asked for."""

    def are_in(self, region: int, chunk: int) -> bool:
        """Whether a chunk holds some."""
        return chunk in self.chunks.get(region, ())

    @property
    def by_region(self) -> dict[int, Int64Array]:
        """The places of rows in each region, ascending and each once."""
        return {region: ascending(np.concatenate(rows)) for region, rows in self.rows.items()}

    def add(self, other: Matches) -> None:
        """Add rows of other keys of the same file."""
        self.num_rows += other.num_rows
        for region, chunks in other.chunks.items():
            self.chunks.setdefault(region, set()).update(chunks)
        for region, rows in other.rows.items():
            self.rows.setdefault(region, []).extend(rows)


@dataclass(frozen=True, slots=True)
class FoundRows:
    """Rows of one chunk of a file, and some of their columns."""

    order: int
    """Number of the file."""
    region: int
    places: Int64Array
    """Where they are in the region, ascending."""
    columns: Sequence[pa.Array]


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
    by_file: dict[int, Matches] = {}
    scheduler = ReadScheduler(ReadBufferPool(READ_AHEAD_BYTES))
    planned = _planned(files, keys.names, schema, keys.wanted)
    with scheduler.reading(planned) as fetched:
        for run, batch in _decoded(fetched, _are_placed, on_bytes):
            ids = None
            if _are_placed(run[0]):
                ids = extents_of(pairs_of(run), len(keys.wanted)).each
            among = keys.among(batch.columns, subpartitions=ids)
            left = left_of(pairs_of(run))
            for (source, chunk, _), rows, edge in _with_rows(run, among):
                matches = by_file.setdefault(source.order, Matches())
                matches.chunks.setdefault(chunk.region, set()).add(chunk.chunk)
                if left is not None:
                    rows = rows[left[edge + rows]]
                matches.num_rows += len(rows)
                if with_rows and len(rows):
                    start, _ = source.index.regions[chunk.part].chunk_rows(chunk.chunk)
                    places = start + chunk.first_row + rows
                    matches.rows.setdefault(chunk.region, []).append(places)
    return by_file


def keys_in(
    files: Iterable[PartitionedFileReader],
    names: Sequence[str],
    schema: pa.Schema,
    wanted: NDArray[np.bool_],
) -> Iterator[tuple[Int32Array, Sequence[pa.Array]]]:
    """Yield some columns of the rows of wanted subpartitions, with the subpartition of each.

    None of the rows is broadcast. They come in the order of each file, without those that a mask
    took. Raises as :func:`search`.
    """
    scheduler = ReadScheduler(ReadBufferPool(READ_AHEAD_BYTES))
    with scheduler.reading(_planned(files, names, schema, wanted)) as fetched:
        for run, batch in _decoded(fetched):
            ids, columns = extents_of(pairs_of(run), len(wanted)).each, batch.columns
            left = left_of(pairs_of(run))
            if left is not None:
                rows = to_arrow(np.flatnonzero(left))
                ids, columns = ids[left], [take(each, rows) for each in columns]
            yield ids, columns


def rows_of_keys(
    files: Iterable[PartitionedFileReader],
    names: Sequence[str],
    schema: pa.Schema,
    wanted: NDArray[np.bool_],
    keys: KeySet | None = None,
) -> Iterator[FoundRows]:
    """Yield the rows of given keys, without those that a mask took; None for all keys.

    ``names`` are the columns to read of wanted subpartitions, the keys first. Rows come in the
    order of each file. Raises as :func:`search`.
    """
    scheduler = ReadScheduler(ReadBufferPool(READ_AHEAD_BYTES))
    with scheduler.reading(_planned(files, names, schema, wanted)) as fetched:
        for run, batch in _decoded(fetched, _are_placed):
            among = np.ones(batch.num_rows, np.bool_)
            if keys is not None:
                are_placed = _are_placed(run[0])
                ids = extents_of(pairs_of(run), len(wanted)).each if are_placed else None
                among = keys.among(batch.columns[: len(keys.names)], subpartitions=ids)
            left = left_of(pairs_of(run))
            if left is not None:
                among &= left
            for (source, chunk, _), rows, edge in _with_rows(run, among):
                start, _ = source.index.regions[chunk.part].chunk_rows(chunk.chunk)
                at = to_arrow(edge + rows)
                columns = [take(column, at) for column in batch.columns]
                places = start + chunk.first_row + rows
                yield FoundRows(source.order, chunk.region, places, columns)


def _planned(
    files: Iterable[PartitionedFileReader],
    names: Sequence[str],
    schema: pa.Schema,
    wanted: NDArray[np.bool_],
) -> Iterator[Planned]:
    """Yield the chunks of wanted subpartitions, to read some columns; all of files not placed."""
    decoders = ChunkDecoders(schema, [schema.get_field_index(name) for name in names])
    for order, index in enumerate(files):
        decoder = decoders.of(index.metadata.data_schema)
        source = ChunkReader(index, decoder, wanted="a search by key", order=order)
        is_wanted = wanted if index.file.placed else np.ones_like(wanted)
        yield source, source.wanted(plan_wanted(index.regions, is_wanted))


def with_matches(
    planned: Iterable[Planned], where: RowFilter, decoders: ChunkDecoders
) -> Iterator[Planned]:
    """Yield the chunks of a plan that have rows of a filter, and of each the fewest adjacent rows.

    The columns that decide, which ``decoders`` return, are read before the others, of
    :data:`LOOKED_AT_CHUNKS` at a time: a file may come several times. It would save little where
    that is half of the bytes of a file, or once half of the chunks turned out to have rows: those
    are left as they are.
    """
    saves = True
    for window in _windows(planned):
        looks: dict[int, Planned] = {}
        num_looked = 0
        deciding = [(one.reading(decoders), chunks) for one, chunks in window] if saves else []
        for (look, chunks), first in zip(deciding, looked_up(deciding), strict=True):
            if 2 * sum(one.num_bytes for one in first) < sum(one.num_bytes for one in chunks):
                looks[look.order] = look, first
                num_looked += len(first)
        found: dict[tuple[int, int, int], tuple[int, int]] = {}
        scheduler = ReadScheduler(ReadBufferPool(LOOKED_AT_BYTES), read_ahead=False)
        with scheduler.reading(looks.values()) as fetched:
            for run, batch in _decoded(fetched):
                # A filter may have no columns.
                for one, rows, _ in _with_rows(run, where.mask(batch.columns, batch.num_rows)):
                    place = one.source.order, one.chunk.part, one.chunk.chunk
                    found[place] = int(rows[0]), int(rows[-1]) + 1
        saves = saves and 2 * len(found) <= num_looked
        left: list[tuple[ChunkReader, list[ChunkRead]]] = []
        for source, chunks in window:
            if source.order in looks:
                rows_of = [found.get((source.order, one.part, one.chunk)) for one in chunks]
                chunks = [
                    one._replace(first_row=one.first_row + rows[0], end_row=one.first_row + rows[1])
                    for one, rows in zip(chunks, rows_of, strict=True)
                    if rows is not None
                ]
            if chunks:
                left.append((source, chunks))
        yield from _with_places(left)


def _with_places(files: Sequence[tuple[ChunkReader, list[ChunkRead]]]) -> Iterator[Planned]:
    """Yield files with the places of their chunks, but of those that take too much memory."""
    few = [
        (source, chunks)
        for source, chunks in files
        if chunks[0].places is None
        and len(source.decoder.columns) * LOOKED_AT_CHUNKS <= PLACES_TOGETHER
    ]
    known = dict(zip((source.order for source, _ in few), looked_up(few), strict=True))
    for source, chunks in files:
        yield source, known.get(source.order, chunks)


def _windows(planned: Iterable[Planned]) -> Iterator[list[tuple[ChunkReader, list[ChunkRead]]]]:
    window: list[tuple[ChunkReader, list[ChunkRead]]] = []
    num_left = max(LOOKED_AT_CHUNKS // 8, 1)
    for source, chunks in planned:
        left = iter(chunks)
        while piece := [*islice(left, num_left)]:
            window.append((source, piece))
            num_left -= len(piece)
            if not num_left:
                yield window
                window, num_left = [], LOOKED_AT_CHUNKS
    if window:
        yield window


def _decoded(
    fetched: Iterable[tuple[ChunkReader, ChunkRead, pa.Buffer]],
    of: Callable[[FetchedChunk], object] | None = None,
    on_bytes: Callable[[int], object] | None = None,
) -> Iterator[tuple[Sequence[FetchedChunk], pa.RecordBatch]]:
    """Yield chunks that are decoded and compared together; all of a run have the same ``of``."""
    chunks = (
        FetchedChunk(source, chunk, source.to_decode(chunk, stored))
        for source, chunk, stored in fetched
    )
    for run in in_runs(chunks, of=of):
        yield from decode_run(run)
        if on_bytes is not None:
            on_bytes(sum(one.chunk.num_bytes for one in run))


def _with_rows(
    run: Sequence[FetchedChunk], mask: NDArray[np.bool_]
) -> Iterator[tuple[FetchedChunk, Int64Array, int]]:
    """Yield the chunks of which a mask takes rows, with these, counted from the first wanted.

    Also where that one is among the rows of all chunks.
    """
    rows = np.flatnonzero(mask)
    edges = edges_of(pairs_of(run))
    cuts = np.searchsorted(rows, edges).tolist()
    for one, edge, first, end in zip(run, edges.tolist(), cuts, cuts[1:], strict=False):
        if first < end:
            yield one, rows[first:end] - edge, edge


def _are_placed(one: FetchedChunk) -> bool:
    """Whether the subpartition of a row says which keys it can have."""
    index = one.source.index
    kind = index.regions[one.chunk.part].kind
    return index.file.placed and kind is RegionKind.UNICAST
