"""A shuffle as a frame of Dask: its tasks read the shuffle, and no divisions are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.dataframe as dd
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.read.estimates import TaskGroup
    from arrow_format.read.shuffle import Shuffle


def dask_frame(rows: Shuffle, groups: Sequence[TaskGroup], columns: Sequence[str] | None) -> Any:  # noqa: ANN401
    """Return a frame with a partition for each group, which is read when Dask needs it.

    Dask asks for fewer columns where a query needs fewer.
    """
    meta = _frame(rows.schema_of(columns).empty_table())
    parts = rows.for_tasks([group.ranges for group in groups])
    tasks = [group.subpartitions for group in groups]
    return dd.from_map(read_partition, tasks, parts, meta=meta, label="shuffle")


def read_partition(subpartitions: list[int], rows: Shuffle, columns: Sequence[str]) -> pd.DataFrame:
    """Read a partition; runs in a task of Dask, which always gives the columns."""
    return _frame(rows.read(subpartitions, columns, ordered=False).read_all())


def _frame(table: Any) -> pd.DataFrame:  # noqa: ANN401
    # Types of Arrow: NumPy's would depend on whether a partition has nulls.
    return table.to_pandas(types_mapper=pd.ArrowDtype)
