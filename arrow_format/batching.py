"""Runs of rows, put in the order of their subpartitions and joined into batches: pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from arrow_format.model import Int32Array


@dataclass(frozen=True, slots=True)
class Rows:
    """A run of rows from one chunk."""

    batch: pa.RecordBatch
    subpartitions: Int32Array
    """Subpartition of each row."""


def as_batches(
    rows: Iterable[Rows],
    schema: pa.Schema,
    *,
    with_subpartition: bool,
    min_rows: int,
    max_bytes: int,
) -> Iterator[pa.RecordBatch]:
    """Join runs of rows into batches worth handing on.

    Parameters
    ----------
    rows
        In the order wanted.
    schema
        Schema of the batches; with ``with_subpartition`` its last column is the subpartition.
    min_rows, max_bytes
        See :func:`rebatched`.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        for run in rows:
            if with_subpartition:
                columns = [*run.batch.columns, pa.array(run.subpartitions)]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
            else:
                yield run.batch

    return rebatched(batches(), min_rows=min_rows, max_bytes=max_bytes)


def rebatched(
    batches: Iterable[pa.RecordBatch], *, min_rows: int, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Join small batches, and cut large ones, in their order.

    Parameters
    ----------
    batches
        Of one schema.
    min_rows, max_bytes
        A batch is given out when it has ``min_rows`` or ``max_bytes``; the last may be smaller,
        and none is empty.
    """
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += batch.nbytes
        if held_rows >= min_rows or held_bytes >= max_bytes:
            yield from _cut(_joined(held), max_bytes)
            held = []
            held_rows = held_bytes = 0
    if held:
        yield from _cut(_joined(held), max_bytes)


def _cut(batch: pa.RecordBatch, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Cut a batch that is much larger than ``max_bytes`` into even pieces."""
    pieces = max(min(batch.nbytes // max_bytes, batch.num_rows), 1)
    rows = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def in_subpartition_order(runs: list[Rows]) -> Iterator[Rows]:
    """Yield all rows ordered by subpartition, stable; takes the list over and empties it."""
    if not runs:
        return
    ids = np.concatenate([run.subpartitions for run in runs])
    batch = _joined([run.batch for run in runs])
    runs.clear()  # nothing but the result is held while the consumer works on it
    if not bool((np.diff(ids) >= 0).all()):
        order = np.argsort(ids, kind="stable").astype(np.uint32)
        batch, ids = batch.take(pa.array(order)), ids[order]
    yield Rows(batch, ids)
