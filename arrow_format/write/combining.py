"""A sort buffer that combines the rows of equal keys when it is full, where that pays.

A sample of the rows decides before they are grouped, and what was combined for the next buffer.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.exact_sums import DoesNotFitError
from arrow_format.arrays.gather import gathered
from arrow_format.arrays.selection import joined, take
from arrow_format.keys.group_values import combine_column
from arrow_format.keys.key_groups import key_groups
from arrow_format.keys.key_numbers import is_integer
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from arrow_format.keys.partitioner import Assign
    from arrow_format.keys.sort_keys import SortBy

LEAST_ABSORBED = 0.4
"""The part of new rows that must be combined into others: with less, grouping them takes longer
than writing them."""

SAMPLED_PAIRS = 64
"""Rows are sampled until about so many pairs of one key are expected where each key has two."""

HASHING_BYTES = 16
"""Charged for a row and each of its columns that may go through a hash table, as texts do."""

_SEED = 0


class Combiner:
    """Combines full buffers of one map task, and stops where that does not pay.

    What it decides depends on the rows alone: a second attempt of the task writes the same.
    """

    def __init__(self, schema: pa.Schema, combine: Mapping[str, str], assign: Assign) -> None:
        self.assign = assign
        """Gives rows their subpartitions, which depend on the keys alone."""
        self._functions = [combine.get(name) for name in schema.names]
        self._keys = [i for i, function in enumerate(self._functions) if function is None]
        self._is_sampled = False
        self.stopped = False
        """Whether rows are written as they are from now on."""
        self.num_absorbed = 0
        """Rows that were combined into others."""

    def combined(
        self, columns: Sequence[list[pa.Array]], num_combined: int
    ) -> list[pa.Array] | None:
        """Return the columns of one row for each key; None to leave the rows as they are.

        Parameters
        ----------
        columns
            The arrays of each column.
        num_combined
            So many rows, the first, are known to have different keys.
        """
        num_rows = sum(map(len, columns[0]))
        if not self._is_sampled:
            self._is_sampled = True
            self.stopped = self._expected_part(columns, num_rows) > 1 - LEAST_ABSORBED
            if self.stopped:
                return None
        keys = {i: joined(columns[i]) for i in self._keys}
        groups, rows = key_groups(list(keys.values()))
        indices = to_arrow(rows.astype(np.uint32))
        # Keys first, which are held twice.
        results = {i: gathered(keys.pop(i), indices) for i in self._keys}
        try:
            for i, function in enumerate(self._functions):
                if function is not None:
                    results[i] = combine_column(columns[i], function, groups, len(rows))
        except DoesNotFitError:
            # The whole group may have a sum that fits: readers add exactly.
            return None
        absorbed = num_rows - len(rows)
        self.num_absorbed += absorbed
        self.stopped = absorbed < LEAST_ABSORBED * (num_rows - num_combined)
        return [results[i] for i in range(len(columns))]

    def _expected_part(self, columns: Sequence[list[pa.Array]], num_rows: int) -> float:
        size = isqrt(2 * SAMPLED_PAIRS * num_rows)
        if 2 * size > num_rows:
            return 0.0
        # At random: rows of one key may be adjacent, and a stride would see one of each alone.
        rows = np.unique(np.random.default_rng(_SEED).integers(0, num_rows, size))
        groups, _ = key_groups([_taken(columns[i], rows) for i in self._keys])
        return expected_part(np.bincount(groups), num_rows)


def expected_part(counts: NDArray[np.integer], num_rows: int) -> float:
    """Return which part of ``num_rows`` rows is left when each key has one; estimated.

    ``counts`` are the rows of each key in a random sample. Keys seen more than twice are few. Of
    the others, if each has ``r`` rows among ``N``, a sample of ``m`` rows has about
    ``(r - 1) m**2 / 2N`` pairs.
    """
    pairs = int(np.count_nonzero(counts == 2))
    rare = int(np.count_nonzero(counts == 1)) + 2 * pairs
    if not rare:
        return 0.0
    part_rare = rare / int(counts.sum())
    return part_rare / (1 + 2 * pairs * part_rare * num_rows / rare**2)


def _taken(arrays: list[pa.Array], rows: NDArray[np.int64]) -> pa.Array:
    """Return the values at ascending rows of a column in several arrays."""
    ends = np.cumsum([len(array) for array in arrays])
    stops = np.searchsorted(rows, ends)
    starts = np.append(0, stops[:-1])
    return joined(
        [
            take(array, to_arrow(rows[start:stop] - (end - len(array))))
            for array, start, stop, end in zip(arrays, starts, stops, ends, strict=True)
        ]
    )


class CombiningBuffer(SortBuffer):
    """Collects rows of which those with equal keys become one, when it is full and at its end.

    It stays in use while that frees half of it, so each row is examined about twice. Rows come
    without subpartitions, which are assigned at the end, to what is left.
    """

    def __init__(
        self,
        schema: pa.Schema,
        capacity_bytes: int,
        num_subpartitions: int,
        sort_by: SortBy,
        combiner: Combiner,
    ) -> None:
        super().__init__(schema, capacity_bytes, num_subpartitions, sort_by)
        self._combiner = combiner
        self._num_combined = 0
        """Rows at the beginning that are known to have different keys."""
        num_hashed = sum(not is_integer(field.type) for field in schema)
        self.row_overhead_bytes += HASHING_BYTES * num_hashed

    def add(self, batch: pa.RecordBatch) -> bool:
        """Append all rows or none, as :meth:`SortBuffer.add`; combine rows for them to fit."""
        while not super().add(batch):
            if not self._combine() or 2 * self.num_bytes > self._capacity_bytes:
                return False
        return True

    def finish(self) -> None:
        """Combine the rows, assign subpartitions, and refuse further rows."""
        self._combine()
        self._copy_pending()
        self._ids = [
            self._combiner.assign(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
            for arrays in map(list, zip(*self._columns, strict=True))
        ]
        super().finish()

    def _combine(self) -> bool:
        """Combine the rows; return whether there were any to combine."""
        if self._num_combined == self._num_rows or self._combiner.stopped:
            return False
        self._copy_pending()
        columns = self._combiner.combined(self._columns, self._num_combined)
        if columns is not None:
            self.take_columns()
            self.put(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._num_combined = self._num_rows
        return columns is not None
