"""Columns of Arrow from packed ones, as ``docs/format/packed.md`` describes them."""

import struct
from collections.abc import Iterator
from io import BytesIO

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from integration.readers.arrow_frames import check

Node = tuple[int, int, int, int]
"""Flags, width, digits and base."""


def unpack(content: bytes, kind: pa.DataType, num_values: int) -> pa.Array:
    """Return a column of a type; raises DamageError for what is none of so many values."""
    begin = 16 * num_nodes(kind)
    check(begin <= len(content), "a column is shorter than its nodes")
    nodes, buffers = struct.iter_unpack("<BBB5xq", content[:begin]), BytesIO(content[begin:])
    array = _array(nodes, buffers, kind, num_values)
    check(not buffers.read(1), "a column is longer than its buffers")
    return array


def inside(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types inside of one: of what has a node, and an id, of its own."""
    of = kind.field(0).type if pt.is_map(kind) else kind  # the pair of a map has none
    return [of.field(i).type for i in range(of.num_fields)]


def num_nodes(kind: pa.DataType) -> int:
    """Count the nodes of a column, which are as many as its ids."""
    return 1 + sum(map(num_nodes, inside(kind)))


def _buffer(buffers: BytesIO, size: int) -> bytes:
    padded = -(-size // 8) * 8
    content = buffers.read(padded)
    check(len(content) == padded, "a buffer ends behind its column")
    return content[:size]


def _numbers(buffers: BytesIO, count: int, width: int, base: int) -> np.ndarray:
    codes = np.frombuffer(_buffer(buffers, count * width), f"<u{width}")
    return codes.astype(np.uint64) + np.array(base).astype(np.uint64)


def _array(nodes: Iterator[Node], buffers: BytesIO, kind: pa.DataType, count: int) -> pa.Array:
    flags, width, _, base = node = next(nodes)
    check(flags in ((0,) if pt.is_null(kind) else (0, 1)) and count < 1 << 31, node)
    parts = [pa.py_buffer(_buffer(buffers, -(-count // 8))) if flags else None]
    size, children = count, None
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_list(kind) or pt.is_map(kind):
        check(width in (1, 2, 4) and 0 <= base < 1 << 31, node)
        ends = np.append(0, np.cumsum(_numbers(buffers, count, width, base)))
        size = int(ends[-1])
        check(size < 1 << 31, "lengths add up to too much")
        parts.append(pa.py_buffer(ends.astype("<i4")))
        if not inside(kind):
            parts.append(pa.py_buffer(_buffer(buffers, size)))
    elif width != 255:
        parts.append(pa.py_buffer(_values(buffers, kind, count, node)))
    elif pt.is_fixed_size_list(kind):
        size *= kind.list_size
    elif not pt.is_struct(kind) and not pt.is_null(kind):
        parts.append(pa.py_buffer(_buffer(buffers, -(-count * kind.bit_width // 8))))
    if inside(kind):
        children = [_array(nodes, buffers, of, size) for of in inside(kind)]
    if pt.is_map(kind):
        children = [pa.Array.from_buffers(kind.field(0).type, size, [None], children=children)]
    return pa.Array.from_buffers(kind, count, parts, children=children)


def _values(buffers: BytesIO, kind: pa.DataType, count: int, node: Node) -> np.ndarray:
    _, width, digits, base = node
    if pt.is_float64(kind):
        check(width in (1, 2, 4) and digits <= 15, node)
        return _numbers(buffers, count, width, base).view("<i8").astype("<f8") / 10.0**digits
    is_number = pt.is_integer(kind) or pt.is_temporal(kind) or pt.is_decimal(kind)
    check(is_number and not pt.is_interval(kind) and not pt.is_decimal256(kind), node)
    size = kind.bit_width // 8
    check(width in (1, 2, 4, 8) and width <= size, node)
    numbers = _numbers(buffers, count, width, base)
    if size < 16:
        return numbers.astype(f"<u{size}")
    low = numbers.view("<i8")
    return np.stack([low, low >> 63], axis=1)
