"""The index file: round trip, every flip and every cut, and contradictions behind a good CRC."""

import json
import struct
import zlib
from dataclasses import replace
from itertools import chain

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from arrow_format.errors import CorruptShuffleError, FormatVersionError
from arrow_format.format import index_file
from arrow_format.format.batch_frame import decode_batch, encode_batch
from arrow_format.format.chunk_table import ChunkFrames, ChunkTable
from arrow_format.format.index_blocks import BLOCK_SCHEMA
from arrow_format.format.index_file import (
    BlockPlace,
    assemble,
    check_other,
    encode_index,
    whole_regions,
)
from arrow_format.format.part_table import PartTable
from arrow_format.format.regions import PrefixSums, Region, RegionKind, region_of
from arrow_format.read.chunk_plan import chunks_of_ranges, plan_chunks, plan_together
from arrow_format.read.partitioned_file import decode_fetched
from tests.support.guarantees import guarantee
from tests.support.hostile import index_parts
from tests.support.indexes import decode_index, part_of, reader_of, said_of
from tests.support.small_shuffles import metadata_of

N = 5


def chunks(rows, num_rows):
    """Chunks of one column, as `(first_row, offset, length, raw_length, encoding, crc32)`."""
    return ChunkTable.of(
        [
            (first_row, offset, ChunkFrames(encoding, [0], [raw_length], [length], [crc32]))
            for first_row, offset, length, raw_length, encoding, crc32 in rows
        ],
        num_rows,
    )


def sums(values):
    return PrefixSums.of(np.array(values, np.int64))


def region(rows, gaps=None, first=0, num_rows=None, kind=RegionKind.UNICAST, table=None):
    total = sum(rows) if num_rows is None else num_rows
    return Region(
        kind,
        total,
        first,
        None if gaps is None else sums(gaps),
        sums(rows),
        chunks([(0, 8, 5, 30, 1, 7)] if table is None else table, total),
    )


REGIONS = tuple(
    replace(each, number=number)
    for number, each in enumerate(
        [
            region([1, 1, 0, 6, 1], table=[(0, 8, 20, 30, 1, 2**32 - 1), (4, 32, 7, 0, 0, 0)]),
            region([3, 1], gaps=[2, 2], first=2, table=[(0, 40, 8, 9, 1, 12), (3, 48, 3, 9, 1, 1)]),
            region([6], gaps=[4], table=[(0, 56, 3, 0, 0, 5)]),
        ]
    )
)
METADATA = replace(
    metadata_of(N, data_bytes=64, sort_by=(("a", "ascending"), ("b", "descending"))),
    data_schema=pa.schema([("a", pa.int64())]),
)
INDEX = encode_index(METADATA, REGIONS)


def rows_of(region, n=N):
    """What a region is, whatever it lists of ranks without rows, and where it begins."""
    ids, counts = region.subpartition_rows(n)
    present = counts > 0
    return (
        region.kind,
        region.number,
        region.num_rows,
        ids[present].tolist(),
        counts[present].tolist(),
        {name: values.tolist() for name, values in region.chunks.arrays().items()},
    )


def plain(regions, n=N):
    return [rows_of(region, n) for region in regions]


def with_part(number, **changes):
    """INDEX, of whose parts one says something else."""
    metadata, [(first, end, block, section)] = index_parts(INDEX)
    rows = decode_batch(block, BLOCK_SCHEMA).to_pylist()
    rows[number] |= changes
    schema = pa.schema([field.with_nullable(True) for field in BLOCK_SCHEMA])
    fields = [
        pa.field(f.name, pa.list_(f.type.value_type) if pa.types.is_list(f.type) else f.type)
        for f in schema
    ]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema(fields))
    return assemble(metadata, [(first, end, encode_batch(batch), section)])


def test_round_trip():
    metadata, regions = decode_index(INDEX)
    assert metadata == METADATA
    assert plain(regions) == plain(REGIONS)


def test_counts_take_little_memory_and_chunks_have_the_types_of_the_model():
    _, (first, second, _) = decode_index(INDEX)
    assert first.rank_rows.values.dtype == second.rank_gaps.values.dtype == np.uint8
    found = {name: str(values.dtype) for name, values in first.chunks.arrays().items()}
    assert found == {
        "first_row": "int64", "num_rows": "int64", "offset": "int64", "encoding": "uint8",
        "num_frames": "int32", "column_frame": "int32", "column_raw_length": "int64",
        "frame_length": "int64", "frame_crc32": "uint32",
    }  # fmt: skip


def test_no_regions():
    metadata, regions = decode_index(encode_index(metadata_of(N, data_bytes=8), ()))
    assert regions == ()
    assert metadata.data_bytes == 8


def test_other_programs_read_it_with_arrow_and_zstd_alone():
    length, crc32, magic = struct.unpack("<II8s", INDEX[-16:])
    directory = INDEX[-16 - length : -16]
    assert (magic, crc32) == (INDEX[:8], zlib.crc32(directory))
    described = json.loads(zstandard.decompress(directory))
    assert described["num_subpartitions"] == N
    [[first, end, offset, length, crc32, *_]] = described["blocks"]
    block = INDEX[offset : offset + length]
    assert (first, end, crc32) == (0, N, zlib.crc32(block))
    message = pa.py_buffer(zstandard.decompress(block))
    table = pa.ipc.read_record_batch(message, BLOCK_SCHEMA).to_pydict()
    # Region 1 begins at subpartition 3: it has subpartition 3, then 0.
    assert table["region"] == [0, 1, 1, 2]
    assert table["first_row"] == [0, 0, 3, 0]
    assert table["num_rows"] == [9, 3, 1, 6]
    assert table["subpartition_gap"] == [[1, 1, 2, 1], [4], [1], [4]]
    assert table["subpartition_rows"] == [[1, 1, 6, 1], [3], [1], [6]]
    assert table["chunk_rows"] == [[4, 5], [3], [1], [6]]
    assert table["frame_length"] == [[20, 7], [8], [3], [3]]


@st.composite
def files(draw):
    """Regions of one file, and its number of subpartitions."""
    n = draw(st.integers(1, 40))
    regions, offset = [], 8
    for number in range(draw(st.integers(1, 3))):
        counts = np.array(draw(st.lists(st.integers(0, 4), min_size=n, max_size=n)))
        counts *= draw(st.sampled_from([1, 1, 100, 70_000]))
        counts[draw(st.integers(0, n - 1))] += 1
        first, num_rows = draw(st.integers(0, n - 1)), int(counts.sum())
        wrap = int(np.append(counts, 0)[: n - first].sum())
        cuts = draw(st.sets(st.integers(1, num_rows), max_size=6)) | ({wrap} if first else set())
        starts = sorted({0, *cuts} - {num_rows})
        table = []
        for start in starts:
            length = draw(st.integers(1, 20))
            table.append((start, offset, length, 16, 1, number))
            offset += (length + 7) // 8 * 8
        kind = RegionKind.UNICAST if draw(st.integers(0, 4)) else RegionKind.BROADCAST
        ranks = np.flatnonzero(counts)
        first = first if kind is RegionKind.UNICAST else 0
        of_chunks = chunks(table, num_rows)
        regions.append(region_of(kind, first, ranks, counts[ranks], of_chunks, n, number))
    return n, regions, offset


@pytest.mark.slow
@given(files(), st.data())
def test_blocks_say_what_the_regions_do(case, data):
    n, regions, data_bytes = case
    metadata = replace(METADATA, num_subpartitions=n, data_bytes=data_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_file, "BLOCK_BYTES", data.draw(st.sampled_from([1, 60, 200, 32 << 10])))
        index = encode_index(metadata, regions)
    _, found = decode_index(index)
    assert plain(found, n) == plain(regions, n)
    edges = sorted(data.draw(st.sets(st.integers(0, n), min_size=2, max_size=6)))
    ranges = list(zip(edges[::2], edges[1::2], strict=False))
    part = part_of(index).reader.of_ranges(ranges)
    for first, end in ranges:
        wanted, planned = (
            {
                (chunk.region, chunk.offset, chunk.first_row, chunk.end_row)
                for chunk in plan_chunks(of, first, end, n)
            }
            for of in (regions, part.regions)
        )
        assert planned == wanted
        for region in part.regions:
            if region.kind is RegionKind.UNICAST:
                whole = regions[region.number]
                stop = region.first_row + region.num_rows
                ids = whole.subpartitions_of_rows(region.first_row, stop, n)
                assert region.subpartitions_of_rows(0, region.num_rows, n).tolist() == ids.tolist()


@pytest.mark.slow
@given(st.lists(files(), min_size=2, max_size=5), st.data())
def test_blocks_of_several_files_are_decoded_and_planned_as_those_of_each(cases, data):
    readers = []
    for n, regions, data_bytes in cases:
        metadata = replace(METADATA, num_subpartitions=n, data_bytes=data_bytes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index_file, "BLOCK_BYTES", data.draw(st.sampled_from([60, 32 << 10])))
            index = encode_index(metadata, regions)
        readers.append(reader_of(index, said_of(index)))
    decode_fetched(chain.from_iterable(reader.fetch(None) for reader in readers))
    for (n, regions, _), reader in zip(cases, readers, strict=True):
        assert reader.fetch(None) == []
        found = whole_regions(reader.of_ranges([(0, n)]).regions, reader.metadata)
        assert plain(found, n) == plain(regions, n)
    first, end = sorted(data.draw(st.sets(st.integers(0, 41), min_size=2, max_size=2)))
    ranges = [(first, end)]
    parts = [reader.of_ranges(ranges) for reader in readers if reader.num_subpartitions >= end]
    parts = [part for part in parts if part.in_table]
    planned = [[*chunks] for chunks in plan_together(parts, [ranges] * len(parts), 0)]
    assert planned == [
        [*chunks_of_ranges(part.regions, ranges, part.metadata.num_subpartitions)] for part in parts
    ]


def test_a_broadcast_region_that_several_blocks_have_is_there_once():
    broadcast = region([], num_rows=6, kind=RegionKind.BROADCAST, table=[(0, 48, 3, 10, 1, 5)])
    part = part_of(encode_index(METADATA, [broadcast]))
    table, _ = part.in_table
    (found,) = PartTable.together([table, table]).joined()
    assert (found.kind, found.num_rows, len(found.chunks)) == (RegionKind.BROADCAST, 6, 1)


def test_a_range_of_a_large_index_opens_the_blocks_of_the_range_alone():
    n = 100_000
    metadata = replace(METADATA, num_subpartitions=n)
    index = encode_index(metadata, [region(np.ones(n, int), table=[(0, 8, 5, 16, 1, 7)])])
    reader = part_of(index).reader
    blocks = reader.directory.blocks
    assert len(blocks) > 5
    assert all(block.length < index_file.BLOCK_BYTES for block in blocks)
    reader = reader_of(index, said_of(index))
    reader.of_ranges([(blocks[2].first, blocks[2].first + 1)])
    assert [*reader._blocks] == [2]
    with pytest.raises(CorruptShuffleError, match="rows are not there once"):
        whole_regions(reader.of_ranges([(0, n // 2)]).regions, metadata)


@guarantee("noticed damage")
def test_every_flip_is_caught():
    for i in range(len(INDEX)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(INDEX)
            damaged[i] ^= mask
            with pytest.raises(CorruptShuffleError):
                check(bytes(damaged))


def check(index):
    """Check all of an index, against what a commit says of INDEX."""
    reader = reader_of(index, said_of(INDEX))
    reader.of_ranges([(0, N)])
    check_other(index, reader.directory, reader.file.directory_bytes)


def test_every_truncation_is_refused():
    for length in range(len(INDEX)):
        with pytest.raises(CorruptShuffleError):
            decode_index(INDEX[:length])


def test_a_newer_format_version_says_so():
    newer = encode_index(replace(METADATA, format_version=2), REGIONS)
    with pytest.raises(FormatVersionError, match=r"format version 2.*reads up to 1.*newer"):
        decode_index(newer)


def test_the_first_format_version_is_1():
    with pytest.raises(CorruptShuffleError, match="format version 0"):
        decode_index(encode_index(replace(METADATA, format_version=0), REGIONS))


def test_a_broadcast_region_has_no_subpartitions():
    broadcast = region([], num_rows=6, kind=RegionKind.BROADCAST, table=[(0, 48, 3, 10, 1, 5)])
    _, (found,) = decode_index(encode_index(METADATA, [broadcast]))
    assert plain([found]) == plain([broadcast])
    assert found.row_offsets.tolist() == [0, 6]
    for wrong in ({"subpartition_gap": [1]}, {"subpartition_rows": [9]}, {"rows_before": 1}):
        with pytest.raises(CorruptShuffleError):
            decode_index(with_part(0, kind=1, **wrong))


def test_a_region_kind_of_the_future_says_so():
    with pytest.raises(FormatVersionError, match="region 1 has kind 9"):
        decode_index(with_part(1, kind=9))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("kind", None),
        ("subpartition_rows", None),
        ("subpartition_rows", [1, 1, None, 1]),
        ("chunk_encoding", [1, None]),
    ],
)
def test_nulls_are_refused(name, values):
    with pytest.raises(CorruptShuffleError, match=r"not of this format.* nulls"):
        decode_index(with_part(0, **{name: values}))


@pytest.mark.parametrize(
    "metadata", [{}, {"blocks": []}, [1], "x", {"format_version": 1}, {"format_version": "1"}]
)
def test_a_directory_of_something_else_is_refused(metadata):
    directory = zstandard.compress(json.dumps(metadata).encode())
    tail = struct.pack("<II8s", len(directory), zlib.crc32(directory), b"ASHFIDX1")
    with pytest.raises(CorruptShuffleError, match="not of this format"):
        decode_index(b"ASHFIDX1" + directory + tail)


@pytest.mark.parametrize(
    ("number", "changes"),
    [
        (0, {"region": -1}),
        (0, {"first_row": -1}),
        (0, {"first_row": 1}),
        (0, {"num_rows": 8}),
        (0, {"num_rows": 0}),
        (0, {"rows_before": 1}),
        (0, {"rows_before": 4}),
        (0, {"rows_before": -1}),
        (0, {"rows_before": 1 << 62}),
        (2, {"first_row": 4}),
        (2, {"region": 0}),
        (3, {"region": 3}),
        (3, {"first_row": (1 << 31) - 3}),
        (0, {"subpartition_gap": [1, 1, 2]}),
        (0, {"subpartition_gap": [1, 1, 2, 2]}),
        (0, {"subpartition_gap": [0, 1, 2, 1]}),
        (0, {"subpartition_gap": [1, 0, 2, 1]}),
        (0, {"subpartition_rows": [1, 1, 7, 0]}),
        (0, {"subpartition_rows": [1, 1, 6, 2]}),
        (3, {"subpartition_gap": [0, 5], "subpartition_rows": [3, 3], "large": [(1 << 32) - 1]}),
        (3, {"subpartition_rows": [0], "large": [(1 << 32) - 1]}),
        (3, {"subpartition_rows": [0], "large": [6]}),
        (3, {"subpartition_rows": [0]}),
        (3, {"large": [256]}),
        (3, {"subpartition_gap": [0, 1], "large": [256]}),
        (0, {"chunk_rows": [4, 6]}),
        (0, {"chunk_rows": [9, 1]}),
        (0, {"chunk_rows": [4, 0]}),
        (0, {"chunk_rows": [4]}),
        (0, {"chunk_rows": []}),
        (0, {"chunk_rows": [1 << 62, 1 << 62]}),
        (0, {"chunk_gap": [8, 5]}),
        (0, {"chunk_gap": [8, -4]}),
        (0, {"chunk_gap": [0, 4]}),
        (0, {"chunk_gap": [1 << 62, 4]}),
        (3, {"chunk_gap": [64]}),
        (3, {"chunk_gap": [40]}),
        (0, {"chunk_encoding": [1]}),
        (0, {"chunk_frames": [1, 0]}),
        (0, {"chunk_frames": [1, -1]}),
        (0, {"chunk_frames": [1, 2]}),
        (0, {"column_frame": [0, 1]}),
        (0, {"column_frame": [0, -1]}),
        (0, {"column_frame": [0]}),
        (0, {"column_raw_length": [30, -9]}),
        (0, {"column_raw_length": [1 << 62, 0]}),
        (0, {"column_raw_length": [30, 7, 1]}),
        (0, {"column_raw_length": [30, 7]}),
        (0, {"frame_length": [20, 0]}),
        (0, {"frame_length": [(1 << 63) - 1, 7]}),
        (0, {"frame_length": [20]}),
        (0, {"frame_crc32": [1]}),
    ],
)
def test_contradictions_are_refused_behind_a_good_checksum(number, changes):
    with pytest.raises(CorruptShuffleError):
        decode_index(with_part(number, **changes))


def test_a_frame_of_no_column_is_refused():
    """So that who checks all columns has checked all bytes of a chunk."""
    table = ChunkTable.of([(0, 8, ChunkFrames(1, [1, 1], [16, 16], [9, 9], [5, 6]))], 1)
    metadata = replace(METADATA, data_schema=pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    with pytest.raises(CorruptShuffleError, match="a frame holds no column"):
        decode_index(encode_index(metadata, [replace(region([1], gaps=[2]), chunks=table)]))


def test_bytes_that_nobody_knows_are_skipped_and_checked_by_who_checks_all():
    """Between blocks and statistics there is room for what a later version adds."""
    metadata, [(first, end, block, _)] = index_parts(INDEX)
    places = [BlockPlace(first, end, 8, len(block), zlib.crc32(block), 0, 0, 0)]
    described = metadata | {"blocks": places, "other_crc32": zlib.crc32(b"ASHFIDX1more")}
    directory = zstandard.compress(msgspec.json.encode(described))
    tail = struct.pack("<II8s", len(directory), zlib.crc32(directory), b"ASHFIDX1")
    index = b"ASHFIDX1" + block + b"more" + directory + tail
    assert plain(decode_index(index)[1]) == plain(REGIONS)
    reader = part_of(index).reader
    check_other(index, reader.directory, len(directory))
    with pytest.raises(CorruptShuffleError, match="other bytes of the index differ"):
        check_other(index.replace(b"more", b"less"), reader.directory, len(directory))
