"""The files of one job, in the shuffle and in its local roots: what garbage collection looks at."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.decision import DECISION_NAME
from arrow_format.job import MAP_OUTPUT_DIRECTORY
from arrow_format.root_list import ROOT_LIST_NAME, read_root_list
from arrow_format.roots import MARKER_NAME, bears_marker, root_name
from arrow_format.storage import Storage, open_storage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from arrow_format.storage import ObjectStat

_LAST = (ROOT_LIST_NAME, DECISION_NAME)
"""Files of a job that go after all others: what a collection that is killed needs to go on."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there."""

    storage: Storage
    path: str
    num_bytes: int
    modified_ms: int | None


def stored(
    storage: Storage, paths: Iterable[str], listed: Mapping[str, ObjectStat]
) -> list[StoredFile]:
    """Return the files of a listing that stand at paths, in the order of these."""
    found = ((path, listed[path]) for path in paths if path in listed)
    return [StoredFile(storage, path, stat.num_bytes, stat.modified_ms) for path, stat in found]


def by_job(listed: Mapping[str, ObjectStat]) -> dict[str, dict[str, ObjectStat]]:
    """Return the files of each job out of a listing of them all."""
    found: dict[str, dict[str, ObjectStat]] = {}
    for path, stat in listed.items():
        found.setdefault(path.split("/")[1], {})[path] = stat
    return found


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
    listed: Mapping[str, ObjectStat]
    """Its files in the shuffle."""

    @staticmethod
    def of(
        storage: Storage,
        job_id: str,
        roots: Iterable[str],
        listed: Mapping[str, ObjectStat] | None = None,
    ) -> JobFiles:
        """Find the local roots of a job.

        Parameters
        ----------
        storage
            The shuffle.
        job_id
            The job.
        roots
            Its roots as far as the log knows them.
        listed
            Its files in the shuffle, where they were listed already.
        """
        directory = f"{MAP_OUTPUT_DIRECTORY}/{job_id}"
        files = storage.files(directory) if listed is None else listed
        named: tuple[str, ...] = ()
        if f"{directory}/{ROOT_LIST_NAME}" in files:
            named = read_root_list(storage, directory)
        paths = dict.fromkeys((*roots, *named))
        return JobFiles(storage, job_id, tuple(map(open_storage, paths)), files)

    @property
    def directory(self) -> str:
        """Directory of the job in the shuffle."""
        return f"{MAP_OUTPUT_DIRECTORY}/{self.job_id}"

    def dead_in_roots(self, live: Collection[tuple[str, str]]) -> Iterator[list[StoredFile]]:
        """Files in local roots that are not live, in groups, in the order in which they may go.

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
            listed = root.files("")
            yield stored(root, dead, listed)
            if len(names) == len(dead) + 1:
                yield stored(root, [MARKER_NAME], listed)

    def dead_in_shuffle(self, live: Collection[tuple[str, str]]) -> list[list[StoredFile]]:
        """Files in the shuffle that are not live, to go after those in local roots.

        Always as many groups, in the order in which they may go: those of several jobs go together.
        """
        dead = [path for path in self.listed if ("", path) not in live]
        last = [f"{self.directory}/{name}" for name in _LAST]
        groups = [[path for path in dead if path not in last]]
        groups += [[path] if path in dead else [] for path in last]
        return [stored(self.storage, group, self.listed) for group in groups]

    def modified_ms(self) -> int | None:
        """Return when anything of the job was written last; None where no storage tells."""
        groups = chain(self.dead_in_roots(()), self.dead_in_shuffle(()))
        times = [file.modified_ms for group in groups for file in group]
        for storage, path in ((self.storage, self.directory), *((root, "") for root in self.roots)):
            stat = storage.stat(path) if storage.has_directories else None
            times.append(stat.modified_ms if stat else None)
        return max((time for time in times if time is not None), default=None)

    def prune_roots(self) -> None:
        """Remove the local roots that are empty."""
        for root in self.roots:
            root.prune("", and_root=True)

    def prune(self) -> None:
        """Remove the directory in the shuffle if it is empty."""
        self.storage.prune(self.directory, and_root=False)
