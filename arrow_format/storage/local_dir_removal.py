"""Removes the local roots of a job, into which tasks may still write files.

A task may outlive its job: it was cancelled, or another attempt was faster. A later collection must
find a file that it makes in a root after the root was listed. So a root is removed only when it is
empty, its marker only after a listing that showed nothing else, and the list of a job's roots stays
while one of them holds anything. Once a root is removed, a task writes the list before it makes the
root again.
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
"""Number of times a root is listed for files of tasks that still run."""


def is_root_or_rest(storage: Storage, job_id: str) -> bool:
    """Whether a directory named after a job may be cleared: it bears that job's marker, or none.

    One without a marker is left of an interrupted removal, which deletes the marker first.
    """
    return storage.stat(MARKER_NAME) is None or bears_marker(storage, job_id)


def clear_roots(paths: Sequence[str], job_id: str, live: Collection[str] = ()) -> bool:
    """Remove all files but live ones from the roots of a job; a root without live files too.

    A directory that bears another job's marker is left alone. Returns False when a task that still
    runs added files meanwhile. An error is raised after the other roots are cleared.
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
    """Whether one of several roots exists, or may exist because it cannot be checked."""
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
        # Only names that were listed: a read-only disk refuses to delete any other.
        for name in names:
            storage.delete(name)
        storage.prune("", and_root=True)


def holds_garbage(storage: Storage, job_id: str, live: Collection[str]) -> bool:
    """Whether a root exists and holds files of the job that are not live, or no files at all."""
    if storage.stat("") is None or not is_root_or_rest(storage, job_id):
        return False
    names = set(storage.list("")).difference([MARKER_NAME])
    stats = map(storage.stat, names.difference(live))
    return not names or any(stat is not None and not stat.is_directory for stat in stats)


def remove_root_list(
    storage: Storage, directory: str, roots: Sequence[str], live: Collection[str] = ()
) -> None:
    """Remove the list of a job's roots, unless a root still holds files that are not live.

    ``directory`` is that of the job, with the job's id as its last part. The list also stays when a
    root cannot be checked, which raises an error.
    """
    job_id = directory.rpartition("/")[2]
    opened = [open_made_directory(root) for root in roots]
    if not any(holds_garbage(root, job_id, live) for root in opened):
        storage.delete(f"{directory}/{ROOT_LIST_NAME}")
    # A task that makes its roots itself checks the list afterwards: one of the two sees the other.
    if any(holds_garbage(root, job_id, live) for root in opened):
        put_root_list(storage, directory, roots, sync=True)
