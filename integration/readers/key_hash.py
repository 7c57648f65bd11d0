"""Where a row of some keys is placed, as ``docs/format/hash.md`` says it: on Python's integers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from decimal import Decimal

_MASK = 0xFFFFFFFF


def subpartition(values: Sequence[pa.Scalar], num_subpartitions: int, seed: int = 42) -> int:
    """Return the subpartition of a row with these values of the partitioner's keys, in order."""
    running = seed
    for value in values:
        running = fold(value, running)
    return signed(running) % num_subpartitions


def signed(running: int) -> int:
    """Return 32 bits as a signed integer."""
    return running - (1 << 32) if running >> 31 else running


def fold(value: pa.Scalar, running: int) -> int:
    """Fold one value into the hash so far; both are unsigned integers of 32 bits."""
    kind = value.type
    if not value.is_valid:
        return running
    if pa.types.is_boolean(kind):
        return _int(running, int(value.as_py()))
    if kind in (pa.int8(), pa.int16(), pa.int32(), pa.date32()):
        return _int(running, value.cast(pa.int32()).as_py())
    if pa.types.is_float32(kind):
        return _int(running, _bits(value.as_py(), "<f", "<I", 0x7FC00000))
    if pa.types.is_float64(kind):
        return _long(running, _bits(value.as_py(), "<d", "<Q", 0x7FF8 << 48))
    if pa.types.is_decimal(kind):
        return _decimal(running, kind, value.as_py())
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _bytes(running, value.as_buffer().to_pybytes())
    if pa.types.is_list(kind):
        return _in_turn(running, value.values or ())
    if pa.types.is_struct(kind):
        return _in_turn(running, value.values())
    return _long(running, value.cast(pa.int64()).as_py())


def _in_turn(running: int, values: Iterable[pa.Scalar]) -> int:
    for value in values:
        running = fold(value, running)
    return running


def _bits(value: float, of: str, to: str, not_a_number: int) -> int:
    if value != value:
        return not_a_number
    bits: int = struct.unpack(to, struct.pack(of, value or 0.0))[0]
    return bits


def _decimal(running: int, kind: pa.DataType, value: Decimal) -> int:
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits))) * 10 ** (int(exponent) + kind.scale)
    unscaled = -unscaled if sign else unscaled
    if kind.precision <= 18:
        return _long(running, unscaled)
    # One bit more than the largest of either sign, for the sign.
    num_bits = (unscaled if unscaled >= 0 else ~unscaled).bit_length() + 1
    return _bytes(running, unscaled.to_bytes((num_bits + 7) // 8, "big", signed=True))


def _rotate(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _MASK


def _mix(running: int, word: int) -> int:
    word = _rotate((word & _MASK) * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    return (_rotate(running ^ word, 13) * 5 + 0xE6546B64) & _MASK


def _finish(running: int, num_bytes: int) -> int:
    running ^= num_bytes
    running = (running ^ running >> 16) * 0x85EBCA6B & _MASK
    running = (running ^ running >> 13) * 0xC2B2AE35 & _MASK
    return running ^ running >> 16


def _int(running: int, value: int) -> int:
    return _finish(_mix(running, value), 4)


def _long(running: int, value: int) -> int:
    return _finish(_mix(_mix(running, value), value >> 32), 8)


def _bytes(running: int, content: bytes) -> int:
    whole = len(content) & ~3
    for word in struct.unpack(f"<{whole // 4}I", content[:whole]):
        running = _mix(running, word)
    for word in struct.unpack(f"{len(content) - whole}b", content[whole:]):
        running = _mix(running, word)
    return _finish(running, len(content))
