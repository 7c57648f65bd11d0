"""Columns of Arrow from packed ones, as ``docs/format/packed.md`` describes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NODE = struct.Struct("<BBB5xq")
_RAW = 255


@dataclass
class _Node:
    has_nulls: bool
    width: int
    digits: int
    base: int


def unpack(content: memoryview, data_type: pa.DataType, num_rows: int) -> pa.Array:
    """Return the column of a type whose packed bytes are exactly ``content``."""
    count = _num_nodes(data_type)
    nodes = [_Node(flags == 1, *rest) for flags, *rest in _NODE.iter_unpack(content[: 16 * count])]
    column = _Column(nodes, content, 16 * count)
    array = column.array(data_type, num_rows)
    if column.position != len(content) or column.nodes:
        msg = f"a column of {len(content)} bytes ends at {column.position}"
        raise ValueError(msg)
    return array


def _inner(data_type: pa.DataType) -> list[pa.DataType]:
    if pt.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    return [data_type.field(i).type for i in range(data_type.num_fields)]


def _num_nodes(data_type: pa.DataType) -> int:
    return 1 + sum(map(_num_nodes, _inner(data_type)))


class _Column:
    def __init__(self, nodes: list[_Node], content: memoryview, position: int) -> None:
        self.nodes = nodes
        self.content = content
        self.position = position

    def array(self, kind: pa.DataType, num_values: int) -> pa.Array:
        node = self.nodes.pop(0)
        valid = pa.py_buffer(self._take(-(-num_values // 8))) if node.has_nulls else None
        if pt.is_null(kind):
            return pa.nulls(num_values)
        if pt.is_boolean(kind):
            return _array(kind, num_values, valid, self._take(-(-num_values // 8)))
        if pt.is_string(kind) or pt.is_binary(kind):
            offsets = self._offsets(node, num_values)
            return _array(kind, num_values, valid, offsets, self._take(int(offsets[-1])))
        if pt.is_list(kind) or pt.is_map(kind):
            offsets = self._offsets(node, num_values)
            items = [self.array(inner, int(offsets[-1])) for inner in _inner(kind)]
            if pt.is_map(kind):
                items = [
                    pa.StructArray.from_arrays(items, fields=[kind.key_field, kind.item_field])
                ]
            return _array(kind, num_values, valid, offsets, children=items)
        if pt.is_struct(kind):
            fields = [self.array(inner, num_values) for inner in _inner(kind)]
            return _array(kind, num_values, valid, children=fields)
        if pt.is_fixed_size_list(kind):
            items = [self.array(kind.value_type, num_values * kind.list_size)]
            return _array(kind, num_values, valid, children=items)
        num_bytes = kind.bit_width // 8
        if node.width == _RAW:
            return _array(kind, num_values, valid, self._take(num_values * num_bytes))
        values = self._numbers(node, num_values)
        if pt.is_floating(kind):
            return _array(kind, num_values, valid, values / np.float64(10.0**node.digits))
        if num_bytes == 16:
            values = np.stack([values, values >> 63], axis=1)
        else:
            values = values.astype(f"<i{num_bytes}")
        return _array(kind, num_values, valid, values)

    def _numbers(self, node: _Node, num_values: int) -> NDArray[np.int64]:
        stored = np.frombuffer(self._take(num_values * node.width), f"<u{node.width}")
        base = np.uint64(node.base & (1 << 64) - 1)
        return (stored.astype(np.uint64) + base).view(np.int64)

    def _offsets(self, node: _Node, num_values: int) -> NDArray[np.int32]:
        lengths = self._numbers(node, num_values)
        return np.concatenate([[0], lengths.cumsum()]).astype(np.int32)

    def _take(self, num_bytes: int) -> memoryview:
        start, end = self.position, self.position + num_bytes
        if end > len(self.content):
            msg = f"a buffer of {num_bytes} bytes from {start} on leads outside of its column"
            raise ValueError(msg)
        self.position = -(-end // 8) * 8
        return self.content[start:end]


def _array(
    kind: pa.DataType,
    num_values: int,
    valid: pa.Buffer | None,
    *buffers: NDArray[np.generic] | memoryview,
    children: list[pa.Array] | None = None,
) -> pa.Array:
    given = [valid, *(pa.py_buffer(np.ascontiguousarray(b).tobytes()) for b in buffers)]
    array = pa.Array.from_buffers(kind, num_values, given, children=children or None)
    array.validate(full=True)
    return array
