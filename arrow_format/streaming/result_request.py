"""Requests for a result by its reader or consumer, possibly before it exists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.concurrency import poll_until
from arrow_format.errors import RequestTimeoutError, ResultFailedError, ShuffleNotFoundError
from arrow_format.log.changes import changes_of, next_changes, resume_version, with_recovery_hint
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.result import released_error
from arrow_format.log.snapshot import VersionSpan
from arrow_format.read.shuffle import check_there

if TYPE_CHECKING:
    from collections.abc import Callable

    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.log.snapshot import Snapshot
    from arrow_format.storage.open import Storage


def await_result(
    storage: Storage,
    timeout: float,
    *,
    consumed: int | None = None,
    consumer: str | None = None,
    allow_empty: bool = False,
    before_look: Callable[[], None] | None = None,
) -> Snapshot:
    """Wait for a result, and return what there is to consume of it.

    A blocking result is consumed as a whole, from its commit on. Of a pipelined one only what is
    unconsumed is returned, from the commit of each version on.

    A reader has no ``consumed`` version and gets all versions. The name of a consumer serves for
    errors. With ``allow_empty``, a pipelined result that has nothing new is returned without rows,
    and is not an error. ``before_look`` is called each time before the log is looked at.

    Raises ResultReleasedError where the result was released; ResultFailedError where its producer
    failed during the wait, or before and none has committed since; RequestTimeoutError where it did
    not come in time, or nothing new of it; ShuffleNotFoundError where there is no result and no
    timeout, or unconsumed versions have expired.
    """
    check_there(storage, may_come=True)
    request = _Request(storage, consumed, consumer)

    def look() -> Snapshot | None:
        if before_look is not None:
            before_look()
        return request.poll()

    snapshot = poll_until(look, timeout)
    if snapshot is None and allow_empty:
        snapshot = request.without_rows()
    if snapshot is None:
        raise request.error(timeout)
    return snapshot


class _Request:
    """One request, which polls the log."""

    def __init__(self, storage: Storage, consumed: int | None, consumer: str | None) -> None:
        self._storage = storage
        self._consumed = consumed
        self._consumer = consumer
        self._began: int | None = None
        self._failed: LogEntry | None = None
        self._newest: int | None = None

    def poll(self) -> Snapshot | None:
        """Return what there is to consume; None: nothing yet."""
        log = CommitLog(self._storage)
        return log.read(lambda view: self._poll(log, view))

    def _poll(self, log: CommitLog, view: LogView) -> Snapshot | None:
        state = view.state
        self._began = view.newest if self._began is None else self._began
        newest = log.newest_entry(view)
        if newest is None:
            self._failed = _last_failure(log, view)
            if self._failed is not None and self._failed.version > self._began:
                raise _failed_error(self._storage, self._failed)
            return None
        if state.is_ended and state.released is not None:
            raise released_error(log.root, state.released)
        self._newest = newest.version
        if self._consumed is None or newest.result.type.is_blocking:
            return log.content_at(view, newest)
        if newest.content_version <= (self._consumed or _last_released(view)):
            return None
        start = resume_version(view, self._consumed) if self._consumed else 0
        with with_recovery_hint(log.root, self._consumer):
            return next_changes(log, view, start, newest.version)

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


def _last_released(view: LogView) -> int:
    """Return the last version whose rows were released as consumed; 0 for none."""
    released = view.state.released
    return 0 if released is None else released.through


def _last_failure(log: CommitLog, view: LogView) -> LogEntry | None:
    """Return the entry by which a producer failed, if none has committed since; no version yet."""
    for number in range(view.newest, 0, -1):
        entry = log.record(number)
        if entry.failed:
            return entry
        if entry.job_id is not None:
            break
    return None


def _failed_error(storage: Storage, fence: LogEntry) -> ResultFailedError:
    jobs = ", ".join(fence.gives_up)
    return ResultFailedError(
        f"{storage.root}: the producer of the result failed (job {jobs}), and committed nothing. "
        "See the producer's error, and run it again"
    )
