"""Blocks of an index: what regions have of one range of subpartitions, as bytes and back; pure.

A block is one zstd frame of an Arrow record batch with a row per *part*: rows of one region, one
behind the other, whose subpartitions ascend. A rotated region has two parts where its subpartitions
wrap, so who reads parts needs to know of no rotation. See ``docs/format/reading.md``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import text_offsets, to_arrow, to_numpy
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.batch_frame import MALFORMED, decode_batch, encode_batch
from arrow_format.format.chunk_table import ChunkTable, Encoding
from arrow_format.format.regions import MAX_REGION_ROWS, PrefixSums, Region, RegionKind
from arrow_format.model import MAX_INTEGER
from arrow_format.options import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        _check_sizes(part)
    places = [(part.number, part.first_row) for part in parts]
    if any(after <= before for before, after in pairwise(places)):
        msg = "the parts of a block of the index are not in order"
        raise CorruptShuffleError(msg)
    return parts


def _parts(batch: pa.RecordBatch, first: int, num_columns: int) -> list[Region]:
    columns = dict(zip(BLOCK_SCHEMA.names, batch.columns, strict=True))
    numbers = {name: to_numpy(columns[name]).tolist() for name in _NUMBERS}
    lists = {name: _views(columns[name]) for name in _LISTS}
    parts = []
    for i in range(batch.num_rows):
        row = {name: values[i] for name, values in numbers.items()}
        arrays = {name: values[i] for name, values in lists.items()}
        if row["kind"] not in iter(RegionKind):
            msg = (
                f"region {row['region']} has kind {row['kind']}, which this version does not know; "
                "read it with a newer arrow-shuffle"
            )
            raise FormatVersionError(msg)
        kind = RegionKind(row["kind"])
        gaps = None
        if kind is RegionKind.UNICAST:
            gaps = PrefixSums.of(arrays["subpartition_gap"])
        elif len(arrays["subpartition_gap"]):
            msg = "a broadcast region has subpartitions"
            raise ValueError(msg)
        parts.append(
            Region(
                kind,
                row["num_rows"],
                first,
                gaps,
                PrefixSums.of(arrays["subpartition_rows"]),
                _chunk_table(arrays, row["rows_before"], num_columns),
                row["region"],
                row["first_row"],
            )
        )
    return parts


def _views(column: pa.ListArray) -> list[NDArray[Any]]:
    values = to_numpy(column.values).copy()  # a view would keep all of the block in memory
    return [values[start:end] for start, end in pairwise(text_offsets(column).tolist())]


def _chunk_table(arrays: dict[str, NDArray[Any]], rows_before: int, num_columns: int) -> ChunkTable:
    """Return the chunks of a part; ValueError where their frames contradict each other."""
    rows, gaps, num_frames = (arrays[f"chunk_{name}"] for name in ("rows", "gap", "frames"))
    frame, raw = (
        arrays[name].reshape(len(rows), num_columns)
        for name in ("column_frame", "column_raw_length")
    )
    length = arrays["frame_length"]
    most = MAX_INTEGER >> 20  # so that no sum overflows
    if (
        not len(rows) == len(gaps) == len(num_frames) == len(arrays["chunk_encoding"]) > 0
        or num_frames.min() < 1
        or int(num_frames.sum(dtype=np.int64)) != len(length)
        or len(length) != len(arrays["frame_crc32"])
        or np.any((frame < 0) | (frame >= num_frames[:, None]))
        or min(int(rows.min()), int(length.min())) < 1
        or min(int(gaps.min()), int(raw.min()), rows_before) < 0
        or max(int(each.max()) for each in (rows, gaps, length, raw)) > most
    ):
        msg = "chunks or their frames contradict each other"
        raise ValueError(msg)
    first_frame = np.cumsum(num_frames, dtype=np.int64) - num_frames
    chunk_length = np.add.reduceat(length, first_frame)
    table = ChunkTable(
        np.cumsum(rows) - rows - rows_before,
        rows,
        np.cumsum(gaps + chunk_length) - chunk_length,
        arrays["chunk_encoding"],
        num_frames,
        frame,
        raw,
        length,
        arrays["frame_crc32"],
    )
    if not np.bincount((frame + first_frame[:, None]).ravel(), minlength=len(length)).all():
        msg = "a frame holds no column"
        raise ValueError(msg)
    return table


def _is_sound(part: Region, end: int, data_bytes: int) -> bool:
    """Whether a part leads no reader outside of the file, the range or its rows."""
    chunks, rows, gaps = part.chunks, part.rank_rows, part.rank_gaps
    if gaps is None:
        are_rows = len(rows) == 0 and part.first_row == 0 == chunks.first_row[0]
        are_rows &= int(chunks.row_edges[-1]) == part.num_rows
    else:
        are_rows = (
            len(gaps) == len(rows)
            and rows.total == part.num_rows
            and gaps.total <= end - part.first_subpartition
            and bool(gaps.values.all() and rows.values.all())
        )
    edges = chunks.row_edges
    return (
        are_rows
        and part.number >= 0 <= part.first_row
        and 0 < part.num_rows <= MAX_REGION_ROWS - part.first_row
        and edges[0] <= 0 < edges[1]
        and edges[-2] < part.num_rows <= edges[-1]
        and bool((chunks.offset % 8 == 0).all())
        and int(chunks.offset[0]) >= 8
        and int(chunks.offset[-1] + chunks.length[-1]) <= data_bytes
    )


def _check_sizes(part: Region) -> None:
    """Refuse chunks that would expand to more bytes or rows than any writer makes."""
    chunks = part.chunks
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
    known = chunks.encoding <= max(Encoding)
    if not (sound | ~known).all():
        chunk = int(np.flatnonzero(~sound & known)[0])
        msg = (
            f"the chunk at byte {int(chunks.offset[chunk])}, of region {part.number}, has "
            f"{int(rows[chunk]):,} rows in {int(chunks.length[chunk]):,} bytes, "
            f"{int(chunks.raw_length[chunk]):,} before compression; no writer makes such a chunk"
        )
        raise CorruptShuffleError(msg)
