"""Removes the files of a job that no version names: of failed attempts, a failed commit, an abort.

The log says whether a job was committed, and :mod:`~arrow_format.jobs.decision` lets either a
commit or an abort win.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError, StorageError, UnsettledCommitError
from arrow_format.jobs.decision import DECISION_NAME, decide_abort, withdraw
from arrow_format.log.commit_log import CommitLog
from arrow_format.log.names import CONSUMER_DIRECTORY, LOG_DIRECTORY
from arrow_format.log.record import Fence
from arrow_format.storage.local_dir_removal import clear_roots, is_any_there, remove_root_list
from arrow_format.storage.local_dirs import ROOT_LIST_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import TotalsFile
    from arrow_format.model import MapOutput


def remove_losers(job: ShuffleJob, outputs: Sequence[MapOutput]) -> None:
    """Remove the files of failed attempts of this job; one that still runs is harmless."""
    live = {
        path.rpartition("/")[2]
        for output in outputs
        for file in output.files
        for path in (file.data_path, file.index_path)
    }
    try:
        names = job.storage.list(job.directory)
        job.storage.delete_all([f"{job.directory}/{name}" for name in names if name not in live])
        job.storage.prune(job.directory, and_root=False)
    finally:
        clear_roots(job.local_roots, job.job_id, live)


def abort_job(job: ShuffleJob, *, failed: bool = True) -> None:
    """Remove everything the job wrote, unless it was committed or is being committed.

    Where ``failed``, consumers that wait for its result learn that nothing comes; otherwise its
    rows are in the log already, or it had none. Raises ShuffleError where something could not be
    removed; the rest was, and the caller may try again.
    """
    log = CommitLog(job.storage)
    if _is_committed(job, log):
        return
    # The job's directory alone does not say whether there are files: a commit prunes it when all
    # of them are in local roots.
    if job.storage.stat(job.directory) is None and not is_any_there(job.local_roots):
        return
    if not decide_abort(job):
        return
    try:
        # A commit may have come in between, and have withdrawn its decision already.
        if not _is_committed(job, log):
            _remove_files(job)
            if failed:
                _fence_as_failed(job, log)
    finally:
        # Last of all: from here on another process may commit files that it finds.
        withdraw(job)
        job.storage.prune(job.directory, and_root=job.makes_root)


def _is_committed(job: ShuffleJob, log: CommitLog) -> bool:
    """Whether a job was committed; its version may have expired."""
    end = log.find_job(job.job_id, after=job.base_version)
    return end is not None and not end.fenced


def _fence_as_failed(job: ShuffleJob, log: CommitLog) -> None:
    """Let consumers that wait for a first version know that its producer failed."""
    if not job.storage.list(CONSUMER_DIRECTORY) or log.snapshot() is not None:
        return
    now_ms = time.time_ns() // 1_000_000
    log.append(
        lambda _: Fence(0, uuid.uuid4().hex, now_ms, (job.job_id,), failed=True),
        sync=job.options.sync,
        job_id=job.job_id,
        after=job.base_version,
    )


def _remove_files(job: ShuffleJob) -> None:
    kept = (DECISION_NAME, ROOT_LIST_NAME)
    try:
        clear_roots(job.local_roots, job.job_id)
        # Only now: after a crash the list says where files are.
        remove_root_list(job.storage, job.directory, job.local_roots)
    finally:
        # Repeatedly: a task that still runs may put a file meanwhile.
        for _ in range(3):
            names = job.storage.list(job.directory)
            job.storage.delete_all(
                [f"{job.directory}/{name}" for name in names if name not in kept]
            )


def abort_after(job: ShuffleJob, error: BaseException) -> None:
    """Abort because of ``error``; a failure of the abort becomes a note of it."""
    if isinstance(error, UnsettledCommitError):
        return
    try:
        abort_job(job)
    except ShuffleError as another:
        error.add_note(f"and what the job had written could not be removed: {another}")


def clean_up(
    job: ShuffleJob, log: CommitLog, totals: TotalsFile | None, error: BaseException
) -> None:
    """After a commit raised ``error``, remove its totals and decision, unless it succeeded.

    The job holds the decision to commit. Raises UnsettledCommitError where the commit may still
    succeed, and StorageError where it did.
    """
    try:
        log.settle(sync=job.options.sync)
    except ShuffleError as another:
        # The decision stays, so that no abort removes what the entry names.
        msg = (
            f"{job.storage.root}: the store did not answer, and it is not known whether job "
            f"{job.job_id} was committed ({error}; {another}). Its files were left; check whether "
            "there is a new version before you write the rows again"
        )
        if isinstance(error, Exception):
            raise UnsettledCommitError(msg) from error
        error.add_note(msg)  # an interrupt stays one
        return
    try:
        committed = log.find_job(job.job_id, after=job.base_version)
        if committed is None or committed.fenced:
            if totals is not None:
                job.storage.delete(totals.path)
            withdraw(job)
            job.storage.prune(LOG_DIRECTORY, and_root=False)
            job.storage.prune(job.directory, and_root=job.makes_root)
    except ShuffleError as another:
        error.add_note(f"and what it left could not be removed: {another}")
        return
    if committed is not None and not committed.fenced:
        but = (
            "and durably, but the commit ended with an error"
            if job.storage.keeps_what_it_shows
            else "but it is not known whether that would survive a power failure"
        )
        msg = (
            f"{job.storage.root}: committed as version {committed.version}, {but} ({error}). "
            "Do not write the rows again"
        )
        if isinstance(error, Exception):
            raise StorageError(msg) from error
        error.add_note(msg)
