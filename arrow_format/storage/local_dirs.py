"""The directories that the map outputs of a job are spread over: its *roots*.

One root is the shuffle. The others, the local roots, are directories of the job below local
directories; each bears a marker with the job's id, and a list in the job's directory names them.
Whose they are, and whether their disks are there, is :mod:`arrow_format.storage.root_owner`.
"""

from __future__ import annotations

import contextlib
import posixpath
import zlib
from typing import TYPE_CHECKING, TypeVar

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
from arrow_format.storage.root_owner import (
    MARKER_NAME,
    LocalRoot,
    Marker,
    from_json,
    put_marker,
    read_marker,
    to_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from arrow_format.model import PartitionedFile


ROOT_LIST_NAME = "local-roots.json"

INDEX_RESERVE_BYTES = 4 << 20
"""Free space that a directory must have besides the data of a file, for its index."""

_Written = TypeVar("_Written")


def put_root_list(
    storage: Storage, directory: str, roots: Sequence[LocalRoot], *, sync: bool
) -> None:
    """Write the list of a job's local roots; nothing when it has none."""
    if roots and storage.stat(f"{directory}/{ROOT_LIST_NAME}") is None:
        with contextlib.suppress(ObjectExistsError):  # another process wrote the same
            storage.put_if_absent(f"{directory}/{ROOT_LIST_NAME}", to_json(roots), sync=sync)


def read_root_list(storage: Storage, directory: str) -> tuple[LocalRoot, ...]:
    """Return the local roots of a job from its list; none when it has no list."""
    path = f"{directory}/{ROOT_LIST_NAME}"
    stat = storage.stat(path)
    if stat is None:
        return ()
    try:
        (content,) = storage.get_ranges(path, [(0, stat.num_bytes)])
    except ObjectNotFoundError:  # the job has ended meanwhile
        return ()
    job_id = directory.rpartition("/")[2]
    with contextlib.suppress(ValueError, RecursionError):
        roots = from_json(content.to_pybytes(), tuple[LocalRoot, ...])
        # The caller removes these directories: accept only what a job could have made.
        if all(is_root_of(root.path, job_id) for root in roots):
            return roots
    msg = f"{storage.root}/{path}: is no list of directories; check it, and remove it by hand"
    raise CorruptShuffleError(msg)


def known_roots(storage: Storage, directory: str, named: Iterable[str]) -> tuple[LocalRoot, ...]:
    """Return the local roots of a job: those of its list, and others that are named."""
    roots = {path: LocalRoot(path) for path in named}
    for root in read_root_list(storage, directory):
        if root.path not in roots or root.directory_id is not None:
            roots[root.path] = root
    return tuple(roots.values())


def root_path(local_dir: str, job_id: str) -> str:
    """Return the directory of a job below a local directory."""
    return posixpath.join(local_dir, f"arrow-shuffle-{job_id}")


def root_name(root: str) -> str:
    """Return the last part of a root's path, which names its job."""
    return root.rpartition("/")[2]


def is_root_of(path: str, job_id: str) -> bool:
    """Whether an untrusted path could be that of a root of a job."""
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    directory, _, _ = path.rpartition("/")
    return path.startswith("/") and "\0" not in path and path == root_path(directory or "/", job_id)


def first_root(job_id: str, turn: int, num_roots: int) -> int:
    """Return the root that a map task begins with: round-robin, from a start that varies by job."""
    return (zlib.crc32(job_id.encode()) + turn) % num_roots


class ForeignRootError(StorageError):
    """A directory named like a root bears the marker of another job."""


def check_local_dirs(shuffle: str, local_dirs: Sequence[str]) -> None:
    """Raise :class:`OptionError` for a local directory in that of the shuffle.

    The shuffle must hold nothing but its log and its map outputs. One in an object store, which
    never fills up and which all readers see, takes no local directories.
    """
    if local_dirs and "://" in shuffle:
        msg = f"local_dirs: the map outputs of {shuffle} go to the object store; leave it out"
        raise OptionError(msg)
    path = normal_directory(shuffle)
    for local_dir in local_dirs:
        if posixpath.commonpath([path, normal_directory(local_dir)]) == path:
            msg = (
                f"local_dirs: {local_dir} lies in the shuffle's own directory {shuffle}, which is "
                "used anyway; give directories outside of it, on other disks"
            )
            raise OptionError(msg)


def make_roots(
    storage: Storage, directory: str, roots: Sequence[LocalRoot], marker: Marker, *, sync: bool
) -> list[Storage | None]:
    """List and make the local roots of a job, unless they are there; None for one that fails.

    ``directory`` is that of the job, which has the list. Raises :class:`ForeignRootError` where a
    root is another job's directory, and :class:`StorageError` where the list cannot be put. Nothing
    is left of a root that fails.
    """
    put_root_list(storage, directory, roots, sync=sync)
    made = [_made_directory(root, sync=sync) for root in roots]
    # Again, before the first file: a collection that removed the list while these directories were
    # missing did not see them; one that removes it from now on does, and puts it again.
    try:
        put_root_list(storage, directory, roots, sync=sync)
    except BaseException:
        for root in filter(None, made):
            root.prune("", and_root=True)
        raise
    return [None if root is None else _marked(root, marker, sync=sync) for root in made]


def _made_directory(root: LocalRoot, *, sync: bool) -> Storage | None:
    """Return a root that has a directory; None where that cannot be made."""
    if root.directory_id is None:  # no process could tell whether the disk is there
        return None
    storage = open_made_directory(root.path)
    try:
        if storage.stat(MARKER_NAME) is None:
            storage.make_directory("", sync=sync)
    except (StorageError, ObjectNotFoundError):
        storage.prune("", and_root=True)
        return None
    return storage


def _marked(root: Storage, marker: Marker, *, sync: bool) -> Storage | None:
    """Return a root with its marker; None where that cannot be put, or its directory went."""
    try:
        if root.stat(MARKER_NAME) is None:
            put_marker(root.without_new_directories(), marker, sync=sync)
        is_ours = bears_marker(root, marker.job_id)
    except (StorageError, ObjectNotFoundError):
        root.prune("", and_root=True)
        return None
    if not is_ours:
        raise ForeignRootError(_no_marker(root, marker.job_id))
    return root


def find_roots(paths: Sequence[str], job_id: str) -> list[Storage | None]:
    """Open the local roots that exist; None in place of one without its marker."""
    roots: list[Storage | None] = []
    for path in paths:
        storage = open_made_directory(path)
        try:
            roots.append(storage if bears_marker(storage, job_id) else None)
        except ShuffleError:
            roots.append(None)
    return roots


def bears_marker(storage: Storage, job_id: str) -> bool:
    """Whether a directory is a root of a job."""
    marker = read_marker(storage)
    return marker is not None and marker.job_id == job_id


def _no_marker(storage: Storage, job_id: str) -> str:
    return (
        f"{storage.root}: does not bear the {MARKER_NAME} of job {job_id}; the disk is not mounted "
        "here, or the directory is another's. Mount it where it was when the shuffle was written"
    )


class ReadRoots:
    """Opens the roots that files are in, and checks the marker of each once."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        """Of the shuffle."""
        self._opened: dict[tuple[str, str], Storage] = {}

    def storage_of(self, file: PartitionedFile, job_id: str) -> Storage:
        """Return the storage that holds ``file``, which the job ``job_id`` wrote.

        Raises :class:`CorruptShuffleError` when a local root does not bear that job's marker.
        """
        if not file.root:
            return self.storage
        storage = self._opened.get((file.root, job_id))
        if storage is None:
            storage = open_made_directory(file.root)
            if not bears_marker(storage, job_id):
                raise CorruptShuffleError(_no_marker(storage, job_id))
            self._opened[file.root, job_id] = storage
        return storage


class WriteRoots:
    """The roots that a map task writes to round-robin, without those that failed.

    A root goes by its :attr:`~arrow_format.model.PartitionedFile.root`. Of ``storage``, the
    shuffle, and then ``local_roots``, None for one to leave out, ``start`` is the number of the
    first to write to, from 0.
    """

    def __init__(
        self, storage: Storage, local_roots: Sequence[Storage | None] = (), start: int = 0
    ) -> None:
        roots = [storage, *local_roots]
        self._count = len(roots)
        self._storages = {
            "" if root is storage else root.root: root
            for root in (*roots[start:], *roots[:start])
            if root is not None
        }
        self._waiting = list(self._storages)

    def __len__(self) -> int:
        """Return how many roots are left."""
        return len(self._waiting)

    @property
    def num_failed(self) -> int:
        """Roots that could not be used, or were left out."""
        return self._count - len(self._waiting)

    def storage(self, root: str) -> Storage:
        """Return the storage of a root, also of one that failed."""
        return self._storages[root]

    def choose(self, num_bytes: int) -> str:
        """Return the root for the next file, of so many bytes of data: one with space, if any."""
        chosen = next(
            (root for root in self._waiting if self._has_space(root, num_bytes)), self._waiting[0]
        )
        self._waiting.remove(chosen)
        self._waiting.append(chosen)
        return chosen

    def first_to_take(self, num_bytes: int, write: Callable[[str], _Written]) -> _Written:
        """Return what ``write`` makes of so many bytes in the first root that takes them.

        It is called with each root in turn until it raises no StorageError. Such a root is not used
        again, and the last one raises.
        """
        while True:
            root = self.choose(num_bytes)
            try:
                return write(root)
            except StorageError as error:
                self.leave_out(root, error)

    def should_leave(self, root: str, num_bytes: int) -> bool:
        """Whether ``num_bytes`` more do not fit into a root, but would into another."""
        return (
            len(self._waiting) > 1
            and not self._has_space(root, num_bytes)
            and any(self._has_space(other, num_bytes) for other in self._waiting)
        )

    def _has_space(self, root: str, num_bytes: int) -> bool:
        if len(self._waiting) == 1:
            return True
        try:
            free = self._storages[root].free_bytes()
        except ShuffleError:
            return False
        return free is None or free >= num_bytes + INDEX_RESERVE_BYTES

    def leave_out(self, root: str, error: ShuffleError) -> None:
        """Write no more files to a root that failed with ``error``, which the last root raises."""
        if root in self._waiting:
            self._waiting.remove(root)
        if self._waiting:
            return
        if self._count > 1 and isinstance(error, OutOfDiskError):
            msg = f"{error} (none of {self._count} directories has free space)"
            raise OutOfDiskError(msg) from error
        raise error
