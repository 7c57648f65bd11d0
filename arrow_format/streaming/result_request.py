"""Requests for a result by its reader or consumer, possibly before it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.concurrency import poll_until
from arrow_format.errors import RequestTimeoutError, ResultFailedError, ShuffleNotFoundError
from arrow_format.log.changes import changes_of, next_changes, resume_version, with_recovery_hint
from arrow_format.log.commit_log import CommitLog, Snapshot
from arrow_format.log.record import Fence
from arrow_format.log.release import unconsumed_entries
from arrow_format.log.result import released_error
from arrow_format.log.snapshot import VersionSpan

if TYPE_CHECKING:
    from arrow_format.log.names import LogIndex
    from arrow_format.storage.open import Storage


def await_result(
    storage: Storage,
    timeout: float,
    *,
    consumed: int | None = None,
    consumer: str | None = None,
    allow_empty: bool = False,
) -> Snapshot:
    """Wait for a result, and return what there is to consume of it.

    A blocking result is consumed as a whole, from its commit on. Of a pipelined one only what is
    unconsumed is returned, from the commit of each version on.

    A reader has no ``consumed`` version and gets all versions. The name of a consumer serves for
    errors. With ``allow_empty``, a pipelined result that has nothing new is returned without rows,
    and is not an error.

    Raises ResultReleasedError where the result was released; ResultFailedError where its producer
    failed during the wait, or before and none has committed since; RequestTimeoutError where it did
    not come in time, or nothing new of it; ShuffleNotFoundError where there is no result and no
    timeout, or unconsumed versions have expired.
    """
    request = _Request(storage, consumed, consumer)
    snapshot = poll_until(request.poll, timeout)
    if snapshot is None and allow_empty:
        snapshot = request.without_rows()
    if snapshot is None:
        raise request.error(timeout)
    return snapshot


class _Request:
    """One request, which polls the log."""

    def __init__(self, storage: Storage, consumed: int | None, consumer: str | None) -> None:
        self._storage = storage
        self._consumer = consumer
        self._consumed = consumed
        self._began: int | None = None
        self._failed: Fence | None = None
        self._newest: int | None = None

    def poll(self) -> Snapshot | None:
        """Return what there is to consume; None: nothing yet."""
        stat = self._storage.stat("")
        if stat is not None and not stat.is_directory:
            msg = f"{self._storage.root}: is a file, not the directory of a shuffle"
            raise ShuffleNotFoundError(msg)
        log = CommitLog(self._storage)
        number = log.newest_version()
        began = self._began = number if self._began is None else self._began
        newest = log.snapshot()
        if newest is None:
            record = log.read(lambda index: log.record(index.newest) if index.newest else None)
            self._failed = record if isinstance(record, Fence) and record.failed else None
            if self._failed is not None and self._failed.version > began:
                raise _failed_error(self._storage, self._failed)
            return None
        if newest.ended is not None:
            raise released_error(self._storage.root, newest.ended)
        self._newest = newest.version
        if self._consumed is None or newest.newest.result.type.is_blocking:
            return newest
        return self._unconsumed(log, newest, self._consumed)

    def _unconsumed(self, log: CommitLog, newest: Snapshot, consumed: int) -> Snapshot | None:
        def unconsumed(index: LogIndex) -> Snapshot | None:
            entries = unconsumed_entries(log, index, consumed)
            if entries == ():
                return None
            start = resume_version(log, index, newest.newest, consumed) if consumed else 0
            with with_recovery_hint(self._storage.root, self._consumer):
                changes = next_changes(log, index, start, newest.version)
            return changes if entries or changes.map_outputs else None

        return log.read(unconsumed)

    def without_rows(self) -> Snapshot | None:
        """Return the newest version without its rows; None where there is no version."""
        if self._failed is not None or self._newest is None:
            return None
        return changes_of(CommitLog(self._storage), VersionSpan(0, self._newest, self._newest))

    def error(self, timeout: float) -> ShuffleNotFoundError:
        """Return the error of a request that timed out."""
        if self._failed is not None:
            return _failed_error(self._storage, self._failed)
        waited = f"after {timeout:.3g} s" if timeout else "and this does not wait (requestTimeout)"
        if self._newest is not None:
            return RequestTimeoutError(
                f"{self._storage.root}: nothing new {waited}; the newest version is "
                f"{self._newest}, and this consumer has consumed it. Try later, or wait longer"
            )
        msg = f"{self._storage.root}: holds no committed shuffle {waited}"
        if timeout:
            return RequestTimeoutError(f"{msg}. Check that its producer runs, or wait longer")
        return ShuffleNotFoundError(f"{msg}; nothing was written, or not committed")


def _failed_error(storage: Storage, fence: Fence) -> ResultFailedError:
    jobs = ", ".join(fence.job_ids)
    return ResultFailedError(
        f"{storage.root}: the producer of the result failed (job {jobs}), and committed nothing. "
        "See the producer's error, and run it again"
    )
