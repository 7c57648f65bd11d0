"""Temporary directories for what is spilled: gone with their owner, however it ends.

An owner that is killed cannot remove its directory. It holds a lock in it that the kernel lets go,
so the next one that makes a scratch directory beside it sees that it is nobody's, and removes it.
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
"""What names of scratch directories begin with."""

_LOCK = ".lock"


class ScratchDirectory:
    """A directory of its own for one owner, removed by :meth:`remove` or with this object.

    Parameters
    ----------
    parent
        Where it is made; the system's directory for temporary files when None. What owners that
        were killed left there is removed first.

    Raises
    ------
    StorageError
        It cannot be made.
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
        """Whether this process made it; one that was forked must leave its files alone."""
        return os.getpid() == self._owner

    def remove(self) -> None:
        """Remove the directory and all in it; calling it again does nothing."""
        self._remove()


def _make(where: Path) -> tuple[Path, int]:
    """Make a directory with a lock that is held; another where someone took it for abandoned."""
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
    """Whether the lock is ours now, and still the one of the directory."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return (path / _LOCK).stat().st_ino == os.fstat(lock).st_ino
    except (BlockingIOError, FileNotFoundError):
        return False


def remove_abandoned(where: Path) -> None:
    """Remove the scratch directories below ``where`` whose owners are dead.

    Those of other users are left alone, and so are those whose owner has not locked them yet.
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
    # A process that was forked has a copy of the owner, and no business with its files.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
