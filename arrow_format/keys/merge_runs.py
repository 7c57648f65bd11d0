"""Merging sorted runs: streaming, stable, in about one batch per run, and without a loop over rows.

Rows up to the smallest of the last keys that the runs have at hand can be given out: whatever comes
later is not smaller. So each round takes these, sorts them together and lets them go; what takes
part in a round, and where it stands, is found by comparing first and last keys alone.
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
"""Rows a run has at hand before each round, unless it ends: rounds of few rows cost as much."""

MAX_BYTES = 64 << 20
"""... or its share of this, where rows are large."""

PIECE_BYTES = 4 << 20
"""About what is gathered and given out at once."""

_PLACE_BYTES = 12
"""Of each row in a round: its place in the order, and its run."""


def merge_sorted(
    runs: Sequence[Iterable[pa.RecordBatch]],
    sort_by: SortBy,
    *,
    min_rows: int = MIN_ROWS,
    max_bytes: int = MAX_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Merge runs that are sorted into one sequence of batches that is.

    Parameters
    ----------
    runs
        Batches of one schema, the rows of each run in order; any number of rows per batch.
    sort_by
        The keys they are sorted by, at least one.
    min_rows
        Rows a run has at hand before each round, unless it ends.
    max_bytes
        Bytes at hand in all runs together, those of :func:`merging_bytes` included, unless one
        batch of each is more.

    Yields
    ------
    pyarrow.RecordBatch
        Rows in order, none without rows; ties by number of the run, then as they stand in it.
        Memory is what the runs have at hand, and a few pieces of 4 MiB.
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
    """Bytes that a row at hand takes beside its own while it is merged."""
    return sorting_bytes([schema.field(name).type for name, _ in sort_by]) + _PLACE_BYTES


class _Head:
    """The rows of a run that are at hand."""

    def __init__(self, run: Iterable[pa.RecordBatch], sort_by: SortBy) -> None:
        self._batches = iter(run)
        self._names = [name for name, _ in sort_by]
        self._sort_by = sort_by
        self._row_bytes: int | None = None
        self._held: list[pa.RecordBatch] = []
        self.nbytes = 0
        """Bytes of the rows at hand and of merging them, and one more for each item of a list."""
        self.num_rows = 0
        self.has_ended = False
        self._cut = False
        """Whether the first batch at hand is the rest of a larger one."""

    def fill(self, min_rows: int, max_bytes: int) -> None:
        """Take batches until there are ``min_rows`` or ``max_bytes``, or the run ends."""
        while self.num_rows < min_rows and not self.has_ended:
            if self._held and self.nbytes >= max_bytes:
                break
            if self._cut:
                # What is left of a batch is less than a round's rows, and would keep it whole.
                self._held[0], self._cut = copied(self._held[0]), False
            batch = next(self._batches, None)
            if batch is None:
                self.has_ended = True
            elif batch.num_rows:
                self._held.append(batch)
                self.num_rows += batch.num_rows
                if self._row_bytes is None:
                    self._row_bytes = merging_bytes(batch.schema, self._sort_by)
                # Nulls inside of lists take no bytes, and no batch has room for all too many.
                self.nbytes += batch.nbytes + most_items(batch)
                self.nbytes += self._row_bytes * batch.num_rows

    def edge_keys(self) -> list[pa.RecordBatch]:
        """Keys of the first row at hand, and of the last."""
        first, last = self._held[0], self._held[-1]
        edges = [first.slice(0, 1), last.slice(last.num_rows - 1)]
        return [edge.select(self._names) for edge in edges]

    def key_columns(self) -> list[pa.RecordBatch]:
        """Key columns of the rows at hand."""
        return [batch.select(self._names) for batch in self._held]

    def give_out(self, num_rows: int) -> list[pa.RecordBatch]:
        """Give out the first rows at hand."""
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
        """Give out everything: a run that is left alone needs no merging."""
        while self._held:
            yield self._held.pop(0)
        yield from (batch for batch in self._batches if batch.num_rows)


def _round(heads: list[_Head], sort_by: SortBy) -> Iterator[pa.RecordBatch]:
    """Take all rows that no later row can come before, in order, in pieces."""
    edges = _order([edge for head in heads for edge in head.edge_keys()], sort_by)
    place = np.empty(len(edges), np.int64)
    place[edges] = np.arange(len(edges))
    # What has ended holds nobody up. When all have, the last of all rows is the limit.
    open_heads = [i for i, head in enumerate(heads) if not head.has_ended]
    limit = (
        min(open_heads, key=lambda i: place[2 * i + 1])
        if open_heads
        else max(range(len(heads)), key=lambda i: place[2 * i + 1])
    )
    part = [i for i in range(len(heads)) if place[2 * i] <= place[2 * limit + 1]]
    sizes = np.array([heads[i].num_rows for i in part])
    ends = np.cumsum(sizes)
    order = _order([keys for i in part for keys in heads[i].key_columns()], sort_by)
    # The permutation is stable, so what stands up to the limit's last row is what comes before it
    # by key, then run, then place: of each run its first rows.
    last_row = int(ends[part.index(limit)]) - 1
    order = order[: int(np.flatnonzero(order == last_row)[0]) + 1]
    run = np.searchsorted(ends, order, side="right")
    num_bytes = sum(heads[i].nbytes for i in part) * len(order) // int(ends[-1])
    num_pieces = min(num_bytes // PIECE_BYTES + 1, len(order))
    done = ends - sizes
    for rows, run_of in zip(
        np.array_split(order, num_pieces), np.array_split(run, num_pieces), strict=True
    ):
        # Each run is in order, so what a piece takes of it are its next rows.
        taken = np.bincount(run_of, minlength=len(part))
        batches = [
            batch
            for i, num_rows in zip(part, taken.tolist(), strict=True)
            for batch in heads[i].give_out(num_rows)
        ]
        if len(batches) == 1:
            yield batches.pop()
        else:
            joined = pa.concat_batches(batches)
            batches.clear()
            yield take(joined, to_arrow(rows - (done - (np.cumsum(taken) - taken))[run_of]))
        done = done + taken


def _order(batches: list[pa.RecordBatch], sort_by: SortBy) -> NDArray[np.uint32]:
    """Permutation that sorts the rows of all batches by their keys, stably."""
    keys = joined(batches)
    codes = key_codes([keys[name] for name, _ in sort_by], [order for _, order in sort_by])
    return sort_permutation(codes)
