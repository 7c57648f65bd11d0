"""A write of a shuffle, and the map task by which this process writes one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypedDict, Unpack, cast

import pyarrow as pa

from arrow_format.arrays.expansion import stored_batches
from arrow_format.arrays.schema_evolution import is_appendable
from arrow_format.arrays.stored_types import data_schema
from arrow_format.arrays.types_for_spark import schema_for_spark
from arrow_format.concurrency import available_cores
from arrow_format.errors import OptionError, SchemaError
from arrow_format.ingest.row_kinds import last_changes
from arrow_format.ingest.source import StreamSource, source_of
from arrow_format.jobs.commit import find_receipt
from arrow_format.jobs.job import begin_job, log_before_write, run_map_tasks
from arrow_format.jobs.num_subpartitions import by_bytes, of_new_files, settled
from arrow_format.jobs.run import TargetJob, run_jobs
from arrow_format.jobs.target import check_target, settle_bounds
from arrow_format.keys.partitioner import (
    ColumnPartitioner,
    Partitioner,
    choose_partitioner,
    partitioner_from_description,
)
from arrow_format.keys.range_partitioner import RangePartitioner
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import no_version_error
from arrow_format.log.result import released_error
from arrow_format.model import Transaction
from arrow_format.options import (
    WriteMode,
    WriteOptions,
    check_flag,
    check_mode,
    check_write_options,
    keeps_rows,
)
from arrow_format.read.presentation import format_bytes
from arrow_format.read.shuffle import check_there
from arrow_format.storage.open import Place, Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow.dataset as ds

    from arrow_format.ingest.source import Given, Source
    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.jobs.num_subpartitions import Choice
    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.reader import LogView
    from arrow_format.model import MapStatus


class WriteArguments(TypedDict, total=False):
    """Arguments of every write, with the defaults of :meth:`Write.of`."""

    keys: str | Sequence[str] | None
    num_subpartitions: int | None
    partitioner: Partitioner | None
    sort_by: Sequence[str | tuple[str, str]] | None
    combine: Mapping[str, str] | None
    unique: str | Sequence[str] | None
    sequence_by: str | None
    row_kind: str | None
    mode: WriteMode
    options: WriteOptions | None
    expected_version: int | None
    transaction: tuple[str, int] | None
    storage_options: Mapping[str, str] | None


class AppendArguments(TypedDict, total=False):
    """Arguments of every append, with the defaults of :meth:`Write.like_newest`."""

    mode: Literal["append", "upsert"]
    sequence_by: str | None
    row_kind: str | None
    options: WriteOptions | None
    expected_version: int | None
    transaction: tuple[str, int] | None
    storage_options: Mapping[str, str] | None


class MapTasks(Protocol):
    """The map tasks of a write: where the rows come from, and who runs them."""

    @property
    def num_map_outputs(self) -> int | None:
        """How many there will be; None where only running them tells."""

    def choose(self) -> Choice:
        """Choose the number of subpartitions; raises OptionError where nothing tells it."""

    def begin(self, storage: Storage, **how: Any) -> ShuffleJob:  # noqa: ANN401
        """Begin the job; ``how`` is as :func:`~arrow_format.jobs.job.begin_job` has it."""

    def sample(self, ranges: RangePartitioner, num_subpartitions: int) -> RangePartitioner:
        """Return a range partitioner with bounds that split a sample of the rows evenly."""

    def run(self, jobs: Sequence[ShuffleJob], what: str) -> Iterable[Iterable[MapStatus]]:
        """Run all map tasks, each of which writes its rows to each job; return statuses of each.

        None is running when it returns. ``what`` it does is for users.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write that was asked for: where, how, and what is there. The log is looked at once."""

    storage: Storage
    view: LogView
    mode: WriteMode
    num_subpartitions: int | None
    """None: it is chosen."""
    partitioner: Partitioner
    sort_by: Sequence[str | tuple[str, str]] | None
    combine: Mapping[str, str] | None
    unique: str | Sequence[str] | None
    sequence_by: str | None
    row_kind: str | None
    options: WriteOptions | None
    expected_version: int | None
    transaction: Transaction | None
    gone: pa.RecordBatch | None = None
    """Keys of which an upsert leaves no row, their columns called by their ids; None for none."""

    @classmethod
    def of(
        cls,
        path: Place,
        *,
        keys: str | Sequence[str] | None = None,
        num_subpartitions: int | None = None,
        partitioner: Partitioner | None = None,
        sort_by: Sequence[str | tuple[str, str]] | None = (),
        combine: Mapping[str, str] | None = None,
        unique: str | Sequence[str] | None = None,
        sequence_by: str | None = None,
        row_kind: str | None = None,
        mode: WriteMode = "errorifexists",
        options: WriteOptions | None = None,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a write with the arguments of ``arrow_shuffle.write_shuffle``."""
        mode, once = check_mode(mode), Transaction.of(transaction)
        if row_kind is not None and mode != "upsert":
            msg = f"row_kind={row_kind!r}: only mode='upsert' takes changes, not {mode!r}"
            raise OptionError(msg)
        storage = open_storage(path, storage_options)
        partitioner = choose_partitioner(keys, partitioner)
        view = log_before_write(storage)
        return cls(
            storage=storage,
            view=view,
            mode=mode,
            num_subpartitions=num_subpartitions,
            partitioner=partitioner,
            sort_by=sort_by,
            combine=combine,
            unique=unique,
            sequence_by=sequence_by,
            row_kind=row_kind,
            options=options,
            expected_version=expected_version,
            transaction=once,
        )

    @classmethod
    def like_newest(
        cls,
        path: Place,
        *,
        mode: Literal["append", "upsert"] = "append",
        sequence_by: str | None = None,
        row_kind: str | None = None,
        options: WriteOptions | None = None,
        expected_version: int | None = None,
        transaction: tuple[str, int] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Return an append or upsert of rows that are stored like those of the newest version.

        Raises
        ------
        ShuffleNotFoundError, ResultReleasedError
            There is no shuffle to append to.
        OptionError
            A partitioner of the user's own places its rows, of which only a description is known.
        """
        once = Transaction.of(transaction)
        storage = open_storage(path, storage_options)
        view = log_before_write(storage)
        shape = view.state.shape
        if view.last is None:
            check_there(storage)
        if view.state.is_ended and view.state.released is not None:
            raise released_error(storage.root, view.state.released)
        if shape is None:
            raise no_version_error(CommitLog(storage))
        partitioner = partitioner_from_description(shape.partitioner)
        if not isinstance(partitioner, Partitioner):
            msg = (
                f"{storage.root} is partitioned by {dict(shape.partitioner)}, a partitioner of "
                "your own, of which only the description is stored: append with write_shuffle(..., "
                'mode="append", partitioner=...)'
            )
            raise OptionError(msg)
        options = check_write_options(options)
        return cls(
            storage=storage,
            view=view,
            mode=mode,
            num_subpartitions=shape.new_subpartitions,
            partitioner=partitioner,
            sort_by=shape.sort_by,
            combine=shape.combine,
            unique=shape.unique_names,
            sequence_by=sequence_by,
            row_kind=row_kind,
            options=replace(options, codec=shape.codec, schema_evolution=True),
            expected_version=expected_version,
            transaction=once,
        )

    def run(self, tasks: MapTasks) -> ShuffleReceipt:
        """Run the map tasks and commit what they wrote; raises as :func:`write_shuffle`."""
        (receipt,) = run_writes([self], tasks)
        return receipt

    @property
    def is_unbounded(self) -> bool:
        """Whether its ranges have no bounds, for which a sample may be taken."""
        ranges = self.partitioner
        return isinstance(ranges, RangePartitioner) and ranges.bounds is None

    def numbered(self, tasks: MapTasks) -> tuple[Self, Choice | None]:
        """Return it with a number of subpartitions, and how that was chosen if nothing says it."""
        n, chosen = self.num_subpartitions, None
        if n is None:
            n = settled(self.partitioner, self.view.shape)
        if n is None:
            chosen = tasks.choose()
            n = chosen.number
        n = of_new_files(n, self.view.shape if keeps_rows(self.mode) else None)
        return replace(self, num_subpartitions=n), chosen

    def begin(
        self, tasks: MapTasks, sample: Callable[[RangePartitioner, int], RangePartitioner]
    ) -> ShuffleJob:
        """Begin the job of a write whose number is known; ``sample`` gives ranges their bounds."""
        n = cast("int", self.num_subpartitions)
        partitioner = settle_bounds(
            self.partitioner, self.view.shape, self.mode, lambda ranges: sample(ranges, n)
        )
        return tasks.begin(
            self.storage,
            num_subpartitions=n,
            partitioner=partitioner,
            sort_by=self.sort_by,
            combine=self.combine,
            unique=self.unique,
            sequence_by=self.sequence_by,
            row_kind=self.row_kind,
            options=self.options,
            view=self.view,
        )


def run_writes(writes: Sequence[Write], tasks: MapTasks) -> tuple[ShuffleReceipt, ...]:
    """Write the same rows to each of several targets in one pass, and commit each in turn.

    One whose transaction was committed before is left out. Returns a receipt for each, in order.
    Raises as :func:`write_shuffle`; OptionError where two have the same path, or one is in another.
    """
    _refuse_overlapping([write.storage for write in writes])
    before = [find_receipt(write.storage, write.transaction) for write in writes]
    asked = zip(writes, before, strict=True)
    numbered = [write.numbered(tasks) for write, receipt in asked if receipt is None]
    # All is checked before a row is read, be it for a sample.
    jobs = [write.begin(tasks, _unbounded) for write, _ in numbered]
    if any(write.is_unbounded for write, _ in numbered):
        for job, (write, _) in zip(jobs, numbered, strict=True):
            check_target(
                job,
                write.mode,
                expected_version=write.expected_version,
                has_bounds=not write.is_unbounded,
            )
    targets = [
        TargetJob(
            job=write.begin(tasks, tasks.sample) if write.is_unbounded else job,
            mode=write.mode,
            expected_version=write.expected_version,
            transaction=write.transaction,
            gone=write.gone,
        )
        for job, (write, _) in zip(jobs, numbered, strict=True)
    ]
    of_job = {
        target.job.job_id: write for target, (write, _) in zip(targets, numbered, strict=True)
    }
    buffers: dict[str, int] = {}
    """Bytes of the sort buffer of each job that is written."""

    def run(jobs: Sequence[ShuffleJob]) -> Iterable[Iterable[MapStatus]]:
        jobs = [_sharing_memory(job, of_job[job.job_id], len(jobs)) for job in jobs]
        buffers.update({job.job_id: job.options.sort_buffer_bytes for job in jobs})
        named = (f"{job.storage.root} ({of_job[job.job_id].mode})" for job in jobs)
        return tasks.run(jobs, f"write {', '.join(named)}")

    done = [receipt for receipt in before if receipt is not None]
    written = run_jobs(targets, run, num_map_outputs=tasks.num_map_outputs, before=done)
    noted = []
    for receipt, target, (_, chosen) in zip(written, targets, numbered, strict=True):
        notes = [] if chosen is None else [chosen.note(receipt)]
        if len(buffers) > 1 and target.job.job_id in buffers:
            total = format_bytes(sum(buffers.values()))
            notes.append(f"sort buffers of {len(buffers)} targets take {total} together")
        noted.append(receipt.noting(*notes))
    left = iter(noted)
    return tuple(next(left) if receipt is None else receipt for receipt in before)


def _unbounded(ranges: RangePartitioner, num_subpartitions: int) -> RangePartitioner:
    """Return ranges with as few bounds as can be, for checks."""
    del num_subpartitions
    return RangePartitioner(keys=ranges.keys, bounds=[])


def _refuse_overlapping(storages: Sequence[Storage]) -> None:
    """Refuse a path that two targets have, however it is spelled, and one inside another."""
    for (a, (store, path)), (b, (other, outer)) in permutations(
        [(storage.root, storage.place) for storage in storages], 2
    ):
        if store != other or not f"{path}/".startswith(f"{outer.rstrip('/')}/"):
            continue
        if path == outer:
            msg = f"{a}: two targets have this path; give each its own"
        else:
            msg = f"{a}: is inside of {b}, the path of another target; give it one beside that"
        raise OptionError(msg)


def _sharing_memory(job: ShuffleJob, write: Write, num_jobs: int) -> ShuffleJob:
    """Return a job whose options the caller gave, or one with a share of the memory of one."""
    if write.options is not None:
        return job
    share = job.options.sort_buffer_bytes // num_jobs
    return replace(job, options=replace(job.options, sort_buffer_bytes=share))


# In this process ----------------------------------------------------------------------------------


class LocalTasks:
    """All rows of a source as one map task, which this process runs.

    With ``for_spark``, types that Spark lacks are stored as types that it reads; but not where rows
    fit the shuffle that they are appended to, or that has types that Spark lacks.
    """

    num_map_outputs = 1

    def __init__(self, source: Source, writes: Sequence[Write], *, for_spark: bool = True) -> None:
        check_flag("for_spark", for_spark)
        self._source = source
        ways = [_way_of_reading(source.schema, write, for_spark=for_spark) for write in writes]
        scans = {
            way: source.plan(for_spark=way[0], num_tasks=1, subpartition=way[1])
            for way in dict.fromkeys(ways)
        }
        (self._for_spark, _), self._scan = next(iter(scans.items()))
        for write, way in zip(writes, ways, strict=True):
            _check_same_rows(self._scan.schema, scans[way].schema, write, writes[0])

    def choose(self) -> Choice:
        """Choose the number of subpartitions by the bytes of the rows."""
        return by_bytes(self._scan.num_bytes, available_cores())

    @property
    def num_bytes(self) -> int | None:
        """Bytes of the rows in memory, about; None where only reading them tells."""
        return self._scan.num_bytes

    def begin(self, storage: Storage, **how: Any) -> ShuffleJob:  # noqa: ANN401
        """Begin the job."""
        try:
            return begin_job(storage, self._scan.schema, **how)
        except SchemaError as error:
            index = self._source.index_columns if isinstance(self._source, StreamSource) else []
            if index:
                error.add_note(
                    f"the index of the frame ({', '.join(index)}) is not written; "
                    "frame.reset_index() makes it a column"
                )
            raise

    def sample(self, ranges: RangePartitioner, num_subpartitions: int) -> RangePartitioner:
        """Give a range partitioner bounds from a sample of the source."""
        return self._source.sample(ranges, num_subpartitions, for_spark=self._for_spark)

    def run(self, jobs: Sequence[ShuffleJob], what: str) -> list[list[MapStatus]]:
        """Write all rows."""
        del what
        rows = self._scan.read(0)
        try:
            ahead = self._source.reads_ahead
            return [[status] for status in run_map_tasks(jobs, 0, 0, rows, reads_ahead=ahead)]
        finally:
            # Now, and not when Python collects garbage: it has an open file.
            if isinstance(rows, Generator):
                rows.close()


def write_shuffle(
    source: Given,
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    for_spark: bool = True,
    **how: Unpack[WriteArguments],
) -> ShuffleReceipt:
    """Write and commit a shuffle in this process, as one map output.

    Arguments, result and errors are those of ``arrow_shuffle.write_shuffle``.
    """
    write = Write.of(path, **how)
    rows = source_of(source, columns=columns, filter=filter)
    return write.run(LocalTasks(rows, [write], for_spark=for_spark))


def append_shuffle(
    source: Given,
    path: Place,
    *,
    columns: Sequence[str] | None = None,
    filter: ds.Expression | None = None,
    for_spark: bool = True,
    **how: Unpack[AppendArguments],
) -> ShuffleReceipt:
    """Append rows to a shuffle in this process: partitioned, sorted and stored as those there.

    Arguments, result and errors are those of :meth:`arrow_shuffle.Shuffle.append`.
    """
    write = Write.like_newest(path, **how)
    rows = source_of(source, columns=columns, filter=filter)
    return write.run(LocalTasks(rows, [write], for_spark=for_spark))


def net_upsert(
    write: Write, source: Source, row_kind: str, *, for_spark: bool = True
) -> tuple[Write, Source]:
    """Return the upsert that a change feed comes to, whose rows are in the order of the changes.

    All changes are in memory together. Raises SchemaError as :func:`last_changes` does.
    """
    shape = write.view.shape
    if write.mode != "upsert" or shape is None or not shape.unique:
        msg = (
            f"row_kind={row_kind!r}: only an upsert takes changes, and only where columns of "
            f"{write.storage.root} identify a row (unique=[...] at its first write)"
        )
        raise OptionError(msg)
    if row_kind in shape.data_schema.names:
        msg = (
            f"row_kind={row_kind!r}: {write.storage.root} has such a column, of which the rows "
            "would have no value; rename it in the changes"
        )
        raise OptionError(msg)
    scan = source.plan(for_spark=for_spark, num_tasks=1)
    stored = data_schema(scan.schema)
    batches = [rows for batch in scan.read(0) for rows in stored_batches(batch, stored)]
    changes = pa.Table.from_batches(batches, stored)
    rows, gone = last_changes(changes, row_kind, shape.unique_names)
    gone = gone.rename_columns([str(id_) for id_ in shape.unique])
    if not rows.num_rows:  # of deletions alone, which may have no other columns
        rows = shape.data_schema.empty_table()
    # What a deletion has under a column is not stored, and does not make it nullable.
    fields = [field.with_nullable(bool(rows[field.name].null_count)) for field in rows.schema]
    return replace(write, gone=gone), StreamSource.of(rows.cast(pa.schema(fields)))


def _way_of_reading(schema: pa.Schema, write: Write, *, for_spark: bool) -> tuple[bool, str | None]:
    """Return whether rows of a write are converted for Spark, and the column of subpartitions."""
    partitioner = write.partitioner
    subpartition = partitioner.column if isinstance(partitioner, ColumnPartitioner) else None
    appends = keeps_rows(write.mode)
    shape = write.view.shape if appends else None
    stored = None if shape is None else shape.data_schema
    rows = pa.schema([field for field in schema if field.name != write.row_kind])
    changes = for_spark and _changes_for_spark(rows, stored, subpartition, appends=appends)
    return changes, subpartition


def _check_same_rows(schema: pa.Schema, other: pa.Schema, write: Write, first: Write) -> None:
    """Refuse targets that take rows of other types than those that are read for the first."""
    for field, its in zip(schema, other, strict=True):
        if field.type != its.type:
            msg = (
                f"{write.storage.root}: column {field.name!r} is stored as {its.type}, and as "
                f"{field.type} in {first.storage.root}; one pass reads it in one type. Write them "
                "one after the other"
            )
            raise OptionError(msg)


def _changes_for_spark(
    schema: pa.Schema, stored: pa.Schema | None, subpartition: str | None, *, appends: bool
) -> bool:
    """Whether rows are converted for Spark; ``stored`` has what they are appended to, if anything.

    Not if they fit that, or if it has types that Spark lacks.
    """
    plain = data_schema(schema)
    try:
        if schema_for_spark(schema, subpartition).equals(plain):
            return False
    except SchemaError:
        if not appends:
            raise
    return stored is None or (not is_appendable(stored, plain) and _is_for_spark(stored))


def _is_for_spark(stored: pa.Schema) -> bool:
    """Whether Spark has all types of a shuffle."""
    try:
        return bool(schema_for_spark(stored).equals(stored))
    except SchemaError:
        return False
