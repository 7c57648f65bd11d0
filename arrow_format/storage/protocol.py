"""What every storage offers, whatever it is made of; and what goes wrong with objects.

Paths are relative to the root a storage was opened on, with ``/`` between parts. Failures of what
is below become :class:`~arrow_format.errors.StorageError` with the path in the message.
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


def check_length(where: object, found: int, expected: int | None) -> None:
    """Check that an object is as long as what names it says.

    Raises
    ------
    CorruptShuffleError
        It is not.
    """
    if expected is not None and found != expected:
        msg = (
            f"{where}: has {found} bytes, expected {expected}; it was changed or replaced after "
            "the commit"
        )
        raise CorruptShuffleError(msg)


class ObjectExistsError(StorageError):
    """An object of that name is there already; nothing was written."""


class ObjectNotFoundError(CorruptShuffleError):
    """An object that was named by a committed one is not there."""


@dataclass(frozen=True, slots=True)
class ObjectStat:
    """What stands at a path."""

    num_bytes: int
    is_directory: bool
    modified_ms: int | None = field(default=None, compare=False)
    """Milliseconds since 1970 by the storage's clock; None where it does not tell."""


class ObjectWriter(Protocol):
    """A new object being written front to back; it counts only once it is closed."""

    def writev(self, buffers: Sequence[ByteSource]) -> None:
        """Append all buffers, or raise.

        They are the writer's from here on: it may keep views of them until it is closed or given
        up, as an upload in parts does, so nobody may change them any more.
        """

    def truncate(self, num_bytes: int) -> None:
        """Forget everything after the first ``num_bytes``; what is appended next stands there.

        Raises
        ------
        StorageError
            That is not possible, as never in an object store.
        """

    def close(self) -> None:
        """Finish the object; with ``sync`` its bytes are durable on return.

        Where that fails the object is there until :meth:`abort`, and may be readable. In an object
        store it appears here, whole, and is durable in any case.
        """

    def abort(self) -> None:
        """Remove the unfinished object; does nothing after close."""


class ObjectReader(Protocol):
    """An object that is open for reading, until :meth:`close`; several threads may read at once."""

    def get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Read ``(offset, length)`` ranges, whole; see :meth:`Storage.get_ranges`."""

    def close(self) -> None:
        """Let the object go; buffers that were read stay valid."""


class Storage(Protocol):
    """Where the files of one shuffle live."""

    root: str
    """Absolute path or URI of the shuffle, for messages; holds no credentials."""
    options: StorageOptions
    """How an object store is reached, credentials among them; none for a directory."""
    max_requests: int
    """Reads worth having under way at once; 1 where one costs no round trip."""

    puts_may_come_late: bool
    """Whether a put that failed here may still be carried out, as a request on its way may."""

    has_directories: bool
    """Whether there are directories, which tell when something was made or removed in them."""

    keeps_what_it_shows: bool
    """Whether what can be read survives a power failure, and not only what was synced."""

    def __hash__(self) -> int:
        """Storages are equal that are the same place, reached in the same way."""

    def make_directory(self, path: str, *, sync: bool) -> None:
        """Make a directory where there are such things; fails when it may not be written.

        An object store has none: what is asked of directories is answered by the objects below
        them, and a task that outlives the abort of its job may leave objects there, for gc.
        """

    def without_new_directories(self) -> Storage:
        """Return the same storage, whose ``open_writer`` fails where a directory is missing."""

    def open_writer(self, path: str, *, sync: bool) -> ObjectWriter:
        """Start a new object, of a name that nobody else chooses.

        Raises
        ------
        ObjectExistsError
            It exists. An object store does not look.
        """

    def put_if_absent(self, path: str, data: bytes, *, sync: bool) -> None:
        """Create an object with all of ``data``, or leave what is there.

        Readers see nothing or everything. Of several that put one name, wherever they are, exactly
        one succeeds: all safety between writers rests on that. A storage that cannot promise it
        refuses; to look first and to write then would let two win.

        Raises
        ------
        ObjectExistsError
            It exists. On an object store, with other bytes: the same ones may be those of this very
            put, repeated after its answer got lost. So they must tell who put them, where that
            matters.
        """

    def open_reader(self, path: str, *, mapped: bool = False) -> ObjectReader:
        """Open an object to read from it several times.

        Parameters
        ----------
        mapped
            Give views of the mapped file instead of copies, where the storage can.

        Raises
        ------
        ObjectNotFoundError
            It does not exist; an object store says so at the first read.
        """

    def get_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        """Read ``(offset, length)`` ranges, whole.

        Raises
        ------
        ObjectNotFoundError
            It does not exist.
        CorruptShuffleError
            It ends before a range does.
        """

    def read(self, path: str, *, num_bytes: int | None = None) -> bytes:
        """Read a whole object, in one request where that is possible.

        Parameters
        ----------
        path
            The object.
        num_bytes
            How long it must be; None when nothing says so. No more than that is read.

        Raises
        ------
        ObjectNotFoundError
            It does not exist.
        CorruptShuffleError
            It has another length.
        """

    def stat(self, path: str) -> ObjectStat | None:
        """Say what stands at ``path``; None when nothing does."""

    def list(self, path: str) -> list[str]:
        """Names directly below ``path``, sorted; empty when there is no such directory."""

    def files(self, path: str, *, depth: int = 1) -> dict[str, ObjectStat]:
        """Return the files below ``path``, in order, each with what a listing tells of it.

        Parameters
        ----------
        path
            A directory; where there is none, there are no files.
        depth
            1 for those directly below it, 2 for those in its directories as well, and so on.
        """

    def delete(self, path: str) -> None:
        """Remove one object; it is no error when there is none."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove objects in no particular order, as :meth:`delete` does each of them."""

    def prune(self, path: str, *, and_root: bool) -> None:
        """Remove the directories at ``path`` and above that are empty, up to the root.

        A root that is gone then is gone for good, also after a power failure.
        """

    def free_bytes(self) -> int | None:
        """Return how many bytes this user may still write; None where nobody can tell."""
