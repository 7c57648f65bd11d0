"""Golden shuffles whose checksums fit, and which a reader must refuse all the same.

Each version replaces the one before, and breaks one rule of ``docs/format/``; the last is sound.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard

from arrow_format import RoundRobinPartitioner
from arrow_format.format.batch_frame import decode_batch, decode_table, encode_batch, encode_table
from arrow_format.format.index_blocks import BLOCK_SCHEMA
from arrow_format.format.index_file import MAGIC, TAIL_BYTES, assemble, directory_place
from arrow_format.format.masks import RowMask
from arrow_format.log.framing import from_frame
from arrow_format.log.names import entry_path
from arrow_format.log.output_table import SCHEMA
from tests.compat.golden import Golden
from tests.support.hostile import index_parts
from tests.support.indexes import said_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROWS = pa.table(
    {
        "i": pa.array([1, 2, 300], pa.int32()),
        "f": pa.array([0.25, -1.5, 10.0]),
        "s": pa.array(["a", "", "bcd"]),
        "l": pa.array([[1], [], [2, 3]], pa.list_(pa.int8())),
    }
)
"""Rows of each version: a chunk, whose columns share a frame with codec zstd."""


TOTALS = pa.schema(
    [pa.field(name, pa.int64(), nullable=False) for name in ("num_rows", "num_bytes")]
)
"""Of the section of that name."""


@dataclass
class Version:
    """What a version is made of: one partitioned file, with a region of one chunk."""

    head: dict[str, Any]
    """The JSON of its entry, without sections."""
    outputs: list[dict[str, Any]]
    totals: list[dict[str, int]]
    directory: dict[str, Any]
    """Of the index, without places and checksums."""
    ranges: list[tuple[int, int]]
    """Subpartitions of each block."""
    blocks: list[list[dict[str, Any]]]
    """Parts of each block."""
    data: bytes
    encoded: Callable[[Version], dict[str, bytes]] | None = None
    """Gives the sections of the entry, where these are not those of the product."""
    listed: Callable[[list[list[Any]]], object] | None = None
    """Changes what the entry says of its sections."""
    behind: bytes = b""
    """Bytes behind the sections."""
    before_blocks: bytes = b""
    """Bytes of the index that are of no block."""

    @property
    def file(self) -> dict[str, Any]:
        """What the entry says of the file."""
        found: dict[str, Any] = self.outputs[0]["files"][0]
        return found

    @property
    def part(self) -> dict[str, Any]:
        """The only part of the only block."""
        return self.blocks[0][0]

    def columns(self) -> list[bytes]:
        """Return the packed columns of the chunk."""
        place, (length,) = self.part["chunk_gap"][0], self.part["frame_length"]
        content, at, found = zstandard.decompress(self.data[place : place + length]), 0, []
        for size in self.part["column_raw_length"]:
            found.append(content[at : at + size])
            at += size
        return found

    def put_frame(self, frame: bytes, columns: list[bytes] | None = None) -> None:
        """Put another frame in the place of that of the chunk, with columns of these lengths."""
        place = self.part["chunk_gap"][0]
        self.part["frame_length"], self.part["frame_crc32"] = [len(frame)], [zlib.crc32(frame)]
        if columns is not None:
            self.part["column_raw_length"] = [len(column) for column in columns]
        self.put_data(self.data[:place] + frame + bytes(-len(frame) % 8))

    def put_column(self, number: int, column: bytes) -> None:
        """Put another packed column in the place of one."""
        columns = self.columns()
        columns[number] = column
        self.put_frame(zstandard.compress(b"".join(columns)), columns)

    def other_bytes(self) -> bytes:
        """Return the bytes of the data file that belong to no chunk."""
        of_chunks = np.zeros(len(self.data), np.bool_)
        for part in (part for parts in self.blocks for part in parts):
            at, frames = 0, iter(part["frame_length"])
            for gap, num_frames in zip(part["chunk_gap"], part["chunk_frames"], strict=False):
                length = sum(islice(frames, num_frames))
                of_chunks[at + gap : at + gap + length] = True
                at += gap + length
        return np.frombuffer(self.data, np.uint8)[~of_chunks].tobytes()

    def put_data(self, data: bytes) -> None:
        """Put another data file in the place of this one; all sums fit again."""
        more = len(data) - len(self.data)
        self.data = data
        self.directory["data_bytes"] += more
        self.add(num_bytes=more)
        self.file["data_bytes"] += more

    def put_mask(self, frame: bytes, num_rows: int) -> None:
        """Put a mask of so many rows; totals are left to the caller."""
        self.file["num_rows"] -= num_rows
        self.head["num_rows"] -= num_rows
        self.head["state"]["readers"] = ["masks"]
        self.file.update(mask_rows=num_rows, mask_number=self.head["number"], mask=frame)
        self.file.update(mask_length=len(frame), mask_crc32=zlib.crc32(frame))

    def add(self, **more: int) -> None:
        """Add to sums of the entry."""
        for name, number in more.items():
            self.head[name] += number
            self.totals[0][name] += number


def sections_of(version: Version) -> dict[str, bytes]:
    """Return the sections of an entry, by name."""
    return {
        "added": encode_table(pa.Table.from_pylist(version.outputs, SCHEMA)),
        "totals": encode_table(pa.Table.from_pylist(version.totals, TOTALS)),
    }


def change(golden: Golden, number: int, how: Callable[[Version], object]) -> None:
    """Change a version of one file."""
    path = golden.directory / "shuffle"
    head, sections = from_frame((path / entry_path(number)).read_bytes(), dict[str, Any])
    del head["sections"]
    outputs = decode_table(sections["added"], SCHEMA).to_pylist()
    name = str(path / outputs[0]["files"][0]["path"])
    index, data = ((path / f"{name}.shuffle.{kind}").read_bytes() for kind in ("index", "data"))
    directory, blocks = index_parts(index)
    version = Version(
        head,
        outputs,
        decode_table(sections["totals"], TOTALS).to_pylist(),
        directory,
        [(first, end) for first, end, *_ in blocks],
        [decode_batch(block, BLOCK_SCHEMA).to_pylist() for _, _, block, _ in blocks],
        data,
    )
    how(version)
    version.directory["frame_crc32"] = zlib.crc32(version.other_bytes())
    encoded = [
        encode_batch(pa.RecordBatch.from_pylist(parts, BLOCK_SCHEMA)) for parts in version.blocks
    ]
    index = assemble(
        version.directory,
        [(*of, block, b"") for of, block in zip(version.ranges, encoded, strict=True)],
    )
    if version.before_blocks:
        index = shifted(index, version.before_blocks)
    version.file.update(said_of(index))
    (path / f"{name}.shuffle.index").write_bytes(index)
    (path / f"{name}.shuffle.data").write_bytes(version.data)
    (path / entry_path(number)).write_bytes(sealed(version))


def shifted(index: bytes, more: bytes) -> bytes:
    """Return an index with more bytes behind its magic."""
    length, _ = directory_place(index)
    directory = json.loads(zstandard.decompress(index[-TAIL_BYTES - length : -TAIL_BYTES]))
    for place in directory["blocks"]:
        place[2] += len(more)
        place[5] += len(more)
    directory["other_crc32"] = zlib.crc32(MAGIC + more)
    frame = zstandard.compress(json.dumps(directory).encode())
    tail = struct.pack("<II", len(frame), zlib.crc32(frame)) + MAGIC
    return b"".join([MAGIC, more, index[len(MAGIC) : -TAIL_BYTES - length], frame, tail])


def sealed(version: Version) -> bytes:
    """Return the entry of a version."""
    sections = (version.encoded or sections_of)(version)
    listed = [
        [name, len(part), zlib.crc32(part), zstandard.frame_content_size(part)]
        for name, part in sections.items()
    ]
    if version.listed is not None:
        version.listed(listed)
    line = json.dumps({**version.head, "sections": listed}, separators=(",", ":")).encode()
    trailer = b"\narrow-shuffle-log %d %08x\n" % (len(line), zlib.crc32(line))
    return b"".join([line, trailer, *sections.values(), version.behind])


def compressed_message(batch: pa.RecordBatch) -> bytes:
    """Return the message of a batch, its buffers compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as out:
        out.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return messages[1].serialize().to_pybytes()


# Of the log


def _compressed_section(version: Version) -> dict[str, bytes]:
    sections = sections_of(version)
    batch = pa.RecordBatch.from_pylist(version.totals * 100, TOTALS)
    return sections | {"totals": zstandard.compress(compressed_message(batch))}


def _without_content_size(version: Version) -> None:
    sections = sections_of(version)
    content = zstandard.decompress(sections["totals"])
    plain = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    version.encoded = lambda _: sections | {"totals": plain}
    version.listed = lambda listed: listed[-1].__setitem__(3, len(content))


def _section_of_two_frames(version: Version) -> dict[str, bytes]:
    sections = sections_of(version)
    return sections | {"totals": sections["totals"] + zstandard.compress(b"")}


def _file_twice(version: Version) -> None:
    version.add(num_rows=version.file["num_rows"], num_bytes=version.file["data_bytes"])
    version.outputs[0]["files"].append(version.file)


def _key_twice(version: Version) -> None:
    _file_twice(version)
    version.outputs[0]["files"].pop()
    version.outputs.append({**version.outputs[0], "order": 1})
    version.head["num_outputs"] += 1


LOG: Mapping[str, Callable[[Version], object]] = {
    "num_rows of the entry is no sum": lambda v: v.head.update(num_rows=4),
    "num_bytes of the entry is no sum": lambda v: v.head.update(num_bytes=4),
    "num_outputs of the entry is no count": lambda v: v.head.update(num_outputs=2),
    "totals are not those of the map outputs": lambda v: v.totals[0].update(num_rows=4),
    "a section with BodyCompression": lambda v: setattr(v, "encoded", _compressed_section),
    "a section that does not state its size": _without_content_size,
    "a section of two frames": lambda v: setattr(v, "encoded", _section_of_two_frames),
    "another content size": lambda v: setattr(
        v, "listed", lambda of: of[0].append(of[0].pop() + 8)
    ),
    "bytes behind the sections": lambda v: setattr(v, "behind", b"\0"),
    "the number of another entry": lambda v: v.head.update(number=1000),
    "a number that JSON has not": lambda v: v.head.update(later=float("nan")),
    "a path that leads upwards": lambda v: v.file.update(path=f"map_outputs/../{v.file['path']}"),
    "a file twice": _file_twice,
    "a key twice": _key_twice,
}

# Of the index


def _overlapping(version: Version) -> None:
    """Two chunks of one place."""
    part = version.part
    for name in ("chunk_encoding", "chunk_frames", "column_frame", "column_raw_length"):
        part[name] *= 2
    part["frame_length"] *= 2
    part["frame_crc32"] *= 2
    part["chunk_rows"] *= 2
    part["num_rows"] *= 2
    part["subpartition_rows"] = [6]
    part["chunk_gap"].append(-part["frame_length"][0])
    version.file["num_rows"] *= 2
    version.add(num_rows=3)


def _unaligned(version: Version) -> None:
    version.part["chunk_gap"] = [12]
    version.put_data(version.data[:8] + bytes(4) + version.data[8:])


def _of_two_frames(version: Version) -> None:
    """A frame that no column names."""
    frame = zstandard.compress(b"")
    version.part["chunk_frames"] = [2]
    version.part["frame_length"].append(len(frame))
    version.part["frame_crc32"].append(zlib.crc32(frame))
    version.put_data(version.data + frame)


def _large_chunk(version: Version) -> None:
    """A text that takes more than a chunk of several rows may."""
    lengths = np.array([0, 0, 9 << 20], "<u4").tobytes() + bytes(4)
    text = np.random.default_rng(1).integers(0, 2, (9 << 20) // 4096, np.uint8).repeat(4096)
    version.put_column(2, bytes([0, 4, *bytes(14)]) + lengths + text.tobytes())


def _dense_chunk(version: Version) -> None:
    """A text that takes more than 32,768 times its bytes: raw lengths alone say so."""
    stored = version.part["frame_length"][0]
    version.part["column_raw_length"][2] = 32_769 * stored


def _many_rows(version: Version) -> None:
    rows = (1 << 25) + 1
    version.part.update(chunk_rows=[rows], subpartition_rows=[0], large=[rows])
    version.part["num_rows"] = version.file["num_rows"] = rows
    version.add(num_rows=rows - 3)


INDEX: Mapping[str, Callable[[Version], object]] = {
    "rows of subpartitions are no sum": lambda v: v.part.update(subpartition_rows=[2]),
    "a subpartition behind the range": lambda v: v.part.update(subpartition_gap=[2]),
    "a large number that is none": lambda v: v.part.update(subpartition_rows=[0], large=[3]),
    "a large number of nothing": lambda v: v.part.update(large=[256]),
    "a subpartition of no row": lambda v: v.part.update(
        subpartition_gap=[1, 0], subpartition_rows=[3, 0]
    ),
    "rows of chunks are no sum": lambda v: v.part.update(chunk_rows=[2]),
    "a row that no part has": lambda v: v.part.update(first_row=1, rows_before=1),
    "a chunk that is not aligned": _unaligned,
    "a chunk behind the data file": lambda v: v.part.update(chunk_gap=[1 << 30]),
    "chunks of one place": _overlapping,
    "a chunk of several rows and more than 8 MiB": _large_chunk,
    "columns larger than their frames can be": _dense_chunk,
    "more than 2**25 rows in a chunk": _many_rows,
    "a frame without columns": _of_two_frames,
    "a frame that is not there": lambda v: v.part.update(column_frame=[0, 0, 0, 1]),
}

DIRECTORY: Mapping[str, Callable[[Version], object]] = {
    "the index of another job": lambda v: v.directory.update(job_id="another"),
    "of another map task": lambda v: v.directory.update(map_task=1),
    "of another attempt": lambda v: v.directory.update(attempt=1),
    "of another number of subpartitions": lambda v: v.directory.update(num_subpartitions=2),
    "of another order": lambda v: v.directory.update(sort_by=[["i", "ascending"]]),
    "of another length of the data file": lambda v: v.directory.update(data_bytes=8 << 10),
    "other columns than its ids": lambda v: v.outputs[0].update(column_ids=[1, 2, 3]),
}

# Of the data


def node(width: int, base: int, *buffers: bytes, flags: int = 0, digits: int = 0) -> bytes:
    """Return a packed column of one node, with padding of zeros."""
    head = bytes([flags, width, digits, *bytes(5)]) + base.to_bytes(8, "little", signed=True)
    return head + b"".join(buffer + bytes(-len(buffer) % 8) for buffer in buffers)


def _longer(version: Version) -> None:
    version.put_frame(zstandard.compress(b"".join(version.columns()) + bytes(8)))


def _shorter(version: Version) -> None:
    version.put_frame(zstandard.compress(b"".join(version.columns())[:-8]))


DATA: Mapping[str, Callable[[Version], object]] = {
    "a frame that is longer than its columns": _longer,
    "a frame that is shorter than its columns": _shorter,
    "a flag that is none": lambda v: v.put_column(0, node(1, 0, b"\1\2\3", flags=2)),
    "a width that is none": lambda v: v.put_column(0, node(3, 0, bytes(9))),
    "a width of more bytes than the type": lambda v: v.put_column(0, node(8, 0, bytes(24))),
    "more digits than 15": lambda v: v.put_column(1, node(1, 0, b"\1\2\3", digits=16)),
    "a float of 8 bytes that is a number": lambda v: v.put_column(1, node(8, 0, bytes(24))),
    "a negative base of lengths": lambda v: v.put_column(2, node(1, -1, b"\2\1\1", b"a")),
    "lengths of 8 bytes": lambda v: v.put_column(2, node(8, 0, bytes(24))),
    "lengths that add up to too much": lambda v: v.put_column(2, node(1, (1 << 31) - 1, bytes(3))),
    "a text that ends behind its column": lambda v: v.put_column(2, node(1, 0, b"\1\0\x09", b"a")),
    "bytes behind the buffers of a column": lambda v: v.put_column(
        0, node(1, 0, b"\1\2\3", bytes(8))
    ),
}

# Of Arrow messages


def _put_message(version: Version, message: bytes) -> None:
    """Put a message in the place of the chunk of a data file of codec none."""
    place, (length,) = version.part["chunk_gap"][0], version.part["frame_length"]
    version.part["frame_length"], version.part["frame_crc32"] = (
        [len(message)],
        [zlib.crc32(message)],
    )
    version.put_data(version.data[:place] + message + version.data[place + length :])


def _two_frames_of_a_message(version: Version) -> None:
    length = version.part["frame_length"][0]
    place = version.part["chunk_gap"][0]
    pieces = [version.data[place:][: length - 8], version.data[place:][length - 8 : length]]
    version.part["chunk_frames"] = [2]
    version.part["frame_length"] = [len(piece) for piece in pieces]
    version.part["frame_crc32"] = [zlib.crc32(piece) for piece in pieces]


def _batch(rows: pa.Table) -> pa.RecordBatch:
    return rows.combine_chunks().to_batches()[0]


MESSAGE: Mapping[str, Callable[[Version], object]] = {
    "BodyCompression": lambda v: _put_message(v, compressed_message(_batch(ROWS))),
    "a message of fewer rows": lambda v: _put_message(
        v, _batch(ROWS.slice(0, 2)).serialize().to_pybytes()
    ),
    "a message of two frames": _two_frames_of_a_message,
}

# Of masks


def _mask(version: Version, region: int, rows: list[int], stated: int | None = None) -> None:
    """Mask rows of the file."""
    number = len(rows) if stated is None else stated
    version.put_mask(RowMask.of({region: np.array(rows)}).encode(), number)
    version.totals[0]["num_rows"] -= number


MASK: Mapping[str, Callable[[Version], object]] = {
    "a mask of a region that is not there": lambda v: _mask(v, 1, [0]),
    "a mask of another number of rows": lambda v: _mask(v, 0, [0, 1], stated=1),
}


RULES: tuple[tuple[str, Mapping[str, Callable[[Version], object]], dict[str, Any]], ...] = (
    ("log", LOG, {}),
    ("index", INDEX, {}),
    ("files", {**DIRECTORY, **MASK}, {}),
    ("columns", DATA, {}),
    ("messages", MESSAGE, {"codec": "none"}),
)
"""What a shuffle is called, the rules that its versions break, and how it is written."""


def contradictions(
    name: str, rules: Mapping[str, Callable[[Version], object]], **options: Any
) -> None:
    """Write a version for each rule that breaks it, and one that breaks none."""
    golden = Golden(name, 1, RoundRobinPartitioner(), statistics=(), **options)
    for _ in range(len(rules) + 1):
        golden.commit("overwrite", [ROWS])
    for number, how in enumerate(rules.values(), start=1):
        change(golden, number, how)
    golden.refuses(dict.fromkeys(range(1, len(rules) + 1), "damage"))
