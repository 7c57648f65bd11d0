"""Looks into Arrow IPC messages before Arrow reads them: how many bytes would they become? Pure.

Arrow allocates what a compressed buffer says of itself, so a few bytes could ask for any amount.
Only the few fields that tell are looked at; whether the rest is sound is for Arrow to say.
Source: Arrow columnar format, ``Message.fbs``; FlatBuffers internals.
"""

from __future__ import annotations

import struct

_CONTINUATION = 0xFFFFFFFF
_END = struct.pack("<II", _CONTINUATION, 0)
_RECORD_BATCH = 3
"""Of ``Message.header``: 1 is a schema, 2 a dictionary."""
_SCHEMA = 1
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_BUFFERS, _COMPRESSION = 2, 3
_PREFIX = 8
"""A compressed buffer begins with its length before compression, or -1 where it is stored as is."""


def check_stream(stream: memoryview, most_bytes: int) -> None:
    """Check that the record batches of a stream take no more than so many bytes.

    Parameters
    ----------
    stream
        Schema and record batches, as Arrow's stream reader takes them.
    most_bytes
        What the bodies of all record batches may take once they are decompressed.

    Raises
    ------
    ValueError
        They take more, or it is no such stream: one with dictionaries, say.
    """
    position = 0
    total = 0
    kind = _SCHEMA
    while position < len(stream):
        found = _message(stream[position:], kind)
        if found is None:
            return
        length, expanded = found
        position += length
        total += expanded
        if total > most_bytes:
            msg = f"record batches of {total} bytes, where at most {most_bytes} are expected"
            raise ValueError(msg)
        kind = _RECORD_BATCH


def is_compressed(message: memoryview) -> bool:
    """Whether the body of a record batch message is compressed.

    Raises
    ------
    ValueError
        It is no such message.
    """
    metadata, _ = _metadata(message)
    return bool(_batch(metadata).field(_COMPRESSION))


def _message(message: memoryview, kind: int) -> tuple[int, int] | None:
    """Return bytes of a message and what its body becomes; None at the end of a stream."""
    if len(message) >= 8 and message[:8].tobytes() == _END:
        return None
    metadata, start = _metadata(message)
    root = _root(metadata)
    found = root.octet(_HEADER_TYPE)
    body = root.long(_BODY_LENGTH)
    if found != kind or not 0 <= body <= len(message) - start:
        msg = f"a message of kind {found} with {body} bytes, where one of kind {kind} is expected"
        raise ValueError(msg)
    if kind == _SCHEMA:
        return start + body, 0
    batch = _batch(metadata)
    if not batch.field(_COMPRESSION):
        return start + body, body
    expanded = sum(
        _expanded(message[start : start + body], offset, length)
        for offset, length in batch.buffers()
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
    """Return the metadata of a message, and where its body starts."""
    if len(message) < 8:
        msg = f"{len(message)} bytes are no message"
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
        """Position of a field; 0 when it is not there."""
        slot = 4 + 2 * number
        if slot + 2 > self._vtable_bytes:
            return 0
        offset = _read("<H", self._buffer, self._vtable + slot)
        return self._position + offset if offset else 0

    def octet(self, number: int) -> int:
        """Uint8 in a field; 0 when it is not there."""
        position = self.field(number)
        return _read("<B", self._buffer, position) if position else 0

    def long(self, number: int) -> int:
        """Int64 in a field; 0 when it is not there."""
        position = self.field(number)
        return _read("<q", self._buffer, position) if position else 0

    def buffers(self) -> list[tuple[int, int]]:
        """Offsets and lengths of the buffers of a record batch."""
        position = self.field(_BUFFERS)
        if not position:
            return []
        vector = position + _read("<I", self._buffer, position)
        count = _read("<I", self._buffer, vector)
        if 16 * count > len(self._buffer) - vector - 4:
            msg = f"{count} buffers do not fit into {len(self._buffer)} bytes"
            raise ValueError(msg)
        return list(struct.iter_unpack("<qq", self._buffer[vector + 4 : vector + 4 + 16 * count]))


def _root(metadata: memoryview) -> _Table:
    return _Table(metadata, _read("<I", metadata, 0))


def _batch(metadata: memoryview) -> _Table:
    root = _root(metadata)
    header = root.field(_HEADER)
    if root.octet(_HEADER_TYPE) != _RECORD_BATCH or not header:
        msg = "a message that is no record batch"
        raise ValueError(msg)
    return _Table(metadata, header + _read("<I", metadata, header))


def _read(layout: str, buffer: memoryview, position: int) -> int:
    if not 0 <= position <= len(buffer) - struct.calcsize(layout):
        msg = f"metadata of {len(buffer)} bytes leads to byte {position}"
        raise ValueError(msg)
    return int(struct.unpack_from(layout, buffer, position)[0])
