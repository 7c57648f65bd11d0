"""Rows of a partitioned file, region by region, every part of it verified."""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
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
from integration.readers.packed_columns import num_nodes, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS = [
    *fields(uint32="subpartition_gap subpartition_rows", int64="chunk_rows chunk_gap"),
    *fields(uint8="chunk_encoding", int32="chunk_frames column_frame"),
    *fields(int64="column_raw_length frame_length", uint32="frame_crc32"),
]
_BLOCK = pa.schema(
    fields(int32="region", uint8="kind", int64="first_row num_rows rows_before")
    + [(name, pa.list_(kind)) for name, kind in _LISTS]
)
_MASK = pa.schema(fields(int32="region", int64="first_row", binary="rows"))


class _Column(NamedTuple):
    position: int
    name: str
    kind: pa.DataType
    ids: list[int]
    """Its own, and those of what is inside of it."""


def _columns(schema: pa.Schema, ids: list[int]) -> dict[int, _Column]:
    """Return the columns of a schema by their ids."""
    found, at = {}, 0
    for position, field in enumerate(schema):
        of = ids[at : at + num_nodes(field.type)]
        found[of[0]] = _Column(position, field.name, field.type, of)
        at += num_nodes(field.type)
    check(at == len(ids), "columns and their ids")
    return found


class _Chunk(NamedTuple):
    row: int
    """Its first row, of the region."""
    num_rows: int
    offset: int
    encoding: int
    lengths: list[int]
    sums: list[int]
    frames: list[int]
    """Frame of each column, and bytes that it has packed."""
    raw: list[int]

    @property
    def end(self) -> int:
        return self.offset + sum(self.lengths)

    def check(self) -> None:
        if self.encoding > 1:
            raise NewerError(f"encoding {self.encoding}")
        raw, stored = sum(self.raw), sum(self.lengths)
        if self.encoding == 0:
            check(raw == 0, self)
            raw = stored
        check(min(self.num_rows, *self.lengths) > 0 and self.offset % 8 == 0, self)
        check({*self.frames} == {*range(len(self.lengths))} and min(self.raw) >= 0, self)
        check(self.num_rows <= 1 << 25 and raw <= 32768 * stored, self)
        check(self.num_rows == 1 or raw <= 8 << 20, self)


_Part = tuple[dict[str, Any], np.ndarray, list[_Chunk]]
"""A row of a block, the subpartition of each of its rows, and its chunks."""


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
        said = {**file, **output}
        for name in ("job_id", "map_task", "attempt", "num_subpartitions", "data_bytes"):
            check(directory[name] == said[name], f"{name} of {index}")
        stored = schema_of(directory["data_schema"])
        self._schema = schema_of(shape["data_schema"])
        columns = _columns(stored, output["column_ids"])
        wanted = _columns(self._schema, shape["column_ids"])
        orders = [
            [(next(c.ids for c in of.values() if c.name == name), how) for name, how in keys]
            for of, keys in ((columns, directory["sort_by"]), (wanted, shape.get("sort_by", ())))
        ]
        check(orders[0] == orders[1], f"order of {index}")
        self._from = [columns.get(of) for of in wanted]
        for of, into in wanted.items():
            source = columns.get(of, into)
            check(source.ids == into.ids, f"what is inside of {into.name}")
            # Of the same bytes: only names, nullability and time zones differ.
            if of in columns and not _is_wider(into.kind, source.kind):
                stored = stored.set(source.position, pa.field(source.name, into.kind))
        self._stored = stored
        self._parts: dict[int, list[_Part]] = defaultdict(list)
        for first, end, *place, crc32, _, _, _ in directory["blocks"]:
            for part in section(_read(index, *place, crc32), _BLOCK).to_pylist():
                if part["kind"] > 1:
                    raise NewerError(f"kind {part['kind']} of a region")
                of_part = part, self._subpartitions(part, first, end), self._chunks(part)
                self._parts[part["region"]].append(of_part)
        parts = [part for of_region in self._parts.values() for part, *_ in of_region]
        rows = sum(part["num_rows"] for part in parts)
        check(rows == file["num_rows"] + file["mask_rows"], f"{rows} rows in {index}")
        check(sorted(self._parts) == [*range(file["num_regions"])], f"regions of {index}")

    def _subpartitions(self, part: dict[str, Any], first: int, end: int) -> np.ndarray:
        """Return the subpartition of each row; none of a broadcast region."""
        gaps, rows = (np.array(part[f"subpartition_{of}"], np.int64) for of in ("gap", "rows"))
        if part["kind"] == 1:
            check(not len(gaps) and not len(rows), "subpartitions of a broadcast region")
            return gaps
        check(len(gaps) == len(rows) and min(*gaps, *rows) > 0, "subpartitions of a part")
        found = first - 1 + np.cumsum(gaps)
        low, high = self._file["first_subpartition"], self._file["end_subpartition"]
        check(max(first, low) <= found[0] and found[-1] < min(end, high), "a subpartition")
        check(rows.sum() == part["num_rows"], "rows of subpartitions")
        return np.repeat(found, rows)

    def _chunks(self, part: dict[str, Any]) -> list[_Chunk]:
        rows, gaps, encodings, frames = (
            part[f"chunk_{of}"] for of in ("rows", "gap", "encoding", "frames")
        )
        c, at, row = len(self._stored), 0, part["first_row"] - part["rows_before"]
        check(len(rows) == len(gaps) == len(encodings) == len(frames), "lists of chunks")
        check(len(part["column_frame"]) == len(part["column_raw_length"]) == c * len(rows), "lists")
        check(len(part["frame_length"]) == len(part["frame_crc32"]) == sum(frames), "frames")
        found = []
        for i, num_rows in enumerate(rows):
            of_frames = slice(sum(frames[:i]), sum(frames[: i + 1]))
            of_columns = slice(c * i, c * (i + 1))
            lists = part["frame_length"][of_frames], part["frame_crc32"][of_frames]
            lists += part["column_frame"][of_columns], part["column_raw_length"][of_columns]
            chunk = _Chunk(row, num_rows, at + gaps[i], encodings[i], *lists)
            chunk.check()
            check(max(8, at) <= chunk.offset and chunk.end <= self._file["data_bytes"], chunk)
            at, row = chunk.end, row + num_rows
            found.append(chunk)
        end = part["first_row"] + part["num_rows"]
        check(found[0].row <= part["first_row"] < found[0].row + found[0].num_rows, "first chunk")
        check(found[-1].row < end <= row, "last chunk")
        return found

    def regions(self) -> Iterator[tuple[np.ndarray | None, pa.Table]]:
        """Yield the rows of each region that are left, and the subpartition of each row.

        None of a region that all subpartitions read.
        """
        masked, end, num_broadcast = self._mask(), 0, 0
        for region in range(self._file["num_regions"]):
            parts = sorted(self._parts[region], key=lambda of: of[0]["first_row"])
            kinds = {part["kind"] for part, *_ in parts}
            check(kinds == {0} or len(parts) == 1, "kinds of a region")
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
            check(row == num_rows < 1 << 31, "rows of chunks")
            rows = pa.Table.from_batches([self._rows(chunk) for chunk in chunks.values()])
            left = np.ones(num_rows, bool)
            gone = masked.pop(region, np.empty(0, np.int64))
            check(len(np.unique(gone)) == len(gone), "a row is masked twice")
            check(not len(gone) or 0 <= gone.min() <= gone.max() < num_rows, "a row of a mask")
            left[gone] = False
            rows = rows.filter(pa.array(left))
            num_broadcast += len(rows) if kinds == {1} else 0
            of = None if kinds == {1} else np.concatenate([ids for _, ids, _ in parts])[left]
            yield of, rows
        check(not masked and num_broadcast == self._file["num_broadcast_rows"], "rows of a file")

    def _mask(self) -> dict[int, np.ndarray]:
        """Return the rows that are gone, by region."""
        file, found = self._file, defaultdict(list)
        if not file["mask_rows"]:
            return {}
        place = file["mask_offset"], file["mask_length"], file["mask_crc32"]
        frame = file["mask"] or _read(_below(self._shuffle, file["mask_path"]), *place)
        check((len(frame), zlib.crc32(frame)) == place[1:], "mask")
        for piece in section(frame, _MASK).to_pylist():
            bits = np.unpackbits(np.frombuffer(piece["rows"], np.uint8), bitorder="little")
            found[piece["region"]].append(np.flatnonzero(bits) + piece["first_row"])
        masked = {region: np.concatenate(rows) for region, rows in found.items()}
        check(sum(map(len, masked.values())) == file["mask_rows"], "rows of a mask")
        return masked

    def _rows(self, chunk: _Chunk) -> pa.RecordBatch:
        starts = [chunk.offset + sum(chunk.lengths[:i]) for i in range(len(chunk.lengths))]
        places = zip(starts, chunk.lengths, chunk.sums, strict=True)
        frames = [_read(self._data, *place) for place in places]
        if chunk.encoding == 0:
            batch = message(frames[0], self._stored)
            check(len(batch) == chunk.num_rows, "rows of a message")
            arrays = batch.columns
        else:
            arrays = [None] * len(self._stored)
            for number, frame in enumerate(frames):
                inside = [column for column, of in enumerate(chunk.frames) if of == number]
                size = sum(chunk.raw[column] for column in inside)
                stream = zstandard.ZstdDecompressor().stream_reader(frame, read_across_frames=True)
                packed = memoryview(stream.read(size))
                check(len(packed) == size and not stream.read(1), "content of a frame")
                for column in inside:
                    of, packed = packed[: chunk.raw[column]], packed[chunk.raw[column] :]
                    arrays[column] = unpack(of, self._stored.field(column).type, chunk.num_rows)
        columns = [
            pa.nulls(chunk.num_rows, field.type)
            if source is None
            else arrays[source.position].cast(field.type)
            for source, field in zip(self._from, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _is_wider(new: pa.DataType, old: pa.DataType) -> bool:
    """Whether values of one type must become those of another, which may have more bits."""
    numbers = pt.is_integer, pt.is_floating, pt.is_decimal
    if new == old or not any(of(old) and of(new) for of in numbers):
        return False
    check(new.bit_width >= old.bit_width, f"{old} as {new}")
    return True


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
