"""Given keys, grouped by subpartition: which rows have one of them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from arrow_format.arrays.buffers import fixed_width_values, to_arrow, to_numpy
from arrow_format.arrays.selection import take
from arrow_format.keys.key_numbers import key_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from arrow_format.model import Int32Array, Int64Array


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
        keys = self.keys
        if subpartitions is None or not len(subpartitions):
            return rows_with_keys(keys, columns)
        least, largest = subpartitions.min(keepdims=True), subpartitions.max(keepdims=True)
        (first,), (end,) = self.extents(least, largest + 1)
        return rows_with_keys(
            keys.slice(first, end - first), columns, lambda rows: self.wanted[subpartitions[rows]]
        )

    def has_value_of(self, name: str, others: pa.Array) -> bool:
        """Return whether a key has one of these values, not null, in a column."""
        return _share_a_value(self.keys[name], others)


def rows_with_keys(
    keys: pa.RecordBatch,
    columns: Sequence[pa.Array],
    may_be: Callable[[Int64Array], NDArray[np.bool_]] | None = None,
) -> NDArray[np.bool_]:
    """Return whether the key of each row, in key columns, is one of ``keys``.

    ``may_be`` says of rows which may be; all when None.
    """
    is_among = np.zeros(len(columns[0]), np.bool_)
    rows = _alike(keys, columns)
    if may_be is not None:
        rows = rows[may_be(rows)]
    if not len(rows):
        return is_among
    if len(rows) < len(is_among):
        index = to_arrow(rows)
        columns = [take(column, index) for column in columns]
    both = [pa.concat_arrays(pair) for pair in zip(keys.columns, columns, strict=True)]
    numbers, _ = key_numbers(both)
    wanted, found = numbers[: keys.num_rows], numbers[keys.num_rows :]
    alike = _with_low_bits(wanted, found)
    is_among[rows[alike]] = _is_in(found[alike], wanted)
    return is_among


def _alike(keys: pa.RecordBatch, columns: Sequence[pa.Array]) -> Int64Array:
    """Return the rows that no column of integers tells from all keys at a glance, ascending."""
    rows: Int64Array | None = None
    for wanted, column in zip(keys.columns, columns, strict=True):
        type_ = column.type
        is_number = pt.is_integer(type_) or (pt.is_temporal(type_) and not pt.is_interval(type_))
        if not is_number or wanted.null_count or column.null_count:
            continue
        dtype = f"i{type_.bit_width // 8}"
        values = fixed_width_values(column, dtype)
        alike = _with_low_bits(
            fixed_width_values(wanted, dtype), values if rows is None else values[rows]
        )
        rows = alike if rows is None else rows[alike]
    return np.arange(len(columns[0])) if rows is None else rows


def _with_low_bits(
    wanted: NDArray[np.signedinteger], found: NDArray[np.signedinteger]
) -> Int64Array:
    """Return where numbers have the lowest bits of wanted ones, as a table says: few others do."""
    is_low = np.zeros(1 << 16, np.bool_)
    is_low[wanted.astype(np.uint16)] = True
    return np.flatnonzero(is_low[found.astype(np.uint16)])


def _is_in(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which numbers are among others, as NumPy does in five times the time of few."""
    return to_numpy(pc.is_in(to_arrow(found), to_arrow(wanted)))


def _share_a_value(left: pa.Array, right: pa.Array) -> bool:
    left, right = left.drop_null(), right.cast(left.type).drop_null()  # of another zone
    numbers, _ = key_numbers([pa.concat_arrays([left, right])])
    return bool(_is_in(numbers[len(left) :], numbers[: len(left)]).any())
