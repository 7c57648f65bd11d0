"""What a shuffle says of itself, for the local roots of its jobs: an id, and where it is.

The first job with local directories writes it, and who moves or copies the shuffle writes the next
number of it; the newest counts. A copy has it too, and is elsewhere: that is how it is known.
"""

from __future__ import annotations

import contextlib
import re
import uuid

from arrow_format.errors import CorruptShuffleError, StorageError
from arrow_format.log.names import IDENTITY_DIRECTORY, LOG_DIRECTORY
from arrow_format.storage.open import (
    ObjectExistsError,
    Storage,
    open_named_directory,
    scheme_of,
)
from arrow_format.storage.root_owner import Claim, Owner, is_same, read_small, to_json

_NAME = re.compile(r"[0-9]{20}\.json")


def claim_of(storage: Storage) -> Claim:
    """Return what a shuffle says of itself, and whether that is true.

    Raises CorruptShuffleError where it cannot be read.
    """
    newest = _newest(storage)
    if newest is None:
        return Claim(None, is_settled=False)
    path = f"{IDENTITY_DIRECTORY}/{newest}"
    owner = read_small(storage, path, Owner)
    if owner is None and storage.stat(path) is None:  # removed since, with the shuffle
        return claim_of(storage)
    if owner is None:
        msg = (
            f"{storage.root}/{path}: does not say which shuffle this is, so nothing is removed "
            "from its local directories; restore it from a copy"
        )
        raise CorruptShuffleError(msg)
    return Claim(owner, is_settled=_is_at(storage, owner))


def claim_roots(storage: Storage, *, sync: bool) -> Owner:
    """Return the owner of the local roots that a job makes; put it if there is none.

    Raises StorageError where the shuffle is not where it says, or it cannot be written.
    """
    for _ in range(2):
        claim = claim_of(storage)
        if claim.owner is None:
            put_owner(storage, uuid.uuid4().hex, sync=sync)
        elif claim.is_settled:
            return claim.owner
    was = claim.owner.path if claim.owner else "nowhere"
    msg = (
        f"{storage.root}: says that it is at {was}, so it was moved or is a copy, and it is not "
        f"known whose its local directories are. Run arrow-shuffle relocate {storage.root}, and "
        "write again"
    )
    raise StorageError(msg)


def put_owner(storage: Storage, shuffle_id: str, *, sync: bool) -> None:
    """Put an identity that says where a shuffle is; another process may put it first."""
    # First, so that no abort of another job finds the directory of the log empty and removes it.
    storage.make_directory(IDENTITY_DIRECTORY, sync=sync)
    newest = _newest(storage)
    number = 1 if newest is None else int(newest.partition(".")[0]) + 1
    owner = Owner(shuffle_id, storage.root, _inode(storage))
    path = f"{IDENTITY_DIRECTORY}/{number:020d}.json"
    with contextlib.suppress(ObjectExistsError):
        storage.put_if_absent(path, to_json(owner), sync=sync)


def is_in_use(owner: Owner, elsewhere_than: Storage) -> bool:
    """Whether an owner is a shuffle that can be seen from here, and not the given one."""
    if scheme_of(owner.path) is not None or is_same(elsewhere_than, owner.path, LOG_DIRECTORY):
        return False
    try:
        claim = claim_of(open_named_directory(owner.path))
    except (StorageError, CorruptShuffleError):
        return False
    return claim.is_settled and claim.owner == owner


def _newest(storage: Storage) -> str | None:
    return max(filter(_NAME.fullmatch, storage.list(IDENTITY_DIRECTORY)), default=None)


def _inode(storage: Storage) -> int:
    stat = storage.stat(LOG_DIRECTORY)
    return stat.inode if stat else 0


def _is_at(storage: Storage, owner: Owner) -> bool:
    return owner.inode == _inode(storage) and is_same(storage, owner.path, LOG_DIRECTORY)
