"""Makes hostile files: sound ones, changed where they hurt, with checksums that fit again."""

from __future__ import annotations

import copy
import json
import resource
import struct
import zlib
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import zstandard

from arrow_format.format.batch_frame import decode_batch, decode_table, encode_batch, encode_table
from arrow_format.format.index_blocks import BLOCK_SCHEMA
from arrow_format.format.index_file import TAIL_BYTES, assemble, directory_place, encode_index
from arrow_format.log.framing import from_frame, to_frame
from arrow_format.log.output_table import SCHEMA
from tests.support.exhaustive import examples
from tests.support.indexes import decode_index, statistics_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

EXAMPLES = examples(20, 2_000)
"""How many of each kind are tried."""

HURTS: list[Any] = [
    0, 1, -1, 2, 7, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 62) + 1, (1 << 63) - 1,
    1 << 63, 1 << 64, 10**30, 1.5, -0.0, 1e300, float("nan"), float("inf"), True, False, None, "",
    "x", "..", "../..", "/", "/etc/passwd", "a\0b", "a\\b", "é", "x" * 5000, "append", "replace",
    "hash", "range", "ascending", [], {}, [[]], [1], {"a": 1}, [None] * 3, "AAAA", "////",
]  # fmt: skip

NUMBERS = [0, 1, -1, 2, 3, 7, 8, 9, 255, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 62), -(1 << 63),
           (1 << 63) - 1, (1 << 63) - 8]  # fmt: skip


@contextmanager
def little_memory(spare: int = 256 << 20) -> Iterator[None]:
    """Let the process take only so many more bytes; beyond, allocations raise MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def sealed(line: bytes, sections: bytes = b"") -> bytes:
    """Return a file of the log of any first line."""
    return b"%s\narrow-shuffle-log %d %08x\n%s" % (line, len(line), zlib.crc32(line), sections)


def entry_json(entry: bytes) -> dict[str, Any]:
    """Return the JSON of a log entry."""
    return dict(json.loads(entry.partition(b"\n")[0]))


def forged_frame(
    data: bytes, changes: Mapping[str, Any], sections: Mapping[str, bytes | None] | None = None
) -> bytes:
    """Return a file of the log with other fields and sections, behind checksums that fit."""
    value, kept = from_frame(data, dict[str, Any])
    value.pop("sections", None)
    present: dict[str, bytes | None] = {name: bytes(part) for name, part in kept.items()}
    present |= sections or {}
    kept_parts = {name: part for name, part in present.items() if part is not None}
    return framed({**value, **changes}, kept_parts)


def framed(value: Mapping[str, Any], sections: Mapping[str, bytes]) -> bytes:
    """Return a file of the log whose sections may be no frames, behind checksums that fit."""
    described = [[n, len(part), zlib.crc32(part), stated(part)] for n, part in sections.items()]
    more = {"sections": described} if sections else {}
    return to_frame({**more, **value}) + b"".join(sections.values())


def stated(section: bytes) -> int:
    """Return the bytes that a section states, or its length if it is no frame."""
    try:
        return int(zstandard.frame_content_size(section))
    except zstandard.ZstdError:
        return len(section)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to everything inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inner:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


def changed_json(rng: random.Random, value: dict[str, Any]) -> dict[str, Any]:
    """Return JSON in which one to three values were replaced, taken out or doubled."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = rng.choice(list(places(value)))
        holder: Any = value
        for key in path[:-1]:
            holder = holder[key]
        here = holder[path[-1]]
        what = rng.choice(["replace", "replace", "replace", "nudge", "remove", "double", "deepen"])
        if what == "remove":
            del holder[path[-1]]
        elif what == "double" and isinstance(holder, list):
            holder.insert(path[-1], copy.deepcopy(here))
        elif what == "nudge" and type(here) is int:
            holder[path[-1]] = here + rng.choice([-1, 1, 1 << 31, 1 << 62])
        elif what == "deepen":
            for _ in range(rng.choice([1, 100])):
                here = [here] if rng.random() < 0.5 else {"x": here}
            holder[path[-1]] = here
        else:
            holder[path[-1]] = rng.choice(HURTS)
    return value


def changed_bytes(rng: random.Random, original: bytes) -> bytes:
    """Return bytes of which a few were changed, as numbers or one by one, or moved."""
    damaged = bytearray(original)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(damaged))
        what = rng.choice(["bit", "byte", "number", "number", "move", "cut"])
        if what == "bit":
            damaged[at] ^= 1 << rng.randrange(8)
        elif what == "byte":
            damaged[at] = rng.randrange(256)
        elif what == "number":
            layout, size = rng.choice([("<i", 4), ("<q", 8)])
            at = at // size * size
            number = rng.choice(NUMBERS) % (1 << 8 * size)
            damaged[at : at + size] = struct.pack(layout.upper(), number)
        elif what == "move":
            length = min(rng.choice([4, 8, 64]), len(damaged) - at)
            start = rng.randrange(len(damaged) - length + 1)
            damaged[at : at + length] = damaged[start : start + length]
        elif len(damaged) > 64:
            del damaged[at // 8 * 8 :]
            damaged = damaged or bytearray(8)
    return bytes(damaged)


def changed_index(rng: random.Random, index: bytes) -> bytes:
    """Return an index whose regions or metadata contradict themselves, behind good checksums."""
    metadata, blocks = index_parts(index)
    if rng.random() < 0.3:
        metadata = changed_json(rng, metadata)
    if blocks and rng.random() < 0.8:
        at = rng.randrange(len(blocks))
        first, end, block, section = blocks[at]
        what = rng.choice(["block", "block", "bytes", "section", "range", "twice"])
        if what == "block":
            block = changed_block(rng, block)
        elif what == "bytes":
            block = changed_bytes(rng, block)
        elif what == "section":
            section = changed_bytes(rng, section) if section else b"\0"
        elif what == "range":
            end += rng.choice([-1, 1, 1 << 20])
        else:
            blocks.append(blocks[at])
        blocks[at] = first, max(end, 0), block, section
    try:
        return assemble(metadata, blocks)
    except (TypeError, ValueError, OverflowError, RecursionError):
        # Metadata that no JSON is made of.
        return changed_bytes(rng, index)


def index_parts(index: bytes) -> tuple[dict[str, Any], list[tuple[int, int, bytes, bytes]]]:
    """Return the metadata of an index as JSON, and its blocks for ``assemble``."""
    length, _ = directory_place(index)
    directory = index[len(index) - TAIL_BYTES - length : len(index) - TAIL_BYTES]
    metadata = json.loads(zstandard.decompress(directory))
    blocks = []
    for first, end, at, size, _, section_at, section_size, _ in metadata.pop("blocks"):
        section = index[section_at : section_at + section_size]
        blocks.append((first, end, index[at : at + size], section))
    del metadata["other_crc32"]
    return metadata, blocks


def changed_block(rng: random.Random, block: bytes) -> bytes:
    """Return a block whose parts contradict themselves."""
    rows = decode_batch(block, BLOCK_SCHEMA).to_pylist()
    for _ in range(rng.choice([1, 1, 2])):
        row = rng.choice(rows)
        name = rng.choice(list(row))
        if isinstance(row[name], list) and row[name]:
            change_list(rng, row[name])
        else:
            row[name] = rng.choice([None, [], [0], *NUMBERS])
    if rng.random() < 0.1:
        rows += rows[:1]
    columns = [column(rng, [row[field.name] for row in rows], field.type) for field in BLOCK_SCHEMA]
    schema = pa.schema([field.with_nullable(True) for field in BLOCK_SCHEMA])
    return encode_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def changed_chunk(rng: random.Random, data: bytearray, index: bytes) -> bytes:
    """Change a stored chunk in place; return the index whose checksum of it fits again."""
    metadata, decoded = decode_index(index)
    regions = list(decoded)
    number = rng.randrange(len(regions))
    chunks = regions[number].chunks
    at = rng.randrange(len(chunks.offset))
    start, end = int(chunks.offset[at]), int(chunks.offset[at] + chunks.length[at])
    stored = bytes(data[start:end])
    data[start:end] = changed_bytes(rng, stored)[: len(stored)].ljust(len(stored), b"\0")
    sums = chunks.frame_crc32.copy()
    for frame in range(*chunks.first_frame[at : at + 2]):
        stop = start + int(chunks.frame_length[frame])
        sums[frame] = zlib.crc32(data[start:stop])
        start = stop
    regions[number] = replace(regions[number], chunks=replace(chunks, frame_crc32=sums))
    return encode_index(metadata, regions, statistics_of(index))


def change_list(rng: random.Random, values: list[Any]) -> None:
    """Change a list of numbers in place."""
    what = rng.choice(["replace", "replace", "swap", "remove", "add", "null"])
    at = rng.randrange(len(values))
    if what == "swap":
        other = rng.randrange(len(values))
        values[at], values[other] = values[other], values[at]
    elif what == "remove":
        del values[at]
    elif what == "add":
        values.insert(at, rng.choice(NUMBERS))
    elif what == "null":
        values[at] = None
    else:
        values[at] = rng.choice(NUMBERS)


def column(rng: random.Random, values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return values as far as they fit; numbers that do not are brought into range."""
    del rng
    is_list = pa.types.is_list(type_)
    number = type_.value_type if is_list else type_
    bits = number.bit_width
    low, high = (
        (0, (1 << bits) - 1)
        if pa.types.is_unsigned_integer(number)
        else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    )

    def fit(value: Any) -> Any:
        return None if value is None else min(max(value, low), high)

    if is_list:
        fitted = [
            None if one is None else [fit(v) for v in (one if isinstance(one, list) else [one])]
            for one in values
        ]
    else:
        fitted = [fit(None if isinstance(one, list) else one) for one in values]
    return pa.array(fitted, type_)


def rebuilt(
    path: Path, change: Callable[[dict[str, Any], Path], None], entry_path: Path | None = None
) -> None:
    """Change a shuffle's files and its newest entry, and put the entry's checksums right.

    ``change`` gets the JSON of the entry, with its map outputs as objects under ``map_outputs``.
    """
    entry_path = entry_path or sorted((path / "commit_log").glob("*/*.entry"))[-1]
    value, sections = from_frame(entry_path.read_bytes(), dict[str, Any])
    table = decode_table(sections["added"], SCHEMA)
    value["map_outputs"] = table.to_pylist()
    change(value, path)
    outputs = pa.Table.from_pylist(value.pop("map_outputs"), SCHEMA)
    kept = {name: bytes(section) for name, section in sections.items()}
    value.pop("sections", None)
    entry_path.write_bytes(to_frame(value, {**kept, "added": encode_table(outputs)}))
