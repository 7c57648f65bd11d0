"""Temporary directories for spilled rows, which do not outlive their owner for long.

An owner that is killed cannot remove its directory, but the kernel releases the lock it holds in
it. The next process that makes a scratch directory next to it takes that for abandoned, and removes
it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

from arrow_format.errors import StorageError
from arrow_format.storage.local import PosixStorage

PREFIX = "arrow-shuffle-scratch-"
"""Prefix of the names of scratch directories."""

_LOCK = ".lock"


class ScratchDirectory:
    """A directory for one owner, removed by :meth:`remove` or with this object.

    It is made in ``parent``, by default the system's directory for temporary files, once the
    abandoned ones there are removed. Raises :class:`StorageError` when it cannot be made.
    """

    def __init__(self, parent: str | None = None) -> None:
        where = Path(parent or tempfile.gettempdir())
        try:
            remove_abandoned(where)
            path, lock = _make(where)
        except OSError as error:
            msg = (
                f"{where}: {error.strerror or error}; cannot make a scratch directory there. Name "
                "another, or give this user access"
            )
            raise StorageError(msg) from error
        self.path = str(path)
        """The directory, absolute."""
        self.storage = PosixStorage(self.path)
        """The storage that is rooted there."""
        self._owner = os.getpid()
        self._remove = weakref.finalize(self, _remove, path, lock, self._owner)

    @property
    def is_ours(self) -> bool:
        """Whether this process made it; a forked process must leave its files alone."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Remove the directory with its files; calling it again does nothing."""
        self._remove()


def _make(where: Path) -> tuple[Path, int]:
    """Make a directory and lock it; make another if a process took it for abandoned meanwhile."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where)).absolute()
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue
        try:
            if _is_taken(lock, path):
                return path, lock
        except OSError:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
            raise
        os.close(lock)


def _is_taken(lock: int, path: Path) -> bool:
    """Lock the file; whether that succeeded and it is still the directory's lock."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (path / _LOCK).stat().st_ino == os.fstat(lock).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def remove_abandoned(where: Path) -> None:
    """Remove this user's scratch directories below ``where`` whose owners are dead.

    One that its owner has not locked yet stays.
    """
    for path in where.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if path.stat().st_uid == os.getuid() and _is_taken(lock, path):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _remove(path: Path, lock: int, owner: int) -> None:
    # A forked process has a copy of the owner, but must leave its files alone.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
