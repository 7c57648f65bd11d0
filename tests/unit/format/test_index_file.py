"""The index file: round trip, every flip and every cut, and contradictions behind a good CRC."""

import json
import struct
import zlib
from dataclasses import replace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format.chunk_table import ChunkFrames, ChunkTable
from arrow_format.format.index_file import INDEX_SCHEMAS, decode_index, encode_index
from arrow_format.format.regions import PrefixSums, Region, RegionKind
from tests.support.guarantees import guarantee
from tests.support.small_shuffles import metadata_of

N = 5
INDEX_SCHEMA = INDEX_SCHEMAS[pa.uint8(), pa.uint8()]


def chunks(rows):
    """Chunks of one column, as `(first_row, offset, length, raw_length, encoding, crc32)`."""
    return ChunkTable.of(
        (first_row, offset, ChunkFrames(encoding, [0], [raw_length], [length], [crc32]))
        for first_row, offset, length, raw_length, encoding, crc32 in rows
    )


def sums(values):
    return PrefixSums.of(np.array(values, np.int64))


def region(rows, gaps=None, first=0, num_rows=None, kind=RegionKind.UNICAST, table=None):
    return Region(
        kind,
        sum(rows) if num_rows is None else num_rows,
        first,
        None if gaps is None else sums(gaps),
        sums(rows),
        chunks([(0, 8, 5, 30, 1, 7)]) if table is None else table,
    )


REGIONS = (
    region([1, 1, 0, 6, 1], table=chunks([(0, 8, 20, 30, 1, 2**32 - 1), (4, 32, 7, 7, 0, 0)])),
    region(
        [3, 1], gaps=[2, 3], first=2, table=chunks([(0, 40, 8, 100, 1, 12), (3, 48, 3, 9, 1, 1)])
    ),
    region([6], gaps=[4], first=4, table=chunks([(0, 56, 3, 3, 0, 5)])),
)
NO_CHUNKS = ChunkTable(**{name: values[:0] for name, values in REGIONS[0].chunks.arrays().items()})
METADATA = metadata_of(N, data_bytes=64, sort_by=(("a", "ascending"), ("b", "descending")))
METADATA = replace(METADATA, data_schema=pa.schema([("a", pa.int64())]))
INDEX = encode_index(METADATA, REGIONS)


def plain(value):
    """Regions as lists, which compare."""
    return [
        (
            r.kind,
            r.num_rows,
            r.first_subpartition,
            None if r.rank_gaps is None else r.rank_gaps.values.tolist(),
            r.rank_rows.values.tolist(),
            [getattr(r.chunks, name).tolist() for name in ChunkTable.__dataclass_fields__],
        )
        for r in value
    ]


def rebuilt(body: bytes) -> bytes:
    """An index of `body` (magic and stream) with a trailer and footer that fit."""
    *_, footer = _parts(INDEX)
    return body + struct.pack("<8sQII", b"ASHFIDX1", len(body), zlib.crc32(body), 0) + footer


def _parts(file):
    (footer,) = struct.unpack_from("<i", file, len(file) - 10)
    end = len(file) - 10 - footer
    return file[: end - 24], file[end - 24 : end], file[end:]


def test_round_trip():
    metadata, regions = decode_index(INDEX)
    assert metadata == METADATA
    assert plain(regions) == plain(REGIONS)


def test_types_are_those_of_the_model():
    _, (first, second, _) = decode_index(INDEX)
    assert first.rank_rows.values.dtype == second.rank_gaps.values.dtype == np.uint8
    found = {name: str(values.dtype) for name, values in first.chunks.arrays().items()}
    assert found == {
        "first_row": "int64", "offset": "int64", "encoding": "uint8", "num_frames": "int32",
        "column_frame": "int32", "column_raw_length": "int64",
        "frame_length": "int64", "frame_crc32": "uint32",
    }  # fmt: skip


def test_no_regions():
    metadata, regions = decode_index(encode_index(metadata_of(N, data_bytes=8), ()))
    assert regions == ()
    assert metadata.data_bytes == 8


def test_plain_arrow_and_polars_open_it():
    table = pa.ipc.open_file(INDEX).read_all()
    assert table.schema.equals(INDEX_SCHEMA)
    assert table["num_rows"].to_pylist() == [9, 4, 6]
    assert table["rank_gaps"].to_pylist() == [None, [2, 3], [4]]
    assert table["frame_crc32"].to_pylist() == [[2**32 - 1, 0], [12, 1], [5]]
    described = json.loads(table.schema.metadata[b"arrow_shuffle"])
    assert described["num_subpartitions"] == N
    assert described["data_bytes"] == 64
    assert pl.read_ipc(INDEX)["rank_rows"].to_list() == [[1, 1, 0, 6, 1], [3, 1], [6]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [(255, pa.uint8()), (256, pa.uint16()), (1 << 16, pa.uint32()), ((1 << 31) - 1, pa.uint32())],
)
def test_counts_take_the_bytes_that_the_largest_of_a_file_needs(rows, expected):
    table = chunks([(0, 48, 3, 10, 1, 5)])
    large = region([rows], gaps=[1], table=replace(table, encoding=np.array([9], np.uint8)))
    file = encode_index(METADATA, [REGIONS[0], large])
    schema = pa.ipc.open_file(file).schema
    assert schema.equals(INDEX_SCHEMAS[pa.uint8(), expected])
    _, found = decode_index(file)
    assert plain(found) == plain([REGIONS[0], large])
    assert found[1].row_extents(0, 1, N) == ((0, rows),)


def test_an_index_of_twenty_thousand_subpartitions_takes_a_byte_for_each():
    n = 20_000
    metadata = replace(METADATA, num_subpartitions=n)
    rest = len(encode_index(metadata, [region([1], gaps=[1])]))
    all_listed = region(np.bincount(np.random.default_rng(0).integers(0, n, n), minlength=n))
    assert len(encode_index(metadata, [all_listed])) <= rest + n + 64
    few_listed = region(np.ones(n // 100, int), gaps=np.full(n // 100, 100))
    assert len(encode_index(metadata, [few_listed])) <= rest + 2 * n // 100 + 128


@guarantee("noticed damage")
def test_every_flip_is_caught_or_without_effect():
    footer_starts = len(INDEX) - len(_parts(INDEX)[2])
    for i in range(len(INDEX)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(INDEX)
            damaged[i] ^= mask
            try:
                metadata, regions = decode_index(bytes(damaged))
            except (CorruptShuffleError, FormatVersionError):
                continue
            assert i >= footer_starts, "only Arrow's own footer, which is not read, may differ"
            assert metadata == METADATA
            assert plain(regions) == plain(REGIONS)


def test_every_truncation_is_refused():
    for length in range(len(INDEX)):
        with pytest.raises(CorruptShuffleError):
            decode_index(INDEX[:length])


def test_trailing_bytes_are_refused():
    with pytest.raises(CorruptShuffleError, match="not an Arrow IPC file"):
        decode_index(INDEX + b"\0")


def test_a_newer_format_version_says_so():
    newer = encode_index(replace(METADATA, format_version=2), REGIONS)
    with pytest.raises(FormatVersionError, match=r"format version 2.*reads up to 1.*newer"):
        decode_index(newer)


def test_the_first_format_version_is_1():
    with pytest.raises(CorruptShuffleError, match="format version 0"):
        decode_index(encode_index(replace(METADATA, format_version=0), REGIONS))


def test_a_broadcast_region_has_neither_ranks_nor_rotation():
    table = chunks([(0, 48, 3, 10, 1, 5)])
    broadcast = region([], num_rows=6, kind=RegionKind.BROADCAST, table=table)
    _, (found,) = decode_index(encode_index(METADATA, [broadcast]))
    assert plain([found]) == plain([broadcast])
    assert found.row_offsets.tolist() == [0, 6]
    for wrong in (
        replace(broadcast, first_subpartition=1),
        replace(broadcast, rank_gaps=sums([])),
        replace(broadcast, rank_rows=sums([3, 3])),
    ):
        with pytest.raises(CorruptShuffleError, match="region 0 of the index contradicts itself"):
            decode_index(encode_index(METADATA, [wrong]))


def index_with(name, values):
    """INDEX with other values in a column."""
    body, _, _ = _parts(INDEX)
    reader = pa.ipc.open_stream(body[8:])
    at = INDEX_SCHEMA.get_field_index(name)
    column = pa.array(values, INDEX_SCHEMA.types[at])
    batch = reader.read_next_batch().set_column(at, INDEX_SCHEMA.field(at), column)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema) as writer:
        writer.write_batch(batch.replace_schema_metadata(reader.schema.metadata))
    return rebuilt(b"ARROW1\0\0" + sink.getvalue().to_pybytes())


def test_a_region_kind_of_the_future_says_so():
    with pytest.raises(FormatVersionError, match="region 1 has kind 9"):
        decode_index(index_with("kind", [0, 9, 1]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kind", [0, None, 0]),
        ("rank_rows", [[1, 1, 0, 6, 1], None, [6]]),
        ("rank_rows", [[1, 1, None, 6, 1], [3, 1], [6]]),
        ("rank_gaps", [None, [2, None], [4]]),
        ("encoding", [[1, None], [1], [0]]),
    ],
)
def test_nulls_are_refused_where_the_format_has_none(name, values):
    with pytest.raises(CorruptShuffleError, match=r"not of this format.* null"):
        decode_index(index_with(name, values))


def test_a_foreign_arrow_file_with_our_trailer():
    for schema, batches in (
        (pa.schema([("a", pa.int32())]), 1),
        (INDEX_SCHEMA.with_metadata({"arrow_shuffle": "{}"}), 1),
        (INDEX_SCHEMA.with_metadata({"arrow_shuffle": "no JSON"}), 1),
        (INDEX_SCHEMA.with_metadata({"arrow_shuffle": "[1]"}), 1),
        (pa.ipc.open_file(INDEX).schema, 2),
        (pa.ipc.open_file(INDEX).schema, 0),
    ):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for _ in range(batches):
                writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
        with pytest.raises(CorruptShuffleError, match=r"not of this format|batches of"):
            decode_index(rebuilt(b"ARROW1\0\0" + sink.getvalue().to_pybytes()))


@pytest.mark.parametrize(
    "contradiction",
    [
        region([1, 1, 2, 4]),  # too few for n ranks
        region([1, 1, 2, 4, 1, 1]),
        region([1], gaps=[2, 3]),
        region([1, 1], gaps=[2]),
        region([1, 0], gaps=[2, 3]),
        region([1, 1], gaps=[2, 0]),
        region([1, 1], gaps=[0, 1]),
        region([1, 1], gaps=[2, N - 1]),
        region([1, 1], gaps=[(1 << 32) - 1, 2]),  # 1 as an unsigned number of 32 bits
        region([], gaps=[], num_rows=1),
        region([], num_rows=1),
        region([1], gaps=[2], num_rows=2),
        region([(1 << 32) - 1, 2], gaps=[2, 3], num_rows=1),
        region([1 << 31], gaps=[2]),
        region([0], gaps=[2]),
        region([0] * N),
        region([1], gaps=[2], first=-1),
        region([1], gaps=[2], first=N),
        region([3, 1], gaps=[2, 3], first=2),  # a chunk has rows of the last and the first
        region([1] * N, first=1, table=chunks([(0, 8, 5, 5, 0, 0), (3, 16, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(1, 8, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(0, 8, 5, 5, 0, 0), (2, 16, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(0, 8, 5, 5, 0, 0), (0, 16, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(0, 9, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(0, -8, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(0, 8, 57, 5, 0, 0)])),  # past the end of the data
        region([2], gaps=[2], table=chunks([(0, 8, 9, 5, 0, 0), (1, 16, 9, 5, 0, 0)])),
        region([2], gaps=[2], table=chunks([(0, 16, 5, 5, 0, 0), (1, 8, 5, 5, 0, 0)])),
        region([2], gaps=[2], table=NO_CHUNKS),
    ],
)  # fmt: skip
def test_contradictions_are_refused_behind_a_good_checksum(contradiction):
    with pytest.raises(CorruptShuffleError, match="region 0 of the index contradicts itself"):
        decode_index(encode_index(METADATA, [contradiction]))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("num_frames", [[1, 0], [1, 1], [1]]),
        ("num_frames", [[1, -1], [1, 1], [1]]),
        ("num_frames", [[1, 2], [1, 1], [1]]),
        ("column_frame", [[0, 1], [0, 0], [0]]),
        ("column_frame", [[0, -1], [0, 0], [0]]),
        ("column_frame", [[0], [0, 0], [0]]),
        ("column_raw_length", [[30, 7], [100, -9], [3]]),
        ("column_raw_length", [[30, 7], [100, 1 << 62], [3]]),
        ("column_raw_length", [[30, 7, 1], [100, 9], [3]]),
        ("frame_length", [[20, 7], [0, 3], [3]]),
        ("frame_length", [[20, 7], [(1 << 63) - 1, 3], [3]]),
        ("frame_length", [[20], [8, 3], [3]]),
        ("frame_crc32", [[1], [2, 3], [4]]),
    ],
)
def test_frames_that_contradict_themselves_are_refused(name, values):
    with pytest.raises(CorruptShuffleError, match="index is not of this format"):
        decode_index(index_with(name, values))


def test_a_frame_of_no_column_is_refused():
    """So that who checks all columns has checked all bytes of a chunk."""
    table = ChunkTable.of([(0, 8, ChunkFrames(1, [1, 1], [16, 16], [9, 9], [5, 6]))])
    metadata = replace(METADATA, data_schema=pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    with pytest.raises(CorruptShuffleError, match="a frame holds no column"):
        decode_index(encode_index(metadata, [region([1], gaps=[2], table=table)]))


def test_regions_must_follow_each_other():
    one = region([1], gaps=[2], table=chunks([(0, 24, 8, 8, 0, 0)]))
    two = region([1], gaps=[2], table=chunks([(0, 24, 8, 8, 0, 0)]))
    with pytest.raises(CorruptShuffleError, match="region 1 of the index"):
        decode_index(encode_index(METADATA, [one, two]))


def test_arrow_offsets_that_leave_their_buffer_are_refused():
    body, _, _ = _parts(INDEX)
    # The offsets of `rank_rows`: 0, 5, 7, 8 as little-endian int32.
    at = body.find(struct.pack("<4i", 0, 5, 7, 8))
    assert at > 0
    # The last one is checked always; one between, which would be a part of memory, only in full.
    for place, offset in ((12, 1 << 30), (8, 1 << 20), (4, -4), (8, 3)):
        damaged = bytearray(body)
        struct.pack_into("<i", damaged, at + place, offset)
        with pytest.raises(CorruptShuffleError, match=r"not of this format \(ArrowInvalid"):
            decode_index(rebuilt(bytes(damaged)))
