"""The files of one job, in the shuffle and in its local roots: what garbage collection looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from arrow_format.decision import DECISION_NAME
from arrow_format.job import MAP_OUTPUT_DIRECTORY
from arrow_format.root_list import ROOT_LIST_NAME, read_root_list
from arrow_format.roots import MARKER_NAME, bears_marker, root_name
from arrow_format.storage import Storage, open_storage

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

    Files of a local root count only if it bears the marker of the job: another's directory, and
    that of a disk which is not mounted, are left alone.
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
        return JobFiles(storage, job_id, tuple(map(open_storage, paths)))

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
            if not bears_marker(root, self.job_id):
                continue
            names = root.list("")
            place = root_name(root.root)
            dead = [name for name in names if (place, name) not in live and name != MARKER_NAME]
            yield from look_at(root, dead)
            if len(names) == len(dead) + 1:
                yield from look_at(root, [MARKER_NAME])

    def dead_in_shuffle(self, live: Collection[tuple[str, str]]) -> Iterator[StoredFile]:
        """Files in the shuffle that are not live; to be removed after those in local roots."""
        paths = [f"{self.directory}/{name}" for name in self.storage.list(self.directory)]
        dead = [path for path in paths if ("", path) not in live]
        last = [f"{self.directory}/{name}" for name in _LAST]
        yield from look_at(self.storage, (path for path in dead if path not in last))
        yield from look_at(self.storage, (path for path in last if path in dead))

    def modified_ms(self) -> int | None:
        """Return when anything of the job was written last; None where no storage tells."""
        files = (*self.dead_in_roots(()), *self.dead_in_shuffle(()))
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
