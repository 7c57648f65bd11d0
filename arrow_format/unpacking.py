"""Packed chunks back into record batches; pure. The layout is in :mod:`arrow_format.packed_layout`.

A chunk is told apart from anything else by its CRC before it comes here; what is checked here is
that no length leads outside of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.packed_layout import (
    AS_IT_IS,
    HAS_NULLS,
    NODE,
    PREAMBLE,
    WIDTHS,
    Kind,
    children_of,
    kind_of,
    num_nodes,
    number_dtype,
    padding,
)

MAX_LENGTH = (1 << 31) - 1
"""Items or bytes that the offsets of a column can reach."""


def unpack(message: pa.Buffer, schema: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return the rows of a packed chunk.

    Parameters
    ----------
    message
        The chunk; values that are stored as Arrow has them are views of it.
    schema
        Data schema of the rows.
    num_rows
        How many there must be.

    Raises
    ------
    ValueError
        It is no packed chunk of this schema and number of rows.
    """
    reader = _Reader(message)
    if reader.num_rows != num_rows:
        msg = f"{reader.num_rows} rows where the index says {num_rows}"
        raise ValueError(msg)
    expected = sum(num_nodes(field.type) for field in schema)
    if reader.num_nodes != expected:
        msg = f"{reader.num_nodes} nodes where the schema has {expected}"
        raise ValueError(msg)
    arrays = [reader.array(field.type, num_rows) for field in schema]
    if reader.position != message.size:
        msg = f"{message.size} bytes where the nodes take {reader.position}"
        raise ValueError(msg)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Reader:
    """Reads nodes one after the other."""

    def __init__(self, message: pa.Buffer) -> None:
        if message.size < PREAMBLE.size:
            msg = f"{message.size} bytes are no packed chunk"
            raise ValueError(msg)
        self._message = message
        self.num_rows, self.num_nodes = PREAMBLE.unpack_from(message)
        self._next_header = PREAMBLE.size
        self.position = PREAMBLE.size + NODE.size * self.num_nodes
        """Byte at which the next buffer begins."""
        if self.position > message.size:
            msg = f"{self.num_nodes} nodes do not fit into {message.size} bytes"
            raise ValueError(msg)

    def array(self, type_: pa.DataType, length: int) -> pa.Array:
        """Return the next node, and those inside it, as an array of ``length`` values."""
        flags, width, base = NODE.unpack_from(self._message, self._next_header)
        self._next_header += NODE.size
        if flags & ~HAS_NULLS:
            msg = f"a node has flags {flags:#x}"
            raise ValueError(msg)
        kind = kind_of(type_)
        if kind is Kind.NOTHING:
            return pa.nulls(length)
        valid = self._take(-(-length // 8)) if flags else None
        if kind is Kind.BITS:
            return pa.Array.from_buffers(type_, length, [valid, self._take(-(-length // 8))])
        if kind in (Kind.NUMBERS, Kind.RAW):
            if width == AS_IT_IS:
                values = self._take(length * (type_.bit_width // 8))
            elif kind is Kind.NUMBERS:
                values = self._numbers(type_, length, width, base)
            else:
                msg = f"a node of type {type_} has width {width}"
                raise ValueError(msg)
            return pa.Array.from_buffers(type_, length, [valid, values])
        if kind is Kind.PARTS:
            times = type_.list_size if pt.is_fixed_size_list(type_) else 1
            parts = [self.array(child, length * times) for child in children_of(type_)]
            return pa.Array.from_buffers(type_, length, [valid], children=parts)
        offsets, total = self._offsets(length, width, base)
        if kind is Kind.BYTES:
            return pa.Array.from_buffers(type_, length, [valid, offsets, self._take(total)])
        items = [self.array(child, total) for child in children_of(type_)]
        if pt.is_map(type_):
            fields = [type_.key_field, type_.item_field]
            items = [pa.StructArray.from_arrays(items, fields=fields)]
        return pa.Array.from_buffers(type_, length, [valid, offsets], children=items)

    def _take(self, num_bytes: int) -> pa.Buffer:
        start = self.position
        end = start + num_bytes
        if end > self._message.size:
            msg = f"a buffer ends at byte {end} of {self._message.size}"
            raise ValueError(msg)
        self.position = end + padding(num_bytes)
        return self._message.slice(start, num_bytes)

    def _codes(self, length: int, width: int) -> npt.NDArray[Any] | None:
        if width not in WIDTHS:
            msg = f"a node has width {width}"
            raise ValueError(msg)
        if width == 0:
            return None
        return np.frombuffer(self._take(length * width), f"<u{width}", length)

    def _numbers(self, type_: pa.DataType, length: int, width: int, base: int) -> pa.Buffer:
        dtype = number_dtype(type_)
        size = dtype.itemsize  # type: ignore[union-attr]
        codes = self._codes(length, width)
        if width > size:
            msg = f"a node of type {type_} has width {width}"
            raise ValueError(msg)
        # Modulo 2**64, or less where the type is narrower: bases may be negative.
        wide = np.dtype(f"<u{size}")
        offset = wide.type(base % (1 << 8 * size))
        if codes is None:
            values = np.full(length, offset, wide)
        elif offset == 0 and width == size:
            values = codes
        else:
            values = np.add(codes, offset, dtype=wide)
        if pt.is_decimal128(type_):
            words = np.empty((length, 2), "<i8")
            words[:, 0] = values.view("<i8")
            words[:, 1] = words[:, 0] >> 63
            values = words
        return pa.py_buffer(values)

    def _offsets(self, length: int, width: int, base: int) -> tuple[pa.Buffer, int]:
        codes = self._codes(length, width)
        if width > 4 or base < 0 or length * base > MAX_LENGTH:
            msg = f"{length} lengths of {width} bytes, of {base} or more"
            raise ValueError(msg)
        ends = np.zeros(length + 1, "<i8")
        if codes is None:
            ends[1:] = base
        else:
            np.add(codes, np.int64(base), out=ends[1:])
        np.cumsum(ends, out=ends)
        total = int(ends[-1])
        if total > MAX_LENGTH:
            msg = f"lengths add up to {total}"
            raise ValueError(msg)
        return pa.py_buffer(ends.astype("<i4")), total
