"""One write of a shuffle: the job, and its map tasks, as Spark and one process share them.

``begin_job`` on the driver, ``run_map_task`` for every map task; then ``commit.commit_job`` or
``commit.abort_job`` on the driver. Nothing is visible to readers before the commit,
and everything after it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from arrow_format.arrow_types import data_schema, normalise, same_but_labels
from arrow_format.commit_log import CommitLog
from arrow_format.errors import (
    OptionError,
)
from arrow_format.model import MapStatus, PartitionedFileMetadata
from arrow_format.options import WriteOptions, check_num_subpartitions
from arrow_format.partitioner import check_description
from arrow_format.result_partition import SortMergeResultPartition
from arrow_format.storage import Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from arrow_format.partitioner import Partitioner

MAP_OUTPUT_DIRECTORY = "map_outputs"

EXPANDED_ROWS = 4096
"""Rows that are normalised together where that may multiply their bytes."""


@dataclass(frozen=True, slots=True)
class ShuffleJob:
    """Everything a map task and the commit must agree on; travels to the tasks by pickle."""

    storage: Storage
    job_id: str
    shuffle_id: str
    data_schema: pa.Schema
    spark_schema: str | None
    num_subpartitions: int
    partitioner: Partitioner
    options: WriteOptions
    makes_root: bool
    """Whether there was nothing at the path when the job began."""
    base_version: int
    """Newest version when the job began: where it was committed, it was committed after that."""
    has_directory: bool = False
    """Whether the driver made :attr:`directory` before any task. Then a task that finds it gone
    fails, because the job was aborted, where making it anew would leave files for ever."""

    @property
    def directory(self) -> str:
        """Directory of the job's map outputs, relative to the shuffle."""
        return f"{MAP_OUTPUT_DIRECTORY}/{self.job_id}"


def begin_job(
    path: str,
    schema: pa.Schema,
    *,
    num_subpartitions: int,
    partitioner: Partitioner,
    options: WriteOptions | None = None,
    spark_schema: str | None = None,
) -> ShuffleJob:
    """Check what can be checked before any row moves, and name the job.

    Parameters
    ----------
    path
        Directory or URI of the shuffle.
    schema
        Schema of the batches to come; what is stored is its
        :func:`~arrow_format.arrow_types.data_schema`.
    num_subpartitions
        1 to 1,000,000.
    partitioner
        Decides the subpartition of each row.
    options
        How to write; defaults when None.
    spark_schema
        Spark's JSON of the schema, kept for reading back through Spark.

    Raises
    ------
    OptionError, SchemaError
        Something does not fit; the message names it.
    """
    num_subpartitions = check_num_subpartitions(num_subpartitions)
    if options is not None and not isinstance(options, WriteOptions):
        msg = f"options is {type(options).__name__}: expected arrow_format.WriteOptions"
        raise OptionError(msg)
    stored = data_schema(schema)
    partitioner.check(stored)
    check_description(partitioner)
    storage = open_storage(path)
    return ShuffleJob(
        storage=storage,
        job_id=uuid.uuid4().hex,
        shuffle_id=uuid.uuid4().hex,
        data_schema=stored,
        spark_schema=spark_schema,
        num_subpartitions=num_subpartitions,
        partitioner=partitioner,
        options=options or WriteOptions(),
        makes_root=storage.stat("") is None,
        base_version=CommitLog(storage).newest_version(),
    )


def run_map_task(
    job: ShuffleJob, map_task: int, attempt: int, batches: Iterable[pa.RecordBatch]
) -> MapStatus:
    """Write the rows of one attempt of a map task.

    Parameters
    ----------
    job
        From :func:`begin_job`.
    map_task
        Number of the task, from 0.
    attempt
        Which try this is; attempts never share a file.
    batches
        The rows. They are brought to the data schema here.

    Returns
    -------
    MapStatus
        For :func:`commit_job`. On an exception nothing of this attempt is left.
    """
    metadata = PartitionedFileMetadata(
        shuffle_id=job.shuffle_id,
        job_id=job.job_id,
        map_task=map_task,
        attempt=attempt,
        data_schema=job.data_schema,
        num_subpartitions=job.num_subpartitions,
        partitioner=job.partitioner.describe(),
    )
    assign = job.partitioner.bind(job.data_schema, job.num_subpartitions, map_task)
    storage = job.storage.without_new_directories() if job.has_directory else job.storage
    with SortMergeResultPartition(storage, job.directory, metadata, job.options) as partition:
        for batch in batches:
            for piece in _pieces(batch, job.data_schema):
                rows = normalise(piece, job.data_schema)
                ids = np.asarray(assign(rows))
                _check_assignment(job, ids, rows.num_rows)
                partition.emit(rows, ids)
        return partition.finish()


def _pieces(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Cut a batch that will grow when it is normalised, so that it grows a little at a time.

    A dictionary or a view may name the same long value in every row.
    """
    if all(map(same_but_labels, batch.schema.types, schema.types)):
        yield batch
        return
    for start in range(0, batch.num_rows, EXPANDED_ROWS):
        yield batch.slice(start, EXPANDED_ROWS)


def _check_assignment(job: ShuffleJob, ids: npt.NDArray[Any], num_rows: int) -> None:
    """Refuse what a user's own partitioner may answer: rows would be lost or unreadable."""
    sound = ids.shape == (num_rows,) and ids.dtype.kind in "iu"
    if sound and (num_rows == 0 or (ids.min() >= 0 and ids.max() < job.num_subpartitions)):
        return
    msg = (
        f"partitioner {job.partitioner!r} gave {ids.dtype} values of shape {ids.shape} for "
        f"{num_rows} rows, from {ids.min(initial=0)} to {ids.max(initial=0)}; expected one whole "
        f"number per row, from 0 to {job.num_subpartitions - 1}"
    )
    raise OptionError(msg)
