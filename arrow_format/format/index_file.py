"""The index file: blocks by range of subpartitions, and a directory of them; bytes and back, pure.

.. code-block:: text

    "ASHFIDX1" | blocks | statistics of blocks | directory | length, CRC-32, "ASHFIDX1"

The directory is a zstd frame of JSON: the metadata of the file, and place and CRC-32 of each block
and of its statistics. The log has the directory's length and CRC-32: ``docs/format/reading.md``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import zstandard

from arrow_format.arrays.row_sizes import runs_within
from arrow_format.errors import CorruptShuffleError
from arrow_format.format.batch_frame import MALFORMED, content_of
from arrow_format.format.index_blocks import encode_block
from arrow_format.format.ipc import from_json, to_json
from arrow_format.format.regions import Region, RegionKind, parts_of, whole_region
from arrow_format.format.statistics_section import encode_section
from arrow_format.model import Natural, PartitionedFileMetadata, check_format_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from arrow_format.format.statistics import ColumnStatistics

MAGIC = b"ASHFIDX1"
_TAIL = struct.Struct("<II8s")
TAIL_BYTES = _TAIL.size
_LEVEL = 3

BLOCK_BYTES = 32 << 10
"""About the bytes of a block before compression: what a lookup decodes of a file."""

_ROW_BYTES = 2
"""Of a subpartition that a part lists, before compression."""
_CHUNK_BYTES, _COLUMN_BYTES, _FRAME_BYTES = 21, 12, 12


_MALFORMED: tuple[type[Exception], ...] = (*MALFORMED, TypeError, RecursionError)


class BlockPlace(msgspec.Struct, array_like=True, frozen=True):
    """Where a block is, and what it has: rows of subpartitions ``[first, end)``."""

    first: Natural
    end: Natural
    offset: Natural
    length: Natural
    crc32: Natural
    statistics_offset: Natural
    statistics_length: Natural
    statistics_crc32: Natural

    @property
    def ranges(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Bytes ``(offset, length)`` of the index that have the block, and its statistics."""
        return (self.offset, self.length), (self.statistics_offset, self.statistics_length)


class _Version(msgspec.Struct):
    format_version: int


class _Places(msgspec.Struct):
    blocks: tuple[BlockPlace, ...]
    other_crc32: Natural


class Directory(NamedTuple):
    """What a directory says."""

    metadata: PartitionedFileMetadata
    blocks: tuple[BlockPlace, ...]
    other_crc32: int
    """CRC-32 of the bytes before the directory that belong to no block and no statistics."""


def encode_index(
    metadata: PartitionedFileMetadata,
    regions: Sequence[Region],
    statistics: Mapping[str, ColumnStatistics] | None = None,
) -> bytes:
    """Return the index file of a data file with whole ``regions``, in file order.

    ``statistics`` are those of all chunks, in file order, of the columns that the metadata names.
    """
    n = metadata.num_subpartitions
    regions = [replace(region, number=number) for number, region in enumerate(regions)]
    first_chunk = np.cumsum([0, *(len(region.chunks) for region in regions)])
    blocks = []
    for first, end, of_block in _blocks(regions, n):
        parts = [part for region in of_block for part in parts_of(region, first, end, n)]
        if not parts:
            continue
        parts.sort(key=attrgetter("number", "first_row"))
        section = b""
        if statistics:
            chunks = [
                first_chunk[part.number]
                + np.searchsorted(regions[part.number].chunks.offset, part.chunks.offset)
                for part in parts
            ]
            rows = np.concatenate(chunks)
            section = encode_section({name: column.at(rows) for name, column in statistics.items()})
        blocks.append((first, end, encode_block(parts), section))
    return assemble(msgspec.to_builtins(metadata, enc_hook=to_json), blocks)


def assemble(metadata: dict[str, Any], blocks: Sequence[tuple[int, int, bytes, bytes]]) -> bytes:
    """Return the index file of metadata as JSON, and encoded blocks with their statistics.

    Each block comes with the range of its subpartitions.
    """
    place = len(MAGIC)
    of_statistics = place + sum(len(block) for _, _, block, _ in blocks)
    places = []
    for first, end, block, section in blocks:
        sums = zlib.crc32(block), zlib.crc32(section)
        lengths = len(block), len(section)
        places.append(
            BlockPlace(first, end, place, lengths[0], sums[0], of_statistics, lengths[1], sums[1])
        )
        place += lengths[0]
        of_statistics += lengths[1]
    described = metadata | {"blocks": places, "other_crc32": zlib.crc32(MAGIC)}
    directory = zstandard.ZstdCompressor(_LEVEL).compress(msgspec.json.encode(described))
    tail = _TAIL.pack(len(directory), zlib.crc32(directory), MAGIC)
    parts = [block for _, _, block, _ in blocks] + [section for *_, section in blocks]
    return b"".join([MAGIC, *parts, directory, tail])


def _blocks(regions: Sequence[Region], n: int) -> Iterator[tuple[int, int, list[Region]]]:
    """Yield ranges of subpartitions, each with the regions of its block.

    Regions that all subpartitions read have one of their own, unless all is one block.
    """
    weights = np.zeros(n, np.int64)
    total = 0
    for region in regions:
        chunks = region.chunks
        frames = np.diff(chunks.first_frame) * _FRAME_BYTES
        sizes = frames + (_CHUNK_BYTES + _COLUMN_BYTES * chunks.column_frame.shape[1])
        total += int(sizes.sum()) + _ROW_BYTES * len(region.rank_rows)
        if region.kind is RegionKind.UNICAST:
            ids, counts = region.subpartition_rows(n)
            weights[ids[counts > 0]] += _ROW_BYTES
            at = np.searchsorted(region.row_offsets, chunks.first_row, side="right") - 1
            np.add.at(weights, ids[at], sizes)
    if total <= BLOCK_BYTES:
        yield 0, n, list(regions)
        return
    by_kind = {
        kind: list(of_kind)
        for kind, of_kind in groupby(sorted(regions, key=attrgetter("kind")), attrgetter("kind"))
    }
    if RegionKind.BROADCAST in by_kind:
        yield 0, n, by_kind[RegionKind.BROADCAST]
    unicast = by_kind.get(RegionKind.UNICAST, [])
    for first, end in runs_within(np.cumsum(weights), BLOCK_BYTES):
        yield first, end, unicast


def directory_place(file: bytes) -> tuple[int, int]:
    """Return length and CRC-32 of the directory of an index, as its tail has them.

    Raises CorruptShuffleError where there is no such tail.
    """
    if len(file) >= len(MAGIC) + TAIL_BYTES:
        length, crc32, magic = _TAIL.unpack_from(file, len(file) - TAIL_BYTES)
        if magic == MAGIC and length <= len(file) - TAIL_BYTES - len(MAGIC):
            return length, crc32
    msg = f"index of {len(file)} bytes does not end as one of this format"
    raise CorruptShuffleError(msg)


def decode_directory(directory: memoryview) -> Directory:
    """Parse a directory, whose CRC was checked.

    Raises
    ------
    CorruptShuffleError
        It is none.
    FormatVersionError
        A newer version wrote it.
    """
    try:
        text = memoryview(content_of(directory))
        check_format_version(msgspec.json.decode(text, type=_Version).format_version, "index")
        metadata = msgspec.json.decode(text, type=PartitionedFileMetadata, dec_hook=from_json)
        places = msgspec.json.decode(text, type=_Places)
    except _MALFORMED as error:
        msg = f"index is not of this format ({type(error).__name__}: {error})"
        raise CorruptShuffleError(msg) from error
    if not metadata.num_subpartitions or any(
        not block.first < block.end <= metadata.num_subpartitions for block in places.blocks
    ):
        msg = "index has blocks of no subpartitions"
        raise CorruptShuffleError(msg)
    return Directory(metadata, places.blocks, places.other_crc32)


def check_part(part: memoryview, crc32: int, what: str) -> memoryview:
    """Return the bytes of a part of an index; CorruptShuffleError if they are not those written."""
    if zlib.crc32(part) != crc32:
        msg = f"CRC-32 of {len(part)} bytes of {what} is not {crc32:#010x}, as was committed"
        raise CorruptShuffleError(msg)
    return part


def check_other(file: bytes, directory: Directory, directory_bytes: int) -> None:
    """Check the bytes of an index that readers of rows do not look at.

    Raises CorruptShuffleError where they are not those written.
    """
    end = len(file) - TAIL_BYTES - directory_bytes
    crc32 = position = 0
    for start, length in sorted(place for block in directory.blocks for place in block.ranges):
        if length:
            crc32 = zlib.crc32(memoryview(file)[position:start], crc32)
            position = start + length
    crc32 = zlib.crc32(memoryview(file)[position:end], crc32)
    stored = memoryview(file)[end : end + directory_bytes]
    if crc32 != directory.other_crc32 or file[-TAIL_BYTES:] != _TAIL.pack(
        directory_bytes, zlib.crc32(stored), MAGIC
    ):
        msg = "magic, tail or other bytes of the index differ from what was written"
        raise CorruptShuffleError(msg)


def whole_regions(parts: Sequence[Region], metadata: PartitionedFileMetadata) -> tuple[Region, ...]:
    """Return the regions that joined parts of all blocks of a file make.

    Raises CorruptShuffleError where these are not all rows of each, or chunks overlap.
    """
    regions: list[Region] = []
    end = 0
    for number, of_region in groupby(parts, key=attrgetter("number")):
        region = whole_region(list(of_region), metadata.num_subpartitions)
        chunks = None if region is None else region.chunks
        if (
            region is None
            or chunks is None
            or number != len(regions)
            or int(chunks.offset[0]) < end
            or np.any(chunks.offset[1:] < (chunks.offset + chunks.length)[:-1])
        ):
            msg = f"region {len(regions)} of the index contradicts itself: rows are not there once"
            raise CorruptShuffleError(msg)
        end = int(chunks.offset[-1] + chunks.length[-1])
        regions.append(region)
    return tuple(regions)
