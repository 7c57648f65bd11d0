"""Opens paths below a directory without following a symbolic link out of it.

Each part of a path is looked up in the directory that was opened before it, and none of them may be
a link. So neither a path that a file of the shuffle names, nor a link that somebody with write
access puts in place of a directory, can make a reader open or an abort delete anything elsewhere.
The root itself may be a link where the user chose it, but not where a job made it; it may always be
reached through links. Where there is openat2(2), files are read by one call of it that does the
same. See ``docs/explanation/security.md``.

Functions that take a root and a path raise OSError for a directory on the way that is missing, not
a directory, or not accessible, and :class:`CorruptShuffleError` for a symbolic link on the way, or
a path that leads out of the root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC
_PASS = _DIRECTORY | getattr(os, "O_PATH", os.O_RDONLY)
"""Passes through a directory; with O_PATH that needs no permission to list it."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Opening a pipe would wait for a writer without O_NONBLOCK, and of files one that is leased."""

_OPENAT2 = 437
"""On all processors."""
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08
_HOW = struct.pack("=QQQ", _READ, 0, _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)


def _with_openat2() -> Callable[..., int] | None:
    """Return the function that makes a system call, if there is openat2(2): from Linux 5.6 on."""
    if sys.platform != "linux":
        return None
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    number, size = ctypes.c_long, ctypes.c_size_t
    call.argtypes = [number, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, size]
    handle = call(_OPENAT2, -1, b"/", struct.pack("=QQQ", _PASS, 0, 0), len(_HOW))
    if handle < 0:  # an old system, or one that forbids what it does not know
        return None
    os.close(handle)
    return call


_system_call = _with_openat2()


@dataclass(frozen=True, slots=True)
class Root:
    """The directory below which paths are opened."""

    path: Path
    may_be_link: bool = True

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> int:
        """Return a descriptor of it to pass through."""
        try:
            return os.open(self.path, _PASS | (0 if self.may_be_link else os.O_NOFOLLOW))
        except OSError:
            if not self.may_be_link and self.path.is_symlink():
                raise _is_link_error(self, "", self.path.name) from None
            raise


def parts_of(root: Root, path: str) -> list[str]:
    """Return the parts of a path relative to ``root``; none for the root itself."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts or path.startswith("/") or "\0" in path:
        msg = f"{root}: path {path!r} leads out of this directory"
        raise CorruptShuffleError(msg)
    return parts


@contextlib.contextmanager
def parent_of(root: Root, path: str) -> Iterator[tuple[int, str]]:
    """Open the directory that holds ``path``, to be used with ``dir_fd``.

    Yields its descriptor and the name of ``path`` in it; for the root itself ``.``.
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


def open_file(root: Root, path: str) -> tuple[int, int]:
    """Open a regular file for reading; a link, directory, pipe or device is an error.

    Returns its descriptor and its size.
    """
    handle = _open_at_once(root, path)
    if handle is None:
        handle = _open_by_parts(root, path)
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        msg = f"{root}/{path}: is no file; restore it from a copy"
        raise CorruptShuffleError(msg)
    return handle, status.st_size


def _open_by_parts(root: Root, path: str) -> int:
    with parent_of(root, path) as (directory, name):
        try:
            return _open(root, path, directory, name, _READ)
        except BlockingIOError:  # leased, as by a server of files: its holder releases it
            return _open(root, path, directory, name, _READ & ~os.O_NONBLOCK)


def _open_at_once(root: Root, path: str) -> int | None:
    """Open a file for reading as openat2(2) does, below a root and without following a link.

    A lookup opens hundreds of files, each below several directories. None where the system has no
    such call, or it fails: then opening part by part says why.
    """
    if _system_call is None:
        return None
    relative = "/".join(parts_of(root, path))
    sys.audit("open", relative, None, _READ)  # as os.open does
    directory = root.open()
    try:
        handle = _system_call(_OPENAT2, directory, os.fsencode(relative), _HOW, len(_HOW))
        return None if handle < 0 else int(handle)
    finally:
        os.close(directory)


def open_directory(root: Root, path: str) -> int:
    """Open a directory to list or sync it."""
    with parent_of(root, path) as (directory, name):
        return _open(root, path, directory, name, os.O_RDONLY | os.O_NOFOLLOW | _DIRECTORY)


def stat_of(root: Root, path: str) -> os.stat_result:
    """Return the status of a path; one that is a link itself is an error."""
    with parent_of(root, path) as (directory, name):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise _is_link_error(root, path, path)
    return status


def make_directories(root: Root, path: str, *, sync: bool) -> None:
    """Make the missing directories of ``path`` below a root that exists."""
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
        # Which of them a link gives depends on the system and the flags.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(directory, name):
            raise _is_link_error(root, path, name) from error
        raise


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _is_link_error(root: Root, path: str, name: str) -> CorruptShuffleError:
    return CorruptShuffleError(
        f"{root}{'/' if path else ''}{path}: {name} is a symbolic link, and nothing in a shuffle "
        "may be one: it could lead anywhere. Put the file or directory itself there"
    )
