"""The flush of pending checkpoints: the latest row of each key becomes one version.

It reads the pending checkpoints of the log, a few subpartitions at a time, keeps the latest row of
each key in bounded memory, and commits these as one map output. A process that dies on the way
leaves the checkpoints pending; of several that flush concurrently, one wins.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from datetime import timedelta
from functools import partial, reduce
from math import gcd
from typing import TYPE_CHECKING

from msgspec import structs

from arrow_format.arrays.column_ids import give_ids
from arrow_format.arrays.spark_schema_evolution import widen_schemas
from arrow_format.errors import CorruptShuffleError, OptionError, ShuffleNotFoundError
from arrow_format.jobs.cleanup import abort_after
from arrow_format.jobs.commit import commit_job, receipt_of
from arrow_format.jobs.job import ShuffleJob, run_map_task
from arrow_format.jobs.num_subpartitions import of_new_files
from arrow_format.jobs.target import open_target
from arrow_format.keys.partitioner import HashPartitioner, partitioner_from_description
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.outputs import MapOutputs
from arrow_format.log.pending import pending_outputs
from arrow_format.log.result import released_error
from arrow_format.log.snapshot import Snapshot
from arrow_format.log.totals import sum_totals
from arrow_format.options import LATEST_ROWS_BYTES, WriteOptions, check_integer
from arrow_format.read.chunk_plan import group_adjacent
from arrow_format.read.shuffle import Shuffle, check_there
from arrow_format.storage.open import Place, open_storage
from arrow_format.streaming.latest_in_memory import KEY_BYTES, latest_in_passes
from arrow_format.streaming.options import FlushOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from arrow_format.jobs.receipt import ShuffleReceipt
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.storage.open import Storage


def is_flush_due(
    since_ms: int | None,
    raw_bytes: int,
    options: FlushOptions,
    now_ms: int,
) -> bool:
    """Whether pending checkpoints are to be flushed. Pure.

    ``since_ms`` is when the last flush was, or the first pending commit if there was none, in
    milliseconds since 1970 like ``now_ms``; None: nothing is pending. ``raw_bytes``, those of the
    pending rows in Arrow, matter with ``memory_buffer_only``.
    """
    if since_ms is None or options.max_interval is None:
        return False
    if options.memory_buffer_only and raw_bytes >= options.max_buffered_bytes:
        return True
    # Where a clock was set back or is behind, the time that has passed is not known: flush.
    return now_ms < since_ms or now_ms - since_ms >= options.max_interval.total_seconds() * 1000


def flush_if_due(storage: Storage, flush: FlushOptions, options: WriteOptions) -> None:
    """Flush pending checkpoints if that is due, see :func:`is_flush_due`."""
    log = CommitLog(storage)
    if log.read(partial(_is_due, log, flush=flush)):
        flush_pending(storage, max_bytes=flush.max_buffered_bytes, options=options)


def _is_due(log: CommitLog, view: LogView, flush: FlushOptions) -> bool:
    pending = view.state.pending
    since_ms = pending.flushed_at_ms
    if not pending.numbers:
        return False
    if since_ms is None:
        since_ms = log.record(pending.numbers[0]).committed_at_ms
    # With each batch this reads all pending entries: only where the option needs it.
    raw_bytes = pending_outputs(log, view).raw_bytes if flush.memory_buffer_only else 0
    return is_flush_due(since_ms, raw_bytes, flush, time.time_ns() // 1_000_000)


def _is_overdue(log: CommitLog, view: LogView) -> bool:
    """Whether the interval that the last pending commit asked for has passed."""
    interval_ms = view.state.pending.interval_ms
    if interval_ms is None:
        return False
    # One of less than a millisecond is recorded as 0.
    interval = timedelta(milliseconds=max(interval_ms, 1))
    return _is_due(log, view, FlushOptions(max_interval=interval))


def flush_if_last(
    storage: Storage, application_id: str, flush: FlushOptions, options: WriteOptions
) -> None:
    """Flush pending checkpoints if the last commit of an application is pending.

    For an application whose commits are no longer buffered: otherwise its pending rows would be
    flushed behind later rows, or in their place.
    """
    log = CommitLog(storage)

    def is_last(view: LogView) -> bool:
        last = log.last_commit(view, application_id)
        return last is not None and last.version in view.state.pending.numbers

    if log.read(is_last):
        flush_pending(storage, max_bytes=flush.max_buffered_bytes, options=options)


def flush_pending(
    path: Place,
    *,
    due: bool = False,
    max_bytes: int = LATEST_ROWS_BYTES,
    options: WriteOptions | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> ShuffleReceipt | None:
    """Commit the pending checkpoints of a stream with a flush interval as one version.

    .. code-block:: python

        arrow_shuffle.flush_pending("/data/page_views", due=True)

    Parameters
    ----------
    path, storage_options
        As for :func:`~arrow_shuffle.open_shuffle`.
    due
        Flush only what has waited for as long as its stream lets it, its ``flush.maxInterval``,
        which is in the log.
    max_bytes
        Memory for rows, in bytes.
    options
        How to write; defaults when None.

    Returns
    -------
    ShuffleReceipt or None
        Of the version, or of the newest where another process has flushed the same checkpoints;
        None when nothing is pending, or is due.

    Raises
    ------
    ShuffleNotFoundError
        The path does not exist.
    ResultReleasedError
        The pending checkpoints were released meanwhile.
    OptionError
        They are not partitioned by the hash of keys.
    ShuffleError
        They cannot be read or written; they stay pending.
    """
    check_integer("max_bytes", max_bytes, 1 << 16, 1 << 50, "bytes")
    storage = open_storage(path, storage_options)
    check_there(storage)
    log = CommitLog(storage)
    if due and not log.read(partial(_is_overdue, log)):
        return None
    pending = log.read(partial(pending_outputs, log))
    if not pending.entries:
        return None
    rows = _as_version(pending.counting)
    partitioner = partitioner_from_description(rows.newest.partitioner)
    if not isinstance(partitioner, HashPartitioner):
        msg = (
            f"{storage.root}: the pending rows are partitioned by "
            f"{partitioner or dict(rows.newest.partitioner)!r}; rows of one key must be in one "
            "subpartition, as with keys"
        )
        raise OptionError(msg)
    mode = "overwrite" if pending.overwrites else "append"
    view = log.view()
    there = None if pending.overwrites or view.state.is_ended else view.shape
    n = of_new_files(pending.entries[-1].num_subpartitions, there)
    job = _job(storage, view, rows.newest, partitioner, n, options or WriteOptions())
    open_target(job, mode)
    job = dataclasses.replace(job, has_directory=True)
    try:
        latest = _latest(Shuffle(storage, rows), partitioner.keys, max_bytes)
        statuses = [run_map_task(job, 0, 0, latest)]
        return commit_job(job, statuses, mode=mode, flushes=pending.numbers)
    except BaseException as error:
        abort_after(job, error)
        if isinstance(error, CorruptShuffleError | ShuffleNotFoundError):
            # Collection removes files of flushed checkpoints, although another flush still reads.
            view = log.view()
            newest, state = log.newest_entry(view), view.state
            if newest is not None and not state.pending.begins_with(pending.numbers):
                if state.is_ended and state.released is not None:
                    raise released_error(storage.root, state.released) from error
                return receipt_of(storage, newest)
        raise


def _as_version(entries: tuple[LogEntry, ...]) -> Snapshot:
    """Return the rows of pending entries as a version, in the schema that holds them all."""
    last = entries[-1]
    schema, spark_schema = reduce(
        widen_schemas, ((entry.data_schema, entry.spark_schema) for entry in entries)
    )
    columns = give_ids(schema, [entry.columns for entry in reversed(entries)], 0)
    # They became pending before and after the shuffle was rescaled.
    n = gcd(*(entry.num_subpartitions for entry in entries))
    shape = structs.replace(
        last.shape,
        data_schema=schema,
        column_ids=columns.ids,
        spark_schema=spark_schema,
        num_subpartitions=n,
    )
    totals = sum_totals([entry.totals for entry in entries], n)
    outputs = MapOutputs.concat([entry.map_outputs for entry in entries])
    newest = structs.replace(last, pending_shape=shape)
    return Snapshot(newest, outputs, totals, oldest_needed=last.version)


def _job(
    storage: Storage,
    view: LogView,
    last: LogEntry,
    partitioner: HashPartitioner,
    num_subpartitions: int,
    options: WriteOptions,
) -> ShuffleJob:
    """Make a job that writes a result like that of the last entry."""
    result = last.result
    patience = options.back_pressure_timeout if result.type.has_back_pressure else None
    return ShuffleJob(
        storage=storage,
        job_id=uuid.uuid4().hex,
        shuffle_id=uuid.uuid4().hex,  # an overwrite is recognised by its new shuffle id
        data_schema=last.data_schema,
        spark_schema=last.spark_schema,
        num_subpartitions=num_subpartitions,
        partitioner=partitioner,
        options=dataclasses.replace(
            options,
            result_type=result.type,
            max_unconsumed_bytes=result.max_unconsumed_bytes,
            max_unconsumed_versions=result.max_unconsumed_versions,
            back_pressure_timeout=patience,
            schema_evolution=True,  # it was checked when they became pending
        ),
        makes_root=False,
        base_version=view.newest,
        known=last.columns,
        sort_by=last.sort_by,
        owners=result.owners,
        num_map_tasks=1,
    )


def _latest(shuffle: Shuffle, keys: tuple[str, ...], max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the latest row of each key, a few subpartitions at a time."""
    capacity_bytes = max_bytes // 3
    rows, raw_bytes = shuffle.weights()
    weights = raw_bytes + KEY_BYTES * rows
    for first, end in group_adjacent(weights, capacity_bytes, None):
        if not rows[first:end].any():
            continue
        yield from latest_in_passes(
            partial(_read, shuffle, first, end),
            shuffle.schema,
            keys,
            capacity_bytes=capacity_bytes,
            num_rows=int(rows[first:end].sum()),
        )


def _read(shuffle: Shuffle, first: int, end: int) -> Iterator[pa.RecordBatch]:
    # Rows of a key come in the order in which they were written, not in that of sort keys.
    for run in shuffle.reader(first, end):
        yield run.batch
