"""The source of streaming queries: what each version adds, once.

Offsets are versions, each pinned by its commit id: a query outlives processes, and its path may be
deleted and written again meanwhile. While a query runs, Spark keeps one reader in one process to
find offsets and plan. Tasks read with a copy of another reader, so a reader keeps only options.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from arrow_format.errors import ConsumerError, OptionError, SchemaError
from arrow_format.log.changes import (
    changes_of,
    check_commit_id,
    commit_id_of,
    ends_with,
    plan_changes,
    read_as,
    resume_version,
    steps_after,
    with_recovery_hint,
)
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import no_version_error
from arrow_format.log.result import released_error
from arrow_format.model import Natural
from arrow_format.read.shuffle import Shuffle
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.result_request import await_result
from connector.options.stream import StepLimits, parse_source_options
from connector.pickling import ChecksOnArrival
from connector.plain_errors import plain_errors
from connector.source.reader import (
    SubpartitionRanges,
    check_columns,
    check_meant,
    read_ranges,
    restricted_by,
    spark_partitions,
    storage_of,
    stored_columns,
)
from connector.spark_version import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    refuse_blocking_consumer,
    to_arrow_schema,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.snapshot import LaterColumns, VersionSpan


IDLE_POLL_INTERVAL = 1.0
"""Seconds between successive polls of an object store that find nothing new."""


def seconds_until_poll(now: float, idle_at: float | None, interval: float) -> float:
    """Return the seconds to wait before the next poll.

    ``now`` and ``idle_at`` are monotonic; ``idle_at`` is when the last poll ended, None if it found
    something or was the first. ``interval`` is from the end of an idle poll to the next.
    """
    return 0.0 if idle_at is None else max(0.0, idle_at + interval - now)


class IdlePolls:
    """Spaces polls that find nothing ``interval`` seconds apart; 0 does not wait."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._idle_at: float | None = None
        self._stopped = threading.Event()

    def __reduce__(self) -> tuple[type[IdlePolls], tuple[float]]:
        return IdlePolls, (self._interval,)  # a copy has not polled yet

    def wait(self) -> None:
        """Wait until the next poll is due, or until :meth:`stop`."""
        seconds = seconds_until_poll(time.monotonic(), self._idle_at, self._interval)
        if seconds > 0:
            self._stopped.wait(seconds)

    def record(self, *, found: bool) -> None:
        """Record whether a poll has just found anything."""
        self._idle_at = None if found else time.monotonic()

    def stop(self) -> None:
        """End the current wait and all later ones."""
        self._stopped.set()


class StreamOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """All rows of a version, and of those before it, were read."""

    version: Natural
    """0: none were."""
    commit_id: str | None = msgspec.field(default=None, name="commitId")
    """Of the version, which detects a shuffle that was deleted and written again; None where a
    stream begins, of which nothing was read yet, or where the id is no longer recorded."""
    consumed: bool = False
    """Whether rows up to there were read under the name of its consumer; without a commit id."""

    @property
    def begins(self) -> bool:
        """Whether nothing was read yet."""
        return self.commit_id is None and not self.consumed

    def to_json(self) -> dict[str, int | str | bool]:
        """Return the offset as Spark keeps it in its checkpoint."""
        offset: dict[str, int | str | bool] = msgspec.to_builtins(self)
        return offset

    @staticmethod
    def from_json(value: Mapping[str, object]) -> StreamOffset:
        """Inverse of :meth:`to_json`; raises OptionError for an offset of another source."""
        try:
            return msgspec.convert(value, StreamOffset)
        except msgspec.ValidationError as error:
            msg = (
                f"offset {value!r} in the checkpoint is not of this source; it has a version and a "
                "commitId. Give the query the checkpointLocation that it had"
            )
            raise OptionError(msg) from error


@dataclass
class ChangedRanges(InputPartition):
    """What one Spark task reads of a micro-batch."""

    shuffle: Shuffle
    """With the columns that the query has: rows of an earlier version have them too."""
    ranges: SubpartitionRanges


class ShuffleStreamReader(ChecksOnArrival, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the versions of a shuffle and delivers what each adds, in exactly ``schema``."""

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        meant: Mapping[str, int] | None = None,
    ) -> None:
        parsed = parse_source_options(options)
        self._options = parsed
        self._scan = parsed.scan
        self._storage = storage_of(parsed.scan)
        self._schema = schema
        self._arrow_schema = to_arrow_schema(schema)
        with_subpartition = parsed.scan.with_subpartition
        self._columns = stored_columns(schema.names, with_subpartition=with_subpartition)
        self._meant = meant
        """Ids of the shuffle's columns by name, at the latest at the first look of the query."""
        self._target: int | None = None
        """The last version that a query with an end reads; None: it has no end."""
        self._consumer: Consumer | None = None
        """Only in the process that finds offsets, from the first call on."""
        self._recorded: int | None = None
        """Version up to which this reader has recorded consumption."""
        # On a local disk a poll costs next to nothing.
        self._polls = IdlePolls(IDLE_POLL_INTERVAL if self._storage.max_requests > 1 else 0.0)
        self._is_resumed = False
        """Whether the query was checked to resume where its consumer is."""
        self._newest_polled: StreamOffset | None = None
        """The newest version at the last poll."""
        self._idle: tuple[StreamOffset, int, str] | None = None
        """Where the last poll began, and the newest entry then, if it found nothing."""
        self._initial: dict[str, Any] | None = None
        """The first offset, where Spark asks for the last one before it."""

    @plain_errors
    def initialOffset(self) -> dict[str, Any]:
        """Return where a query without a checkpoint begins: at option or consumer.

        Raises ConsumerError if another process is working as this consumer.
        """
        if self._initial is None:
            self._initial = self._first_offset().to_json()
        return self._initial

    def _first_offset(self) -> StreamOffset:
        consumer = self._active_consumer()
        self._await_result()
        log = CommitLog(self._storage)
        start = self._options.starting_version
        newest = log.read(partial(self._newest, log))
        if newest.state.is_ended and newest.state.released is not None:
            raise released_error(log.root, newest.state.released)
        kind = newest.result.type
        if consumer is not None and start != 0 and kind.is_blocking and not kind.is_persistent:
            # A consumer positioned at its newest version has consumed it: it would be released.
            msg = (
                f"{log.root}: option startingVersion with a consumer of a {kind.name} result: it "
                "is consumed as a whole. Begin at the earliest, or leave out the consumer"
            )
            raise OptionError(msg)
        first = StreamOffset(newest.version, newest.commit_id)
        if start is not None:
            if start > 0:
                log.snapshot(start + 1)
            first = StreamOffset(start)
        if consumer is not None:
            # A known consumer resumes where it was, in any query: each version once per name.
            known = consumer.register(first.version)
            if known != first.version or consumer.has_consumed:
                first = log.read(partial(self._after, log, known)) if known else StreamOffset(0)
        return first

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits; Spark takes one, and :meth:`latestOffset` keeps to all."""
        limits = self._options.limits
        if limits.max_versions is not None:
            return ReadMaxFiles(limits.max_versions)
        if limits.max_rows is not None:
            return ReadMaxRows(limits.max_rows)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable()

    @plain_errors
    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        """Return where the batch that begins at ``start`` ends; ``start`` if nothing was added.

        Without ``start``, from a Spark that does not tell, the batch ends at the newest version.
        After an idle poll it waits before it polls a store again. The limits of the options hold
        besides ``limit``, unless Spark asks for everything. Raises CorruptShuffleError if the
        shuffle was deleted and written again, ShuffleNotFoundError if it was deleted or versions
        expired before they were read.
        """
        if start is None:
            return self._newest_offset().to_json()
        seen = StreamOffset.from_json(start)
        self._check_resumed(seen)
        limits = StepLimits()
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            limits = self._options.limits.tightened(_limits_of(limit))
        if self._target is None:  # a query with an end stops when nothing is new
            self._polls.wait()
        end = self._poll(seen, limits)
        self._polls.record(found=end is not None)
        if end is not None:
            return StreamOffset(end.version, end.commit_id).to_json()
        if not seen.begins:
            # Spark asks for more only after the last batch is committed, and calls commit() with
            # the next batch.
            self._record(seen.version)
        return start

    def _newest_offset(self) -> StreamOffset:
        """Return the newest version, or the last answer if nothing was added since."""
        if self._options.starting_version is None:
            self.initialOffset()  # before the newest version is another one
        self._await_result()
        self._polls.wait()
        log = CommitLog(self._storage)
        last = self._newest_polled
        if last is not None and self._is_idle(log, last):
            self._polls.record(found=False)
            return last

        def ends(view: LogView) -> tuple[LogEntry, LogEntry]:
            newest = self._newest(log, view)
            return newest, view.last or newest

        newest, written = log.read(ends)
        kind = newest.result.type
        if self._scan.request.consumer and kind.is_blocking and not kind.is_persistent:
            refuse_blocking_consumer(log.root)
        end = StreamOffset(newest.version, newest.commit_id)
        if last is not None and newest.content_version <= last.version < newest.version:
            end = last  # nothing to read, such as a merge
        self._polls.record(found=end != last)
        self._newest_polled = end
        self._idle = end, written.version, written.commit_id
        return end

    def _is_idle(self, log: CommitLog, seen: StreamOffset) -> bool:
        """Whether nothing was written since all was read up to a version."""
        return self._idle is not None and self._idle[0] == seen and ends_with(log, *self._idle[1:])

    def _poll(self, seen: StreamOffset, limits: StepLimits) -> LogEntry | None:
        log = CommitLog(self._storage)
        if self._is_idle(log, seen):
            return None
        return log.read(partial(self._end, log, seen, limits))

    def _end(
        self, log: CommitLog, seen: StreamOffset, limits: StepLimits, view: LogView
    ) -> LogEntry | None:
        """Return the entry of the last version of a batch; None where there is nothing to read."""
        newest = self._newest(log, view)
        self._newest_polled, self._idle = StreamOffset(newest.version, newest.commit_id), None
        self._check_seen(log, view, seen)
        if newest.content_version <= seen.version:  # what is pending since is not read for that
            last = view.last or newest
            self._idle = seen, last.version, last.commit_id
            return None
        limit = newest.version if self._target is None else min(newest.version, self._target)
        steps = (step for step in steps_after(log, view, seen.version) if step.version <= limit)
        with with_recovery_hint(log.root, self._scan.request.consumer):
            if not limits.are_none:
                end = limits.end_of(steps)
            else:
                end = limit if any(step.adds for step in steps) else None
        return None if end is None else log.entry_at(view, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest version at the last poll, for the progress of the query."""
        if self._newest_polled is None:
            log = CommitLog(self._storage)
            newest = log.read(log.newest_entry)
            if newest is None:
                return None
            self._newest_polled = StreamOffset(newest.version, newest.commit_id)
        return self._newest_polled.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at the current newest version; raises ShuffleNotFoundError without one."""
        self._await_result()  # Spark calls this first
        log = CommitLog(self._storage)
        self._target = log.read(partial(self._newest, log)).version

    @plain_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the Spark partitions of a batch, in subpartition order.

        Raises ShuffleOverwrittenError if a version overwrote the shuffle and option ``onOverwrite``
        is ``fail``, SchemaError if one does not fit the columns of the query, and as
        :meth:`latestOffset`.
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._check_resumed(first)
        if first.version == last.version:
            return []
        shuffle = self._changes(first, last)
        try:
            check_columns(shuffle, self._schema, with_subpartition=self._scan.with_subpartition)
        except SchemaError as error:
            msg = (
                f"{error}. Or its columns have changed since the query began: start the query "
                "again, from its checkpoint, to read it with the columns that it has now"
            )
            raise SchemaError(msg) from error
        if shuffle.num_rows == 0:
            return []
        partitions = spark_partitions(shuffle, self._scan)
        parts = shuffle.for_tasks([partition.ranges for partition in partitions])
        return [*map(ChangedRanges, parts, partitions)]

    def _changes(self, first: StreamOffset, last: StreamOffset) -> Shuffle:
        log = CommitLog(self._storage)

        def plan(view: LogView) -> tuple[VersionSpan, LogEntry]:
            for offset in (first, last):
                self._check_seen(log, view, offset)
            span = plan_changes(
                log,
                view,
                first.version,
                last.version,
                overwrites=self._options.on_overwrite,
                begins=first.begins,
            )
            return span, self._newest(log, view)

        with with_recovery_hint(log.root, self._scan.request.consumer):
            span, newest = log.read(plan)
            changes = changes_of(log, span)
        if newest.shuffle_id == changes.newest.shuffle_id:
            # A query began with the columns of a later version if it was started again since.
            changes = read_as(changes, _columns_of(newest))
        again = "load it and start it again, from its checkpoint"
        check_meant(log.root, self._columns, self._meant, newest.columns, "query", again)
        return restricted_by(Shuffle(self._storage, changes, self._scan.options), self._scan)

    @plain_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the verified batches of one Spark partition; runs in the task."""
        if not isinstance(partition, ChangedRanges):
            msg = f"partition is {type(partition).__name__}: expected one of partitions()"
            raise OptionError(msg)
        shuffle, ranges = partition.shuffle, partition.ranges
        yield from read_ranges(shuffle, ranges, self._arrow_schema, self._columns)

    @plain_errors
    def commit(self, end: dict[str, Any]) -> None:
        """Record durably that everything up to ``end`` is consumed: Spark has committed it.

        Raises ConsumerError if another process has taken over the consumer.
        """
        self._record(StreamOffset.from_json(end).version)

    def _record(self, version: int) -> None:
        consumer = self._active_consumer()
        if consumer is not None and version != self._recorded:
            consumer.register(version)
            consumer.commit(version)
            self._recorded = version

    def stop(self) -> None:
        """Release the consumer's name, and end the wait of a poll."""
        self._polls.stop()
        if self._consumer is not None:
            self._consumer.close()

    def _check_resumed(self, start: StreamOffset) -> None:
        """Check once that the query is not behind its consumer; raises ConsumerError."""
        consumer = self._active_consumer()
        if consumer is None or self._is_resumed:
            return
        known = consumer.register(start.version)
        if known > start.version:
            msg = (
                f"{self._storage.root}: consumer {consumer.name!r} has consumed up to version "
                f"{known}, and the checkpoint of this query ends at {start.version}: another query "
                "consumed under the name, or the checkpoint is an old one. Each version is "
                "consumed once per name: begin with a new checkpoint, which resumes where the "
                "consumer is, give another name, or forget the consumer (arrow-shuffle consumers "
                "--forget)"
            )
            raise ConsumerError(msg)
        self._is_resumed = True

    def _active_consumer(self) -> Consumer | None:
        """Return the consumer of the options, whose name this process holds from now on."""
        request = self._scan.request
        if self._consumer is None and request.consumer is not None:
            self._consumer = Consumer(self._storage, request.consumer, timeout=request.timeout)
        return self._consumer

    def _await_result(self) -> None:
        """Wait for the shuffle to appear, if the options say so."""
        if self._scan.request.timeout:
            await_result(self._storage, self._scan.request.timeout)

    def _after(self, log: CommitLog, known: int, view: LogView) -> StreamOffset:
        """Return where a known consumer resumes; after a result that was released, at the next."""
        version = resume_version(view, known)
        if version != known or self._consumer is None or not self._consumer.has_consumed:
            return StreamOffset(version)
        commit_id = commit_id_of(log, view, known)
        return StreamOffset(known, commit_id, consumed=commit_id is None)

    def _newest(self, log: CommitLog, view: LogView) -> LogEntry:
        newest = log.newest_entry(view)
        if newest is None:
            raise no_version_error(
                log, "a stream can follow one that has a version. Write one, or check the path"
            )
        if self._meant is None:
            self._meant = newest.columns.by_name
        return newest

    def _check_seen(self, log: CommitLog, view: LogView, offset: StreamOffset) -> None:
        if offset.commit_id is not None:
            check_commit_id(log, view, offset.version, offset.commit_id)


def _columns_of(version: LogEntry) -> LaterColumns:
    return version.columns, version.spark_schema


def _limits_of(limit: ReadLimit) -> StepLimits:
    """Return the limit that Spark asks for; its files are versions."""
    if isinstance(limit, ReadMaxFiles):
        return StepLimits(max_versions=limit.max_files)
    if isinstance(limit, ReadMaxRows):
        return StepLimits(max_rows=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return StepLimits(max_bytes=limit.max_bytes)
    return StepLimits()
