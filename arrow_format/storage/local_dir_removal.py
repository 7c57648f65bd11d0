"""Removes the local roots of a job, into which tasks may still write files.

A task may outlive its job: it was cancelled, or another attempt was faster. A later collection must
find a file that it makes in a root after the root was listed. So a root is removed only when it is
empty, its marker only after a listing that showed nothing else, and the list of a job's roots stays
while one of them holds anything, or cannot be seen. Once a root is removed, a task writes the list
before it makes the root again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from arrow_format.errors import ShuffleError, StorageError
from arrow_format.storage.local_dirs import ROOT_LIST_NAME, put_root_list
from arrow_format.storage.open import open_made_directory
from arrow_format.storage.root_owner import MARKER_NAME, Claim, LocalRoot, Owner, read_marker

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from arrow_format.storage.open import Storage

_ROUNDS = 3
"""Number of times a root is listed for files of tasks that still run."""


class Standing(Enum):
    """What a root is to a job or collection that would remove from it."""

    OURS = "ours"
    """Its owner's, or left of an interrupted removal, which deletes the marker first."""
    ANOTHERS = "another's"
    """Of another job, or another shuffle, which looks after it."""
    UNSEEN = "unseen"
    """Its disk is not mounted here."""
    UNSETTLED = "unsettled"
    """The shuffle was moved, or is a copy: no relocation has said yet whose the root is."""


@dataclass(frozen=True, slots=True)
class RootOfJob:
    """A local root of a job, for who would remove files from it."""

    root: LocalRoot
    job_id: str
    claim: Claim | None = None
    """Of the shuffle whose collection removes; None for the job itself, whose id says enough."""

    @property
    def storage(self) -> Storage:
        """Its files."""
        return open_made_directory(self.root.path)

    @property
    def owner(self) -> Owner | None:
        """What it bears, or else what the shuffle says of itself."""
        marker = read_marker(self.storage)
        if marker is not None:
            return marker.owner
        return self.claim.owner if self.claim else None

    def standing(self) -> Standing:
        """Look at the local directory and the marker."""
        if not self.root.is_seen:
            return Standing.UNSEEN
        if self.claim is not None and not self.claim.is_settled:
            return Standing.UNSETTLED
        storage = self.storage
        marker = read_marker(storage)
        if marker is None:
            # Left of a removal only where a list tells of the root: what the log names has files.
            is_rest = storage.stat(MARKER_NAME) is None
            is_known = self.claim is None or self.root.directory_id != ""
            return Standing.OURS if is_rest and is_known else Standing.ANOTHERS
        if marker.job_id != self.job_id:
            return Standing.ANOTHERS
        if self.claim is None or marker.owner == self.claim.owner:
            return Standing.OURS
        ours = self.claim.owner and self.claim.owner.id
        return Standing.UNSETTLED if marker.owner.id == ours else Standing.ANOTHERS

    def clear(self, live: Collection[str]) -> None:
        """Remove all files but live ones, and without live ones the root."""
        if self.standing() is not Standing.OURS:
            return
        storage = self.storage
        for _ in range(_ROUNDS):
            names = set(storage.list("")).difference([MARKER_NAME])
            for name in names.difference(live):
                storage.delete(name)
            if names.issubset(live):
                break
        if names.isdisjoint(live):
            _remove_empty(storage)

    def holds_garbage(self, live: Collection[str]) -> bool:
        """Whether it may hold files of the job that are not live, or exists and holds none."""
        standing = self.standing()
        if standing is not Standing.OURS:
            return standing is not Standing.ANOTHERS
        storage = self.storage
        if storage.stat("") is None:
            return False
        names = set(storage.list("")).difference([MARKER_NAME])
        stats = map(storage.stat, names.difference(live))
        return not names or any(stat is not None and not stat.is_directory for stat in stats)


def clear_roots(roots: Sequence[LocalRoot], job_id: str, live: Collection[str] = ()) -> None:
    """Remove all files but live ones from the roots of a job; a root without live files too.

    A directory that bears another job's marker is left alone, as is one that cannot be seen. An
    error is raised after the other roots are cleared.
    """
    first: ShuffleError | None = None
    for root in roots:
        try:
            RootOfJob(root, job_id).clear(live)
        except ShuffleError as error:
            first = first or error
    if first is not None:
        raise first


def is_any_there(paths: Sequence[str]) -> bool:
    """Whether one of several roots exists, or may exist because it cannot be checked."""
    try:
        return any(open_made_directory(path).stat("") is not None for path in paths)
    except StorageError:
        return True


def _remove_empty(storage: Storage) -> None:
    """Remove a root that holds nothing, or its marker alone."""
    names = storage.list("")
    if names in ([], [MARKER_NAME]):
        # Only names that were listed: a read-only disk refuses to delete any other.
        for name in names:
            storage.delete(name)
        storage.prune("", and_root=True)


def remove_root_list(
    storage: Storage, directory: str, roots: Sequence[LocalRoot], live: Collection[str] = ()
) -> None:
    """Remove the list of a job's roots, unless a root still holds files that are not live.

    ``directory`` is that of the job, with the job's id as its last part. The list also stays when a
    root cannot be checked, which raises an error, or cannot be seen.
    """
    job_id = directory.rpartition("/")[2]
    of_job = [RootOfJob(root, job_id) for root in roots]
    if not any(root.holds_garbage(live) for root in of_job):
        storage.delete(f"{directory}/{ROOT_LIST_NAME}")
    # A task or driver that makes a root puts the list again before its first file: one of the two
    # sees the other.
    if any(root.holds_garbage(live) for root in of_job):
        put_root_list(storage, directory, roots, sync=True)
