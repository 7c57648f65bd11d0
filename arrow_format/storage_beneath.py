"""Opens what stands below a directory without following a symbolic link out of it.

Each part of a path is looked up in the directory that was opened before it, and none of them may be
a link: what a file of the shuffle names, or somebody with write access puts in the place of a
directory, cannot make a reader open, or an abort delete, anything elsewhere. The directory itself
is the user's choice and may be reached through links. See ``docs/security.md``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
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


def parts_of(root: Path, path: str) -> list[str]:
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
def parent_of(root: Path, path: str) -> Iterator[tuple[int, str]]:
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
    handle = os.open(root, _PASS)
    try:
        for part in above:
            below = _open(root, path, handle, part, _PASS | os.O_NOFOLLOW)
            os.close(handle)
            handle = below
        yield handle, name
    finally:
        os.close(handle)


def open_file(root: Path, path: str) -> int:
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


def open_directory(root: Path, path: str) -> int:
    """Open a directory to list or sync it; raises what :func:`parent_of` raises."""
    with parent_of(root, path) as (directory, name):
        return _open(root, path, directory, name, os.O_RDONLY | os.O_NOFOLLOW | _DIRECTORY)


def look(root: Path, path: str) -> os.stat_result:
    """Return what the system says of a path; raises what :func:`parent_of` raises.

    Also when it is a symbolic link itself.
    """
    with parent_of(root, path) as (directory, name):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(found.st_mode):
        raise _link(root, path, path)
    return found


def make_directories(root: Path, path: str, *, sync: bool) -> None:
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


def sync_directory(root: Path, path: str) -> None:
    """Make the names in a directory durable."""
    handle = open_directory(root, path)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open(root: Path, path: str, directory: int, name: str, flags: int) -> int:
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


def _link(root: Path, path: str, name: str) -> CorruptShuffleError:
    msg = (
        f"{root}/{path}: {name} is a symbolic link, and nothing in a shuffle may be one: it could "
        "lead anywhere. Put the file or directory itself there"
    )
    return CorruptShuffleError(msg)
