"""Rows of a shuffle, by subpartition and in reading order, every part of them verified."""

from __future__ import annotations

import functools
import json
import math
import zlib
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from pyarrow import types as pt

from integration.readers.commit_log import (
    DamageError,
    NewerError,
    Version,
    batch_in,
    open_version,
    schema_of,
)
from integration.readers.packed_columns import unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTS = {
    **dict.fromkeys(("subpartition_gap", "subpartition_rows"), pa.uint32()),
    **dict.fromkeys(("chunk_rows", "chunk_gap"), pa.int64()),
    "chunk_encoding": pa.uint8(),
    **dict.fromkeys(("chunk_frames", "column_frame"), pa.int32()),
    **dict.fromkeys(("column_raw_length", "frame_length"), pa.int64()),
    "frame_crc32": pa.uint32(),
}
BLOCK = pa.schema(
    [
        ("region", pa.int32()),
        ("kind", pa.uint8()),
        *((name, pa.int64()) for name in ("first_row", "num_rows", "rows_before")),
        *((name, pa.list_(kind)) for name, kind in _LISTS.items()),
    ]
)

MASK = pa.schema([("region", pa.int32()), ("first_row", pa.int64()), ("rows", pa.binary())])


def read(shuffle: Path, number: int | None = None) -> pa.Table:
    """Return all rows of a version, with their subpartition as the last column."""
    version = open_version(shuffle, number)
    n = version.shape["num_subpartitions"]
    return read_range(shuffle, version, 0, n)


def read_range(shuffle: Path, version: Version, first: int, end: int) -> pa.Table:
    """Return the rows of subpartitions ``[first, end)``; each has its own one behind the other."""
    schema = version.schema
    ids, tables = [], []
    for output in version.outputs:
        for file in output["files"]:
            for rows, of in _rows_of_file(shuffle, version, output, file, first, end):
                tables.append(rows)
                ids.append(of)
    table = pa.Table.from_batches(tables, schema)
    where = np.concatenate(ids) if ids else np.empty(0, np.int64)
    order = np.argsort(where, kind="stable")
    field = pa.field("_subpartition", pa.int32(), nullable=False)
    table = table.take(pa.array(order)).append_column(field, pa.array(where[order], pa.int32()))
    return _in_order(table, version.shape.get("sort_by", ()))


def _rows_of_file(
    shuffle: Path,
    version: Version,
    output: dict[str, Any],
    file: dict[str, Any],
    first: int,
    end: int,
) -> Iterator[tuple[pa.RecordBatch, Any]]:
    root = Path(file["root"].decode()) if file["root"] else shuffle
    if file["root"]:
        marker = json.loads((root / "arrow-shuffle-root.json").read_bytes())
        if marker["job_id"] != output["job_id"]:
            raise DamageError(f"{root} is of another job")
    index = (root / (file["path"] + ".shuffle.index")).read_bytes()
    directory = _directory(index, file)
    for name in ("job_id", "map_task", "attempt"):
        if directory[name] != output[name]:
            raise DamageError(f"{file['path']} is of another {name}")
    columns = _Columns(schema_of(directory["data_schema"]), output["column_ids"], version)
    n, of_file = version.shape["num_subpartitions"], file["num_subpartitions"]
    if directory["num_subpartitions"] != of_file or of_file % n:
        raise DamageError(f"{file['path']} is of another number of subpartitions")
    parts = []
    for low, high, offset, length, crc32, *_ in directory["blocks"]:
        if any(low < end + more and first + more < high for more in range(0, of_file, n)):
            block = index[offset : offset + length]
            if zlib.crc32(block) != crc32:
                raise DamageError(f"block at {offset} of {file['path']}")
            parts += [(low, part) for part in batch_in(block, BLOCK).to_pylist()]
    gone = _gone(shuffle, file)
    parts.sort(key=lambda pair: (pair[1]["region"], pair[1]["first_row"]))
    with (root / (file["path"] + ".shuffle.data")).open("rb") as data:
        for low, part in parts:
            rows = pa.Table.from_batches(list(columns.chunks(data, part)), version.schema)
            rows = rows.slice(part["rows_before"], part["num_rows"]).combine_chunks()
            batch = rows.to_batches()[0]
            if len(batch) != part["num_rows"]:
                raise DamageError(f"{len(batch)} rows in part of region {part['region']}")
            left = [row not in gone.get(part["region"], ()) for row in _rows_of(part)]
            batch = batch.filter(pa.array(left, pa.bool_()))
            if part["kind"] == 1:
                for subpartition in range(first, end):
                    yield batch, np.full(len(batch), subpartition)
            elif part["kind"] == 0:
                gaps, counts = part["subpartition_gap"], part["subpartition_rows"]
                ids = np.repeat((np.cumsum(np.array(gaps, np.int64)) + low - 1) % n, counts)[left]
                kept = (ids >= first) & (ids < end)
                yield batch.filter(pa.array(kept)), ids[kept]
            else:
                raise NewerError(f"a region of kind {part['kind']}")


def _rows_of(part: dict[str, Any]) -> range:
    return range(part["first_row"], part["first_row"] + part["num_rows"])


def _gone(shuffle: Path, file: dict[str, Any]) -> dict[int, set[int]]:
    """Return the rows of each region that the mask of a file has."""
    gone: dict[int, set[int]] = {}
    if not file["mask_rows"]:
        return gone
    frame = file["mask"]
    if file["mask_path"]:
        start, length = file["mask_offset"], file["mask_length"]
        frame = (shuffle / file["mask_path"]).read_bytes()[start : start + length]
    if len(frame) != file["mask_length"] or zlib.crc32(frame) != file["mask_crc32"]:
        raise DamageError(f"mask of {file['path']}")
    for piece in batch_in(frame, MASK).to_pylist():
        bits = np.unpackbits(np.frombuffer(piece["rows"], np.uint8), bitorder="little")
        rows = gone.setdefault(piece["region"], set())
        rows |= set((np.flatnonzero(bits) + piece["first_row"]).tolist())
    if sum(map(len, gone.values())) != file["mask_rows"]:
        raise DamageError(f"rows in the mask of {file['path']}")
    return gone


def _directory(index: bytes, file: dict[str, Any]) -> dict[str, Any]:
    at = file["index_bytes"] - 16
    frame = index[at - file["directory_bytes"] : at]
    if zlib.crc32(frame) != file["directory_crc32"]:
        raise DamageError(f"directory of the index of {file['path']}")
    directory: dict[str, Any] = json.loads(zstandard.ZstdDecompressor().decompress(frame))
    if directory["format_version"] > 1:
        raise NewerError(f"index of format {directory['format_version']}")
    return directory


class _Columns:
    """Reads chunks of a file as rows of a version: columns with the same ids."""

    def __init__(self, stored: pa.Schema, ids: list[int], version: Version) -> None:
        position = dict(zip(_first_ids(stored, ids), range(len(stored)), strict=True))
        wanted = _first_ids(version.schema, version.shape["column_ids"])
        self._schema = version.schema
        self._from = [position.get(of) for of in wanted]
        # Inside of a column types are equal, but for names: so it is read as the version's.
        for field, at in zip(version.schema, self._from, strict=True):
            if at is not None and field.type.num_fields:
                stored = stored.set(at, stored.field(at).with_type(field.type))
        self._stored = stored

    def chunks(self, data: BinaryIO, part: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of each chunk of a part."""
        c, at, frame = len(self._stored), 0, 0
        for number, num_rows in enumerate(part["chunk_rows"]):
            at += part["chunk_gap"][number]
            frames = slice(frame, frame := frame + part["chunk_frames"][number])
            lengths, sums = part["frame_length"][frames], part["frame_crc32"][frames]
            of = part["column_frame"][number * c : (number + 1) * c]
            raw = part["column_raw_length"][number * c : (number + 1) * c]
            data.seek(at)
            pieces = [data.read(length) for length in lengths]
            at += sum(lengths)
            if [zlib.crc32(piece) for piece in pieces] != sums:
                raise DamageError(f"chunk {number} of region {part['region']}")
            encoding = part["chunk_encoding"][number]
            if encoding == 0:
                message = pa.py_buffer(pieces[0])
                arrays = pa.ipc.read_record_batch(message, self._stored).columns
            elif encoding == 1:
                arrays = self._unpacked(pieces, of, raw, num_rows)
            else:
                raise NewerError(f"encoding {encoding}")
            yield self._as_wanted(arrays, num_rows)

    def _unpacked(
        self, pieces: list[bytes], of: list[int], raw: list[int], num_rows: int
    ) -> list[pa.Array]:
        contents = [zstandard.ZstdDecompressor().decompressobj().decompress(p) for p in pieces]
        starts = [0] * len(pieces)
        arrays = []
        for field, frame, length in zip(self._stored, of, raw, strict=True):
            content = memoryview(contents[frame])[starts[frame] : starts[frame] + length]
            starts[frame] += length
            arrays.append(unpack(content, field.type, num_rows))
        if starts != [len(content) for content in contents]:
            raise DamageError("frames are longer than their columns")
        return arrays

    def _as_wanted(self, arrays: list[pa.Array], num_rows: int) -> pa.RecordBatch:
        columns = [
            pa.nulls(num_rows, field.type) if at is None else arrays[at].cast(field.type)
            for field, at in zip(self._schema, self._from, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _first_ids(schema: pa.Schema, ids: list[int]) -> list[int]:
    """Return the ids of the columns themselves, of those of all depths."""
    starts = accumulate((_num_ids(field.type) for field in schema), initial=0)
    return [ids[start] for start, _ in zip(starts, schema, strict=False)]


def _num_ids(kind: pa.DataType) -> int:
    if pt.is_map(kind):
        return 1 + _num_ids(kind.key_type) + _num_ids(kind.item_type)
    return 1 + sum(_num_ids(kind.field(i).type) for i in range(kind.num_fields))


def _in_order(table: pa.Table, sort_by: list[list[str]]) -> pa.Table:
    """Sort the rows of each subpartition; they stay where their keys agree."""
    if not sort_by:
        return table
    columns = [table["_subpartition"].to_pylist()]
    columns += [_plain(table[name]) for name, _ in sort_by]
    rows = list(zip(*columns, strict=True))

    def compare(a: int, b: int) -> int:
        if rows[a][0] != rows[b][0]:
            return -1 if rows[a][0] < rows[b][0] else 1
        for one, other, (_, order) in zip(rows[a][1:], rows[b][1:], sort_by, strict=True):
            down = order.startswith("descending")
            last = order in ("descending", "ascending nulls last")
            if (one is None) != (other is None):
                return 1 if (one is None) == last else -1
            sign = _compare(one, other)
            if sign:
                return -sign if down else sign
        return 0

    return table.take(sorted(range(len(rows)), key=functools.cmp_to_key(compare)))


def _plain(column: pa.ChunkedArray) -> list[Any]:
    if pt.is_temporal(column.type):
        column = pc.cast(column, pa.int64() if column.type.bit_width == 64 else pa.int32())
    return [x.encode() if isinstance(x, str) else x for x in column.to_pylist()]


def _compare(a: Any, b: Any) -> int:  # noqa: ANN401 - of any type of a sort key
    """Compare values as Spark does: nulls first, NaN is the largest, structs by their fields."""
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if isinstance(a, dict):
        return next(filter(None, map(_compare, a.values(), b.values())), 0)
    if isinstance(a, float) and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) - math.isnan(b)
    a, b = (x.encode() if isinstance(x, str) else x for x in (a, b))
    return int(a > b) - int(a < b)
