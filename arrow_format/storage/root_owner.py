"""Whose a local root is, and whether its disk is there: what removals ask before they remove.

Three small files say it. A local directory in use holds an *id*, made by the first job there: where
it is missing, or another than the list of a job's roots has, a disk is not mounted, and what is not
found there is not gone. Each root bears a *marker* with its job and its *owner*, which is a shuffle
and its place: a copy of a shuffle names the same roots, and must not remove what the original
reads. Readers ask for the job alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec

from arrow_format.errors import ShuffleError
from arrow_format.storage.open import (
    ObjectExistsError,
    ObjectNotFoundError,
    Storage,
    open_made_directory,
    open_named_directory,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

MARKER_NAME = "arrow-shuffle-root.json"
DIRECTORY_ID_NAME = "arrow-shuffle-directory.json"
_MAX_BYTES = 64 << 10
"""Of a marker or an id: far more than any has."""

_Kind = TypeVar("_Kind")


class Owner(msgspec.Struct, frozen=True):
    """A shuffle and where it is: what may remove from the local roots of its jobs."""

    id: str
    """Of the shuffle with all its versions; a copy, once relocated as one, has its own."""
    path: str
    """Absolute path or URI of the shuffle."""
    inode: int
    """Of the directory of its log, and no device, whose number changes with a mount; 0 in an
    object store."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a shuffle says of itself, against which the markers of roots are compared."""

    owner: Owner | None
    """As it is written in the shuffle; None where nothing is."""
    is_settled: bool
    """Whether the shuffle is where that says. Otherwise it was moved, or it is a copy."""


class Marker(msgspec.Struct, frozen=True):
    """What a root bears."""

    job_id: str
    owner: Owner


class LocalRoot(msgspec.Struct, frozen=True):
    """A root as the list in its job's directory has it."""

    path: str
    directory_id: str | None = ""
    """Id of the local directory; None where that could not be made, so that nothing is there, and
    "" where no list says it."""

    @property
    def directory(self) -> str:
        """The local directory that it is in."""
        return posixpath.dirname(self.path)

    @property
    def is_seen(self) -> bool:
        """Whether its local directory is there, so that a root that is not has been removed."""
        if self.directory_id is None:
            return True
        found = directory_id(self.directory)
        return found is not None and self.directory_id in ("", found)


def is_same(storage: Storage, path: str, below: str) -> bool:
    """Whether a path leads to the directory of a storage, be it by a link or another mount.

    ``below`` is a directory in both that is compared.
    """
    if storage.root == path:
        return True
    try:
        return storage.has_directories and os.path.samefile(
            f"{storage.root}/{below}", f"{path}/{below}"
        )
    except (OSError, ValueError):
        return False


class _DirectoryId(msgspec.Struct, frozen=True):
    id: str


def read_small(storage: Storage, path: str, kind: type[_Kind]) -> _Kind | None:
    """Return what a small JSON file says; None where there is none, or it says something else.

    Raises StorageError where it cannot be read, and CorruptShuffleError for a link.
    """
    stat = storage.stat(path)
    if stat is None or stat.is_directory or stat.num_bytes > _MAX_BYTES:
        return None
    try:
        (content,) = storage.get_ranges(path, [(0, stat.num_bytes)])
    except ObjectNotFoundError:  # another removal was faster
        return None
    with contextlib.suppress(ValueError, RecursionError):
        return from_json(content.to_pybytes(), kind)
    return None


def to_json(what: object) -> bytes:
    """Return a struct as JSON, of which a text may have half a surrogate pair, as paths do."""
    return json.dumps(msgspec.to_builtins(what)).encode() + b"\n"


def from_json(text: bytes, kind: type[_Kind]) -> _Kind:
    """Return what :func:`to_json` took; raises ValueError or RecursionError for anything else."""
    return msgspec.convert(json.loads(text), kind)


def directory_id(local_dir: str) -> str | None:
    """Return the id of a local directory; None where it has none, or cannot be seen."""
    with contextlib.suppress(ShuffleError):
        known = read_small(open_named_directory(local_dir), DIRECTORY_ID_NAME, _DirectoryId)
        return known.id if known else None
    return None


def _make_directory_id(local_dir: str, *, sync: bool) -> str | None:
    """Make a local directory with its id, unless it has one; None where that cannot be made."""
    known = directory_id(local_dir)
    if known is None:
        storage = open_named_directory(local_dir)
        text = to_json(_DirectoryId(uuid.uuid4().hex))
        with contextlib.suppress(ShuffleError):  # another job was faster, or it takes no file
            storage.make_directory("", sync=sync)
            storage.put_if_absent(DIRECTORY_ID_NAME, text, sync=sync)
        known = directory_id(local_dir)
    return known


def list_roots(paths: Iterable[str], *, sync: bool) -> list[LocalRoot]:
    """Return roots to be made, each with the id of its local directory, which is made."""
    return [
        LocalRoot(path, _make_directory_id(posixpath.dirname(path), sync=sync)) for path in paths
    ]


def put_marker(storage: Storage, marker: Marker, *, sync: bool) -> None:
    """Mark a root, unless it bears a marker."""
    with contextlib.suppress(ObjectExistsError):  # another task was faster
        storage.put_if_absent(MARKER_NAME, to_json(marker), sync=sync)


def take_over(root: LocalRoot, marker: Marker) -> None:
    """Put a marker in the place of that of a root, which has one at any moment."""
    open_made_directory(root.path).replace(MARKER_NAME, to_json(marker), sync=True)


def read_marker(storage: Storage) -> Marker | None:
    """Return the marker of a root, if it bears one; see :func:`read_small` for errors."""
    return read_small(storage, MARKER_NAME, Marker)
