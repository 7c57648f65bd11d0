"""The index file: bytes to and from ``(metadata, regions)``.

An Arrow IPC file of one record batch with one row per region. Between the end of the stream and the
footer are bytes of our own: the statistics of the chunks, and 24 bytes with magic, length of and
CRC-32 over everything before, and length of the statistics. Arrow's readers skip them; this one
ignores the footer. See ``docs/format/v1.md``.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import text_offsets, to_arrow, to_numpy, validity
from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_table import ChunkTable, Encoding
from arrow_format.format.ipc import check_stream, from_json, to_json
from arrow_format.format.regions import PrefixSums, Region, RegionKind
from arrow_format.model import MAX_INTEGER, PartitionedFileMetadata, check_format_version
from arrow_format.options import MAX_CHUNK_BYTES, MAX_CHUNK_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_TRAILER = struct.Struct("<8sQII")
_TRAILER_MAGIC = b"ASHFIDX1"
_IPC_MAGIC = b"ARROW1"
_KEY = b"arrow_shuffle"

MOST_RAW_BYTES = 2 * MAX_CHUNK_BYTES
"""Bound of a chunk of several rows before compression; writers make at most half of it."""

MOST_ZSTD_RATIO = 1 << 15
"""A zstd block of 4 bytes can expand to 128 KiB."""

_CHUNK_TYPES = {
    "first_row": pa.int64(),
    "offset": pa.int64(),
    "encoding": pa.uint8(),
    "num_frames": pa.int32(),
    "column_frame": pa.int32(),
    "column_raw_length": pa.int64(),
    "frame_length": pa.int64(),
    "frame_crc32": pa.uint32(),
}
"""Of the arrays of a :class:`ChunkTable`, those of two dimensions row by row."""

_COUNT_TYPES = (pa.uint8(), pa.uint16(), pa.uint32())


def _list_field(name: str, dtype: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, pa.list_(pa.field("item", dtype, nullable=False)), nullable)


INDEX_SCHEMAS = {
    (gap_type, row_type): pa.schema(
        [
            pa.field("kind", pa.uint8(), nullable=False),
            pa.field("num_rows", pa.int64(), nullable=False),
            pa.field("first_subpartition", pa.int32(), nullable=False),
            _list_field("rank_gaps", gap_type, nullable=True),
            _list_field("rank_rows", row_type),
            *(_list_field(name, dtype) for name, dtype in _CHUNK_TYPES.items()),
        ]
    )
    for gap_type, row_type in product(_COUNT_TYPES, repeat=2)
}
"""Columns of an index, one row per region in file order, by the item types of the two columns of
counts: a file has the narrowest that fit it."""


class _Version(msgspec.Struct):
    format_version: int


def encode_index(
    metadata: PartitionedFileMetadata, regions: Sequence[Region], statistics: bytes = b""
) -> bytes:
    """Return the index file of a data file with ``regions`` in file order.

    ``statistics`` are those of all chunks, see :mod:`arrow_format.format.statistics_section`.
    """
    header = msgspec.json.encode(metadata, enc_hook=to_json)
    gaps = _lists([None if r.rank_gaps is None else r.rank_gaps.values for r in regions])
    rows = _lists([region.rank_rows.values for region in regions])
    schema = INDEX_SCHEMAS[gaps.type.value_type, rows.type.value_type]
    columns = [
        to_arrow(np.array([int(region.kind) for region in regions], np.uint8)),
        to_arrow(np.array([region.num_rows for region in regions], np.int64)),
        to_arrow(np.array([region.first_subpartition for region in regions], np.int32)),
        gaps,
        rows,
        *(_lists([getattr(r.chunks, name).ravel() for r in regions]) for name in _CHUNK_TYPES),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema.with_metadata({_KEY: header})) as writer:
        # The arrays carry the schema's types up to the nullability of list items.
        writer.write_batch(
            pa.RecordBatch.from_arrays(
                [c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
            )
        )
    file: bytes = sink.getvalue().to_pybytes()
    end = _footer_start(file)
    body = file[:end] + statistics
    trailer = _TRAILER.pack(_TRAILER_MAGIC, len(body), zlib.crc32(body), len(statistics))
    return body + trailer + file[end:]


def _lists(values: Sequence[NDArray[Any] | None]) -> pa.ListArray:
    """Return lists of the widest type among the arrays; None is null."""
    present = [v for v in values if v is not None]
    ends = np.cumsum([0, *(0 if v is None else len(v) for v in values)])
    flat = np.concatenate(present) if present else np.empty(0, np.uint8)
    offsets = to_arrow(
        ends.astype(np.int32),
        mask=np.array([*(v is None for v in values), False])
        if len(present) < len(values)
        else None,
    )
    return pa.ListArray.from_arrays(offsets, to_arrow(flat))


def _footer_start(file: bytes) -> int:
    """Return where Arrow's footer, its length and magic begin."""
    tail = len(_IPC_MAGIC) + 4
    if len(file) < tail + 8 or not file.endswith(_IPC_MAGIC) or not file.startswith(_IPC_MAGIC):
        msg = f"index of {len(file)} bytes is not an Arrow IPC file"
        raise CorruptShuffleError(msg)
    footer_bytes: int = struct.unpack_from("<i", file, len(file) - tail)[0]
    start = len(file) - tail - footer_bytes
    if footer_bytes < 0 or start < 8:
        msg = f"index of {len(file)} bytes states a footer of {footer_bytes} bytes"
        raise CorruptShuffleError(msg)
    return start


def statistics_section(file: bytes) -> memoryview:
    """Return the bytes of a verified index file that have the statistics of its chunks."""
    end = _footer_start(file) - _TRAILER.size
    _, _, _, num_bytes = _TRAILER.unpack_from(file, end)
    return memoryview(file)[end - num_bytes : end]


def decode_index(file: bytes) -> tuple[PartitionedFileMetadata, tuple[Region, ...]]:
    """Verify and parse an index file.

    Raises
    ------
    CorruptShuffleError
        A byte differs from what was written, or the regions contradict themselves.
    FormatVersionError
        A newer version wrote it.
    """
    end = _footer_start(file) - _TRAILER.size
    if end < 8:
        msg = f"index of {len(file)} bytes is too short"
        raise CorruptShuffleError(msg)
    body = memoryview(file)[:end]
    magic, length, crc32, statistics_bytes = _TRAILER.unpack_from(file, end)
    if (
        magic != _TRAILER_MAGIC
        or length != len(body)
        or crc32 != zlib.crc32(body)
        or statistics_bytes > len(body) - 8
    ):
        msg = "index does not match its own checksum"
        raise CorruptShuffleError(msg)
    body = body[: len(body) - statistics_bytes]
    try:
        check_stream(body[8:], len(body))
        with pa.ipc.open_stream(pa.py_buffer(body[8:])) as reader:
            batches = list(reader)
        header = (reader.schema.metadata or {})[_KEY]
        version = msgspec.json.decode(header, type=_Version).format_version
        check_format_version(version, "index")
        metadata = msgspec.json.decode(header, type=PartitionedFileMetadata, dec_hook=from_json)
        fits = len(batches) == 1 and any(map(reader.schema.equals, INDEX_SCHEMAS.values()))
        if fits:
            batches[0].validate(full=True)
            regions = _regions(batches[0], len(metadata.data_schema))
    except (
        pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError,
    ) as error:  # fmt: skip
        msg = f"index is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    if not fits:
        shape = f"{len(batches)} batches of {len(reader.schema)} columns"
        msg = f"index has {shape}, expected one batch with the format's columns"
        raise CorruptShuffleError(msg)
    _check_regions(metadata, regions)
    return metadata, regions


def _regions(batch: pa.RecordBatch, num_columns: int) -> tuple[Region, ...]:
    columns = batch.columns
    for field, column in zip(batch.schema, columns, strict=True):
        if column.null_count and not field.nullable:  # which Arrow does not check
            msg = f"column {field.name} has nulls"
            raise ValueError(msg)
    kinds, *numbers = (to_numpy(column).tolist() for column in columns[:3])
    for number, kind in enumerate(kinds):
        if kind not in iter(RegionKind):
            msg = (
                f"region {number} has kind {kind}, which this version does not know; read it with "
                "a newer arrow-shuffle"
            )
            raise FormatVersionError(msg)
    gaps, rows, *chunks = map(_views, columns[3:])
    return tuple(
        Region(
            kind,
            num_rows,
            first,
            None if rank_gaps is None else PrefixSums(rank_gaps),
            PrefixSums(rank_rows),
            _chunk_table(dict(zip(_CHUNK_TYPES, table, strict=True)), num_columns),
        )
        for kind, num_rows, first, rank_gaps, rank_rows, *table in zip(
            map(RegionKind, kinds), *numbers, gaps, rows, *chunks, strict=True
        )
    )


def _chunk_table(arrays: dict[str, NDArray[Any]], num_columns: int) -> ChunkTable:
    """Return the table of chunks of a schema of some columns.

    Raises ValueError where their frames do not have all columns, or not these alone.
    """
    num_chunks, num_frames = len(arrays["offset"]), arrays["num_frames"]
    for name in ("column_frame", "column_raw_length"):
        arrays[name] = arrays[name].reshape(num_chunks, num_columns)
    frame, raw, length = arrays["column_frame"], arrays["column_raw_length"], arrays["frame_length"]
    if (
        num_frames.min(initial=1) < 1
        or int(num_frames.sum(dtype=np.int64)) != len(length)
        or len(length) != len(arrays["frame_crc32"])
        or np.any((frame < 0) | (frame >= num_frames[:, None]))
        or length.min(initial=1) < 1
        or raw.min(initial=0) < 0
        # So that no sum overflows.
        or max(int(length.max(initial=0)), int(raw.max(initial=0))) > MAX_INTEGER >> 20
    ):
        msg = "the frames of chunks contradict each other"
        raise ValueError(msg)
    table = ChunkTable(**arrays)
    if not np.bincount((frame + table.first_frame[:-1, None]).ravel(), minlength=len(length)).all():
        msg = "a frame holds no column"
        raise ValueError(msg)
    return table


def _views(column: pa.ListArray) -> list[Any]:
    """Return each list as a view, None where it is null; null items raise ArrowInvalid."""
    values = to_numpy(column.values)
    views = [values[start:end] for start, end in pairwise(text_offsets(column).tolist())]
    present = validity(column)
    if present is None:
        return views
    return [view if valid else None for view, valid in zip(views, present, strict=True)]


def _check_regions(metadata: PartitionedFileMetadata, regions: Sequence[Region]) -> None:
    """Refuse regions that would send a reader outside the file or its rows."""
    end = 0
    n = metadata.num_subpartitions
    for number, region in enumerate(regions):
        chunks = region.chunks
        lengths = {len(values) for values in (chunks.first_row, chunks.offset, chunks.encoding)}
        sound = (
            n >= 1
            and 0 <= region.first_subpartition < n
            and 0 < region.num_rows < 1 << 31
            and _ranks_are_sound(region, n)
            and lengths == {len(chunks)}
            and len(chunks) > 0
            and chunks.first_row[0] == 0
            and bool((chunks.first_row[1:] > chunks.first_row[:-1]).all())
            and chunks.first_row[-1] < region.num_rows
            and _wraps_between_chunks(region, n)
            and bool((chunks.offset % 8 == 0).all())
            # Compared first, so that no sum can overflow.
            and chunks.offset.max() <= metadata.data_bytes
            and int(chunks.offset[0]) >= end
            and bool((chunks.offset[1:] >= chunks.offset[:-1] + chunks.length[:-1]).all())
        )
        if sound:
            end = int(chunks.offset[-1] + chunks.length[-1])
            sound = end <= metadata.data_bytes
        if not sound:
            msg = f"region {number} of the index contradicts itself or its data file's length"
            raise CorruptShuffleError(msg)
        _check_sizes(number, region)


def _ranks_are_sound(region: Region, num_subpartitions: int) -> bool:
    gaps, rows = region.rank_gaps, region.rank_rows
    if region.kind is RegionKind.BROADCAST:
        return gaps is None and len(rows) == 0 and region.first_subpartition == 0
    if rows.total != region.num_rows:
        return False
    if gaps is None:
        return len(rows) == num_subpartitions
    return (
        len(gaps) == len(rows)
        and gaps.total <= num_subpartitions
        and bool(gaps.values.all() and rows.values.all())
    )


def _wraps_between_chunks(region: Region, num_subpartitions: int) -> bool:
    """Whether no chunk has rows of the last subpartition and of the first, which are far apart."""
    if not region.first_subpartition:
        return True
    _, wrap = region.rank_extent(0, num_subpartitions - region.first_subpartition)
    return wrap == region.num_rows or wrap in region.chunks.first_row


def _check_sizes(number: int, region: Region) -> None:
    """Refuse chunks that would expand to more bytes or rows than any writer makes."""
    chunks = region.chunks
    rows = np.diff(chunks.first_rows_and_end(region.num_rows))
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
            f"chunk {chunk} of region {number} has {int(rows[chunk]):,} rows in "
            f"{int(chunks.length[chunk]):,} bytes, {int(chunks.raw_length[chunk]):,} before "
            "compression; no writer makes such a chunk"
        )
        raise CorruptShuffleError(msg)
