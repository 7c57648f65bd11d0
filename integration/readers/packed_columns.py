"""Columns of Arrow from packed ones, as ``docs/format/packed.md`` describes them."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from integration.readers.arrow_frames import check


def unpack(content: bytes | memoryview, kind: pa.DataType, num_values: int) -> pa.Array:
    """Return a column of a type; raises DamageError for what is none of so many values."""
    return _Column(content, kind, num_values).array


def inside(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types inside of one: of what has a node, and an id, of its own."""
    if pt.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


def num_nodes(kind: pa.DataType) -> int:
    """Count the nodes of a column, which are as many as its ids."""
    return 1 + sum(map(num_nodes, inside(kind)))


class _Column:
    def __init__(self, content: bytes | memoryview, kind: pa.DataType, num_values: int) -> None:
        self._content, self._node, self._at = content, 0, 16 * num_nodes(kind)
        check(self._at <= len(content), "a column is shorter than its nodes")
        self.array = self._array(kind, num_values)
        check(self._at == len(content), "a column is longer than its buffers")

    def _buffer(self, size: int) -> bytes | memoryview:
        begin, self._at = self._at, self._at + -(-size // 8) * 8
        check(self._at <= len(self._content), "a buffer ends behind its column")
        return self._content[begin : begin + size]

    def _numbers(self, count: int, width: int, base: int) -> np.ndarray:
        codes = np.frombuffer(self._buffer(count * width), f"<u{width}")
        return codes.astype("<u8") + np.array(base).astype("<u8")

    def _array(self, kind: pa.DataType, count: int) -> pa.Array:
        node = struct.unpack_from("<BBB5xq", self._content, self._node)
        flags, width, _, base = node
        self._node += 16
        check(flags in ((0,) if pt.is_null(kind) else (0, 1)) and count < 1 << 31, node)
        buffers = [pa.py_buffer(self._buffer(-(-count // 8))) if flags else None]
        size, children = count, None
        if pt.is_string(kind) or pt.is_binary(kind) or pt.is_list(kind) or pt.is_map(kind):
            check(width in (1, 2, 4) and 0 <= base < 1 << 31, node)
            ends = np.append(0, np.cumsum(self._numbers(count, width, base)))
            size = int(ends[-1])
            check(size < 1 << 31, "lengths add up to too much")
            buffers.append(pa.py_buffer(ends.astype("<i4")))
            if not inside(kind):
                buffers.append(pa.py_buffer(self._buffer(size)))
        elif width != 255:
            buffers.append(pa.py_buffer(self._values(kind, count, node)))
        elif pt.is_null(kind):
            return pa.nulls(count)
        elif pt.is_fixed_size_list(kind):
            size *= kind.list_size
        elif not pt.is_struct(kind):
            buffers.append(pa.py_buffer(self._buffer(-(-count * kind.bit_width // 8))))
        if inside(kind):
            children = [self._array(of, size) for of in inside(kind)]
        if pt.is_map(kind):
            pair = pa.struct([kind.key_field, kind.item_field])
            children = [pa.Array.from_buffers(pair, size, [None], children=children)]
        return pa.Array.from_buffers(kind, count, buffers, children=children)

    def _values(self, kind: pa.DataType, count: int, node: tuple[int, ...]) -> np.ndarray:
        _, width, digits, base = node
        if pt.is_float64(kind):
            check(width in (1, 2, 4) and digits <= 15, node)
            return self._numbers(count, width, base).view("<i8").astype("<f8") / 10.0**digits
        is_number = pt.is_integer(kind) or pt.is_temporal(kind) or pt.is_decimal(kind)
        check(is_number and not pt.is_interval(kind) and not pt.is_decimal256(kind), node)
        size = kind.bit_width // 8
        check(width in (1, 2, 4, 8) and width <= size, node)
        numbers = self._numbers(count, width, base)
        if size < 16:
            return numbers.astype(f"<u{size}")
        low = numbers.view("<i8")
        return np.stack([low, low >> 63], axis=1)
