"""Spark's Murmur3 on NumPy arrays: the arithmetic, without Arrow types or nulls.

Source: Spark's ``org.apache.spark.unsafe.hash.Murmur3_x86_32``. It is MurmurHash3_x86_32 except for
the last ``length % 4`` bytes of a string: each gets a whole round, as a *signed* byte.

Every ``fold_*`` function replaces the running hash of each row, its seed, by the hash of its value,
in place. NumPy does not fuse operations, so each step runs on a block of rows that fits the cache,
into scratch space; a new array per step would cost several times as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes: TypeAlias = NDArray[np.uint32]

BLOCK_ROWS = 32 * 1024
"""Rows per pass: large enough to hide NumPy's 0.6 us a call, small enough for a 1 MiB L2 cache."""

_EXPAND_BYTES = 4 * 1024 * 1024
"""Bytes of strings per block up to which every byte position is expanded to an aligned word."""

_CHAIN_WORDS = 64 * 1024
"""Words of one long string that are Python integers at a time."""

_MASK = 0xFFFFFFFF
_ADD = 0xE6546B64

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_F1, _F2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_FIVE, _H_ADD = np.uint32(5), np.uint32(_ADD)
_S13, _S15, _S16, _S17, _S19 = (np.uint32(bits) for bits in (13, 15, 16, 17, 19))


def fold_ints(hashes: Hashes, values: NDArray[np.int32]) -> None:
    """Fold one 32-bit integer per row into the running hashes (``hashInt``)."""
    words, scratch = _scratch(len(hashes))
    for start in range(0, len(hashes), BLOCK_ROWS):
        running = hashes[start : start + BLOCK_ROWS]
        k, free = words[: len(running)], scratch[: len(running)]
        k[:] = values[start : start + BLOCK_ROWS].view(np.uint32)
        _mix_words(k, free)
        _mix_hashes(running, k, free)
        _finish(running, np.uint32(4), free)


def fold_longs(hashes: Hashes, values: NDArray[np.int64]) -> None:
    """Fold one 64-bit integer per row into the running hashes (``hashLong``: low word first)."""
    words, scratch = _scratch(2 * len(hashes))
    for start in range(0, len(hashes), BLOCK_ROWS // 2):
        running = hashes[start : start + BLOCK_ROWS // 2]
        k, free = words[: 2 * len(running)], scratch[: 2 * len(running)]
        k.view(np.int64)[:] = values[start : start + BLOCK_ROWS // 2]
        _mix_words(k, free)
        _mix_hashes(running, k[0::2], free[: len(running)])
        _mix_hashes(running, k[1::2], free[: len(running)])
        _finish(running, np.uint32(8), free[: len(running)])


def fold_bytes(
    hashes: Hashes,
    content: NDArray[np.uint8],
    starts: NDArray[np.integer],
    lengths: NDArray[np.integer],
) -> None:
    """Fold one byte string per row into the running hashes (``hashUnsafeBytes``).

    ``starts`` is the first byte of each string in ``content``, ascending; strings do not overlap.
    """
    for start in range(0, len(hashes), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        running, sizes = hashes[rows], lengths[rows]
        first, stop = int(starts[rows][0]), int(starts[rows][-1]) + int(sizes[-1])
        octets = content[first:stop]
        words: NDArray[np.int32]
        words = np.ndarray((max(len(octets) - 3, 0),), np.int32, octets, strides=(1,))
        if len(octets) <= _EXPAND_BYTES:
            # Gathering unaligned words costs 2.7 ns each. Aligning the words at all byte positions
            # first, at 0.25 ns a byte, and then gathering at 0.6 ns is faster.
            words = words.copy()
        position = np.subtract(starts[rows], first, dtype=np.int64)
        _fold_pieces(running, words, 4, position, sizes >> 2)
        num_last = sizes & 3
        position += sizes - num_last
        _fold_pieces(running, octets.view(np.int8), 1, position, num_last)
        _finish(running, sizes.astype(np.uint32), np.empty(len(sizes), np.uint32))


def _fold_pieces(
    hashes: Hashes,
    pieces: NDArray[np.signedinteger],
    step: int,
    starts: NDArray[np.int64],
    counts: NDArray[np.integer],
) -> None:
    """Fold every `step`-th piece of each row from its start, one piece of all rows at a time.

    Rows are sorted by count, so those with a piece left are a shrinking suffix: work is
    proportional to the bytes, however uneven the lengths.
    """
    num_rows, most = len(hashes), int(counts.max())
    order: NDArray[np.intp] | slice = slice(None)
    if int(counts.min()) != most:
        # NumPy sorts keys of 8 and 16 bits by radix.
        order = counts.astype(np.min_scalar_type(most)).argsort(kind="stable")
    running, starts, counts = hashes[order], starts[order], counts[order]
    scratch = np.empty(num_rows, np.uint32)
    for index in range(most):
        first = int(counts.searchsorted(index, side="right"))
        num_active, num_left = num_rows - first, most - index
        # One round costs some 10 us however few rows take part; finishing a row on its own costs
        # 6 us and then 0.2 us a piece.
        if num_active * (30 + num_left) < 50 * num_left:
            for row in range(first, num_rows):
                begin, end = (int(starts[row]) + step * n for n in (index, int(counts[row])))
                running[row] = _fold_one(int(running[row]), pieces[begin:end:step])
            break
        k = pieces[step * index :][starts[first:]].astype(np.int32, copy=False).view(np.uint32)
        _mix_words(k, scratch[first:])
        _mix_hashes(running[first:], k, scratch[first:])
    hashes[order] = running


def _fold_one(running: int, pieces: NDArray[np.signedinteger]) -> int:
    """Fold the pieces of one long string; only the chain of hashes uses Python integers."""
    for start in range(0, len(pieces), _CHAIN_WORDS):
        k = pieces[start : start + _CHAIN_WORDS].astype(np.int32).view(np.uint32)
        _mix_words(k, np.empty_like(k))
        for word in k.tolist():
            running ^= word
            running = ((running << 13 & _MASK | running >> 19) * 5 + _ADD) & _MASK
    return running


def _scratch(num_words: int) -> tuple[Hashes, Hashes]:
    """Return uninitialised arrays for the words of a block and for intermediate results."""
    size = min(num_words, BLOCK_ROWS)
    return np.empty(size, np.uint32), np.empty(size, np.uint32)


def _mix_words(k: Hashes, free: Hashes) -> None:
    """Scramble words in place (``mixK1``); `free` is scratch space."""
    np.multiply(k, _C1, out=k)
    np.right_shift(k, _S17, out=free)
    np.left_shift(k, _S15, out=k)
    np.bitwise_or(k, free, out=k)
    np.multiply(k, _C2, out=k)


def _mix_hashes(hashes: Hashes, k: Hashes, free: Hashes) -> None:
    """Mix scrambled words into the hashes in place (``mixH1``)."""
    np.bitwise_xor(hashes, k, out=hashes)
    np.right_shift(hashes, _S19, out=free)
    np.left_shift(hashes, _S13, out=hashes)
    np.bitwise_or(hashes, free, out=hashes)
    np.multiply(hashes, _FIVE, out=hashes)
    np.add(hashes, _H_ADD, out=hashes)


def _finish(hashes: Hashes, num_bytes: Hashes | np.uint32, free: Hashes) -> None:
    """Avalanche the hashes of values that are `num_bytes` long, in place (``fmix``)."""
    np.bitwise_xor(hashes, num_bytes, out=hashes)
    np.right_shift(hashes, _S16, out=free)
    np.bitwise_xor(hashes, free, out=hashes)
    np.multiply(hashes, _F1, out=hashes)
    np.right_shift(hashes, _S13, out=free)
    np.bitwise_xor(hashes, free, out=hashes)
    np.multiply(hashes, _F2, out=hashes)
    np.right_shift(hashes, _S16, out=free)
    np.bitwise_xor(hashes, free, out=hashes)
