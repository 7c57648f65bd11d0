"""The directories that a shuffle's map outputs are spread over, and the list that names them."""

from __future__ import annotations

import contextlib
import json
import posixpath
import zlib
from typing import TYPE_CHECKING

from arrow_format.errors import (
    CorruptShuffleError,
    OptionError,
    OutOfDiskError,
    ShuffleError,
    StorageError,
)
from arrow_format.options import normal_directory
from arrow_format.storage.open import (
    ObjectExistsError,
    ObjectNotFoundError,
    Storage,
    open_made_directory,
)
from arrow_format.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from arrow_format.model import PartitionedFile


ROOT_LIST_NAME = "local-roots.json"


def put_root_list(storage: Storage, directory: str, roots: Sequence[str], *, sync: bool) -> None:
    """Write down the roots of a job; nothing when it has none but the shuffle."""
    if roots and storage.stat(f"{directory}/{ROOT_LIST_NAME}") is None:
        with contextlib.suppress(ObjectExistsError):  # the same, by another process
            storage.put_if_absent(
                f"{directory}/{ROOT_LIST_NAME}", json.dumps(list(roots)).encode(), sync=sync
            )


def read_root_list(storage: Storage, directory: str) -> tuple[str, ...]:
    """Return the roots of a job; none when it wrote none down.

    Raises
    ------
    CorruptShuffleError
        The list cannot be understood.
    """
    path = f"{directory}/{ROOT_LIST_NAME}"
    stat = storage.stat(path)
    if stat is None:
        return ()
    try:
        (found,) = storage.get_ranges(path, [(0, stat.num_bytes)])
    except ObjectNotFoundError:  # the job has ended meanwhile
        return ()
    job_id = directory.rpartition("/")[2]
    with contextlib.suppress(ValueError, RecursionError):
        roots = json.loads(found.to_pybytes())
        # What it names is cleared and removed: nothing but directories that a job makes.
        if isinstance(roots, list) and all(
            isinstance(one, str) and is_root_of(one, job_id) for one in roots
        ):
            return tuple(roots)
    msg = f"{storage.root}/{path}: is no list of directories; look into it, and remove it by hand"
    raise CorruptShuffleError(msg)


MARKER_NAME = "arrow-shuffle-root.json"

_MOST_MARKER_BYTES = 64 << 10


def root_path(local_dir: str, job_id: str) -> str:
    """Return the directory of a job below a local directory."""
    return posixpath.join(local_dir, f"arrow-shuffle-{job_id}")


def root_name(root: str) -> str:
    """Return the last part of a root's path: that of its job, in whichever local directory."""
    return root.rpartition("/")[2]


def is_root_of(path: str, job_id: str) -> bool:
    """Whether a path, from wherever it comes, could be that of a root of a job."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    directory, _, _ = path.rpartition("/")
    return path.startswith("/") and "\0" not in path and path == root_path(directory or "/", job_id)


def first_root(job_id: str, turn: int, num_roots: int) -> int:
    """Return the root to begin with: they take turns, and each job begins anywhere."""
    return (zlib.crc32(job_id.encode()) + turn) % num_roots


class ForeignRootError(StorageError):
    """A directory with the name of a root bears the marker of another job."""


def check_local_dirs(shuffle: str, local_dirs: Sequence[str]) -> None:
    """Check that no local directory is that of the shuffle or lies in it.

    Raises
    ------
    OptionError
        One does: the shuffle must hold nothing but its log and its map outputs. Or the shuffle is
        in an object store, which never fills up and which every reader sees, unlike a directory.
    """
    if local_dirs and "://" in shuffle:
        msg = f"local_dirs: the map outputs of {shuffle} go to the object store; leave it out"
        raise OptionError(msg)
    path = normal_directory(shuffle)
    for one in local_dirs:
        if posixpath.commonpath([path, normal_directory(one)]) == path:
            msg = (
                f"local_dirs: {one} lies in the shuffle's own directory {shuffle}, which takes its "
                "turn anyway; give directories outside of it, on other disks"
            )
            raise OptionError(msg)


def make_root(path: str, job_id: str, *, sync: bool) -> Storage:
    """Make a root with its marker; it is fine when both are there already.

    Raises
    ------
    ForeignRootError
        It is there and another's.
    CorruptShuffleError
        A symbolic link stands there.
    StorageError
        It cannot be made; nothing of it is left.
    """
    storage = open_made_directory(path)
    try:
        if storage.stat(MARKER_NAME) is None:
            storage.make_directory("", sync=sync)
            marker = json.dumps({"job_id": job_id}).encode() + b"\n"
            with contextlib.suppress(ObjectExistsError):  # another task was faster
                storage.put_if_absent(MARKER_NAME, marker, sync=sync)
        is_ours = bears_marker(storage, job_id)
    except (StorageError, ObjectNotFoundError) as error:
        storage.prune("", and_root=True)
        raise StorageError(str(error)) from error
    if not is_ours:
        raise ForeignRootError(_no_marker(storage, job_id))
    return storage


def make_roots(paths: Sequence[str], job_id: str, *, sync: bool) -> list[Storage | None]:
    """Make the roots 1, 2, ..., or find them there; None stands for one that cannot be made.

    Raises
    ------
    ForeignRootError
        One is there and another's.
    CorruptShuffleError
        A symbolic link stands in the place of one.
    """
    roots: list[Storage | None] = []
    for path in paths:
        try:
            roots.append(make_root(path, job_id, sync=sync))
        except ForeignRootError:
            raise
        except StorageError:
            roots.append(None)
    return roots


def find_roots(paths: Sequence[str], job_id: str) -> list[Storage | None]:
    """Open the roots 1, 2, ... that were made before; None stands for one without its marker."""
    roots: list[Storage | None] = []
    for path in paths:
        storage = open_made_directory(path)
        try:
            roots.append(storage if bears_marker(storage, job_id) else None)
        except ShuffleError:
            roots.append(None)
    return roots


def check_root(storage: Storage, job_id: str) -> None:
    """Check that a root bears the marker of its job.

    Raises
    ------
    CorruptShuffleError
        It bears none or another.
    """
    if not bears_marker(storage, job_id):
        raise CorruptShuffleError(_no_marker(storage, job_id))


def bears_marker(storage: Storage, job_id: str) -> bool:
    """Whether a directory is a root of a job."""
    stat = storage.stat(MARKER_NAME)
    if stat is None:
        return False
    if stat.num_bytes > _MOST_MARKER_BYTES:
        return False
    (found,) = storage.get_ranges(MARKER_NAME, [(0, stat.num_bytes)])
    with contextlib.suppress(ValueError, KeyError):
        return bool(parse_object(found.to_pybytes())["job_id"] == job_id)
    return False


def _no_marker(storage: Storage, job_id: str) -> str:
    return (
        f"{storage.root}: does not bear the {MARKER_NAME} of job {job_id}; the disk is not mounted "
        "here, or the directory is another's. Mount it where it was when the shuffle was written"
    )


class ReadRoots:
    """Opens the roots that log entries name, each checked once.

    Parameters
    ----------
    storage
        Root 0.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        """Root 0."""
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
            return self.storage
        if file.root > len(roots):
            msg = f"{self.storage.root}: {file.path} is in root {file.root} of {len(roots)}"
            raise CorruptShuffleError(msg)
        path = roots[file.root - 1]
        storage = self._opened.get((path, job_id))
        if storage is None:
            storage = open_made_directory(path)
            check_root(storage, job_id)
            self._opened[path, job_id] = storage
        return storage


class WriteRoots:
    """The roots one map task writes to, in turn; one that failed is left out from then on.

    Parameters
    ----------
    storages
        By root number; None stands for one that is left out from the start.
    start
        Which to begin with.
    """

    def __init__(self, storages: Sequence[Storage | None], start: int = 0) -> None:
        self._count = count = len(storages)
        self._storages = {i: one for i, one in enumerate(storages) if one is not None}
        turns = ((start + i) % count for i in range(count))
        self._waiting = [number for number in turns if number in self._storages]

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._waiting)

    def storage(self, number: int) -> Storage:
        """Return the storage of a root, also of one that failed."""
        return self._storages[number]

    def choose(self, num_bytes: int) -> int:
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
        if self._count > 1 and isinstance(error, OutOfDiskError):
            msg = f"{error} (none of {self._count} directories has room)"
            raise OutOfDiskError(msg) from error
        raise error
