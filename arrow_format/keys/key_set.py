"""Given keys, grouped by subpartition: which rows have one of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.selection import take
from arrow_format.keys.key_numbers import key_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from arrow_format.model import Int32Array, Int64Array

_LOW_BITS = 0xFFFF


class KeySet:
    """Keys by the subpartition that their rows are in.

    A row is compared with the keys of the subpartitions of its chunk only. Equality is that of
    :func:`~arrow_format.keys.key_numbers.key_numbers`. ``keys`` has the key columns of a shuffle,
    in their stored types, and ``subpartitions`` the subpartition of each key.
    """

    def __init__(
        self, keys: pa.RecordBatch, subpartitions: Int32Array, num_subpartitions: int
    ) -> None:
        order = np.argsort(subpartitions, kind="stable")
        self._subpartitions = subpartitions[order]
        self.keys: pa.RecordBatch = take(keys, to_arrow(order))
        """By subpartition, ascending."""
        self.wanted = np.zeros(num_subpartitions, np.bool_)
        """Whether each subpartition may have rows of a key."""
        self.wanted[subpartitions] = True

    @property
    def names(self) -> list[str]:
        """Names of the key columns."""
        return list(self.keys.schema.names)

    def __len__(self) -> int:
        """Return the number of keys, repeated ones included."""
        return int(self.keys.num_rows)

    def extents(
        self, first: Int32Array | Int64Array, end: Int32Array | Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Return which of the keys are of each range of subpartitions ``[first, end)``."""
        ids = self._subpartitions
        return ids.searchsorted(first), ids.searchsorted(end)

    def among(
        self, columns: Sequence[pa.Array], subpartitions: Int32Array | None
    ) -> NDArray[np.bool_]:
        """Return whether the key of each row is one of these.

        ``columns`` are the key columns of the rows; ``subpartitions`` has the subpartition of each
        row, or is None for rows that every subpartition reads.
        """
        is_among = np.zeros(len(columns[0]), np.bool_)
        keys = self.keys
        rows = np.arange(len(is_among))
        if subpartitions is not None:
            rows = np.flatnonzero(self.wanted[subpartitions])
            if not len(rows):
                return is_among
            ids = subpartitions[rows]
            (first,), (end,) = self.extents(ids.min(keepdims=True), ids.max(keepdims=True) + 1)
            keys = keys.slice(first, end - first)
        if len(rows) < len(is_among):
            index = to_arrow(rows)
            columns = [take(column, index) for column in columns]
        is_among[rows] = rows_with_keys(keys, columns)
        return is_among

    def has_value_of(self, name: str, others: pa.Array) -> bool:
        """Return whether a key has one of these values, not null, in a column."""
        return _share_a_value(self.keys[name], others)


def rows_with_keys(keys: pa.RecordBatch, columns: Sequence[pa.Array]) -> NDArray[np.bool_]:
    """Return whether the key of each row, in key columns, is one of ``keys``."""
    both = [pa.concat_arrays(pair) for pair in zip(keys.columns, columns, strict=True)]
    numbers, _ = key_numbers(both)
    wanted, found = numbers[: keys.num_rows], numbers[keys.num_rows :]
    # Nearly all rows differ from all keys in their lowest bits, where a table says so.
    is_low = np.zeros(_LOW_BITS + 1, np.bool_)
    is_low[wanted & _LOW_BITS] = True
    are_keys: NDArray[np.bool_] = is_low[found & _LOW_BITS]
    rows = np.flatnonzero(are_keys)
    are_keys[rows] = np.isin(found[rows], wanted)
    return are_keys


def _share_a_value(left: pa.Array, right: pa.Array) -> bool:
    left, right = left.drop_null(), right.cast(left.type).drop_null()  # of another zone
    numbers, _ = key_numbers([pa.concat_arrays([left, right])])
    return bool(np.isin(numbers[len(left) :], numbers[: len(left)]).any())
