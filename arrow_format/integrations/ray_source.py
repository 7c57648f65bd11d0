"""A shuffle as a data source of Ray Data, which plans how many tasks read it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from arrow_format.read.estimates import TaskGroup
    from arrow_format.read.shuffle import Shuffle

    Plan = Callable[[int], Sequence[TaskGroup]]

ALL_BYTES = 1 << 62
"""More bytes than any shuffle has."""


class ShuffleDatasource(Datasource):  # type: ignore[misc]
    """Rows of a shuffle for :func:`ray.data.read_datasource`.

    Parameters
    ----------
    rows
        What is read.
    columns
        Columns to read, all when None.
    plan
        Returns what each task reads, given the bytes in Arrow that a task should read.
    num_rows_known
        Whether the numbers of rows of the groups are those that a task delivers, from which Ray
        counts a data set without reading it.
    """

    def __init__(
        self,
        rows: Shuffle,
        columns: Sequence[str] | None,
        plan: Plan,
        *,
        num_rows_known: bool,
    ) -> None:
        super().__init__()
        self._rows, self._columns, self._plan = rows, columns, plan
        self._num_rows_known = num_rows_known

    def estimate_inmemory_data_size(self) -> int:
        """Return the estimated bytes of all rows in Arrow."""
        return sum(group.num_bytes for group in self._plan(ALL_BYTES))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, **_: object
    ) -> list[ReadTask]:
        """Return about ``parallelism`` tasks of adjacent subpartitions."""
        max_bytes = -(-self.estimate_inmemory_data_size() // max(parallelism, 1))
        groups = self._plan(max(max_bytes, 1))
        parts = self._rows.for_tasks([group.ranges for group in groups])
        return [
            self._task(part, group, per_task_row_limit)
            for part, group in zip(parts, groups, strict=True)
        ]

    def _task(self, part: Shuffle, group: TaskGroup, limit: int | None) -> ReadTask:
        num_rows = group.num_rows if self._num_rows_known else None
        read = partial(read_blocks, part, group.subpartitions, self._columns)
        return ReadTask(
            read,
            BlockMetadata(num_rows, group.num_bytes, exec_stats=None, input_files=None),
            schema=self._rows.schema_of(self._columns),
            per_task_row_limit=limit,
        )


def read_blocks(
    rows: Shuffle, subpartitions: list[int], columns: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Read blocks of a task; runs in a worker of Ray."""
    reader = rows.read(subpartitions, columns, ordered=False)
    yield reader.schema.empty_table()  # a task without a block would have no schema
    for batch in reader:
        yield pa.Table.from_batches([batch])


def ray_dataset(source: ShuffleDatasource, **options: Any) -> ray.data.Dataset:  # noqa: ANN401
    """Return the data set of a source; options are those of :func:`ray.data.read_datasource`."""
    return ray.data.read_datasource(source, **options)
