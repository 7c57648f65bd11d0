"""Record batches without their schema, as log, indexes and chunks have them."""

import base64
import struct
from typing import Any

import pyarrow as pa
import zstandard

Row = dict[str, Any]
"""An object of JSON, or a row of a batch."""


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
    """Return the batch of a record batch message, of these columns, that is not compressed."""
    found = pa.ipc.read_message(content)
    check(found.type == "record batch", found.type)
    check(_facts(found.metadata.to_pybytes()) == (_nodes(schema), 0), "columns or BodyCompression")
    batch = pa.ipc.read_record_batch(found, schema)
    batch.validate()
    return batch


def _nodes(of: pa.Schema | pa.DataType) -> int:
    number = of.num_fields if isinstance(of, pa.DataType) else len(of)
    return sum(1 + _nodes(of.field(i).type) for i in range(number))


def _facts(metadata: bytes) -> tuple[int, int]:
    """Return how many arrays a message has, and where it says that it is compressed; 0 if not.

    They are fields 1 and 3 of a RecordBatch, which is field 2 of the root.
    """

    def number(of: str, at: int) -> int:
        return int(struct.unpack_from(of, metadata, at)[0])

    def field(table: int, position: int) -> int:
        vtable, at = table - number("<i", table), 4 + 2 * position
        offset = number("<H", vtable + at) if at < number("<H", vtable) else 0
        return table + offset if offset else 0

    def follow(at: int) -> int:
        return at + number("<I", at)

    batch = follow(field(follow(0), 2))
    return number("<I", follow(field(batch, 1))), field(batch, 3)
