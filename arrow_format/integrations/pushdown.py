"""What readers for other libraries share: the size of tasks and batches, and their filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError
from arrow_format.filters.expression import all_of
from arrow_format.filters.spark_rules import SPARK_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from arrow_format.filters.expression import Expression
    from arrow_format.read.shuffle import Shuffle

TASK_BYTES = 64 << 20
"""Bytes in Arrow that a task reads by default, about."""


FIRST_ROWS = 1 << 10
"""Rows of each of the first batches."""

_FIRST_BATCHES = 64


def small_at_first(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, the first ones in batches of :data:`FIRST_ROWS`.

    Polars and PyArrow's scanner ask for several batches ahead of the one that they are at work on.
    A consumer of ten rows would make them read several times what the first batch needs.
    """
    left = _FIRST_BATCHES
    for batch in batches:
        start = 0
        while left and batch.num_rows - start > FIRST_ROWS:
            yield batch.slice(start, FIRST_ROWS)
            start += FIRST_ROWS
            left -= 1
        yield batch.slice(start) if start else batch


def restricted(rows: Shuffle, conditions: Iterable[Expression]) -> tuple[Shuffle, bool]:
    """Return the rows that match those conditions that can be evaluated, and whether all can be."""
    accepted = []
    all_accepted = True
    for condition in conditions:
        try:
            rows.bound(condition, SPARK_DEFAULTS)
        except ShuffleError:
            all_accepted = False
        else:
            accepted.append(condition)
    if not accepted:
        return rows, all_accepted
    return rows.where(rows.bound(all_of(accepted), SPARK_DEFAULTS)), all_accepted
