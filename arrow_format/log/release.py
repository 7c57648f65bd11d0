"""The release of a result: an entry of the log that names only what is left of it.

What was released is part of no later version. Its files go with the versions before the release,
which nobody can open any more once garbage was collected.
"""

from __future__ import annotations

import contextlib
import time
import uuid
import zlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from arrow_format.errors import ShuffleError
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.consumers import ConsumerRegistry
from arrow_format.log.entry import LogEntry, TotalsFile
from arrow_format.log.names import totals_path
from arrow_format.log.pending import last_pending
from arrow_format.log.replacement import PlacedOutputs
from arrow_format.log.result import Released
from arrow_format.log.totals_file import encode_totals, put_totals

if TYPE_CHECKING:
    from arrow_format.log.names import LogIndex
    from arrow_format.log.reader import LogReader
    from arrow_format.storage.open import Storage

Found = tuple[str | None, str | None]


def unconsumed_entries(
    log: LogReader, index: LogIndex, version: int, *, apart: bool = True
) -> tuple[LogEntry, ...] | None:
    """Return the entries after ``version`` that added rows to the newest version, oldest first.

    Parameters
    ----------
    log, index
        The log, and a listing of it.
    version
        What was added up to this one is left out.
    apart
        Whether these are files of the newest version that must be told apart from those before, as
        they cannot be where they were merged with them. Otherwise they are what a consumer gets,
        whatever it became since: merged, or overwritten.

    Returns
    -------
    tuple or None
        None where that cannot be told any more.
    """
    found: list[LogEntry] = []
    number, last = index.newest, version
    while number > last:
        if number < index.oldest:
            return None
        record = log.record(number)
        if isinstance(record, LogEntry):
            if record.operation == "replace":
                if apart and record.content_version > version:
                    return None
                if apart:  # all that was merged was added before, and what it took the place of
                    break
            elif record.released is not None:
                last = max(last, record.released.through)
            else:
                found.append(record)
                if record.is_whole and apart:
                    break
        number -= 1
    return tuple(reversed(found))


def release_versions(
    storage: Storage,
    *,
    by: str,
    through: int | None = None,
    found: Found | None = None,
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
        The last version whose rows go; None for all, and then the result is gone, with what is
        pending, also where that is all there is.
    found
        Commit ids of the newest version and of what was pending last, as they were when the result
        was found to be no longer needed; None in the place of what was not there. Where another is
        there by now, nothing is released, since nobody has asked of that one. None: whatever is
        there.
    consumed
        What every consumer must have consumed, up to this version: also one that has registered
        since that was found. Without any, nothing is released. None: whatever they have.
    sync
        Whether the release is durable on return.

    Returns
    -------
    LogEntry or None
        The release; None when there was nothing to release.

    Raises
    ------
    ShuffleError
        The log cannot be read or written.
    """
    log = CommitLog(storage)
    written: list[str] = []

    def decide(newest: Snapshot | None) -> LogEntry | None:
        if consumed is not None and not _have_all_consumed(storage, consumed):
            return None
        there = None if newest is None or newest.ended else newest.newest
        if through is None:
            waiting = last_pending(log)
            if found is not None and found != commit_ids(there, waiting):
                return None
            if there is not None:
                return release(there, (), _no_totals(there), there.version)
            # Without a version there may be what waits to become one.
            ended = None if newest is None else newest.ended
            last = ended.through if ended else 0
            return release(waiting, (), _no_totals(waiting), last) if waiting else None
        if newest is None or there is None:
            return None
        rest = log.read(partial(_left_after, log, newest, through))
        return None if rest is None else release(there, *rest, through)

    def release(newest: LogEntry, left: tuple[LogEntry, ...], totals: bytes, last: int) -> LogEntry:
        # Each time another job: a collection may have taken the totals of the last round for those
        # of a dead one, and what it has fenced it removes, whoever commits it.
        job_id, commit_id = uuid.uuid4().hex, uuid.uuid4().hex
        described = TotalsFile(totals_path(job_id, commit_id), len(totals), zlib.crc32(totals))
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
        # Whether or not it went through: what no entry names is garbage of an unfinished job.
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
    """Whether there are consumers, and none that is behind a version."""
    progress = ConsumerRegistry(storage).all_progress().values()
    return min(progress, default=-1) >= version


def commit_ids(newest: LogEntry | None, waiting: LogEntry | None) -> Found:
    """Return by which ids a result is known again: of its version, and of what is pending."""
    return newest.commit_id if newest else None, waiting.commit_id if waiting else None


def are_all(newest: Snapshot, left: tuple[LogEntry, ...]) -> bool:
    """Whether all files of a version are among those of some entries of it: nothing was consumed.

    Entries cannot be counted: a checkpoint has one in the place of many.
    """
    return sum(len(one.map_outputs) for one in left) == len(newest.map_outputs)


def _left_after(
    log: LogReader, newest: Snapshot, version: int, index: LogIndex
) -> tuple[tuple[LogEntry, ...], bytes] | None:
    """Return what a release up to a version leaves, with its totals, by one listing of the log.

    Totals of what is left may have gone with entries that have expired: then the next listing says
    that a checkpoint has replaced these entries, together with those before them.

    Returns
    -------
    tuple or None
        None where there is nothing to release, or a checkpoint has replaced what is left.
    """
    left = unconsumed_entries(log, index, version)
    if left is None or are_all(newest, left):
        return None
    return left, encode_totals(*log.totals(Snapshot(left))) if left else _no_totals(newest.newest)


def _no_totals(entry: LogEntry) -> bytes:
    """Totals of nothing, of as many subpartitions as an entry has."""
    nothing = np.zeros(entry.num_subpartitions, np.int64)
    return encode_totals(nothing, nothing)
