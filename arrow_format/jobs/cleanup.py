"""Removes the files of a job that no version names: of failed attempts, a failed commit, an abort.

The log says whether a job was committed. An abort that may run while another
process commits the same job first gives the job up in the log: of the two, the one that gets the
number wins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from arrow_format.errors import ShuffleError, StorageError, UnsettledCommitError
from arrow_format.log.commit_log import DROPPED, AlreadyCommittedError, CommitLog
from arrow_format.log.names import CONSUMER_DIRECTORY, entry_path, segment_of, segment_path
from arrow_format.storage.local_dir_removal import clear_roots, is_any_there, remove_root_list
from arrow_format.storage.local_dirs import ROOT_LIST_NAME, known_roots
from arrow_format.storage.open import open_made_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from arrow_format.jobs.job import ShuffleJob
    from arrow_format.log.entry import LogEntry
    from arrow_format.log.reader import LogView
    from arrow_format.model import MapOutput


E = TypeVar("E", "LogEntry", "LogEntry | None")

_committing: set[str] = set()
"""Jobs of this process of which an entry may be on its way to the log."""


def remove_losers(job: ShuffleJob, outputs: Sequence[MapOutput]) -> None:
    """Remove the files of failed attempts of this job; one that still runs is harmless."""
    live = {
        path.rpartition("/")[2]
        for output in outputs
        for file in output.files
        for path in (file.data_path, file.index_path, file.mask.path)
    }
    kept = {*live, ROOT_LIST_NAME}
    try:
        _remove(job, kept)
    finally:
        if job.local_roots:
            roots = known_roots(job.storage, job.directory, job.local_roots)
            clear_roots(roots, job.job_id, live)
            if not any(file.root for output in outputs for file in output.files):
                remove_root_list(job.storage, job.directory, roots)
        job.storage.prune(job.directory, and_root=False)


def abort_job(job: ShuffleJob, *, failed: bool = True, alone: bool = False) -> None:
    """Remove everything the job wrote, unless it was committed.

    Where ``failed``, consumers that wait for its result learn that nothing comes; otherwise its
    rows are in the log already, or it had none. ``alone`` says that no commit of the job can be
    under way in any process. Raises ShuffleError where something could not be removed; the rest
    was, and the caller may try again.
    """
    # The job's directory alone does not say whether there are files: a commit prunes it when all
    # of them are in local roots. In a store it takes listings, as to remove them does.
    has_files = (
        not job.storage.has_directories
        or job.storage.stat(job.directory) is not None
        or is_any_there(job.local_roots)
    )
    log = CommitLog(job.storage)
    if alone and job.job_id not in _committing:
        end = log.find_job(job.job_id, after=job.base_version)
        if end is not None and not end.fenced:
            return
    elif not has_files and not job.storage.puts_may_come_late:
        return  # a commit that began would not find them
    elif not log.give_up(job.job_id, after=job.base_version, sync=job.options.sync, failed=failed):
        return
    if has_files:
        remove_files(job)
    if failed and alone and _is_awaited(job, log):
        log.give_up(job.job_id, after=job.base_version, sync=job.options.sync, failed=True)
    # A put that failed may have made the directory of its segment.
    job.storage.prune(segment_path(segment_of(job.base_version + 1)), and_root=False)
    job.storage.prune(job.directory, and_root=job.makes_root)


def _is_awaited(job: ShuffleJob, log: CommitLog) -> bool:
    """Whether consumers wait for a first version."""
    return bool(job.storage.list(CONSUMER_DIRECTORY)) and not log.view().state.version


def remove_files(job: ShuffleJob) -> None:
    """Remove all files of a job that will not be committed, and the list of its local roots."""
    try:
        roots = known_roots(job.storage, job.directory, job.local_roots)
        clear_roots(roots, job.job_id)
        # Only now: after a crash the list says where files are.
        remove_root_list(job.storage, job.directory, roots)
    finally:
        # Repeatedly: a task that still runs may put a file meanwhile.
        for _ in range(3):
            if not _remove(job, {ROOT_LIST_NAME}):
                break


def _remove(job: ShuffleJob, kept: Collection[str]) -> bool:
    """Remove the files of a job in the shuffle but those of some names; return whether any was."""
    listed = job.look_into(job.storage.list)
    dead = [f"{above}/{name}" for above, names in listed for name in names if name not in kept]
    job.storage.delete_all(dead)
    return bool(dead)


def abort_after(job: ShuffleJob, error: BaseException) -> None:
    """Abort because of ``error``; a failure of the abort becomes a note of it.

    No other process commits the job.
    """
    try:
        abort_job(job, alone=True)
    except ShuffleError as another:
        error.add_note(f"and what the job had written could not be removed: {another}")


def version_after(job: ShuffleJob) -> int | None:
    """Return the version of a job whose commit failed, and which was aborted; None if it has none.

    None says that it never will. Raises ShuffleError where that is not known.
    """
    end = CommitLog(job.storage).find_job(job.job_id, after=job.base_version)
    if end is None and job.job_id in _committing:
        msg = f"{job.storage.root}: the entry of job {job.job_id} may be on its way"
        raise UnsettledCommitError(msg)
    return None if end is None or end.fenced else end.version


def append_entry(
    job: ShuffleJob, log: CommitLog, decide: Callable[[LogView], LogEntry | None]
) -> LogEntry | None:
    """Commit a job as :meth:`CommitLog.append` does; where it fails, find out whether it succeeded.

    A request without an answer may still be on its way to the store: the job is given up, which
    takes the number it would get. Raises UnsettledCommitError where that fails too, and
    StorageError where the commit did succeed.
    """
    _committing.add(job.job_id)
    try:
        entry = log.append(
            decide,
            sync=job.options.sync,
            view=None if job.view.last is None else job.view,
            job_id=job.job_id,
            after=job.base_version,
        )
    except AlreadyCommittedError:
        _committing.discard(job.job_id)
        raise
    except BaseException as error:
        _settle(job, log, error)
        raise
    _committing.discard(job.job_id)
    if entry is not None and entry.version == 1 and not _has_files(job, entry):
        view = log.view()
        if view.newest <= 1 or DROPPED in view.state.writers:  # else it is one of the past already
            job.storage.delete(entry_path(1))
            job.storage.prune(segment_path(0), and_root=True)
            raise log.removed_error(job.job_id)
    return entry


def _has_files(job: ShuffleJob, entry: LogEntry) -> bool:
    """Whether the first file of a job is there, or it has none: else its shuffle was dropped.

    For the entry that begins a log, which may be where another log was. A store is not asked again.
    """
    file = next((file for output in entry.map_outputs for file in output.files), None)
    if file is None or not job.storage.has_directories:
        return True
    storage = open_made_directory(file.root) if file.root else job.storage
    return storage.stat(file.data_path) is not None


def publish(log: CommitLog, decide: Callable[[LogView], E], what: str) -> E:
    """Commit an entry that names no new file, durably; ``what`` it does is for messages.

    Returns None where ``decide`` does. Raises as :meth:`CommitLog.append`, and UnsettledCommitError
    where the put has no answer.
    """
    try:
        entry = log.append(decide, sync=True)
    except StorageError as error:
        if not log.has_put:
            raise
        msg = (
            f"{log.root}: it is not known whether {what}, since the store did not answer, or "
            f"refused to ({error}). Look at the newest version, then try again"
        )
        raise UnsettledCommitError(msg) from error
    return entry  # type: ignore[return-value]  # None where decide returns it


def _settle(job: ShuffleJob, log: CommitLog, error: BaseException) -> None:
    end = None
    try:
        if log.is_unanswered:
            log.give_up(job.job_id, after=job.base_version, sync=job.options.sync, failed=True)
        if log.has_put:
            end = log.find_job(job.job_id, after=job.base_version)
    except ShuffleError as another:
        msg = (
            f"{job.storage.root}: it is not known whether job {job.job_id} was committed, since "
            f"the store did not answer, or refused to ({error}; {another}). Its files were left; "
            "check whether there is a new version before you write the rows again"
        )
        _raise_or_note(UnsettledCommitError, msg, error)
        return
    _committing.discard(job.job_id)
    if end is not None and not end.fenced:
        but = (
            "and durably, but the commit ended with an error"
            if job.storage.keeps_what_it_shows or log.is_answered
            else "but it is not known whether that would survive a power failure"
        )
        msg = (
            f"{job.storage.root}: committed as version {end.version}, {but} ({error}). "
            "Do not write the rows again"
        )
        _raise_or_note(StorageError, msg, error)


def _raise_or_note(kind: type[ShuffleError], msg: str, error: BaseException) -> None:
    if isinstance(error, Exception):
        raise kind(msg) from error
    error.add_note(msg)  # an interrupt stays one
