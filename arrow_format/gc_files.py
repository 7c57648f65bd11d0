"""The files of one job, in the shuffle and in its local roots: what garbage collection looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.decision import DECISION_NAME
from arrow_format.job import MAP_OUTPUT_DIRECTORY
from arrow_format.root_list import ROOT_LIST_NAME, put_root_list, read_root_list
from arrow_format.root_removal import holds_garbage, is_root_or_rest
from arrow_format.roots import MARKER_NAME, root_name
from arrow_format.storage import Storage, open_made_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_LAST = (ROOT_LIST_NAME, DECISION_NAME)
"""Files of a job that go after all others: what a collection that is killed needs to go on."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there."""

    storage: Storage
    path: str
    num_bytes: int
    modified_ms: int | None


def look_at(storage: Storage, paths: Iterable[str]) -> Iterator[StoredFile]:
    """Look at files; those that are gone, and directories, are left out."""
    for path in paths:
        stat = storage.stat(path)
        if stat is not None and not stat.is_directory:
            yield StoredFile(storage, path, stat.num_bytes, stat.modified_ms)


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where the files of one job are.

    A local root that bears the marker of another job is left alone.
    """

    storage: Storage
    job_id: str
    roots: tuple[Storage, ...]
    """Local roots, there or not."""

    @staticmethod
    def of(storage: Storage, job_id: str, roots: Iterable[str]) -> JobFiles:
        """Find the local roots of a job.

        Parameters
        ----------
        storage
            The shuffle.
        job_id
            The job.
        roots
            Its roots as far as the log knows them.
        """
        listed = read_root_list(storage, f"{MAP_OUTPUT_DIRECTORY}/{job_id}")
        paths = dict.fromkeys((*roots, *listed))
        return JobFiles(storage, job_id, tuple(map(open_made_directory, paths)))

    @property
    def directory(self) -> str:
        """Directory of the job in the shuffle."""
        return f"{MAP_OUTPUT_DIRECTORY}/{self.job_id}"

    def dead_in_roots(self, live: Collection[tuple[str, str]]) -> Iterator[StoredFile]:
        """Files in local roots that are not live, in an order in which they may be removed.

        Parameters
        ----------
        live
            Name of the root ("" in the shuffle) and path of files that stay.
        """
        for root in self.roots:
            if not is_root_or_rest(root, self.job_id):
                continue
            place = root_name(root.root)
            dead = {one for one in root.list("") if (place, one) not in live} - {MARKER_NAME}
            yield from look_at(root, sorted(dead))
            # Not by the same listing: a task that still runs may have put a file there meanwhile.
            if not any(look_at(root, set(root.list("")) - dead - {MARKER_NAME})):
                yield from look_at(root, [MARKER_NAME])

    def dead_in_shuffle(
        self, live: Collection[tuple[str, str]], *, with_root_list: bool
    ) -> Iterator[StoredFile]:
        """Files in the shuffle that are not live; to be removed after those in local roots.

        Parameters
        ----------
        live
            As for :meth:`dead_in_roots`.
        with_root_list
            Whether the list of local roots may go.
        """
        paths = [f"{self.directory}/{name}" for name in self.storage.list(self.directory)]
        dead = [path for path in paths if ("", path) not in live]
        last = [f"{self.directory}/{name}" for name in _LAST]
        yield from look_at(self.storage, (path for path in dead if path not in last))
        if not with_root_list:
            last.remove(f"{self.directory}/{ROOT_LIST_NAME}")
        yield from look_at(self.storage, (path for path in last if path in dead))

    def roots_hold_garbage(self, live: Collection[tuple[str, str]]) -> bool:
        """Whether a task has put files into a local root since it was cleared, or still may."""
        return any(
            holds_garbage(
                root,
                self.job_id,
                [name for name in root.list("") if (root_name(root.root), name) in live],
            )
            for root in self.roots
        )

    def put_root_list_again(self) -> None:
        """Write the local roots down for the next collection: nothing else may tell of them."""
        put_root_list(self.storage, self.directory, [one.root for one in self.roots], sync=True)

    def modified_ms(self) -> int | None:
        """Return when anything of the job was written last; None where no storage tells."""
        files = (*self.dead_in_roots(()), *self.dead_in_shuffle((), with_root_list=True))
        times = [file.modified_ms for file in files]
        for storage, path in ((self.storage, self.directory), *((root, "") for root in self.roots)):
            stat = storage.stat(path)
            times.append(stat.modified_ms if stat else None)
        return max((time for time in times if time is not None), default=None)

    def prune_roots(self) -> None:
        """Remove the local roots that are empty."""
        for root in self.roots:
            root.prune("", and_root=True)

    def prune(self) -> None:
        """Remove the directory in the shuffle if it is empty."""
        self.storage.prune(self.directory, and_root=False)
