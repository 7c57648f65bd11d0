"""Shortens the list of record batches in the footer of an Arrow IPC file; pure.

A region that could not be written whole is cut off its file again, but Arrow's writer has its
batches in the footer already. The list is a FlatBuffers vector of structs: with a smaller count it
simply ends earlier. Source: Arrow columnar format, ``File.fbs``.
"""

from __future__ import annotations

import struct

_MAGIC = b"ARROW1"
_RECORD_BATCHES = 3
"""Number of the field in the table ``Footer``: version, schema, dictionaries, recordBatches."""


def keep_batches(end: bytes, num_batches: int) -> bytes:
    """Return the end of an IPC file with all but the first ``num_batches`` left out of it.

    Parameters
    ----------
    end
        What Arrow's writer appends behind the last batch: end of stream, footer, its length (int32)
        and the magic.
    num_batches
        At least 1 and at most those there are.

    Raises
    ------
    ValueError
        It is no such end, or names fewer batches.
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
