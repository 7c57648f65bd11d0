"""A sort buffer that combines the rows of equal keys when it is full, and goes on filling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.keys.key_numbers import is_integer
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.write.combining import Combiner

HASHING_BYTES = 16
"""Charged for a row and each of its columns that may go through a hash table, as texts do."""


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
