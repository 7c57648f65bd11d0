"""The sort buffer: collects batches in bounded memory and returns their rows as one region.

Source: FLIP-148, ``SortBuffer``. There, records are linked per subpartition inside memory segments;
here whole Arrow columns are collected and permuted once, when the buffer is full.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from arrow_format.arrays.buffers import no_rows, to_arrow
from arrow_format.arrays.gather import gather
from arrow_format.arrays.row_sizes import MAX_ITEMS, has_items, num_items
from arrow_format.arrays.selection import joined
from arrow_format.errors import ClosedError, OptionError
from arrow_format.keys.spark_order import order_codes, sorting_bytes
from arrow_format.write.clustering import Clustering, cluster

if TYPE_CHECKING:
    from arrow_format.concurrency import OrderedMap
    from arrow_format.keys.sort_keys import SortBy
    from arrow_format.keys.spark_order import Codes
    from arrow_format.model import Int32Array

COPY_BYTES = 4 << 20
"""Arriving batches are copied, column by column, once they pin this much memory."""

COPY_BATCHES = 64
"""... or once this many are pending, so that tiny batches cost no more than their share."""

ROW_OVERHEAD_BYTES = 16
"""Per row besides its columns: id 4, argsort 8 and permutation 4. Sorting by keys takes more,
depending on their types: :func:`~arrow_format.keys.spark_order.sorting_bytes`."""


@dataclass(frozen=True, slots=True)
class SortedRegion:
    """The rows of a full buffer in region order."""

    batch: pa.RecordBatch
    clustering: Clustering


class SortBuffer:
    """Collects rows and their subpartitions, up to a number of bytes.

    ``append`` until it returns False, then ``finish``, ``take_region`` and ``release``.

    Parameters
    ----------
    schema
        Data schema, which every batch has.
    capacity_bytes
        Bytes the buffer may hold: columns as they are copied, plus :data:`ROW_OVERHEAD_BYTES` per
        row, and with ``sort_by`` the memory of sorting. Gathering needs up to as much again, column
        by column.
    num_subpartitions
        Number of subpartitions.
    sort_by
        Pairs of column and order by which the rows of each subpartition are sorted; in order of
        arrival when empty.
    """

    def __init__(
        self,
        schema: pa.Schema,
        capacity_bytes: int,
        num_subpartitions: int,
        sort_by: SortBy = (),
    ) -> None:
        self._schema = schema
        self._sort_by = sort_by
        self.row_overhead_bytes = ROW_OVERHEAD_BYTES
        """Bytes charged for a row besides its columns."""
        if sort_by:
            self.row_overhead_bytes += sorting_bytes(
                [schema.field(name).type for name, _ in sort_by]
            )
        self._capacity_bytes = capacity_bytes
        self._num_subpartitions = num_subpartitions
        # Copied rows: for each column a list of arrays that share their memory with nothing.
        self._columns: list[list[pa.Array]] = [[] for _ in schema]
        self._copied_bytes = 0
        # Batches since the last copy. A batch from IPC is one allocation: a column cannot be freed
        # alone, and a slice may pin much more than its rows.
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0  # upper bound: buffers that batches share count for each
        self._ids: list[Int32Array] = []
        self._num_rows = 0
        self._num_items = {i: 0 for i, field in enumerate(schema) if has_items(field.type)}
        """Items inside each column of lists."""
        self._finished = False
        self._released = False

    @property
    def num_rows(self) -> int:
        """Rows appended so far."""
        return self._num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes charged: copied columns, what pending batches pin, and the overhead per row."""
        pending = _pinned_bytes(self._pending)
        return self._copied_bytes + pending + self._num_rows * self.row_overhead_bytes

    @property
    def has_remaining(self) -> bool:
        """Whether there are rows that :meth:`take_region` has not returned."""
        return self._num_rows > 0

    @property
    def is_finished(self) -> bool:
        """Whether :meth:`finish` was called: no row can be appended."""
        return self._finished

    @property
    def is_released(self) -> bool:
        """Whether :meth:`release` was called: all memory is freed."""
        return self._released

    def append(self, batch: pa.RecordBatch, subpartitions: npt.NDArray[np.integer]) -> bool:
        """Append all rows of ``batch``, or no row when they do not fit.

        Parameters
        ----------
        batch
            Rows of the buffer's schema.
        subpartitions
            One per row, in ``[0, num_subpartitions)``.

        Returns
        -------
        bool
            Whether the rows were appended. An empty buffer refuses a batch larger than its
            capacity, and several rows with more than
            :data:`~arrow_format.arrays.row_sizes.MAX_ITEMS` items of lists in one column.

        Raises
        ------
        ClosedError
            The buffer is finished or released.
        OptionError
            There is not one subpartition per row, or one is out of range.
        """
        if len(subpartitions) != batch.num_rows:
            msg = f"{len(subpartitions)} subpartitions for {batch.num_rows} rows; expected one each"
            raise OptionError(msg)
        if batch.num_rows and (
            subpartitions.min() < 0 or subpartitions.max() >= self._num_subpartitions
        ):
            msg = (
                f"subpartitions from {subpartitions.min()} to {subpartitions.max()}; expected 0 "
                f"to {self._num_subpartitions - 1}"
            )
            raise OptionError(msg)
        is_added = self.add(batch)
        if is_added:
            self._ids.append(subpartitions.astype(np.int32))
        return is_added

    def add(self, batch: pa.RecordBatch) -> bool:
        """Append rows as :meth:`append` does, before it is known where they belong."""
        if self._finished or self._released:
            msg = "sort buffer is finished or released; no row can be appended"
            raise ClosedError(msg)
        if batch.num_rows == 0:
            return True
        items = {i: n + num_items(batch.column(i)) for i, n in self._num_items.items()}
        if self._num_rows + batch.num_rows > 1 and any(n > MAX_ITEMS for n in items.values()):
            return False
        pinned = batch.get_total_buffer_size()
        rows = self._num_rows + batch.num_rows
        charged = self._copied_bytes + self._pending_bytes + rows * self.row_overhead_bytes
        if charged + pinned > self._capacity_bytes:
            # Batches may pin more than their rows need; copying frees the rest.
            self._copy_pending()
            charged = self._copied_bytes + rows * self.row_overhead_bytes
            if charged + batch.nbytes > self._capacity_bytes:
                return False
        self._pending.append(batch)
        self._num_rows = rows
        self._num_items = items
        self._pending_bytes += pinned
        if self._pending_bytes >= COPY_BYTES or len(self._pending) >= COPY_BATCHES:
            self._pending_bytes = _pinned_bytes(self._pending)
            if self._pending_bytes >= COPY_BYTES or len(self._pending) >= COPY_BATCHES:
                self._copy_pending()
        return True

    def _copy_pending(self) -> None:
        if not self._pending:
            return
        for i, column in enumerate(self._columns):
            copied = pa.concat_arrays([batch.column(i) for batch in self._pending])
            self._copied_bytes += copied.get_total_buffer_size()
            column.append(copied)
        self._pending = []
        self._pending_bytes = 0

    def finish(self) -> None:
        """Refuse further rows."""
        self._finished = True

    def take_region(self, first_subpartition: int = 0, in_order: OrderedMap = map) -> SortedRegion:
        """Remove all rows from the buffer and return them ordered by rank.

        The rows of a subpartition are in the order of the sort keys, rows of equal keys in order of
        arrival. Each column is freed when it was gathered: the peak is the buffer, plus the columns
        gathered so far, plus those that are being gathered.

        Parameters
        ----------
        first_subpartition
            The subpartition with rank 0.
        in_order
            Gathers the columns, as ``map`` does.

        Raises
        ------
        ClosedError
            The buffer is not finished, or released.
        """
        if not self._finished or self._released:
            msg = "sort buffer can be read between finish and release only"
            raise ClosedError(msg)
        self._copy_pending()
        ids = np.concatenate(self._ids) if self._ids else np.empty(0, np.int32)
        self._ids = []
        clustering = cluster(ids, self._num_subpartitions, first_subpartition, self._sort_codes())
        del ids
        indices = None if clustering.permutation is None else to_arrow(clustering.permutation)
        gathered = list(in_order(partial(self._take_column, indices), range(len(self._columns))))
        self._copied_bytes = 0
        self._num_rows = 0
        return SortedRegion(pa.RecordBatch.from_arrays(gathered, schema=self._schema), clustering)

    def _take_column(self, indices: pa.Array | None, i: int) -> pa.Array:
        chunks, self._columns[i] = self._columns[i], []
        column = pa.concat_arrays(chunks) if chunks else no_rows(self._schema.field(i).type)
        del chunks
        slices = [column] if indices is None else gather(column, indices)
        del column
        gathered = joined(slices)
        if len(slices) > 1:
            del slices
            # The allocator would keep these small freed allocations for long.
            pa.default_memory_pool().release_unused()
        return gathered

    def put(self, batch: pa.RecordBatch, subpartition: int = 0) -> None:
        """Put rows into the empty buffer without a copy, even if they do not fit.

        Parameters
        ----------
        batch
            Rows of the buffer's schema, whose columns share their memory with nothing.
        subpartition
            The subpartition of all rows.

        Raises
        ------
        ClosedError
            The buffer is finished, released, or not empty.
        """
        if self._finished or self._released or self._num_rows:
            msg = "rows can be put into an empty sort buffer only"
            raise ClosedError(msg)
        self._columns = [[column] for column in batch.columns]
        self._copied_bytes = sum(column.get_total_buffer_size() for column in batch.columns)
        self._ids = [np.full(batch.num_rows, subpartition, np.int32)]
        self._num_rows = batch.num_rows
        self._num_items = {i: num_items(batch.column(i)) for i in self._num_items}

    def take_columns(self) -> list[list[pa.Array]]:
        """Remove all rows from the buffer and return them in order of arrival.

        Returns
        -------
        list
            For each column its arrays; those of all columns have the same lengths.
        """
        self._copy_pending()
        columns, self._columns = self._columns, [[] for _ in self._schema]
        self._ids = []
        self._copied_bytes = self._num_rows = 0
        self._num_items = dict.fromkeys(self._num_items, 0)
        return columns

    def _sort_codes(self) -> list[Codes]:
        """Return the codes of the sort keys; their columns stay concatenated, held only once."""
        if not self._sort_by or self._num_rows == 0:
            return []
        codes = []
        for name, order in self._sort_by:
            i = self._schema.get_field_index(name)
            self._columns[i] = [pa.concat_arrays(self._columns[i])]
            codes += order_codes(self._columns[i][0], order)
        return codes

    def release(self) -> None:
        """Free all memory; calling it again does nothing."""
        self._columns = [[] for _ in self._schema]
        self._pending = []
        self._ids = []
        self._copied_bytes = self._pending_bytes = self._num_rows = 0
        self._released = True


def _pinned_bytes(batches: list[pa.RecordBatch]) -> int:
    """Bytes that batches keep in memory; buffers that several batches share count once."""
    return int(pa.Table.from_batches(batches).get_total_buffer_size()) if batches else 0
