"""The release of a result: an entry of the log that names only what is left of it.

Released rows are in no later version. Their files are removed with the versions before the release,
which garbage collection lets expire.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import ShuffleError
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import LogEntry, TotalsFile
from arrow_format.log.names import LogIndex, totals_path
from arrow_format.log.pending import last_pending
from arrow_format.log.result import Released
from arrow_format.log.snapshot import PlacedOutputs
from arrow_format.log.totals_file import encode_totals, put_totals

if TYPE_CHECKING:
    from arrow_format.log.reader import LogReader
    from arrow_format.storage.open import Storage

CommitIds = tuple[str | None, str | None]
"""Of the newest version of a result and of its last pending commit; None for one it lacks."""


def unconsumed_entries(
    log: LogReader, index: LogIndex, version: int, *, apart: bool = True
) -> tuple[LogEntry, ...] | None:
    """Return the entries after ``version`` that added rows, oldest first.

    With ``apart`` they are files of the newest version, separate from those up to ``version``, with
    which a merge may have joined them. Without, they are all that a consumer gets, also where it
    was merged or overwritten since. None where entries expired, or a merge joined them.
    """
    entries: list[LogEntry] = []
    number, last = index.newest, version
    while number > last:
        if number < index.oldest:
            return None
        record = log.record(number)
        if isinstance(record, LogEntry):
            if record.operation == "replace":
                if apart and record.content_version > version:
                    return None
                if apart:  # all that it merged was added up to ``version``
                    break
            elif record.released is not None:
                last = max(last, record.released.through)
            else:
                entries.append(record)
                if record.is_whole and apart:
                    break
        number -= 1
    return tuple(reversed(entries))


def release_versions(
    storage: Storage,
    *,
    by: str,
    through: int | None = None,
    expected: CommitIds | None = None,
    consumed: int | None = None,
    sync: bool = True,
) -> LogEntry | None:
    """Release a result as a whole, or the versions of it that were consumed.

    Parameters
    ----------
    storage
        Where it is.
    by
        Who releases it and why, for people.
    through
        The last version to release; None for the whole result, with all that is pending, also where
        it has no version yet.
    expected
        The :func:`commit_ids` of the result when it was found to be no longer needed: a newer one
        is not released, since it may be needed. None: release the present one.
    consumed
        The version up to which every consumer must have consumed, also one that has registered
        since; without consumers nothing is released. None: do not ask.
    sync
        Whether the release is durable on return.
    """
    log = CommitLog(storage)
    written: list[str] = []

    def decide(newest: Snapshot | None) -> LogEntry | None:
        if consumed is not None and not _have_all_consumed(storage, consumed):
            return None
        current = None if newest is None or newest.ended else newest.newest
        if through is None:
            waiting = last_pending(log)
            if expected is not None and expected != commit_ids(current, waiting):
                return None
            if current is not None:
                return release(current, (), _no_totals(current), current.version)
            # Without a version, there may be pending map outputs.
            ended = None if newest is None else newest.ended
            last = ended.through if ended else 0
            return release(waiting, (), _no_totals(waiting), last) if waiting else None
        if newest is None or current is None:
            return None
        rest = log.read(partial(_left_after, log, newest, through))
        return None if rest is None else release(current, *rest, through)

    def release(newest: LogEntry, left: tuple[LogEntry, ...], totals: bytes, last: int) -> LogEntry:
        # A new job each time: a collector may have taken the totals of the last round for those of
        # a dead job, and it removes the files of jobs that it has fenced.
        job_id, commit_id = uuid.uuid4().hex, uuid.uuid4().hex
        described = TotalsFile.of(totals_path(job_id, commit_id), totals)
        placed = PlacedOutputs.of(left)
        entry = replace(
            newest,
            version=0,
            operation="release",
            job_id=job_id,
            commit_id=commit_id,
            committed_at_ms=time.time_ns() // 1_000_000,
            map_outputs=placed.outputs,
            roots=placed.roots,
            totals=described,
            transaction=None,
            flushed=None,
            content=None if through is None else newest.content_version,
            released=Released(through=last, by=by, ended=through is None),
        )
        put_totals(storage, entry, totals, sync=sync)
        written.append(described.path)
        return entry

    try:
        entry = log.append(decide, sync=sync)
    except BaseException:
        # Totals that no entry names are collected as those of an unfinished job.
        with contextlib.suppress(ShuffleError):
            log.settle(sync=sync)
        raise
    for path in written:
        if entry is not None and path == entry.totals.path:
            continue
        with contextlib.suppress(ShuffleError):
            storage.delete(path)
    return entry


def _have_all_consumed(storage: Storage, version: int) -> bool:
    """Whether there are consumers, and all of them have consumed a version."""
    progress = ConsumerRegistry(storage).all_progress().values()
    return min(progress, default=-1) >= version


def commit_ids(newest: LogEntry | None, waiting: LogEntry | None) -> CommitIds:
    """Return the ids by which a result is recognised later."""
    return newest.commit_id if newest else None, waiting.commit_id if waiting else None


def are_all(newest: Snapshot, left: tuple[LogEntry, ...]) -> bool:
    """Whether some entries name all map outputs of a version, so that nothing was consumed.

    Entries cannot be counted: a checkpoint has one for many.
    """
    return sum(len(entry.map_outputs) for entry in left) == len(newest.map_outputs)


def _left_after(
    log: LogReader, newest: Snapshot, version: int, index: LogIndex
) -> tuple[tuple[LogEntry, ...], bytes] | None:
    """Return the entries that a release up to a version leaves, with their totals.

    None where there is nothing to release, or a checkpoint has replaced what is left together with
    what comes before. Where the totals went with expired entries, the next listing shows that.
    """
    left = unconsumed_entries(log, index, version)
    if left is None or are_all(newest, left):
        return None
    return left, encode_totals(*log.totals(Snapshot(left))) if left else _no_totals(newest.newest)


def _no_totals(entry: LogEntry) -> bytes:
    zeros = np.zeros(entry.num_subpartitions, np.int64)
    return encode_totals(zeros, zeros)
