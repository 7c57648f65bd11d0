"""Removes what a job wrote and no version names: of failed attempts, a failed commit, an abort.

The log says whether a job was committed, and its decision keeps commits and aborts apart.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError, StorageError, UnsettledCommitError
from arrow_format.jobs.decision import DECISION_NAME, decide_abort, withdraw
from arrow_format.log.commit_log import LOG_DIRECTORY, CommitLog
from arrow_format.log.consumers import CONSUMER_DIRECTORY
from arrow_format.log.record import Fence
from arrow_format.storage.local_dir_removal import clear_roots, is_any_there, remove_root_list
from arrow_format.storage.local_dirs import ROOT_LIST_NAME

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import TotalsFile
    from arrow_format.model import MapOutput


def remove_losers(job: ShuffleJob, outputs: Sequence[MapOutput]) -> None:
    """Remove what failed attempts of this job left; one that still runs is harmless."""
    live = {
        path.rpartition("/")[2]
        for output in outputs
        for file in output.files
        for path in (file.data_path, file.index_path)
    }
    try:
        there = job.storage.list(job.directory)
        job.storage.delete_all([f"{job.directory}/{name}" for name in there if name not in live])
        job.storage.prune(job.directory, and_root=False)
    finally:
        clear_roots(job.local_roots, job.job_id, live)


def abort_job(job: ShuffleJob, *, failed: bool = True) -> None:
    """Remove everything the job wrote, unless it was committed or is being committed.

    Parameters
    ----------
    job
        The job.
    failed
        Whether consumers that wait for its result are told that nothing comes. Otherwise its rows
        are in the log already, or it had none.

    Raises
    ------
    ShuffleError
        Something could not be removed; the rest was, and it may be tried again.
    """
    log = CommitLog(job.storage)
    if is_committed(job, log):
        return
    # Where nothing is there is nothing to remove. But the job's directory alone does not tell: a
    # commit prunes it when all files are in local roots.
    if job.storage.stat(job.directory) is None and not is_any_there(job.local_roots):
        return
    if not decide_abort(job):
        return
    try:
        # A commit may have come in between and have let go of its decision already.
        if not is_committed(job, log):
            _remove_files(job)
            if failed:
                _tell_consumers(job, log)
    finally:
        # Last of all: from here on another process may commit what it finds.
        withdraw(job)
        job.storage.prune(job.directory, and_root=job.makes_root)


def _tell_consumers(job: ShuffleJob, log: CommitLog) -> None:
    """Let those that wait for a result know that its producer failed."""
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
        # Only now: after a crash the list tells where files are.
        remove_root_list(job.storage, job.directory, job.local_roots)
    finally:
        # More than once: a task that still runs may put a file there meanwhile.
        for _ in range(3):
            there = job.storage.list(job.directory)
            job.storage.delete_all(
                [f"{job.directory}/{name}" for name in there if name not in kept]
            )


def abort_after(job: ShuffleJob, error: BaseException) -> None:
    """Abort because of ``error``, which stays the one that is told."""
    if isinstance(error, UnsettledCommitError):
        return
    try:
        abort_job(job)
    except ShuffleError as another:
        error.add_note(f"and what the job had written could not be removed: {another}")


def clean_up(
    job: ShuffleJob, log: CommitLog, totals: TotalsFile | None, error: BaseException
) -> None:
    """After a commit that raised: take its traces back, unless it went through after all.

    Parameters
    ----------
    job, log
        The job, which holds the decision to commit, and the log that its entry was put into.
    totals
        Its totals; None where none were put.
    error
        What was raised.

    Raises
    ------
    UnsettledCommitError
        It may still go through.
    """
    try:
        log.settle(sync=job.options.sync)
    except ShuffleError as another:
        # The decision stays, so that no abort removes what the entry names.
        msg = (
            f"{job.storage.root}: the store did not answer, and it is not known whether job "
            f"{job.job_id} was committed ({error}; {another}). Its files were left; look whether "
            "there is a new version before the rows are written again"
        )
        if isinstance(error, Exception):
            raise UnsettledCommitError(msg) from error
        error.add_note(msg)  # it was interrupted, and shall end
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
            "it is there for good, but the commit ended with an error"
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


def is_committed(job: ShuffleJob, log: CommitLog) -> bool:
    """Whether a job is in the log as a version, though that may have expired."""
    end = log.find_job(job.job_id, after=job.base_version)
    return end is not None and not end.fenced
