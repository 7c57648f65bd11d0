"""A sort buffer that combines the rows of equal keys when it is full, and goes on filling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.keys.key_numbers import is_integer
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    import numpy.typing as npt

    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.write.combining import Combiner

HASHING_BYTES = 48
"""Charged for a row while its keys are numbered by a hash table, as texts are."""


class CombiningBuffer(SortBuffer):
    """Collects rows of which those with equal keys become one, when it is full and at its end.

    It stays in use while that frees half of it, so each row is examined about twice.
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
        if not all(is_integer(schema.field(i).type) for i in combiner.keys):
            self.row_overhead_bytes += HASHING_BYTES

    def append(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> bool:
        """Append all rows or none, as :meth:`SortBuffer.append`; combine rows for them to fit."""
        while not super().append(batch, subpartitions):
            if not self._combine() or 2 * self.num_bytes > self._capacity_bytes:
                return False
        return True

    def finish(self) -> None:
        """Combine the rows, and refuse further ones."""
        self._combine()
        super().finish()

    def _combine(self) -> bool:
        """Combine the rows; return whether there were any to combine."""
        if self._num_combined == self._num_rows or self._combiner.stopped:
            return False
        self._copy_pending()
        ids = np.concatenate(self._ids)
        self._ids = [ids]
        combined = self._combiner.combined(self._columns, ids, self._num_combined)
        if combined is not None:
            columns, ids = combined
            self.take_columns()
            self.put(pa.RecordBatch.from_arrays(columns, schema=self._schema), ids)
        self._num_combined = self._num_rows
        return combined is not None
