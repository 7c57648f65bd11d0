"""The stable permutation that sorts rows by unsigned codes: an algorithm on NumPy alone.

A radix sort whose digits fill a 64-bit word together with the row number in its low bits. So all
words differ, and NumPy's fastest sort, which is not stable, gives the stable order: on values,
without a gather, with SIMD where the machine has it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

WORD_BITS = 64


def sort_permutation(
    codes: Sequence[NDArray[Any]], primary: NDArray[Any] | None = None
) -> NDArray[np.uint32]:
    """Return the permutation that sorts rows by their codes, stably.

    Costs one pass per 64 bits, less those of the row number; of a column only the bits count in
    which its codes differ.

    Parameters
    ----------
    codes
        Columns of non-negative integers, the most significant first, of fewer than 2**32 rows.
    primary
        One more column, more significant than all.
    """
    columns = [*codes] if primary is None else [primary, *codes]
    num_rows = len(columns[0]) if columns else 0
    row_bits = max(num_rows - 1, 0).bit_length()
    digit_bits = WORD_BITS - row_bits
    order: NDArray[np.uint32] | None = None
    digit = np.zeros(num_rows, np.uint64)
    filled = 0
    for column in reversed(columns if num_rows else []):
        least = int(column.min())
        bits = (int(column.max()) - least).bit_length()
        taken = 0
        while taken < bits:
            width = min(bits - taken, digit_bits - filled)
            part = column.astype(np.uint64)
            part -= np.uint64(least)
            part >>= np.uint64(taken)
            if width < bits - taken:
                part &= np.uint64((1 << width) - 1)
            part <<= np.uint64(filled)
            digit |= part
            del part
            taken += width
            filled += width
            if filled == digit_bits:
                order = _pass(digit, order, row_bits)
                digit[:] = 0
                filled = 0
    if filled:
        order = _pass(digit, order, row_bits)
    return np.arange(num_rows, dtype=np.uint32) if order is None else order


def _pass(
    digit: NDArray[np.uint64], order: NDArray[np.uint32] | None, row_bits: int
) -> NDArray[np.uint32]:
    """Sort the rows of ``order`` stably by one digit."""
    words = digit.copy() if order is None else digit[order]
    words <<= np.uint64(row_bits)
    words |= np.arange(len(words), dtype=np.uint64)
    words.sort()
    words &= np.uint64((1 << row_bits) - 1)
    step: NDArray[np.uint32] = words.astype(np.uint32)
    return step if order is None else order[step]
