"""Removing the local roots of a job, where tasks that nobody waits for may still put files.

A task may outlive its job: it was cancelled, or its twin was faster. A file that it makes in a root
after the root was listed must still be found by somebody. So a root goes only when it is empty, its
marker only after a listing that showed nothing else, and the list of a job's roots stays while one
of them holds anything. Once a root is gone no task makes it again without writing the list first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError, StorageError
from arrow_format.storage.local_dirs import MARKER_NAME, ROOT_LIST_NAME, bears_marker, put_root_list
from arrow_format.storage.open import open_made_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from arrow_format.storage.open import Storage

_ROUNDS = 3
"""How often a root is listed for files of tasks that still run."""


def is_root_or_rest(storage: Storage, job_id: str) -> bool:
    """Whether a directory named after a job may be cleared: it bears no marker but that job's.

    One without any is the rest of a removal that was cut short, since the marker goes before the
    directory.
    """
    return storage.stat(MARKER_NAME) is None or bears_marker(storage, job_id)


def clear_roots(paths: Sequence[str], job_id: str, live: Collection[str] = ()) -> bool:
    """Remove all files but live ones from the roots of a job; without these the roots as well.

    What bears the marker of another job is left alone.

    Returns
    -------
    bool
        Whether that is done; False when a task that still runs put something there meanwhile.

    Raises
    ------
    ShuffleError
        Something could not be removed; all else was.
    """
    first: ShuffleError | None = None
    is_done = True
    for path in paths:
        try:
            is_done = _clear_root(open_made_directory(path), job_id, live) and is_done
        except ShuffleError as error:
            first = first or error
    if first is not None:
        raise first
    return is_done


def is_any_there(paths: Sequence[str]) -> bool:
    """Whether one of several roots exists, or may exist where nobody can tell."""
    try:
        return any(open_made_directory(path).stat("") is not None for path in paths)
    except StorageError:
        return True


def _clear_root(storage: Storage, job_id: str, live: Collection[str]) -> bool:
    if not is_root_or_rest(storage, job_id):
        return True
    for _ in range(_ROUNDS):
        names = set(storage.list("")).difference([MARKER_NAME])
        for name in names.difference(live):
            storage.delete(name)
        if names.issubset(live):
            break
    if names.isdisjoint(live):
        remove_empty_root(storage)
    return not holds_garbage(storage, job_id, live)


def remove_empty_root(storage: Storage) -> None:
    """Remove a root that holds nothing, or its marker alone."""
    names = storage.list("")
    if names in ([], [MARKER_NAME]):
        # Only what is there: a read-only disk refuses to delete what it does not have.
        for name in names:
            storage.delete(name)
        storage.prune("", and_root=True)


def holds_garbage(storage: Storage, job_id: str, live: Collection[str]) -> bool:
    """Whether a root is there that holds files of the job which are not live, or none at all."""
    if storage.stat("") is None or not is_root_or_rest(storage, job_id):
        return False
    names = set(storage.list("")).difference([MARKER_NAME])
    stats = map(storage.stat, names.difference(live))
    return not names or any(stat is not None and not stat.is_directory for stat in stats)


def remove_root_list(
    storage: Storage, directory: str, roots: Sequence[str], live: Collection[str] = ()
) -> None:
    """Remove the list of a job's roots, unless one holds what has to be removed yet.

    Parameters
    ----------
    storage
        The shuffle.
    directory
        Of the job, whose id is its last part.
    roots
        The job's roots.
    live
        Names of files in roots that stay.

    Raises
    ------
    ShuffleError
        A root cannot be looked at: the list stays.
    """
    job_id = directory.rpartition("/")[2]
    opened = [open_made_directory(one) for one in roots]
    if not any(holds_garbage(one, job_id, live) for one in opened):
        storage.delete(f"{directory}/{ROOT_LIST_NAME}")
    # A task that makes its roots itself looks for the list after that: one of both sees the other.
    if any(holds_garbage(one, job_id, live) for one in opened):
        put_root_list(storage, directory, roots, sync=True)
