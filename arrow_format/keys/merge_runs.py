"""Sorted runs merged: streaming, stably, with about one batch per run in memory.

Rows up to the smallest of the runs' last buffered keys can be yielded, since no later row is
smaller. Each round sorts these rows together and yields them. Comparing only first and last keys
shows which runs take part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from arrow_format.arrays.batches import copied
from arrow_format.arrays.buffers import to_arrow
from arrow_format.arrays.radix_sort import sort_permutation
from arrow_format.arrays.row_sizes import most_items
from arrow_format.arrays.selection import joined, take
from arrow_format.keys.spark_order import key_codes, sorting_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from arrow_format.keys.sort_keys import SortBy

MIN_ROWS = 4_096
"""Rows buffered per run before each round: a round of fewer rows costs as much."""

MAX_BYTES = 64 << 20
"""Bytes buffered in all runs together, where rows are large."""

PIECE_BYTES = 4 << 20
"""About the bytes gathered and yielded together."""

_PLACE_BYTES = 12
"""Per row in a round: its position in the order, and its run."""


def merge_sorted(
    runs: Sequence[Iterable[pa.RecordBatch]],
    sort_by: SortBy,
    *,
    min_rows: int = MIN_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Merge runs of batches, sorted by ``sort_by``; ties by number of the run, then its order.

    Each run buffers ``min_rows`` unless it ends; all together ``max_bytes``, with
    :func:`merging_bytes`, unless one batch of each is more. Besides, memory holds a few slices of
    :data:`PIECE_BYTES`. No batch yielded is empty.
    """
    heads = [_Head(run, sort_by) for run in runs]
    while True:
        for head in heads:
            head.fill(min_rows, max_bytes // len(heads))
        heads = [head for head in heads if head.num_rows]
        if len(heads) < 2:
            break
        yield from _round(heads, sort_by)
    for head in heads:
        yield from head.rest()


def merging_bytes(schema: pa.Schema, sort_by: SortBy) -> int:
    """Return the bytes per buffered row that merging takes besides the row."""
    return sorting_bytes([schema.field(name).type for name, _ in sort_by]) + _PLACE_BYTES


class _Head:
    """The buffered rows of a run."""

    def __init__(self, run: Iterable[pa.RecordBatch], sort_by: SortBy) -> None:
        self._batches = iter(run)
        self._names = [name for name, _ in sort_by]
        self._sort_by = sort_by
        self._row_bytes: int | None = None
        self._held: list[pa.RecordBatch] = []
        self.nbytes = 0
        """Bytes of the buffered rows and of merging them, and one for each item of a list."""
        self.num_rows = 0
        self.has_ended = False
        self._cut = False
        """Whether the first buffered batch is the rest of a larger one."""

    def fill(self, min_rows: int, max_bytes: int) -> None:
        """Buffer batches up to ``min_rows`` or ``max_bytes``, or until the run ends."""
        while self.num_rows < min_rows and not self.has_ended:
            if self._held and self.nbytes >= max_bytes:
                break
            if self._cut:
                # The rest is less than a round's rows, and would pin the whole batch.
                self._held[0], self._cut = copied(self._held[0]), False
            batch = next(self._batches, None)
            if batch is None:
                self.has_ended = True
            elif batch.num_rows:
                self._held.append(batch)
                self.num_rows += batch.num_rows
                if self._row_bytes is None:
                    self._row_bytes = merging_bytes(batch.schema, self._sort_by)
                # Items are charged too: nulls in lists take no bytes, but count towards offsets.
                self.nbytes += batch.nbytes + most_items(batch)
                self.nbytes += self._row_bytes * batch.num_rows

    def edge_keys(self) -> list[pa.RecordBatch]:
        """Return the keys of the first and the last buffered row."""
        first, last = self._held[0], self._held[-1]
        edges = [first.slice(0, 1), last.slice(last.num_rows - 1)]
        return [edge.select(self._names) for edge in edges]

    def key_columns(self) -> list[pa.RecordBatch]:
        """Return the key columns of the buffered rows."""
        return [batch.select(self._names) for batch in self._held]

    def give_out(self, num_rows: int) -> list[pa.RecordBatch]:
        """Remove and return the first buffered rows."""
        self.nbytes -= self.nbytes * num_rows // max(self.num_rows, 1)
        self.num_rows -= num_rows
        taken = []
        while num_rows:
            batch = self._held[0]
            if batch.num_rows > num_rows:
                self._held[0] = batch.slice(num_rows)
                self._cut = True
                batch = batch.slice(0, num_rows)
            else:
                del self._held[0]
                self._cut = False
            num_rows -= batch.num_rows
            taken.append(batch)
        return taken

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all remaining rows: a single run needs no merging."""
        while self._held:
            yield self._held.pop(0)
        yield from (batch for batch in self._batches if batch.num_rows)


def _round(heads: list[_Head], sort_by: SortBy) -> Iterator[pa.RecordBatch]:
    """Yield, in order and in slices, the buffered rows that no later row can precede."""
    edges = _order([edge for head in heads for edge in head.edge_keys()], sort_by)
    rank = np.empty(len(edges), np.int64)
    rank[edges] = np.arange(len(edges))
    # A run that has ended limits no other. When all have, the last of all rows is the limit.
    open_heads = [i for i, head in enumerate(heads) if not head.has_ended]
    limit = (
        min(open_heads, key=lambda i: rank[2 * i + 1])
        if open_heads
        else max(range(len(heads)), key=lambda i: rank[2 * i + 1])
    )
    part = [i for i in range(len(heads)) if rank[2 * i] <= rank[2 * limit + 1]]
    sizes = np.array([heads[i].num_rows for i in part])
    ends = np.cumsum(sizes)
    order = _order([keys for i in part for keys in heads[i].key_columns()], sort_by)
    # The permutation is stable, so up to the limit's last row are the rows before it by key, then
    # run, then position: the first rows of each run.
    last_row = int(ends[part.index(limit)]) - 1
    order = order[: int(np.flatnonzero(order == last_row)[0]) + 1]
    run = np.searchsorted(ends, order, side="right")
    num_bytes = sum(heads[i].nbytes for i in part) * len(order) // int(ends[-1])
    num_slices = min(num_bytes // PIECE_BYTES + 1, len(order))
    done = ends - sizes
    for rows, run_of in zip(
        np.array_split(order, num_slices), np.array_split(run, num_slices), strict=True
    ):
        # Each run is sorted, so a slice takes its next rows.
        taken = np.bincount(run_of, minlength=len(part))
        batches = [
            batch
            for i, num_rows in zip(part, taken.tolist(), strict=True)
            for batch in heads[i].give_out(num_rows)
        ]
        if len(batches) == 1:
            yield batches.pop()
        else:
            rows_of_runs = pa.concat_batches(batches)
            batches.clear()
            yield take(rows_of_runs, to_arrow(rows - (done - (np.cumsum(taken) - taken))[run_of]))
        done = done + taken


def _order(batches: list[pa.RecordBatch], sort_by: SortBy) -> NDArray[np.uint32]:
    """Permutation that sorts the rows of all batches stably by their keys."""
    keys = joined(batches)
    codes = key_codes([keys[name] for name, _ in sort_by], [order for _, order in sort_by])
    return sort_permutation(codes)
