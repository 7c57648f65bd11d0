"""Writes batches for Spark: map tasks on executors, commit and abort on the driver."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from arrow_format.arrays.stored_types import data_schema
from arrow_format.errors import OptionError
from arrow_format.jobs.cleanup import abort_job
from arrow_format.jobs.commit import commit_job, find_receipt
from arrow_format.jobs.job import log_before_write
from arrow_format.jobs.num_subpartitions import of_new_files
from arrow_format.jobs.target import inherit_bounds, open_target
from arrow_format.keys.bounds import WHAT, bounds_of_rows
from arrow_format.keys.partitioner import partitioner_from_description
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.sort_keys import key_fields
from arrow_format.storage.open import open_storage
from connector.map_status import status_to_row, statuses_from_rows
from connector.map_task import begin_spark_job, run_spark_task
from connector.options.batch import parse_target_options
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.spark_types import arrow_schema_of, stored_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.keys.partitioner import Partitioner
    from arrow_format.log.state import VersionShape
    from connector.options.batch import TargetOptions


@dataclass
class MapStatusMessage(WriterCommitMessage):
    """Map status of one task, as a row of the status schema."""

    row: dict[str, Any]


class ShuffleSourceWriter(ChecksOnArrival, DataSourceArrowWriter):
    """Writes one job through ``df.write.format("arrow_shuffle")`` or SQL ``INSERT``.

    Spark pickles this object at planning; tasks, commit and abort each run with a copy of it.
    Options and columns are checked here, before any task runs. ``overwrite`` is False for append.
    A transaction that was committed before is not written: its tasks pass over their rows.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        target = parse_target_options(options)
        self._mode = target.mode(overwrite=overwrite)
        self._expected_version = target.expected_version
        self._transaction = target.transaction
        self._job = begin_target_job(target, schema, overwrite=overwrite)
        self._is_repetition = find_receipt(self._job.storage, self._transaction) is not None
        if not self._is_repetition:
            open_target(self._job, self._mode, expected_version=self._expected_version)
            self._job = replace(self._job, has_directory=True)

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> MapStatusMessage:
        """Write one Spark partition; runs in the task."""
        if self._is_repetition:
            for _ in iterator:  # which Spark expects to be read
                pass
            return MapStatusMessage({})
        return MapStatusMessage(status_to_row(run_spark_task(self._job, iterator)))

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the map outputs; runs on the driver's machine."""
        if self._is_repetition:
            return
        rows = (message.row for message in messages if isinstance(message, MapStatusMessage))
        commit_job(
            self._job,
            statuses_from_rows(rows),
            mode=self._mode,
            expected_map_outputs=len(messages),
            expected_version=self._expected_version,
            transaction=self._transaction,
        )

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete the map outputs; runs on the driver's machine."""
        if not self._is_repetition:
            abort_job(replace(self._job, num_map_tasks=len(messages)))


def begin_target_job(target: TargetOptions, schema: StructType, *, overwrite: bool) -> ShuffleJob:
    """Begin a job with the options of a write; defaults are those of the existing shuffle."""
    schema = stored_schema(schema)
    n, partitioner, sort_by = target.num_subpartitions, target.partitioner, target.sort_by
    combine, unique, sequence_by = target.combine, target.unique, target.sequence_by
    storage = open_storage(target.path, target.storage_options)
    view = log_before_write(storage)
    newest = view.shape
    if newest is not None:
        n = newest.new_subpartitions if n is None else n
        n = of_new_files(n, None if overwrite else newest)
        if sort_by is None and (not overwrite or partitioner is None):
            sort_by = newest.sort_by
        if combine is None and (not overwrite or partitioner is None):
            combine = newest.combine
        if unique is None and partitioner is None:
            unique = newest.unique_names
            if overwrite:  # others keep what is there
                sequence_by = sequence_by or newest.sequence_name
        partitioner = partitioner or partitioner_from_description(newest.partitioner)
    if n is None or partitioner is None:
        missing = "numSubpartitions" if n is None else "keys or partitioner"
        msg = (
            f"option {missing} is missing; a new shuffle needs numSubpartitions, and keys "
            "(column names to hash) or partitioner"
        )
        raise OptionError(msg)
    return begin_spark_job(
        storage,
        schema,
        num_subpartitions=n,
        partitioner=_with_bounds(partitioner, target, schema, newest),
        sort_by=sort_by or (),
        combine=combine,
        unique=unique,
        sequence_by=sequence_by,
        row_kind=target.row_kind,
        options=target.options,
        view=view,
    )


def _with_bounds(
    partitioner: Partitioner, target: TargetOptions, schema: StructType, newest: VersionShape | None
) -> Partitioner:
    """Give a range partitioner the bounds of the option, or of the existing shuffle.

    A data source cannot sample: it sees no row before its tasks run.
    """
    if not isinstance(partitioner, RangePartitioner):
        if target.range_bounds is not None:
            msg = f"option rangeBounds: {target.path} is not partitioned by range; leave it out"
            raise OptionError(msg)
        return partitioner
    if target.range_bounds is not None:
        fields = key_fields(data_schema(arrow_schema_of(schema)), partitioner.keys, WHAT)
        bounds = bounds_of_rows(target.range_bounds, fields)
        return RangePartitioner(keys=partitioner.keys, bounds=bounds)
    settled = inherit_bounds(partitioner, newest)
    if isinstance(settled, RangePartitioner) and settled.bounds is None:
        msg = (
            "option partitioner=range needs bounds, and no shuffle with ranges of these keys "
            f"exists at {target.path} to take them from: give option rangeBounds, such as "
            "[[10],[20]], or use arrow_shuffle.write_shuffle(df, path, "
            "partitioner=RangePartitioner(...)), which samples the DataFrame"
        )
        raise OptionError(msg)
    return settled
