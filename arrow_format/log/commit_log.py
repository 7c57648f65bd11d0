"""The commit log: which map outputs make up which version. One writer wins each version.

Entries and fences are files that are created put-if-absent, so each number has one winner; a slower
writer reads the log again and decides again. Nothing else keeps writers apart: the storage must
refuse to create a file that exists, for any writer on any machine, and show a file whole or not at
all. On a POSIX file system that is ``link``; on an object store a conditional put; on HDFS a rename
that does not overwrite. A storage that has nothing of the kind must refuse ``put_if_absent`` rather
than imitate it by a check beforehand: two writers that check concurrently would both win, and one
of them would lose its rows without an error.
"""

from __future__ import annotations

import contextlib
import random
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from arrow_format.errors import CommitConflictError, ShuffleError
from arrow_format.log.checkpoint import Checkpoint, compose, decode_with_totals, encode_checkpoint
from arrow_format.log.framing import readable
from arrow_format.log.names import LogIndex, checkpoint_path, entry_path, oldest_path
from arrow_format.log.pending import pending_numbers
from arrow_format.log.reader import LogReader
from arrow_format.log.record import Fence, LogRecord, decode_record, encode_record, numbered
from arrow_format.log.snapshot import Snapshot
from arrow_format.log.transactions import all_last_commits
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError, Storage

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["CHECKPOINT_INTERVAL", "CommitLog", "Snapshot"]

CHECKPOINT_INTERVAL = 100
"""Entries after which the next commit puts a checkpoint."""

_ATTEMPTS = 50

Record = TypeVar("Record", bound=LogRecord)


class CommitLog(LogReader):
    """Reads and extends the log of one shuffle."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._is_unanswered = False
        """Whether a put of an entry ended without an answer: the store may still carry it out."""

    def append(
        self,
        decide: Callable[[Snapshot | None], Record | None],
        *,
        sync: bool,
        job_id: str | None = None,
        after: int = 0,
    ) -> Record | None:
        """Commit what ``decide`` makes of the newest version; try again until it wins.

        Parameters
        ----------
        decide
            Given the newest version (None: nothing yet) it returns the record to add, whose number
            is set here; returns None to commit nothing; or raises, which ends the commit. It is
            called again with the new state when another writer was faster.
        sync
            Whether the record is durable on return.
        job_id, after
            The job that commits, and the number of the log when it began.

        Raises
        ------
        CommitConflictError
            The job was fenced; or other writers were faster 50 times in a row.
        ShuffleError
            Readers would refuse the entry; nothing was put.
        """
        for attempt in range(_ATTEMPTS):
            # A writer that puts something after this read takes the number that is tried here.
            index, newest = self.read(partial(self._newest_for, job_id, after))
            after = max(after, index.newest)
            record = decide(newest)
            if record is None:
                return None
            record = cast("Record", numbered(record, index.newest + 1))
            path = entry_path(record.version)
            data = readable(encode_record(record), decode_record, f"{self._storage.root}/{path}")
            self._is_unanswered = self._storage.puts_may_come_late
            try:
                self._storage.put_if_absent(path, data, sync=sync)
            except ObjectNotFoundError:
                self._is_unanswered = False
                continue  # garbage collection removed the temporary file as one of a dead writer
            except ObjectExistsError:
                self._is_unanswered = False
                # The storage may have retried a put that had won.
                if self._commit_id(record.version) != record.commit_id:
                    time.sleep(random.uniform(0, min(0.01 * 2**attempt, 1.0)))
                    continue
            self._is_unanswered = False
            if self._was_dropped(record.version):
                continue
            self._checkpoint_if_due(index, record.version)
            return record
        msg = (
            f"{self._storage.root}: other writers committed {_ATTEMPTS} versions while this one "
            "tried; run it again when fewer write concurrently"
        )
        raise CommitConflictError(msg)

    def settle(self, *, sync: bool) -> None:
        """After a failed commit, make sure that its put has succeeded by now or never will.

        A request without an answer may still be on its way. A fence of no job takes its number.
        Raises ShuffleError where that fails too: the put may still succeed.
        """
        if self._is_unanswered:
            now_ms = time.time_ns() // 1_000_000
            self.append(lambda _: Fence(0, uuid.uuid4().hex, now_ms, ()), sync=sync)

    def _commit_id(self, number: int) -> str | None:
        """Return the commit id of a number; None when it has expired and was removed."""
        try:
            return self.record(number).commit_id
        except ObjectNotFoundError:
            if not self.has_expired(number):
                raise
            return None

    def _was_dropped(self, number: int) -> bool:
        """Delete a record that was just put at a number that had expired; whether it was so.

        The name was free again because the expired entry was removed. The marker was put before
        that, so a listing shows it now, and readers do not believe the record.
        """
        # A bare listing may show neither a marker that is about to go nor the one put before that.
        if number >= self.index().oldest:
            return False
        self._storage.delete(entry_path(number))
        return True

    def _newest_for(
        self, job_id: str | None, after: int, index: LogIndex
    ) -> tuple[LogIndex, Snapshot | None]:
        """Return the newest version of a listing; CommitConflictError if the job has ended."""
        end = None if job_id is None else self.end_of(index, job_id, after=after)
        if end is not None and end.fenced:
            raise self.fenced_error(str(job_id), end.version)
        if end is not None:
            msg = (
                f"{self._storage.root}: job {job_id} is committed as version {end.version} already"
            )
            raise CommitConflictError(msg)
        return index, self.snapshot_of(index)

    def fenced_error(self, job_id: str, number: int) -> CommitConflictError:
        """Return the error of a job that garbage collection gave up with fence ``number``."""
        return CommitConflictError(
            f"{self._storage.root}: job {job_id} was given up by garbage collection (fence "
            f"{number} of the commit log), since it had written nothing for the time of its "
            "--retention; nothing was committed, and its files are removed. Write the rows again, "
            "and collect with a retention longer than a job may be silent"
        )

    def _checkpoint_if_due(self, index: LogIndex, number: int) -> None:
        if number - max(index.checkpoints, default=0) >= CHECKPOINT_INTERVAL:
            # The commit is published. The next writer will try again.
            with contextlib.suppress(ShuffleError):
                # Durable always: durable entries may be removed because of it.
                self.put_checkpoint(number, sync=True)

    def put_checkpoint(self, number: int, *, sync: bool) -> None:
        """Put the checkpoint of a number of the log, unless it exists."""
        self.read(partial(self._put_checkpoint, number, sync))

    def put_oldest(self, version: int, *, sync: bool) -> None:
        """Let all versions before ``version``, which must be one itself, expire.

        Their entries may be removed after that: a checkpoint replaces them, and was read back.
        Raises CorruptShuffleError where it is damaged, since only the entries are left then.
        """
        if version > 1:
            self.put_checkpoint(version - 1, sync=sync)
            stored = LogReader(self._storage)  # reads the checkpoint back, not from memory
            whole = stored.checkpoint(version - 1).entry
            if whole is not None:
                stored.totals(Snapshot((whole,)))
            with contextlib.suppress(ObjectExistsError):  # another collection did the same
                self._storage.put_if_absent(oldest_path(version), b"", sync=sync)

    def _put_checkpoint(self, number: int, sync: bool, index: LogIndex) -> None:
        if number in index.checkpoints:
            return
        snapshot = self.content_at(index, number)
        checkpoint = Checkpoint(
            number,
            None if snapshot is None else compose(snapshot.entries),
            self.all_ends(index, number),
            all_last_commits(self, index, number),
            pending_numbers(self, index, number),
        )
        totals = None if snapshot is None else self.totals(snapshot)
        path = checkpoint_path(number)
        data = encode_checkpoint(checkpoint, totals)
        readable(data, decode_with_totals, f"{self._storage.root}/{path}")
        self.confirm()
        with contextlib.suppress(ObjectExistsError):  # another writer put the same
            self._storage.put_if_absent(path, data, sync=sync)
