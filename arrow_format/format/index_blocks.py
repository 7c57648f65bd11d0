"""Blocks of an index: what regions have of one range of subpartitions, as bytes and back; pure.

A block is one zstd frame of an Arrow record batch with a row per *part*: rows of one region, one
behind the other, whose subpartitions ascend. A rotated region has two parts where its subpartitions
wrap, so who reads parts needs to know of no rotation. See ``docs/format/reading.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import fixed_width_values, text_offsets, to_arrow
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.batch_frame import MALFORMED, decode_batches, encode_batch
from arrow_format.format.chunk_table import MESSAGE, ChunkTable
from arrow_format.format.codecs import LAST_ENCODING
from arrow_format.format.part_table import PartTable
from arrow_format.format.regions import MAX_REGION_ROWS, PrefixSums, RegionKind
from arrow_format.model import MAX_INTEGER
from arrow_format.options import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from arrow_format.format.regions import Region
    from arrow_format.model import Int64Array

MOST_RAW_BYTES = 2 * MAX_CHUNK_BYTES
"""Bound of a chunk of several rows before compression; writers make at most half of it."""

MOST_ZSTD_RATIO = 1 << 15
"""A zstd block of 4 bytes can expand to 128 KiB."""

_NUMBERS = {
    "region": pa.int32(),
    "kind": pa.uint8(),
    "first_row": pa.int64(),
    "num_rows": pa.int64(),
    "rows_before": pa.int64(),
}
_LISTS = {
    "subpartition_gap": pa.uint8(),
    "subpartition_rows": pa.uint8(),
    "large": pa.uint32(),
    "chunk_rows": pa.int64(),
    "chunk_gap": pa.int64(),
    "chunk_encoding": pa.uint8(),
    "chunk_frames": pa.int32(),
    "column_frame": pa.int32(),
    "column_raw_length": pa.int64(),
    "frame_length": pa.int64(),
    "frame_crc32": pa.uint32(),
}

BLOCK_SCHEMA = pa.schema(
    [
        *(pa.field(name, type_, nullable=False) for name, type_ in _NUMBERS.items()),
        *(
            pa.field(name, pa.list_(pa.field("item", type_, nullable=False)), nullable=False)
            for name, type_ in _LISTS.items()
        ),
    ]
)
"""Columns of a block, one row per part."""

_LARGE = 256
"""From here on a distance of subpartitions, or rows of one, do not fit into the byte of a list."""


def encode_block(parts: Sequence[Region]) -> bytes:
    """Return the block of some parts, by region and first row."""
    lists: dict[str, list[NDArray[Any]]] = {name: [] for name in _LISTS}
    for part in parts:
        chunks = part.chunks
        ends = np.append(0, (chunks.offset + chunks.length)[:-1])
        gaps, rows = part.rank_gaps.values if part.rank_gaps else ends[:0], part.rank_rows.values
        for name, values in (
            ("subpartition_gap", np.where(gaps < _LARGE, gaps, 0)),
            ("subpartition_rows", np.where(rows < _LARGE, rows, 0)),
            ("large", np.concatenate([gaps[gaps >= _LARGE], rows[rows >= _LARGE]])),
            ("chunk_rows", chunks.num_rows),
            ("chunk_gap", chunks.offset - ends),
            ("chunk_encoding", chunks.encoding),
            ("chunk_frames", chunks.num_frames),
            ("column_frame", chunks.column_frame.ravel()),
            ("column_raw_length", chunks.column_raw_length.ravel()),
            ("frame_length", chunks.frame_length),
            ("frame_crc32", chunks.frame_crc32),
        ):
            lists[name].append(values)
    numbers = {
        "region": [part.number for part in parts],
        "kind": [int(part.kind) for part in parts],
        "first_row": [part.first_row for part in parts],
        "num_rows": [part.num_rows for part in parts],
        "rows_before": [-int(part.chunks.first_row[0]) for part in parts],
    }
    columns = [to_arrow(np.array(numbers[name], str(type_))) for name, type_ in _NUMBERS.items()]
    columns += [_lists(lists[name], type_) for name, type_ in _LISTS.items()]
    return encode_batch(pa.RecordBatch.from_arrays(columns, schema=BLOCK_SCHEMA))


def _lists(values: Sequence[NDArray[Any]], type_: pa.DataType) -> pa.ListArray:
    ends = np.cumsum([0, *map(len, values)]).astype(np.int32)
    flat = np.concatenate([np.empty(0, np.uint8), *values]).astype(str(type_))
    item = pa.field("item", type_, nullable=False)
    return pa.ListArray.from_arrays(to_arrow(ends), to_arrow(flat), type=pa.list_(item))


class StoredBlock(NamedTuple):
    """A block as bytes, and what is known of it."""

    frame: memoryview
    """Bytes whose CRC was checked."""
    first: int
    """First subpartition of the range that the directory states."""
    end: int
    """And the one after its last."""
    data_bytes: int
    """Length of the data file."""
    num_subpartitions: int
    """Of the file."""


def decode_blocks(
    blocks: Sequence[StoredBlock], num_columns: int
) -> tuple[PartTable | None, list[int]]:
    """Return the parts of all blocks, and how many each has; None where there are none at all.

    Blocks, also those of different files, are decoded and checked together: that takes about as
    long as it takes for one of them.

    Parameters
    ----------
    blocks
        Of files whose data schemas have the same number of columns.
    num_columns
        That number.

    Raises
    ------
    CorruptShuffleError
        The parts of a block contradict themselves.
    FormatVersionError
        A newer version wrote it.
    """
    try:
        table, num_parts = decode_batches([block.frame for block in blocks], BLOCK_SCHEMA)
        return _parts(table, blocks, num_parts, num_columns), num_parts
    except MALFORMED as error:
        msg = f"index is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error


class _Lists(NamedTuple):
    """A column of lists: what is in all of them, and where the list of each part begins."""

    values: NDArray[Any]
    edges: Int64Array
    """And where the last one ends."""


def _lists_in(column: pa.ListArray, dtype: np.dtype[Any]) -> _Lists:
    edges = text_offsets(column).astype(np.int64)
    start, stop = int(edges[0]), int(edges[-1])
    if stop == start:
        return _Lists(np.empty(0, dtype), edges - start)
    values = column.buffers()[3]
    found = np.frombuffer(values, dtype, stop - start, start * dtype.itemsize)
    return _Lists(found, edges - start)


_DTYPES = {name: np.dtype(str(type_)) for name, type_ in (_NUMBERS | _LISTS).items()}


def _parts(
    table: pa.Table, blocks: Sequence[StoredBlock], num_parts: Sequence[int], num_columns: int
) -> PartTable | None:
    """Return the parts of all blocks, of which each has so many; ValueError where they are none."""
    if not table.num_rows:
        return None
    (batch,) = table.to_batches()
    columns = dict(zip(BLOCK_SCHEMA.names, batch.columns, strict=True))
    numbers = {name: fixed_width_values(columns[name], _DTYPES[name]) for name in _NUMBERS}
    kinds = numbers["kind"]
    if kinds.max() > max(RegionKind):
        at = int(kinds.argmax())
        msg = (
            f"region {numbers['region'][at]} has kind {kinds[at]}, which this version does not "
            "know; read it with a newer arrow-shuffle"
        )
        raise FormatVersionError(msg)
    lists = {name: _lists_in(columns[name], _DTYPES[name]) for name in _LISTS}
    chunks = _chunk_table(lists, numbers["rows_before"], num_columns)
    _check_sizes(chunks)
    gaps, rows = _subpartitions(lists)
    of_part = np.repeat(np.arange(len(blocks)), num_parts)
    ranges = np.array([block[1:] for block in blocks], np.int64)[of_part]
    edges = lists["chunk_rows"].edges
    gap_sums, row_sums = PrefixSums(gaps.values), PrefixSums(rows.values)
    reach = np.diff(gap_sums.before_each(gaps.edges))
    num_listed = np.diff(row_sums.before_each(rows.edges))
    _check_parts(numbers, reach, num_listed, chunks, edges, ranges)
    same_block = np.diff(of_part) == 0
    steps, row_steps = np.diff(numbers["region"].astype(np.int64)), np.diff(numbers["first_row"])
    is_same = same_block & (steps == 0)
    if (same_block & ~((steps > 0) | (is_same & (row_steps > 0)))).any():
        msg = "the parts of a block of the index are not in order"
        raise CorruptShuffleError(msg)
    goes_on, later = np.append(is_same, False), np.flatnonzero(is_same) + 1
    goes_on[later - 1] = reach[later - 1] < gaps.values[gaps.edges[later]]
    return PartTable(
        numbers["region"],
        kinds,
        numbers["first_row"],
        numbers["num_rows"],
        ranges[:, 0],
        goes_on,
        gaps.edges,
        gap_sums,
        row_sums,
        chunks,
        edges,
    )


def _subpartitions(lists: dict[str, _Lists]) -> tuple[_Lists, _Lists]:
    """Return gaps of subpartitions and their rows, all of at least 1; else ValueError."""
    gaps, rows, large = lists["subpartition_gap"], lists["subpartition_rows"], lists["large"]
    zeros = [np.flatnonzero(each.values == 0) for each in (gaps, rows)]
    in_gaps, in_rows = (
        np.diff(np.searchsorted(at, each.edges))
        for at, each in zip(zeros, (gaps, rows), strict=True)
    )
    num_large = np.diff(large.edges)
    if (
        (gaps.edges != rows.edges).any()
        or (in_gaps + in_rows != num_large).any()
        or large.values.min(initial=_LARGE) < _LARGE
    ):
        msg = "subpartitions and their rows contradict each other"
        raise ValueError(msg)
    if not len(large.values):
        return gaps, rows
    at_rows = np.arange(len(large.values)) >= np.repeat(large.edges[:-1] + in_gaps, num_large)
    return (
        _with_large(gaps, zeros[0], large.values[~at_rows]),
        _with_large(rows, zeros[1], large.values[at_rows]),
    )


def _with_large(lists: _Lists, at: Int64Array, values: NDArray[np.uint32]) -> _Lists:
    """Return lists with other values at some places, in the fewest bytes that fit all."""
    if not len(at):
        return lists
    whole = lists.values.astype(np.min_scalar_type(values.max()))
    whole[at] = values
    return _Lists(whole, lists.edges)


def _chunk_table(lists: dict[str, _Lists], rows_before: Int64Array, num_columns: int) -> ChunkTable:
    """Return the chunks of all parts; ValueError where their frames contradict each other."""
    edges = lists["chunk_rows"].edges
    num_chunks = np.diff(edges)
    rows, gaps, encoding, num_frames, frame, raw, length, crc32 = (
        lists[name].values for name in _OF_CHUNKS
    )
    most = MAX_INTEGER >> 20  # so that no sum overflows
    if (
        num_chunks.min() < 1
        or any((lists[name].edges != edges).any() for name in _OF_CHUNKS[1:4])
        or min(each.min(initial=1) for each in (rows, num_frames, length)) < 1
        or min(each.min(initial=0) for each in (gaps, raw, rows_before)) < 0
        or max(each.max(initial=0) for each in (rows, gaps, length, raw)) > most
    ):
        msg = "chunks contradict each other"
        raise ValueError(msg)
    first_frame = np.zeros(len(rows) + 1, np.int64)
    num_frames.cumsum(out=first_frame[1:])
    of_columns, of_frames = edges * num_columns, first_frame[edges]
    frame, raw = frame.reshape(-1, num_columns), raw.reshape(-1, num_columns)
    if (
        any((lists[name].edges != of_columns).any() for name in _OF_CHUNKS[4:6])
        or any((lists[name].edges != of_frames).any() for name in _OF_CHUNKS[6:])
        or frame.min() < 0
        or (frame >= num_frames[:, None]).any()
    ):
        msg = "chunks and their frames contradict each other"
        raise ValueError(msg)
    held = np.zeros(len(length), np.bool_)
    held[frame + first_frame[:-1, None]] = True
    if not held.all():
        msg = "a frame holds no column"
        raise ValueError(msg)
    chunk_length = np.add.reduceat(length, first_frame[:-1])
    row_ends, ends = rows.cumsum(), (gaps + chunk_length).cumsum()
    first_row, offset = row_ends - rows, ends - chunk_length
    starts = edges[:-1]
    first_row -= np.repeat(first_row[starts] + rows_before, num_chunks)
    offset -= np.repeat((offset - gaps)[starts], num_chunks)
    return ChunkTable(first_row, rows, offset, encoding, num_frames, frame, raw, length, crc32)


_OF_CHUNKS = (
    *("chunk_rows", "chunk_gap", "chunk_encoding", "chunk_frames"),
    *("column_frame", "column_raw_length"),
    *("frame_length", "frame_crc32"),
)
"""_Lists with a value for each chunk, for each chunk and column, and for each frame."""


def _check_parts(
    numbers: dict[str, NDArray[Any]],
    reach: Int64Array,
    num_listed: Int64Array,
    chunks: ChunkTable,
    chunk_edges: Int64Array,
    ranges: Int64Array,
) -> None:
    """Refuse a part that leads a reader outside of its file, its range or its rows.

    ``reach`` and ``num_listed`` are the sums of the distances of its subpartitions, and of their
    rows, each of which is 1 at least: 0 where it lists none. ``ranges`` has for each part the
    subpartitions of its block, the length of its data file, and how many subpartitions that has.
    """
    first_row, num_rows = numbers["first_row"], numbers["num_rows"]
    start, last = chunk_edges[:-1], chunk_edges[1:] - 1
    last_row, last_rows = chunks.first_row[last], chunks.num_rows[last]
    are_rows = np.where(
        numbers["kind"] == RegionKind.BROADCAST,
        (num_listed == 0)
        & (ranges[:, 0] == 0)  # who wants a subpartition finds it in the block of that
        & (ranges[:, 1] == ranges[:, 3])
        & (first_row == 0)
        & (chunks.first_row[start] == 0)
        & (last_row + last_rows == num_rows),
        (num_listed == num_rows) & (reach <= ranges[:, 1] - ranges[:, 0]),
    )
    sound = (
        are_rows
        & (numbers["region"] >= 0)
        & (first_row >= 0)
        & (num_rows > 0)
        & (num_rows <= MAX_REGION_ROWS - first_row)
        & (chunks.first_row[start] <= 0)
        & (chunks.first_row[start] + chunks.num_rows[start] > 0)
        & (last_row < num_rows)
        & (num_rows <= last_row + last_rows)
        & (np.bitwise_or.reduceat(chunks.offset, start) % 8 == 0)
        & (chunks.offset[start] >= 8)
        & (chunks.offset[last] + chunks.length[last] <= ranges[:, 2])
    )
    if not sound.all():
        region = numbers["region"][sound.argmin()]
        msg = f"region {region} of the index contradicts itself or its data file's length"
        raise CorruptShuffleError(msg)


def _is_message(chunks: ChunkTable) -> NDArray[np.bool_]:
    """Return of each chunk whether it is a message, of which no column says its bytes."""
    is_message: NDArray[np.bool_] = chunks.encoding == MESSAGE
    if is_message.any():
        is_message &= ~chunks.column_raw_length.any(axis=1)
    return is_message


def _check_sizes(chunks: ChunkTable) -> None:
    """Refuse chunks that would expand to more bytes or rows than any writer makes."""
    rows = chunks.num_rows
    framed = (chunks.encoding != MESSAGE) & (chunks.raw_length <= MOST_ZSTD_RATIO * chunks.length)
    sound = (
        (chunks.raw_length > 0)
        & (framed | _is_message(chunks))
        & ((rows == 1) | (chunks.raw_length <= MOST_RAW_BYTES))
        & (rows <= MAX_CHUNK_ROWS)
    )
    # Sizes of unknown, later encodings cannot be judged; those are refused when they are read.
    sound |= chunks.encoding > LAST_ENCODING
    if not sound.all():
        chunk = int(np.flatnonzero(~sound)[0])
        msg = (
            f"the chunk at byte {int(chunks.offset[chunk])} has "
            f"{int(rows[chunk]):,} rows in {int(chunks.length[chunk]):,} bytes, "
            f"{int(chunks.raw_length[chunk]):,} before compression; no writer makes such a chunk"
        )
        raise CorruptShuffleError(msg)
