"""Golden versions that are changed where no writer would: an entry, an index and a data file.

A version has one partitioned file with a region of one chunk. What is changed of it is decoded and
encoded again, and the checksums fit.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import zstandard

from arrow_format.format.batch_frame import decode_batch, decode_table, encode_batch, encode_table
from arrow_format.format.index_blocks import BLOCK_SCHEMA
from arrow_format.format.index_file import MAGIC, TAIL_BYTES, assemble, directory_place
from arrow_format.log.framing import from_frame
from arrow_format.log.names import entry_path, range_path
from arrow_format.log.output_table import SCHEMA
from tests.compat.damages import TOTALS
from tests.support.hostile import index_parts, sealed, stated
from tests.support.indexes import said_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.compat.golden import Golden

ROWS = pa.table(
    {
        "i": pa.array([1, 2, 300], pa.int32()),
        "f": pa.array([0.25, -1.5, 10.0]),
        "s": pa.array(["a", "", "bcd"]),
        "l": pa.array([[1], [], [2, 3]], pa.list_(pa.int8())),
    }
)
"""Rows of each version: a chunk, whose columns share a frame with codec zstd."""


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
    statistics: list[bytes]
    """Those of each block; of a shuffle without any none."""
    data: bytes
    encoded: Callable[[Version], dict[str, bytes]] | None = None
    """Gives the sections of the entry, where these are not those of the product."""
    listed: Callable[[list[list[Any]]], object] | None = None
    """Changes what the entry says of its sections."""
    behind: bytes = b""
    """Bytes behind the sections."""
    before_blocks: bytes = b""
    """Bytes of the index that are of no block."""
    of_block: Callable[[bytes], bytes] | None = None
    """Changes the frame of a block,"""
    of_directory: Callable[[bytes], bytes] | None = None
    """or that of the directory."""

    @property
    def file(self) -> dict[str, Any]:
        """What the entry says of the file."""
        found: dict[str, Any] = self.outputs[0]["files"][0]
        return found

    @property
    def part(self) -> dict[str, Any]:
        """The only part of the only block."""
        return self.blocks[0][0]

    def put_maximum(self, text: bytes) -> None:
        """Have the log say that no text of the file is above one."""
        number = ROWS.column_names.index("s") + 1
        bounds = {"column": number, "minimum": b"", "maximum": text, "null_count": 0}
        self.file["statistics"] = [bounds]

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

    def put_schema(self, schema: pa.Schema) -> None:
        """Say that the version has other columns."""
        text = base64.b64encode(schema.serialize()).decode()
        self.head["state"]["shape"]["data_schema"] = text

    def put_subpartitions(self, n: int) -> None:
        """Say that the version has so many subpartitions, of which the first has all rows."""
        self.head["state"]["shape"]["num_subpartitions"] = n
        self.directory["num_subpartitions"] = self.file["num_subpartitions"] = n
        self.totals += [dict.fromkeys(self.totals[0], 0) for _ in range(n - 1)]

    def put_region(self) -> None:
        """Put the chunk once more, as a second region."""
        place, (length,) = self.part["chunk_gap"][0], self.part["frame_length"]
        behind = len(self.data)
        self.put_data(self.data + self.data[place : place + length] + bytes(-length % 8))
        self.blocks[0].append({**self.part, "region": 1, "chunk_gap": [behind]})
        self.file["num_regions"] = 2
        self.put_rows(6)

    def put_rows(self, num_rows: int) -> None:
        """Say that the file has so many rows; of the index its part does."""
        self.add(num_rows=num_rows - self.file["num_rows"])
        self.file["num_rows"] = num_rows

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
    path = golden.path
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
        [statistics for *_, statistics in blocks if statistics],
        data,
    )
    how(version)
    version.directory["frame_crc32"] = zlib.crc32(version.other_bytes())
    encoded = [
        encode_batch(pa.RecordBatch.from_pylist(parts, BLOCK_SCHEMA)) for parts in version.blocks
    ]
    if version.of_block is not None:
        encoded = [version.of_block(block) for block in encoded]
    parts = zip_longest(version.ranges, encoded, version.statistics, fillvalue=b"")
    index = assemble(version.directory, [(*of, block, more) for of, block, more in parts])
    if version.before_blocks:
        index = shifted(index, version.before_blocks)
    if version.of_directory is not None:
        at = len(index) - TAIL_BYTES - directory_place(index)[0]
        index = index[:at] + with_tail(version.of_directory(index[at:-TAIL_BYTES]))
    version.file.update(said_of(index))
    (path / f"{name}.shuffle.index").write_bytes(index)
    (path / f"{name}.shuffle.data").write_bytes(version.data)
    (path / entry_path(number)).write_bytes(entry_of(version))
    (path / range_path(number)).unlink(missing_ok=True)  # which says it as it was


def shifted(index: bytes, more: bytes) -> bytes:
    """Return an index with more bytes behind its magic."""
    length, _ = directory_place(index)
    directory = json.loads(zstandard.decompress(index[-TAIL_BYTES - length : -TAIL_BYTES]))
    for place in directory["blocks"]:
        place[2] += len(more)
        place[5] += len(more)
    directory["other_crc32"] = zlib.crc32(MAGIC + more)
    frame = zstandard.compress(json.dumps(directory).encode())
    return b"".join([MAGIC, more, index[len(MAGIC) : -TAIL_BYTES - length], with_tail(frame)])


def with_tail(directory: bytes) -> bytes:
    """Return a directory, and the tail behind it."""
    return directory + struct.pack("<II", len(directory), zlib.crc32(directory)) + MAGIC


def entry_of(version: Version) -> bytes:
    """Return the entry of a version."""
    sections = (version.encoded or sections_of)(version)
    listed = [[name, len(part), zlib.crc32(part), stated(part)] for name, part in sections.items()]
    if version.listed is not None:
        version.listed(listed)
    line = json.dumps({**version.head, "sections": listed}, separators=(",", ":")).encode()
    return sealed(line, b"".join([*sections.values(), version.behind]))


def compressed_message(batch: pa.RecordBatch) -> bytes:
    """Return the message of a batch, its buffers compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as out:
        out.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return messages[1].serialize().to_pybytes()


def two_frames(frame: bytes) -> bytes:
    """Return a frame, and an empty one behind it."""
    return frame + zstandard.compress(b"")


def without_size(frame: bytes) -> bytes:
    """Return a frame that does not state the size of its content."""
    content = zstandard.decompress(frame)
    return zstandard.ZstdCompressor(write_content_size=False).compress(content)


def with_dictionary(frame: bytes) -> bytes:
    """Return a frame that says that its content needs a dictionary, of id 1."""
    begin = 6 - (frame[4] >> 5 & 1)
    return b"".join([frame[:4], bytes([frame[4] | 1]), frame[5:begin], b"\1", frame[begin:]])


def lying(more: int) -> Callable[[bytes], bytes]:
    """State so many bytes more than a frame has."""

    def changed(frame: bytes) -> bytes:
        # Behind magic, descriptor and, unless that says that there is none, the byte of the window.
        begin = 6 - (frame[4] >> 5 & 1)
        end = begin + (begin == 5, 2, 4, 8)[frame[4] >> 6]
        size = (zstandard.frame_content_size(frame) + more).to_bytes(8, "little")
        return b"".join([frame[:4], bytes([frame[4] | 0xC0]), frame[5:begin], size, frame[end:]])

    return changed
