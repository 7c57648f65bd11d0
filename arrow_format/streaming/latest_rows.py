"""The latest row of each key, held in bounded memory; what does not fit is the caller's to place.

Rows are collected in a sort buffer, which counts truthfully what they pin. When it is full, the
rows that a later one replaces are dropped; since a buffer stays in use only while that frees half
of it, a row is looked at about twice, however many there are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.arrays.buffers import no_rows, to_arrow
from arrow_format.arrays.gather import gather
from arrow_format.arrays.row_sizes import has_items, num_items
from arrow_format.arrays.selection import joined, keep
from arrow_format.operators.hash_passes import HashPass
from arrow_format.streaming.last_rows import last_rows
from arrow_format.write.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

KEY_BYTES = 64
"""What a row may take beside its columns while the last rows are found: hash or number, both with
its place as a word that is sorted, its place by itself, and its part in a table of few keys."""


ITEM_BYTES = 24
"""What a value inside of a key takes then: its number, in the bytes that stand for all of them, and
in the table of those that are different."""

PIECE_BYTES = 512
"""What a column of a piece takes beside its values, however few these are."""


class LatestRows:
    """Rows of one schema, of which the last of each key is kept.

    Parameters
    ----------
    schema
        Data schema; every batch has exactly this one.
    keys
        Key columns; without any, all rows have the same key.
    capacity_bytes
        Bytes the rows may take in memory. Numbering their keys may take as much again, and so may
        the rows that are kept, while the others are dropped. A single row may be larger.
    """

    def __init__(self, schema: pa.Schema, keys: Sequence[str], capacity_bytes: int) -> None:
        self._schema = schema
        self._keys = tuple(keys)
        self._nested = [key for key in self._keys if has_items(schema.field(key).type)]
        self._capacity_bytes = capacity_bytes
        self._buffer = self._new_buffer()
        self._num_distinct = 0
        """Rows at the beginning of the buffer that are known to have different keys."""
        self._num_items = 0
        """Values inside of the keys of rows in the buffer."""
        self._num_pieces = 0

    def _new_buffer(self) -> SortBuffer:
        return SortBuffer(self._schema, self._capacity_bytes, 1)

    @property
    def num_rows(self) -> int:
        """Rows held, those that will be dropped included."""
        return self._buffer.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes charged for them, or for numbering their keys if that is more."""
        return max(
            self._buffer.num_bytes, self._numbering_bytes(self._buffer.num_rows, self._num_items)
        )

    def _numbering_bytes(self, num_rows: int, num_items: int) -> int:
        return KEY_BYTES * num_rows + ITEM_BYTES * num_items

    def _items_of(self, rows: pa.RecordBatch) -> int:
        return sum(num_items(rows.column(key)) for key in self._nested)

    def append(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take rows, as many as there is room for.

        Parameters
        ----------
        batch
            Rows of the schema, any number.

        Returns
        -------
        pyarrow.RecordBatch or None
            The rows that were not taken, because those that are held fill half of the room even
            after all others were dropped: :meth:`take` them, and append again. None when all were
            taken, as always when nothing is held and one row fits.
        """
        if not self._keys:
            if batch.num_rows:
                self._hold(copied(batch.slice(batch.num_rows - 1)))
            return None
        start, step = 0, batch.num_rows
        while start < batch.num_rows:
            step = min(step, batch.num_rows - start)
            if self._fits(batch.slice(start, step)):
                start += step
                step = batch.num_rows
            elif self._num_distinct < self._buffer.num_rows:
                self._drop_replaced()
                if 2 * self.num_bytes > self._capacity_bytes:
                    return batch.slice(start)
            elif step > 1:
                step = -(-step // 2)
            elif self._buffer.has_remaining:
                return batch.slice(start)
            else:
                self._hold(copied(batch.slice(start, 1)))
                start += 1
                step = batch.num_rows
        return None

    def _fits(self, piece: pa.RecordBatch) -> bool:
        num_rows, items = self._buffer.num_rows + piece.num_rows, self._items_of(piece)
        if self._numbering_bytes(num_rows, self._num_items + items) > self._capacity_bytes:
            return False
        # Until keys are numbered, the room for that is there for pieces.
        beside = PIECE_BYTES * len(self._schema) * (self._num_pieces + 1)
        if self._num_pieces and beside > self._capacity_bytes // 4:
            return False
        if not self._buffer.append(piece, np.zeros(piece.num_rows, np.int32)):
            return False
        self._num_items += items
        self._num_pieces += 1
        return True

    def _hold(self, rows: pa.RecordBatch) -> None:
        """Hold rows of different keys and nothing else, whatever they take."""
        self._buffer = self._new_buffer()
        self._buffer.put(rows)
        self._num_distinct = rows.num_rows
        self._num_items, self._num_pieces = self._items_of(rows), 0

    def _drop_replaced(self) -> pa.RecordBatch:
        num_rows = self._buffer.num_rows
        columns = self._buffer.take_columns()
        if num_rows == self._num_distinct:
            kept = None
        else:
            for i in (self._schema.get_field_index(name) for name in self._keys):
                columns[i] = [pa.concat_arrays(columns[i])]
            keys = [columns[self._schema.get_field_index(name)][0] for name in self._keys]
            kept = last_rows(keys, num_rows)
            del keys
        rows = _kept(self._schema, columns, kept, num_rows)
        self._hold(rows)
        return rows

    def rows(self) -> pa.RecordBatch:
        """Return the latest row of each key, in the order in which they came; they stay held."""
        return self._drop_replaced()

    def take(self) -> pa.RecordBatch:
        """Return the latest row of each key, in the order in which they came; none is held then."""
        rows = self._drop_replaced()
        self.clear()
        return rows

    def clear(self) -> None:
        """Let all rows go."""
        self._buffer.release()
        self._buffer = self._new_buffer()
        self._num_distinct = self._num_items = self._num_pieces = 0

    def make_room(self) -> None:
        """Let rows take twice the memory; for keys that nothing can part."""
        rows = self._drop_replaced()
        self._capacity_bytes *= 2
        self._hold(rows)


def _kept(
    schema: pa.Schema,
    columns: list[list[pa.Array]],
    rows: NDArray[np.int64] | None,
    num_rows: int,
) -> pa.RecordBatch:
    """Return some rows, or all when None, of columns in pieces; these are let go one by one."""
    mask = None
    if rows is not None and len(rows) < num_rows:
        mask = np.zeros(num_rows, np.bool_)
        mask[rows] = True
    arrays = []
    for field in schema:
        pieces = columns.pop(0)
        if mask is not None and rows is not None:
            # What filters lists makes an index of all their items.
            pieces = (
                gather(pa.concat_arrays(pieces), to_arrow(rows.astype(np.uint32)))
                if has_items(field.type)
                else list(_filtered(pieces, mask))
            )
        if pieces:
            arrays.append(joined(pieces))
        else:
            arrays.append(no_rows(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _filtered(pieces: list[pa.Array], mask: NDArray[np.bool_]) -> Iterator[pa.Array]:
    start = 0
    while pieces:
        piece = pieces.pop(0)
        stop = start + len(piece)
        yield keep(piece, to_arrow(mask[start:stop]))
        start = stop


def latest_in_passes(
    read: Callable[[], Iterable[pa.RecordBatch]],
    schema: pa.Schema,
    keys: Sequence[str],
    *,
    capacity_bytes: int,
    num_rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the latest row of each key, of rows that can be read again.

    In one pass where these rows fit, in several otherwise, each over some of the keys.

    Parameters
    ----------
    read
        Reads all rows, in the order in which they came; called once for each pass, and for one that
        turns out too large.
    schema
        Data schema of all of them.
    keys
        Key columns; without any, all rows have the same key.
    capacity_bytes
        Bytes that the rows of a pass may take in memory, see :class:`LatestRows`.
    num_rows
        How many rows there are, about.

    Yields
    ------
    pyarrow.RecordBatch
        Rows of a pass; no key is in two of them.
    """
    waiting = [HashPass(tuple(keys))]
    while waiting:
        one = waiting.pop()
        held = LatestRows(schema, keys, capacity_bytes)
        smaller = _run_pass(one, held, read(), partial(_expected, num_rows))
        waiting += smaller
        if not smaller:
            yield held.take()


def _expected(num_rows: int, seen: int) -> float:
    """How many times as many keys there may be as were met in ``seen`` rows."""
    return max(num_rows / max(seen, 1), 1)


def _run_pass(
    one: HashPass,
    held: LatestRows,
    batches: Iterable[pa.RecordBatch],
    expected: Callable[[int], float],
) -> list[HashPass]:
    """Hold the rows of a pass; return smaller passes to take instead where they do not fit."""
    seen = 0
    for batch in batches:
        seen += batch.num_rows
        rest: pa.RecordBatch | None = one.rows_of(batch)
        del batch
        while rest is not None:
            rest = held.append(rest)
            if rest is not None:
                smaller = one.split_where_it_helps([held.rows()], expected(seen))
                if smaller:
                    return smaller
                held.make_room()
    return []
