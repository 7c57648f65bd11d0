"""The storages that actors get: each call becomes one of :mod:`~tests.simulation.files`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from arrow_format.errors import StorageError
from arrow_format.storage.object_store import ObjectStorage
from arrow_format.storage.open import PosixStorage
from arrow_format.storage.options import StorageOptions
from arrow_format.storage.protocol import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectReader,
    ObjectStat,
    ObjectWriter,
    check_length,
    truncated_error,
)
from tests.simulation.files import EXISTS, FAILED, MISSING
from tests.simulation.process import actor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.storage.protocol import ByteSource, Storage


ROOT = "/simulated"
"""Of the shuffle, whose files have relative paths."""


class _Simulated:
    """What both characters have in common; see :class:`arrow_format.storage.protocol.Storage`."""

    root = ROOT
    prefix = ""
    """Before the paths of its files, among those of all."""
    options = StorageOptions()
    max_requests = 1
    gap_bytes = 64 << 10

    def check_puts(self, *, for_long: bool = False) -> None:
        """Do nothing: it keeps them."""

    def __init__(self) -> None: ...

    def __reduce__(self) -> Any:
        return type(self), ()

    def _full(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix and path else self.prefix or path

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return type(self).__name__

    def _perform(self, kind: str, path: str | tuple[str, ...], *arguments: Any) -> Any:
        """Return the value of a call's answer, or raise its error."""
        full = self._full(path) if isinstance(path, str) else tuple(map(self._full, path))
        answer = actor().perform((kind, full, *arguments))
        if answer.how == EXISTS:
            raise ObjectExistsError(f"{self.root}/{path}: could not create it: it exists already")
        if answer.how == MISSING:
            raise ObjectNotFoundError(f"{self.root}/{path}: is not there")
        if answer.how == FAILED:
            raise StorageError(f"{self.root}/{path}: {answer.value}")
        return answer.value

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        return _Opened(self, path)

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        return _ranges_of(f"{self.root}/{path}", self._perform("read", path), ranges)

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        data: bytes = self._perform("read", path)
        check_length(f"{self.root}/{path}", len(data), num_bytes)
        return data

    def stat(self, path: str) -> ObjectStat | None:
        value = self._perform("stat", path)
        return None if value is None else ObjectStat(*value)

    def list(self, path: str) -> list[str]:
        return list(self._perform("list", path))

    def files(self, path: str, *, depth: int = 1) -> dict[str, ObjectStat]:
        value = self._perform("files", path, depth)
        start = len(self.prefix) + 1 if self.prefix else 0
        return {each[start:]: ObjectStat(size, False, when) for each, size, when in value}

    def delete(self, path: str) -> None:
        self._perform("delete", path)

    def free_bytes(self) -> int | None:
        return None


def _ranges_of(where: str, data: bytes, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
    for offset, length in ranges:
        if offset + length > len(data):
            raise truncated_error(where, len(data), offset + length)
    # Copied: a buffer from the allocator is aligned, as Arrow's readers want it.
    return [_aligned(data[offset : offset + length]) for offset, length in ranges]


def _aligned(data: bytes) -> pa.Buffer:
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


class SimulatedPosix(_Simulated, PosixStorage):
    """As a directory: temporary files and links, directories, an open file outlives its name."""

    puts_may_come_late = False
    has_directories = True
    keeps_what_it_shows = False

    def __init__(self, makes_directories: bool = True, root: str = ROOT) -> None:
        self._makes_directories = makes_directories
        self.root = root
        self.prefix = "" if root == ROOT else root

    def __reduce__(self) -> Any:
        return type(self), (self._makes_directories, self.root)

    def without_new_directories(self) -> SimulatedPosix:
        return SimulatedPosix(False, self.root)

    def make_directory(self, path: str, *, sync: bool) -> None:
        self._perform("mkdir", path)

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        self._perform("create", path, b"", self._makes_directories)
        return _Writer(self, path, "finish")

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        try:
            self._put_once(path, data)
        except ObjectNotFoundError:
            self._put_once(path, data)

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        self._perform("upload", path, data)

    def _put_once(self, path: str, data: bytes) -> None:
        directory, slash, name = path.rpartition("/")
        temporary = f"{directory}{slash}.tmp-{name}-{secrets.token_hex(8)}"
        self._perform("temp", temporary, data, self._makes_directories)
        self._perform("link", path, self._full(temporary))

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        return _Opened(self, path, self._perform("read", path))

    def delete_all(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.delete(path)

    def prune(self, path: str, *, and_root: bool) -> None:
        self._perform("prune", path, self.prefix, and_root)


class SimulatedStore(_Simulated, ObjectStorage):
    """As an object store: conditional puts, which may come late; no directories."""

    puts_may_come_late = True
    has_directories = False
    keeps_what_it_shows = True

    @property
    def place(self) -> tuple[frozenset[str], str]:
        return frozenset(), self.root

    def without_new_directories(self) -> SimulatedStore:
        return self

    def make_directory(self, path: str, *, sync: bool) -> None:
        """Do nothing."""

    def prune(self, path: str, *, and_root: bool) -> None:
        """Do nothing."""

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        return _Writer(self, path, "upload")

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        self._perform("put", path, data)

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        self._perform("upload", path, data)

    def delete_all(self, paths: Sequence[str]) -> None:
        if paths:
            self._perform("delete_all", tuple(paths))

    def free_bytes(self) -> None:
        """Return None."""


class _Opened:
    """An :class:`ObjectReader`; of a directory it has the bytes from when it was opened."""

    def __init__(self, storage: _Simulated, path: str, data: bytes | None = None) -> None:
        self._storage = storage
        self._path = path
        self._data = data

    @property
    def num_bytes(self) -> int:
        return len(self._data or b"")

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        if self._data is None:
            return self._storage.get_ranges(self._path, ranges)
        return _ranges_of(f"{self._storage.root}/{self._path}", self._data, ranges)

    def close(self) -> None:
        """Do nothing."""


class _Writer:
    """An :class:`ObjectWriter` that hands over all bytes when it is closed."""

    def __init__(self, storage: _Simulated, path: str, kind: str) -> None:
        self._storage = storage
        self._path = path
        self._kind = kind
        self._data = bytearray()
        self._is_open = True

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        for buffer in buffers:
            self._data += memoryview(buffer).cast("B")

    def truncate(self, num_bytes: int) -> None:
        del self._data[num_bytes:]

    def close(self) -> None:
        if self._is_open:
            self._storage._perform(self._kind, self._path, bytes(self._data))
            self._is_open = False

    def abort(self) -> None:
        if self._is_open and self._kind == "finish":
            self._storage.delete(self._path)
        self._is_open = False


def open_directory(path: str) -> SimulatedPosix:
    """Return the storage of a directory at an absolute path, as the library opens it."""
    return SimulatedPosix(root=path)


def new_storage(is_store: bool, max_requests: int = 1) -> Storage:
    """Return a storage of a character, for one process."""
    if not is_store:
        return SimulatedPosix()
    store = SimulatedStore()
    store.max_requests = max_requests
    return store


def replace_file(storage: Storage, path: str, data: bytes) -> None:
    """Put other bytes in the place of a file, as a fault of the storage does."""
    assert isinstance(storage, _Simulated)
    storage._perform("upload", path, data)


def copy_shuffle(storage: Storage, to: str) -> None:
    """Copy the directory of a shuffle, as ``cp -a`` does, while nobody writes."""
    assert isinstance(storage, _Simulated)
    storage._perform("copy", "", to)


def move_shuffle(storage: Storage, to: str) -> None:
    """Rename the directory of a shuffle, while nobody writes; "" is where the oracle looks."""
    assert isinstance(storage, _Simulated)
    storage._perform("rename", "", to)


def set_mounted(directory: str, is_mounted: bool) -> None:
    """Let the disk of a directory vanish, of which an empty mount point stays; or come back."""
    open_directory(directory)._perform("mount" if is_mounted else "unmount", "")
