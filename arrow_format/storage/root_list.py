"""Which local roots a job may have files in, kept in its directory until it has ended.

The log names roots only once a job is committed. Of one that died nobody else knows where its files
are, and garbage collection reads it here.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError
from arrow_format.storage.local_dirs import is_root_of
from arrow_format.storage.open import ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.storage.open import Storage

ROOT_LIST_NAME = "local-roots.json"


def put_root_list(storage: Storage, directory: str, roots: Sequence[str], *, sync: bool) -> None:
    """Write down the roots of a job; nothing when it has none but the shuffle."""
    if roots and storage.stat(f"{directory}/{ROOT_LIST_NAME}") is None:
        with contextlib.suppress(ObjectExistsError):  # the same, by another process
            storage.put_if_absent(
                f"{directory}/{ROOT_LIST_NAME}", json.dumps(list(roots)).encode(), sync=sync
            )


def read_root_list(storage: Storage, directory: str) -> tuple[str, ...]:
    """Return the roots of a job; none when it wrote none down.

    Raises
    ------
    CorruptShuffleError
        The list cannot be understood.
    """
    path = f"{directory}/{ROOT_LIST_NAME}"
    stat = storage.stat(path)
    if stat is None:
        return ()
    try:
        (found,) = storage.get_ranges(path, [(0, stat.num_bytes)])
    except ObjectNotFoundError:  # the job has ended meanwhile
        return ()
    job_id = directory.rpartition("/")[2]
    with contextlib.suppress(ValueError, RecursionError):
        roots = json.loads(found.to_pybytes())
        # What it names is cleared and removed: nothing but directories that a job makes.
        if isinstance(roots, list) and all(
            isinstance(one, str) and is_root_of(one, job_id) for one in roots
        ):
            return tuple(roots)
    msg = f"{storage.root}/{path}: is no list of directories; look into it, and remove it by hand"
    raise CorruptShuffleError(msg)
