"""Commit or abort: the one decision per job that two processes can never both take.

A file in the job's directory, created put-if-absent before the first step of either. Spark may
abort a job while its commit still runs in another process; without this the abort could delete
files that the commit is just publishing. Both sides of that race are here, and alone, so that they
are read together. See ``docs/format/v1.md``.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from arrow_format.errors import OutOfDiskError, ShuffleError
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from arrow_format.jobs.job import ShuffleJob

DECISION_NAME = "decision"
_ABORT = "abort"
_ABORTS = (_ABORT, "")
"""An empty file is an abort too, which a full disk still takes: its files must be removable."""


def _path(job: ShuffleJob) -> str:
    return f"{job.directory}/{DECISION_NAME}"


def _decided(job: ShuffleJob) -> str | None:
    """Return the content of the decision; None when it was withdrawn meanwhile."""
    stat = job.storage.stat(_path(job))
    if stat is None:
        return None
    try:
        (content,) = job.storage.get_ranges(_path(job), [(0, stat.num_bytes)])
    except ObjectNotFoundError:
        return None
    return bytes(content.to_pybytes()).decode("ascii", "replace")


def decide_commit(job: ShuffleJob, commit_id: str) -> None:
    """Take the decision to commit, as ``commit_id``.

    Raises ShuffleError where the job was aborted, or another process is committing it.
    """
    try:
        job.storage.put_if_absent(_path(job), commit_id.encode(), sync=job.options.sync)
    except ObjectExistsError as error:
        what = (
            "was aborted, and its files are removed"
            if _decided(job) in _ABORTS
            else "is being committed by another process, or was when that process died"
        )
        msg = f"{job.storage.root}: job {job.job_id} {what}; write the rows again"
        raise ShuffleError(msg) from error
    except BaseException:
        # Its answer may be lost. No entry is under way yet, so an abort may remove the files.
        with contextlib.suppress(ShuffleError):
            if _decided(job) == commit_id:
                withdraw(job)
        raise


def decide_abort(job: ShuffleJob) -> bool:
    """Take the decision to abort; False while a commit is under way, which then decides alone."""
    try:
        try:
            job.storage.put_if_absent(_path(job), _ABORT.encode(), sync=False)
        except OutOfDiskError:
            job.storage.put_if_absent(_path(job), b"", sync=False)
    except ObjectExistsError:
        return _decided(job) in _ABORTS
    return True


def withdraw(job: ShuffleJob) -> None:
    """Remove a decision that was not carried out."""
    job.storage.delete(_path(job))
