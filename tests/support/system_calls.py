"""The system calls below storage: counted, failed one at a time, ended for good, or forgotten.

What is under test calls the real file system; only calls that change something below one directory
go through here. A *death* ends the process as SIGKILL would: the current call happens, happens in
part or does not, and whatever clean-up code tries afterwards has no effect. A *power failure* takes
away besides what was not fsynced: file contents, and the names of files and directories. What was
removed may be there again as long as the directory that held it was not fsynced.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CHANGING = ("open", "writev", "write", "ftruncate", "fsync", "link", "unlink", "mkdir", "rmdir")

FAULTS = ("dies before", "dies after", "dies within", "EIO", "ENOSPC", "told wrong")
"""What may happen at a call. ``told wrong``: it took effect and reports an error all the same, as a
network file system may when it tries again what went through."""


class Death(BaseException):
    """The process is gone; nothing but a test may catch this."""


class SystemCalls:
    """Wraps the calls of :mod:`os` that change something below a directory.

    Parameters
    ----------
    root
        The directory; others are left alone.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.names: list[tuple[str, str]] = []
        """Call and path of each, in order, paths relative to the root."""
        self.is_dead = False
        self._fault: tuple[int, str] | None = None
        self._paths: dict[int, str] = {}
        self._synced_bytes: dict[int, int] = {}
        """By inode: how many bytes survive a power failure."""
        self._unsynced_names: set[str] = set()
        self._unsynced_removals: dict[str, Path | None] = {}
        """Names that had been durable, and where the file is kept; None for a directory."""
        self._kept = Path(tempfile.mkdtemp(prefix="removed-", dir=root.parent))
        weakref.finalize(self, shutil.rmtree, self._kept, ignore_errors=True)
        self._usual: dict[str, Any] = {}

    def fail(self, number: int, fault: str) -> None:
        """Let call ``number``, counted from now, meet with a fault."""
        self._fault = (len(self.names) + number, fault)

    @contextmanager
    def installed(self) -> Iterator[SystemCalls]:
        """Put the wrappers in place; a death ends the block."""
        usual: dict[str, Any] = {name: getattr(os, name) for name in (*CHANGING, "close")}
        self._usual = usual
        try:
            for name in CHANGING:
                setattr(os, name, self._wrapped(name, usual[name]))
            setattr(os, "close", self._closing(usual["close"]))  # noqa: B010 (a type of its own)
            yield self
        except Death:
            self.is_dead = True
        finally:
            for name, call in usual.items():
                setattr(os, name, call)
            for handle in self._paths:  # the kernel closes what a dead process had open
                os.close(handle)
            self._paths.clear()

    def lose_power(self, comes_back: Callable[[], bool] = lambda: True) -> None:
        """Take away what was not fsynced, and bring back what was removed and not fsynced either.

        Parameters
        ----------
        comes_back
            Asked for each removal: a file system may have made any of them durable.
        """
        for name in sorted(self._unsynced_names, key=len):
            path = Path(name)
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()
        for name, kept in sorted(self._unsynced_removals.items(), key=lambda one: len(one[0])):
            path = Path(name)
            # Without its directory a file is lost, whatever became of its own name.
            if comes_back() and path.parent.is_dir() and not path.exists():
                path.mkdir() if kept is None else os.link(kept, path)
        for path in Path(self._root).rglob("*"):
            if path.is_file():
                size = self._synced_bytes.get(path.stat().st_ino)
                if size is not None and size < path.stat().st_size:
                    os.truncate(path, size)
        shutil.rmtree(self._kept)

    def _below(self, path: object, directory: int | None) -> str | None:
        """Absolute path of what a call is about, if that is below the root."""
        if isinstance(path, int):
            return self._paths.get(path)
        text = _absolute(path, directory)
        return text if text == self._root or text.startswith(f"{self._root}/") else None

    def _closing(self, usual: Callable[[int], None]) -> Callable[[int], None]:
        def close(handle: int) -> None:
            self._paths.pop(handle, None)
            usual(handle)

        return close

    def _wrapped(self, name: str, usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            path = self._below(args[0], kwargs.get("dir_fd", kwargs.get("src_dir_fd")))
            changes = name != "open" or args[1] & os.O_CREAT
            if path is None or not changes:
                result = usual(*args, **kwargs)
                if name == "open" and path is not None:
                    self._paths[result] = path
                return result
            if self.is_dead:
                raise Death
            number = len(self.names)
            self.names.append((name, os.path.relpath(path, self._root)))
            fault = self._fault[1] if self._fault and self._fault[0] == number else None
            if fault == "dies before":
                self._die()
            if fault == "dies within" and name in ("writev", "write"):
                self._write_half(args)
            if fault == "EIO":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if fault == "ENOSPC" and name not in ("unlink", "rmdir", "ftruncate"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if name in ("unlink", "rmdir"):
                self._keep(name, path)
            # Whether the disk flushes makes no difference to what is seen here.
            result = None if name == "fsync" else usual(*args, **kwargs)
            made = path
            if name == "link":
                made = _absolute(args[1], kwargs.get("dst_dir_fd"))
            self._note(name, path, made, args, result)
            if fault in ("dies after", "dies within"):
                self._die()
            if fault == "told wrong" and name in ("link", "unlink", "mkdir", "fsync", "rmdir"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return result

        return call

    def _keep(self, name: str, path: str) -> None:
        """Before a name goes: keep what it names, since a power failure may bring it back."""
        if path in self._unsynced_names or path in self._unsynced_removals:
            return
        kept = self._kept / str(len(self.names))
        if name == "unlink" and os.path.lexists(path):
            self._usual["link"](path, kept, follow_symlinks=False)
            self._unsynced_removals[path] = kept
        elif name == "rmdir" and Path(path).is_dir() and not any(Path(path).iterdir()):
            self._unsynced_removals[path] = None

    def _die(self) -> None:
        self.is_dead = True
        raise Death

    def _write_half(self, args: Sequence[Any]) -> None:
        buffers = args[1] if isinstance(args[1], list) else [args[1]]
        whole = b"".join(bytes(buffer) for buffer in buffers)
        os.pwrite(args[0], whole[: len(whole) // 2], os.lseek(args[0], 0, os.SEEK_CUR))
        self._die()

    def _note(self, name: str, path: str, made: str, args: Sequence[Any], result: Any) -> None:
        """Keep account of what a power failure takes away."""
        if name == "open":
            self._paths[result] = path
            self._unsynced_names.add(path)
            self._synced_bytes[os.fstat(result).st_ino] = 0
        elif name == "fsync":
            found = os.fstat(args[0])
            if Path(path).is_dir():
                self._unsynced_names = {
                    one for one in self._unsynced_names if str(Path(one).parent) != path
                }
                self._forget_removals(path)
            else:
                self._synced_bytes[found.st_ino] = found.st_size
        elif name in ("link", "mkdir"):
            self._unsynced_names.add(made)
        elif name in ("unlink", "rmdir"):
            self._unsynced_names.discard(path)

    def _forget_removals(self, directory: str) -> None:
        """What was removed from a directory that is fsynced, with all below, is gone for good."""
        gone = [one for one in self._unsynced_removals if str(Path(one).parent) == directory]
        self._unsynced_removals = {
            one: kept
            for one, kept in self._unsynced_removals.items()
            if not any(one == name or one.startswith(f"{name}/") for name in gone)
        }


def _absolute(path: object, directory: int | None) -> str:
    base = Path() if directory is None else Path(f"/proc/self/fd/{directory}").readlink()
    return os.path.normpath((base / os.fspath(path)).absolute())  # type: ignore[call-overload, no-any-return]
