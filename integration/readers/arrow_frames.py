"""Record batches without their schema, as log, indexes and chunks have them."""

from __future__ import annotations

import base64
import struct

import pyarrow as pa
import zstandard


class DamageError(Exception):
    """A byte is not what was written."""


class NewerError(Exception):
    """A later release wrote it."""


def check(holds: object, what: object) -> None:
    """Raise DamageError where something does not hold."""
    if not holds:
        raise DamageError(str(what))


def fields(text: str, **types: pa.DataType) -> list[pa.Field]:
    """Return fields of names between spaces; ``a:int64 b c:[int8`` has two of a type, and lists.

    Types are those of ``types``, or Arrow's.
    """
    found: list[pa.Field] = []
    for word in text.split():
        name, _, of = word.partition(":")
        inside = of.removeprefix("[")
        kind = types.get(inside) or getattr(pa, inside)() if of else found[-1].type
        found.append(pa.field(name, pa.list_(kind) if of.startswith("[") else kind))
    return found


def schema_of(text: str) -> pa.Schema:
    """Return the schema in base64 of an Arrow IPC message."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def one_frame(frame: bytes, size: int | None = None) -> bytes:
    """Return the content of one zstd frame that states its size."""
    stated = zstandard.frame_content_size(frame)
    check(0 <= stated <= max(64 << 20, 1000 * len(frame)), f"a frame of {stated} bytes")
    decoder = zstandard.ZstdDecompressor().decompressobj()
    content = decoder.decompress(frame)
    check(decoder.eof and not decoder.unused_data, "it is not one frame")
    check(len(content) == stated and size in (None, stated), "another content size")
    return content


def section(frame: bytes, schema: pa.Schema, size: int | None = None) -> pa.RecordBatch:
    """Return the rows of a frame of the log, or one that is framed as these."""
    batch = message(one_frame(frame, size), schema)
    batch.validate(full=True)
    check(len(batch) and not any(column.null_count for column in batch), "no rows, or a null")
    return batch


def message(content: bytes, schema: pa.Schema) -> pa.RecordBatch:
    """Return the batch of a record batch message that is not compressed."""
    found = pa.ipc.read_message(content)
    check(found.type == "record batch", found.type)
    check(not _is_compressed(found.metadata.to_pybytes()), "BodyCompression")
    batch = pa.ipc.read_record_batch(found, schema)
    batch.validate()
    return batch


def _is_compressed(metadata: bytes) -> bool:
    """Whether the header of a message, its table 2, has the field 3 of a RecordBatch."""

    def field(table: int, number: int) -> int:
        vtable = table - struct.unpack_from("<i", metadata, table)[0]
        (size,) = struct.unpack_from("<H", metadata, vtable)
        at = 4 + 2 * number
        offset = struct.unpack_from("<H", metadata, vtable + at)[0] if at < size else 0
        return table + offset if offset else 0

    def follow(at: int) -> int:
        return at + int(struct.unpack_from("<I", metadata, at)[0])

    return field(follow(field(follow(0), 2)), 3) != 0
