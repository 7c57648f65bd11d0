"""What readers for other libraries need of a shuffle, what their tasks read, and their filters.

Apart from the shuffle, which offers these readers itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from arrow_format.errors import ShuffleError
from arrow_format.filters.expression import all_of
from arrow_format.filters.spark_rules import SPARK_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    import pyarrow.compute as pc

    from arrow_format.arrays.batch_stream import BatchReader
    from arrow_format.filters.expression import Expression
    from arrow_format.filters.row_filter import RowFilter
    from arrow_format.filters.spark_rules import SparkSettings
    from arrow_format.keys.partitioner import Partitioner

TASK_BYTES = 64 << 20
"""Bytes in Arrow that a task reads by default, about."""


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """Subpartitions that one task reads, in their order."""

    ranges: tuple[tuple[int, int], ...]
    """Ranges ``[first, end)`` of subpartitions, ascending; none for a task that reads nothing."""
    num_rows: int
    """Rows of these subpartitions; with a filter, those before it."""
    num_bytes: int
    """Estimated bytes of these rows in Arrow, of the columns that are read."""

    @property
    def subpartitions(self) -> list[int]:
        """The subpartitions, ascending."""
        return list(chain.from_iterable(range(*bounds) for bounds in self.ranges))


class Readable(Protocol):
    """Rows that can be read in part: see :class:`~arrow_format.read.shuffle.Shuffle`."""

    def schema_of(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Return the schema of these columns."""

    def count_rows(self) -> int:
        """Return how many rows are read."""

    def bound(self, filter: Expression, settings: SparkSettings) -> RowFilter:
        """Return a condition bound to the columns; raise if it cannot be evaluated."""

    def where(self, filter: pc.Expression | RowFilter | None) -> Readable:
        """Return the rows that a filter is true for."""

    def for_tasks(self, tasks: Sequence[tuple[tuple[int, int], ...]]) -> Sequence[Readable]:
        """Return what each of several tasks is to carry that read these ranges."""

    def read(
        self,
        subpartitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        ordered: bool = True,
        with_subpartition: bool = False,
    ) -> BatchReader:
        """Read rows, by ascending subpartition or as they lie in the files."""


class Counted(Readable, Protocol):
    """Rows of a known version whose numbers are known: a shuffle."""

    @property
    def commit_id(self) -> str:
        """Unique id of the commit that made the version."""

    @property
    def num_subpartitions(self) -> int:
        """Number of subpartitions."""

    @property
    def path(self) -> str:
        """Where the shuffle is."""

    @property
    def partitioner(self) -> Partitioner | Mapping[str, Any]:
        """What placed the rows, or its description when a user defined it."""

    @property
    def subpartition_rows(self) -> pa.Int64Array:
        """Rows of each subpartition, before a filter; int64, shape ``(num_subpartitions,)``."""

    @property
    def filter(self) -> object | None:
        """The filter that all reads are restricted by; None for all rows."""

    def task_groups(
        self,
        max_bytes: int | None,
        subpartitions: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> list[TaskGroup]:
        """Return what each of several tasks reads."""


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


def restricted(rows: Readable, conditions: Iterable[Expression]) -> tuple[Readable, bool]:
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
