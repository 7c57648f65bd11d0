"""Opens what stands below a directory without following a symbolic link out of it.

Each part of a path is looked up in the directory that was opened before it, and none of them may be
a link: what a file of the shuffle names, or somebody with write access puts in the place of a
directory, cannot make a reader open, or an abort delete, anything elsewhere. The directory itself
may be a link where it is the user's choice, and none where a job made it; it may always be reached
through links. See ``docs/explanation/security.md``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC
_PASS = _DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)
"""To pass through a directory needs no permission to list it, where the system can tell."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a pipe would wait for a writer without O_NONBLOCK; it makes no difference to files."""


@dataclass(frozen=True, slots=True)
class Root:
    """The directory below which paths are opened."""

    path: Path
    may_be_link: bool = True

    def __str__(self) -> str:
        """Return its path."""
        return str(self.path)

    def open(self) -> int:
        """Open it to pass through; raises what :func:`parent_of` raises."""
        try:
            return os.open(self.path, _PASS | (0 if self.may_be_link else os.O_NOFOLLOW))
        except OSError:
            if not self.may_be_link and self.path.is_symlink():
                raise _link(self, "", self.path.name) from None
            raise


def parts_of(root: Root, path: str) -> list[str]:
    """Return the parts of a path relative to ``root``; none for the root itself.

    Raises
    ------
    CorruptShuffleError
        It leads upwards, is absolute, or is no path at all.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("/") or "\0" in path:
        msg = f"{root}: path {path!r} leads out of this directory"
        raise CorruptShuffleError(msg)
    return parts


@contextlib.contextmanager
def parent_of(root: Root, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that holds ``path``, to be used with ``dir_fd``.

    Yields
    ------
    tuple
        Its descriptor and the name of ``path`` in it; of the root itself ``.``.

    Raises
    ------
    OSError
        A directory on the way is not there, is none, or may not be passed.
    CorruptShuffleError
        There is a symbolic link on the way, or ``path`` leads out of the root.
    """
    *above, name = parts_of(root, path) or ["."]
    handle = root.open()
    try:
        for part in above:
            below = _open(root, path, handle, part, _PASS | os.O_NOFOLLOW)
            os.close(handle)
            handle = below
        yield handle, name
    finally:
        os.close(handle)


def open_file(root: Root, path: str) -> int:
    """Open a regular file for reading; raises what :func:`parent_of` raises.

    Also when it is a symbolic link itself, a directory, a pipe or a device.
    """
    with parent_of(root, path) as (directory, name):
        handle = _open(root, path, directory, name, _READ)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        msg = f"{root}/{path}: is no file; restore it from a copy"
        raise CorruptShuffleError(msg)
    return handle


def open_directory(root: Root, path: str) -> int:
    """Open a directory to list or sync it; raises what :func:`parent_of` raises."""
    with parent_of(root, path) as (directory, name):
        return _open(root, path, directory, name, os.O_RDONLY | os.O_NOFOLLOW | _DIRECTORY)


def look(root: Root, path: str) -> os.stat_result:
    """Return what the system says of a path; raises what :func:`parent_of` raises.

    Also when it is a symbolic link itself.
    """
    with parent_of(root, path) as (directory, name):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise _link(root, path, path)
    return found


def make_directories(root: Root, path: str, *, sync: bool) -> None:
    """Make the directories of ``path`` below a root that is there, as far as they are missing.

    Raises
    ------
    OSError
        One cannot be made.
    CorruptShuffleError
        One is a symbolic link.
    """
    parts = parts_of(root, path)
    for count in range(1, len(parts) + 1):
        with parent_of(root, "/".join(parts[:count])) as (directory, name):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=directory)
                if sync:
                    sync_directory(root, "/".join(parts[: count - 1]))
            os.close(_open(root, path, directory, name, _PASS | os.O_NOFOLLOW))


def sync_directory(root: Root, path: str) -> None:
    """Make the names in a directory durable."""
    handle = open_directory(root, path)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open(root: Root, path: str, directory: int, name: str, flags: int) -> int:
    try:
        return os.open(name, flags, dir_fd=directory)
    except OSError as error:
        # Which of the two it is for a link depends on the system and the flags.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(directory, name):
            raise _link(root, path, name) from error
        raise


def _is_link(directory: int, name: str) -> bool:
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISLNK(found.st_mode)


def _link(root: Root, path: str, name: str) -> CorruptShuffleError:
    msg = (
        f"{root}{'/' if path else ''}{path}: {name} is a symbolic link, and nothing in a shuffle "
        "may be one: it could lead anywhere. Put the file or directory itself there"
    )
    return CorruptShuffleError(msg)
