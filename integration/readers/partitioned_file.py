"""Rows of a partitioned file, region by region, every part of it verified."""

import json
import re
import zlib
from collections import namedtuple
from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import zstandard
from pyarrow import types as pt

from integration.readers import arrow_frames as arrow
from integration.readers.arrow_frames import NewerError, Row, check, fields
from integration.readers.commit_log import parsed
from integration.readers.packed_columns import inside, num_nodes, unpack

_BLOCK = fields(
    "region:int32 kind:uint8 first_row:int64 num_rows rows_before subpartition_gap:[uint8 "
    "subpartition_rows large:[uint32 chunk_rows:[int64 chunk_gap chunk_encoding:[uint8 "
    "chunk_frames:[int32 column_frame column_raw_length:[int64 frame_length frame_crc32:[uint32"
)
_MASK = fields("region:int32 first_row:int64 rows:binary")
_place = itemgetter("region", "first_row")


# Frames are of length and CRC; columns of frame and raw length.
_Chunk = namedtuple("_Chunk", "row num_rows offset end encoding frames columns")


class PartitionedFile:
    """A file of a map output, read as a version of some shape."""

    def __init__(self, shuffle: Path, shape: Row, file: Row) -> None:
        self._shuffle, self._file, self._n = shuffle, file, shape["num_subpartitions"]
        root = Path(file["root"].decode()) if file["root"] else shuffle
        if file["root"]:
            marker = _below(root, "arrow-shuffle-root.json")
            check(root.is_absolute() and not root.is_symlink(), root)
            check(json.loads(marker.read_bytes())["job_id"] == file["job_id"], marker)
        self._data = _below(root, file["path"] + ".shuffle.data")
        index = _below(root, file["path"] + ".shuffle.index")
        size, crc32 = file["directory_bytes"], file["directory_crc32"]
        (frame,) = _read(index, file["index_bytes"] - 16 - size, (size, crc32))
        directory = parsed(arrow.one_frame(frame))
        for name in ("job_id", "map_task", "attempt", "num_subpartitions", "data_bytes"):
            check(directory[name] == file[name], f"{name} of {index}")
        self._stored = arrow.schema_of(directory["data_schema"])
        self._schema = arrow.schema_of(shape["data_schema"])
        old = _columns(self._stored, file["column_ids"])
        new = _columns(self._schema, shape["column_ids"])
        self._from = [old[of][0] if of in old else None for of in new]
        names = {old[of][1].name: new[of][1].name for of in old.keys() & new.keys()}
        order = [[names[name], how] for name, how in directory["sort_by"]]
        check(order == shape.get("sort_by", []), f"order of {index}")
        for of in old.keys() & new.keys():
            (at, stored, ids), (_, field, wanted) = old[of], new[of]
            check(ids == wanted, f"what is inside of {field.name}")
            if not _is_wider(field.type, stored.type):
                check(_bytes(field.type) == _bytes(stored.type), f"{stored} as {field}")
                self._stored = self._stored.set(at, field)
        parts = list[Row]()
        for first, end, offset, size, crc32, _, _, _ in directory["blocks"]:
            check(0 <= first < end <= file["num_subpartitions"], "range of a block")
            (frame,) = _read(index, offset, (size, crc32))
            of_block = arrow.section(frame, pa.schema(_BLOCK)).to_pylist()
            places = [_place(part) for part in of_block]
            check(places == sorted({*places}), "order of parts")
            for part in of_block:
                if max(part["kind"], *part["chunk_encoding"]) > 1:
                    raise NewerError("kind of a region, or encoding of a chunk")
                part["chunks"] = [*self._chunks(part)]
                part["ids"] = self._subpartitions(part, first, end)
            parts += of_block
        self._parts = sorted(parts, key=_place)

    def _subpartitions(self, part: Row, first: int, end: int) -> np.ndarray:
        """Return the subpartition of each row; of broadcast rows the first."""
        large, file = [*part["large"]], self._file
        low, high = file["first_subpartition"], file["end_subpartition"]
        check(min(large, default=256) > 255, "a large number")
        gaps = [number or large.pop(0) for number in part["subpartition_gap"]]
        rows = [number or large.pop(0) for number in part["subpartition_rows"]]
        check(not large and len(gaps) == len(rows), "numbers of a part")
        if part["kind"] == 1:
            every = (first, low, end, file["num_subpartitions"]) == (0, 0, self._n, self._n)
            check(every and high >= end and not gaps, "a broadcast region")
            gaps, rows = [1], [part["num_rows"]]
        found = first - 1 + np.cumsum(gaps, dtype=np.int64)
        check(max(first, low) <= found[0] and found[-1] < min(end, high), "a subpartition")
        check(sum(rows) == part["num_rows"], "rows of subpartitions")
        return np.repeat(found, rows)

    def _chunks(self, part: Row) -> Iterator[_Chunk]:
        lists = (part[f"chunk_{of}"] for of in ("rows", "gap", "encoding", "frames"))
        all_frames = zip(part["frame_length"], part["frame_crc32"], strict=True)
        all_columns = zip(part["column_frame"], part["column_raw_length"], strict=True)
        end, row, c = 0, part["first_row"] - part["rows_before"], len(self._stored)
        for num_rows, gap, encoding, count in zip(*lists, strict=True):
            frames, columns = (*islice(all_frames, count),), (*islice(all_columns, c),)
            check((len(frames), len(columns)) == (count, c), "lists of a part")
            numbers, sizes = zip(*columns, strict=True)
            stored = sum(length for length, _ in frames)
            raw, offset = sum(sizes) if encoding else stored, end + gap
            check({*numbers} == {*range(count)} and min(sizes) >= 0, "columns of frames")
            check(encoding or (count, {*columns}) == (1, {(0, 0)}), "columns of a message")
            check(min(num_rows, *(length for length, _ in frames)) > 0, "a frame of no byte")
            check(offset % 8 == 0 and num_rows <= 1 << 25, "place or rows of a chunk")
            check(raw <= 32768 * stored and (num_rows == 1 or raw <= 8 << 20), "raw length")
            end = offset + stored
            yield _Chunk(row, num_rows, offset, end, encoding, frames, columns)
            row += num_rows
        before, behind = part["rows_before"], row - part["first_row"] - part["num_rows"]
        check(0 <= before < part["chunk_rows"][0] and row < 1 << 31, "the first chunk of a part")
        check(0 <= behind < num_rows and not [*all_frames, *all_columns], "the end of a part")

    def regions(self) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield the rows of each region that are left, and the subpartition of each."""
        pieces, size = self._pieces(), self._file["data_bytes"]
        end, counts = 8, np.zeros(4, np.int64)
        for number, (region, of_region) in enumerate(groupby(self._parts, itemgetter("region"))):
            parts = [*of_region]
            kinds = [part["kind"] for part in parts]
            check(region == number and (kinds == [1] or not any(kinds)), "kinds of a region")
            num_rows = _end((part["first_row"], part["num_rows"]) for part in parts)
            # One across the border of two blocks is in both.
            chunks = [*dict.fromkeys(chunk for part in parts for chunk in part["chunks"])]
            check(_end(chunk[:2] for chunk in chunks) == num_rows, "rows of chunks")
            places = [end, *(at for of in chunks for at in (of.offset, of.end))]
            check(places == sorted(places) and places[-1] <= size, "places of chunks")
            ids, end = np.concatenate([part["ids"] for part in parts]), places[-1]
            falls = {*np.flatnonzero(np.diff(ids, append=ids[:1]) < 0) + 1}
            check(len(falls) < 2 and falls <= {of.row for of in chunks} | {num_rows}, "a rotation")
            left = np.ones(num_rows, bool)
            for piece in (piece for piece in pieces if piece["region"] == region):
                bits = np.unpackbits(np.frombuffer(piece["rows"], np.uint8), bitorder="little")
                gone = np.flatnonzero(bits) + piece["first_row"]
                check(piece["first_row"] >= 0 and left[gone].all(), "a row that is masked twice")
                left[gone] = False
            rows = pa.Table.from_batches([self._rows(chunk) for chunk in chunks])
            rows = rows.filter(pa.array(left))
            counts += 1, len(rows), num_rows - len(rows), any(kinds) * len(rows)
            ids = ids[left]
            if any(kinds):
                ids = np.repeat(np.arange(self._n), len(rows))
                rows = rows.take(pa.array(np.tile(np.arange(len(rows)), self._n)))
            yield ids, rows
        names = ("num_regions", "num_rows", "mask_rows", "num_broadcast_rows")
        stated = [self._file[name] for name in names]
        check([*counts] == stated, "rows of a file")

    def _pieces(self) -> list[Row]:
        """Return the pieces of the mask."""
        file = self._file
        if not file["mask_rows"]:
            return []
        frame, sums = file["mask"], (file["mask_length"], file["mask_crc32"])
        check(bool(frame) != bool(file["mask_path"]), "places of a mask")
        if not frame:
            (frame,) = _read(_below(self._shuffle, file["mask_path"]), file["mask_offset"], sums)
        check((len(frame), zlib.crc32(frame)) == sums, "mask")
        pieces: list[Row] = arrow.section(frame, pa.schema(_MASK)).to_pylist()
        check(pieces == sorted(pieces, key=_place), "order of the pieces of a mask")
        return pieces

    def _rows(self, chunk: _Chunk) -> pa.RecordBatch:
        frames = _read(self._data, chunk.offset, *chunk.frames)
        if chunk.encoding == 0:
            arrays = arrow.message(frames[0], self._stored).columns
            check(len(arrays[0]) == chunk.num_rows, "rows of a message")
        else:
            arrays, contents = [], [*map(_content, frames)]
            for (number, size), field in zip(chunk.columns, self._stored, strict=True):
                packed = contents[number].read(size)
                check(len(packed) == size, "a frame is shorter than its columns")
                arrays.append(unpack(packed, field.type, chunk.num_rows))
            check(not any(content.read(1) for content in contents), "a frame is longer")
        columns = [
            pa.nulls(chunk.num_rows, field.type) if at is None else arrays[at].cast(field.type)
            for at, field in zip(self._from, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _content(frame: bytes) -> zstandard.ZstdDecompressionReader:
    return zstandard.ZstdDecompressor().stream_reader(frame, read_across_frames=True)


def _columns(schema: pa.Schema, ids: list[int]) -> dict[int, tuple[int, pa.Field, list[int]]]:
    """Return place, field and ids of each column of a schema, and of what is inside, by its id."""
    counts, rest = [num_nodes(field.type) for field in schema], iter(ids)
    check(sum(counts) == len(ids) == len({*ids}) and len({*schema.names}) == len(schema), "columns")
    lists = [[*islice(rest, count)] for count in counts]
    return {of[0]: (at, schema.field(at), of) for at, of in enumerate(lists)}


def _is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether values of one type become those of another, which may have more bits."""
    if pt.is_decimal(old) and pt.is_decimal(new):
        more = new.precision >= old.precision and new.bit_width >= old.bit_width
        return bool(more and new.scale == old.scale)
    alike = any(of(new) and of(old) for of in (pt.is_signed_integer, pt.is_unsigned_integer))
    floats = pt.is_float32(old) and pt.is_float64(new)
    return bool((alike or floats) and new.bit_width >= old.bit_width)


def _bytes(kind: pa.DataType) -> object:
    """Return what a type means without names of items, nullability and time zones."""
    if pt.is_timestamp(kind):
        return kind.unit, kind.tz is None
    size = kind.list_size if pt.is_fixed_size_list(kind) else 0
    names = [field.name for field in kind] if pt.is_struct(kind) else []
    return (kind.id, size, *names, *map(_bytes, inside(kind))) if inside(kind) else kind


def _end(pieces: Iterable[tuple[int, int]]) -> int:
    """Return where pieces end, each of which begins where the one before ends."""
    end = 0
    for begin, length in pieces:
        check(begin == end, "a row is nowhere, or in two places")
        end += length
    return end


def _below(root: Path, path: str) -> Path:
    """Return a path below a root, no part of which is a link."""
    for part in path.split("/"):
        check(re.fullmatch("[A-Za-z0-9_.-]+", part) and part not in (".", ".."), path)
        root = root / part
        check(not root.is_symlink(), f"{root} is a link")
    return root


def _read(path: Path, offset: int, *parts: tuple[int, int]) -> list[bytes]:
    """Return parts of a file, one behind the other, of these lengths and CRCs."""
    with path.open("rb") as file:
        file.seek(offset)
        found = [file.read(length) for length, _ in parts]
    check([(len(of), zlib.crc32(of)) for of in found] == [*parts], f"bytes of {path}")
    return found
