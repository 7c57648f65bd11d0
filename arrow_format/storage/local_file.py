"""Files of local and mounted file systems: one that is written, and two ways to read one."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.errors import (
    ClosedError,
    CorruptShuffleError,
    OutOfDiskError,
    StorageError,
)
from arrow_format.storage.openat import Root, open_file, parent_of, sync_directory
from arrow_format.storage.protocol import ByteSource, ObjectExistsError, ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_IOV_MAX = 1024
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def os_errors(what: str, path: Path) -> Iterator[None]:
    """Turn an OSError into ours, with what was tried and where."""
    try:
        yield
    except FileNotFoundError as error:
        msg = f"{path}: not there; cannot {what}"
        raise ObjectNotFoundError(msg) from error
    except FileExistsError as error:
        msg = f"{path}: exists already; cannot {what}"
        raise ObjectExistsError(msg) from error
    except PermissionError as error:
        msg = f"{path}: permission denied; cannot {what}. Give this user access to it"
        raise StorageError(msg) from error
    except OSError as error:
        if error.errno in _OUT_OF_SPACE:
            msg = f"{path}: no space left; cannot {what}. Free space or write elsewhere"
            raise OutOfDiskError(msg) from error
        msg = f"{path}: {error.strerror or error}; cannot {what}"
        raise StorageError(msg) from error


@contextlib.contextmanager
def _gone_if_stale() -> Iterator[None]:
    """Say that an open file is not there any more, where another client of NFS has removed it."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)) from error


def above(path: str) -> str:
    """Return the path of the directory that an object is in, empty for the root."""
    return path.rpartition("/")[0]


def unlink(root: Root, path: str) -> None:
    """Remove a file below a root; raises OSError."""
    with parent_of(root, path) as (directory, name):
        os.unlink(name, dir_fd=directory)


class PosixWriter:
    """An :class:`ObjectWriter` over one file descriptor."""

    def __init__(self, root: Root, name: str, *, sync: bool) -> None:
        self._root = root
        self._name = name
        self._path = root.path / name
        self._sync = sync
        with os_errors("create it", self._path), parent_of(root, name) as (directory, last):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._handle: int | None = os.open(last, flags, 0o666, dir_fd=directory)

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        """See :meth:`ObjectWriter.writev`."""
        if self._handle is None:
            msg = f"{self._path}: already closed"
            raise ClosedError(msg)
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        with os_errors("write to it", self._path):
            for start in range(0, len(views), _IOV_MAX):
                _write_all(self._handle, views[start : start + _IOV_MAX])

    def truncate(self, num_bytes: int) -> None:
        """See :meth:`ObjectWriter.truncate`."""
        if self._handle is None:
            msg = f"{self._path}: already closed"
            raise ClosedError(msg)
        with os_errors("cut it", self._path):
            os.ftruncate(self._handle, num_bytes)
            os.lseek(self._handle, num_bytes, os.SEEK_SET)

    def close(self) -> None:
        """See :meth:`ObjectWriter.close`."""
        if self._handle is None:
            return
        with os_errors("finish it", self._path):
            if self._sync:
                os.fsync(self._handle)
        handle, self._handle = self._handle, None
        with os_errors("close it", self._path):
            os.close(handle)
            if self._sync:
                sync_directory(self._root, above(self._name))

    def abort(self) -> None:
        """See :meth:`ObjectWriter.abort`."""
        if self._handle is None:
            return
        handle, self._handle = self._handle, None
        with contextlib.suppress(OSError):
            os.close(handle)
        with contextlib.suppress(OSError, CorruptShuffleError):
            unlink(self._root, self._name)


def _write_all(handle: int, views: list[memoryview]) -> None:
    """Write all views; a file system may take fewer bytes at a time than it is given."""
    written = os.writev(handle, views)
    if written == sum(len(view) for view in views):
        return
    for view in views:
        taken = min(written, len(view))
        written -= taken
        rest = view[taken:]
        while rest:
            rest = rest[os.write(handle, rest) :]


class PosixReader:
    """A file that is read by ``pread`` into buffers of our own.

    A mapped file that is cut short kills the process that reads it; here it is an error.
    """

    def __init__(self, root: Root, path: str) -> None:
        self._path = root.path / path
        with os_errors("read it", self._path):
            self._handle = open_file(root, path)

    @property
    def num_bytes(self) -> int:
        """Length of the file now."""
        with os_errors("read it", self._path), _gone_if_stale():
            return os.fstat(self._handle).st_size

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """See :meth:`ObjectReader.get_ranges`."""
        with os_errors("read it", self._path), _gone_if_stale():
            _check_ranges(ranges, self.num_bytes, self._path)
            return [_pread(self._handle, offset, length, self._path) for offset, length in ranges]

    def close(self) -> None:
        """See :meth:`ObjectReader.close`."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class MappedReader:
    """A mapped file: no copy, for files that nobody changes while they are read."""

    def __init__(self, root: Root, path: str) -> None:
        self._path = root.path / path
        with os_errors("map it", self._path):
            handle = open_file(root, path)
            try:
                size = os.fstat(handle).st_size
                # An empty file cannot be mapped. The mapping outlives the descriptor.
                whole = mmap.mmap(handle, size, prot=mmap.PROT_READ) if size else b""
                self._whole = pa.py_buffer(whole)
            finally:
                os.close(handle)

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """See :meth:`ObjectReader.get_ranges`."""
        _check_ranges(ranges, self._whole.size, self._path)
        return [self._whole.slice(offset, length) for offset, length in ranges]

    def close(self) -> None:
        """See :meth:`ObjectReader.close`."""
        self._whole = pa.py_buffer(b"")


def _check_ranges(ranges: Sequence[tuple[int, int]], num_bytes: int, path: Path) -> None:
    """Refuse what lies outside, before anything is allocated: damage may name any length."""
    for offset, length in ranges:
        if offset < 0 or length < 0 or offset + length > num_bytes:
            msg = (
                f"{path}: has {num_bytes} bytes, expected at least {offset + length}; "
                "it was truncated or replaced after the commit"
            )
            raise CorruptShuffleError(msg)


def _pread(handle: int, offset: int, length: int, path: Path) -> pa.Buffer:
    buffer = pa.allocate_buffer(length)
    view = memoryview(buffer)
    done = 0
    while done < length:
        count = os.preadv(handle, [view[done:]], offset + done)
        if count == 0:
            msg = f"{path}: ended {length - done} bytes early; it was truncated while it was read"
            raise CorruptShuffleError(msg)
        done += count
    return buffer
