"""Layout of a packed column, shared by its encoder and decoder.

A packed column holds values of a chunk in fewer bytes than Arrow does: integers, dates, timestamps
and decimals as small unsigned numbers above a base, text and lists with lengths instead of offsets,
and no validity bitmap where nothing is null. All little-endian:

.. code-block:: text

    node headers, 16 bytes each | buffers, each padded to 8 bytes

A *node* is a column or something inside one: the item of a list, the fields of a struct, in
depth-first order, exactly as the data schema nests them (a map is a list of its keys and items).
Its header is ``flags u8, width u8, digits u8, five zero bytes, base i64``; its buffers follow those
of the node before it: a validity bitmap if flag 1 is set, then its values. See
``docs/format/packed.md``.
"""

from __future__ import annotations

import struct
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from pyarrow import types as pt

if TYPE_CHECKING:
    import pyarrow as pa

NODE = struct.Struct("<BBB5xq")

HAS_NULLS = 1
"""Flag: a validity bitmap precedes the values."""

AS_IT_IS = 255
"""Width of a node whose values are stored as Arrow has them."""

WIDTHS = (1, 2, 4, 8)
"""Bytes a value above the base may take. None takes no byte: so a byte that is stored becomes 16 at
most."""

FLOAT_WIDTHS = (1, 2, 4)
"""Bytes a float above the base may take once it is multiplied by a power of ten."""

MAX_DIGITS = 15
"""Most decimal digits behind the point of floats that are stored as integers."""

LENGTH_WIDTHS = (1, 2, 4)
"""Bytes a length above the base may take: none reaches 2**31."""


class Kind(Enum):
    """How the values of a node are stored; follows from its type alone."""

    NOTHING = auto()
    """No buffer: the null type."""
    BITS = auto()
    """A bitmap: booleans."""
    NUMBERS = auto()
    """``width`` bytes for each value less the base: what Arrow stores as an integer."""
    FLOATS = auto()
    """As numbers, where all are integers divided by one power of ten; otherwise as RAW."""
    RAW = auto()
    """Fixed-width values as Arrow has them."""
    BYTES = auto()
    """A number for each length, then the bytes themselves: text and binary."""
    LISTS = auto()
    """A number for each length; the items are nodes of their own: lists and maps."""
    PARTS = auto()
    """Nothing but nodes of its own: structs and fixed-size lists."""


def kind_of(type_: pa.DataType) -> Kind:
    """Return how values of a stored type are stored."""
    if pt.is_null(type_):
        return Kind.NOTHING
    if pt.is_boolean(type_):
        return Kind.BITS
    if pt.is_string(type_) or pt.is_binary(type_):
        return Kind.BYTES
    if pt.is_list(type_) or pt.is_map(type_):
        return Kind.LISTS
    if pt.is_struct(type_) or pt.is_fixed_size_list(type_):
        return Kind.PARTS
    if pt.is_float64(type_):
        return Kind.FLOATS
    return Kind.RAW if number_dtype(type_) is None else Kind.NUMBERS


def number_dtype(type_: pa.DataType) -> np.dtype[np.integer] | None:
    """Return the integer type of the values, int64 for 128-bit decimals; None for others."""
    if pt.is_decimal128(type_):
        return np.dtype("<i8")
    if pt.is_unsigned_integer(type_):
        return np.dtype(f"<u{type_.bit_width // 8}")
    if pt.is_integer(type_) or pt.is_temporal(type_) or pt.is_decimal32(type_):
        width = type_.bit_width // 8
        return np.dtype(f"<i{width}") if width <= 8 else None
    return np.dtype("<i8") if pt.is_decimal64(type_) else None


def children_of(type_: pa.DataType) -> tuple[pa.DataType, ...]:
    """Return the types of a node's direct children."""
    if pt.is_map(type_):
        return type_.key_type, type_.item_type
    if pt.is_list(type_) or pt.is_fixed_size_list(type_):
        return (type_.value_type,)
    if pt.is_struct(type_):
        return tuple(field.type for field in type_)
    return ()


def num_nodes(type_: pa.DataType) -> int:
    """Return the number of nodes of a column: itself and all inside it."""
    return 1 + sum(map(num_nodes, children_of(type_)))


def padding(num_bytes: int) -> int:
    """Return the bytes that fill a buffer up to a multiple of 8."""
    return -num_bytes % 8
