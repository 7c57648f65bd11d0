"""Results of tasks that the tasks write as a shuffle themselves, so that they stay partitioned."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.arrays.stored_types import data_schema
from arrow_format.jobs.job import begin_job, log_before_write
from arrow_format.operators.placement import Placement, plan_placement
from arrow_format.options import keeps_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.operators.task_plan import GroupResults, TaskPlan
    from arrow_format.options import WriteMode, WriteOptions
    from arrow_format.read.rows import Rows
    from arrow_format.storage.open import Storage


@dataclass(frozen=True)
class Into:
    """Where results are written as a shuffle, and how."""

    storage: Storage
    keys: str | Sequence[str] | None
    num_subpartitions: int | None
    mode: WriteMode
    options: WriteOptions | None

    def begin(
        self,
        plan: TaskPlan,
        results: GroupResults,
        schema: pa.Schema,
        begin: Callable[..., ShuffleJob] = begin_job,
    ) -> tuple[ShuffleJob, PlacedRows]:
        """Return the job that writes the results of a plan, and the rows of its map tasks.

        A map task writes the results of the group that has its number. ``schema`` is that of what
        is stored; ``begin`` begins the job, by default without types of Spark.
        """
        plan.check_stored_once()
        stored = data_schema(schema)
        placement = plan_placement(
            plan.placed_as,
            stored,
            plan.names,
            keys=self.keys,
            num_subpartitions=self.num_subpartitions,
        )
        view = log_before_write(self.storage)
        there = view.shape if keeps_rows(self.mode) else None
        job = begin(
            self.storage,
            schema,
            num_subpartitions=placement.num_subpartitions,
            partitioner=placement.partitioner,
            sort_by=() if there is None else there.sort_by,
            combine=None if there is None else there.combine,
            options=self.options,
            view=view,
        )
        return job, PlacedRows(results, placement, stored, plan.paths)


@dataclass(frozen=True)
class PlacedRows:
    """The rows that each map task writes."""

    results: GroupResults
    placement: Placement
    schema: pa.Schema
    where: str

    def __call__(self, number: int) -> Generator[pa.RecordBatch | Rows]:
        """Yield the rows of a map task."""
        with closing(self.results(number)) as results:
            yield from self.placement.rows(results, self.schema, self.where)
