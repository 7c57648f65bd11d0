"""The protocol of every storage, and the errors that objects raise.

Paths are relative to the root a storage was opened on, with ``/`` between parts. Failures of the
file system or store become :class:`~arrow_format.errors.StorageError` with the path in the message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from arrow_format.errors import CorruptShuffleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from arrow_format.storage.options import StorageOptions

ByteSource: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"


def check_length(where: object, num_bytes: int, expected: int | None) -> None:
    """Raise :class:`CorruptShuffleError` unless an object has the expected length, if any."""
    if expected is not None and num_bytes != expected:
        msg = (
            f"{where}: has {num_bytes} bytes, expected {expected}; it was changed or replaced "
            "after the commit"
        )
        raise CorruptShuffleError(msg)


def truncated_error(where: object, num_bytes: int | None, expected: int) -> CorruptShuffleError:
    """Return the error of an object that ends before a range; ``num_bytes`` None if it is gone."""
    actual = "is not there" if num_bytes is None else f"has {num_bytes} bytes"
    return CorruptShuffleError(
        f"{where}: {actual}, expected at least {expected}; it was truncated or replaced after the "
        "commit"
    )


class ObjectExistsError(StorageError):
    """An object of that name exists already; nothing was written."""


class PutRefusedError(StorageError):
    """The answer to the one try of a put says that it was refused: nothing was put."""


class DeniedError(StorageError):
    """A store answered that the credentials do not allow a request (401 or 403)."""


class StoreRefusedError(StorageError):
    """A store does not keep what commits rest on: put-if-absent, reads of what was put, names."""


SHARED_PATH = (
    "Use a directory that is mounted at the same path on every host, or an object store; "
    "a path of the driver's own disk does not do"
)
"""What to do where one host does not see what another one wrote."""


class ObjectNotFoundError(CorruptShuffleError):
    """An object that a committed one names does not exist."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """Status of a path."""

    num_bytes: int
    is_directory: bool
    modified_ms: int | None = field(default=None, compare=False)
    """Milliseconds since 1970 by the storage's clock; None where it is unknown."""
    inode: int = field(default=0, compare=False)
    """Number of the file or directory in its file system; 0 in an object store."""
    is_versioned: bool = field(default=False, compare=False)
    """Whether the store showed a version of the object: it keeps the bytes of deleted ones."""


class ObjectWriter(Protocol):
    """A new object being written front to back; it counts only once it is closed."""

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        """Append all buffers, or raise.

        The buffers belong to the writer from here on and must not change any more: it may keep
        views of them until it is closed or aborted, as a multipart upload does.
        """

    def truncate(self, num_bytes: int) -> None:
        """Drop everything after the first ``num_bytes``; the next buffers are appended there.

        Raises :class:`StorageError` where that is not possible, as in every object store.
        """

    def close(self) -> None:
        """Finish the object; with ``sync`` its bytes are durable on return.

        Where that fails the object exists until :meth:`abort`, and may be readable. In an object
        store it appears here, whole, and is durable in any case. Closing again does nothing.
        """

    def abort(self) -> None:
        """Remove the unfinished object; does nothing after close."""


class ObjectReader(Protocol):
    """An object that is open for reading, until :meth:`close`; several threads may read at once."""

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Read ``(offset, length)`` ranges, whole; see :meth:`Storage.get_ranges`."""

    def close(self) -> None:
        """Close the object; buffers that were read stay valid."""


class Storage(Protocol):
    """The files of one shuffle. Two are equal if they are one place, reached in the same way."""

    root: str
    """Absolute path or URI of the shuffle, for messages; holds no credentials."""
    options: StorageOptions
    """How to reach an object store, credentials included; empty for a directory."""
    max_requests: int
    """Number of concurrent requests that pays; 1 where a read costs no round trip."""
    gap_bytes: int
    """Unwanted bytes between two ranges that cost no more than to read them one by one."""
    puts_may_come_late: bool
    """Whether a put that failed here may be carried out later, as a delayed request may."""
    has_directories: bool
    """Whether it has directories, whose times show when files were made or removed in them."""
    keeps_what_it_shows: bool
    """Whether all that can be read survives a power failure, and not only what was synced."""

    @property
    def place(self) -> tuple[frozenset[str], str]:
        """Which store it is, and its path there; equal however they were given."""

    def __hash__(self) -> int: ...

    def make_directory(self, path: str, *, sync: bool) -> None:
        """Make a directory and those above it; fails when this user may not.

        An object store has none and does nothing: a directory exists while objects are below it,
        and a task that outlives the abort of its job may leave objects there, for gc.
        """

    def without_new_directories(self) -> Storage:
        """Return the same storage, on which no file is put where a directory is missing."""

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        """Start a new object, whose name no other writer chooses.

        Raises :class:`ObjectExistsError` when it exists, which an object store does not check.
        """

    def check_puts(self, *, for_long: bool = False) -> None:
        """Raise :class:`StorageError` where :meth:`put_if_absent` would not keep its promise.

        A process that will put an entry of the log asks before a row is written. A store is asked
        once in a process, or in the process that this storage was sent from; ``for_long`` again,
        and so that one is found out too that rarely lets two puts win. A directory is asked once it
        exists.
        """

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        """Create an object with all of ``data``, or leave the existing one unchanged.

        Readers see nothing or everything. Of several writers that put one name, on any machines,
        exactly one succeeds: all safety between writers rests on that. A storage that cannot
        promise it must refuse; to check first and write then would let two succeed.

        Raises :class:`ObjectExistsError` when it exists; on an object store, with other bytes:
        equal bytes may come from this very put, repeated after its answer got lost. So writers that
        compete for a name must put different bytes. Raises :class:`PutRefusedError` where it is
        certain that nothing was put, nor will be.
        """

    def replace(self, path: str, data: bytes, *, sync: bool) -> None:
        """Put other bytes in the place of an object; readers see the old ones or the new, whole.

        Nothing decides between several that replace one: they must put the same.
        """

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        """Open an object to read from it several times.

        With ``mapped`` its buffers are views of the mapped file, where the storage can. Raises
        :class:`ObjectNotFoundError` when it does not exist, in an object store at the first read.
        """

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Read ``(offset, length)`` ranges, whole.

        Raises :class:`ObjectNotFoundError` when the object does not exist, and
        :class:`CorruptShuffleError` when it ends before a range does.
        """

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        """Read a whole object of ``num_bytes``, or of any length, in one request where possible.

        Raises :class:`ObjectNotFoundError` when it does not exist, and :class:`CorruptShuffleError`
        when it has another length, before anything longer is read.
        """

    def stat(self, path: str) -> ObjectStat | None:
        """Return the status of ``path``, or None when nothing has that name."""

    def list(self, path: str) -> list[str]:
        """Return the names directly below ``path``, sorted; empty without such a directory."""

    def files(self, path: str, *, depth: int = 1) -> dict[str, ObjectStat]:
        """Return the files below ``path`` with their status, by ascending path.

        With ``depth`` 1 those directly below it, with 2 those in its directories too, and so on;
        empty without such a directory.
        """

    def delete(self, path: str) -> None:
        """Remove one object, if it exists."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects, if they exist, in any order.

        Raises :class:`DeniedError` where a store does not allow it for one of them.
        """

    def prune(self, path: str, *, and_root: bool) -> None:
        """Remove the empty directories at ``path`` and above it, with ``and_root`` the root too.

        A root that was removed stays removed after a power failure.
        """

    def free_bytes(self) -> int | None:
        """Return how many bytes this user may still write; None where that is unknown."""


def names_in_use(storage: Storage, path: str) -> list[str]:
    """Return the names directly below a path, sorted, without directories that hold no file.

    In an object store there are none, except where its namespace is hierarchical (as in ADLS
    Gen2): there they stay. So a store's files are listed, of one level below and of two.
    """
    if storage.has_directories:
        return storage.list(path)
    files = storage.files(path, depth=2)
    return sorted({file[len(path) + 1 :].partition("/")[0] for file in files})
