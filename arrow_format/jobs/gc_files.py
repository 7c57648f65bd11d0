"""The files of one job, in the shuffle and in its local roots: what garbage collection looks at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from arrow_format.jobs.decision import DECISION_NAME
from arrow_format.jobs.job import MAP_OUTPUT_DIRECTORY
from arrow_format.storage.local_dir_removal import holds_garbage, is_root_or_rest
from arrow_format.storage.local_dirs import MARKER_NAME, root_name
from arrow_format.storage.open import Storage, open_made_directory
from arrow_format.storage.root_list import ROOT_LIST_NAME, put_root_list, read_root_list

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from arrow_format.storage.open import ObjectStat

_LAST = (ROOT_LIST_NAME, DECISION_NAME)
"""Files of a job that go after all others: what a collection that is killed needs to go on."""

_JOB_ID = re.compile(r"[0-9a-f]{32}")


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


def jobs_there(storage: Storage) -> set[str]:
    """Return the jobs that have files in a shuffle."""
    return set(filter(_JOB_ID.fullmatch, storage.list(MAP_OUTPUT_DIRECTORY)))


def by_job(listed: Mapping[str, ObjectStat]) -> dict[str, dict[str, ObjectStat]]:
    """Return the files of each job out of a listing of them all."""
    found: dict[str, dict[str, ObjectStat]] = {}
    for path, stat in listed.items():
        found.setdefault(path.split("/")[1], {})[path] = stat
    return found


@dataclass(frozen=True, slots=True)
class JobFiles:
    """Where the files of one job are.

    A local root that bears the marker of another job is left alone.
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
        return JobFiles(storage, job_id, tuple(map(open_made_directory, paths)), files)

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
            if not is_root_or_rest(root, self.job_id):
                continue
            place = root_name(root.root)
            listed = root.files("")
            dead = {one for one in listed if (place, one) not in live} - {MARKER_NAME}
            yield stored(root, sorted(dead), listed)
            # Not by the same listing: a task that still runs may have put a file there meanwhile.
            again = root.files("")
            if not again.keys() - dead - {MARKER_NAME}:
                yield stored(root, [MARKER_NAME], again)

    def dead_in_shuffle(
        self, live: Collection[tuple[str, str]], *, with_root_list: bool
    ) -> list[list[StoredFile]]:
        """Files in the shuffle that are not live, to go after those in local roots.

        Always as many groups, in the order in which they may go: those of several jobs go together.

        Parameters
        ----------
        live
            As for :meth:`dead_in_roots`.
        with_root_list
            Whether the list of local roots may go.
        """
        dead = [path for path in self.listed if ("", path) not in live]
        last = [f"{self.directory}/{name}" for name in _LAST]
        kept = () if with_root_list else (f"{self.directory}/{ROOT_LIST_NAME}",)
        groups = [[path for path in dead if path not in last]]
        groups += [[path] if path in dead and path not in kept else [] for path in last]
        return [stored(self.storage, group, self.listed) for group in groups]

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
        groups = chain(self.dead_in_roots(()), self.dead_in_shuffle((), with_root_list=True))
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
