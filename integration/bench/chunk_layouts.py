"""What a chunk may hold inside its zstd frame, measured: the figures of ADR 5.

Regions of 48 MiB go from arriving batches to stored chunks and back, as in the engine, with one
layout after the other in turns, on one core. Before anything is timed, rows are compared with what
their chunks give back. Takes about ten minutes; ``python -m integration.bench.chunk_layouts
--help`` says how to measure less.
"""

from __future__ import annotations

import argparse
import struct
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import zstandard

from arrow_format.jobs.write import clustering as cutting
from arrow_format.keys.spark_hash import hash_columns, subpartition_ids
from arrow_format.write.clustering import Clustering, cluster
from integration.bench.ipc import BATCH_ROWS, read_batches
from integration.bench.lineitem import ipc_stream
from integration.programs.datasets import flights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Array: TypeAlias = npt.NDArray[Any]
Batches: TypeAlias = "list[pa.RecordBatch]"

REGION_BYTES = 48 << 20
ROW_OVERHEAD_BYTES = 16
COPY_BYTES = 4 << 20

# --- tables -------------------------------------------------------------------------------------


def lineitem_batches() -> Batches:
    """TPC-H ``lineitem`` SF 1: 16 columns, of them 4 decimals and 5 strings."""
    return read_batches(ipc_stream(1.0))


def narrow_batches() -> Batches:
    """Four numbers a row: a part, the distance of some flight, a random float, a time."""
    rows = pa.Table.from_batches(lineitem_batches())
    random = np.random.default_rng(5)
    distances = (
        ds.dataset(flights(), format="parquet").to_table(["distance"])["distance"].to_numpy()
    )
    days = rows["l_shipdate"].to_numpy().astype("datetime64[us]").view(np.int64)
    seconds = random.integers(0, 86_400, rows.num_rows)
    columns = {
        "k": rows["l_partkey"],
        "i": pa.array(random.choice(distances, rows.num_rows), pa.int32()),
        "v": pa.array(random.normal(size=rows.num_rows)),
        "t": pa.array(days + seconds * 1_000_000, pa.timestamp("us")),
    }
    return _rebatched(pa.table(columns))


def text_batches() -> Batches:
    """An order, a short and a longer comment, and four short strings of some flight."""
    rows = pa.Table.from_batches(lineitem_batches()[:200])
    random = np.random.default_rng(6)
    comments = rows["l_comment"].combine_chunks()
    halves = [comments.take(pa.array(random.permutation(len(comments)))) for _ in range(2)]
    names = ["carrier", "tailnum", "origin", "dest"]
    flown = ds.dataset(flights(), format="parquet").to_table(names)
    drawn = flown.take(pa.array(random.integers(0, flown.num_rows, rows.num_rows)))
    columns = {
        "k": rows["l_orderkey"],
        "comment": comments,
        "longer_comment": pc.binary_join_element_wise(*halves, " "),
    }
    return _rebatched(pa.table(columns | {name: drawn[name] for name in names}))


TABLES: dict[str, tuple[Callable[[], Batches], str]] = {
    "lineitem": (lineitem_batches, "l_orderkey"),
    "narrow": (narrow_batches, "k"),
    "text": (text_batches, "k"),
}
"""What makes each table, and its key."""


def _rebatched(table: pa.Table) -> Batches:
    """Batches that are one allocation each, as if they had come over IPC."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=BATCH_ROWS)
    with pa.ipc.open_stream(pa.BufferReader(sink.getvalue())) as reader:
        return list(reader)


# --- layouts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """What is stored in a chunk; the defaults are those of format version 1 so far."""

    name: str
    level: int = 1
    fitted: bool = False
    """Compression parameters for inputs of 256 KiB, whatever the size of a chunk."""
    window_log: int = 0
    min_match: int = 0
    """Instead of the fitted ones, when not 0."""
    chunk_bytes: int = 256 << 10
    split_bytes: int = 1 << 20
    decimals: bool = False
    """Decimals of up to 18 digits as int64."""
    lengths: bool = False
    """Lengths of strings, in as few bytes as they need, instead of offsets."""
    narrow: bool = False
    """Integers, dates, times and short decimals less the region's smallest, in 1, 2, 4 or 8 bytes
    as its largest needs."""
    codes: bool = False
    """Strings of up to 255 different values in a region as codes of one byte."""
    planes: tuple[int, ...] = ()
    """Widths of the columns stored as all first bytes, then all second ones, and so on."""
    block_bytes: int = 0
    """When not 0, a zstd block ends behind every column that fills it with so many bytes."""

    @property
    def is_ipc(self) -> bool:
        """Whether a chunk is an Arrow IPC message."""
        return not (self.lengths or self.narrow or self.codes or self.planes or self.block_bytes)

    def compressor(self) -> zstandard.ZstdCompressor:
        """Return a compressor to use for chunk after chunk."""
        if not self.fitted:
            return zstandard.ZstdCompressor(level=self.level, write_content_size=True)
        chosen = {"window_log": self.window_log, "min_match": self.min_match}
        return zstandard.ZstdCompressor(
            compression_params=zstandard.ZstdCompressionParameters.from_level(
                self.level,
                source_size=256 << 10,
                write_content_size=True,
                **{name: value for name, value in chosen.items() if value},
            )
        )


NUMBERS, STRINGS, CODES, HAS_NULLS = 0, 1, 2, 128
MOST_CODES = 255
MOST_DICTIONARY_BYTES = 1 << 10
MOST_INT64_DIGITS = 18

_ROWS = struct.Struct("<Q")
_COLUMN = struct.Struct("<BBHIq")
"""Kind, bytes of a value or length, planes or codes, bytes of strings, the region's smallest."""

_Pieces: TypeAlias = "list[bytes | memoryview]"


@dataclass
class Numbers:
    """Values of a fixed width less ``base``, row by row or as planes of bytes."""

    values: Array
    base: int = 0
    planes: Array | None = None
    valid: Array | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.values.nbytes if self.planes is None else self.planes.nbytes

    @cached_property
    def _octets(self) -> memoryview:
        return self.values.view(np.uint8).data

    def cut(self, start: int, stop: int) -> tuple[bytes, _Pieces]:
        """Header and buffers of some rows."""
        validity = _bitmap(self.valid, start, stop)
        width = self.values.itemsize
        if self.planes is None:
            pieces = _aligned(self._octets[start * width : stop * width])
        else:
            pieces = _aligned(self.planes[:, start:stop].tobytes())
        planes = 0 if self.planes is None else len(self.planes)
        return _COLUMN.pack(
            _kind(NUMBERS, validity), width, planes, 0, self.base
        ), validity + pieces


@dataclass
class Strings:
    """The bytes of strings, and their lengths; their offsets when there are no lengths."""

    offsets: Array
    data: memoryview
    lengths: Array | None
    valid: Array | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        ends = self.offsets if self.lengths is None else self.lengths
        return ends.nbytes + int(self.offsets[-1] - self.offsets[0])

    def cut(self, start: int, stop: int) -> tuple[bytes, _Pieces]:
        """Header and buffers of some rows."""
        validity = _bitmap(self.valid, start, stop)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        if self.lengths is None:
            width, ends = 0, (self.offsets[start : stop + 1] - first).tobytes()
        else:
            width, ends = self.lengths.itemsize, self.lengths[start:stop].tobytes()
        header = _COLUMN.pack(_kind(STRINGS, validity), width, 0, last - first, 0)
        return header, validity + _aligned(ends) + _aligned(self.data[first:last])


@dataclass
class Codes:
    """A code per row, and the region's dictionary, which every chunk carries."""

    codes: Array
    dictionary: pa.Array
    valid: Array | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.codes.nbytes

    @cached_property
    def _stored(self) -> tuple[int, _Pieces]:
        offsets, data = _offsets_and_data(self.dictionary)
        octets = data[int(offsets[0]) : int(offsets[-1])]
        lengths = np.diff(offsets).astype(np.uint16)
        return len(octets), _aligned(lengths.tobytes()) + _aligned(octets)

    def cut(self, start: int, stop: int) -> tuple[bytes, _Pieces]:
        """Header and buffers of some rows."""
        validity = _bitmap(self.valid, start, stop)
        size, dictionary = self._stored
        header = _COLUMN.pack(_kind(CODES, validity), 1, len(self.dictionary), size, 0)
        return header, validity + dictionary + _aligned(self.codes[start:stop].data)


Column: TypeAlias = "Numbers | Strings | Codes"


def _aligned(piece: bytes | memoryview) -> _Pieces:
    return [piece, bytes(-len(piece) % 8)] if len(piece) % 8 else [piece]


def _padded(size: int) -> int:
    return size + -size % 8


def _bitmap(valid: Array | None, start: int, stop: int) -> _Pieces:
    if valid is None or valid[start:stop].all():
        return []
    return _aligned(np.packbits(valid[start:stop], bitorder="little").tobytes())


def _kind(kind: int, validity: _Pieces) -> int:
    return kind | HAS_NULLS if validity else kind


# --- columns of Arrow to columns of a layout ------------------------------------------------------


def packed(column: pa.Array, layout: Layout) -> Column:
    """Turn a gathered column into what chunks are cut from."""
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    if pa.types.is_string(column.type):
        coded = _coded(column, valid) if layout.codes else None
        return coded or _strings(column, valid, with_lengths=layout.lengths)
    if layout.narrow and _is_integral(column.type):
        numbers = _narrowed(_integers(column), valid)
    elif layout.decimals and _is_short_decimal(column.type):
        numbers = Numbers(_integers(column).copy(), valid=valid)
    else:
        width = column.type.bit_width // 8
        numbers = Numbers(_values(column, "V16" if width == 16 else f"i{width}"), valid=valid)
    width = numbers.values.itemsize
    if width in layout.planes:
        used = width
        if numbers.values.dtype.kind == "u" and valid is None:
            used = max((int(numbers.values.max(initial=0)).bit_length() + 7) // 8, 1)
        octets = numbers.values.view(np.uint8).reshape(-1, width)
        numbers.planes = np.ascontiguousarray(octets[:, :used].T)
    return numbers


def _narrowed(values: Array, valid: Array | None) -> Numbers:
    judged = values if valid is None else values[valid]
    if not len(judged):
        return Numbers(np.zeros(len(values), np.uint8), valid=valid)
    smallest, largest = int(judged.min()), int(judged.max())
    dtype = _unsigned(largest - smallest)
    if smallest >= 0 and _unsigned(largest) == dtype:
        return Numbers(values.astype(dtype), valid=valid)
    narrow = np.empty(len(values), dtype)
    np.subtract(values, values.dtype.type(smallest), out=narrow, casting="unsafe")
    return Numbers(narrow, smallest, valid=valid)


def _strings(column: pa.Array, valid: Array | None, *, with_lengths: bool) -> Strings:
    offsets, data = _offsets_and_data(column)
    if not with_lengths:
        return Strings(offsets, data, None, valid)
    lengths = np.diff(offsets)
    return Strings(offsets, data, lengths.astype(_unsigned(int(lengths.max(initial=0)))), valid)


def _coded(column: pa.Array, valid: Array | None) -> Codes | None:
    """Codes of a column, or None when it has too many different values."""
    if len(column.slice(0, 4096).unique()) > MOST_CODES:
        return None
    encoded = column.dictionary_encode()
    dictionary = encoded.dictionary
    if len(dictionary) > MOST_CODES or dictionary.nbytes > MOST_DICTIONARY_BYTES:
        return None
    return Codes(_values(encoded.indices, np.int32).astype(np.uint8), dictionary, valid)


def _unsigned(largest: int) -> np.dtype[Any]:
    return np.dtype(next(f"u{width}" for width in (1, 2, 4, 8) if largest < 1 << 8 * width))


def _is_short_decimal(type_: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(type_) and type_.precision <= MOST_INT64_DIGITS)


def _is_integral(type_: pa.DataType) -> bool:
    return (
        _is_short_decimal(type_) or pa.types.is_signed_integer(type_) or pa.types.is_temporal(type_)
    )


def _integers(column: pa.Array) -> Array:
    """Values as integers, without a copy; those of decimals lie 16 bytes apart."""
    if _is_short_decimal(column.type):
        words = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset)
        return words[::2]
    return _values(column, f"i{column.type.bit_width // 8}")


def _values(column: pa.Array, dtype: npt.DTypeLike) -> Array:
    dtype = np.dtype(dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _offsets_and_data(column: pa.Array) -> tuple[Array, memoryview]:
    _, offsets, data = column.buffers()
    places = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset)
    return places, memoryview(b"" if data is None else data)


# --- writing ------------------------------------------------------------------------------------


class Writer:
    """Takes regions through copy, gather, pack, encode and zstd; counts CPU seconds of each."""

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._layout = layout
        self._schema = stored_schema(layout, schema)
        self._compressor = layout.compressor()
        self.seconds: dict[str, float] = defaultdict(float)

    def write(self, batches: Batches, clustering: Clustering, n: int) -> list[bytes]:
        """Turn the batches of a region into stored chunks."""
        started = time.process_time()
        columns = [self._copied(i, batches) for i in range(len(self._schema))]
        started = self._took("copy", started)
        taken = pa.array(clustering.permutation)
        gathered: list[pa.Array] = []
        kept: list[Column] = []
        for i, parts in enumerate(columns):
            columns[i] = []
            column = pa.concat_arrays(parts).take(taken)
            del parts
            started = self._took("gather", started)
            if self._layout.is_ipc:
                gathered.append(column)
            else:
                kept.append(packed(column, self._layout))
            started = self._took("pack", started)
        if not self._layout.is_ipc:
            ends = cut(clustering, n, sum(column.num_bytes for column in kept), self._layout)
            return [self._packed_chunk(kept, start, stop) for start, stop in pairwise(ends)]
        batch = pa.RecordBatch.from_arrays(gathered, schema=self._schema)
        ends = cut(clustering, n, batch.nbytes, self._layout)
        return [self._ipc_chunk(batch.slice(start, stop - start)) for start, stop in pairwise(ends)]

    def _took(self, step: str, started: float) -> float:
        now = time.process_time()
        self.seconds[step] += now - started
        return now

    def _copied(self, index: int, batches: Batches) -> list[pa.Array]:
        """Copy a column as the sort buffer does, every few megabytes."""
        together = max(int(COPY_BYTES / batches[0].nbytes), 1)
        groups = [batches[i : i + together] for i in range(0, len(batches), together)]
        if self._schema.field(index).type == batches[0].schema.field(index).type:
            return [pa.concat_arrays([b.column(index) for b in group]) for group in groups]
        joined = [np.concatenate([_integers(b.column(index)) for b in group]) for group in groups]
        return [pa.array(values) for values in joined]

    def _ipc_chunk(self, batch: pa.RecordBatch) -> bytes:
        started = time.process_time()
        message = batch.serialize()
        started = self._took("encode", started)
        frame = memoryview(self._compressor.compress(message)).tobytes()
        self._took("zstd", started)
        return frame

    def _packed_chunk(self, columns: list[Column], start: int, stop: int) -> bytes:
        started = time.process_time()
        cuts = [column.cut(start, stop) for column in columns]
        header = b"".join([_ROWS.pack(stop - start), *(header for header, _ in cuts)])
        if not self._layout.block_bytes:
            message = b"".join([header, *(piece for _, pieces in cuts for piece in pieces)])
            started = self._took("encode", started)
            frame = memoryview(self._compressor.compress(message)).tobytes()
        else:
            sizes = [sum(map(len, pieces)) for _, pieces in cuts]
            started = self._took("encode", started)
            stream = self._compressor.compressobj(size=len(header) + sum(sizes))
            stored = [stream.compress(header)]
            open_bytes = 0
            for (_, pieces), size in zip(cuts, sizes, strict=True):
                stored += [stream.compress(piece) for piece in pieces]
                open_bytes += size
                if open_bytes >= self._layout.block_bytes:
                    stored.append(stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
                    open_bytes = 0
            stored.append(stream.flush())
            frame = b"".join(stored)
        self._took("zstd", started)
        return frame


def stored_schema(layout: Layout, schema: pa.Schema) -> pa.Schema:
    """Return the schema of IPC chunks."""
    as_int64 = layout.is_ipc and layout.decimals
    return pa.schema(
        [f.with_type(pa.int64()) if as_int64 and _is_short_decimal(f.type) else f for f in schema]
    )


def cut(clustering: Clustering, n: int, num_bytes: int, layout: Layout) -> list[int]:
    """Rows at which chunks start, and the number of rows."""
    usual = cutting.SPLIT_CHUNK_BYTES
    cutting.SPLIT_CHUNK_BYTES = layout.split_bytes
    try:
        firsts = cutting.cut_chunks(clustering, n, num_bytes, layout.chunk_bytes)
    finally:
        cutting.SPLIT_CHUNK_BYTES = usual
    return [*firsts.tolist(), int(clustering.row_offsets[-1])]


# --- reading ------------------------------------------------------------------------------------


class Reader:
    """Turns stored chunks into record batches of the schema they were made of."""

    def __init__(self, layout: Layout, schema: pa.Schema) -> None:
        self._is_ipc = layout.is_ipc
        self._schema = schema
        self._stored = stored_schema(layout, schema)
        self._same = self._stored.equals(schema)
        self._decompressor = zstandard.ZstdDecompressor()
        self._header = struct.Struct("<Q" + _COLUMN.format[1:] * len(schema))

    def read(self, frame: bytes) -> pa.RecordBatch:
        """Decode one chunk."""
        message = self._decompressor.decompress(frame)
        if not self._is_ipc:
            return self._unpacked(message)
        batch = pa.ipc.read_record_batch(pa.py_buffer(message), self._stored)
        if self._same:
            return batch
        columns = [
            column
            if column.type == f.type
            else _decimals(_values(column, np.int64), 0, None, f.type)
            for column, f in zip(batch.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _unpacked(self, message: bytes) -> pa.RecordBatch:
        found = self._header.unpack_from(message)
        cursor = _Cursor(message, self._header.size, found[0])
        columns = [
            cursor.column(f.type, *found[1 + 5 * i : 6 + 5 * i]) for i, f in enumerate(self._schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


@dataclass
class _Cursor:
    """Walks through the buffers of a packed chunk."""

    message: bytes
    at: int
    rows: int
    buffer: pa.Buffer = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = pa.py_buffer(self.message)

    def column(
        self, type_: pa.DataType, kind: int, width: int, count: int, size: int, base: int
    ) -> pa.Array:
        """Decode the next column; ``count`` is of planes or codes, ``size`` of string bytes."""
        validity = self._next((self.rows + 7) // 8) if kind & HAS_NULLS else None
        kind &= ~HAS_NULLS
        if kind == STRINGS:
            offsets = self._offsets(self.rows, width)
            return pa.Array.from_buffers(type_, self.rows, [validity, offsets, self._next(size)])
        if kind == CODES:
            offsets = self._offsets(count, 2)
            values = pa.Array.from_buffers(type_, count, [None, offsets, self._next(size)])
            buffers = [validity, self._next(self.rows)]
            return values.take(pa.Array.from_buffers(pa.uint8(), self.rows, buffers))
        wanted = type_.bit_width // 8
        if count:
            octets = (np.zeros if count < width else np.empty)((self.rows, width), np.uint8)
            octets[:, :count] = self._array("u1", count * self.rows).reshape(count, self.rows).T
            numbers: Array = octets.view(f"u{width}").reshape(-1)
        elif width == wanted and not base:
            return pa.Array.from_buffers(
                type_, self.rows, [validity, self._next(width * self.rows)]
            )
        else:
            numbers = self._array(f"u{width}", self.rows)
        if wanted == 16:
            return _decimals(numbers, base, validity, type_)
        wide = numbers.astype(f"i{wanted}", copy=base != 0 or width != wanted)
        if base:
            wide += wide.dtype.type(base)
        return pa.Array.from_buffers(type_, self.rows, [validity, pa.py_buffer(wide)])

    def _next(self, size: int) -> pa.Buffer:
        piece = self.buffer.slice(self.at, size)
        self.at += _padded(size)
        return piece

    def _array(self, dtype: str, count: int) -> Array:
        array = np.frombuffer(self.message, dtype, count, self.at)
        self.at += _padded(array.nbytes)
        return array

    def _offsets(self, count: int, width: int) -> pa.Buffer:
        if not width:
            return self._next(4 * count + 4)
        offsets = np.empty(count + 1, np.int32)
        offsets[0] = 0
        np.cumsum(self._array(f"u{width}", count), out=offsets[1:])
        return pa.py_buffer(offsets)


def _decimals(values: Array, base: int, validity: pa.Buffer | None, type_: pa.DataType) -> pa.Array:
    words = np.empty((len(values), 2), np.int64)
    low, high = words[:, 0], words[:, 1]
    low[:] = values.view(np.int64) if values.itemsize == 8 else values
    if base:
        low += base
    if values.itemsize < 8 and base >= 0:
        high[:] = 0
    else:
        np.right_shift(low, 63, out=high)
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(words)])


# --- measuring ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """Some regions of a table, and what to multiply their figures with."""

    regions: list[Batches]
    schema: pa.Schema
    key: str
    scale: float
    raw_bytes: int


@dataclass(frozen=True)
class Measured:
    """Figures of one layout for the whole table; times are milliseconds of CPU."""

    name: str
    stored_bytes: float
    num_chunks: float
    steps: dict[str, float]

    @property
    def write(self) -> float:
        """From arriving batches to stored chunks."""
        return sum(ms for step, ms in self.steps.items() if step != "read")

    @property
    def read(self) -> float:
        """From stored chunks to batches of the schema."""
        return self.steps["read"]


def sample(table: str, count: int) -> Sample:
    """Take regions spread evenly over a table."""
    make, key = TABLES[table]
    batches = make()
    raw_bytes = sum(batch.nbytes for batch in batches)
    rows = sum(batch.num_rows for batch in batches)
    region_rows = REGION_BYTES / (raw_bytes / rows + ROW_OVERHEAD_BYTES)
    each = max(int(region_rows / batches[0].num_rows), 1)
    starts = np.linspace(0, len(batches) - each, count).astype(int).tolist()
    regions = [batches[start : start + each] for start in starts]
    sampled = sum(batch.num_rows for region in regions for batch in region)
    return Sample(regions, batches[0].schema, key, rows / sampled, raw_bytes)


def measure(chosen: Sample, n: int, layouts: Sequence[Layout], rounds: int) -> list[Measured]:
    """Write and read the regions with each layout in turns; times are medians of the rounds."""
    clusterings = [_clustering(region, chosen.key, n) for region in chosen.regions]
    for layout in layouts:
        _check(chosen.regions[0], clusterings[0], n, layout)
    taken: dict[str, dict[str, list[float]]] = {x.name: defaultdict(list) for x in layouts}
    sizes: dict[str, list[int]] = {}
    for number in range(rounds):
        for layout in layouts if number % 2 == 0 else reversed(layouts):
            writer = Writer(layout, chosen.schema)
            reader = Reader(layout, chosen.schema)
            sizes[layout.name] = []
            for region, clustering in zip(chosen.regions, clusterings, strict=True):
                frames = writer.write(region, clustering, n)
                sizes[layout.name] += map(len, frames)
                started = time.process_time()
                for frame in frames:
                    reader.read(frame)
                writer.seconds["read"] += time.process_time() - started
            for step, seconds in writer.seconds.items():
                taken[layout.name][step].append(seconds * 1e3)
    return [
        Measured(
            name,
            sum(sizes[name]) * chosen.scale,
            len(sizes[name]) * chosen.scale,
            {step: median(values) * chosen.scale for step, values in steps.items()},
        )
        for name, steps in taken.items()
    ]


def _clustering(region: Batches, key: str, n: int) -> Clustering:
    ids = [subpartition_ids(hash_columns([batch.column(key)]), n) for batch in region]
    return cluster(np.concatenate(ids), n)


def _check(region: Batches, clustering: Clustering, n: int, layout: Layout) -> None:
    rows = pa.Table.from_batches(region).take(pa.array(clustering.permutation))
    reader = Reader(layout, rows.schema)
    frames = Writer(layout, rows.schema).write(region, clustering, n)
    found = pa.Table.from_batches([reader.read(frame) for frame in frames])
    found.validate(full=True)
    if not found.equals(rows):
        msg = f"layout {layout.name!r} does not give back the rows it was given"
        raise RuntimeError(msg)


NOW = Layout("now")
FITTED = replace(NOW, name="fitted zstd", fitted=True)
PACKED = replace(FITTED, name="lengths, narrow", lengths=True, narrow=True)
BLOCKS = replace(PACKED, name="lengths, narrow, blocks", block_bytes=16 << 10)

PARTS: dict[str, list[Layout]] = {
    "columns": [
        NOW,
        FITTED,
        replace(FITTED, name="decimals", decimals=True),
        replace(FITTED, name="planes of 4", planes=(4,)),
        replace(FITTED, name="planes of 8", planes=(8,)),
        replace(FITTED, name="lengths", lengths=True),
        replace(FITTED, name="lengths, decimals", lengths=True, decimals=True),
        replace(
            FITTED, name="lengths, decimals, planes", lengths=True, decimals=True, planes=(4, 8)
        ),
        replace(FITTED, name="narrow", narrow=True),
        PACKED,
        BLOCKS,
        replace(BLOCKS, name="... all columns a block", block_bytes=1),
        replace(BLOCKS, name="... planes of 8", planes=(8,)),
        replace(BLOCKS, name="... planes of 2, 4, 8", planes=(2, 4, 8)),
        replace(BLOCKS, name="... codes", codes=True),
    ],
    "zstd": [
        layout
        for base in (NOW, PACKED)
        for layout in (
            *(replace(base, name=f"{base.name}, level {k}", level=k) for k in (-3, -1, 1, 2, 3)),
            replace(base, name=f"{base.name}, fitted", fitted=True),
            *(
                replace(base, name=f"{base.name}, fitted, match {k}", fitted=True, min_match=k)
                for k in (4, 5, 7)
            ),
            replace(base, name=f"{base.name}, fitted, window 19", fitted=True, window_log=19),
        )
    ],
    "sizes": [
        replace(base, name=f"{base.name}, {kib} KiB", chunk_bytes=kib << 10)
        for base in (NOW, PACKED, BLOCKS)
        for kib in (64, 128, 256, 512, 1024)
    ]
    + [
        replace(base, name=f"{base.name}, split 4 MiB", split_bytes=4 << 20)
        for base in (NOW, BLOCKS)
    ],
}


def _printed(measured: Sequence[Measured]) -> None:
    print("| layout | MB | write ms | copy, gather, pack, encode, zstd | read ms | chunks | us |")
    print("|---|---|---|---|---|---|---|")
    for m in measured:
        steps = ", ".join(f"{ms:.0f}" for step, ms in m.steps.items() if step != "read")
        print(
            f"| {m.name} | {m.stored_bytes / 1e6:.1f} | {m.write:.0f} | {steps} | {m.read:.0f} "
            f"| {m.num_chunks:.0f} | {m.read * 1e3 / m.num_chunks:.0f} |",
            flush=True,
        )


def main() -> None:
    """Print a table per part, table and number of subpartitions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("-n", nargs="+", type=int, default=[200, 2_000, 20_000])
    parser.add_argument("--regions", type=int, default=2, help="of each table (default: 2)")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    pa.set_cpu_count(1)
    for table in chosen.tables:
        rows = sample(table, chosen.regions)
        for part in chosen.parts:
            for n in chosen.n:
                print(f"\n{part}: {table}, {rows.raw_bytes / 1e6:.0f} MB in Arrow, n = {n:,}\n")
                _printed(measure(rows, n, PARTS[part], chosen.rounds))


if __name__ == "__main__":
    main()
