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

from arrow_format.batching import copied
from arrow_format.gather import gather
from arrow_format.hash_passes import HashPass
from arrow_format.last_rows import last_rows
from arrow_format.sort_buffer import SortBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

KEY_BYTES = 64
"""What a row may take beside its columns while keys are numbered: its number, its place in the
table of numbers, and its share of Arrow's hash table."""

_ANY_SIZE = 1 << 62


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
        self._capacity_bytes = capacity_bytes
        self._buffer = self._new_buffer()
        self._is_oversize = False
        self._num_distinct = 0
        """Rows at the beginning of the buffer that are known to have different keys."""

    def _new_buffer(self, capacity_bytes: int | None = None) -> SortBuffer:
        return SortBuffer(self._schema, capacity_bytes or self._capacity_bytes, 1)

    @property
    def num_rows(self) -> int:
        """Rows held, those that will be dropped included."""
        return self._buffer.num_rows

    @property
    def num_bytes(self) -> int:
        """Bytes charged for them, or for numbering their keys if that is more."""
        return max(self._buffer.num_bytes, KEY_BYTES * self._buffer.num_rows)

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
            self._hold_last(batch)
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
                self._hold(batch.slice(start, 1))
                start += 1
                step = batch.num_rows
        return None

    def _fits(self, piece: pa.RecordBatch) -> bool:
        num_rows = self._buffer.num_rows + piece.num_rows
        if self._is_oversize or KEY_BYTES * num_rows > self._capacity_bytes:
            return False
        return self._buffer.append(piece, np.zeros(piece.num_rows, np.int32))

    def _hold_last(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._hold(copied(batch.slice(batch.num_rows - 1)))

    def _hold(self, rows: pa.RecordBatch) -> None:
        """Hold rows of different keys and nothing else, whatever they take."""
        self._buffer = self._new_buffer()
        ids = np.zeros(rows.num_rows, np.int32)
        self._is_oversize = not self._buffer.append(rows, ids)
        if self._is_oversize:
            self._buffer = self._new_buffer(_ANY_SIZE)
            self._buffer.append(rows, ids)
        self._num_distinct = rows.num_rows

    def _drop_replaced(self) -> pa.RecordBatch:
        self._buffer.finish()
        batch = self._buffer.take_region().batch
        self._buffer.release()
        last = last_rows([batch.column(name) for name in self._keys], batch.num_rows)
        kept = [batch]
        del batch
        if len(last) < kept[0].num_rows:
            kept = [_gathered(kept, last)]
        self._hold(kept[0])
        return kept[0]

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
        self._is_oversize = False
        self._num_distinct = 0

    def make_room(self) -> None:
        """Let rows take twice the memory; for keys that nothing can part."""
        rows = self._drop_replaced()
        self._capacity_bytes *= 2
        self._hold(rows)


def _gathered(taken: list[pa.RecordBatch], rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of the batch in a list, which is emptied; columns are let go as they are gathered."""
    batch = taken.pop()
    schema, columns = batch.schema, batch.columns
    del batch
    indices = pa.array(rows.astype(np.uint32))
    gathered = []
    while columns:
        pieces = gather(columns.pop(0), indices)
        gathered.append(pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces))
    return pa.RecordBatch.from_arrays(gathered, schema=schema)


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
