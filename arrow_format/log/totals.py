"""Rows and bytes of each subpartition, as a section of an entry or checkpoint.

See ``docs/format/reading.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow, to_numpy
from arrow_format.format.batch_frame import decode_batches, decode_table, encode_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from arrow_format.model import Int64Array

Totals: TypeAlias = "tuple[Int64Array, Int64Array]"
"""Rows and bytes of each subpartition."""

_SCHEMA = pa.schema(
    [pa.field("num_rows", pa.int64(), False), pa.field("num_bytes", pa.int64(), False)]
)


def encode_totals(totals: Totals) -> bytes:
    """Encode rows and bytes of each subpartition (two int64 arrays of one length)."""
    return encode_table(pa.Table.from_arrays([to_arrow(part) for part in totals], schema=_SCHEMA))


def decode_totals(data: bytes) -> Totals:
    """Inverse of :func:`encode_totals`; raises ValueError or an Arrow exception."""
    return _checked(decode_table(data, _SCHEMA))


def decode_each_totals(parts: Sequence[bytes]) -> Iterator[Totals]:
    """Yield the totals of each of many map tasks; raises as :func:`decode_totals`.

    They are views of one table of all, of ``16 * num_subpartitions`` bytes each.
    """
    table, counts = decode_batches(parts, _SCHEMA)
    rows, sizes = _checked(table)
    start = 0
    for count in counts:
        yield rows[start : start + count], sizes[start : start + count]
        start += count


def _checked(table: pa.Table) -> Totals:
    rows, sizes = (to_numpy(column.combine_chunks()) for column in table.columns)
    # Values too large to be summed in 64 bits are too large altogether.
    if max(float(np.abs(part.astype(float)).sum()) for part in (rows, sizes)) >= 1 << 62:
        msg = "totals are larger than any shuffle"
        raise ValueError(msg)
    return rows, sizes


def problem_of_totals(totals: Totals, num_subpartitions: int, sums: tuple[int, int]) -> str | None:
    """Return why totals cannot be those of map outputs with these sums of rows and bytes."""
    rows, sizes = totals
    if len(rows) != num_subpartitions:
        return f"there are totals of {len(rows)} subpartitions, expected {num_subpartitions}"
    if min(int(rows.min(initial=0)), int(sizes.min(initial=0))) < 0:
        return "a number of rows or bytes is below 0"
    if (int(rows.sum()), int(sizes.sum())) != sums:
        return f"totals do not add up to {sums[0]} rows in {sums[1]} bytes"
    return None


def sum_totals(parts: Sequence[Totals | None], num_subpartitions: int) -> Totals:
    """Return the sums of totals; None counts as zeros.

    Totals of other numbers count modulo that: as they are right of rows by a common divisor, so is
    the sum.
    """
    rows, sizes = (np.zeros(num_subpartitions, np.int64) for _ in range(2))
    for part in parts:
        if part is not None:
            rows += _folded(part[0], num_subpartitions)
            sizes += _folded(part[1], num_subpartitions)
    return rows, sizes


def _folded(counts: Int64Array, num_subpartitions: int) -> Int64Array:
    """Return the sums of those of equal number modulo ``num_subpartitions``."""
    padded = np.pad(counts, (0, -len(counts) % num_subpartitions))
    folded: Int64Array = padded.reshape(-1, num_subpartitions).sum(axis=0)
    return folded


def without_negatives(sizes: Int64Array) -> Int64Array:
    """Return bytes per subpartition of the same sum, none of them negative.

    Each writer shares out the bytes of its files in its own way, so that a merge may save more of
    one subpartition than another writer had counted for it.
    """
    missing = -int(np.minimum(sizes, 0).sum())
    shared: Int64Array = np.maximum(sizes, 0)
    shared -= np.diff(np.minimum(np.cumsum(shared), missing), prepend=0)
    return shared
