"""The source of streaming queries: what each version adds, once.

Offsets are versions. Each is pinned by the id of its commit, since a query outlives processes and
its path may be made anew meanwhile. Spark keeps one reader in one process while a query runs, which
finds offsets and plans; tasks read with a copy of another one, so nothing but options is kept here.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from arrow_format.errors import ConsumerError, OptionError
from arrow_format.log.changes import (
    changes_of,
    check_commit_id,
    commit_id_of,
    newest_entry,
    plan_changes,
    resume_version,
    steps_after,
    with_recovery_hint,
)
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.pending import no_version_error
from arrow_format.log.result import released_error
from arrow_format.read.plan import check_subpartitions
from arrow_format.read.shuffle import Shuffle, open_pinned
from arrow_format.streaming.consumption import Consumer
from arrow_format.streaming.result_request import await_result
from connector.options.stream import StepLimits, StreamOffset, parse_source_options
from connector.source.reader import (
    SubpartitionRanges,
    check_columns,
    plan_ranges,
    read_ranges,
    storage_of,
    stored_columns,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.names import LogIndex
    from arrow_format.log.snapshot import VersionSpan


IDLE_POLL_INTERVAL = 1.0
"""Seconds between two looks in succession at a store that find nothing new."""


def seconds_until_poll(now: float, idle_at: float | None, interval: float) -> float:
    """Return how long to wait before the next look, in seconds: pure.

    Parameters
    ----------
    now
        Seconds, by a clock that is never set.
    idle_at
        When the last look ended, by the same clock; None where it found something, or there was
        none.
    interval
        Seconds from the end of a look that found nothing to the next.
    """
    return 0.0 if idle_at is None else max(0.0, idle_at + interval - now)


class IdlePolls:
    """Keeps looks that find nothing apart.

    Parameters
    ----------
    interval
        Seconds, see :func:`seconds_until_poll`; 0 not to wait.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._idle_at: float | None = None
        self._stopped = threading.Event()

    def __reduce__(self) -> tuple[type[IdlePolls], tuple[float]]:
        return IdlePolls, (self._interval,)  # whoever gets it has not looked yet

    def wait(self) -> None:
        """Wait until it is time for the next look, or until :meth:`stop`."""
        seconds = seconds_until_poll(time.monotonic(), self._idle_at, self._interval)
        if seconds > 0:
            self._stopped.wait(seconds)

    def tell(self, *, found: bool) -> None:
        """Take note of whether a look has just found anything."""
        self._idle_at = None if found else time.monotonic()

    def stop(self) -> None:
        """End the wait that is under way, and wait no more."""
        self._stopped.set()


@dataclass
class ChangedRanges(InputPartition):
    """What one Spark task reads of a micro-batch."""

    version: int
    commit_id: str
    span: VersionSpan | None
    """Which rows up to that version; None: all."""
    ranges: SubpartitionRanges


class ShuffleStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the versions of a shuffle.

    Parameters
    ----------
    options
        As Spark hands them over.
    schema
        Columns to deliver, in that order.

    Raises
    ------
    OptionError
        An unknown option, or a bad value.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        parsed = parse_source_options(options)
        self._options = parsed
        self._scan = parsed.scan
        self._storage = storage_of(parsed.scan)
        self._schema = schema
        self._arrow_schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = stored_columns(schema, with_subpartition=parsed.scan.with_subpartition)
        self._target: int | None = None
        """The last version that a query with an end reads; None: it has no end."""
        self._consumer: Consumer | None = None
        """In the process that finds offsets, from its first question on."""
        self._recorded: int | None = None
        """Up to which version this has recorded what is consumed."""
        # On a local disk a look costs next to nothing.
        self._looks = IdlePolls(IDLE_POLL_INTERVAL if self._storage.max_requests > 1 else 0.0)
        self._goes_on = False
        """Whether the query was found to go on where its consumer is."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a query begins that has no checkpoint yet.

        Raises
        ------
        ShuffleNotFoundError
            There is no shuffle, or not the version to begin with.
        ResultReleasedError
            There was one, and it was released as a whole.
        OptionError
            It is to consume a result that is consumed as a whole, and not from its beginning.
        ConsumerError
            Another process is at work as this consumer.
        """
        consumer = self._at_work()
        self._await_result()
        log = CommitLog(self._storage)
        start = self._options.starting_version
        newest = log.read(partial(self._newest, log))
        if newest.released is not None and newest.released.ended:
            raise released_error(log.root, newest.released)
        kind = newest.result.type
        if consumer is not None and start != 0 and kind.is_blocking and not kind.is_persistent:
            # Whoever stands after its newest version has consumed it: it would be released.
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
            # One that is known goes on where it was, whatever the query: each version once a name.
            known = consumer.register(first.version)
            if known != first.version or consumer.has_consumed:
                first = log.read(partial(self._after, log, known)) if known else StreamOffset(0)
        return first.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits; Spark knows no more, and :meth:`latestOffset` keeps to all."""
        limits = self._options.limits
        if limits.max_versions is not None:
            return ReadMaxFiles(limits.max_versions)
        if limits.max_rows is not None:
            return ReadMaxRows(limits.max_rows)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return up to where the next batch goes; ``start`` where nothing was added.

        Asked again for what was not there, it waits before it looks in a store, see
        :class:`~connector.source.stream_reader.IdlePolls`.

        Parameters
        ----------
        start
            Where it begins.
        limit
            How much Spark asks for; the options hold beside it, unless it asks for everything.

        Raises
        ------
        CorruptShuffleError
            The shuffle was removed and made anew.
        ShuffleNotFoundError
            It is gone, or versions have expired that were not read.
        """
        seen = StreamOffset.from_json(start)
        self._go_on(seen)
        limits = StepLimits()
        if not isinstance(limit, ReadAllAvailable):
            limits = self._options.limits.tightened(_limits_of(limit))
        if self._target is None:  # else it ends when nothing is new
            self._looks.wait()
        log = CommitLog(self._storage)
        if seen.commit_id is not None:  # an idle look is one listing
            log.expect(seen.version, seen.commit_id)
        end = log.read(partial(self._end, log, seen, limits))
        self._looks.tell(found=end is not None)
        if end is not None:
            return StreamOffset(end.version, end.commit_id).to_json()
        if not seen.begins:
            # Spark asks for more once the last batch is committed, but says so with the next alone.
            self._record(seen.version)
        return start

    def _end(
        self, log: CommitLog, seen: StreamOffset, limits: StepLimits, index: LogIndex
    ) -> LogEntry | None:
        """Return the entry of the last version of a batch; None where there is nothing to read."""
        newest = self._newest(log, index)
        self._check_seen(log, index, seen)
        last = newest.version if self._target is None else min(newest.version, self._target)
        steps = (one for one in steps_after(log, index, seen.version) if one.version <= last)
        with with_recovery_hint(log.root, self._scan.request.consumer):
            if not limits.are_none:
                end = limits.end_of(steps)
            else:
                end = last if any(one.adds for one in steps) else None
        return None if end is None else log.entry_at(index, end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the newest version, for the progress of the query."""
        log = CommitLog(self._storage)
        newest = log.read(partial(newest_entry, log))
        return None if newest is None else StreamOffset(newest.version, newest.commit_id).to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end with the version that is the newest now.

        Raises
        ------
        ShuffleNotFoundError
            There is no shuffle.
        """
        self._await_result()  # Spark asks this before all else
        log = CommitLog(self._storage)
        self._target = log.read(partial(self._newest, log)).version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the Spark partitions of a batch, in subpartition order.

        Raises
        ------
        ShuffleOverwrittenError
            A version overwrote the shuffle, and option ``onOverwrite`` is ``fail``.
        SchemaError
            A version does not fit the columns of the query.
        OptionError
            A subpartition is out of range.
        CorruptShuffleError, ShuffleNotFoundError
            As :meth:`latestOffset`.
        """
        first, last = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self._go_on(first)
        if first.version == last.version:
            return []
        shuffle = self._changes(first, last)
        wanted = check_subpartitions(self._scan.subpartitions, shuffle.num_subpartitions)
        check_columns(shuffle, self._schema, with_subpartition=self._scan.with_subpartition)
        if shuffle.num_rows == 0:
            return []
        return [
            ChangedRanges(shuffle.version, shuffle.commit_id, shuffle.span, ranges)
            for ranges in plan_ranges(shuffle, self._scan, wanted)
        ]

    def _changes(self, first: StreamOffset, last: StreamOffset) -> Shuffle:
        log = CommitLog(self._storage)

        def plan(index: LogIndex) -> VersionSpan:
            for one in (first, last):
                self._check_seen(log, index, one)
            return plan_changes(
                log,
                index,
                first.version,
                last.version,
                overwrites=self._options.on_overwrite,
                begins=first.begins,
            )

        with with_recovery_hint(log.root, self._scan.request.consumer):
            changes = changes_of(log, log.read(plan))
        return Shuffle(self._storage, changes, self._scan.options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the verified batches of one Spark partition; runs in the task."""
        if not isinstance(partition, ChangedRanges):
            msg = f"partition is {type(partition).__name__}: expected one of partitions()"
            raise OptionError(msg)
        shuffle = open_pinned(
            self._storage,
            partition.version,
            partition.commit_id,
            self._scan.options,
            partition.span,
        )
        yield from read_ranges(shuffle, partition.ranges, self._arrow_schema, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Record durably that everything up to ``end`` is consumed: Spark has committed it.

        Raises
        ------
        ConsumerError
            Another process has taken the consumer over.
        """
        self._record(StreamOffset.from_json(end).version)

    def _record(self, version: int) -> None:
        consumer = self._at_work()
        if consumer is not None and version != self._recorded:
            consumer.register(version)
            consumer.commit(version)
            self._recorded = version

    def stop(self) -> None:
        """Let go of the consumer's name, and wait for nothing more."""
        self._looks.stop()
        if self._consumer is not None:
            self._consumer.close()

    def _go_on(self, start: StreamOffset) -> None:
        """Check, once, that the query has not fallen behind its consumer.

        Raises
        ------
        ConsumerError
            Another process is at work as this consumer; or it has consumed more than this query.
        """
        consumer = self._at_work()
        if consumer is None or self._goes_on:
            return
        known = consumer.register(start.version)
        if known > start.version:
            msg = (
                f"{self._storage.root}: consumer {consumer.name!r} has consumed up to version "
                f"{known}, and the checkpoint of this query ends at {start.version}: another query "
                "went on under the name, or the checkpoint is an old one. Each version is consumed "
                "once by a name: begin with a new checkpoint, which goes on where the consumer "
                "is, give another name, or forget the consumer (arrow-shuffle consumers --forget)"
            )
            raise ConsumerError(msg)
        self._goes_on = True

    def _at_work(self) -> Consumer | None:
        """Return the consumer that the options name, at work from now on."""
        request = self._scan.request
        if self._consumer is None and request.consumer is not None:
            self._consumer = Consumer(self._storage, request.consumer, timeout=request.timeout)
        return self._consumer

    def _await_result(self) -> None:
        """Wait for the shuffle to be there, if the options say so."""
        if self._scan.request.timeout:
            await_result(self._storage, self._scan.request.timeout)

    def _after(self, log: CommitLog, known: int, index: LogIndex) -> StreamOffset:
        """Return where a consumer goes on; after the release of a whole result, with the next."""
        version = resume_version(log, index, self._newest(log, index), known)
        if version != known or self._consumer is None or not self._consumer.has_consumed:
            return StreamOffset(version)
        commit_id = commit_id_of(log, index, known)
        return StreamOffset(known, commit_id, consumed=commit_id is None)

    def _newest(self, log: CommitLog, index: LogIndex) -> LogEntry:
        """Return the entry of the newest version."""
        newest = newest_entry(log, index)
        if newest is None:
            raise no_version_error(
                log, "a stream can follow one that has a version. Write one, or check the path"
            )
        return newest

    def _check_seen(self, log: CommitLog, index: LogIndex, offset: StreamOffset) -> None:
        if offset.commit_id is not None:
            check_commit_id(log, index, offset.version, offset.commit_id)


def _limits_of(limit: ReadLimit) -> StepLimits:
    """Return what Spark asks for; a limit on files is one on versions."""
    if isinstance(limit, ReadMaxFiles):
        return StepLimits(max_versions=limit.max_files)
    if isinstance(limit, ReadMaxRows):
        return StepLimits(max_rows=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return StepLimits(max_bytes=limit.max_bytes)
    return StepLimits()
