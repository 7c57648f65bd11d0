"""One write of a shuffle: the job and its map tasks, for Spark and for one process.

``begin_job`` on the driver, ``run_map_task`` for every map task; then ``commit.commit_job`` or
``cleanup.abort_job`` on the driver. Readers see nothing before the commit, and everything after.
"""

from __future__ import annotations

import json
import socket
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from arrow_format.arrays.column_ids import NO_COLUMNS, Columns
from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.stored_types import data_schema, normalise
from arrow_format.concurrency import run_concurrently
from arrow_format.errors import OptionError, SchemaError, StorageError
from arrow_format.filters.spark_rules import char_lengths, collations
from arrow_format.format.statistics import chosen_columns
from arrow_format.ingest.row_kinds import check_row_kind, split_changes
from arrow_format.jobs.job_files import all_digits, digits_of, job_directory
from arrow_format.keys.combination import as_combined, check_combine, combined_schema
from arrow_format.keys.partitioner import (
    HashPartitioner,
    Partitioner,
    as_described,
    can_be_asked,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.keys.row_identity import check_sequence, check_unique, names_of
from arrow_format.keys.sort_keys import SortBy, check_sort_by
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.identity import claim_roots
from arrow_format.log.reader import LogView
from arrow_format.model import (
    BROADCAST,
    MAX_INTEGER,
    MapOutput,
    MapStatus,
    PartitionedFileMetadata,
)
from arrow_format.options import WriteOptions, check_integer, check_num_subpartitions, check_type
from arrow_format.process_identity import ProcessIdentity, this_process
from arrow_format.read.rows import Rows
from arrow_format.storage.credentials import check_end
from arrow_format.storage.local_dirs import (
    check_local_dirs,
    find_roots,
    make_roots,
    root_path,
)
from arrow_format.storage.open import Place, Storage, open_storage
from arrow_format.storage.protocol import SHARED_PATH, ObjectNotFoundError
from arrow_format.storage.root_owner import LocalRoot, Marker, list_roots
from arrow_format.write.combining import Combiner
from arrow_format.write.result_partition import SortMergeResultPartition, workers_of
from arrow_format.write.tombstones import FIRST_MAP_TASK, TombstoneWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from arrow_format.concurrency import Workers
    from arrow_format.keys.partitioner import Assign
    from arrow_format.log.state import VersionShape
    from arrow_format.storage.open import ObjectStat

T = TypeVar("T")


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
    """Newest version when the job began: it can only be committed after that."""
    known: Columns = NO_COLUMNS
    """Columns of the newest version when the job began: what it calls them are these."""
    sort_by: SortBy = ()
    """Pairs of column and order by which the rows of each subpartition are sorted."""
    combine: Mapping[str, str] = field(default_factory=dict)
    """Functions of the columns that rows of equal keys are combined by; empty for none."""
    unique: tuple[str, ...] = ()
    """Columns that identify a row; empty where nothing does, and where what is there says it."""
    sequence_by: str | None = None
    """The column whose largest value is the newest change of a row; None where nothing says it."""
    row_kind: str | None = None
    """The column of the rows given to map tasks that says what a change does; None: all add."""
    source_schema: pa.Schema | None = None
    """Columns of the rows that map tasks are given; None: those of :attr:`data_schema`."""
    statistics: tuple[str, ...] = ()
    """Columns whose files and chunks have statistics."""
    unlogged: tuple[str, ...] = ()
    """Columns of which the log has no bounds: a row deleted by its key leaves none there."""
    owners: tuple[ProcessIdentity, ...] = ()
    """The applications whose result it is, and with which it is released."""
    view: LogView = field(default=LogView(), compare=False, repr=False)
    """The log when the job began; an empty one in other processes, which read it again."""
    num_map_tasks: int | None = None
    """How many map tasks it has; None where that is not known."""
    has_directory: bool = False
    """Whether the driver made :attr:`directory` before any task. Then a task that does not find it
    fails, because the job was aborted; if it made it again, its files would never be removed."""

    @property
    def tombstone_columns(self) -> tuple[str, ...]:
        """Columns of its tombstones: what identifies a row, and last the sequence of changes."""
        return () if self.sequence_by is None else (*self.unique, self.sequence_by)

    @property
    def directory(self) -> str:
        """Directory of the job's map outputs, relative to the shuffle."""
        return job_directory(self.job_id)

    def directory_of(self, map_task: int) -> str:
        """Return the directory of a map output, which in a store may be another one."""
        is_store = not self.storage.has_directories
        return job_directory(self.job_id, digits_of(self.job_id, map_task) if is_store else "")

    def directories(self) -> list[str]:
        """Return all directories that map outputs may be in, as far as their number is known."""
        digits = [""] if self.storage.has_directories else all_digits(self.num_map_tasks)
        return [job_directory(self.job_id, each) for each in digits]

    def look_into(self, look: Callable[[str], T]) -> Iterator[tuple[str, T]]:
        """Yield each directory of map outputs, and what ``look`` says of it."""
        directories = self.directories()
        calls = [partial(look, directory) for directory in directories]
        answers = run_concurrently(calls, self.storage.max_requests)
        return zip(directories, answers, strict=True)

    def files(self) -> dict[str, ObjectStat]:
        """Return its files in the shuffle, with their status."""
        found = self.look_into(self.storage.files)
        return {path: stat for _, files in found for path, stat in files.items()}

    def path_in(self, map_task: int, name: str, root: str) -> str:
        """Return the path of a file of the job in a local root, or in the shuffle if it is ""."""
        return name if root else f"{self.directory_of(map_task)}/{name}"

    @property
    def local_roots(self) -> tuple[str, ...]:
        """Directories besides the shuffle's own that this job's files are spread over."""
        return tuple(root_path(path, self.job_id) for path in self.options.local_dirs)

    @property
    def described_partitioner(self) -> dict[str, Any]:
        """The partitioner as the log gives it back: JSON knows no tuples."""
        return dict(json.loads(json.dumps(self.partitioner.describe())))

    def make_directories(self) -> None:
        """Make the directories of this job's map outputs; local ones only where that is possible.

        Raises StorageError if the shuffle's own cannot be made, a local one is another job's, or
        it is not settled whether the shuffle was moved or copied; and of a store that may not be
        put to, or on which commits are not safe.
        """
        self.storage.make_directory(self.directory, sync=self.options.sync)
        self.storage.check_puts()
        if self.local_roots:
            roots, marker = self._to_be_made()
            make_roots(self.storage, self.directory, roots, marker, sync=self.options.sync)

    def _to_be_made(self) -> tuple[list[LocalRoot], Marker]:
        """Return the local roots to make, and what each is to bear.

        Raises StorageError where the shuffle was moved or copied, and no relocation said which.
        """
        owner = claim_roots(self.storage, sync=self.options.sync)
        return list_roots(self.local_roots, sync=self.options.sync), Marker(self.job_id, owner)

    def metadata(self, map_task: int, attempt: int) -> PartitionedFileMetadata:
        """Return what the index of a file of this job says."""
        return PartitionedFileMetadata(
            shuffle_id=self.shuffle_id,
            job_id=self.job_id,
            map_task=map_task,
            attempt=attempt,
            data_schema=self.data_schema,
            num_subpartitions=self.num_subpartitions,
            partitioner=self.partitioner.describe(),
            sort_by=self.sort_by,
            statistics=self.statistics,
        )

    def open_local_roots(self) -> list[Storage | None]:
        """Return the storages of the local roots; None for one that takes no files.

        Raises StorageError if one is another job's.
        """
        if self.has_directory or not self.local_roots:
            roots = find_roots(self.local_roots, self.job_id)
        else:
            listed, marker = self._to_be_made()
            roots = make_roots(self.storage, self.directory, listed, marker, sync=self.options.sync)
        return [None if root is None else root.without_new_directories() for root in roots]


def begin_job(
    path: Place,
    schema: pa.Schema,
    *,
    num_subpartitions: int,
    partitioner: Partitioner,
    sort_by: Sequence[Any] | str | None = (),
    combine: Mapping[str, str] | None = None,
    unique: str | Sequence[str] | None = None,
    sequence_by: str | None = None,
    row_kind: str | None = None,
    options: WriteOptions | None = None,
    spark_schema: str | None = None,
    owner: ProcessIdentity | None = None,
    view: LogView | None = None,
) -> ShuffleJob:
    """Check everything that can be checked before any row is read, and return a new job.

    The parameters are those of :func:`~arrow_format.write_shuffle`. ``schema`` is that of the
    batches to come; what is stored is its :func:`~arrow_format.arrays.stored_types.data_schema`,
    with ``combine`` that of combined rows.
    ``spark_schema`` is Spark's JSON of it, for reading through Spark. ``owner`` is the application
    that makes the result; this process when None. ``view`` is the log as the caller saw it; it is
    read, by :func:`log_before_write`, when None.
    ``row_kind`` is a column of ``schema`` that is not stored, and not in ``spark_schema``.
    """
    num_subpartitions = check_num_subpartitions(num_subpartitions)
    options = WriteOptions() if options is None else options
    check_type("options", options, WriteOptions)
    partitioner = as_described(partitioner)
    given = data_schema(schema)
    storage = open_storage(path)
    view = log_before_write(storage) if view is None else view
    rows, there = given, view.state.shape
    if row_kind is not None:
        if there is not None:
            unique = unique or there.unique_names
            sequence_by = sequence_by or there.sequence_name
        rows = _rows_of_changes(given, row_kind, names_of(unique), sequence_by, there)
    combine = check_combine(rows, combine, partitioner, evolves=options.schema_evolution)
    stored = combined_schema(rows, combine)
    partitioner.check(stored)
    if isinstance(partitioner, RangePartitioner):
        partitioner = partitioner.fitted(stored, num_subpartitions)
    sort_by = check_sort_by(stored, sort_by)
    range_keys = partitioner.keys if isinstance(partitioner, RangePartitioner) else ()
    keys = [name for name, _ in (*sort_by, *range_keys)]
    statistics = chosen_columns(options.statistics, stored, keys)
    unique = check_unique(stored, unique, partitioner, combine, char_lengths(spark_schema))
    check_local_dirs(storage.root, options.local_dirs)
    return ShuffleJob(
        storage=storage,
        job_id=uuid.uuid4().hex,
        shuffle_id=uuid.uuid4().hex,
        data_schema=stored,
        spark_schema=spark_schema,
        num_subpartitions=num_subpartitions,
        partitioner=partitioner,
        sort_by=sort_by,
        combine=combine,
        unique=unique,
        sequence_by=check_sequence(
            stored,
            sequence_by,
            unique or (() if there is None else there.unique_names),
            collations(
                spark_schema or (None if there is None else there.spark_schema),
                [sequence_by] if isinstance(sequence_by, str) else (),
            ),
        ),
        row_kind=row_kind,
        source_schema=given if combine or row_kind else None,
        statistics=statistics,
        unlogged=only_hashed(partitioner, sort_by) if options.statistics is None else (),
        options=options,
        makes_root=view.last is None and storage.stat("") is None,
        base_version=view.newest,
        known=NO_COLUMNS if there is None else there.columns,
        view=view,
        owners=(owner or this_process(),),
    )


def _rows_of_changes(
    given: pa.Schema,
    row_kind: str,
    unique: Sequence[str],
    sequence_by: str | None,
    there: VersionShape | None,
) -> pa.Schema:
    """Return the columns of the rows that changes in any order leave; raises as `begin_job`."""
    if not unique:
        msg = f"row_kind={row_kind!r}: nothing identifies a row, so no change is one of it"
        raise OptionError(msg)
    if sequence_by is None:
        msg = (
            f"row_kind={row_kind!r}: no column says which change of a row is newest: give "
            "sequence_by=. Changes that come in their order are for "
            "open_shuffle(path).upsert(changes, row_kind=...), in this process"
        )
        raise OptionError(msg)
    if there is not None and row_kind in there.data_schema.names:
        msg = (
            f"row_kind={row_kind!r}: the shuffle has such a column, of which the rows would have "
            "no value; rename it in the changes"
        )
        raise OptionError(msg)
    check_row_kind(given, row_kind, (*unique, sequence_by))
    return given.remove(given.get_field_index(row_kind))


def log_before_write(storage: Storage) -> LogView:
    """Return the log as a write finds it.

    Raises StorageError where credentials have ended, and FormatVersionError where only a newer
    release may write.
    """
    check_end(storage.root, storage.options)
    log = CommitLog(storage)
    view = log.view()
    log.check_writers(view)
    return view


def only_hashed(partitioner: object, sort_by: SortBy) -> tuple[str, ...]:
    """Return the keys of a partitioner that only say by their hash where a row is."""
    if not isinstance(partitioner, HashPartitioner):
        return ()
    sorted_by = [name for name, _ in sort_by]
    return tuple(name for name in partitioner.keys if name not in sorted_by)


def run_map_task(
    job: ShuffleJob,
    map_task: int,
    attempt: int,
    batches: Iterable[pa.RecordBatch | Rows],
    *,
    reads_ahead: bool = False,
) -> MapStatus:
    """Write the rows of one attempt of a map task, and return its status for :func:`commit_job`.

    Attempts of a task never share a file. Rows are converted to the data schema; the partitioner
    places them, unless they come with their subpartitions. With ``reads_ahead`` any thread of the
    write takes the next batches, none of which have subpartitions; otherwise only the calling one.
    On an exception nothing of this attempt is left, and no thread takes batches.
    """
    (status,) = run_map_tasks([job], map_task, attempt, batches, reads_ahead=reads_ahead)
    return status


def run_map_tasks(
    jobs: Sequence[ShuffleJob],
    map_task: int,
    attempt: int,
    batches: Iterable[pa.RecordBatch | Rows],
    *,
    reads_ahead: bool = False,
) -> list[MapStatus]:
    """Write the same rows to each of several jobs, in one pass, as :func:`run_map_task` to one.

    They share their threads, of which there are as many as for the job that has the most. Returns a
    status for each job, in order; on an exception nothing of this attempt is left in any.
    """
    with ExitStack() as closing:
        workers = workers_of(job.options for job in jobs)
        closing.callback(workers.close)
        outputs = [
            closing.enter_context(_open_output(job, map_task, attempt, workers)) for job in jobs
        ]
        taken = outputs[0].partition.ahead(batches) if reads_ahead else batches
        for number, batch in enumerate(taken):
            if not isinstance(batch, pa.RecordBatch | Rows):
                msg = (
                    f"item {number} of batches (from 0) is {type(batch).__name__}: expected Arrow "
                    "record batches; of a table give table.to_batches()"
                )
                raise SchemaError(msg)
            for output in outputs:
                output.write(batch)
        return [output.finish() for output in outputs]


@contextmanager
def _open_output(
    job: ShuffleJob, map_task: int, attempt: int, workers: Workers
) -> Iterator[_Output]:
    """Open what a map task writes to a job; nothing is left of it after an exception."""
    most = MAX_INTEGER if job.row_kind is None else FIRST_MAP_TASK - 1
    map_task = check_integer("map_task", map_task, 0, most, "a map task")
    attempt = check_integer("attempt", attempt, 0, MAX_INTEGER, "an attempt")
    metadata = job.metadata(map_task, attempt)
    assign = job.partitioner.bind(job.data_schema, job.num_subpartitions, map_task)
    storage = job.storage
    if job.has_directory:
        storage = storage.without_new_directories()
    combiner = Combiner(job.data_schema, job.combine, assign) if job.combine else None
    with (
        _where_the_directory_is_seen(job),
        SortMergeResultPartition(
            storage,
            job.directory_of(map_task),
            metadata,
            job.options,
            job.open_local_roots(),
            combiner,
            workers,
        ) as partition,
        TombstoneWriter(
            storage, job.directory_of(map_task), metadata, job.partitioner, job.options
        ) as tombstones,
    ):
        yield _Output(job, assign, partition, tombstones)


@dataclass(frozen=True, slots=True)
class _Output:
    """Where a map task writes the rows of a job."""

    job: ShuffleJob
    assign: Assign
    partition: SortMergeResultPartition
    tombstones: TombstoneWriter

    def write(self, batch: pa.RecordBatch | Rows) -> None:
        """Write rows, which stay as they are: others may write them too."""
        job, partition = self.job, self.partition
        source_schema = job.data_schema if job.source_schema is None else job.source_schema
        if isinstance(batch, Rows) and job.row_kind is not None:
            batch = batch.batch  # each is placed again, as its deletions are
        if isinstance(batch, Rows):
            rows = normalise(batch.batch, source_schema)
            if not job.combine:
                partition.emit(rows, batch.subpartitions)
            else:
                for cast in as_combined(rows, job.data_schema):
                    partition.combine(cast)
            return
        for rows in stored_batches(batch, source_schema):
            if job.row_kind is not None:
                rows, gone = split_changes(rows, job.row_kind, job.tombstone_columns)
                self.tombstones.add(gone)
            if job.combine:
                for cast in as_combined(rows, job.data_schema):
                    partition.combine(cast)
                continue
            with partition.counters.time("partition"):
                ids = np.asarray(self.assign(rows))
                _check_assignment(job, ids, rows.num_rows)
            partition.emit(rows, ids)

    def finish(self) -> MapStatus:
        """Finish the files, and return their status."""
        status = replace(self.partition.finish(), tombstones=self.tombstones.finish())
        # Subpartitions that rows came with are those that such a partitioner gave them.
        return _marked(status) if can_be_asked(self.job.partitioner) else status


def _marked(status: MapStatus) -> MapStatus:
    """Return a status whose files say that each row is where the partitioner places it."""

    def marked(output: MapOutput) -> MapOutput:
        return replace(output, files=tuple(replace(file, placed=True) for file in output.files))

    tombstones = status.tombstones and marked(status.tombstones)
    return replace(status, output=marked(status.output), tombstones=tombstones)


@contextmanager
def _where_the_directory_is_seen(job: ShuffleJob) -> Iterator[None]:
    """Say of a host that does not see the directory of a job that this is what is wrong."""
    try:
        yield
    except StorageError as error:
        if not isinstance(error.__cause__, ObjectNotFoundError):
            raise
        # An object store has no directories, and every host sees the same.
        root = job.storage.root
        if not job.has_directory or "://" in root or job.storage.stat(job.directory) is not None:
            raise
        msg = (
            f"{root}/{job.directory}: the driver made this directory for the job, and it is not "
            f"there on {socket.gethostname()}. {SHARED_PATH}. Or the job was given up meanwhile, "
            "which removes it"
        )
        raise StorageError(msg) from error


def _check_assignment(job: ShuffleJob, ids: npt.NDArray[Any], num_rows: int) -> None:
    """Refuse what a user's own partitioner may answer: rows would be lost or unreadable."""
    sound = ids.shape == (num_rows,) and ids.dtype.kind in "iu"
    if sound and (num_rows == 0 or (ids.min() >= BROADCAST and ids.max() < job.num_subpartitions)):
        return
    found = f", from {ids.min(initial=0)} to {ids.max(initial=0)}" if ids.dtype.kind in "iu" else ""
    msg = (
        f"partitioner {job.partitioner!r} gave {ids.dtype} values of shape {ids.shape} for "
        f"{num_rows} rows{found}; expected one whole "
        f"number per row, from 0 to {job.num_subpartitions - 1}, or {BROADCAST} for all of them"
    )
    raise OptionError(msg)
