"""The latest row of each key, in bounded memory; the caller places what does not fit.

Rows are collected in a sort buffer, which charges for all memory that they pin. When it is full,
rows that a later one replaces are dropped. The buffer stays in use only while that frees half of
it, so each row is examined about twice, however many there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.arrays.buffers import no_rows, to_arrow
from arrow_format.arrays.gather import gather
from arrow_format.arrays.row_sizes import has_items, num_items
from arrow_format.arrays.selection import joined, keep
from arrow_format.keys.hash_passes import HashPass
from arrow_format.keys.last_positions import last_positions
from arrow_format.keys.partitioner import column_index
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

KEY_BYTES = 64
"""Most that a row takes besides its columns while the last rows are searched: a hash or number,
that with the row number as a word to sort, the row number, and its part in a table of few keys."""

ITEM_BYTES = 24
"""The same for a value inside of a key: its number, that in the bytes that represent the key, and
in the table of distinct ones."""

PIECE_BYTES = 512
"""What a column of a slice takes besides its values, however few these are."""


class LatestRows:
    """Rows of one data schema, of which the last of each key is kept.

    They may take ``capacity_bytes`` in memory. Numbering their keys may take as much again, and so
    may the rows that are kept, while the others are dropped. A single row may be larger.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], capacity_bytes: int) -> None:
        self._schema = schema
        self._keys = [column_index(schema, key) for key in keys]
        self._nested_keys = [i for i in self._keys if has_items(schema.field(i).type)]
        self._capacity_bytes = capacity_bytes
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self._buffer = SortBuffer(self._schema, self._capacity_bytes, 1)
        self._num_distinct = 0
        """Rows at the beginning of the buffer that are known to have different keys."""
        self._num_items = 0
        """Values inside of the keys of rows in the buffer."""
        self._num_pieces = 0
        """Slices in the buffer."""

    @property
    def num_rows(self) -> int:
        """Rows in memory, those that will be dropped included."""
        return self._buffer.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes charged for them, or for numbering their keys if that is more."""
        numbering_bytes = KEY_BYTES * self._buffer.num_rows + ITEM_BYTES * self._num_items
        return max(self._buffer.num_bytes, numbering_bytes)

    def append(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take as many rows as fit; return the others, or None.

        Rows are returned when those in memory take half of the capacity even after all replaced
        ones were dropped: :meth:`take` these, and append again. An empty buffer takes any row.
        """
        if not self._keys:
            if batch.num_rows:
                self._replace(copied(batch.slice(batch.num_rows - 1)))
            return None
        start, step = 0, batch.num_rows
        while start < batch.num_rows:
            step = min(step, batch.num_rows - start)
            if self._fits(batch.slice(start, step)):
                start += step
                step = batch.num_rows
            elif self._num_distinct < self._buffer.num_rows:
                self.rows()
                if 2 * self.num_bytes > self._capacity_bytes:
                    return batch.slice(start)
            elif step > 1:
                step = -(-step // 2)
            elif self._buffer.has_remaining:
                return batch.slice(start)
            else:
                self._replace(copied(batch.slice(start, 1)))
                start += 1
                step = batch.num_rows
        return None

    def _fits(self, piece: pa.RecordBatch) -> bool:
        num_rows = self._buffer.num_rows + piece.num_rows
        num_items = self._num_items + self._items_of(piece)
        if KEY_BYTES * num_rows + ITEM_BYTES * num_items > self._capacity_bytes:
            return False
        # Until keys are numbered, slices may take some of the memory for that.
        pieces_bytes = PIECE_BYTES * len(self._schema) * (self._num_pieces + 1)
        if self._num_pieces and pieces_bytes > self._capacity_bytes // 4:
            return False
        if not self._buffer.append(piece, np.zeros(piece.num_rows, np.int32)):
            return False
        self._num_items = num_items
        self._num_pieces += 1
        return True

    def _items_of(self, rows: pa.RecordBatch) -> int:
        return sum(num_items(rows.column(i)) for i in self._nested_keys)

    def _replace(self, rows: pa.RecordBatch) -> None:
        """Replace all rows by rows of different keys, of any size."""
        self.clear()
        self._buffer.put(rows)
        self._num_distinct = rows.num_rows
        self._num_items = self._items_of(rows)

    def rows(self) -> pa.RecordBatch:
        """Return the latest row of each key, in the order in which they came; they stay."""
        num_rows = self._buffer.num_rows
        columns = self._buffer.take_columns()
        kept = None
        if num_rows > self._num_distinct:
            for i in self._keys:
                columns[i] = [pa.concat_arrays(columns[i])]
            kept = last_positions([columns[i][0] for i in self._keys], num_rows)
        rows = _selected(self._schema, columns, kept, num_rows)
        self._replace(rows)
        return rows

    def take(self) -> pa.RecordBatch:
        """Return the latest row of each key, in the order in which they came, and drop all."""
        rows = self.rows()
        self.clear()
        return rows

    def double_capacity(self) -> None:
        """Allow twice the memory: for keys that more passes cannot split."""
        rows = self.rows()
        self._capacity_bytes *= 2
        self._replace(rows)


def _selected(
    schema: pa.Schema,
    columns: list[list[pa.Array]],
    rows: NDArray[np.int64] | None,
    num_rows: int,
) -> pa.RecordBatch:
    """Return some rows, or all when None, of columns in slices; the columns are freed in turn."""
    mask = None
    if rows is not None and len(rows) < num_rows:
        mask = np.zeros(num_rows, np.bool_)
        mask[rows] = True
    arrays = []
    for field in schema:
        slices = columns.pop(0)
        if mask is not None and rows is not None:
            # Filtering lists would make an index of all their items.
            slices = (
                gather(pa.concat_arrays(slices), to_arrow(rows.astype(np.uint32)))
                if has_items(field.type)
                else list(_filtered(slices, mask))
            )
        if slices:
            arrays.append(joined(slices))
        else:
            arrays.append(no_rows(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _filtered(slices: list[pa.Array], mask: NDArray[np.bool_]) -> Iterator[pa.Array]:
    start = 0
    while slices:
        values = slices.pop(0)
        end = start + len(values)
        yield keep(values, to_arrow(mask[start:end]))
        start = end


def latest_in_passes(
    read: Callable[[], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    keys: Sequence[str],
    *,
    capacity_bytes: int,
    num_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the latest row of each key, of rows that can be read again; one batch per pass.

    One pass where the rows fit in ``capacity_bytes``, otherwise several, each over some of the
    keys. ``read`` yields about ``num_rows`` rows, in the order in which they came; it is called for
    each pass, and for each that turns out too large.
    """
    waiting = [HashPass(tuple(keys))]
    while waiting:
        hash_pass = waiting.pop()
        latest = LatestRows(schema, keys, capacity_bytes)
        smaller = _run_pass(hash_pass, latest, read(), num_rows)
        waiting += smaller
        if not smaller:
            yield latest.take()


def _run_pass(
    hash_pass: HashPass, latest: LatestRows, batches: Iterable[pa.RecordBatch], num_rows: int
) -> list[HashPass]:
    """Collect the rows of a pass; return smaller passes to run instead where they do not fit."""
    rows_read = 0
    for batch in batches:
        rows_read += batch.num_rows
        rest: pa.RecordBatch | None = hash_pass.rows_of(batch)
        del batch
        while rest is not None:
            rest = latest.append(rest)
            if rest is not None:
                times = max(num_rows / max(rows_read, 1), 1)  # as many keys as in the rows so far
                smaller = hash_pass.split_where_it_helps([latest.rows()], times)
                if smaller:
                    return smaller
                latest.double_capacity()
    return []
