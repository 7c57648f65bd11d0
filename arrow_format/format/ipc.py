"""Arrow IPC messages, footers and schemas, read from files that are not trusted.

Offsets and lengths are checked; text that is not UTF-8 and decimals of too many digits are not
rejected, since Spark writes them.
"""

from __future__ import annotations

import base64
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable


_CONTINUATION = 0xFFFFFFFF
END_OF_STREAM = struct.pack("<II", _CONTINUATION, 0)
_RECORD_BATCH = 3
"""Of ``Message.header``: 1 is a schema, 2 a dictionary."""
_SCHEMA = 1
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_NODES, _BUFFERS, _COMPRESSION = 1, 2, 3
_CUSTOM_METADATA = 2
"""Of ``Schema``; its items are pairs of key and value."""
_KEY, _VALUE = 0, 1
_FILE_START = 8
"""Bytes of an IPC file before its first message."""
_PREFIX = 8
"""A compressed buffer begins with its length before compression, or -1 if it is stored as it is."""


def check_stream(stream: memoryview, max_bytes: int) -> None:
    """Raise ValueError unless a stream is a schema and batches of at most ``max_bytes``.

    Sizes are those after decompression; dictionaries are refused.
    """
    position = 0
    total = 0
    kind = _SCHEMA
    while position < len(stream):
        sizes = _message(stream[position:], kind)
        if sizes is None:
            return
        length, expanded = sizes
        position += length
        total += expanded
        if total > max_bytes:
            msg = f"record batches of {total} bytes, where at most {max_bytes} are expected"
            raise ValueError(msg)
        kind = _RECORD_BATCH


def is_compressed(message: memoryview) -> bool:
    """Whether the body of a record batch message is compressed; ValueError for another message."""
    return facts_of(message).is_compressed


class MessageFacts(NamedTuple):
    """What a record batch message says of itself."""

    is_compressed: bool
    num_nodes: int
    """Arrays that it has, those inside of others too; Arrow reads the first that it needs."""
    has_nulls: bool
    """Whether any of them states nulls; Arrow reads no bitmap of others."""


def facts_of(message: memoryview) -> MessageFacts:
    """Return what a record batch message says of itself; ValueError for another message."""
    metadata, _ = _metadata(message)
    batch = _batch(metadata)
    nodes = batch.pairs(_NODES)
    has_nulls = any(null_count for _, null_count in nodes)
    return MessageFacts(bool(batch.field(_COMPRESSION)), len(nodes), has_nulls)


def file_metadata(file: pa.Buffer) -> list[tuple[bytes, bytes]]:
    """Return the metadata of the schema of an IPC file, in order and with all of equal keys.

    PyArrow's own ``Schema.metadata`` keeps one value of each key. Raises ValueError if malformed.
    """
    metadata, _ = _metadata(memoryview(file)[_FILE_START:])
    schema = _root(metadata).table(_HEADER)
    if schema is None:
        msg = "the first message of the file has no schema"
        raise ValueError(msg)
    return [(pair.octets(_KEY), pair.octets(_VALUE)) for pair in schema.tables(_CUSTOM_METADATA)]


def _message(message: memoryview, kind: int) -> tuple[int, int] | None:
    """Bytes of a message, and of its body once decompressed; None at the end of a stream."""
    if len(message) >= 8 and message[:8].tobytes() == END_OF_STREAM:
        return None
    metadata, start = _metadata(message)
    root = _root(metadata)
    stated = root.octet(_HEADER_TYPE)
    body = root.long(_BODY_LENGTH)
    if stated != kind or not 0 <= body <= len(message) - start:
        msg = f"a message of kind {stated} with {body} bytes, expected one of kind {kind}"
        raise ValueError(msg)
    if kind == _SCHEMA:
        return start + body, 0
    batch = _batch(metadata)
    if not batch.field(_COMPRESSION):
        return start + body, body
    expanded = sum(
        _expanded(message[start : start + body], offset, length)
        for offset, length in batch.pairs(_BUFFERS)
    )
    return start + body, expanded


def _expanded(body: memoryview, offset: int, length: int) -> int:
    if not 0 <= offset <= len(body) or not 0 <= length <= len(body) - offset:
        msg = f"a buffer of {length} bytes at {offset} in a body of {len(body)}"
        raise ValueError(msg)
    if length < _PREFIX:
        return length
    (stated,) = struct.unpack_from("<q", body, offset)
    return length if stated < 0 else int(stated)


def _metadata(message: memoryview) -> tuple[memoryview, int]:
    """Metadata of a message, and the position of its body."""
    if len(message) < 8:
        msg = f"a message of {len(message)} bytes is too short"
        raise ValueError(msg)
    mark, length = struct.unpack_from("<Ii", message)
    if mark != _CONTINUATION or not 0 < length <= len(message) - 8:
        msg = f"a message of {len(message)} bytes that states {length} of metadata"
        raise ValueError(msg)
    return message[8 : 8 + length], 8 + length


class _Table:
    """A FlatBuffers table; a field that leads out of the buffer is a ValueError."""

    def __init__(self, buffer: memoryview, position: int) -> None:
        self._buffer = buffer
        self._position = position
        self._vtable = position - _read("<i", buffer, position)
        self._vtable_bytes = _read("<H", buffer, self._vtable)

    def field(self, number: int) -> int:
        """Return the position of a field; 0 if absent, and so below."""
        slot = 4 + 2 * number
        if slot + 2 > self._vtable_bytes:
            return 0
        offset = _read("<H", self._buffer, self._vtable + slot)
        return self._position + offset if offset else 0

    def octet(self, number: int) -> int:
        """Return the uint8 in a field."""
        position = self.field(number)
        return _read("<B", self._buffer, position) if position else 0

    def long(self, number: int) -> int:
        """Return the int64 in a field."""
        position = self.field(number)
        return _read("<q", self._buffer, position) if position else 0

    def table(self, number: int) -> _Table | None:
        """Return the table in a field, if there is one."""
        position = self.field(number)
        return self._at(position) if position else None

    def tables(self, number: int) -> list[_Table]:
        """Return the tables of the vector in a field."""
        start, count = self._vector(number, 4)
        return [self._at(start + 4 * i) for i in range(count)]

    def octets(self, number: int) -> bytes:
        """Return the bytes of the text in a field."""
        start, count = self._vector(number, 1)
        return self._buffer[start : start + count].tobytes()

    def pairs(self, number: int) -> list[tuple[int, int]]:
        """Return the vector of pairs of int64 in a field, as nodes and buffers are."""
        start, count = self._vector(number, 16)
        return list(struct.iter_unpack("<qq", self._buffer[start : start + 16 * count]))

    def _at(self, position: int) -> _Table:
        return _Table(self._buffer, position + _read("<I", self._buffer, position))

    def _vector(self, number: int, item_bytes: int) -> tuple[int, int]:
        """Position of the first item of the vector in a field, and the number of items."""
        position = self.field(number)
        if not position:
            return 0, 0
        vector = position + _read("<I", self._buffer, position)
        count = _read("<I", self._buffer, vector)
        if item_bytes * count > len(self._buffer) - vector - 4:
            msg = f"{count} items do not fit into {len(self._buffer)} bytes"
            raise ValueError(msg)
        return vector + 4, count


def _root(metadata: memoryview) -> _Table:
    return _Table(metadata, _read("<I", metadata, 0))


def _batch(metadata: memoryview) -> _Table:
    root = _root(metadata)
    batch = root.table(_HEADER)
    if root.octet(_HEADER_TYPE) != _RECORD_BATCH or batch is None:
        msg = "the message is not a record batch"
        raise ValueError(msg)
    return batch


def _read(layout: str, buffer: memoryview, position: int) -> int:
    if not 0 <= position <= len(buffer) - struct.calcsize(layout):
        msg = f"metadata of {len(buffer)} bytes leads to byte {position}"
        raise ValueError(msg)
    return int(struct.unpack_from(layout, buffer, position)[0])


_MAGIC = b"ARROW1"
_RECORD_BATCHES = 3
"""Number of the field in the table ``Footer``: version, schema, dictionaries, recordBatches."""


def keep_batches(end: bytes, num_batches: int) -> bytes:
    """Return the end of an IPC file with only its first ``num_batches`` (1 or more) listed.

    ``end`` is what Arrow's writer appends behind the last batch: end of stream, footer, its length
    (int32) and the magic. Raises ValueError if it is not, or lists fewer batches.
    """
    tail = 4 + len(_MAGIC)
    (length,) = struct.unpack_from("<i", end, len(end) - tail)
    footer = len(end) - tail - length
    table = footer + _unsigned(end, footer)
    vtable = table - struct.unpack_from("<i", end, table)[0]
    (field,) = struct.unpack_from("<H", end, vtable + 4 + 2 * _RECORD_BATCHES)
    vector = table + field + _unsigned(end, table + field)
    count = _unsigned(end, vector)
    if not end.endswith(_MAGIC) or not field or not 1 <= num_batches <= count:
        msg = f"end of {len(end)} bytes is not that of an IPC file of {num_batches} batches or more"
        raise ValueError(msg)
    shortened = bytearray(end)
    struct.pack_into("<I", shortened, vector, num_batches)
    return bytes(shortened)


def _unsigned(buffer: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", buffer, at)[0])


class LayoutCheck:
    """Checks the offsets and lengths in record batch messages of one data schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = byte_schema(schema)
        self._has_offsets = [
            pt.is_binary(type_) or pt.is_nested(type_) for type_ in self._schema.types
        ]

    def check(self, message: pa.Buffer | pa.Message, columns: Iterable[int] | None = None) -> None:
        """Raise ValueError or ArrowException where an offset or a length of columns is wrong.

        ``columns`` are their positions; all when None.
        """
        batch = pa.ipc.read_record_batch(message, self._schema)
        # Each buffer must have the bytes of its values; and where there are offsets, those must
        # lead inside. Without offsets, the full check would look at no more.
        if columns is None:
            batch.validate(full=any(self._has_offsets))
        else:
            for i in columns:
                batch.column(i).validate(full=self._has_offsets[i])


def byte_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that reads messages of a data schema as if all values were bytes.

    Byte values have no rules: text need not be UTF-8, decimals may exceed their precision.
    """
    return pa.schema(_as_bytes(schema))


def _as_bytes(fields: Iterable[pa.Field]) -> list[pa.Field]:
    return [pa.field(field.name, _layout(field.type), field.nullable) for field in fields]


def _layout(type_: pa.DataType) -> pa.DataType:
    """Return the type with the same buffers that has the fewest rules."""
    if pt.is_string(type_):
        return pa.binary()
    if pt.is_struct(type_):
        return pa.struct(_as_bytes(type_))
    if pt.is_map(type_):
        # Not a map, whose keys may not be null: that is checked where it matters.
        return pa.list_(pa.struct(_as_bytes([type_.key_field, type_.item_field])))
    if pt.is_fixed_size_list(type_):
        return pa.list_(_layout(type_.value_type), type_.list_size)
    if pt.is_list(type_):
        return pa.list_(_layout(type_.value_type))
    if pt.is_null(type_) or pt.is_boolean(type_) or pt.is_binary(type_):
        return type_
    return pa.binary(type_.bit_width // 8)


def schema_to_text(schema: pa.Schema) -> str:
    """Return ``schema`` as base64 of an Arrow IPC schema message."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: object) -> pa.Schema:
    """Parse the result of :func:`schema_to_text`.

    Raises ValueError or ArrowException if it is malformed, or has types that are never stored:
    dictionaries, for one.
    """
    if not isinstance(text, str):
        msg = f"a schema is text, not {type(text).__name__}"
        raise ValueError(msg)  # noqa: TRY004  of what was parsed, not of an argument
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    try:
        is_stored = data_schema(schema).equals(schema)
    except SchemaError as error:
        raise ValueError(str(error)) from error
    if not is_stored:
        msg = f"the schema has types that are never stored: {schema.to_string()[:500]}"
        raise ValueError(msg)
    return schema


_parsed_schema = lru_cache(64)(schema_from_text)  # mostly that of the file before


def to_json(value: object) -> str:
    """Return a schema in JSON that msgspec encodes; it knows the rest itself."""
    if isinstance(value, pa.Schema):
        return schema_to_text(value)
    msg = f"a {type(value).__name__} has no JSON"
    raise TypeError(msg)


def from_json(type_: type, value: object) -> pa.Schema:
    """Parse a schema in JSON that msgspec decodes; raises as :func:`schema_from_text`."""
    if type_ is pa.Schema and isinstance(value, str):
        return _parsed_schema(value)
    msg = f"a {type(value).__name__} is no {type_.__name__}"
    raise ValueError(msg)
