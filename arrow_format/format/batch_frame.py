"""A batch of known columns as bytes: one zstd frame of an Arrow record batch message. Pure.

The schema is not part of it: sections of the log and of an index have one each, which their readers
know. The frame states its content size, so that what decompressing it takes is known before.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import zstandard

from arrow_format.format.ipc import facts_of

if TYPE_CHECKING:
    from collections.abc import Sequence

MALFORMED: tuple[type[Exception], ...] = (pa.ArrowException, OSError, KeyError, ValueError)
"""What reading a frame raises that is none of a batch."""

_LEVEL = 3
_OF_THREAD = threading.local()
"""Its decompressor: making one takes as long as a small frame, and none is safe for several."""

_MOST_KNOWN = 64
"""Schemas whose number of arrays is kept."""

_MAX_BYTES, _MAX_RATIO = 64 << 20, 1000
"""A frame decompresses to no more than this, or than so many times its length."""


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """Return the frame of a batch, without its schema."""
    return zstandard.ZstdCompressor(_LEVEL).compress(batch.serialize())


def content_size(frame: bytes | memoryview) -> int:
    """Return the bytes that a frame states and decompresses to.

    Raises ValueError where it states none, or more than any honest one.
    """
    try:
        stated = int(zstandard.frame_content_size(frame))
    except zstandard.ZstdError as error:
        msg = f"{len(frame)} bytes are no zstd frame ({error})"
        raise ValueError(msg) from error
    if not 0 < stated <= max(_MAX_BYTES, _MAX_RATIO * len(frame)):
        msg = f"a frame of {len(frame)} bytes that states {stated}"
        raise ValueError(msg)
    return stated


def content_of(frame: bytes | memoryview) -> pa.Buffer:
    """Return what a frame decompresses to, bounded as :func:`content_size`; raises as that."""
    content_size(frame)
    try:
        return _decompressed(frame)
    except zstandard.ZstdError as error:
        msg = f"a frame of {len(frame)} bytes is damaged ({error})"
        raise ValueError(msg) from error


def states(frame: bytes | memoryview, num_bytes: int) -> bool:
    """Whether a frame says that it decompresses to so many bytes: it makes no others then."""
    try:
        return bool(zstandard.frame_content_size(frame) == num_bytes)
    except zstandard.ZstdError:
        return False


def content_stated(frame: bytes | memoryview, num_bytes: int) -> pa.Buffer | None:
    """Return what a frame decompresses to if it states so many bytes; None for any other."""
    try:
        return _decompressed(frame) if states(frame, num_bytes) else None
    except zstandard.ZstdError:
        return None


def _decompressed(frame: bytes | memoryview) -> pa.Buffer:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_OF_THREAD, "decompressor", None)
    if decompressor is None:
        decompressor = _OF_THREAD.decompressor = zstandard.ZstdDecompressor()
    return pa.py_buffer(decompressor.decompress(frame, allow_extra_data=False))


def message_of(frame: bytes | memoryview, schema: pa.Schema) -> pa.Buffer:
    """Return the record batch message in a frame: of all columns of a schema, not compressed.

    What is inside is not checked. Raises one of MALFORMED.
    """
    return _message(frame, schema)[0]


def _message(frame: bytes | memoryview, schema: pa.Schema) -> tuple[pa.Buffer, bool]:
    """Return a message, and whether it states nulls."""
    message = content_of(frame)
    return message, _check_message(memoryview(message), schema)


def _check_message(message: memoryview, schema: pa.Schema) -> bool:
    """Return whether a message of all columns of a schema states nulls."""
    facts, expected = facts_of(message), _num_nodes(schema)
    if facts.is_compressed:
        msg = "buffers are compressed inside of a frame"
        raise ValueError(msg)
    if facts.num_nodes != expected:
        names = ", ".join(schema.names)
        msg = f"a batch of {facts.num_nodes} arrays, expected {expected}: {names}"
        raise ValueError(msg)
    return facts.has_nulls


_known_nodes: dict[int, tuple[pa.Schema, int]] = {}
"""Of schemas that are constants, by identity: to hash one takes longer than all else here."""


def _num_nodes(schema: pa.Schema) -> int:
    known = _known_nodes.get(id(schema))
    if known is None:
        known = schema, sum(1 + _nodes_inside(field.type) for field in schema)
        if len(_known_nodes) >= _MOST_KNOWN:
            _known_nodes.clear()
        _known_nodes[id(schema)] = known
    return known[1]


def _nodes_inside(type_: pa.DataType) -> int:
    if pa.types.is_map(type_):  # and the pairs
        return 3 + _nodes_inside(type_.key_type) + _nodes_inside(type_.item_type)
    return sum(1 + _nodes_inside(type_.field(i).type) for i in range(type_.num_fields))


def decode_batch(frame: bytes | memoryview, schema: pa.Schema) -> pa.RecordBatch:
    """Inverse of :func:`encode_batch`, checked in full: nulls are where the schema has them.

    Raises one of MALFORMED.
    """
    message, has_nulls = _message(frame, schema)
    return _checked(pa.ipc.read_record_batch(message, schema), has_nulls=has_nulls)


def encode_table(table: pa.Table) -> bytes:
    """Return the frame of a table as one batch; else as :func:`encode_batch`."""
    columns = [column.combine_chunks() for column in table.columns]
    return encode_batch(pa.RecordBatch.from_arrays(columns, schema=table.schema))


def decode_table(frame: bytes | memoryview, schema: pa.Schema) -> pa.Table:
    """Return the batch in a frame as a table; else as :func:`decode_batch`."""
    return pa.Table.from_batches([decode_batch(frame, schema)])


def decode_batches(
    frames: Sequence[bytes | memoryview], schema: pa.Schema
) -> tuple[pa.Table, list[int]]:
    """Decode many small batches as one table; return it, and the rows of each.

    Each is checked by itself; what a caller makes of them is then made of all at once. Raises as
    :func:`decode_batch`.
    """
    batches = [decode_batch(frame, schema) for frame in frames]
    table = pa.Table.from_batches(batches, schema).combine_chunks()
    return table, [batch.num_rows for batch in batches]


def _checked(batch: pa.RecordBatch, *, has_nulls: bool = True) -> pa.RecordBatch:
    """Check a batch; nulls need not be looked for where its message states none."""
    batch.validate(full=True)
    if not has_nulls:
        return batch
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if _has_nulls(column, field):
            msg = f"column {field.name} has nulls"
            raise ValueError(msg)
    return batch


def _has_nulls(array: pa.Array, field: pa.Field) -> bool:
    """Whether there are nulls where a field, or one inside it, allows none."""
    type_ = field.type
    if array.null_count:
        return not field.nullable
    if pa.types.is_struct(type_):
        return any(_has_nulls(array.field(i), type_.field(i)) for i in range(type_.num_fields))
    if pa.types.is_map(type_):
        return _has_nulls(array.keys, type_.key_field) or _has_nulls(array.items, type_.item_field)
    # All values, not those of the lists alone: a message has no others, and this copies none.
    return bool(pa.types.is_list(type_)) and _has_nulls(array.values, type_.value_field)
