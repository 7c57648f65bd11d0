"""The writing half of the data source: the map task of the hook, with Spark's commit and abort."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from arrow_format.commit import abort_job, commit_job
from arrow_format.commit_log import CommitLog
from arrow_format.errors import OptionError
from arrow_format.partitioner import partitioner_from_description
from arrow_format.storage import open_storage
from arrow_format.target import open_target
from connector.map_status import status_from_row, status_to_row
from connector.map_task import begin_spark_job, run_spark_task
from connector.source_options import parse_target_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass
class MapStatusMessage(WriterCommitMessage):
    """Map status of one task, as a row of the status schema."""

    row: dict[str, Any]


class ShuffleSourceWriter(DataSourceArrowWriter):
    """Writes one job through ``df.write.format("arrow_shuffle")`` or SQL ``INSERT``.

    Spark pickles this object at planning; tasks, commit and abort each run with a copy of it.

    Parameters
    ----------
    options
        As Spark hands them over.
    schema
        Schema of the rows.
    overwrite
        Mode overwrite, else append.

    Raises
    ------
    OptionError, SchemaError, ShuffleExistsError
        Something does not fit; no task runs.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        target = parse_target_options(options)
        self._mode = "overwrite" if overwrite else "append"
        n, partitioner = target.num_subpartitions, target.partitioner
        if n is None or partitioner is None:
            there = CommitLog(open_storage(target.path)).snapshot()
            if there is not None:
                # Whoever adds to a shuffle, or replaces it, need not repeat how it is partitioned.
                n = there.newest.num_subpartitions if n is None else n
                partitioner = partitioner or partitioner_from_description(there.newest.partitioner)
        if n is None or partitioner is None:
            missing = "numSubpartitions" if n is None else "keys or partitioner"
            msg = (
                f"option {missing} is missing; a new shuffle needs numSubpartitions, and keys "
                "(column names to hash) or partitioner"
            )
            raise OptionError(msg)
        self._job = begin_spark_job(
            target.path,
            schema,
            num_subpartitions=n,
            partitioner=partitioner,
            options=target.options,
        )
        open_target(self._job, self._mode)
        self._job = replace(self._job, has_directory=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> MapStatusMessage:
        """Write one Spark partition; runs in the task."""
        return MapStatusMessage(status_to_row(run_spark_task(self._job, iterator)))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks wrote; runs on the driver's machine."""
        rows = [message.row for message in messages if isinstance(message, MapStatusMessage)]
        commit_job(
            self._job,
            [status_from_row(row) for row in rows],
            mode=self._mode,
            expected_map_outputs=len(messages),
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what the tasks wrote; runs on the driver's machine."""
        del messages
        abort_job(self._job)
