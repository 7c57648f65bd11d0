"""Storage in a local directory, and its files: created exclusively, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from arrow_format.errors import (
    ClosedError,
    CorruptShuffleError,
    OutOfDiskError,
    ShuffleError,
    StorageError,
)
from arrow_format.storage.openat import (
    Root,
    make_directories,
    open_directory,
    open_file,
    parent_of,
    parts_of,
    stat_of,
    sync_directory,
)
from arrow_format.storage.options import StorageOptions
from arrow_format.storage.protocol import (
    ByteSource,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
    StoreRefusedError,
    check_length,
    truncated_error,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_IOV_MAX = 1024
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
PROBED = "map_outputs"
"""Where it is asked: a job makes this directory before it writes."""
_HAVE_LINKS: set[str] = set()
"""Roots of which this process has asked it."""


GAP_BYTES = 32 << 10
"""Copied from the page cache in the time of another system call with a buffer of its own."""


class PosixStorage:
    """A shuffle in a directory of a local or mounted POSIX file system.

    Put-if-absent is a temporary file, fsync, ``link`` to the final name and fsync of the directory;
    ``link`` fails when the name exists and never shows part of a file.

    With ``makes_directories`` what puts a file makes missing ones. ``may_be_link`` says whether
    the root itself may be a symbolic link, as a directory that the user names may be.
    """

    options = StorageOptions()
    max_requests = 1
    gap_bytes = GAP_BYTES
    puts_may_come_late = False
    has_directories = True
    keeps_what_it_shows = False

    def __init__(self, root: str, makes_directories: bool = True, may_be_link: bool = True) -> None:
        self.root = str(Path(root).absolute())
        self._root = Path(self.root)
        self._base = Root(self._root, may_be_link)
        self._makes_directories = makes_directories

    def __reduce__(self) -> tuple[type[PosixStorage], tuple[str, bool, bool]]:
        return PosixStorage, (self.root, self._makes_directories, self._base.may_be_link)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PosixStorage):
            return NotImplemented
        return (type(self), self.__reduce__()) == (type(other), other.__reduce__())

    def __hash__(self) -> int:
        return hash(self.root)

    def __repr__(self) -> str:
        return f"PosixStorage({self.root!r})"

    @property
    def place(self) -> tuple[frozenset[str], str]:
        return frozenset(), os.path.realpath(self.root)

    def without_new_directories(self) -> PosixStorage:
        return PosixStorage(self.root, False, self._base.may_be_link)

    def make_directory(self, path: str, *, sync: bool) -> None:
        with os_errors("make the directory", self._root / path):
            try:
                self._make_directory(path, sync=sync)
            except FileNotFoundError:
                # Another process removed an empty directory on the way, as a job does at its end.
                self._make_directory(path, sync=sync)

    def _make_directory(self, path: str, *, sync: bool) -> None:
        missing = []
        parent = self._root
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        self._root.mkdir(parents=True, exist_ok=True)
        if sync:
            for made in missing:
                sync_directory(Root(made.parent), "")
        make_directories(self._base, path, sync=sync)

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        return self._create(path, sync=sync)

    def _create(self, path: str, *, sync: bool) -> PosixWriter:
        """Create a file; try again if another job removed its empty directory meanwhile."""
        if not self._makes_directories:
            return PosixWriter(self._base, path, sync=sync)
        try:
            self.make_directory(above(path), sync=sync)
            return PosixWriter(self._base, path, sync=sync)
        except ObjectNotFoundError:
            self.make_directory(above(path), sync=sync)
            return PosixWriter(self._base, path, sync=sync)

    def check_puts(self, *, for_long: bool = False) -> None:
        """Raise StoreRefusedError where there are no hard links; asked once for each root.

        One where no job has begun, or that takes no file of this user, answers at the first put.
        """
        if self.root in _HAVE_LINKS or not (self._root / PROBED).is_dir():
            return
        _HAVE_LINKS.add(self.root)
        name = f"{PROBED}/.tmp-links-{secrets.token_hex(8)}"
        try:
            self._put_if_absent(name, b"", sync=False)
        except StoreRefusedError:
            _HAVE_LINKS.discard(self.root)
            raise
        except ShuffleError:
            return
        finally:
            with contextlib.suppress(OSError, CorruptShuffleError):
                unlink(self._base, name)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        try:
            self._put_if_absent(path, data, sync=sync)
        except ObjectNotFoundError:
            # This writer stalled, and garbage collection took its temporary file for abandoned.
            self._put_if_absent(path, data, sync=sync)

    def _put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        with self._temporary(path, data, sync=sync) as (directory, temporary, name):
            _link(directory, temporary, name, self._root / path)

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        """Put an object in the place of another; readers see the one or the other, whole."""
        with self._temporary(path, data, sync=sync) as (directory, temporary, name):
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)

    @contextlib.contextmanager
    def _temporary(self, path: str, data: bytes, *, sync: bool) -> Iterator[tuple[int, str, str]]:
        """Write a temporary file beside a path, for the caller to give it that name.

        Yields the descriptor of their directory, and both names in it.
        """
        directory_path, slash, last = path.rpartition("/")
        temporary = f".tmp-{last}-{secrets.token_hex(8)}"
        temporary_path = directory_path + slash + temporary
        writer = self._create(temporary_path, sync=sync)
        try:
            writer.writev([data])
            writer.close()
            with os_errors("create it", self._root / path):
                with parent_of(self._base, path) as (directory, name):
                    yield directory, temporary, name
                if sync:
                    sync_directory(self._base, directory_path)
        finally:
            writer.abort()
            with contextlib.suppress(OSError, CorruptShuffleError):
                unlink(self._base, temporary_path)

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        return MappedReader(self._base, path) if mapped else PosixReader(self._base, path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with contextlib.closing(self.open_reader(path)) as reader:
            return reader.get_ranges(ranges)

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        where = f"{self.root}/{path}"
        with os_errors("read it", where):
            handle, found = open_file(self._base, path)
            try:
                check_length(where, found, num_bytes)
                whole = os.pread(handle, found, 0)
                if len(whole) < found:  # the system may give fewer bytes at a time
                    whole = bytes(_pread(handle, 0, found, where).to_pybytes())
                return whole
            finally:
                os.close(handle)

    def stat(self, path: str) -> ObjectStat | None:
        with os_errors("look at it", self._root / path):
            try:
                status = stat_of(self._base, path)
            except (FileNotFoundError, NotADirectoryError):
                if path or not self._root.exists():
                    return None
                status = self._root.stat()  # the root itself may be anything but a directory
            return ObjectStat(
                status.st_size,
                stat.S_ISDIR(status.st_mode),
                status.st_mtime_ns // 1_000_000,
                status.st_ino,
            )

    def list(self, path: str) -> list[str]:
        with os_errors("list it", self._root / path):
            try:
                handle = open_directory(self._base, path)
            except (FileNotFoundError, NotADirectoryError):
                return []
            try:
                return sorted(os.listdir(handle))
            finally:
                os.close(handle)

    def files(self, path: str, *, depth: int = 1) -> dict[str, ObjectStat]:
        files: dict[str, ObjectStat] = {}
        for name in self.list(path):
            below = f"{path}/{name}" if path else name
            status = self.stat(below)
            if status is not None and not status.is_directory:
                files[below] = status
            elif status is not None and depth > 1:
                files |= self.files(below, depth=depth - 1)
        return files

    def delete(self, path: str) -> None:
        with os_errors("delete it", self._root / path), contextlib.suppress(FileNotFoundError):
            unlink(self._base, path)

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def prune(self, path: str, *, and_root: bool) -> None:
        parts = parts_of(self._base, path)
        # Suppressed: a directory that is not empty, or removed already.
        for count in range(len(parts), 0, -1):
            with (
                contextlib.suppress(OSError, CorruptShuffleError),
                parent_of(self._base, "/".join(parts[:count])) as (directory, name),
            ):
                os.rmdir(name, dir_fd=directory)
        if and_root:
            with contextlib.suppress(OSError):
                self._root.rmdir()
            if not os.path.lexists(self._root):
                # Otherwise a power failure may restore it and its files, but not the list of roots.
                with (
                    os_errors("remove it for good", self._root),
                    contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError),
                ):
                    sync_directory(Root(self._root.parent), "")

    def free_bytes(self) -> int | None:
        with os_errors("ask for free space", self._root):
            status = os.statvfs(self._root)
            return status.f_bavail * status.f_frsize


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

    def _open_handle(self) -> int:
        if self._handle is None:
            msg = f"{self._path}: already closed"
            raise ClosedError(msg)
        return self._handle

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        self._open_handle()
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        with os_errors("write to it", self._path):
            for start in range(0, len(views), _IOV_MAX):
                _write_all(self._open_handle(), views[start : start + _IOV_MAX])

    def truncate(self, num_bytes: int) -> None:
        handle = self._open_handle()
        with os_errors("cut it", self._path):
            os.ftruncate(handle, num_bytes)
            os.lseek(handle, num_bytes, os.SEEK_SET)

    def close(self) -> None:
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
        self._path = f"{root}/{path}"  # no Path: a lookup opens hundreds of files
        with os_errors("read it", self._path):
            self._handle, self._num_bytes = open_file(root, path)

    @property
    def num_bytes(self) -> int:
        with os_errors("read it", self._path):
            return os.fstat(self._handle).st_size

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        with os_errors("read it", self._path):
            if max(map(sum, ranges), default=0) > self._num_bytes:
                self._num_bytes = os.fstat(self._handle).st_size  # it may have grown
            _check_ranges(ranges, self._num_bytes, self._path)
            return [_pread(self._handle, offset, length, self._path) for offset, length in ranges]

    def close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class MappedReader:
    """A mapped file: no copy, for files that do not change while they are read."""

    def __init__(self, root: Root, path: str) -> None:
        self._path = root.path / path
        with os_errors("map it", self._path):
            handle, size = open_file(root, path)
            try:
                # An empty file cannot be mapped. The mapping outlives the descriptor.
                whole = mmap.mmap(handle, size, prot=mmap.PROT_READ) if size else b""
                self._whole = pa.py_buffer(whole)
            finally:
                os.close(handle)

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        _check_ranges(ranges, self._whole.size, self._path)
        return [self._whole.slice(offset, length) for offset, length in ranges]

    def close(self) -> None:
        self._whole = pa.py_buffer(b"")


def _check_ranges(ranges: Sequence[tuple[int, int]], num_bytes: int, path: Path | str) -> None:
    """Refuse ranges outside the file before anything is allocated: damage may name any length."""
    for offset, length in ranges:
        if offset < 0 or length < 0 or offset + length > num_bytes:
            raise truncated_error(path, num_bytes, offset + length)


def _pread(handle: int, offset: int, length: int, path: Path | str) -> pa.Buffer:
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


def above(path: str) -> str:
    """Return the path of the directory that holds an object, empty for the root."""
    return path.rpartition("/")[0]


def unlink(root: Root, path: str) -> None:
    """Remove a file below a root; raises OSError."""
    with parent_of(root, path) as (directory, name):
        os.unlink(name, dir_fd=directory)


def _link(directory: int, source: str, name: str, target: Path) -> None:
    """Give a file of a directory a second name; raises OSError where it did not get that.

    Over NFS the answer of the server may be lost. Then the request is repeated and fails, because
    the first one has made the name, or it times out. So the two files decide whether it succeeded,
    as open(2) advises.
    """
    try:
        os.link(source, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as error:
        if _is_linked(directory, source, name):
            return
        if error.errno not in _NO_LINKS:
            raise
        msg = (
            f"{target}: this file system has no hard links ({error.strerror}), by which of two "
            "writers exactly one wins; nothing was written. Put the shuffle on one that has"
        )
        raise StoreRefusedError(msg) from error


def _is_linked(directory: int, source: str, name: str) -> bool:
    try:
        target = os.stat(name, dir_fd=directory, follow_symlinks=False)
        ours = os.stat(source, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    # Some file systems give several files one inode number, but the link count is right.
    return target.st_nlink > 1 and os.path.samestat(target, ours)


class os_errors:
    """Turns an OSError of the block into one of this project, with what was tried and where.

    An open file that another client of NFS has removed is one that is not there.
    """

    __slots__ = ("_path", "_what")

    def __init__(self, what: str, path: Path | str) -> None:
        self._what = what
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError):
            return
        path, what = self._path, self._what
        if isinstance(error, FileNotFoundError) or error.errno == errno.ESTALE:
            raise ObjectNotFoundError(f"{path}: not there; cannot {what}") from error
        if isinstance(error, FileExistsError):
            raise ObjectExistsError(f"{path}: exists already; cannot {what}") from error
        if isinstance(error, PermissionError):
            msg = f"{path}: permission denied; cannot {what}. Give this user access to it"
            raise StorageError(msg) from error
        if error.errno in _OUT_OF_SPACE:
            msg = f"{path}: no space left; cannot {what}. Free space or write elsewhere"
            raise OutOfDiskError(msg) from error
        raise StorageError(f"{path}: {error.strerror or error}; cannot {what}") from error
