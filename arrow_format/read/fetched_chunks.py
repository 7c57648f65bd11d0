"""Chunks that were fetched, decoded several at a time, and the rows that are wanted of them.

A chunk has some thousand rows: to decode each by itself takes longer to call than to decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take, take_runs
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_table import MESSAGE
from arrow_format.format.codec import batch_of
from arrow_format.format.extents import Extents
from arrow_format.format.regions import RegionKind
from arrow_format.read.rows import InChunks, Rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.format.codec import OpenChunks, StoredChunk
    from arrow_format.format.codecs import ChunkDecoder
    from arrow_format.format.regions import Region
    from arrow_format.model import Int32Array, Int64Array
    from arrow_format.read.chunk_plan import ChunkRead
    from arrow_format.read.chunk_reader import ChunkReader

_T = TypeVar("_T")

MAX_RUN_BYTES = 2 << 20
"""Packed bytes of chunks that are decoded together, of which each becomes 16 at most."""

FIRST_RUN_BYTES = 128 << 10
"""Those of the first run, so that a reader of a few rows waits for no more. Each run may have twice
as many as the one before."""

MAX_RUN_ROWS = 128 << 10
"""Rows of such chunks: of few columns two megabytes have many."""

ONE_CHUNK = 0
"""As the most bytes of a run: each chunk by itself, for a reader whose memory is that of one."""


class FetchedChunk(NamedTuple):
    """A chunk as it was fetched, and what is wanted of it."""

    source: ChunkReader
    chunk: ChunkRead
    part: StoredChunk

    @property
    def can_be_joined(self) -> bool:
        """Whether it can be decoded together with others.

        A message is a view of its bytes, and what is broadcast comes for each subpartition.
        """
        return self.part.places.encoding != MESSAGE and self.source.is_unicast(self.chunk.part)

    @property
    def packed_bytes(self) -> int:
        """Bytes of its columns before compression."""
        return sum(self.part.places.raw_length)


@dataclass(frozen=True, slots=True)
class Tested:
    """A filter on decoded columns."""

    where: RowFilter
    positions: tuple[int, ...]
    """Of the filter's columns in the decoder's schema."""
    num_wanted: int
    """Columns of that schema to be delivered: the first ones."""


def read_rows(
    regions: Iterable[tuple[ChunkReader, int, int]],
    first: int,
    end: int,
    *,
    most_bytes: int = MAX_RUN_BYTES,
) -> Iterator[tuple[pa.RecordBatch, Int32Array]]:
    """Yield the rows of subpartitions ``[first, end)`` of some files, in their order.

    ``regions`` are the reader of each file, and the first and the end of its regions. Each item is
    the rows of some chunks, of ``most_bytes`` if they are several, and the subpartition of each
    row.
    """
    chunks = (
        FetchedChunk(source, chunk, source.to_decode(chunk, stored))
        for source, first_region, end_region in regions
        for chunk, stored in source.fetched(source.plan(first_region, end_region, first, end))
    )
    for run in in_runs(chunks, most_bytes):
        found = decoded_rows(run, first, end)
        del run  # a suspended frame would keep it while its consumer works
        yield from map(attrgetter("batch", "subpartitions"), found)


def in_runs(
    fetched: Iterable[FetchedChunk],
    most_bytes: int = MAX_RUN_BYTES,
    of: Callable[[FetchedChunk], object] | None = None,
) -> Iterator[list[FetchedChunk]]:
    """Yield chunks in runs of those that are decoded together, in their order.

    All of a run have one decoder, one codec, and the same ``of``. Several have ``most_bytes`` of
    packed columns at most.
    """
    run: list[FetchedChunk] = []
    decoder: ChunkDecoder | None = None
    encoding = None
    most, num_bytes, num_rows = min(FIRST_RUN_BYTES, most_bytes), 0, 0
    for one in fetched:
        of_chunk = one.packed_bytes
        num_bytes += of_chunk
        first, end = one.part.rows
        num_rows += end - first
        can_be_joined = one.can_be_joined
        is_apart = one.source.decoder is not decoder or not can_be_joined
        is_apart = is_apart or one.part.places.encoding != encoding
        is_apart = is_apart or (of is not None and of(one) != of(run[0]))
        if run and (is_apart or num_bytes > most or num_rows > MAX_RUN_ROWS):
            yield run
            most = min(2 * most, most_bytes)
            run, num_bytes, num_rows = [], of_chunk, end - first
        decoder = one.source.decoder if can_be_joined else None
        encoding = one.part.places.encoding
        run.append(one)
    if run:
        yield run


def open_run(run: Sequence[FetchedChunk]) -> OpenChunks:
    """Return chunks with no column decoded; raises as :meth:`ChunkDecoder.open_chunks`."""
    return run[0].source.decoder.open_chunks([one.part for one in run])


def decode_run(
    run: Sequence[FetchedChunk],
) -> list[tuple[Sequence[FetchedChunk], pa.RecordBatch]]:
    """Return the rows wanted of chunks, of all together or of each; errors say which it is."""
    return [*located_in(_decoded, run)]


def _decoded(run: Sequence[FetchedChunk]) -> pa.RecordBatch:
    return run[0].source.decoder.decode([one.part for one in run])


def pairs_of(run: Sequence[FetchedChunk]) -> list[tuple[ChunkReader, ChunkRead]]:
    """Return chunks without what was fetched of them."""
    return [(source, chunk) for source, chunk, _ in run]


def located_in(
    function: Callable[[Sequence[FetchedChunk]], _T], run: Sequence[FetchedChunk]
) -> Iterator[tuple[Sequence[FetchedChunk], _T]]:
    """Yield what a function makes of chunks together, once.

    Where it raises an error, it is called for each alone, so that the error says which it is.
    """
    try:
        if len(run) == 1:
            with run[0].source.located(run[0].chunk):
                result = function(run)
        else:
            result = function(run)
    except (CorruptShuffleError, FormatVersionError):
        if len(run) == 1:
            raise
    else:
        yield run, result
        return
    for one in run:
        yield from located_in(function, [one])


def rows_of(
    run: Sequence[tuple[ChunkReader, ChunkRead]],
    batch: pa.RecordBatch,
    first: int,
    end: int,
    *,
    with_gone: bool = False,
) -> Iterator[Rows]:
    """Yield the rows that subpartitions ``[first, end)`` want of chunks, with these.

    ``batch`` has all that are wanted of the chunks, those too that a mask took: they are left out
    here, or marked with ``with_gone`` where they are few. A broadcast chunk makes one run of rows
    for each subpartition; others one for all.
    """
    if with_gone and all(source.has_few_gone(chunk.part) for source, chunk in run):
        yield Rows(batch, InChunks([*run], _extents_marked))
        return
    left = left_of(run)
    rows = None if left is None else np.flatnonzero(left)
    if rows is not None:
        if not len(rows):
            return
        is_view = int(rows[-1] - rows[0]) == len(rows) - 1
        kept = take_runs(batch, rows)
        batch = copied(kept) if is_view and 2 * len(rows) < batch.num_rows else kept
    yield from _with_subpartitions(run, batch, rows, first, end)


def decoded_rows(
    run: Sequence[FetchedChunk], first: int, end: int, tested: Tested | None = None
) -> Iterator[Rows]:
    """Return the rows that subpartitions ``[first, end)`` want of chunks, and a filter keeps.

    All is verified and decoded when it returns; of a filter the columns that decide first, the
    others only of chunks with a row that is kept.
    """
    if tested is None:
        return chain.from_iterable(
            [rows_of(pairs_of(part), batch, first, end) for part, batch in decode_run(run)]
        )
    return chain.from_iterable(
        [
            _with_subpartitions(pairs_of(part), batch, rows, first, end)
            for part, (batch, rows) in located_in(partial(_matching, tested=tested), run)
            if len(rows)
        ]
    )


def located_rows(
    run: Sequence[FetchedChunk], tested: Tested | None = None
) -> Iterator[tuple[list[tuple[ChunkReader, ChunkRead]], pa.RecordBatch, Int64Array]]:
    """Yield chunks, the rows that are left of them and kept by a filter, and where these are.

    That is their positions among all rows that are wanted of these chunks, ascending.
    """
    if tested is not None:
        for part, (batch, rows) in located_in(partial(_matching, tested=tested), run):
            yield pairs_of(part), batch, rows
        return
    for part, batch in decode_run(run):
        pairs = pairs_of(part)
        left = left_of(pairs)
        if left is None:
            yield pairs, batch, np.arange(batch.num_rows)
        else:
            rows = np.flatnonzero(left)
            yield pairs, take(batch, to_arrow(rows)), rows


def _matching(run: Sequence[FetchedChunk], tested: Tested) -> tuple[pa.RecordBatch, Int64Array]:
    """Return the rows that a filter keeps, and their positions among those wanted."""
    chunks = open_run(run)
    deciding = chunks.columns(tested.positions)
    mask = tested.where.mask(deciding, chunks.num_rows)
    left = left_of(pairs_of(run))
    rows = np.flatnonzero(mask if left is None else mask & left)
    schema = pa.schema([chunks.schema.field(i) for i in range(tested.num_wanted)])
    if not len(rows):
        return batch_of([pa.nulls(0, field.type) for field in schema], schema, 0), rows
    known = {
        i: column
        for i, column in zip(tested.positions, deciding, strict=True)
        if i < tested.num_wanted
    }
    others = [i for i in range(tested.num_wanted) if i not in known]
    taken = _taken([*known.values()], rows)
    narrowed, shifted = (run, rows) if not others else _narrowed(run, rows)
    if others:
        is_same = len(narrowed) == len(run) and len(rows) == chunks.num_rows
        source = chunks if is_same else open_run(narrowed)
        taken += _taken(source.columns(others), shifted)
    columns = dict(zip([*known, *others], taken, strict=True))
    batch = batch_of([columns[i] for i in range(tested.num_wanted)], schema, len(rows))
    stored = run[0].part.stored
    if not run[0].can_be_joined and 2 * batch.nbytes < stored.size:
        batch = copied(batch)  # views of a message: a few small columns must not pin all of it
    return batch, rows


def _taken(columns: Sequence[pa.Array], rows: Int64Array) -> list[pa.Array]:
    """Return the rows of columns at ascending positions."""
    if not columns or len(rows) == len(columns[0]):
        return [*columns]
    names = [str(i) for i in range(len(columns))]
    batch = pa.RecordBatch.from_arrays([*columns], names=names)
    return take(batch, to_arrow(rows)).columns  # type: ignore[no-any-return]


def _narrowed(
    run: Sequence[FetchedChunk], rows: Int64Array
) -> tuple[list[FetchedChunk], Int64Array]:
    """Return the chunks that have some of the rows wanted, each with the fewest adjacent ones.

    Also where the rows are then.
    """
    edges = edges_of(pairs_of(run))
    cuts = np.searchsorted(rows, edges)
    found: list[FetchedChunk] = []
    shifts, num_rows = [], 0
    for one, edge, first, end in zip(
        run, edges.tolist(), cuts.tolist(), cuts[1:].tolist(), strict=False
    ):
        if first < end:
            begin, stop = int(rows[first]), int(rows[end - 1]) + 1
            origin = one.part.rows[0] - edge
            part = one.part._replace(rows=(origin + begin, origin + stop))
            found.append(one._replace(part=part))
            shifts.append(begin - num_rows)
            num_rows += stop - begin
    sizes = np.diff(cuts)
    return found, rows - np.repeat(shifts, sizes[sizes > 0])


def edges_of(run: Sequence[tuple[ChunkReader, ChunkRead]]) -> Int64Array:
    """Return where the rows wanted of each chunk begin among those of all, then their number."""
    return np.cumsum([0, *(chunk.end_row - chunk.first_row for _, chunk in run)])


def left_of(run: Sequence[tuple[ChunkReader, ChunkRead]]) -> NDArray[np.bool_] | None:
    """Return of each row wanted of chunks whether no mask took it; None: none took any."""
    stretches = _stretches(run)
    gone = [source.gone_of(part, first, end) for source, part, first, end in stretches]
    if all(rows is None for rows in gone):
        return None
    sizes = [end - first for _, _, first, end in stretches]
    is_left = np.ones(sum(sizes), np.bool_)
    for edge, rows in zip(accumulate(sizes, initial=0), gone, strict=False):
        if rows is not None:
            np.logical_not(rows, out=is_left[edge : edge + len(rows)])
    return is_left


def _stretches(
    run: Iterable[tuple[ChunkReader, ChunkRead]],
) -> list[tuple[ChunkReader, int, int, int]]:
    """Return the rows wanted of chunks, those that go on where those before end together.

    Each is the reader of a file, a part of it, and rows ``[first, end)`` of that.
    """
    found: list[tuple[ChunkReader, int, int, int]] = []
    for source, chunk in run:
        start = int(source.index.regions[chunk.part].chunks.first_row[chunk.chunk])
        first, end = start + chunk.first_row, start + chunk.end_row
        if found:
            before, part, begin, stop = found[-1]
            if stop == first and part == chunk.part and before is source:
                found[-1] = source, part, begin, end
                continue
        found.append((source, chunk.part, first, end))
    return found


def _with_subpartitions(
    run: Sequence[tuple[ChunkReader, ChunkRead]],
    batch: pa.RecordBatch,
    rows: Int64Array | None,
    first: int,
    end: int,
) -> Iterator[Rows]:
    """Yield rows of chunks with their subpartitions, those of ``[first, end)``.

    ``rows`` are their positions among the rows that are wanted of them; all of these when None.
    """
    source, chunk = run[0]
    where: Extents | InChunks
    if end - first == 1:  # as in a lookup, which has little else to do
        where = Extents.all_of(first, batch.num_rows)
    elif source.index.regions[chunk.part].kind is RegionKind.BROADCAST:
        for subpartition in range(first, end):
            yield Rows(batch, Extents.all_of(subpartition, batch.num_rows))
        return
    else:
        where = InChunks([*run], _extents if rows is None else partial(_extents_left, rows=rows))
    found = [Rows(batch, where)]
    del batch  # a suspended frame would keep it while its consumer works
    yield found.pop()


def _extents(run: Sequence[tuple[ChunkReader, ChunkRead]]) -> Extents:
    return extents_of(run, run[0][0].index.metadata.num_subpartitions)


def _extents_left(run: Sequence[tuple[ChunkReader, ChunkRead]], rows: Int64Array) -> Extents:
    return _extents(run).left(rows)


def _extents_marked(run: Sequence[tuple[ChunkReader, ChunkRead]]) -> Extents:
    left = left_of(run)
    return _extents(run) if left is None else _extents(run).marked(left)


def extents_of(run: Sequence[tuple[ChunkReader, ChunkRead]], num_subpartitions: int) -> Extents:
    """Return the subpartitions of the rows that are wanted of unicast chunks."""
    n = num_subpartitions
    return Extents.joined(
        [
            source.index.regions[part].extents_of_rows(first, end, n)
            for source, part, first, end in _stretches(run)
        ]
    )


def subpartitions_in(region: Region, chunk: ChunkRead, num_subpartitions: int) -> Int32Array:
    """Return the subpartition of each row that is wanted of a chunk of a unicast region."""
    start, _ = region.chunk_rows(chunk.chunk)
    return region.subpartitions_of_rows(
        start + chunk.first_row, start + chunk.end_row, num_subpartitions
    )
