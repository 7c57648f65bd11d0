"""Shuffles as another writer may leave them: rows are not where the partitioner in the log says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.jobs.commit import commit_job
from arrow_format.jobs.job import begin_job, run_map_task
from arrow_format.jobs.target import open_target
from arrow_format.options import WriteOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.keys.partitioner import Assign, Partitioner
    from arrow_format.model import Int32Array
    from arrow_format.read.shuffle import Shuffle

    Place = Callable[[Int32Array, pa.RecordBatch], Int32Array]


@dataclass(frozen=True)
class SaysAnother:
    """Describes itself as ``described``; ``place`` changes the subpartitions that that one gives.

    No write of this project takes such a partitioner: :func:`written_by` puts it into a job.
    """

    described: Partitioner
    place: Place

    def describe(self) -> dict[str, Any]:
        return self.described.describe()

    def check(self, schema: pa.Schema) -> None:
        self.described.check(schema)

    def bind(self, schema: pa.Schema, num_subpartitions: int, map_task: int) -> Assign:
        assign = self.described.bind(schema, num_subpartitions, map_task)
        return lambda batch: np.asarray(self.place(assign(batch).astype(np.int32), batch), np.int32)


def written_by(job: ShuffleJob, place: Place) -> ShuffleJob:
    """Return a job whose tasks place rows otherwise than it says, as another writer's may."""
    return replace(job, partitioner=SaysAnother(job.partitioner, place))


def check_but_for_broadcasts(shuffle: Shuffle) -> None:
    """Verify a version of which another writer let every subpartition read some rows."""
    problems = shuffle.verify(raise_on_damage=False).problems
    assert all("is in every subpartition of" in str(problem) for problem in problems)


def append_misplaced(
    path: object,
    table: pa.Table,
    described: Partitioner,
    place: Place,
    *,
    num_subpartitions: int,
    placed: bool = False,
    options: WriteOptions | None = None,
    **how: Any,
) -> None:
    """Append a table as one map output; ``placed`` is the mark of its files, true or not."""
    options = options or WriteOptions(sync=False)
    job = begin_job(
        str(path), table.schema, num_subpartitions=num_subpartitions, partitioner=described,
        options=options, **how,
    )  # fmt: skip
    job = written_by(job, place)
    open_target(job, "append")
    status = run_map_task(job, 0, 0, table.to_batches())
    files = tuple(replace(file, placed=placed) for file in status.output.files)
    status = replace(status, output=replace(status.output, files=files))
    commit_job(job, [status], mode="append")
