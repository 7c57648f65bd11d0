"""Packed columns back into Arrow arrays; pure.

See :mod:`arrow_format.format.packed_layout`. The caller has checked the CRC of the chunk. Here,
every length is checked to stay inside of its column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from arrow_format.arrays.buffers import run_of_bits
from arrow_format.format.packed_layout import (
    AS_IT_IS,
    FLOAT_WIDTHS,
    HAS_NULLS,
    LENGTH_WIDTHS,
    MAX_DIGITS,
    NODE,
    WIDTHS,
    Kind,
    children_of,
    kind_of,
    num_nodes,
    number_dtype,
    padding,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

MAX_LENGTH = (1 << 31) - 1
"""Largest offset of a column."""


class Unpacker:
    """Unpacks columns of one data schema; what follows from their types alone is computed once."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._nodes: dict[int, tuple[_Node, int]] = {}
        """Of the columns that were unpacked: readers of a wide table leave out most."""

    def unpack(
        self,
        sections: Iterable[tuple[int, pa.Buffer, int, int]],
        num_rows: int,
        rows: tuple[int, int] | None = None,
    ) -> list[pa.Array]:
        """Return columns of ``num_rows`` rows; values stored as Arrow has them are views.

        Of ``rows``, ``[first, end)``, where these are given: they are no views.

        ``sections`` are a column's position in the schema, and the buffer and its bytes
        ``[start, stop)`` that hold it, each of which becomes 16 at most. Raises ValueError for what
        is no packed column of that type.
        """
        run = rows or (0, num_rows)
        arrays = []
        for column, content, start, stop in sections:
            known = self._nodes.get(column)
            if known is None:
                type_ = self._schema.field(column).type
                known = self._nodes[column] = _node_of(type_), NODE.size * num_nodes(type_)
            node, header_bytes = known
            reader = _Reader(content, start, start + header_bytes, stop)
            arrays.append(reader.array(node, num_rows, *run))
            reader.end()
        return arrays


@dataclass(frozen=True, slots=True)
class _Node:
    """What a type implies for its node."""

    type: pa.DataType
    kind: Kind
    value_bytes: int
    """Bytes of a fixed-width value in Arrow; 0 for others."""
    widths: tuple[int, ...]
    """Widths the node may have."""
    wide: np.dtype[np.unsignedinteger] | None
    """Unsigned type that packed numbers become; None for other kinds."""
    children: tuple[_Node, ...]
    times: int
    """Values of each child per value, for structs and fixed-size lists."""
    pair: tuple[pa.Field, pa.Field] | None
    """Key and item of a map."""


def _node_of(type_: pa.DataType) -> _Node:
    kind = kind_of(type_)
    dtype = number_dtype(type_) if kind is Kind.NUMBERS else None
    if dtype is not None:
        widths = *(width for width in WIDTHS if width <= dtype.itemsize), AS_IT_IS
    elif kind is Kind.FLOATS:
        widths = *FLOAT_WIDTHS, AS_IT_IS
    elif kind in (Kind.BYTES, Kind.LISTS):
        widths = LENGTH_WIDTHS
    else:
        widths = (AS_IT_IS,)
    return _Node(
        type_,
        kind,
        type_.bit_width // 8 if kind in (Kind.NUMBERS, Kind.FLOATS, Kind.RAW) else 0,
        widths,
        None if dtype is None else np.dtype(f"<u{dtype.itemsize}"),
        tuple(map(_node_of, children_of(type_))),
        type_.list_size if pt.is_fixed_size_list(type_) else 1,
        (type_.key_field, type_.item_field) if pt.is_map(type_) else None,
    )


class _Reader:
    """Reads the nodes of a column one after the other.

    Their headers are in ``[start, position)`` of ``content``, their buffers follow up to ``stop``.
    """

    __slots__ = ("_content", "_headers", "_position", "_stop", "_view")

    def __init__(self, content: pa.Buffer, start: int, position: int, stop: int) -> None:
        if position > stop:
            msg = f"a column of {stop - start} bytes is shorter than its headers"
            raise ValueError(msg)
        self._content = content
        self._view = memoryview(content)
        self._headers = NODE.iter_unpack(self._view[start:position])
        self._position, self._stop = position, stop

    def end(self) -> None:
        """Raise ValueError unless the column ends where its buffers do."""
        if self._position != self._stop:
            msg = f"a column ends at byte {self._stop}, its nodes at {self._position}"
            raise ValueError(msg)

    def array(self, node: _Node, length: int, first: int, end: int) -> pa.Array:
        """Read values ``[first, end)`` of the ``length`` of the next node, and those inside it."""
        flags, width, digits, base = next(self._headers)
        kind = node.kind
        if flags & ~HAS_NULLS or (flags and kind is Kind.NOTHING):
            msg = f"a node of type {node.type} has flags {flags:#x}"
            raise ValueError(msg)
        if width not in node.widths:
            msg = f"a node of type {node.type} has width {width}"
            raise ValueError(msg)
        if length > MAX_LENGTH:
            msg = f"a node has {length} values"
            raise ValueError(msg)
        run = length, first, end
        if kind is Kind.NOTHING:
            return pa.nulls(end - first)
        buffers = [self._bits(*run) if flags else None]
        children: list[pa.Array] | None = None
        if kind is Kind.NUMBERS and width != AS_IT_IS:
            buffers.append(self._numbers(node, self._codes(width, *run), base))
        elif kind is Kind.FLOATS and width != AS_IT_IS:
            buffers.append(self._floats(self._codes(width, *run), base, digits))
        elif kind is Kind.BYTES:
            offsets, *inside = self._offsets(width, base, *run)
            buffers += [offsets, self._values(1, *inside)]
        elif kind in (Kind.NUMBERS, Kind.FLOATS, Kind.RAW):
            buffers.append(self._values(node.value_bytes, *run))
        elif kind is Kind.BITS:
            buffers.append(self._bits(*run))
        elif kind is Kind.PARTS:
            children = [
                self.array(child, *(place * node.times for place in run)) for child in node.children
            ]
        else:
            offsets, *inside = self._offsets(width, base, *run)
            buffers.append(offsets)
            children = [self.array(child, *inside) for child in node.children]
        if node.pair:
            children = [pa.StructArray.from_arrays(children, fields=node.pair)]
        return pa.Array.from_buffers(node.type, end - first, buffers, children=children)

    def _take(self, num_bytes: int) -> int:
        """Skip a buffer; return its position."""
        start = self._position
        end = start + num_bytes
        if end > self._stop:
            msg = f"a buffer ends at byte {end}, its column at {self._stop}"
            raise ValueError(msg)
        self._position = end + padding(num_bytes)
        return start

    def _values(self, size: int, length: int, first: int, end: int) -> pa.Buffer:
        """Read values of ``size`` bytes: a view of all, or a copy of some."""
        start = self._take(length * size)
        if end - first == length:
            return self._content.slice(start, length * size)
        return pa.py_buffer(self._view[start + first * size : start + end * size].tobytes())

    def _bits(self, length: int, first: int, end: int) -> pa.Buffer:
        num_bytes = -(-length // 8)
        if end - first == length:
            return self._values(1, num_bytes, 0, num_bytes)
        bitmap = np.frombuffer(self._view, np.uint8, num_bytes, self._take(num_bytes))
        return pa.py_buffer(run_of_bits(bitmap, first, end).tobytes())

    def _codes(self, width: int, length: int, first: int, end: int) -> npt.NDArray[Any]:
        start = self._take(length * width)
        codes = np.frombuffer(self._view, _UNSIGNED[width], end - first, start + first * width)
        return codes if end - first == length else codes.copy()

    def _numbers(self, node: _Node, codes: npt.NDArray[Any], base: int) -> pa.Buffer:
        wide = node.wide
        size = wide.itemsize  # type: ignore[union-attr]
        # Modulo 2**64, or less where the type is narrower: bases may be negative.
        offset = wide.type(base % (1 << 8 * size))  # type: ignore[union-attr]
        if size < node.value_bytes:
            return _decimals(codes, base, offset)
        values = np.add(codes, offset, dtype=wide) if offset else codes.astype(wide, copy=False)
        return pa.py_buffer(values)

    def _floats(self, codes: npt.NDArray[Any], base: int, digits: int) -> pa.Buffer:
        if digits > MAX_DIGITS:
            msg = f"floats of {digits} digits"
            raise ValueError(msg)
        integers = np.add(codes, base, dtype=np.int64) if base else codes
        values = integers.astype(np.float64)
        values /= 10.0**digits
        return pa.py_buffer(values)

    def _offsets(
        self, width: int, base: int, length: int, first: int, end: int
    ) -> tuple[pa.Buffer, int, int, int]:
        """Return the offsets of a run; of what is inside the length, and the run of it."""
        codes = self._codes(width, length, 0, length)
        # Also of no lengths: the base must fit into 32 bits.
        if not 0 <= base <= MAX_LENGTH or length * base > MAX_LENGTH:
            msg = f"{length} lengths of {width} bytes, of {base} or more"
            raise ValueError(msg)
        # No length is negative, so the last sum is the largest. Nearly always the widths alone show
        # that it fits, without adding.
        is_short = length * (base + (1 << 8 * width) - 1) <= MAX_LENGTH
        if not is_short:
            total = length * base + int(codes.sum(dtype=np.int64))
            if total > MAX_LENGTH:
                msg = f"lengths add up to {total}"
                raise ValueError(msg)
        before = after = 0
        if end - first < length:
            before = first * base + int(codes[:first].sum(dtype=np.int64))
            after = (length - end) * base + int(codes[end:].sum(dtype=np.int64))
            codes = codes[first:end]
        offsets = np.empty(end - first + 1, "<i4")
        offsets[0] = 0
        ends = offsets[1:]
        if base:
            np.add(codes, base, out=ends, dtype="<i4", casting="unsafe")
        np.add.accumulate(ends if base else codes, 0, "<i4", ends)
        stop = before + int(offsets[-1])
        return pa.py_buffer(offsets), stop + after, before, stop


_UNSIGNED = {width: np.dtype(f"<u{width}") for width in WIDTHS}


def _decimals(codes: npt.NDArray[Any], base: int, offset: np.unsignedinteger) -> pa.Buffer:
    """64-bit values as 128-bit decimals."""
    words = np.empty((len(codes), 2), "<u8")
    low = words[:, 0]
    if offset:
        np.add(codes, offset, out=low)
    else:
        low[:] = codes
    if 0 <= base < 1 << 62 and codes.itemsize < 8:
        words[:, 1] = 0  # none is negative
    else:
        np.right_shift(low.view("<i8"), 63, out=words[:, 1].view("<i8"))
    return pa.py_buffer(words)
