"""Rows of a partitioned file, region by region, every part of it verified."""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import zstandard
from pyarrow import types as pt

from integration.readers.arrow_frames import (
    NewerError,
    check,
    fields,
    message,
    one_frame,
    schema_of,
    section,
)
from integration.readers.commit_log import parsed
from integration.readers.packed_columns import inside, num_nodes, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = fields(
    "region:int32 kind:uint8 first_row:int64 num_rows rows_before subpartition_gap:[uint8 "
    "subpartition_rows large:[uint32 chunk_rows:[int64 chunk_gap chunk_encoding:[uint8 "
    "chunk_frames:[int32 column_frame column_raw_length:[int64 frame_length frame_crc32:[uint32"
)
_MASK = fields("region:int32 first_row:int64 rows:binary")


class _Column(NamedTuple):
    position: int
    name: str
    kind: pa.DataType
    ids: list[int]
    """Its own, and those of what is inside of it."""


def _columns(schema: pa.Schema, ids: list[int]) -> dict[int, _Column]:
    """Return the columns of a schema by their ids."""
    found, rest = {}, iter(ids)
    for position, field in enumerate(schema):
        of = [*islice(rest, num_nodes(field.type))]
        found[of[0]] = _Column(position, field.name, field.type, of)
    nodes = sum(num_nodes(field.type) for field in schema)
    check(nodes == len(ids) == len({*ids}) and len({*schema.names}) == len(schema), "columns")
    return found


class _Chunk(NamedTuple):
    row: int
    """Its first row, of the region."""
    num_rows: int
    offset: int
    encoding: int
    frames: list[tuple[int, int]]
    """Length and CRC of each."""
    columns: list[tuple[int, int]]
    """Frame of each, and bytes that it has packed."""

    @property
    def end(self) -> int:
        return self.offset + sum(length for length, _ in self.frames)

    def check(self) -> None:
        if self.encoding > 1:
            raise NewerError(f"encoding {self.encoding}")
        numbers, stored = [number for number, _ in self.columns], self.end - self.offset
        raw = sum(length for _, length in self.columns) if self.encoding else stored
        check(min(self.num_rows, *(length for length, _ in self.frames)) > 0, self)
        check({*numbers} == {*range(len(self.frames))} and self.offset % 8 == 0, self)
        check(
            all(length >= 0 if self.encoding else length == 0 for _, length in self.columns), self
        )
        check(self.num_rows <= 1 << 25 and raw <= 32768 * stored, self)
        check(self.num_rows == 1 or raw <= 8 << 20, self)


class PartitionedFile:
    """A file of a map output, read as a version of some shape."""

    def __init__(
        self, shuffle: Path, shape: dict[str, Any], output: dict[str, Any], file: dict[str, Any]
    ) -> None:
        self._shuffle, self._file = shuffle, file
        root = Path(file["root"].decode()) if file["root"] else shuffle
        if file["root"]:
            marker = _below(root, "arrow-shuffle-root.json")
            check(root.is_absolute() and not root.is_symlink(), root)
            check(json.loads(marker.read_bytes())["job_id"] == output["job_id"], marker)
        self._data = _below(root, file["path"] + ".shuffle.data")
        index = _below(root, file["path"] + ".shuffle.index")
        place = file["index_bytes"] - 16 - file["directory_bytes"], file["directory_bytes"]
        directory = parsed(one_frame(_read(index, *place, file["directory_crc32"])))
        for name in ("job_id", "map_task", "attempt", "num_subpartitions", "data_bytes"):
            check(directory[name] == {**file, **output}[name], f"{name} of {index}")
        self._stored = schema_of(directory["data_schema"])
        self._schema = schema_of(shape["data_schema"])
        columns = _columns(self._stored, output["column_ids"])
        wanted = _columns(self._schema, shape["column_ids"])
        orders = [
            [({c.name: c.ids for c in of.values()}[name], how) for name, how in keys]
            for of, keys in ((columns, directory["sort_by"]), (wanted, shape.get("sort_by", ())))
        ]
        check(orders[0] == orders[1], f"order of {index}")
        self._from = [columns.get(of) for of in wanted]
        for old, new in ((columns[of], wanted[of]) for of in columns.keys() & wanted.keys()):
            check(old.ids == new.ids, f"what is inside of {new.name}")
            if not _is_wider(new.kind, old.kind):
                check(_is_alike(new.kind, old.kind), f"{old.kind} as {new.kind}")
                # Of the same bytes: only names, nullability and time zones differ.
                self._stored = self._stored.set(old.position, pa.field(old.name, new.kind))
        self._parts: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        for first, end, *place, crc32, _, _, _ in directory["blocks"]:
            check(0 <= first < end <= file["num_subpartitions"], "range of a block")
            before = -1, 0
            for part in section(_read(index, *place, crc32), pa.schema(_BLOCK)).to_pylist():
                check(before < (before := (part["region"], part["first_row"])), "order of parts")
                if part["kind"] > 1:
                    raise NewerError(f"kind {part['kind']} of a region")
                chunks, ids = self._chunks(part), self._subpartitions(part, first, end)
                self._parts[part["region"]].append((part, ids, chunks))
        parts = [part for of_region in self._parts.values() for part, *_ in of_region]
        rows = sum(part["num_rows"] for part in parts)
        check(rows == file["num_rows"] + file["mask_rows"], f"{rows} rows in {index}")
        check(sorted(self._parts) == [*range(file["num_regions"])], f"regions of {index}")

    def _subpartitions(self, part: dict[str, Any], first: int, end: int) -> np.ndarray | None:
        """Return the subpartition of each row; None of a broadcast region."""
        large = [*part["large"]]
        check(min(large, default=256) > 255, "a large number")
        gaps, rows = (
            np.array([number or large.pop(0) for number in part[f"subpartition_{of}"]], np.int64)
            for of in ("gap", "rows")
        )
        check(not large, "a large number of nothing")
        low, high = self._file["first_subpartition"], self._file["end_subpartition"]
        if part["kind"] == 1:
            every = {(first, end), (low, high)} == {(0, self._file["num_subpartitions"])}
            check(every and not len(gaps) and not len(rows), "a broadcast region")
            return None
        check(len(gaps) == len(rows) and min(*gaps, *rows) > 0, "subpartitions of a part")
        found = first - 1 + np.cumsum(gaps)
        check(max(first, low) <= found[0] and found[-1] < min(end, high), "a subpartition")
        check(rows.sum() == part["num_rows"], "rows of subpartitions")
        return np.repeat(found, rows)

    def _chunks(self, part: dict[str, Any]) -> list[_Chunk]:
        names = ("chunk_rows", "chunk_gap", "chunk_encoding", "chunk_frames")
        frames = zip(part["frame_length"], part["frame_crc32"], strict=True)
        columns = zip(part["column_frame"], part["column_raw_length"], strict=True)
        at, row, c, found = 0, part["first_row"] - part["rows_before"], len(self._stored), []
        for num_rows, gap, encoding, count in zip(*(part[of] for of in names), strict=True):
            lists = [*islice(frames, count)], [*islice(columns, c)]
            check([count, c] == [*map(len, lists)], "lists of a part")
            found.append(chunk := _Chunk(row, num_rows, at + gap, encoding, *lists))
            chunk.check()
            check(max(8, at) <= chunk.offset and chunk.end <= self._file["data_bytes"], chunk)
            at, row = chunk.end, row + num_rows
        begin, end = part["first_row"], part["first_row"] + part["num_rows"]
        check(found[0].row <= begin < found[0].row + found[0].num_rows, "first chunk")
        check(
            found[-1].row < end <= row and end < 1 << 31 and not [*frames, *columns], "last chunk"
        )
        return found

    def regions(self) -> Iterator[tuple[np.ndarray | None, pa.Table]]:
        """Yield the rows of each region that are left, and the subpartition of each row.

        None of a region that all subpartitions read.
        """
        masked, end, num_broadcast = self._mask(), 0, 0
        for region in range(self._file["num_regions"]):
            parts = sorted(self._parts[region], key=lambda of: of[0]["first_row"])
            is_broadcast = parts[0][1] is None
            check({part["kind"] for part, *_ in parts} == {int(is_broadcast)}, "kinds of a region")
            chunks: dict[int, _Chunk] = {}  # one across the border of two blocks is in both
            num_rows = row = 0
            for part, _, of_part in parts:
                check(part["first_row"] == num_rows, "a row is in no part, or in two")
                num_rows += part["num_rows"]
                for chunk in of_part:
                    check(chunks.setdefault(chunk.offset, chunk) == chunk, "a chunk of two kinds")
            for chunk in chunks.values():
                check(chunk.row == row and chunk.offset >= end, "a row is in no chunk, or in two")
                row, end = row + chunk.num_rows, chunk.end
            check(row == num_rows, "rows of chunks")
            rows = pa.Table.from_batches([self._rows(chunk) for chunk in chunks.values()])
            left = np.ones(num_rows, bool)
            gone = masked.pop(region, np.empty(0, np.int64))
            check(not len(gone) or gone.max() < num_rows, "a row of a mask")
            left[gone] = False
            rows = rows.filter(pa.array(left))
            num_broadcast += len(rows) if is_broadcast else 0
            yield None if is_broadcast else np.concatenate([ids for _, ids, _ in parts])[left], rows
        check(not masked and num_broadcast == self._file["num_broadcast_rows"], "rows of a file")

    def _mask(self) -> dict[int, np.ndarray]:
        """Return the rows that are gone, by region."""
        file, found, end = self._file, defaultdict(list), (-1, 0)
        if not file["mask_rows"]:
            return {}
        place = file["mask_offset"], file["mask_length"], file["mask_crc32"]
        check(bool(file["mask"]) != bool(file["mask_path"]), "places of a mask")
        frame = file["mask"] or _read(_below(self._shuffle, file["mask_path"]), *place)
        check((len(frame), zlib.crc32(frame)) == place[1:], "mask")
        for piece in section(frame, pa.schema(_MASK)).to_pylist():
            begin = piece["region"], piece["first_row"]
            check(end <= begin and piece["first_row"] >= 0, "order of the pieces of a mask")
            end = begin[0], begin[1] + 8 * len(piece["rows"])
            bits = np.unpackbits(np.frombuffer(piece["rows"], np.uint8), bitorder="little")
            found[piece["region"]].append(np.flatnonzero(bits) + piece["first_row"])
        masked = {region: np.concatenate(rows) for region, rows in found.items()}
        check(sum(map(len, masked.values())) == file["mask_rows"], "rows of a mask")
        return masked

    def _rows(self, chunk: _Chunk) -> pa.RecordBatch:
        starts = accumulate((length for length, _ in chunk.frames), initial=chunk.offset)
        frames = [_read(self._data, *of) for of in zip(starts, *zip(*chunk.frames))]  # noqa: B905
        if chunk.encoding == 0:
            batch = message(frames[0], self._stored)
            check(len(batch) == chunk.num_rows, "rows of a message")
            arrays = batch.columns
        else:
            arrays = [None] * len(self._stored)
            for number, frame in enumerate(frames):
                own = [(at, raw) for at, (of, raw) in enumerate(chunk.columns) if of == number]
                size = sum(raw for _, raw in own)
                stream = zstandard.ZstdDecompressor().stream_reader(frame, read_across_frames=True)
                packed = memoryview(stream.read(size))
                check(len(packed) == size and not stream.read(1), "content of a frame")
                for at, raw in own:
                    kind = self._stored.field(at).type
                    arrays[at], packed = unpack(packed[:raw], kind, chunk.num_rows), packed[raw:]
        columns = [
            pa.nulls(chunk.num_rows, field.type)
            if source is None
            else arrays[source.position].cast(field.type)
            for source, field in zip(self._from, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether values of one type become those of another, which may have more bits."""
    if pt.is_decimal(old) and pt.is_decimal(new):
        wider = new.precision >= old.precision and new.bit_width >= old.bit_width
        return bool(new != old and wider and new.scale == old.scale)
    for of in (pt.is_signed_integer, pt.is_unsigned_integer):
        if of(old) and of(new):
            return bool(new.bit_width > old.bit_width)
    return bool(pt.is_float32(old) and pt.is_float64(new))


def _is_alike(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether types have the same bytes: names, nullability and time zones may differ."""
    if pt.is_timestamp(new) and pt.is_timestamp(old):
        return bool(new.unit == old.unit and (new.tz is None) == (old.tz is None))
    within = inside(new), inside(old)
    if not within[0] or new.id != old.id or len(within[0]) != len(within[1]):
        return bool(new == old)
    is_fixed = pt.is_fixed_size_list(new)
    return not (is_fixed and new.list_size != old.list_size) and all(map(_is_alike, *within))


def _below(root: Path, path: str) -> Path:
    """Return a path below a root, no part of which is a link."""
    for part in path.split("/"):
        check(re.fullmatch("[A-Za-z0-9_.-]+", part) and part not in (".", ".."), path)
        root = root / part
        check(not root.is_symlink(), f"{root} is a link")
    return root


def _read(path: Path, offset: int, length: int, crc32: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        content = file.read(length)
    check(len(content) == length and zlib.crc32(content) == crc32, f"bytes of {path}")
    return content
