"""A merge as a job of Spark: its tasks write the new files, this process plans and commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.extras import require
from arrow_format.jobs.map_outputs import check_files
from arrow_format.jobs.merge import merge_with
from connector.map_status import statuses_from_rows
from connector.map_task import NumberedMapTask, run_task

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.merge import MergeReport
    from arrow_format.jobs.merge_work import MergeWork
    from arrow_format.model import MapStatus
    from arrow_format.options import MergeBy, WriteOptions
    from arrow_format.storage.open import Place
    from arrow_format.write.merge_policy import MergePolicy


def merge_in_spark(
    spark: SparkSession,
    path: Place,
    *,
    by: MergeBy,
    policy: MergePolicy | None = None,
    options: WriteOptions | None = None,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> MergeReport:
    """Merge map outputs of the newest version in tasks of Spark.

    Each task writes one file and reads it back. A job that fails, or whose driver is killed,
    changes nothing: what it wrote is removed, by garbage collection if the driver cannot. The next
    job begins from the start. Spark repeats single tasks that fail, and files of an earlier job
    would fit the next one only if no writer had committed between them.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.merge`.
    """
    require("pandas", "df.mapInArrow of PySpark")

    def run(job: ShuffleJob, work: MergeWork) -> Iterator[MapStatus]:
        task = MergeTask(job, work)
        numbers = spark.range(0, work.num_tasks, 1, work.num_tasks)
        rows = run_task(numbers, task, f"merge {job.storage.root} by {by}")
        outputs = []
        for status in statuses_from_rows(rows):
            outputs.append(status.output)
            yield status
        advice = "it was removed or changed before the commit. Merge again"
        check_files(job.storage, outputs, advice, job.files())

    return merge_with(
        run,
        path,
        by=by,
        policy=policy,
        options=options,
        expected_version=expected_version,
        storage_options=storage_options,
    )


class MergeTask(NumberedMapTask):
    """Callable for ``mapInArrow`` on a DataFrame of task numbers: tasks of a merge."""

    def __init__(self, job: ShuffleJob, work: MergeWork) -> None:
        self.jobs = (job,)
        self.work = work

    def write(self, number: int, attempt: int) -> list[MapStatus]:
        """Write the map output of a number."""
        return [self.work.write(self.jobs[0], number, attempt)]
