"""Settles whose local directories a shuffle's are, once it was moved or copied.

Local roots are named in the log by absolute path, so a copy names those of the original. Each says
whose it is (:mod:`arrow_format.storage.root_owner`); a shuffle that is not where it says removes
nothing from them until its user says whether it was moved, and takes them along, or is a copy, and
leaves them to the original.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from arrow_format.errors import OptionError
from arrow_format.jobs.gc_files import jobs_with_files
from arrow_format.jobs.job_files import job_directory
from arrow_format.log.identity import claim_of, claim_roots, is_in_use, put_owner
from arrow_format.read.shuffle import check_there
from arrow_format.report import Report
from arrow_format.storage.local_dirs import ROOT_LIST_NAME, read_root_list
from arrow_format.storage.open import Place, open_made_directory, open_storage
from arrow_format.storage.root_owner import Marker, read_marker, take_over

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from arrow_format.storage.open import Storage
    from arrow_format.storage.root_owner import Claim, LocalRoot, Owner

BECAME = ("moved", "copied")


@dataclass(frozen=True, slots=True)
class Relocation(Report):
    """What :meth:`arrow_shuffle.Shuffle.relocate` settled.

    .. code-block:: python

        relocation = arrow_shuffle.open_shuffle("/data/moved").relocate("moved")
        print(relocation.became, *relocation.unseen)

    Parameters
    ----------
    path
        Absolute path or URI of the shuffle.
    became
        ``moved`` or ``copied``.
    taken
        Directories of jobs in local directories that are the shuffle's from now on, and were
        written when it was elsewhere.
    unseen
        Local directories that cannot be seen from here: relocate again when they can.
    """

    path: str
    became: str
    taken: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    def _lines(self) -> Iterator[str]:
        if self.became == "copied":
            yield (
                f"{self.path}: a copy with an id of its own; what it reads in local directories "
                "belongs to the original"
            )
            return
        count = len(self.taken)
        what = f"{count} directories" if count != 1 else "1 directory"
        unseen = f"; unseen: {', '.join(self.unseen)}, mount and relocate again"
        yield (
            f"{self.path}: moved here, with {what} of jobs in local directories"
            f"{unseen if self.unseen else ''}"
        )


def relocate_shuffle(
    path: Place,
    became: Literal["moved", "copied"],
    *,
    storage_options: Mapping[str, str] | None = None,
) -> Relocation:
    """Say what became of a shuffle with local directories: it was moved here, or it is a copy.

    Parameters, result and errors are those of :meth:`arrow_shuffle.Shuffle.relocate`.
    """
    if became not in BECAME:
        msg = f"became={became!r}: expected 'moved' or 'copied'"
        raise OptionError(msg)
    storage = open_storage(path, storage_options)
    check_there(storage)
    claim = claim_of(storage)
    roots = dict(_roots(storage))
    owners = _owners(roots)
    if became == "copied" and claim.is_settled and {*owners.values()} <= {claim.owner}:
        msg = f"{storage.root}: is where it was written, and no copy; nothing was changed"
        raise OptionError(msg)
    if not roots and claim.owner is None:  # never had a local directory
        return Relocation(storage.root, became)
    if became == "copied":
        return _as_copy(storage, claim, roots, owners)
    return _as_moved(storage, claim, roots, owners)


def _as_copy(
    storage: Storage,
    claim: Claim,
    roots: Mapping[LocalRoot, str],
    owners: Mapping[LocalRoot, Owner],
) -> Relocation:
    if claim.is_settled and claim.owner in owners.values():
        # Said before, and not to its end: jobs that it has written since have roots of their own.
        theirs = {roots[root] for root, owner in owners.items() if owner != claim.owner}
    else:
        put_owner(storage, uuid.uuid4().hex, sync=True)
        theirs = set(roots.values())
    # What the original wrote down about jobs of its own.
    for job_id in sorted(theirs):
        storage.delete(f"{job_directory(job_id)}/{ROOT_LIST_NAME}")
    return Relocation(storage.root, "copied")


def _owners(roots: Mapping[LocalRoot, str]) -> dict[LocalRoot, Owner]:
    """Return whose the roots are that can be seen, and bear the marker of their job."""
    markers = {root: read_marker(open_made_directory(root.path)) for root in roots if root.is_seen}
    return {
        root: marker.owner
        for root, marker in markers.items()
        if marker is not None and marker.job_id == roots[root]
    }


def _as_moved(
    storage: Storage,
    claim: Claim,
    roots: Mapping[LocalRoot, str],
    owners: Mapping[LocalRoot, Owner],
) -> Relocation:
    for owner in {*owners.values(), claim.owner}:
        if owner is not None and is_in_use(owner, storage):
            msg = (
                f"{storage.root}: was not moved: the shuffle that its files in local directories "
                f"belong to is at {owner.path}. Relocate this one as copied, or remove that one; "
                "nothing was changed"
            )
            raise OptionError(msg)
    if not claim.is_settled:
        put_owner(storage, claim.owner.id if claim.owner else uuid.uuid4().hex, sync=True)
    ours = claim_roots(storage, sync=True)
    taken = [root for root, owner in owners.items() if owner != ours]
    for root in taken:
        take_over(root, Marker(roots[root], ours))
    unseen = {root.directory for root in roots if not root.is_seen}
    paths = tuple(root.path for root in taken)
    return Relocation(storage.root, "moved", paths, tuple(sorted(unseen)))


def _roots(storage: Storage) -> Iterator[tuple[LocalRoot, str]]:
    """Yield the local roots that any job's list names, each with the job."""
    for job_id in sorted(jobs_with_files(storage)):
        for root in read_root_list(storage, job_directory(job_id)):
            yield root, job_id
