"""Blocks of an index: what regions have of one range of subpartitions, as bytes and back; pure.

A block is one zstd frame of an Arrow record batch with a row per *part*: rows of one region, one
behind the other, whose subpartitions ascend. A rotated region has two parts where its subpartitions
wrap, so who reads parts needs to know of no rotation. See ``docs/format/reading.md``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import fixed_width_values, to_arrow
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.batch_frame import MALFORMED, decode_batch, encode_batch
from arrow_format.format.chunk_table import ChunkTable, Encoding
from arrow_format.format.regions import MAX_REGION_ROWS, PrefixSums, Region, RegionKind
from arrow_format.model import MAX_INTEGER
from arrow_format.options import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

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
    "subpartition_gap": pa.uint32(),
    "subpartition_rows": pa.uint32(),
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


def encode_block(parts: Sequence[Region]) -> bytes:
    """Return the block of some parts, by region and first row."""
    lists: dict[str, list[NDArray[Any]]] = {name: [] for name in _LISTS}
    for part in parts:
        chunks = part.chunks
        ends = np.append(0, (chunks.offset + chunks.length)[:-1])
        for name, values in (
            ("subpartition_gap", part.rank_gaps.values if part.rank_gaps else ends[:0]),
            ("subpartition_rows", part.rank_rows.values),
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


def decode_block(
    block: memoryview, first: int, end: int, *, num_columns: int, data_bytes: int
) -> tuple[Region, ...]:
    """Return the parts of a block, each as a region of its rows.

    Parameters
    ----------
    block
        Bytes whose CRC was checked.
    first, end
        Range of subpartitions that the directory states.
    num_columns
        Columns of the data schema.
    data_bytes
        Length of the data file.

    Raises
    ------
    CorruptShuffleError
        The parts contradict themselves.
    FormatVersionError
        A newer version wrote it.
    """
    try:
        batch = decode_batch(block, BLOCK_SCHEMA)
        parts = tuple(_parts(batch, first, num_columns))
    except MALFORMED as error:
        msg = f"index is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    for part in parts:
        if not _is_sound(part, end, data_bytes):
            msg = f"region {part.number} of the index contradicts itself or its data file's length"
            raise CorruptShuffleError(msg)
    places = [(part.number, part.first_row) for part in parts]
    if any(after <= before for before, after in pairwise(places)):
        msg = "the parts of a block of the index are not in order"
        raise CorruptShuffleError(msg)
    return parts


class _Lists(NamedTuple):
    """A column of lists: what is in all of them, and where the list of each part begins."""

    values: NDArray[Any]
    edges: list[int]
    """And where the last one ends."""

    @staticmethod
    def of(column: pa.ListArray, dtype: np.dtype[Any]) -> _Lists:
        _, offsets, _, values = column.buffers()
        edges = np.frombuffer(offsets, np.int32, len(column) + 1)
        start, stop = int(edges[0]), int(edges[-1])
        if stop == start:
            return _Lists(np.empty(0, dtype), [0] * len(edges))
        found = np.frombuffer(values, dtype, stop - start, start * dtype.itemsize)
        return _Lists(found, edges.tolist() if start == 0 else (edges - start).tolist())


_DTYPES = {name: np.dtype(str(type_)) for name, type_ in (_NUMBERS | _LISTS).items()}


def _parts(batch: pa.RecordBatch, first: int, num_columns: int) -> Iterator[Region]:
    if not batch.num_rows:
        return
    columns = dict(zip(BLOCK_SCHEMA.names, batch.columns, strict=True))
    numbers = {name: fixed_width_values(columns[name], _DTYPES[name]).tolist() for name in _NUMBERS}
    for region, kind in zip(numbers["region"], numbers["kind"], strict=True):
        if kind not in iter(RegionKind):
            msg = (
                f"region {region} has kind {kind}, which this version does not know; read it with "
                "a newer arrow-shuffle"
            )
            raise FormatVersionError(msg)
    lists = {name: _Lists.of(columns[name], _DTYPES[name]) for name in _LISTS}
    chunks = _chunk_table(lists, numbers["rows_before"], num_columns)
    _check_sizes(chunks)
    gaps, rows = lists["subpartition_gap"], lists["subpartition_rows"]
    if gaps.edges != rows.edges or 0 in (gaps.values.min(initial=1), rows.values.min(initial=1)):
        msg = "subpartitions and their rows contradict each other"
        raise ValueError(msg)
    of_parts = zip(pairwise(gaps.edges), pairwise(lists["chunk_rows"].edges), strict=True)
    for i, ((start, stop), of_chunks) in enumerate(of_parts):
        kind = RegionKind(numbers["kind"][i])
        yield Region(
            kind,
            numbers["num_rows"][i],
            first,
            None if kind is RegionKind.BROADCAST else PrefixSums.of(gaps.values[start:stop]),
            PrefixSums.of(rows.values[start:stop]),
            chunks.between(*of_chunks),
            numbers["region"][i],
            numbers["first_row"][i],
        )


def _chunk_table(
    lists: dict[str, _Lists], rows_before: Sequence[int], num_columns: int
) -> ChunkTable:
    """Return the chunks of all parts; ValueError where their frames contradict each other.

    All are checked together: that takes as long as those of one part.
    """
    edges = lists["chunk_rows"].edges
    # Copies: views would keep all of the block in memory.
    rows, gaps, encoding, num_frames, frame, raw, length, crc32 = (
        lists[name].values.copy() for name in _OF_CHUNKS
    )
    most = MAX_INTEGER >> 20  # so that no sum overflows
    if (
        any(stop <= start for start, stop in pairwise(edges))
        or any(lists[name].edges != edges for name in _OF_CHUNKS[1:4])
        or min(each.min() for each in (rows, num_frames, length)) < 1
        or min(gaps.min(), raw.min(), *rows_before) < 0
        or max(each.max() for each in (rows, gaps, length, raw)) > most
    ):
        msg = "chunks contradict each other"
        raise ValueError(msg)
    first_frame = np.zeros(len(rows) + 1, np.int64)
    num_frames.cumsum(out=first_frame[1:])
    of_columns = [edge * num_columns for edge in edges]
    of_frames = first_frame[edges].tolist()
    frame, raw = frame.reshape(-1, num_columns), raw.reshape(-1, num_columns)
    if (
        any(lists[name].edges != of_columns for name in _OF_CHUNKS[4:6])
        or any(lists[name].edges != of_frames for name in _OF_CHUNKS[6:])
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
    starts, num_chunks = edges[:-1], np.diff(edges)
    first_row -= np.repeat(first_row[starts] + rows_before, num_chunks)
    offset -= np.repeat((offset - gaps)[starts], num_chunks)
    return ChunkTable(first_row, rows, offset, encoding, num_frames, frame, raw, length, crc32)


_OF_CHUNKS = (
    *("chunk_rows", "chunk_gap", "chunk_encoding", "chunk_frames"),
    *("column_frame", "column_raw_length"),
    *("frame_length", "frame_crc32"),
)
"""Lists with a value for each chunk, for each chunk and column, and for each frame."""


def _is_sound(part: Region, end: int, data_bytes: int) -> bool:
    """Whether a part leads no reader outside of the file, the range or its rows."""
    chunks, rows, gaps = part.chunks, part.rank_rows, part.rank_gaps
    if gaps is None:
        are_rows = len(rows) == 0 and part.first_row == 0 == chunks.first_row[0]
        are_rows &= int(chunks.row_edges[-1]) == part.num_rows
    else:
        are_rows = rows.total == part.num_rows and gaps.total <= end - part.first_subpartition
    starts, last = chunks.first_row, int(chunks.first_row[-1])
    return (
        are_rows
        and part.number >= 0 <= part.first_row
        and 0 < part.num_rows <= MAX_REGION_ROWS - part.first_row
        and int(starts[0]) <= 0 < int(starts[0] + chunks.num_rows[0])
        and last < part.num_rows <= last + int(chunks.num_rows[-1])
        and not (chunks.offset % 8).any()
        and int(chunks.offset[0]) >= 8
        and int(chunks.offset[-1] + chunks.length[-1]) <= data_bytes
    )


def _check_sizes(chunks: ChunkTable) -> None:
    """Refuse chunks that would expand to more bytes or rows than any writer makes."""
    rows = chunks.num_rows
    framed = (chunks.encoding == Encoding.FRAMES) & (
        chunks.raw_length // MOST_ZSTD_RATIO <= chunks.length
    )
    sound = (
        (chunks.raw_length > 0)
        & (framed | (chunks.raw_length == chunks.length))
        & ((rows == 1) | (chunks.raw_length <= MOST_RAW_BYTES))
        & (rows <= MAX_CHUNK_ROWS)
    )
    # Sizes of unknown, later encodings cannot be judged; those are refused when they are read.
    sound |= chunks.encoding > max(Encoding)
    if not sound.all():
        chunk = int(np.flatnonzero(~sound)[0])
        msg = (
            f"the chunk at byte {int(chunks.offset[chunk])} has "
            f"{int(rows[chunk]):,} rows in {int(chunks.length[chunk]):,} bytes, "
            f"{int(chunks.raw_length[chunk]):,} before compression; no writer makes such a chunk"
        )
        raise CorruptShuffleError(msg)
