"""Rows into packed columns: a region is packed as a whole, and chunks are cut from it; pure.

See :mod:`arrow_format.format.packed_layout` and ``docs/adr/0005-chunk-layout.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import (
    all_set,
    boolean_bits,
    fixed_width_values,
    run_of_bits,
    text_offsets,
    validity,
    validity_bits,
)
from arrow_format.format.packed_layout import (
    AS_IT_IS,
    FLOAT_WIDTHS,
    HAS_NULLS,
    NODE,
    Kind,
    kind_of,
    number_dtype,
    padding,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.concurrency import OrderedMap

Values = npt.NDArray[Any]
Bitmap = npt.NDArray[np.uint8]
Valid = Bitmap | None
"""Bitmap of the values that are not null; None when all are. Never unpacked to bytes, to save
memory."""


SAMPLED_FLOATS = 64
MOST_TRIED_DIGITS = 6
"""Floats are taken to have at most this many decimal digits behind the point."""

MOST_SAMPLED = 4096
SAMPLED_PART = 16
"""Values that are compressed in two ways to see which is smaller: one in 16, and 4,096 at most."""

WORTH_IT = 15 / 16
"""Values stay as they are where that takes less than this part of the bytes: of a sample, which
tells no more exactly."""


class PackedRows:
    """The rows of a batch of a data schema, packed; chunks are cut from them.

    Parameters
    ----------
    batch
        The rows, in the order in which they are stored.
    compressed_bytes
        Returns the bytes that some content takes once it is compressed. Numbers are stored in few
        bytes each only where that does not make them larger in the end.
    in_order
        Packs the columns, as ``map`` does.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        compressed_bytes: Callable[[memoryview], int] = len,
        in_order: OrderedMap = map,
    ) -> None:
        pack = partial(_pack, compressed_bytes=compressed_bytes)
        self._nodes = list(in_order(pack, batch.columns))
        self.num_bytes = sum(node.num_bytes for node in self._nodes)
        """Bytes of all rows together, without headers."""

    def columns(self, start: int, stop: int) -> list[bytes]:
        """Return rows ``[start, stop)`` of each column as a packed column of one chunk."""
        columns = []
        for node in self._nodes:
            column = _Column()
            node.put(start, stop, column)
            columns.append(b"".join([*column.headers, *column.buffers]))
        return columns


class _Column:
    """Node headers and buffers of one column of a chunk, as they are added."""

    def __init__(self) -> None:
        self.headers: list[bytes] = []
        self.buffers: list[bytes | memoryview] = []

    def numbers(self, numbers: _Numbers, valid: Valid, start: int, stop: int) -> None:
        """Add a node of numbers or of lengths, with its buffers."""
        octets, base = numbers.of_chunk(start, stop, valid)
        self.node(numbers.width, base, valid, start, stop, numbers.digits)
        self.buffer(octets)

    def node(
        self, width: int, base: int, valid: Valid, start: int, stop: int, digits: int = 0
    ) -> None:
        """Begin a node of values ``[start, stop)``."""
        run = None if valid is None else run_of_bits(valid, start, stop)
        if run is None or all_set(run, stop - start):
            self.headers.append(NODE.pack(0, width, digits, base))
        else:
            self.headers.append(NODE.pack(HAS_NULLS, width, digits, base))
            self.buffer(run.data)

    def buffer(self, content: bytes | memoryview) -> None:
        """Append a buffer."""
        self.buffers.append(content)
        if len(content) % 8:
            self.buffers.append(bytes(padding(len(content))))


class _Node(Protocol):
    """A column, or something inside one, packed."""

    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        """Append values ``[start, stop)`` to a packed column."""


@dataclass(slots=True)
class _Numbers:
    """Integers less their base in as few bytes as the largest of a region needs."""

    octets: memoryview
    width: int
    base: int
    digits: int = 0
    """The number divided by ten to the power of this is the value."""

    @staticmethod
    def of(values: Values, valid: Valid = None) -> _Numbers:
        """Pack integers of any width; values under nulls need not survive."""
        smallest, largest = _extremes(values, valid)
        base, width = 0, _width(largest - smallest)
        if smallest < 0 or _width(largest) > width:
            base = smallest
        dtype = np.dtype(f"<u{width}")
        if width == values.itemsize and base == 0:
            packed = np.ascontiguousarray(values)
        else:
            packed = np.empty(len(values), dtype)
            np.subtract(values, values.dtype.type(base), out=packed, casting="unsafe")
        return _Numbers(packed.view(np.uint8).data, width, _signed(base))

    @staticmethod
    def as_they_are(values: Values) -> _Numbers:
        """Take integers of any width as they are."""
        octets = np.ascontiguousarray(values).view(np.uint8).data
        return _Numbers(octets, values.itemsize, 0)

    def slice(self, start: int, stop: int) -> memoryview:
        """Return the bytes of values ``[start, stop)``."""
        return self.octets[start * self.width : stop * self.width]

    def of_chunk(self, start: int, stop: int, valid: Valid) -> tuple[memoryview, int]:
        """Return the numbers of values ``[start, stop)``, and their base, the least of these.

        That of the region may be a value of a row in another chunk. If that is erased, this chunk
        is copied as it is.
        """
        octets = self.slice(start, stop)
        if not self.base:
            return octets, 0
        numbers = np.frombuffer(octets, f"<u{self.width}")
        run = None if valid is None else run_of_bits(valid, start, stop)
        has_values = bool(len(numbers) if run is None else run.any())
        above = _extremes(numbers, run)[0] if has_values else -self.base
        moved = numbers - np.array(above % (1 << 8 * self.width), numbers.dtype)
        return moved.view(np.uint8).data, _signed((self.base + above) % (1 << 64))

    def are_smaller(self, values: Values, compressed_bytes: Callable[[memoryview], int]) -> bool:
        """Whether the numbers compress to fewer bytes than the values they were made of.

        Mostly, but zstd at its fast levels finds a match of 7 bytes: what 8 bytes have in common
        with those before them, as in a sequence, it does not see in 2 or 4. A sample tells.
        """
        if self.width < 2 or self.width == values.itemsize:
            return True
        count = min(len(values) // SAMPLED_PART, MOST_SAMPLED)
        start = (len(values) - count) // 2
        numbers = self.slice(start, start + count)
        if self.width == 2:
            # The first byte must mostly be that of the number before: cheaper to see than the rest.
            pairs = np.frombuffer(numbers, "<u2")
            if 4 * np.count_nonzero((pairs[1:] ^ pairs[:-1]) < 256) < count:
                return True
        plain = np.ascontiguousarray(values[start : start + count]).view(np.uint8).data
        return compressed_bytes(plain) >= compressed_bytes(numbers) * WORTH_IT


def _extremes(values: Values, valid: Valid) -> tuple[int, int]:
    """Smallest and largest non-null value; zeros if all are null."""
    if valid is None:
        return (int(values.min()), int(values.max())) if len(values) else (0, 0)
    buffers = [pa.py_buffer(valid), pa.py_buffer(values)]
    numbers = pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), buffers)
    extremes = pc.min_max(numbers).as_py()
    return (extremes["min"], extremes["max"]) if extremes["min"] is not None else (0, 0)


def _width(largest: int) -> int:
    """Bytes that a number up to ``largest`` takes."""
    return next(width for width in (1, 2, 4, 8) if largest < 1 << 8 * width)


def _signed(base: int) -> int:
    return base - (1 << 64) if base >= 1 << 63 else base


@dataclass(slots=True)
class _NumbersNode:
    numbers: _Numbers
    valid: Valid
    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        column.numbers(self.numbers, self.valid, start, stop)


@dataclass(slots=True)
class _RawNode:
    octets: memoryview
    width: int
    valid: Valid
    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        column.node(AS_IT_IS, 0, self.valid, start, stop)
        column.buffer(self.octets[start * self.width : stop * self.width])


@dataclass(slots=True)
class _BitsNode:
    values: Bitmap
    valid: Valid
    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        column.node(AS_IT_IS, 0, self.valid, start, stop)
        column.buffer(run_of_bits(self.values, start, stop).data)


@dataclass(slots=True)
class _BytesNode:
    offsets: npt.NDArray[np.int32]
    lengths: _Numbers
    content: memoryview
    valid: Valid
    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        column.numbers(self.lengths, self.valid, start, stop)
        column.buffer(self.content[self.offsets[start] : self.offsets[stop]])


@dataclass(slots=True)
class _ListsNode:
    offsets: npt.NDArray[np.int32]
    lengths: _Numbers
    children: list[_Node]
    valid: Valid
    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        column.numbers(self.lengths, self.valid, start, stop)
        first = int(self.offsets[0])
        for child in self.children:
            child.put(int(self.offsets[start]) - first, int(self.offsets[stop]) - first, column)


@dataclass(slots=True)
class _PartsNode:
    """A struct, or a fixed-size list; the null type is one without children."""

    children: list[_Node]
    times: int
    """Values of each child per value."""
    valid: Valid
    num_bytes: int

    def put(self, start: int, stop: int, column: _Column) -> None:
        column.node(AS_IT_IS, 0, self.valid, start, stop)
        for child in self.children:
            child.put(start * self.times, stop * self.times, column)


def _pack(array: pa.Array, compressed_bytes: Callable[[memoryview], int]) -> _Node:
    type_ = array.type
    kind = kind_of(type_)
    if kind is Kind.NOTHING:
        return _PartsNode([], 1, None, 0)
    valid = validity_bits(array)
    spare = 0 if valid is None else len(array) // 8
    if kind is Kind.BITS:
        return _BitsNode(boolean_bits(array), valid, spare + len(array) // 8)
    if kind is Kind.NUMBERS:
        values = _integers(array)
        if values is not None:
            numbers = _Numbers.of(values, valid)
            if not numbers.are_smaller(values, compressed_bytes):
                numbers = _Numbers.as_they_are(values)
            return _NumbersNode(numbers, valid, spare + len(numbers.octets))
        kind = Kind.RAW
    if kind is Kind.FLOATS:
        floats = fixed_width_values(array, "<f8")
        scaled = _scaled(floats, valid)
        if scaled is not None and scaled.are_smaller(floats, compressed_bytes):
            return _NumbersNode(scaled, valid, spare + len(scaled.octets))
        kind = Kind.RAW
    if kind is Kind.RAW:
        width = type_.bit_width // 8
        octets = memoryview(b"")
        if width:
            octets = fixed_width_values(array, f"V{width}").view(np.uint8).data
        return _RawNode(octets, width, valid, spare + len(octets))
    if kind is Kind.PARTS:
        children, times = _parts(array)
        nodes = [_pack(child, compressed_bytes) for child in children]
        return _PartsNode(nodes, times, valid, spare + sum(node.num_bytes for node in nodes))
    offsets = text_offsets(array)
    first, last = int(offsets[0]), int(offsets[-1])
    lengths = _Numbers.of(np.diff(offsets))
    if kind is Kind.BYTES:
        content = memoryview(b"") if last == first else memoryview(array.buffers()[2]).cast("B")
        num_bytes = spare + len(lengths.octets) + last - first
        return _BytesNode(offsets, lengths, content, valid, num_bytes)
    items = [array.keys, array.items] if pt.is_map(type_) else [array.values]
    nodes = [_pack(item.slice(first, last - first), compressed_bytes) for item in items]
    num_bytes = spare + len(lengths.octets) + sum(node.num_bytes for node in nodes)
    return _ListsNode(offsets, lengths, nodes, valid, num_bytes)


def _integers(array: pa.Array) -> Values | None:
    """Values as integers of at most 64 bits; None if a decimal does not fit."""
    dtype = number_dtype(array.type)
    if dtype is not None and not pt.is_decimal128(array.type):
        return fixed_width_values(array, dtype)
    words = fixed_width_values(array, "V16").view("<i8").reshape(len(array), 2)
    low = np.ascontiguousarray(words[:, 0])
    # Arrow does not check values against a decimal's precision, so the high words decide.
    fits = words[:, 1] == (low >> 63)
    if array.null_count:
        fits |= ~validity(array)  # type: ignore[operator]
    return low if bool(fits.all()) else None


def _scaled(values: npt.NDArray[np.float64], valid: Valid) -> _Numbers | None:
    """Floats as integers divided by a power of ten; None unless that gives every bit back.

    A sample tells how many digits there may be, so that floats of many cost little to find out.
    """
    if valid is not None:  # what is under a null does not matter
        is_valid = np.unpackbits(valid, count=len(values), bitorder="little")
        values = np.where(is_valid, values, 0.0)
    sample = values[:: max(len(values) // SAMPLED_FLOATS, 1)]
    for digits in range(MOST_TRIED_DIGITS + 1):
        if _as_integers(sample, digits) is not None:
            break
    else:
        return None
    integers = _as_integers(values, digits)
    if integers is None:
        return None
    numbers = _Numbers.of(integers, valid)
    numbers.digits = digits
    return numbers if numbers.width in FLOAT_WIDTHS else None


def _as_integers(values: npt.NDArray[np.float64], digits: int) -> npt.NDArray[np.int64] | None:
    scale = 10.0**digits
    with np.errstate(all="ignore"):  # NaN and infinity do not come back
        integers = np.rint(values * scale).astype(np.int64)
        # As bits: -0.0 equals 0.0.
        is_same = (integers / scale).view(np.int64) == values.view(np.int64)
    return integers if bool(is_same.all()) else None


def _parts(array: pa.Array) -> tuple[list[pa.Array], int]:
    type_ = array.type
    if pt.is_struct(type_):
        return [array.field(i) for i in range(type_.num_fields)], 1
    size = type_.list_size
    return [array.values.slice(array.offset * size, len(array) * size)], size
