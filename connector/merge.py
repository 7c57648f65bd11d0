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


def merge_shuffle(
    spark: SparkSession,
    path: Place,
    *,
    by: MergeBy = "subpartition",
    policy: MergePolicy | None = None,
    options: WriteOptions | None = None,
    expected_version: int | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> MergeReport:
    """Merge map outputs of the newest version in tasks of Spark, into a new version of its rows.

    Each task writes one file and reads it back. The driver compares the rows of every subpartition
    with those of the inputs, and commits all files together. Rows, subpartitions and order of rows
    are kept; earlier versions stay readable.

    A job that fails, or whose driver is killed, changes nothing: what it wrote is removed, by
    garbage collection if the driver cannot. The next job begins from the start. Spark repeats
    single tasks that fail, and files of an earlier job would fit the next one only if no writer
    had committed between them.

    Parameters
    ----------
    spark
        Session, classic or Connect.
    path
        Directory or URI of the shuffle, as the tasks and this process see it.
    by
        ``subpartition``: each task reads a range of subpartitions from all map outputs and writes
        it as one region. A reader of one subpartition then reads one range of one file.
        ``map_output``: each task makes one file of adjacent map outputs, copied or joined.
    policy
        What is worth it; the default policy when None.
    options
        As for :func:`arrow_format.merge_shuffle`: memory of a task, chunk size, level, sync, local
        directories.
    expected_version
        Merge only if no rows were added or taken away after that version; None: do not ask.
    storage_options
        Of an object store: credentials, region, endpoint, as obstore names them. They win over the
        environment, travel to the tasks, and are never shown.

    Returns
    -------
    MergeReport
        What was done; nothing when no merge was worth it, and then no job runs.

    Raises
    ------
    ShuffleError
        As :func:`arrow_format.merge_shuffle`; nothing was changed.
    PythonException
        A task failed as often as Spark repeats it; nothing was changed.
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
        self.job = job
        self.work = work

    def write(self, number: int, attempt: int) -> MapStatus:
        """Write the map output of a number."""
        return self.work.write(self.job, number, attempt)
