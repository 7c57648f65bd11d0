"""The directories the map outputs of a job are spread over: the shuffle itself and local ones.

Root 0 is the shuffle's own directory. Each further root is a directory of the job below one of
``WriteOptions.local_dirs``, and counts only if it bears a marker with the id of the job, so that
a disk mounted elsewhere, or another's directory of that name, is never taken for it.
Source: Flink's ``FileChannelManager`` (several temporary directories in turn).
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import zlib
from typing import TYPE_CHECKING

from arrow_format.errors import CorruptShuffleError, OutOfDiskError, ShuffleError, StorageError
from arrow_format.storage import ObjectExistsError, Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from arrow_format.model import PartitionedFile

MARKER_NAME = "arrow-shuffle-root.json"


def root_path(local_dir: str, job_id: str) -> str:
    """Return the directory of a job below a local directory."""
    return posixpath.join(local_dir, f"arrow-shuffle-{job_id}")


def first_root(job_id: str, turn: int, num_roots: int) -> int:
    """Return the root to begin with: they take turns, and each job begins anywhere."""
    return (zlib.crc32(job_id.encode()) + turn) % num_roots


def make_root(path: str, job_id: str, *, sync: bool) -> None:
    """Make a root with its marker; it is fine when both are there already.

    Raises
    ------
    StorageError
        It cannot be made, or is there and another's.
    """
    storage = open_storage(path)
    storage.make_directory("", sync=sync)
    marker = json.dumps({"job_id": job_id}).encode() + b"\n"
    try:
        storage.put_if_absent(MARKER_NAME, marker, sync=sync)
    except ObjectExistsError:
        try:
            check_root(storage, job_id)
        except CorruptShuffleError as error:
            raise StorageError(str(error)) from error


def check_root(storage: Storage, job_id: str) -> None:
    """Check that a root bears the marker of its job.

    Raises
    ------
    CorruptShuffleError
        It bears none or another.
    """
    stat = storage.stat(MARKER_NAME)
    if stat is not None:
        (found,) = storage.get_ranges(MARKER_NAME, [(0, stat.num_bytes)])
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if json.loads(found.to_pybytes())["job_id"] == job_id:
                return
    msg = (
        f"{storage.root}: does not bear the {MARKER_NAME} of job {job_id}; the disk is not mounted "
        "here, or the directory is another's. Mount it where it was when the shuffle was written"
    )
    raise CorruptShuffleError(msg)


def clear_root(path: str, live: Collection[str] = ()) -> None:
    """Remove all files but live ones from a root; without these its marker and itself."""
    storage = open_storage(path)
    there = set(storage.list(""))
    for name in there.difference(live, [MARKER_NAME]):
        storage.delete(name)
    if there.isdisjoint(live):
        storage.delete(MARKER_NAME)
        storage.prune("", and_root=True)


class ReadRoots:
    """Opens the roots that log entries name, each checked once.

    Parameters
    ----------
    storage
        Root 0.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._opened: dict[tuple[str, str], Storage] = {}

    def storage_of(self, file: PartitionedFile, roots: Sequence[str], job_id: str) -> Storage:
        """Return where ``file`` is.

        Parameters
        ----------
        roots
            Directories of the roots 1, 2, ... as the log entry has them.
        job_id
            Who wrote the file: the marker must name that job.

        Raises
        ------
        CorruptShuffleError
            There is no such root, or it does not bear the marker.
        """
        if file.root == 0:
            return self._storage
        if file.root > len(roots):
            msg = f"{self._storage.root}: {file.path} is in root {file.root} of {len(roots)}"
            raise CorruptShuffleError(msg)
        path = roots[file.root - 1]
        storage = self._opened.get((path, job_id))
        if storage is None:
            storage = open_storage(path)
            check_root(storage, job_id)
            self._opened[path, job_id] = storage
        return storage


class WriteRoots:
    """The roots one map task writes to, in turn; one that failed is left out from then on.

    Parameters
    ----------
    storages
        By root number.
    start
        Which to begin with.
    """

    def __init__(self, storages: Sequence[Storage], start: int = 0) -> None:
        self._storages = tuple(storages)
        count = len(self._storages)
        self._waiting = [(start + i) % count for i in range(count)]

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._waiting)

    def storage(self, number: int) -> Storage:
        """Return the storage of a root, also of one that failed."""
        return self._storages[number]

    def take(self, num_bytes: int) -> int:
        """Return the number of the root to write the next file to: one with room, if any."""
        number = next(
            (number for number in self._waiting if self._has_room(number, num_bytes)),
            self._waiting[0],
        )
        self._waiting.remove(number)
        self._waiting.append(number)
        return number

    def should_leave(self, number: int, num_bytes: int) -> bool:
        """Whether ``num_bytes`` more do not fit into a root, but would into another."""
        return (
            len(self._waiting) > 1
            and not self._has_room(number, num_bytes)
            and any(self._has_room(other, num_bytes) for other in self._waiting)
        )

    def _has_room(self, number: int, num_bytes: int) -> bool:
        if len(self._waiting) == 1:
            return True
        try:
            free = self._storages[number].free_bytes()
        except ShuffleError:
            return False
        return free is None or free >= num_bytes

    def leave_out(self, number: int, error: ShuffleError) -> None:
        """Write no further file to a root.

        Raises
        ------
        ShuffleError
            It was the last: ``error`` is raised again.
        """
        if number in self._waiting:
            self._waiting.remove(number)
        if self._waiting:
            return
        if len(self._storages) > 1 and isinstance(error, OutOfDiskError):
            msg = f"{error} (none of {len(self._storages)} directories has room)"
            raise OutOfDiskError(msg) from error
        raise error
